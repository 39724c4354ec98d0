"""Files: read whole, and replaced whole or not at all."""

import codecs
import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from foveate.errors import UnreadableInput, UnwritableFile

StrPath = str | os.PathLike[str]
"""Wherever the name of a file or a folder is asked for."""

_CHUNK_BYTES = 16_000_000

_OTHER_ENCODINGS = {
    codecs.BOM_UTF8: "begins with a byte order mark: save it as UTF-8 without one",
    codecs.BOM_UTF16_LE: "is UTF-16: save it as UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16: save it as UTF-8",
}

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "make its folder writable",
    errno.EPERM: "make its folder writable",
    errno.ENOENT: "make its folder first",
    errno.ENOTDIR: "name a file in a folder",
}


def read_bytes(path: Path, *, limit_bytes: int) -> bytes:
    """All of a file.

    Raises:
        UnreadableInput: no such file, a folder, or larger than the limit.
    """
    try:
        with path.open("rb") as file:
            data = _read_all(file, limit_bytes)
    except OSError as error:
        raise UnreadableInput(display_path(path), error.strerror or "cannot be read") from None
    except ValueError as error:  # a name with a zero byte in it
        raise UnreadableInput(display_path(path), str(error)) from None
    if data is None:
        raise UnreadableInput(
            display_path(path), f"is larger than {limit_bytes:,} bytes, the most that is read"
        )
    return data


def _read_all(file: BinaryIO, limit_bytes: int) -> bytes | None:
    """All of it, or None where that is larger than the limit."""
    if os.fstat(file.fileno()).st_size > limit_bytes:
        return None
    remaining_bytes = limit_bytes
    # In pieces, since one `read` takes the memory for all that it may read before it reads anything.
    chunks = []
    while remaining_bytes >= 0 and (chunk := file.read(min(remaining_bytes + 1, _CHUNK_BYTES))):
        chunks.append(chunk)
        remaining_bytes -= len(chunk)
    return b"".join(chunks) if remaining_bytes >= 0 else None


def decode_text(data: bytes, source: str) -> str:
    """The text that `data` is in UTF-8.

    Raises:
        UnreadableInput: it is not, or begins with a byte order mark.
    """
    for byte_order_mark, reason in _OTHER_ENCODINGS.items():
        if data.startswith(byte_order_mark):
            raise UnreadableInput(source, reason)
    if b"\0" in data[:8192]:
        raise UnreadableInput(source, "is binary, not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableInput(source, f"is not UTF-8 (byte {error.start})") from None


def replace_file(path: Path, data: bytes) -> None:
    """Have `data` in the file, all of it or what was there before, whatever happens on the way.

    A link stays a link, and the file's permissions stay as they were.

    Raises:
        UnwritableFile: the disk is full, the folder cannot be written, …; nothing has changed.
    """
    with open_replacement(path) as file:
        file.write(data)


@contextmanager
def open_replacement(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of the one at `path` once all of it is there.

    Where anything is raised meanwhile, all stays as it was. `mode` is for a file that is new.

    Raises:
        UnwritableFile: as `replace_file`.
    """
    try:
        target = Path(os.path.realpath(path))
    except ValueError as error:  # a name with a zero byte in it
        raise UnwritableFile(display_path(path), str(error)) from None
    try:
        if target.exists() and not target.is_file():
            raise UnwritableFile(display_path(path), "is not a file; nothing was changed: choose another name")
        # Beside the target, since a rename is one step only within a file system.
        temporary = target.with_name(f".foveate-{secrets.token_hex(8)}.tmp")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or "cannot be written"
        remedy = _REMEDIES.get(error.errno or 0, "try again")
        raise UnwritableFile(display_path(path), f"{reason}; nothing was changed: {remedy}") from None
    with suppress(OSError):  # it is in place, also where folders cannot be synced
        _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Have a rename outlast a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def display_path(path: Path) -> str:
    """A file's name as it can be shown: bytes that are no UTF-8 become the replacement character."""
    return os.fsencode(path).decode("utf-8", "replace")
