"""The note files of a memory, kept up to date by reading only files that have changed.

`LibraryState` is an immutable snapshot. `update_state` derives the next one from the files that exist now.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import Self

from blake3 import blake3

from foveate.errors import BadOption, UnreadableInput
from foveate.memory.nodes import Node, NoteDocument, RejectedId, build_nodes, claimed_ids
from foveate.memory.note_files import (
    FileState,
    FoundFile,
    InvalidUtf8,
    LibraryRoot,
    Problem,
    decode_text,
    find_files,
    is_settled,
    make_roots,
    read_stable,
    to_printable,
)
from foveate.memory.parsing import parse_notes
from foveate.memory.privacy import Gate, PublicOutline
from foveate.paths import StrPath, expand_path

_VERSION_BYTES = 16
_BEING_WRITTEN = b"being written"


class IdOwners:
    """Maps each `ID` to the key of the document that owns it: the first of those that claim it."""

    def __init__(self) -> None:
        self.by_id: dict[str, str] = {}
        self._claimants: dict[str, frozenset[str]] = {}

    def copy(self) -> Self:
        other = type(self)()
        other.by_id = self.by_id.copy()
        other._claimants = self._claimants.copy()
        return other

    def claim(self, key: str, ids: Iterable[str]) -> None:
        for claimed in ids:
            owner = self.by_id.setdefault(claimed, key)
            if owner != key:
                self._set_claimants(claimed, self._claimants.get(claimed, frozenset({owner})) | {key})

    def release(self, key: str, ids: Iterable[str]) -> None:
        for released in set(ids):  # a document can contain an id twice
            if released in self._claimants:
                self._set_claimants(released, self._claimants[released] - {key})
            else:
                self.by_id.pop(released, None)

    def _set_claimants(self, id_: str, keys: frozenset[str]) -> None:
        self.by_id[id_] = min(keys)
        if len(keys) > 1:
            self._claimants[id_] = keys
        else:
            self._claimants.pop(id_, None)


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths of documents that were read or removed."""

    read: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class FileContent:
    """Content read from a file. Replaced only if something in it differs."""

    key: str
    modified_ns: int = 0
    digest: bytes = b""
    outline: PublicOutline | None = None
    pending_digest: bytes = b""
    """Digest of newer bytes that seem incomplete."""
    read_error: str = ""
    """Reason why the newer bytes cannot be read."""
    private_digest: bytes = b""
    """Digest of what is private in the file, or may be; empty if nothing is."""


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A file when it was last checked; without a state it is read again in any case."""

    state: FileState | None
    content: FileContent


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BuiltDocument:
    document: NoteDocument
    rejected_ids: list[RejectedId]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LibraryState:
    """Immutable snapshot of a library, so that readers need no lock."""

    files: Mapping[str, LibraryFile] = field(default_factory=dict)
    file_problems: tuple[Problem, ...] = ()
    """Problems found before any content was read."""
    built_documents: Mapping[str, BuiltDocument] = field(default_factory=dict)
    id_owners: IdOwners = field(default_factory=IdOwners)
    nodes: dict[str, Node] = field(default_factory=dict)
    documents: tuple[NoteDocument, ...] = ()
    problems: tuple[Problem, ...] = ()
    version: str = ""
    has_private: bool = False
    """Something in the files is private. Does not tell where or how much."""
    private_version: str = ""
    """Differs if something has become private."""


def update_state(
    before: LibraryState, files: Mapping[str, LibraryFile], file_problems: tuple[Problem, ...]
) -> tuple[LibraryState, Changes]:
    """Derive the state for these files, by path, and what has changed.

    Documents stay the same objects unless something in them differs, which includes an id that another document
    claims now or no longer.
    """
    old = {path: file.content for path, file in before.files.items()}
    new = {path: file.content for path, file in files.items()}
    changed = [path for path, content in new.items() if content is not old.get(path)]
    if before.version and not changed and old.keys() == new.keys() and file_problems == before.file_problems:
        return replace(before, files=files), Changes()
    removed_or_changed = [path for path in old if path not in new or new[path] is not old[path]]
    owners = before.id_owners.copy()
    touched_ids = {id_ for path in removed_or_changed for id_ in _claimed_ids(old[path])}
    for path in removed_or_changed:
        owners.release(old[path].key, _claimed_ids(old[path]))
    for path in changed:
        touched_ids.update(_claimed_ids(new[path]))
        owners.claim(new[path].key, _claimed_ids(new[path]))
    reassigned_ids = {id_ for id_ in touched_ids if owners.by_id.get(id_) != before.id_owners.by_id.get(id_)}
    rebuilt_paths = {path for path in changed if not _builds_same_document(old.get(path), new[path])}
    rebuilt_paths.update(_find_affected_paths(before, reassigned_ids))
    built_documents = {
        path: before.built_documents[path]
        if path not in rebuilt_paths
        else _build_document(path, content, content.outline, owners)
        for path, content in new.items()
        if content.outline and content.outline.entries
    }
    nodes = _index_nodes(before, built_documents)
    state = LibraryState(
        files=files,
        file_problems=file_problems,
        built_documents=built_documents,
        id_owners=owners,
        nodes=nodes,
        documents=tuple(
            sorted((built.document for built in built_documents.values()), key=lambda document: document.key)
        ),
        problems=tuple(
            sorted(
                [*file_problems, *_find_problems(new, built_documents, nodes)], key=lambda problem: problem.path
            )
        ),
        version=_compute_version(new.values()),
        has_private=any(content.private_digest for content in new.values() if content.outline is not None),
        private_version=_compute_private_version(new.values()),
    )
    changes = Changes(
        read=tuple(path for path in changed if path in built_documents and path in rebuilt_paths),
        removed=tuple(path for path in before.built_documents if path not in built_documents),
    )
    return state, changes


def _claimed_ids(content: FileContent) -> Iterator[str]:
    return claimed_ids(content.outline) if content.outline else iter(())


def _builds_same_document(old: FileContent | None, new: FileContent) -> bool:
    return (
        old is not None
        and old.outline is new.outline
        and (old.key, old.modified_ns) == (new.key, new.modified_ns)
    )


def _find_affected_paths(before: LibraryState, reassigned_ids: set[str]) -> Iterator[str]:
    """Documents whose nodes may get other ids because the owners of ids have changed."""
    for node_id in reassigned_ids:
        if node_id in before.nodes:
            yield before.nodes[node_id].document.path
    for path, built in before.built_documents.items():
        if any(rejected_id.id in reassigned_ids for rejected_id in built.rejected_ids):
            yield path


def _build_document(path: str, content: FileContent, outline: PublicOutline, owners: IdOwners) -> BuiltDocument:
    document = NoteDocument(
        path=path,
        key=content.key,
        modified=_to_local_time(content.modified_ns),
        digest=content.digest,
        outline=outline,
    )
    return BuiltDocument(document, build_nodes(document, owners.by_id))


def _index_nodes(before: LibraryState, built_documents: Mapping[str, BuiltDocument]) -> dict[str, Node]:
    new = {
        node.id: node
        for path, built in built_documents.items()
        if before.built_documents.get(path) is not built
        for node in built.document.nodes
    }
    # Not `dict(…)`, which inserts items one by one after a deletion.
    nodes = before.nodes.copy()
    for path, old in before.built_documents.items():
        if built_documents.get(path) is not old:
            for node in old.document.nodes:
                if node.id not in new:
                    nodes.pop(node.id, None)
    nodes.update(new)
    return nodes


def _find_problems(
    contents: Mapping[str, FileContent], built_documents: Mapping[str, BuiltDocument], nodes: Mapping[str, Node]
) -> Iterator[Problem]:
    for path, content in contents.items():
        if content.read_error:
            yield Problem(to_printable(path), content.read_error)
        for reason in content.outline.problems if content.outline else ():
            yield Problem(to_printable(path), reason)
        for rejected in built_documents[path].rejected_ids if path in built_documents else ():
            if not rejected.is_generated:
                yield Problem(to_printable(path), _describe_conflict(rejected, nodes[rejected.id]))


def _describe_conflict(rejected: RejectedId, other: Node) -> str:
    where = (
        "in this file"
        if other.document is rejected.node.document
        else f"in {to_printable(other.document.path)}"
    )
    return (
        f"{_quote_title(rejected.node)} has the same id, {to_printable(rejected.id):.80}, as "
        f"{_quote_title(other)} {where}, so it gets the id {rejected.node.id}: change one of the two ids"
    )


def _quote_title(node: Node) -> str:
    return f"{to_printable(node.title)!r:.60}"


def _compute_version(contents: Iterable[FileContent]) -> str:
    hasher = blake3()
    for file_content in sorted(contents, key=lambda content: content.key):
        fingerprint = (
            file_content.key,
            file_content.modified_ns,
            file_content.digest,
            file_content.pending_digest,
            file_content.read_error,
        )
        hasher.update(repr(fingerprint).encode())
    return hasher.hexdigest(length=_VERSION_BYTES)


def _compute_private_version(contents: Iterable[FileContent]) -> str:
    digests = sorted(content.private_digest for content in contents if content.private_digest)
    return blake3(b"".join(digests)).hexdigest(length=_VERSION_BYTES)


def _digest_private(text: str, public_text: str) -> bytes:
    if len(public_text) == len(text):
        return b""
    counts = Counter(text.splitlines())
    counts.subtract(public_text.splitlines())
    return blake3(repr(sorted(item for item in counts.items() if item[1])).encode()).digest()


def _to_local_time(time_ns: int) -> datetime:
    """A file time as naive local time, like dates in notes. Files can have times outside the calendar."""
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000)
    except (ValueError, OverflowError, OSError):
        return datetime.max if time_ns > 0 else datetime.min


class Library:
    """The files of a memory, each read once until it changes.

    Nothing is read before the first `refresh`. Threads may read while another one refreshes. To cache something
    made of `documents` under `version`, get the version first: the cached value can then be too new, but never
    too old for its version.
    """

    def __init__(self, paths: Sequence[StrPath], gate: Gate, *, follow_symlinks: bool = False) -> None:
        if isinstance(paths, (str, os.PathLike)):
            raise BadOption(f"paths must be a list, even for one path: [{os.fspath(paths)!r}]")
        self._paths = tuple(paths)
        self._gate = gate
        self._follow_symlinks = follow_symlinks
        self._roots: tuple[LibraryRoot, ...] | None = None
        self._state = LibraryState()
        self._refresh_lock = Lock()

    @property
    def state(self) -> LibraryState:
        return self._state

    @property
    def documents(self) -> tuple[NoteDocument, ...]:
        return self._state.documents

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self._state.problems

    @property
    def version(self) -> str:
        """Changes with every change of a file."""
        return self._state.version

    def node(self, id: str) -> Node | None:  # noqa: A002 - public name
        return self._state.nodes.get(id)

    def refresh(self) -> Changes:
        """Read new and changed files, and forget removed ones.

        Unreadable files are listed in `problems` and do not affect others.

        Raises:
            UnreadableInput: on the first call, one of the paths does not exist.
            BadOption: on the first call, a path refers to an unknown variable or user.
        """
        with self._refresh_lock:
            roots = self._roots or make_roots(map(_resolve_path, self._paths))
            walk_result = find_files(roots, follow_symlinks=self._follow_symlinks)
            if self._roots is None and walk_result.missing:
                raise UnreadableInput(walk_result.missing[0].path, walk_result.missing[0].reason)
            self._roots = roots
            before = self._state
            files: dict[str, LibraryFile] = {}
            problems = walk_result.problems + walk_result.missing
            for found_file in walk_result.files:
                try:
                    files[found_file.path] = self._read_file(found_file, before.files.get(found_file.path))
                except UnreadableInput as error:
                    problems.append(Problem(error.source, error.reason))
            self._state, changes = update_state(before, files, tuple(problems))
            return changes

    def _read_file(self, found_file: FoundFile, before: LibraryFile | None) -> LibraryFile:
        if before and before.state == found_file.state and before.content.key == found_file.key:
            return before
        content_before = before.content if before else FileContent(found_file.key)
        read_ns = time.time_ns()
        read = read_stable(found_file.path)
        if read is None:
            return LibraryFile(
                None,
                replace(content_before, pending_digest=_BEING_WRITTEN, read_error="changed while it was read"),
            )
        data, state = read
        digest = blake3(data).digest()
        if content_before.outline and digest == content_before.digest:
            content = replace(content_before, pending_digest=b"", read_error="")
        else:
            content = self._read_content(decode_text(data), digest, content_before, found_file.path)
        content = replace(content, key=found_file.key, modified_ns=state.modified_ns)
        return LibraryFile(
            state if is_settled(state, read_ns) and not content.pending_digest else None,
            content_before if content == content_before else content,
        )

    def _read_content(
        self, text: str | InvalidUtf8, digest: bytes, content_before: FileContent, path: str
    ) -> FileContent:
        if isinstance(text, str):
            outline = self._gate.redact(parse_notes(text, path=to_printable(path)))
            return replace(
                content_before,
                digest=digest,
                outline=outline,
                pending_digest=b"",
                read_error="",
                private_digest=_digest_private(text, outline.text),
            )
        fault = f"is not UTF-8 (byte {text.at_byte:,})"
        if text.is_truncated and content_before.outline and content_before.pending_digest != digest:
            return replace(content_before, pending_digest=digest, read_error=fault)
        # The same invalid bytes a second time are not an unfinished write. Keeping the old content could show
        # what is private by now.
        return replace(
            content_before,
            digest=digest,
            outline=None,
            pending_digest=b"",
            read_error=fault,
            private_digest=digest,
        )


def _resolve_path(path: StrPath) -> str:
    """The path as written if it exists; otherwise expanded like a setting."""
    path_text = os.fspath(path)
    if os.path.lexists(path_text) and not path_text.startswith("~"):
        return path_text
    return expand_path(path_text, os.environ)
