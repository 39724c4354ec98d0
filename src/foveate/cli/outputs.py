"""Where exports go: a file that is replaced whole or not at all, or standard output as it comes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from foveate.errors import BadOption, UnwritableOutput

_STANDARD_OUTPUT = "-"
_DATABASE_SUFFIXES = ("", "-wal", "-shm")

Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write there; default, and -: standard output."),
]


def parse_output_option(name: str | None) -> str | None:
    """The name of the file that is meant; None for standard output.

    Raises:
        BadOption: it is empty.
    """
    if name == "":
        raise BadOption("--output needs the name of a file")
    return None if name == _STANDARD_OUTPUT else name


@contextmanager
def open_output(name: str | None, *, store: str) -> Iterator[BinaryIO]:
    """Where to write: a file that takes its place when all is written, or standard output.

    Raises:
        BadOption: it is the file of the store that is read, which is at `store`.
        UnwritableFile: it cannot be written.
        UnwritableOutput: standard output is closed.
    """
    if name is not None:
        from foveate.config.files import open_replacement

        _check_is_not_store(Path(name), store)
        with open_replacement(Path(name), mode=0o600) as file:
            yield file
    elif sys.stdout is None:
        raise UnwritableOutput("is closed")
    else:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


def _check_is_not_store(output: Path, store: str) -> None:
    for suffix in _DATABASE_SUFFIXES:
        try:
            is_same = output.samefile(store + suffix)
        except (OSError, ValueError):  # one of the two is not there, so it is not the other
            continue
        if is_same:
            raise BadOption(f"--output {output} is the store itself: choose another name")
