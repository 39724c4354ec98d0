"""Standard input, output and error of commands: text, JSON, notes, progress and output files."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Annotated, BinaryIO, TextIO

import typer

from foveate.errors import BadOption, BudgetExceeded, FoveateError, UnreadableInput, UnwritableOutput

PROGRESS_AFTER_SECONDS = 1.0

_DEFAULT_COLUMNS = 80
_STANDARD_OUTPUT = "-"
_DATABASE_SUFFIXES = ("", "-wal", "-shm")
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to this file. Default: standard output, also written as -.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """Tables are fitted to `columns` only on a terminal."""

    columns: int = _DEFAULT_COLUMNS
    encoding: str = "utf-8"
    colours: bool = False
    is_terminal: bool = True

    def can_show(self, text: str) -> bool:
        return text == _make_encodable(text, self.encoding)

    def escape(self, text: str) -> str:
        """Escape control characters and what the encoding lacks."""
        return _make_encodable(escape_control_chars(text), self.encoding)


def display_for(stream: TextIO | None) -> Display:
    return Display(
        columns=_terminal_columns(stream),
        encoding=_encoding(stream),
        colours=_supports_colours(stream),
        is_terminal=stream is not None and stream.isatty(),
    )


def print_object(value: Mapping[str, object]) -> None:
    print_text(json.dumps(value))


def print_error(error: FoveateError) -> None:
    print_object(error_object(error))


def error_object(error: FoveateError) -> dict[str, object]:
    fields: dict[str, object] = {"code": error.code, "message": str(error)}
    if isinstance(error, BudgetExceeded):
        fields |= {
            "limit_tokens": error.limit_tokens,
            "tokens": error.tokens,
            "sections": [asdict(size) for size in error.sections],
        }
    return {"error": fields}


def print_text(text: str) -> None:
    """Print text on standard output.

    Raises:
        UnwritableOutput: it is closed or full.
    """
    if sys.stdout is None:
        raise UnwritableOutput("is closed")
    with handle_write_errors():
        sys.stdout.write(_make_encodable(text, _encoding(sys.stdout)) + "\n")
        sys.stdout.flush()


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on standard output as they come. It is not an error if the reader closes the pipe.

    Raises:
        UnwritableOutput: it is closed or full.
    """
    if sys.stdout is None:
        raise UnwritableOutput("is closed")
    with handle_write_errors():
        for line in lines:
            sys.stdout.write(_make_encodable(line, _encoding(sys.stdout)) + "\n")
        sys.stdout.flush()


def print_to_stderr(text: str) -> None:
    if sys.stderr is not None:
        _write_to_stderr(_make_encodable(text, _encoding(sys.stderr)) + "\n")


def print_raw(data: bytes) -> None:
    """Write bytes to standard output; on a terminal, end with a line break.

    Raises:
        UnwritableOutput: it is closed or full.
    """
    if sys.stdout is None:
        raise UnwritableOutput("is closed")
    with handle_write_errors():
        sys.stdout.buffer.write(data)
        if sys.stdout.isatty() and not data.endswith(b"\n"):
            sys.stdout.buffer.write(b"\n")
        sys.stdout.flush()


def read_standard_input() -> bytes:
    """Read all of standard input. On a terminal, print a note that input is expected.

    Raises:
        UnreadableInput: it is closed, or cannot be read.
    """
    if sys.stdin is None:
        raise UnreadableInput("standard input", "is closed")
    if sys.stdin.isatty():
        print_note("reading standard input; press Ctrl-D to end")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise UnreadableInput("standard input", error.strerror or "cannot be read") from None


def print_note(text: str) -> None:
    if sys.stderr is not None:
        _write_to_stderr(f"foveate: {escape_control_chars(' '.join(text.split()))}\n")


def _write_to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # nowhere left to report it
        _discard_rest(sys.stderr)


@contextmanager
def collect_warnings() -> Iterator[None]:
    """Print warnings that are logged during the block as notes at its end."""
    import logging

    class WarningCollector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    messages: list[str] = []
    handler, logger = WarningCollector(logging.WARNING), logging.getLogger("foveate")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        for text in messages:
            print_note(text)


