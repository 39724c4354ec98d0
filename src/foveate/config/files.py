"""Reads whole files, and replaces files atomically."""

import codecs
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from foveate.errors import UnreadableInput, UnwritableFile

StrPath = str | os.PathLike[str]
FileStamp = tuple[int, int, int, int] | None
"""Identifies a state of a file, with its permissions; None if there is none."""

_CHUNK_BYTES = 16_000_000

_OTHER_ENCODINGS = {
    codecs.BOM_UTF8: "starts with a byte order mark: save it as UTF-8 without one",
    codecs.BOM_UTF16_LE: "is UTF-16: save it as UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16: save it as UTF-8",
}

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the file size limit",
    errno.EROFS: "choose a writable folder",
    errno.EACCES: "make the folder writable",
    errno.EPERM: "make the folder writable",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "choose a path whose folders exist",
}


def read_file_stamp(path: str) -> FileStamp:
    """Return what identifies this state of a file; None if there is no such file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - runs for every request
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_bytes(path: Path, *, limit_bytes: int) -> bytes:
    """Read a whole file.

    Raises:
        UnreadableInput: the file does not exist, is a folder, or exceeds the limit.
    """
    try:
        with path.open("rb") as file:
            data = _read_all(file, limit_bytes)
    except OSError as error:
        raise UnreadableInput(display_path(path), error.strerror or "cannot be read") from None
    except ValueError as error:  # a name with a NUL byte
        raise UnreadableInput(display_path(path), str(error)) from None
    if data is None:
        raise UnreadableInput(display_path(path), f"is larger than {limit_bytes:,} bytes, the maximum size")
    return data


def _read_all(file: BinaryIO, limit_bytes: int) -> bytes | None:
    if os.fstat(file.fileno()).st_size > limit_bytes:
        return None
    remaining_bytes = limit_bytes
    # In chunks, because `read` allocates its whole limit first.
    chunks = []
    while remaining_bytes >= 0 and (chunk := file.read(min(remaining_bytes + 1, _CHUNK_BYTES))):
        chunks.append(chunk)
        remaining_bytes -= len(chunk)
    return b"".join(chunks) if remaining_bytes >= 0 else None


def decode_text(data: bytes, source: str) -> str:
    """Decode UTF-8.

    Raises:
        UnreadableInput: not UTF-8, or starts with a byte order mark.
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
    """Replace the content of a file atomically.

    A symlink stays a symlink, and the permissions of the file stay.

    Raises:
        UnwritableFile: the disk is full, the folder is not writable, …; nothing has changed.
    """
    with open_replacement(path) as file:
        file.write(data)


@contextmanager
def open_replacement(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces the one at `path` when the block ends.

    If the block raises, nothing changes. `mode` is used if the file is new.

    Raises:
        UnwritableFile: as `replace_file`.
    """
    try:
        target = Path(os.path.realpath(path))
    except ValueError as error:  # a name with a NUL byte
        raise UnwritableFile(display_path(path), str(error)) from None
    try:
        if target.exists() and not target.is_file():
            raise UnwritableFile(display_path(path), "is not a file; nothing was changed: choose another name")
        # In the same folder, because a rename is only atomic within a file system.
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
    with suppress(OSError):  # the file is in place even if the folder cannot be synced
        _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a rename survives a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def display_path(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")
