"""What is in the files of a workspace, each as it was at one time, and only what may be seen."""

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager

from foveate.errors import UnreadableInput
from foveate.memory.gate import Gate
from foveate.memory.parsing import parse
from foveate.prompt.bundles import BundleFile, Reading, Trouble
from foveate.prompt.sources import LIMIT_BYTES, Sight, Source, because, stamp, unfit

# How often a file is read that changes meanwhile.
_TRIES = 3
_PIECE_BYTES = 1_000_000


def read(sight: Sight, gate: Gate) -> Reading:
    """What the files that were seen say, as far as it may be seen."""
    files: list[BundleFile] = []
    troubles = list(sight.troubles)
    for source in sight.sources:
        data = b""
        try:
            data = _bytes(sight.root or "/", source)
            text = _text(data, source.path)
        except UnreadableInput as error:
            troubles.append(Trouble(source.path, error.reason, source.name))
            if _says_private(data, gate, source.path):
                # It may have become private since it was good: then it is not shown as it was either.
                files.append(BundleFile(source.name, source.path, "", is_blank=False))
            continue
        outline = gate.admitted(parse(text, gate, path=source.path))
        public = outline.text.strip("\r\n").rstrip()
        files.append(BundleFile(source.name, source.path, public, is_blank=not text or text.isspace()))
        troubles.extend(Trouble(source.path, problem, is_lasting=True) for problem in outline.problems)
    return Reading(files=tuple(files), troubles=tuple(troubles))


def _says_private(data: bytes, gate: Gate, path: str) -> bool:
    """Whether something is private in what is no text, as far as it can be read."""
    text = data.decode("utf-8-sig", "replace")
    return gate.admitted(parse(text, gate, path=path)).text != text


def _bytes(root: str, source: Source) -> bytes:
    """All of a file, as it is at one time.

    Raises:
        UnreadableInput: it is gone, or is being written, or is no file that can be read.
    """
    try:
        for _ in range(_TRIES):
            with _opened(root, source.real) as file:
                before = os.fstat(file)
                if wrong := unfit(before):
                    raise UnreadableInput(source.path, wrong)
                data = _whole(file)
                if stamp(before) == stamp(os.fstat(file)) and len(data) == before.st_size:
                    return data
    except OSError as error:
        raise UnreadableInput(source.path, because(error)) from None
    raise UnreadableInput(source.path, "is being written")


@contextmanager
def _opened(root: str, real: str) -> Iterator[int]:
    """The file at `real`, in which there are no links, nor have any been put since."""
    only = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(root, only | os.O_DIRECTORY)
    *folders, name = os.path.relpath(real, root).split("/")
    for part, kind in [*((folder, os.O_DIRECTORY) for folder in folders), (name, os.O_NONBLOCK | os.O_NOCTTY)]:
        try:
            inner = os.open(part, only | kind, dir_fd=file)
        finally:
            os.close(file)
        file = inner
    try:
        yield file
    finally:
        os.close(file)


def _whole(file: int) -> bytes:
    pieces: list[bytes] = []
    left = LIMIT_BYTES + 1
    while left > 0 and (piece := os.read(file, min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _text(data: bytes, path: str) -> str:
    """The text that `data` is in UTF-8, without a byte order mark.

    Raises:
        UnreadableInput: it is not.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableInput(path, "is UTF-16: save it as UTF-8")
    if b"\0" in data:
        raise UnreadableInput(path, "is binary, not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise UnreadableInput(path, "ends in the middle of a character") from None
        raise UnreadableInput(path, f"is not UTF-8 (byte {error.start})") from None
