"""Read the newest lines of a log from its end. Logs that are notes lose their private parts."""

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from foveate.errors import BadOption
from foveate.memory.note_files import NOTE_SUFFIXES, InvalidUtf8, decode_text
from foveate.memory.parsing import parse_notes
from foveate.memory.privacy import Gate

LIMIT_VARIABLE = "CONTEXT_LOG_LIMIT"
DEFAULT_LINES = 20

_BLOCK_BYTES = 64 * 1024
# Limit for one read, which allows lines of 4 KB; a file without line ends is not read completely.
_MAX_BYTES = 1024 * 1024
_LINE_BYTES = 4096
_SHRANK_WARNING = "{name}: shrank while it was read"
# Whether a line of notes is private depends on the lines above it, so notes are read completely.
_MAX_NOTES_BYTES = 64 * 1024 * 1024
# Suffixes of rotated logs.
_ROTATED_SUFFIX = re.compile(r"(?:\.\d{1,20}|\.bak|\.old|~){1,9}\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogTail:
    """The newest lines, oldest first and without line ends, and warnings."""

    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def log_limit_lines(environment: Mapping[str, str]) -> int:
    """The number of lines to show: `CONTEXT_LOG_LIMIT`, or 20.

    Raises:
        BadOption: the value is not a whole number, or below 0.
    """
    value = environment.get(LIMIT_VARIABLE, "").strip().strip("\"'")
    if not value:
        return DEFAULT_LINES
    try:
        lines = int(value)
    except ValueError:  # also for thousands of digits
        lines = -1
    if lines < 0:
        raise BadOption(
            f"{LIMIT_VARIABLE} must be a whole number of lines, 0 or more, not {value!r:.40}; or unset it",
            path=(LIMIT_VARIABLE,),
        )
    return lines


def read_log_tail(path: str | Path, limit_lines: int = DEFAULT_LINES, *, gate: Gate) -> LogTail:
    r"""Read the newest lines of a file, like `tail -n`.

    If the file, or the target of the link, is named like an Org or Markdown file, only lines that `gate` lets
    through are returned. Such a file is read completely; if it is larger than 64 MB or not UTF-8, there are no
    lines and a warning. Files with other names contain nothing private.

    A line ends with `\n` or `\r\n`; the last one may be incomplete. Bytes that are not UTF-8 become U+FFFD. A
    file that does not exist, for instance while logs are rotated, or that cannot be read gives no lines and a
    warning. If lines are longer than 4 KB on average, fewer lines are returned (at least 1 MB), and the first
    may lack its start.

    Raises:
        BadOption: `limit_lines` is below 0.
    """
    if limit_lines < 0:
        raise BadOption(
            f"limit_lines must be a number of lines, 0 or more, not {limit_lines}", path=("limit_lines",)
        )
    try:
        # Do not wait for the writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return LogTail(warnings=(f"{path}: {error.strerror or error}",))
    except ValueError:  # a NUL, or an unpaired surrogate
        return LogTail(warnings=(f"{str(path)!r}: no file can have this name",))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return LogTail(warnings=(f"{path}: is not a file",))
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
    """The name that makes a file notes, its own or its link target's; empty if it is not notes."""
    for name in (os.fspath(path), os.path.realpath(path)):
        base_name = _ROTATED_SUFFIX.sub("", PurePath(name).name)
        if PurePath(base_name).suffix.lower() in NOTE_SUFFIXES:
            return base_name
    return ""


def _public_tail(descriptor: int, size: int, limit_lines: int, *, gate: Gate, notes: str, name: str) -> LogTail:
    if size > _MAX_NOTES_BYTES:
        limit = f"{_MAX_NOTES_BYTES:,} bytes"
        return LogTail(warnings=(f"{name}: larger than {limit}, the limit for notes",))
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
            # In another encoding, words could be readable while tags are not recognized.
            return LogTail(warnings=(f"{name}: not UTF-8 from byte {text.at_byte} on",))
        text = data.decode("utf-8", "replace")
    public = gate.redact(parse_notes(text, path=notes)).text.encode()
    return read_tail(lambda start, size: public[start : start + size], len(public), limit_lines, name=name)


def read_tail(read: Callable[[int, int], bytes], size: int, limit_lines: int, *, name: str) -> LogTail:
    """The newest lines of `size` bytes; `read` takes start and length."""
    max_bytes = max(_MAX_BYTES, limit_lines * _LINE_BYTES)
    blocks: list[bytes] = []
    start, ends = size, 0
    # The last line end does not start another line, so one more than the number of lines is needed.
    while limit_lines and start > 0 and ends <= limit_lines and size - start < max_bytes:
        length = min(_BLOCK_BYTES, start, max_bytes - (size - start))
        block = read(start - length, length)
        if len(block) < length:
            return LogTail(warnings=(_SHRANK_WARNING.format(name=name),))
        start -= length
        ends += block.count(b"\n")
        blocks.append(block)
    lines = b"".join(reversed(blocks)).split(b"\n")
    if not lines[-1]:
        lines.pop()
    warnings: tuple[str, ...] = ()
    if start > 0 and len(lines) <= limit_lines and lines:
        # The first line is incomplete: drop the rest of a split character.
        lines[0] = lines[0].lstrip(bytes(range(0x80, 0xC0)))
        warnings = (f"{name}: the lines are very long, so the oldest one may be incomplete",)
    newest = lines[-limit_lines:] if limit_lines else []
    return LogTail(tuple(line.removesuffix(b"\r").decode("utf-8", "replace") for line in newest), warnings)
