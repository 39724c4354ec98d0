"""Reads log files as lines, documents or a whole, optionally gzipped. Unreadable lines are reported and
skipped.
"""

import codecs
import gzip
import tempfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import IO, TypeVar, cast

import msgspec

from foveate.errors import UnreadableInput
from foveate.formats.json_text.surrogates import repair_surrogates
from foveate.replay.recording import UnreadableLine

T = TypeVar("T")

TOO_DEEP = "is nested too deeply"
_RAW_DECODER = msgspec.json.Decoder(msgspec.Raw)
_VALUE_DECODER = msgspec.json.Decoder()
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
# PowerShell redirects output in this encoding.
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CHUNK_CHARACTERS = 1024 * 1024
_WHITESPACE = b" \t\r\n"
_OPENINGS = (b"{", b"[")
_CLOSINGS = (b"}", b"]")
# No agent writes longer lines, and a file without line breaks would fill the memory.
_MAX_LINE_BYTES = 512 * 1024 * 1024
# Suffixes that only tell how a file is written.
_SUFFIXES = (".gz", ".jsonl", ".json", ".traj", ".log", ".ndjson", ".sqlite", ".db")
_MAX_SECONDS = 1e11  # in the year 5138
_MAX_NUMBER = 1e20  # that year in nanoseconds; larger numbers are not times


class LogFile:
    """`unreadable` lists the lines that could not be read so far."""

    def __init__(self, path: Path, *, max_line_bytes: int = _MAX_LINE_BYTES) -> None:
        self.path = path
        self._max_line_bytes = max_line_bytes
        self.unreadable: list[UnreadableLine] = []
        self.size_bytes = 0

    @property
    def name(self) -> str:
        return strip_suffixes(self.path)

    def report_unreadable(self, line: int, reason: str) -> None:
        self.unreadable.append(UnreadableLine(line=line, reason=reason, file=str(self.path)))

    def lines(self) -> Generator[tuple[int, bytes], None, None]:
        """All lines that may be JSON, numbered from 1, without blank ones. Lines that are not text are
        reported.

        Raises:
            UnreadableInput: the file cannot be opened.
        """
        self.size_bytes = 0
        for number, raw in self._number_lines():
            line = raw.strip(_WHITESPACE)
            if number == 1:
                line = line.removeprefix(_BOM)
            if not line:
                continue
            if b"\0" in line:
                self.report_unreadable(number, "contains NUL bytes, possibly from a crash")
            elif not line.isascii() and not _is_utf8(line):
                self.report_unreadable(number, "is not UTF-8")
            else:
                yield number, line

    def documents(self) -> Iterator[tuple[int, bytes]]:
        """All documents in the file, by the number of their first line: one per line, or one in all.

        Lone surrogates (cut emoji) are replaced, and not reported.

        Raises:
            UnreadableInput: the file cannot be opened.
        """
        with closing(self.lines()) as lines:
            first = next(lines, None)
            if first is None:
                return
            documents: Iterable[tuple[int, bytes]] = chain((first,), lines)
            if not is_json(repair_text(first[1])):
                if only_document := self._read_as_one_document():
                    documents = ((1, only_document),)
                elif first[1] in _OPENINGS:
                    documents = _join_pretty_printed(documents)
            for number, document in documents:
                yield number, repair_text(document)

    def objects(self) -> Iterator[tuple[int, bytes]]:
        """All documents in the file, and the items of those that are lists, by the number of their first
        line.

        Raises:
            UnreadableInput: the file cannot be opened.
        """
        for number, document in self.documents():
            if not document.startswith(b"["):
                yield number, document
                continue
            try:
                items = _LIST_DECODER.decode(document)
            except (msgspec.DecodeError, RecursionError) as error:
                self.report_unreadable(number, describe_decode_error(error))
                continue
            yield from ((number, bytes(item)) for item in items)

    def _read_as_one_document(self) -> bytes:
        """The whole file if it is one document over many lines; empty otherwise."""
        before = self.unreadable, self.size_bytes
        try:
            if self.path.stat().st_size <= self._max_line_bytes and is_json(document := self.read_all()):
                self.unreadable = []
                return document
        except (UnreadableInput, OSError):
            pass  # its lines are reported one by one
        self.unreadable, self.size_bytes = before
        return b""

    def read_all(self) -> bytes:
        """The whole file as text.

        Raises:
            UnreadableInput: the file cannot be opened, or is not text.
        """
        with _open(self.path) as file:
            try:
                data = file.read()
            except (OSError, EOFError, zlib.error) as error:
                raise UnreadableInput(str(self.path), _describe_read_error(error)) from None
        self.size_bytes = len(data)
        data = data.removeprefix(_BOM)
        if not data.isascii() and not _is_utf8(data):
            raise UnreadableInput(str(self.path), "is not UTF-8")
        return repair_text(data)

    def _number_lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        with _open(self.path) as file:
            while True:
                number += 1
                try:
                    line = file.readline(self._max_line_bytes)
                    if len(line) == self._max_line_bytes and not line.endswith(b"\n"):
                        self.size_bytes += len(line) + _skip_line(file, self._max_line_bytes)
                        self.report_unreadable(number, f"is longer than {self._max_line_bytes:,} bytes")
                        continue
                except (OSError, EOFError, zlib.error) as error:
                    self.report_unreadable(
                        number, f"{_describe_read_error(error)}; the lines before it were read"
                    )
                    return
                if not line:
                    return
                self.size_bytes += len(line)
                yield number, line


