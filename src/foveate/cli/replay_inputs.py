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
_NAME = "standard-input"


@contextmanager
def readable_twice(files: list[str]) -> Iterator[list[str]]:
    """The names of `files`, with those of files on the disk for standard input and for pipes.

    These are gone when it ends.

    Raises:
        UnreadableInput: what comes in cannot be read, or kept.
    """
    once = [name for name in dict.fromkeys(files) if name == STANDARD_INPUT or _is_pipe(name)]
    if not once:
        yield files
        return
    with tempfile.TemporaryDirectory(prefix="foveate-") as folder:
        kept = {name: _kept(name, Path(folder, str(number))) for number, name in enumerate(once)}
        try:
            yield [kept.get(name, name) for name in files]
        except UnreadableInput as error:  # by the names that were given: theirs are gone by now
            source, reason = error.source, error.reason
            for name, path in kept.items():
                source, reason = (text.replace(path, _told(name)) for text in (source, reason))
            raise UnreadableInput(source, reason) from None


def _is_pipe(name: str) -> bool:
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError):
        return False  # whoever opens it tells what is wrong
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def _kept(name: str, folder: Path) -> str:
    path = folder / (_NAME if name == STANDARD_INPUT else Path(name).name)
    try:
        folder.mkdir()
        with _opened(name) as come, path.open("wb") as file:
            shutil.copyfileobj(come, file)
    except OSError as error:
        raise UnreadableInput(_told(name), error.strerror or "cannot be read") from None
    return str(path)


def _told(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else name


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name != STANDARD_INPUT:
        with Path(name).open("rb") as file:
            yield file
    elif sys.stdin is None:
        raise UnreadableInput("standard input", "is closed")
    else:
        yield sys.stdin.buffer
