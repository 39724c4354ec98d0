"""Split streamed responses into events, each with its own bytes, however the network chunks them.

Server-sent events (html.spec.whatwg.org, read November 2026), JSON lists (Gemini), and AWS binary frames
(application/vnd.amazon.eventstream, read November 2026). A frame has its length and that of its headers (4
bytes each), a checksum, headers, a JSON payload and a checksum. Checksums are left to the client.
"""

import codecs
import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate.errors import MalformedRequest
from foveate.formats.json_text.lenient_parse import parse_object_leniently
from foveate.formats.json_text.parse import as_text

MAX_EVENT_BYTES = 16 * 1024 * 1024  # larger events are forwarded without being parsed

_LINE_END = rb"(?>\r\n|\n|\r)"
_EVENT_END = re.compile(_LINE_END + _LINE_END)
_MAX_EVENT_END_BYTES = len(b"\r\n\r\n")
_BLANK_LINE = b"\n\n"

_IN_STRING = re.compile(rb'["\\]')
_STRUCTURE = re.compile(rb'["{}\[\]]')


class StreamEvent(Protocol):
    @property
    def raw(self) -> bytes: ...

    @property
    def data(self) -> bytes:
        """Payload; empty if there is none, or if it was too large to keep."""


class StreamSplitter(Protocol):
    def feed(self, chunk: bytes) -> Sequence[StreamEvent]: ...

    def end(self) -> Sequence[StreamEvent]:
        """Return the last event if the stream ended without closing it."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """Bytes before `lines_start` are not parsed."""

    raw: bytes
    lines_start: int = 0

    @property
    def name(self) -> str:
        values = self._read_field(b"event")
        return values[-1].decode(errors="replace") if values else ""

    @property
    def data(self) -> bytes:
        return b"\n".join(self._read_field(b"data"))

    @property
    def is_done(self) -> bool:
        """Return whether it is the final `[DONE]` of a chat stream."""
        return self.data == b"[DONE]"

    def _read_field(self, field: bytes) -> list[bytes]:
        values = []
        for line in self.raw[self.lines_start :].splitlines():
            name, _, value = line.partition(b":")
            if name == field:
                values.append(value.removeprefix(b" "))
        return values


class SseSplitter:
    """Splits server-sent events. Comments and empty events count as events without data.

    An event that ends in CR is held back until it is known whether an LF follows.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._has_cr = False
        self._is_first = True
        self._is_too_large = False

    @property
    def rest(self) -> bytes:
        return bytes(self._buffer)

    @property
    def is_open(self) -> bool:
        return bool(self._buffer)

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        self._has_cr = self._has_cr or b"\r" in chunk
        searched = max(len(self._buffer) - _MAX_EVENT_END_BYTES + 1, 0)
        data: bytes | bytearray = chunk
        if self._buffer:
            self._buffer += chunk
            data = self._buffer
        events = []
        start = 0
        while (end := self._find_end(data, searched)) is not None:
            events.append(self._make_event(bytes(data[start:end])))
            start = searched = end
        if data is chunk:
            self._buffer += chunk[start:]
        else:
            del self._buffer[:start]
        if len(self._buffer) > self._max_bytes:
            events.append(self._take_partial_event())
        return events

    def end(self) -> list[ServerSentEvent]:
        rest = self.rest
        self._buffer.clear()
        return [self._make_event(rest)] if rest else []

    def _find_end(self, data: bytes | bytearray, start: int) -> int | None:
        if not self._has_cr:
            at = data.find(_BLANK_LINE, start)
            return at + len(_BLANK_LINE) if at >= 0 else None
        match = _EVENT_END.search(data, start)
        is_open = match is not None and match.end() == len(data) and data.endswith(b"\r")
        return None if match is None or is_open else match.end()

    def _make_event(self, raw: bytes) -> ServerSentEvent:
        lines_start = len(codecs.BOM_UTF8) if self._is_first and raw.startswith(codecs.BOM_UTF8) else 0
        is_too_large = self._is_too_large or len(raw) > self._max_bytes
        self._is_first = self._is_too_large = False
        return ServerSentEvent(raw, len(raw) if is_too_large else lines_start)

    def _take_partial_event(self) -> ServerSentEvent:
        """Take all of an oversized event except the bytes in which its end may start."""
        self._is_too_large = True
        cut = len(self._buffer) - _MAX_EVENT_END_BYTES + 1
        raw = bytes(self._buffer[:cut])
        del self._buffer[:cut]
        return ServerSentEvent(raw, len(raw))


