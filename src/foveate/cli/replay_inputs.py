"""What can be read only once, put where it can be read again: recordings are looked at before they are read."""

import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from foveate.errors import UnreadableInput

STANDARD_INPUT = "-"
_STANDARD_INPUT_NAME = "standard-input"


@contextmanager
def copy_streams_to_files(files: list[str]) -> Iterator[list[str]]:
    """The names of `files`, with those of files on the disk for standard input and for pipes.

    These are gone when it ends.

    Raises:
        UnreadableInput: what comes in cannot be read, or kept.
    """
    streams = [name for name in dict.fromkeys(files) if name == STANDARD_INPUT or _is_pipe(name)]
    if not streams:
        yield files
        return
    with tempfile.TemporaryDirectory(prefix="foveate-") as folder:
        copies = {name: _copy_to_file(name, Path(folder, str(number))) for number, name in enumerate(streams)}
        try:
            yield [copies.get(name, name) for name in files]
        except UnreadableInput as error:  # by the names that were given: theirs are gone by now
            source, reason = error.source, error.reason
            for name, path in copies.items():
                source, reason = (text.replace(path, _display_name(name)) for text in (source, reason))
            raise UnreadableInput(source, reason) from None


def _is_pipe(name: str) -> bool:
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError):
        return False  # whoever opens it tells what is wrong
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def _copy_to_file(name: str, folder: Path) -> str:
    path = folder / (_STANDARD_INPUT_NAME if name == STANDARD_INPUT else Path(name).name)
    try:
        folder.mkdir()
        with _open_stream(name) as stream, path.open("wb") as file:
            shutil.copyfileobj(stream, file)
    except OSError as error:
        raise UnreadableInput(_display_name(name), error.strerror or "cannot be read") from None
    return str(path)


def _display_name(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else name


@contextmanager
def _open_stream(name: str) -> Iterator[IO[bytes]]:
    if name != STANDARD_INPUT:
        with Path(name).open("rb") as file:
            yield file
    elif sys.stdin is None:
        raise UnreadableInput("standard input", "is closed")
    else:
        yield sys.stdin.buffer
