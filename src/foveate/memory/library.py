"""The files of a memory, kept up to date by reading only what has changed."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

from blake3 import blake3

from foveate.errors import BadOption, UnreadableInput
from foveate.memory.gate import Gate
from foveate.memory.holdings import Changes, Content, File, Holdings, after
from foveate.memory.nodes import Document, Node
from foveate.memory.parsing import parse
from foveate.memory.paths import StrPath, expanded
from foveate.memory.reading import NotText, is_settled, read_whole, text_in
from foveate.memory.walking import Found, Problem, Root, rooted, shown, walk

__all__ = ["Changes", "Library", "Problem"]

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
        self._roots: tuple[Root, ...] | None = None
        self._holdings = Holdings()
        self._refreshing = Lock()

    @property
    def holdings(self) -> Holdings:
        """All that is known now, as one value that never changes."""
        return self._holdings

    @property
    def documents(self) -> tuple[Document, ...]:
        """What may be seen of the files, by key; those that are wholly private are not there."""
        return self._holdings.documents

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be read, or not as it was meant."""
        return self._holdings.problems

    @property
    def version(self) -> str:
        """Another one after every change of any file."""
        return self._holdings.version

    def node(self, id: str) -> Node | None:  # noqa: A002  # the spec's word
        """The node that goes by this id."""
        return self._holdings.nodes.get(id)

    def refresh(self) -> Changes:
        """Read what is new or has changed, and forget what is gone.

        What cannot be read is told in `problems`, and nothing else suffers from it.

        Raises:
            UnreadableInput: the first time, that one of the paths is not there.
            BadOption: the first time, that one of them names a variable or a user that is not there.
        """
        with self._refreshing:
            roots = self._roots or rooted(map(_meant, self._paths))
            found = walk(roots, follow_symlinks=self._follow_symlinks)
            if self._roots is None and found.missing:
                raise UnreadableInput(found.missing[0].path, found.missing[0].reason)
            self._roots = roots
            before = self._holdings
            files: dict[str, File] = {}
            problems = found.problems + found.missing
            for each in found.files:
                try:
                    files[each.path] = self._file(each, before.files.get(each.path))
                except UnreadableInput as error:
                    problems.append(Problem(error.source, error.reason))
            self._holdings, changes = after(before, files, tuple(problems))
            return changes

    def _file(self, found: Found, before: File | None) -> File:
        """The file now, read where it may have changed."""
        if before and before.state == found.state and before.content.key == found.key:
            return before
        known = before.content if before else Content(found.key)
        read_ns = time.time_ns()
        read = read_whole(found.path)
        if read is None:
            return File(None, replace(known, newer=_BEING_WRITTEN, fault="changes while it is read"))
        data, state = read
        digest = blake3(data).digest()
        if known.outline and digest == known.digest:
            content = replace(known, newer=b"", fault="")
        else:
            content = self._content(text_in(data), digest, known, found.path)
        content = replace(content, key=found.key, modified_ns=state.modified_ns)
        return File(
            state if is_settled(state, read_ns) and not content.newer else None,
            known if content == known else content,
        )

    def _content(self, text: str | NotText, digest: bytes, known: Content, path: str) -> Content:
        if isinstance(text, str):
            outline = self._gate.admitted(parse(text, self._gate, path=shown(path)))
            has_private = len(outline.text) < len(text)
            return replace(known, digest=digest, outline=outline, newer=b"", fault="", has_private=has_private)
        fault = f"is not UTF-8 (byte {text.at_byte:,})"
        if text.is_cut_off and known.outline and known.newer != digest:
            return replace(known, newer=digest, fault=fault)
        # Once it is seen a second time it is not being written any more. To go on with what was there before
        # could show what is private by now.
        return replace(known, digest=digest, outline=None, newer=b"", fault=fault, has_private=False)


def _meant(path: StrPath) -> str:
    """The path as it is written, where there is such a file; otherwise what it says in the way of a setting."""
    written = os.fspath(path)
    if os.path.lexists(written) and not written.startswith("~"):
        return written
    return expanded(written, os.environ)
