"""The log: one line a request, readable or as JSON, written beside the event loop.

What is told waits in a queue for a thread that writes it, a few at a time: neither a slow terminal nor a full
pipe holds up a request. Where nobody takes the lines for long, or a disk is full, lines are lost; how many is
told as soon as one can be written again. Only a log that nobody reads any longer is given up.
"""

import atexit
import errno
import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from threading import Event, Thread
from typing import BinaryIO

import msgspec

from foveate.config.settings import Server
from foveate.engine.redacting import redacted
from foveate.gateway.told import Told, clock, escaped, stamp, told_line, told_object

MOST_WAITING = 10_000
# So long the writer waits for more once there is something to write.
_GATHER_SECONDS = 0.05
_FLUSH_SECONDS = 2.0
# So much is written to a pipe in one piece (POSIX has at least 512 bytes, Linux this).
_WHOLE_BYTES = 4096

_FINAL = (errno.EPIPE, errno.EBADF)

_ROOT = "foveate"
_DIM, _RED, _YELLOW, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"


class LogWriter(logging.Handler):
    """Takes records and requests, and writes them in its own thread. `close` waits for what there is."""

    def __init__(
        self, output: BinaryIO, *, as_json: bool, colours: bool, most_waiting: int = MOST_WAITING
    ) -> None:
        super().__init__()
        self.as_json = as_json
        self._output = output
        self._colours = colours
        self._most_waiting = most_waiting
        self._waiting: deque[logging.LogRecord | Told] = deque()
        # Lines that found no room, those that could not be written, and of how many of both was told: each is
        # changed by one thread only.
        self._dropped = self._failed = self._told_lost = 0
        self.problem = ""
        """Why nothing can be written now, if so."""
        self._has_ended = False
        self._woken, self._is_closed = Event(), False
        self._thread: Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written."""
        record.msg, record.args = record.getMessage(), None  # what it is about may change
        self.put(record)

    def put(self, told: "logging.LogRecord | Told") -> None:
        """Have something written soon."""
        if self._has_ended or len(self._waiting) >= self._most_waiting:
            self._dropped += 1
            return
        self._waiting.append(told)
        if not self._woken.is_set():
            self._woken.set()
            if self._thread is None:
                self._thread = Thread(target=self._write_all, name="foveate log", daemon=True)
                self._thread.start()

    @property
    def lost(self) -> int:
        """How many lines could not be written since the start."""
        return self._dropped + self._failed

    def close(self) -> None:
        """Write what waits, and end."""
        self._is_closed = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(_FLUSH_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while True:
            self._woken.wait()
            if not self._is_closed:
                time.sleep(_GATHER_SECONDS)
            self._woken.clear()
            if not self._write_waiting() or (self._is_closed and not self._waiting):
                return

    def _write_waiting(self) -> bool:
        """Whether there is still somebody to write for."""
        lines = []
        while self._waiting:
            lines.append(self._written(self._waiting.popleft()))
        try:
            self._failed += self._unwritten(lines)
            if (lost := self.lost) > self._told_lost and not self.problem:
                said = f"{lost - self._told_lost} lines of the log are lost"
                told = logging.LogRecord(_ROOT, logging.WARNING, "", 0, said, None, None)
                if not self._unwritten([self._written(told)]):
                    self._told_lost = lost
        except (BrokenPipeError, ValueError):  # a pipe without a reader, or a file that was closed
            self.problem, self._has_ended = "nobody reads it any longer", True
            self._failed += len(lines) + len(self._waiting)
            self._waiting.clear()
            return False
        return True

    def _unwritten(self, lines: list[str]) -> int:
        """How many of some lines could not be written, while all the others are."""
        left = len(lines)
        try:
            for chunk, count in _chunks(lines):
                rest = chunk
                while rest:  # without a buffer, only a part of it may be taken at once
                    taken = self._output.write(rest)
                    if taken is None:
                        raise BlockingIOError(errno.EAGAIN, "it takes no more")
                    rest = rest[taken:]
                left -= count  # what a buffer has is not lost: it is tried again
                self._output.flush()
        except OSError as error:  # a full disk, or a terminal that went away: there may be room again
            if error.errno in _FINAL:
                raise BrokenPipeError from None
            self.problem = error.strerror or str(error)
        else:
            self.problem = ""
        return left

    def _written(self, told: "logging.LogRecord | Told") -> str:
        if isinstance(told, Told):
            return msgspec.json.encode(told_object(told)).decode() if self.as_json else self._line(told)
        message = redacted(str(told.msg))
        trace = redacted(logging.Formatter().formatException(told.exc_info)) if told.exc_info else ""
        level, room = told.levelname.lower(), told.name.removeprefix(f"{_ROOT}.")
        if self.as_json:
            said = {"at": stamp(told.created), "level": level, "logger": told.name, "message": message}
            return msgspec.json.encode({**said, "trace": trace} if trace else said).decode()
        colour = _RED if told.levelno >= logging.ERROR else _YELLOW if told.levelno >= logging.WARNING else _DIM
        line = f"{clock(told.created)} {self._coloured(f'{level:<7}', colour)} {room}: {escaped(message)}"
        return f"{line}\n{trace}" if trace else line

    def _line(self, told: Told) -> str:
        line = f"{clock(told.at)} {told_line(told)}"
        is_bad = told.status == 0 or told.status >= 400
        return (
            self._coloured(line, _RED) if is_bad else self._coloured(line, _YELLOW) if told.problems else line
        )

    def _coloured(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours else text


def _chunks(lines: list[str]) -> Iterator[tuple[bytes, int]]:
    """Lines as they are written, and how many: as many at once as a pipe takes without mixing in another's."""
    chunk, count = b"", 0
    for line in lines:
        written = f"{line}\n".encode("utf-8", "replace")
        if chunk and len(chunk) + len(written) > _WHOLE_BYTES:
            yield chunk, count
            chunk, count = b"", 0
        chunk, count = chunk + written, count + 1
    if chunk:
        yield chunk, count


def start(
    *, as_json: bool, level: str, colours: bool | None = None, output: BinaryIO | None = None
) -> LogWriter:
    """Have all that is told go to standard error from now on, to its end when the process ends."""
    where = output or sys.stderr.buffer
    if colours is None:
        colours = not as_json and wants_colours()
    writer = LogWriter(where, as_json=as_json, colours=colours)
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, LogWriter)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(writer)
    set_level(level)
    atexit.register(writer.close)
    return writer


def current() -> LogWriter:
    """Who writes the log of this process; from now on, where nobody has until now."""
    found = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)]
    return found[0] if found else start(as_json=False, level="info")


def follow(server: Server) -> None:
    """Have the log as a configuration says from now on."""
    set_level(server.log_level)
    current().as_json = server.log == "json"


def set_level(level: str) -> None:
    """Tell what is at least of this level."""
    logging.getLogger(_ROOT).setLevel(level.upper())


def wants_colours() -> bool:
    """Whether standard error is a terminal on which nobody has switched colours off."""
    import os

    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
