"""The newest lines of a log, read from its end, however long it is; of one that is notes, what is public."""

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from foveate.errors import BadOption
from foveate.memory.files import NOTE_SUFFIXES, InvalidUtf8, decode_text
from foveate.memory.parsing.parse import parse_notes
from foveate.memory.privacy import Gate

LIMIT_VARIABLE = "CONTEXT_LOG_LIMIT"
DEFAULT_LINES = 20

_BLOCK_BYTES = 64 * 1024
# What is read at most: room for lines of 4 KB, so that one without an end does not bring a whole file along.
_MAX_BYTES = 1024 * 1024
_LINE_BYTES = 4096
_SHRANK_WARNING = "{name}: it became shorter while it was read"
# Whether a line of notes is private is said above it, so they are read whole.
_MAX_NOTES_BYTES = 64 * 1024 * 1024
# What the name of a log gets when it makes room for the next one.
_ROTATED_SUFFIX = re.compile(r"(?:\.\d{1,20}|\.bak|\.old|~){1,9}\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogTail:
    """The newest lines, oldest first and without their ends, and in words what could not be had."""

    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def log_limit_lines(environment: Mapping[str, str]) -> int:
    """How many lines are shown: what `CONTEXT_LOG_LIMIT` says, 20 where it says nothing.

    Raises:
        BadOption: it is no whole number, or below 0.
    """
    value = environment.get(LIMIT_VARIABLE, "").strip().strip("\"'")
    if not value:
        return DEFAULT_LINES
    try:
        lines = int(value)
    except ValueError:  # also for one of thousands of digits
        lines = -1
    if lines < 0:
        raise BadOption(
            f"{LIMIT_VARIABLE} is a whole number of lines, 0 or more, not {value!r:.40}; or unset it",
            path=(LIMIT_VARIABLE,),
        )
    return lines


def read_log_tail(path: str | Path, limit_lines: int = DEFAULT_LINES, *, gate: Gate) -> LogTail:
    r"""The newest lines of the file at `path`, as `tail -n` has them.

    Of a log in Org or Markdown, by its name or that of the file it links to, they are the newest of what `gate`
    lets through. It is read whole for that, and one that is larger than 64 MB or not UTF-8 gives no lines and a
    warning. In files of other names nothing is private.

    A line ends with `\n` or `\r\n`; the last may still be without its end. What is not UTF-8 is shown as
    U+FFFD. A file that is not there, as happens while logs are rotated, or that cannot be read gives no lines
    and a warning. Where lines are longer than 4 KB on average, only as many are shown as that gives room for
    (but 1 MB at least), and the first of them may lack its beginning.

    Raises:
        BadOption: a number of lines below 0.
    """
    if limit_lines < 0:
        raise BadOption(
            f"limit_lines is a number of lines, 0 or more, not {limit_lines}", path=("limit_lines",)
        )
    try:
        # Not to wait for whoever writes into a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return LogTail(warnings=(f"{path}: {error.strerror or error}",))
    except ValueError:  # a NUL, or half of a surrogate pair
        return LogTail(warnings=(f"{str(path)!r}: no file can have this name",))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return LogTail(warnings=(f"{path}: this is no file",))
        if limit_lines and (notes := _notes_name(path)):
            return _public_tail(descriptor, status.st_size, limit_lines, gate=gate, notes=notes, name=str(path))
        return read_tail(
            lambda start, size: os.pread(descriptor, size, start), status.st_size, limit_lines, name=str(path)
        )
    except OSError as error:
        return LogTail(warnings=(f"{path}: {error.strerror or error}",))
    finally:
        os.close(descriptor)


def _notes_name(path: str | Path) -> str:
    """The name by which a file is notes, its own or that of what it links to; or nothing."""
    for name in (os.fspath(path), os.path.realpath(path)):
        kept = _ROTATED_SUFFIX.sub("", PurePath(name).name)
        if PurePath(kept).suffix.lower() in NOTE_SUFFIXES:
            return kept
    return ""


def _public_tail(descriptor: int, size: int, limit_lines: int, *, gate: Gate, notes: str, name: str) -> LogTail:
    """The newest of the lines that the gate lets through."""
    if size > _MAX_NOTES_BYTES:
        most = f"{_MAX_NOTES_BYTES:,} bytes"
        return LogTail(warnings=(f"{name}: more than {most} of notes, which are read whole",))
    blocks, start = [], 0
    while start < size and (block := os.pread(descriptor, size - start, start)):
        blocks.append(block)
        start += len(block)
    if start < size:
        return LogTail(warnings=(_SHRANK_WARNING.format(name=name),))
    data = b"".join(blocks)
    text = decode_text(data)
    if isinstance(text, InvalidUtf8):
        if not text.is_truncated:
            # As if it were UTF-8, its tags could not be read while its words could.
            return LogTail(warnings=(f"{name}: not UTF-8 from byte {text.at_byte} on",))
        text = data.decode("utf-8", "replace")
    public = gate.redact(parse_notes(text, gate, path=notes)).text.encode()
    return read_tail(lambda start, size: public[start : start + size], len(public), limit_lines, name=name)


def read_tail(read: Callable[[int, int], bytes], size: int, limit_lines: int, *, name: str) -> LogTail:
    """The newest lines of `size` bytes, of which `read` gives some by their start and number."""
    max_bytes = max(_MAX_BYTES, limit_lines * _LINE_BYTES)
    blocks: list[bytes] = []
    start, ends = size, 0
    # The end of the last line is not the beginning of another, so one more is wanted than there are lines.
    while limit_lines and start > 0 and ends <= limit_lines and size - start < max_bytes:
        length = min(_BLOCK_BYTES, start, max_bytes - (size - start))
        block = read(start - length, length)
        if len(block) < length:
            return LogTail(warnings=(_SHRANK_WARNING.format(name=name),))
        start -= length
        ends += block.count(b"\n")
        blocks.append(block)
    found = b"".join(reversed(blocks)).split(b"\n")
    if not found[-1]:
        found.pop()
    warnings: tuple[str, ...] = ()
    if start > 0 and len(found) <= limit_lines and found:
        # Not its whole first line: of a character that is cut in two, nothing is left.
        found[0] = found[0].lstrip(bytes(range(0x80, 0xC0)))
        warnings = (f"{name}: lines so long that the oldest shown may lack its beginning",)
    shown = found[-limit_lines:] if limit_lines else []
    return LogTail(tuple(line.removesuffix(b"\r").decode("utf-8", "replace") for line in shown), warnings)