class SseFinder:
    """Finds the server-sent events that match `relevant` or contain `last`.

    Most of a stream are text deltas that nobody reads: they are not even split.
    """

    def __init__(self, relevant: re.Pattern[bytes], last: bytes | None = None) -> None:
        self._relevant = relevant
        self._last = last
        self._splitter = SseSplitter()
        self._is_first = True

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        events, start = [], 0
        has_cr = b"\r" in chunk
        if self._is_first or has_cr or self._splitter.is_open:
            self._is_first = self._is_first and not chunk  # an empty chunk is not the start
            blank = -1 if has_cr else chunk.find(_BLANK_LINE)
            start = len(chunk) if blank < 0 else blank + len(_BLANK_LINE)
            events = self._keep_relevant(self._splitter.feed(chunk[:start]))
        last = chunk.rfind(_BLANK_LINE, start)
        if last >= 0:
            events += self._find_relevant(chunk, start, last)
            start = last + len(_BLANK_LINE)
        if start < len(chunk):
            self._splitter.feed(chunk[start:])
        return events

    def end(self) -> list[ServerSentEvent]:
        return self._keep_relevant(self._splitter.end())

    def _keep_relevant(self, events: Sequence[ServerSentEvent]) -> list[ServerSentEvent]:
        return [event for event in events if self._relevant.search(event.raw) or self._is_last(event.raw)]

    def _find_relevant(self, chunk: bytes, start: int, last: int) -> list[ServerSentEvent]:
        events: list[ServerSentEvent] = []
        # Each is searched only when passed, because a text may contain many of one and none of the other.
        match_start = last_start = -1
        while True:
            if match_start < start:
                match = self._relevant.search(chunk, start, last)
                match_start = last if match is None else match.start()
            if last_start < start:
                last_start = -1 if self._last is None else chunk.find(self._last, start, last)
                last_start = last if last_start < 0 else last_start
            at = min(match_start, last_start)
            if at == last:
                return events
            before = chunk.rfind(_BLANK_LINE, start, at)
            event_start = start if before < 0 else before + len(_BLANK_LINE)
            start = chunk.index(_BLANK_LINE, at) + len(_BLANK_LINE)
            if start - event_start <= MAX_EVENT_BYTES:
                events.append(ServerSentEvent(chunk[event_start:start]))

    def _is_last(self, raw: bytes) -> bool:
        return self._last is not None and self._last in raw


@dataclass(frozen=True, slots=True)
class JsonListItem:
    raw: bytes

    @property
    def data(self) -> bytes:
        return self.raw


