"""Scans of logs for the usage of their calls, without their conversations.

A report needs no messages, so the reader of each agent has a scan that skips all lines without usage, and
decodes nothing else of the others: gigabytes take seconds.

The same call can be in logs several times: a streamed response has a line for each block, and resumed and
forked sessions copy lines. `LoggedCall.key` is the same in all copies.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from foveate.model import Usage
from foveate.replay.readers.log_file import decode_line

T = TypeVar("T")

_CHUNK_BYTES = 4 * 1024 * 1024
# No agent writes longer lines. A longer one is cut, and its parts are reported as unreadable.
_MAX_LINE_BYTES = 64 * 1024 * 1024


class LoggedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call in a log. `at` is when its response was logged; `provider` can be empty."""

    key: str
    at: float
    session: str
    project: str
    model: str
    usage: Usage
    provider: str = ""


class ScannedLog(msgspec.Struct, kw_only=True):
    """The calls of a log, each once, and the number of lines with usage that could not be read."""

    calls: list[LoggedCall]
    unreadable_lines: int = 0


class UsageLines:
    """Decodes the lines of a file that contain a marker. `unreadable` counts those that cannot be decoded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.unreadable = 0

    def read(self, decoder: "msgspec.json.Decoder[T]", *markers: bytes) -> Iterator[T]:
        for chunk, is_complete in self._read_chunks():
            for line in _find_lines(chunk, markers):
                try:
                    yield decode_line(decoder, line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    self.unreadable += is_complete

    def _read_chunks(self) -> Iterator[tuple[bytes, bool]]:
        """Many lines at a time. The last one can be incomplete, since an agent may be writing it."""
        rest = b""
        with self._path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                lines, line_break, data = data.rpartition(b"\n")
                if line_break:
                    yield rest + lines, True
                    rest = b""
                rest += data
                if len(rest) > _MAX_LINE_BYTES:
                    self.unreadable += 1
                    rest = b""
        yield rest, False


def _find_lines(chunk: bytes, markers: Sequence[bytes]) -> Iterator[bytes]:
    """The lines that contain a marker. Searching for the next marker is faster than testing each line."""
    positions = {marker: chunk.find(marker) for marker in markers}
    while found := [position for position in positions.values() if position >= 0]:
        start, end = chunk.rfind(b"\n", 0, min(found)) + 1, chunk.find(b"\n", min(found))
        end = end if end >= 0 else len(chunk)
        yield chunk[start:end]
        for marker, position in positions.items():
            if 0 <= position < end:
                positions[marker] = chunk.find(marker, end)


class CallsByKey:
    """Calls, each once: the copy with the most tokens, since a response that is still streamed has fewer."""

    def __init__(self) -> None:
        self._calls: dict[str, LoggedCall] = {}

    def add(self, call: LoggedCall) -> None:
        known = self._calls.get(call.key)
        if known is None or count_tokens(call.usage) > count_tokens(known.usage):
            self._calls[call.key] = call

    def list(self) -> list[LoggedCall]:
        return list(self._calls.values())


def count_tokens(usage: Usage) -> int:
    return usage.cache.input_tokens + usage.output_tokens
