"""What a library holds at one moment, and what it holds after files have come, changed and gone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from blake3 import blake3

from foveate.memory.gate import PublicOutline
from foveate.memory.nodes import Document, Node, RejectedId, build_nodes, claimed_ids
from foveate.memory.owners import IdOwners
from foveate.memory.walking import FileState, Problem, to_printable

_VERSION_BYTES = 16


@dataclass(frozen=True, slots=True)
class Changes:
    """The paths of the documents that are new or were read again, and of those that are gone."""

    read: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class FileContent:
    """What was read in a file; another object only where something of it is different."""

    key: str
    modified_ns: int = 0
    digest: bytes = b""
    outline: PublicOutline | None = None
    pending_digest: bytes = b""
    """A digest of what the file says by now, where that is only half of something."""
    read_error: str = ""
    """Why what it says by now cannot be read."""
    has_private: bool = False
    """Something in it may not be seen."""


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A file when it was last looked at; without a state it is read again whatever the system says of it."""

    state: FileState | None
    content: FileContent


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BuiltDocument:
    """A document, and the ids that its nodes did not get."""

    document: Document
    rejected_ids: list[RejectedId]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LibraryState:
    """All that is known at one moment. It is replaced and never changed, so whoever reads it needs no lock."""

    files: Mapping[str, LibraryFile] = field(default_factory=dict)
    file_problems: tuple[Problem, ...] = ()
    """What was wrong with files and folders before anything was read in them."""
    built_documents: Mapping[str, BuiltDocument] = field(default_factory=dict)
    id_owners: IdOwners = field(default_factory=IdOwners)
    nodes: dict[str, Node] = field(default_factory=dict)
    documents: tuple[Document, ...] = ()
    problems: tuple[Problem, ...] = ()
    version: str = ""
    has_private: bool = False
    """Something in the files may not be seen; not where, nor how much."""


def update_state(
    before: LibraryState, files: Mapping[str, LibraryFile], file_problems: tuple[Problem, ...]
) -> tuple[LibraryState, Changes]:
    """What is held when these are the files, all of them by path, and what is different then.

    Documents stay the same objects unless something in them is different; that can be an id which another
    document has laid claim to, or no longer does.
    """
    old = {path: file.content for path, file in before.files.items()}
    new = {path: file.content for path, file in files.items()}
    changed = [path for path, content in new.items() if content is not old.get(path)]
    if before.version and not changed and old.keys() == new.keys() and file_problems == before.file_problems:
        return replace(before, files=files), Changes()
    removed_or_changed = [path for path in old if path not in new or new[path] is not old[path]]
    owners = before.id_owners.copy()
    touched_ids = {each for path in removed_or_changed for each in _claimed_ids(old[path])}
    for path in removed_or_changed:
        owners.release(old[path].key, _claimed_ids(old[path]))
    for path in changed:
        touched_ids.update(_claimed_ids(new[path]))
        owners.claim(new[path].key, _claimed_ids(new[path]))
    reassigned_ids = {
        each for each in touched_ids if owners.by_id.get(each) != before.id_owners.by_id.get(each)
    }
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
    holdings = LibraryState(
        files=files,
        file_problems=file_problems,
        built_documents=built_documents,
        id_owners=owners,
        nodes=nodes,
        documents=tuple(
            sorted((each.document for each in built_documents.values()), key=lambda each: each.key)
        ),
        problems=tuple(
            sorted([*file_problems, *_find_problems(new, built_documents, nodes)], key=lambda each: each.path)
        ),
        version=_compute_version(new.values()),
        has_private=any(content.has_private for content in new.values()),
    )
    changes = Changes(
        read=tuple(path for path in changed if path in built_documents and path in rebuilt_paths),
        removed=tuple(path for path in before.built_documents if path not in built_documents),
    )
    return holdings, changes


def _claimed_ids(content: FileContent) -> Iterator[str]:
    return claimed_ids(content.outline) if content.outline else iter(())


def _builds_same_document(old: FileContent | None, new: FileContent) -> bool:
    return (
        old is not None
        and old.outline is new.outline
        and (old.key, old.modified_ns) == (new.key, new.modified_ns)
    )


def _find_affected_paths(before: LibraryState, reassigned_ids: set[str]) -> Iterator[str]:
    """The documents whose nodes may go by other ids, now that these belong to others."""
    for each in reassigned_ids:
        if each in before.nodes:
            yield before.nodes[each].document.path
    for path, built in before.built_documents.items():
        if any(refused.id in reassigned_ids for refused in built.rejected_ids):
            yield path


def _build_document(path: str, content: FileContent, outline: PublicOutline, owners: IdOwners) -> BuiltDocument:
    document = Document(
        path=path,
        key=content.key,
        modified=_to_local_time(content.modified_ns),
        digest=content.digest,
        outline=outline,
    )
    return BuiltDocument(document, build_nodes(document, owners.by_id))


def _index_nodes(before: LibraryState, built_documents: Mapping[str, BuiltDocument]) -> dict[str, Node]:
    """All nodes by id. Only those of documents that are different are gone through."""
    new = {
        node.id: node
        for path, each in built_documents.items()
        if before.built_documents.get(path) is not each
        for node in each.document.nodes
    }
    # Not `dict(…)`, which puts in one after the other once there was one that is gone.
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
        "here too" if other.document is rejected.node.document else f"in {to_printable(other.document.path)}"
    )
    return (
        f"{_quote_title(rejected.node)} has the id {to_printable(rejected.id):.80} of {_quote_title(other)} {where}, "
        f"so it goes by {rejected.node.id}: give one of them another"
    )


def _quote_title(node: Node) -> str:
    return f"{to_printable(node.title)!r:.60}"


def _compute_version(contents: Iterable[FileContent]) -> str:
    hasher = blake3()
    for each in sorted(contents, key=lambda content: content.key):
        fingerprint = (each.key, each.modified_ns, each.digest, each.pending_digest, each.read_error)
        hasher.update(repr(fingerprint).encode())
    return hasher.hexdigest(length=_VERSION_BYTES)


def _to_local_time(time_ns: int) -> datetime:
    """A time of the file system as dates in notes are; times can be set that no calendar has."""
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000)
    except (ValueError, OverflowError, OSError):
        return datetime.max if time_ns > 0 else datetime.min