@contextmanager
def show_progress(activity: str) -> Iterator[None]:
    """Show the activity and elapsed seconds on a terminal if the block takes long, and erase the line."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    progress = _ProgressLine(activity, sys.stderr)
    thread = Thread(target=progress.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        progress.is_done.set()
        thread.join()  # it may be writing
        progress.erase()


class _ProgressLine:
    def __init__(self, activity: str, stream: TextIO) -> None:
        self.is_done = Event()
        self._text = f"foveate: {activity}{'…' if display_for(stream).can_show('…') else '...'}"
        self._stream = stream
        self._columns = display_for(stream).columns
        self._shown_chars = 0

    def run(self) -> None:
        started_at = monotonic()
        while not self.is_done.wait(PROGRESS_AFTER_SECONDS):
            self._write(f"{self._text} {monotonic() - started_at:.0f} s")

    def erase(self) -> None:
        if self._shown_chars:
            self._write("")

    def _write(self, line: str) -> None:
        """Replace the shown line. Blanks and carriage returns work on every terminal."""
        blanks = f"\r{' ' * self._shown_chars}\r" if self._shown_chars else ""
        line = line[: self._columns - 1]  # a wrapped line could not be erased
        self._shown_chars = len(line)
        with suppress(OSError):
            self._stream.write(blanks + line)
            self._stream.flush()


def escape_control_chars(text: str) -> str:
    """Escape everything that a terminal would interpret instead of show."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def _escape_char(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


@contextmanager
def handle_write_errors() -> Iterator[None]:
    """Ignore a closed pipe, and turn other write errors into `UnwritableOutput`.

    Raises:
        UnwritableOutput: standard output is closed or full.
    """
    try:
        yield
    except BrokenPipeError:
        _discard_rest(sys.stdout)
    except OSError as error:
        _discard_rest(sys.stdout)
        raise UnwritableOutput(error.strerror or "cannot be written") from None


def _discard_rest(stream: TextIO) -> None:
    """Discard buffered output: otherwise Python fails to flush it at exit and ends with code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def format_tokens(tokens: int, exact: bool) -> str:
    return f"{tokens:,}" if exact else f"~{tokens:,}"


def _supports_colours(stream: TextIO | None) -> bool:
    """Check whether a stream is a terminal with colours; NO_COLOR turns them off."""
    return (
        stream is not None
        and stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _terminal_columns(stream: TextIO | None) -> int:
    """The variable COLUMNS takes precedence."""
    requested = os.environ.get("COLUMNS", "")
    if requested.isdecimal() and len(requested) < 6 and int(requested):
        return int(requested)
    if stream is None or not stream.isatty():
        return _DEFAULT_COLUMNS
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_COLUMNS
    return _DEFAULT_COLUMNS


def _encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _make_encodable(text: str, encoding: str) -> str:
    return text.encode(encoding, "backslashreplace").decode(encoding)


def parse_output_option(name: str | None) -> str | None:
    """Return the name of the output file; None for standard output.

    Raises:
        BadOption: the name is empty.
    """
    if name == "":
        raise BadOption("--output needs a file name")
    return None if name == _STANDARD_OUTPUT else name


@contextmanager
def open_output(name: str | None, *, store: str) -> Iterator[BinaryIO]:
    """Open a file that is replaced once all is written, or standard output.

    Raises:
        BadOption: the file belongs to the store at `store`, which is being read.
        UnwritableFile: the file cannot be written.
        UnwritableOutput: standard output is closed.
    """
    if name is not None:
        from foveate.config.files import open_replacement

        _check_is_not_store(Path(name), store)
        with open_replacement(Path(name), mode=0o600) as file:
            yield file
    elif sys.stdout is None:
        raise UnwritableOutput("is closed")
    else:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


def _check_is_not_store(output: Path, store: str) -> None:
    for suffix in _DATABASE_SUFFIXES:
        try:
            is_same = output.samefile(store + suffix)
        except (OSError, ValueError):  # a missing file cannot be the same
            continue
        if is_same:
            raise BadOption(f"--output {output} is the store itself: choose another file")