def strip_suffixes(path: Path) -> str:
    name = path.name
    for _ in range(2):
        for suffix in _SUFFIXES:
            if name.lower().endswith(suffix) and len(name) > len(suffix):
                name = name[: -len(suffix)]
                break
    return name


def repair_text(text: bytes) -> bytes:
    """The same with each lone surrogate, a cut emoji, as a replacement character."""
    return repair_surrogates(text) if b"\\ud" in text or b"\\uD" in text else text


def is_json(text: bytes) -> bool:
    try:
        _RAW_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def decode_line(decoder: "msgspec.json.Decoder[T]", line: bytes | msgspec.Raw) -> T:
    """Decode a line; if that fails, once more with lone surrogates replaced.

    Raises:
        msgspec.DecodeError: it is not JSON, or not what the decoder reads.
        RecursionError: it is nested too deeply.
    """
    try:
        return decoder.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        text = bytes(line)
        repaired_text = repair_text(text)
        if repaired_text is text:
            raise
        return decoder.decode(repaired_text)


def describe_decode_error(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return TOO_DEEP
    text = str(error)
    return "is truncated" if "truncated" in text else f"is not JSON: {text}"


def describe_problem(document: bytes, default: str) -> str:
    try:
        _VALUE_DECODER.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return describe_decode_error(error)
    return default


def _join_pretty_printed(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Documents that span many lines each, one after another, as jq prints them.

    In this format, a line that ends with an opening bracket opens a level, and one that begins with a closing
    bracket closes it, since a string ends with a quote.
    """
    first, depth = 0, 0
    pending: list[bytes] = []
    for number, line in lines:
        first = first if pending else number
        pending.append(line)
        depth += line.endswith(_OPENINGS) - line.startswith(_CLOSINGS)
        if depth <= 0:
            yield first, b"\n".join(pending)
            pending, depth = [], 0
    if pending:
        yield first, b"\n".join(pending)


def _skip_line(file: IO[bytes], chunk_bytes: int) -> int:
    skipped_bytes = 0
    while chunk := file.readline(chunk_bytes):
        skipped_bytes += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped_bytes


def _open(path: Path) -> IO[bytes]:
    try:
        with path.open("rb") as file:
            head = file.read(len(_GZIP))
        if head in _UTF_16:
            return _convert_to_utf_8(path)
        return cast("IO[bytes]", gzip.open(path)) if head == _GZIP else path.open("rb")
    except OSError as error:
        raise UnreadableInput(str(path), _describe_read_error(error)) from None
    except ValueError as error:  # a path with a null byte
        raise UnreadableInput(str(path), str(error)) from None


def _convert_to_utf_8(path: Path) -> IO[bytes]:
    """The file converted from UTF-16, as a temporary file that is deleted when closed."""
    converted = cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115 - whoever reads it closes it
    with path.open(encoding="utf-16", errors="replace", newline="") as file:
        while chunk := file.read(_CHUNK_CHARACTERS):
            converted.write(chunk.encode())
    converted.seek(0)
    return converted


def _describe_read_error(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the compressed file ends early"
    if isinstance(error, zlib.error | gzip.BadGzipFile):
        return "the compressed file is damaged"
    return getattr(error, "strerror", None) or "cannot be read"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def parse_time(value: object) -> float:
    """A time in any notation as seconds since 1970; 0 if it is not a time.

    A number may be in seconds, milliseconds, microseconds or nanoseconds. A time without a zone is UTC.
    """
    if isinstance(value, bool) or value is None:
        return 0.0
    if isinstance(value, int | float):
        return _parse_number(value)
    try:
        time = datetime.fromisoformat(str(value).strip())
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        seconds = time.timestamp()
        return seconds if 0 < seconds <= _MAX_SECONDS else 0.0
    except (ValueError, OverflowError, OSError):
        return _parse_text(str(value))


def _parse_number(value: float) -> float:
    if not 0 < value < _MAX_NUMBER:
        return 0.0
    number = float(value)
    while number > _MAX_SECONDS:
        number /= 1000
    return number


def _parse_text(value: str) -> float:
    try:
        return _parse_number(float(value))
    except ValueError:
        return 0.0
