"""Folders of notes on a real disk, and a record of the files that are opened."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from foveate.memory.nodes import Node
from foveate.memory.note_library import Library
from foveate.memory.privacy import Gate

_NOBODY = 65534
_opened: list[list[str]] = []
_is_hooked = False


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write these files into a folder and return the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
    return folder


def load_library(*paths: Path | str, gate: Gate | None = None) -> Library:
    library = Library(paths, gate or Gate())
    library.refresh()
    return library


def node_ids(library: Library) -> dict[str, str]:
    """Return ids by title, for files without duplicate headings."""
    return {node.title: node.id for document in library.documents for node in document.nodes}


def all_nodes(library: Library) -> Iterator[Node]:
    """Return all nodes, file by file."""
    for document in library.documents:
        yield from document.nodes


def problem_lines(library: Library) -> list[str]:
    """Return the problems, without the path of the folder."""
    return [f"{Path(problem.path).name}: {problem.reason}" for problem in library.problems]


def wait_until_settled(library: Library) -> None:
    """Wait until a new write gets another modification time than the last read."""
    for _ in range(1000):
        with opened_files() as opened:
            library.refresh()
        if not opened:
            return
    raise AssertionError("the library opens files that nobody writes to")


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Record the names of files that Python opens meanwhile, in any thread."""
    global _is_hooked
    if not _is_hooked:
        sys.addaudithook(_record_open)
        _is_hooked = True
    names: list[str] = []
    _opened.append(names)
    try:
        yield names
    finally:
        _opened.remove(names)


def _record_open(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened and isinstance(arguments[0], str):
        for names in _opened:
            names.append(arguments[0])


@contextmanager
def folder_for_everybody() -> Iterator[Path]:
    """Create a folder that other users can read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Run as a user whom permissions apply to, even if tests run as root."""
    if os.geteuid():
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