class JsonListSplitter:
    """Splits a JSON list into its objects, as Gemini streams without server-sent events."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()  # the open object
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_too_large = False

    def feed(self, chunk: bytes) -> list[JsonListItem]:
        items = []
        start = 0 if self._depth > 1 else None
        at = 1 if chunk and self._is_escaped else 0
        self._is_escaped = self._is_escaped and not chunk
        while match := (_IN_STRING if self._in_string else _STRUCTURE).search(chunk, at):
            at = match.end()
            if match[0] == b"\\":
                at += 1
                self._is_escaped = at > len(chunk)
            elif match[0] == b'"':
                self._in_string = not self._in_string
            elif match[0] in b"{[":
                self._depth += 1
                start = match.start() if self._depth == 2 else start
            else:
                self._depth -= 1
                if self._depth == 1 and start is not None:
                    items += self._close_item(chunk[start:at])
                    start = None
        if start is not None:
            self._append_to_buffer(chunk[start:])
        return items

    def end(self) -> list[JsonListItem]:
        """Return nothing: an object that is not closed is ignored."""
        return []

    def _close_item(self, last: bytes) -> list[JsonListItem]:
        self._append_to_buffer(last)
        items = [] if self._is_too_large else [JsonListItem(bytes(self._buffer))]
        self._buffer.clear()
        self._is_too_large = False
        return items

    def _append_to_buffer(self, piece: bytes) -> None:
        self._is_too_large = self._is_too_large or len(self._buffer) + len(piece) > self._max_bytes
        if self._is_too_large:
            self._buffer.clear()
        else:
            self._buffer += piece


_PRELUDE_BYTES = 12
_CHECKSUM_BYTES = 4
_STRING_TYPE = b"\x07"  # type of a header value; all of Bedrock's are strings
_NAME_HEADERS = (b":event-type", b":exception-type")
_CHUNK_NAME = b"chunk"


@dataclass(frozen=True, slots=True)
class AwsFrame:
    raw: bytes

    @property
    def data(self) -> bytes:
        """Payload under the name in its headers, as AWS documents it: `{"messageStop": {…}}`."""
        payload_start = _PRELUDE_BYTES + int.from_bytes(self.raw[4:8])
        payload = self.raw[payload_start:-_CHECKSUM_BYTES]
        name = next((value for header, value in self._headers(payload_start) if header in _NAME_HEADERS), b"")
        if name == _CHUNK_NAME:
            return _unpack_chunk(payload)
        return b'{"%b":%b}' % (name, payload) if name and payload else b""

    def _headers(self, end: int) -> Iterator[tuple[bytes, bytes]]:
        at = _PRELUDE_BYTES
        while at < end:
            name = self.raw[at + 1 : at + 1 + self.raw[at]]
            at += 1 + len(name)
            kind, size = self.raw[at : at + 1], int.from_bytes(self.raw[at + 1 : at + 3])
            if kind != _STRING_TYPE:
                return
            yield name, self.raw[at + 3 : at + 3 + size]
            at += 3 + size


def _unpack_chunk(payload: bytes) -> bytes:
    """Return the provider's event that InvokeModel wraps in base64; empty if there is none."""
    try:
        return b64decode(as_text(parse_object_leniently(payload).get("bytes")), validate=True)
    except (MalformedRequest, ValueError):
        return b""


class AwsFrameSplitter:
    """Splits frames. After an invalid frame it yields none, because nothing marks the start of the next."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._bytes_to_skip = 0  # rest of an oversized frame
        self._is_out_of_sync = False

    def feed(self, chunk: bytes) -> list[AwsFrame]:
        skipped_bytes = min(self._bytes_to_skip, len(chunk))
        self._bytes_to_skip -= skipped_bytes
        self._buffer += b"" if self._is_out_of_sync else chunk[skipped_bytes:]
        frames = []
        at = 0
        while not self._is_out_of_sync and len(self._buffer) - at >= _PRELUDE_BYTES:
            size = int.from_bytes(self._buffer[at : at + 4])
            headers = int.from_bytes(self._buffer[at + 4 : at + 8])
            self._is_out_of_sync = size < _PRELUDE_BYTES + headers + _CHECKSUM_BYTES
            available = len(self._buffer) - at
            if size > self._max_bytes and not self._is_out_of_sync:
                self._bytes_to_skip = max(size - available, 0)
                at += min(size, available)
            elif size > available or self._is_out_of_sync:
                break
            else:
                frames.append(AwsFrame(bytes(self._buffer[at : at + size])))
                at += size
        del self._buffer[: len(self._buffer) if self._is_out_of_sync else at]
        return frames

    def end(self) -> list[AwsFrame]:
        """Return nothing: a truncated frame is ignored."""
        return []
