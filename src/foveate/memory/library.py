"""The files of a memory, kept up to date by reading only what has changed."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

from blake3 import blake3

from foveate.errors import BadOption, UnreadableInput
from foveate.memory.gate import Gate
from foveate.memory.holdings import Changes, FileContent, LibraryFile, LibraryState, update_state
from foveate.memory.nodes import Document, Node
from foveate.memory.parsing import parse_notes
from foveate.memory.paths import StrPath, expand_path
from foveate.memory.reading import InvalidUtf8, decode_text, is_settled, read_stable
from foveate.memory.walking import FoundFile, LibraryRoot, Problem, find_files, make_roots, to_printable

_BEING_WRITTEN = b"being written"


class Library:
    """The files of a memory, each read once until it changes.

    Nothing is read before the first `refresh`. Threads may read while another refreshes. Who keeps something
    made of `documents` under `version` asks for the version first: then it can be too old, but never too new.
    """

    def __init__(self, paths: Sequence[StrPath], gate: Gate, *, follow_symlinks: bool = False) -> None:
        if isinstance(paths, str | os.PathLike):
            raise BadOption(f"paths are a list, also where there is only one: [{os.fspath(paths)!r}]")
        self._paths = tuple(paths)
        self._gate = gate
        self._follow_symlinks = follow_symlinks
        self._roots: tuple[LibraryRoot, ...] | None = None
        self._state = LibraryState()
        self._refreshing = Lock()

    @property
    def state(self) -> LibraryState:
        """All that is known now, as one value that never changes."""
        return self._state

    @property
    def documents(self) -> tuple[Document, ...]:
        """What may be seen of the files, by key; those that are wholly private are not there."""
        return self._state.documents

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be read, or not as it was meant."""
        return self._state.problems

    @property
    def version(self) -> str:
        """Another one after every change of any file."""
        return self._state.version

    def node(self, id: str) -> Node | None:  # noqa: A002  # the spec's word
        """The node that goes by this id."""
        return self._state.nodes.get(id)

    def refresh(self) -> Changes:
        """Read what is new or has changed, and forget what is gone.

        What cannot be read is told in `problems`, and nothing else suffers from it.

        Raises:
            UnreadableInput: the first time, that one of the paths is not there.
            BadOption: the first time, that one of them names a variable or a user that is not there.
        """
        with self._refreshing:
            roots = self._roots or make_roots(map(_resolve_path, self._paths))
            found = find_files(roots, follow_symlinks=self._follow_symlinks)
            if self._roots is None and found.missing:
                raise UnreadableInput(found.missing[0].path, found.missing[0].reason)
            self._roots = roots
            before = self._state
            files: dict[str, LibraryFile] = {}
            problems = found.problems + found.missing
            for found_file in found.files:
                try:
                    files[found_file.path] = self._read_file(found_file, before.files.get(found_file.path))
                except UnreadableInput as error:
                    problems.append(Problem(error.source, error.reason))
            self._state, changes = update_state(before, files, tuple(problems))
            return changes

    def _read_file(self, found: FoundFile, before: LibraryFile | None) -> LibraryFile:
        """The file now, read where it may have changed."""
        if before and before.state == found.state and before.content.key == found.key:
            return before
        known = before.content if before else FileContent(found.key)
        read_ns = time.time_ns()
        read = read_stable(found.path)
        if read is None:
            return LibraryFile(
                None, replace(known, pending_digest=_BEING_WRITTEN, read_error="changes while it is read")
            )
        data, state = read
        digest = blake3(data).digest()
        if known.outline and digest == known.digest:
            content = replace(known, pending_digest=b"", read_error="")
        else:
            content = self._read_content(decode_text(data), digest, known, found.path)
        content = replace(content, key=found.key, modified_ns=state.modified_ns)
        return LibraryFile(
            state if is_settled(state, read_ns) and not content.pending_digest else None,
            known if content == known else content,
        )

    def _read_content(
        self, text: str | InvalidUtf8, digest: bytes, known: FileContent, path: str
    ) -> FileContent:
        if isinstance(text, str):
            outline = self._gate.redact(parse_notes(text, self._gate, path=to_printable(path)))
            has_private = len(outline.text) < len(text)
            return replace(
                known,
                digest=digest,
                outline=outline,
                pending_digest=b"",
                read_error="",
                has_private=has_private,
            )
        fault = f"is not UTF-8 (byte {text.at_byte:,})"
        if text.is_truncated and known.outline and known.pending_digest != digest:
            return replace(known, pending_digest=digest, read_error=fault)
        # Once it is seen a second time it is not being written any more. To go on with what was there before
        # could show what is private by now.
        return replace(
            known, digest=digest, outline=None, pending_digest=b"", read_error=fault, has_private=False
        )


def _resolve_path(path: StrPath) -> str:
    """The path as it is written, where there is such a file; otherwise what it says in the way of a setting."""
    written = os.fspath(path)
    if os.path.lexists(written) and not written.startswith("~"):
        return written
    return expand_path(written, os.environ)
