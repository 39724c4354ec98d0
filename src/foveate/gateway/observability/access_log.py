"""The log: one line per request, as text or JSON, never with keys or message text.

Records wait in a queue for a thread that formats and writes them, so that a slow terminal or a full pipe never
delays a request. If the queue or a disk is full, lines are lost; their number is logged as soon as a line can
be written again. Writing stops for good only if nobody reads the log any more.
"""

import errno
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from logging.handlers import QueueHandler
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from rich.cells import cell_len, set_cell_size

from foveate.config.settings import ServerSettings
from foveate.engine import steps
from foveate.engine.observer import SHORT_MESSAGE
from foveate.engine.redaction import redact_keys
from foveate.engine.request import AppliedEdit, StepFailure

if TYPE_CHECKING:
    from foveate.gateway.request import ClientRequest
    from foveate.gateway.response import ClientResponse

_REQUEST_LOG = logging.getLogger("foveate.requests")
_MAX_TEXT_CHARS = 200
MAX_COLUMNS = 100
"""Width of the line of a request in the text log."""
_DISCONNECTED_STATUS = 499  # as in the metrics
_ID_CHARS = 10
_AGENT_WIDTH, _SESSION_WIDTH, _MODEL_WIDTH, _REQUEST_WIDTH = 7, 8, 17, 40
# Vendors before a model's name, and dates after it: openrouter/, us.anthropic., -20250929-v1:0, -2025-08-07.
_MODEL_AFFIXES = re.compile(r"^(?:.*/)?(?:[a-z]+\.)*|-20\d\d-?\d\d-?\d\d(?:-v\d+(?::\d+)?)?$")
_UNITS = (("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))
_MIN_SHOWN_DOLLARS = Decimal("0.0001")
_EDIT_EVENTS = {
    steps.COMPACTION: "compacted",
    steps.LIMIT_TURNS: "old turns dropped",
    steps.OVERFLOW: "shortened to fit",
    steps.THINKING: "thinking removed",
}
_STEP_NAMES = {
    steps.COMPACTION: "compaction",
    steps.LIMIT_TURNS: "turn limit",
    steps.OVERFLOW: "shortening",
    steps.THINKING: "thinking",
    steps.CACHE: "prompt cache",
    steps.CAPS: "caps",
    steps.KEEP_ALIVE: "keep-alive",
    steps.SENT_MESSAGES: "session history",
}


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

    def __str__(self) -> str:
        return format_line(self)


def is_on() -> bool:
    """Return whether requests are logged at the current level."""
    return _REQUEST_LOG.isEnabledFor(logging.INFO)


def log_request(request: "ClientRequest", response: "ClientResponse", model: str, now: float) -> None:
    access_record = _build_record(request, response, model, now)
    # `_REQUEST_LOG.info` would also look for its caller, which takes as long as all the rest.
    _REQUEST_LOG.handle(logging.LogRecord(_REQUEST_LOG.name, logging.INFO, "", 0, access_record, None, None))


def _build_record(request: "ClientRequest", response: "ClientResponse", model: str, now: float) -> AccessRecord:
    exchange = response.exchange
    if exchange is None:
        return AccessRecord(
            at=now,
            id=request.id,
            method=request.method,
            path=request.path,
            agent=response.agent,
            provider=response.provider,
            status=response.status,
            total_seconds=now - response.received_at,
            error_code=response.error_code,
            error_reason=response.error_reason,
        )
    usage, entry = exchange.usage, exchange.charge
    cache = usage.cache if usage is not None else None
    return AccessRecord(
        at=now,
        id=request.id,
        method=request.method,
        path=request.path,
        agent=response.agent,
        provider=response.provider,
        model=model,
        session=exchange.context.session_id
        if exchange.context is not None
        else exchange.incoming.session or "",
        status=response.status,
        total_seconds=now - response.received_at,
        added_seconds=exchange.sent_at - exchange.received_at,
        input_tokens=cache.input_tokens if cache is not None else 0,
        read_tokens=cache.read if cache is not None else 0,
        written_tokens=cache.written_5m + cache.written_1h if cache is not None else 0,
        output_tokens=usage.output_tokens if usage is not None else 0,
        dollars=entry.dollars if entry is not None else None,
        has_usage=usage is not None,
        is_broken=exchange.is_interrupted,
        applied_edits=exchange.upstream_request.applied_edits,
        problems=exchange.upstream_request.problems,
        error_code=response.error_code,
        error_reason=response.error_reason,
    )


def format_line(record: AccessRecord) -> str:
    """Return a request as one line of at most `MAX_COLUMNS`; JSON has everything.

    Columns: local time, status, duration, agent, session, model, tokens, cost, request id, and special events.
    """
    columns = [
        _format_local_second(int(record.at)),
        str(record.status or _DISCONNECTED_STATUS),
        f"{_format_seconds(record.total_seconds):>4}",
        _format_cell(record.agent, _AGENT_WIDTH),
        _format_cell(record.session, _SESSION_WIDTH, ellipsis=""),
        _format_model(record.model) if record.model else _format_cell(_request_line(record), _MODEL_WIDTH),
    ]
    if record.has_usage:
        columns += [
            f"{_format_count(record.input_tokens):>4} in",
            f"{_format_count(record.read_tokens):>4} cached",
            f"{_format_count(record.output_tokens):>4} out",
            f"{_format_cost(record.dollars):>7}",
        ]
    elif not record.model:  # nothing follows that must be aligned
        columns[-1] = _format_cell(_request_line(record), _REQUEST_WIDTH).rstrip()
    events = ", ".join(_describe_events(record))
    line = " ".join([*columns, record.id[:_ID_CHARS], events]).rstrip()
    if _count_columns(line) > MAX_COLUMNS and record.has_usage and record.session:
        line = " ".join([*columns, events])  # the session also identifies it
    if _count_columns(line) > MAX_COLUMNS:
        line = " ".join(line.split())
    return _cut(line, MAX_COLUMNS)


def _describe_events(record: AccessRecord) -> Iterator[str]:
    if record.error_code:
        yield f"{record.error_code}: {_shorten(record.error_reason)}"
    elif record.status >= 400 and record.provider:
        yield f"error from {record.provider}"
    if not record.status:
        yield "client disconnected"
    elif record.is_broken:
        yield "interrupted"
    for problem in record.problems:
        yield f"{_STEP_NAMES.get(problem.step, problem.step)} failed: {_problem_reason(problem)}"
    edited = {edit.step for edit in record.applied_edits}
    yield from (event for step, event in _EDIT_EVENTS.items() if step in edited)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"


def _format_count(number: int) -> str:
    """Return a number in at most four characters, unless it is absurd."""
    if number < 1000:
        return str(number)
    for unit, size in _UNITS:
        if number < 9.95 * size:
            return f"{number / size:.1f}{unit}"
        if number < 999.5 * size:
            return f"{number / size:.0f}{unit}"
    return f"{number / size:,.0f}{unit}"


def _format_cost(dollars: Decimal | None) -> str:
    if dollars is None:
        return "$?"
    if 0 < dollars < _MIN_SHOWN_DOLLARS:
        return "<$.0001"
    return f"${dollars:.4f}" if dollars < 10 else f"${dollars:.2f}" if dollars < 1000 else f"${dollars:,.0f}"


def record_to_json(record: AccessRecord) -> dict[str, Any]:
    """Return a record as an object that always has all keys."""
    return {
        "at": format_timestamp(record.at),
        "level": "info",
        "logger": _REQUEST_LOG.name,
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


def _format_cell(text: str, width: int, *, ellipsis: str = "…") -> str:
    return _pad(text[: _MAX_TEXT_CHARS + 1], width, ellipsis)


def _format_model(name: str) -> str:
    return _pad_model(name[: _MAX_TEXT_CHARS + 1])


def _cut(text: str, width: int, ellipsis: str = "…") -> str:
    """Shorten a text to the columns that a terminal shows."""
    if _count_columns(text) <= width:
        return text
    return _set_columns(text, width - len(ellipsis)).rstrip() + ellipsis


def _count_columns(text: str) -> int:
    # Most lines have an ellipsis and are otherwise ASCII; looking up the width of every character takes long.
    return len(text) if text.replace("…", "").isascii() else cell_len(text)


def _set_columns(text: str, width: int) -> str:
    return text[:width].ljust(width) if text.isascii() else set_cell_size(text, width)


# The same names occur again and again. Long texts are cut before they are cached.
@lru_cache(maxsize=4096)
def _shorten_and_redact(text: str) -> str:
    return redact_keys(
        escape_unprintable(text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…")
    )


@lru_cache(maxsize=256)
def _pad(text: str, width: int, ellipsis: str) -> str:
    return _set_columns(_cut(_shorten_and_redact(text), width, ellipsis), width)


@lru_cache(maxsize=256)
def _pad_model(name: str) -> str:
    """Shorten a long name by its vendor and date; if that is not enough, leave out the middle."""
    short_name = _shorten_and_redact(name)
    if cell_len(short_name) > _MODEL_WIDTH:
        short_name = _MODEL_AFFIXES.sub("", short_name) or short_name
    if cell_len(short_name) > _MODEL_WIDTH:
        half = _MODEL_WIDTH // 2
        start, end = set_cell_size(short_name, half), short_name[-half:]
        short_name = f"{start.rstrip()}…{end}"
    return set_cell_size(short_name, _MODEL_WIDTH)


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


@lru_cache(maxsize=4)
def _format_utc_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@lru_cache(maxsize=4)
def _format_local_second(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


MAX_WAITING_LINES = 10_000
# Pause after the last waiting record, so that the thread wakes up once for many of them.
_BATCH_SECONDS = 0.05
_FLUSH_SECONDS = 2.0
# Largest atomic write to a pipe (POSIX has at least 512 bytes, Linux this).
_ATOMIC_WRITE_BYTES = 4096
_FATAL_ERRNOS = (errno.EPIPE, errno.EBADF)

_ROOT_LOGGER = "foveate"
_DIM, _RED, _YELLOW, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, AccessRecord):
            fields = record_to_json(record.msg)
        else:
            fields = {
                "at": format_timestamp(record.created),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": _redact_message(record.getMessage()),
            }
            if record.exc_info:
                fields["trace"] = _redact_message(self.formatException(record.exc_info))
        return msgspec.json.encode(fields).decode()


def _redact_message(text: str) -> str:
    """Remove keys, and escape unpaired surrogates, such as those of file names, which JSON cannot contain."""
    return redact_keys(text).encode("utf-8", "backslashreplace").decode()


class TextFormatter(logging.Formatter):
    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, AccessRecord):
            is_error = record.msg.status == 0 or record.msg.status >= 400
            return self._colorize(str(record.msg), _RED if is_error else _YELLOW if record.msg.problems else "")
        local_time = _format_local_second(int(record.created))
        if short_message := getattr(record, SHORT_MESSAGE, None):
            return _cut(f"{local_time} {escape_unprintable(short_message)}", MAX_COLUMNS)
        colour = (
            _RED if record.levelno >= logging.ERROR else _YELLOW if record.levelno >= logging.WARNING else _DIM
        )
        level = self._colorize(f"{record.levelname.lower():<7}", colour)
        message = escape_unprintable(redact_keys(record.getMessage()))
        line = f"{local_time} {level} {record.name.removeprefix(f'{_ROOT_LOGGER}.')}: {message}"
        return f"{line}\n{redact_keys(self.formatException(record.exc_info))}" if record.exc_info else line

    def _colorize(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colours and colour else text


class LogWriter(QueueHandler):
    """Writes log records in its own thread. `close` waits for pending ones.

    The thread is not a `QueueListener`, whose `stop` would wait forever if nobody reads the log.
    """

    def __init__(
        self, output: BinaryIO, *, as_json: bool, colours: bool, max_waiting: int = MAX_WAITING_LINES
    ) -> None:
        self._queue: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        super().__init__(self._queue)
        self.as_json = as_json
        self._json_formatter, self._text_formatter = JsonFormatter(), TextFormatter(colours=colours)
        self._output = output
        self._max_waiting = max_waiting
        # Lines that did not fit in the queue, that could not be written, and that were reported as lost. Each
        # counter is changed by one thread at a time.
        self._dropped = self._failed = self._reported_lost = 0
        self.problem = ""
        """Reason why nothing can be written now; empty if it can."""
        self._has_ended = False
        self._thread = Thread(target=self._write_all, name="foveate log", daemon=True)
        self._thread.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        if not isinstance(record.msg, AccessRecord):  # values may change before they are written
            record.msg, record.args = record.getMessage(), None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._has_ended or self._queue.qsize() >= self._max_waiting:
            self._dropped += 1
        else:
            self._queue.put_nowait(record)

    @property
    def lost_lines(self) -> int:
        return self._dropped + self._failed

    def close(self) -> None:
        self._queue.put_nowait(None)
        self._thread.join(_FLUSH_SECONDS)
        super().close()

    def _write_all(self) -> None:
        """Write lines together, because each write gives the interpreter's lock to another thread."""
        chunk, count = b"", 0
        for record in iter(self._queue.get, None):
            line = self._format_line(record)
            if count and len(chunk) + len(line) > _ATOMIC_WRITE_BYTES:
                self._write_and_count(chunk, count)
                chunk, count = b"", 0
            chunk, count = chunk + line, count + 1
            if self._queue.empty():
                self._write_and_count(chunk, count)
                chunk, count = b"", 0
                time.sleep(_BATCH_SECONDS)
        self._write_and_count(chunk, count)

    def _write_and_count(self, chunk: bytes, count: int) -> None:
        if not self._write(chunk):
            self._failed += count
        elif (lost := self.lost_lines) > self._reported_lost:
            message = f"{lost - self._reported_lost} log lines were lost"
            notice = logging.LogRecord(_ROOT_LOGGER, logging.WARNING, "", 0, message, None, None)
            if self._write(self._format_line(notice)):
                self._reported_lost = lost

    def _format_line(self, record: logging.LogRecord) -> bytes:
        formatter = self._json_formatter if self.as_json else self._text_formatter
        return f"{formatter.format(record)}\n".encode("utf-8", "replace")

    def _write(self, chunk: bytes) -> bool:
        """Write lines in one piece, so that those of several workers do not mix; return whether it worked."""
        if self._has_ended:
            return False
        rest, is_taken = chunk, False
        try:
            while rest:  # an unbuffered stream may take only a part
                written_bytes = self._output.write(rest)
                if written_bytes is None:
                    raise BlockingIOError(errno.EAGAIN, "the output is full")
                rest = rest[written_bytes:]
            is_taken = True  # buffered data is not lost: the next flush tries again
            self._output.flush()
        except OSError as error:  # a full disk or a lost terminal may recover, a pipe without a reader does not
            self._has_ended = error.errno in _FATAL_ERRNOS
            self.problem = error.strerror or str(error)
        except ValueError:  # a closed file
            self._has_ended = True
        else:
            self.problem = ""
        if self._has_ended:
            self.problem = "its reader has closed it"
        return is_taken and not self._has_ended


def start_writer(
    *, as_json: bool, level: str, colours: bool | None = None, output: BinaryIO | None = None
) -> LogWriter:
    """Log to standard error (or `output`) until the process ends; `logging` then closes the writer."""
    # No line names threads or processes, and finding their names takes half the time of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
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
