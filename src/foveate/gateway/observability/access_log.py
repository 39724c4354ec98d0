"""The log: one line per request, as text or JSON, never with keys or message text.

Lines wait in a queue for a thread that writes them in batches, so that a slow terminal or a full pipe never
delays a request. If the queue or a disk is full, lines are lost; their number is logged as soon as a line can
be written again. Writing stops for good only if nobody reads the log any more.
"""

import atexit
import errno
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from threading import Event, Thread
from typing import Any, BinaryIO

import msgspec

from foveate.config.settings import ServerSettings
from foveate.engine.redaction import redact_keys
from foveate.engine.request import AppliedEdit, StepFailure

_MAX_TEXT_CHARS = 200
_DISCONNECTED = "gone"
# Width of the usage columns.
_USAGE_WIDTH = 68


class AccessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Access-log record of one request. Times are in seconds.

    `status` is 0 if the client disconnected first. `is_broken`: the response was cut off, or the client
    disconnected. `dollars` is None if the price is unknown. `error_code` and `error_reason` are of an error of
    the gateway. Tokens are as reported by the provider.
    """

    at: float
    id: str
    method: str
    path: str
    agent: str
    status: int
    total_seconds: float
    session: str = ""
    provider: str = ""
    model: str = ""
    input_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    dollars: Decimal | None = None
    added_seconds: float | None = None
    has_usage: bool = False
    is_broken: bool = False
    applied_edits: tuple[AppliedEdit, ...] = ()
    problems: tuple[StepFailure, ...] = ()
    error_code: str = ""
    error_reason: str = ""


def format_line(record: AccessRecord) -> str:
    model = _format_cell(record.model or _request_line(record), 26)
    caller = f"{record.status or _DISCONNECTED:>4} {_format_cell(record.agent, 12)} {model}"
    usage = ""
    if record.has_usage:
        dollars = "$?" if record.dollars is None else f"${record.dollars:.6f}"
        usage = (
            f"in {record.input_tokens:>9,} read {record.read_tokens:>9,} written {record.written_tokens:>8,}"
            f" out {record.output_tokens:>7,} {dollars:>11}"
        )
    added = " " * 10 if record.added_seconds is None else f"+{1000 * record.added_seconds:>6.1f} ms"
    details = [f"{added} {1000 * record.total_seconds:>8,.0f} ms", record.id]
    if record.session:
        details.append(f"session {_shorten(record.session)}")
    if record.applied_edits:
        details.append("edits " + ", ".join(f"{step} {count}" for step, count in count_edits(record).items()))
    if record.problems:
        details.append(
            "without "
            + "; ".join(f"{problem.step} ({_problem_reason(problem)})" for problem in record.problems)
        )
    if record.is_broken and record.status:
        details.append("broke off")
    if record.error_code:
        details.append(f"{record.error_code}: {_shorten(record.error_reason)}")
    return f"{caller} {usage:<{_USAGE_WIDTH}} {'  '.join(details)}"


def record_to_json(record: AccessRecord) -> dict[str, Any]:
    """Return a record as an object that always has all keys."""
    return {
        "at": format_timestamp(record.at),
        "level": "info",
        "logger": "foveate.requests",
        "id": record.id,
        "agent": _shorten(record.agent),
        "session": _shorten(record.session),
        "provider": record.provider,
        "model": _shorten(record.model),
        "method": record.method,
        "path": _shorten(record.path),
        "status": record.status,
        "broken": record.is_broken,
        "input_tokens": record.input_tokens,
        "read_tokens": record.read_tokens,
        "written_tokens": record.written_tokens,
        "output_tokens": record.output_tokens,
        "dollars": None if record.dollars is None else str(record.dollars),
        "added_ms": None if record.added_seconds is None else round(1000 * record.added_seconds, 3),
        "ms": round(1000 * record.total_seconds, 3),
        "edits": dict(count_edits(record)),
        "problems": [{"step": problem.step, "reason": _problem_reason(problem)} for problem in record.problems],
        "refused": record.error_code,
        "reason": _shorten(record.error_reason),
    }


def count_edits(record: AccessRecord) -> Mapping[str, int]:
    return Counter(edit.step for edit in record.applied_edits)


def _request_line(record: AccessRecord) -> str:
    return f"{record.method} {record.path}"


def _problem_reason(problem: StepFailure) -> str:
    return _shorten(problem.reason)


def _shorten(text: str) -> str:
    return _shorten_and_redact(text[: _MAX_TEXT_CHARS + 1])


def _format_cell(text: str, width: int) -> str:
    return _pad(text[: _MAX_TEXT_CHARS + 1], width)


# The same names occur again and again. Long texts are cut before they are cached.
@lru_cache(maxsize=4096)
def _shorten_and_redact(text: str) -> str:
    return redact_keys(
        escape_unprintable(text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…")
    )


@lru_cache(maxsize=256)
def _pad(text: str, width: int) -> str:
    short_text = _shorten_and_redact(text)
    return f"{short_text if len(short_text) <= width else f'{short_text[: width - 1]}…':<{width}}"


def escape_unprintable(text: str) -> str:
    """Escape control characters, so that the text is one line and cannot affect a terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "replace").decode()
        for letter in text
    )


