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
        yield [kept.get(name, name) for name in files]


def _is_pipe(name: str) -> bool:
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError):
        return False  # whoever opens it tells what is wrong
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def _kept(name: str, folder: Path) -> str:
    is_standard = name == STANDARD_INPUT
    path = folder / (_NAME if is_standard else Path(name).name)
    try:
        folder.mkdir()
        with _opened(name) as come, path.open("wb") as file:
            shutil.copyfileobj(come, file)
    except OSError as error:
        told = "standard input" if is_standard else name
        raise UnreadableInput(told, error.strerror or "cannot be read") from None
    return str(path)


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name != STANDARD_INPUT:
        with Path(name).open("rb") as file:
            yield file
    elif sys.stdin is None:
        raise UnreadableInput("standard input", "is closed")
    else:
        yield sys.stdin.buffer
