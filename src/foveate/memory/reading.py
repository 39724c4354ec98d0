"""Files read whole, as they are at one moment."""

import io
import os
import stat
from dataclasses import dataclass

from foveate.errors import UnreadableInput
from foveate.memory.walking import FileState, to_printable

MAX_FILE_BYTES = 1_000_000_000
"""The most that is read of one file."""

_MAX_READ_ATTEMPTS = 3
_COARSE_TICK_NS = 2_000_000_000
_FINE_TICK_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class InvalidUtf8:
    """Bytes that are not UTF-8, from `at_byte` on; at the end of a file that can be one half of a character."""

    at_byte: int
    is_truncated: bool


def read_stable(path: str) -> tuple[bytes, FileState] | None:
    """All bytes of a file, and the state that it had before and after; None where it is still being written.

    Raises:
        UnreadableInput: it is gone, no file, too large, or not ours to read.
    """
    try:
        for _ in range(_MAX_READ_ATTEMPTS):
            # Without waiting, since a file can have become a pipe by now.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                before = os.fstat(descriptor)
                if reason := _unreadable_reason(before):
                    raise UnreadableInput(to_printable(path), reason)
                data = io.FileIO(descriptor, closefd=False).readall()
                state = FileState.from_stat(os.fstat(descriptor))
            finally:
                os.close(descriptor)
            if state == FileState.from_stat(before):
                return data, state
    except OSError as error:
        raise UnreadableInput(to_printable(path), error.strerror or "cannot be read") from None
    return None


def _unreadable_reason(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if status.st_size > MAX_FILE_BYTES:
        return f"is larger than {MAX_FILE_BYTES:,} bytes, the most that is read"
    return ""


def decode_text(data: bytes) -> str | InvalidUtf8:
    """The text that the bytes are in UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        # Told by a value, since an error would hold on to the bytes, and what is private in them is not known.
        return InvalidUtf8(error.start, error.end == len(data) and error.reason == "unexpected end of data")


def is_settled(state: FileState, read_ns: int) -> bool:
    """Whether any later change of a file would show in its state, when it was read at this time.

    Clocks of file systems stand still for some milliseconds, on old ones for two seconds: what is written again
    within one tick has the same times.
    """
    tick_ns = _FINE_TICK_NS if state.changed_ns % 1_000_000_000 else _COARSE_TICK_NS
    return read_ns - state.changed_ns > tick_ns