def format_timestamp(at: float) -> str:
    return f"{_format_utc_second(int(at))}.{int(at % 1 * 1000):03d}Z"


def format_local_time(at: float) -> str:
    return f"{_format_local_second(int(at))}.{int(at % 1 * 1000):03d}"


@lru_cache(maxsize=4)
def _format_utc_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@lru_cache(maxsize=4)
def _format_local_second(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


MAX_WAITING_LINES = 10_000
# How long the writer collects lines for one batch.
_BATCH_SECONDS = 0.05
_FLUSH_SECONDS = 2.0
# Largest atomic write to a pipe (POSIX has at least 512 bytes, Linux this).
_ATOMIC_WRITE_BYTES = 4096

_FATAL_ERRNOS = (errno.EPIPE, errno.EBADF)

_ROOT_LOGGER = "foveate"
_DIM, _RED, _YELLOW, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"


class LogWriter(logging.Handler):
    """Writes log records and access records in its own thread. `close` waits for pending ones."""

    def __init__(
        self, output: BinaryIO, *, as_json: bool, colours: bool, max_waiting: int = MAX_WAITING_LINES
    ) -> None:
        super().__init__()
        self.as_json = as_json
        self._output = output
        self._colours = colours
        self._max_waiting = max_waiting
        self._waiting: deque[logging.LogRecord | AccessRecord] = deque()
        # Lines that did not fit in the queue, that could not be written, and that were reported as lost. Each
        # counter is changed by one thread only.
        self._dropped = self._failed = self._reported_lost = 0
        self.problem = ""
        """Reason why nothing can be written now; empty if it can."""
        self._has_ended = False
        self._has_lines, self._is_closed = Event(), False
        self._thread: Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None  # the arguments may change before it is written
        self.put(record)

    def put(self, record: "logging.LogRecord | AccessRecord") -> None:
        if self._has_ended or len(self._waiting) >= self._max_waiting:
            self._dropped += 1
            return
        self._waiting.append(record)
        if not self._has_lines.is_set():
            self._has_lines.set()
            if self._thread is None:
                self._thread = Thread(target=self._write_all, name="foveate log", daemon=True)
                self._thread.start()

    @property
    def lost_lines(self) -> int:
        """Number of lines lost since the start."""
        return self._dropped + self._failed

    def close(self) -> None:
        self._is_closed = True
        self._has_lines.set()
        if self._thread is not None:
            self._thread.join(_FLUSH_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while True:
            self._has_lines.wait()
            if not self._is_closed:
                time.sleep(_BATCH_SECONDS)
            self._has_lines.clear()
            if not self._write_waiting() or (self._is_closed and not self._waiting):
                return

    def _write_waiting(self) -> bool:
        """Write all queued records; return whether the log can still be written."""
        lines = []
        while self._waiting:
            lines.append(self._format_record(self._waiting.popleft()))
        try:
            self._failed += self._write_lines(lines)
            if (lost := self.lost_lines) > self._reported_lost and not self.problem:
                message = f"{lost - self._reported_lost} log lines were lost"
                record = logging.LogRecord(_ROOT_LOGGER, logging.WARNING, "", 0, message, None, None)
                if not self._write_lines([self._format_record(record)]):
                    self._reported_lost = lost
        except (BrokenPipeError, ValueError):  # a pipe without a reader, or a closed file
            self.problem, self._has_ended = "its reader has closed it", True
            self._failed += len(lines) + len(self._waiting)
            self._waiting.clear()
            return False
        return True

    def _write_lines(self, lines: list[str]) -> int:
        """Write lines; return how many could not be written."""
        unwritten = len(lines)
        try:
            for chunk, count in _split_into_chunks(lines):
                rest = chunk
                while rest:  # an unbuffered stream may take only a part
                    written_bytes = self._output.write(rest)
                    if written_bytes is None:
                        raise BlockingIOError(errno.EAGAIN, "the output is full")
                    rest = rest[written_bytes:]
                unwritten -= count  # buffered data is not lost: the next flush tries again
                self._output.flush()
        except OSError as error:  # a full disk or a lost terminal: it may recover
            if error.errno in _FATAL_ERRNOS:
                raise BrokenPipeError from None
            self.problem = error.strerror or str(error)
        else:
            self.problem = ""
        return unwritten

    def _format_record(self, record: "logging.LogRecord | AccessRecord") -> str:
        if isinstance(record, AccessRecord):
            return (
                msgspec.json.encode(record_to_json(record)).decode()
                if self.as_json
                else self._format_access_line(record)
            )
        message = redact_keys(str(record.msg))
        trace = redact_keys(logging.Formatter().formatException(record.exc_info)) if record.exc_info else ""
        level, logger_name = record.levelname.lower(), record.name.removeprefix(f"{_ROOT_LOGGER}.")
        if self.as_json:
            fields = {
                "at": format_timestamp(record.created),
                "level": level,
                "logger": record.name,
                "message": message,
            }
            return msgspec.json.encode({**fields, "trace": trace} if trace else fields).decode()
        colour = (
            _RED if record.levelno >= logging.ERROR else _YELLOW if record.levelno >= logging.WARNING else _DIM
        )
        start = f"{format_local_time(record.created)} {self._colorize(f'{level:<7}', colour)}"
        line = f"{start} {logger_name}: {escape_unprintable(message)}"
        return f"{line}\n{trace}" if trace else line

    def _format_access_line(self, record: AccessRecord) -> str:
        line = f"{format_local_time(record.at)} {format_line(record)}"
        is_error = record.status == 0 or record.status >= 400
        return (
            self._colorize(line, _RED)
            if is_error
            else self._colorize(line, _YELLOW)
            if record.problems
            else line
        )

    def _colorize(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colours else text


def _split_into_chunks(lines: list[str]) -> Iterator[tuple[bytes, int]]:
    """Yield encoded lines and their number, in chunks that a pipe takes in one piece."""
    chunk, count = b"", 0
    for line in lines:
        encoded = f"{line}\n".encode("utf-8", "replace")
        if chunk and len(chunk) + len(encoded) > _ATOMIC_WRITE_BYTES:
            yield chunk, count
            chunk, count = b"", 0
        chunk, count = chunk + encoded, count + 1
    if chunk:
        yield chunk, count


def start_writer(
    *, as_json: bool, level: str, colours: bool | None = None, output: BinaryIO | None = None
) -> LogWriter:
    """Log to standard error (or `output`) until the process ends."""
    stream = output or sys.stderr.buffer
    if colours is None:
        colours = not as_json and should_use_colours()
    writer = LogWriter(stream, as_json=as_json, colours=colours)
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, LogWriter)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(writer)
    set_level(level)
    atexit.register(writer.close)
    return writer


def current_writer() -> LogWriter:
    """Return the writer of this process; start one if there is none."""
    writers = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)]
    return writers[0] if writers else start_writer(as_json=False, level="info")


def apply_settings(server: ServerSettings) -> None:
    set_level(server.log_level)
    current_writer().as_json = server.log == "json"


def set_level(level: str) -> None:
    logging.getLogger(_ROOT_LOGGER).setLevel(level.upper())


def should_use_colours() -> bool:
    """Return whether standard error is a terminal, and colours are not disabled."""
    import os

    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
