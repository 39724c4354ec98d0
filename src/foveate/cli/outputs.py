"""Where exports go: a file that is replaced whole or not at all, or standard output as it comes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from foveate.errors import BadOption, UnwritableOutput

_STANDARD = "-"
_COMPANIONS = ("", "-wal", "-shm")

Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write there; default, and -: standard output."),
]


def output_name(said: str | None) -> str | None:
    """The name of the file that is meant; None for standard output.

    Raises:
        BadOption: it is empty.
    """
    if said == "":
        raise BadOption("--output needs the name of a file")
    return None if said == _STANDARD else said


@contextmanager
def opened_output(name: str | None, *, store: str) -> Iterator[BinaryIO]:
    """Where to write: a file that takes its place when all is written, or standard output.

    Raises:
        BadOption: it is the file of the store that is read, which is at `store`.
        UnwritableFile: it cannot be written.
        UnwritableOutput: standard output is closed.
    """
    if name is not None:
        from foveate.config.files import replacing

        _check_is_not(Path(name), store)
        with replacing(Path(name), mode=0o600) as file:
            yield file
    elif sys.stdout is None:
        raise UnwritableOutput("is closed")
    else:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


def _check_is_not(output: Path, store: str) -> None:
    for companion in _COMPANIONS:
        try:
            is_same = output.samefile(store + companion)
        except (OSError, ValueError):  # one of the two is not there, so it is not the other
            continue
        if is_same:
            raise BadOption(f"--output {output} is the store itself: choose another name")
