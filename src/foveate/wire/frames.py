"""The binary frames in which Bedrock streams (application/vnd.amazon.eventstream, read November 2026).

A frame: its length and that of its headers (4 bytes each), a checksum, headers, a JSON payload, a checksum. The
checksums are the client's to look at.
"""

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass

from foveate.errors import MalformedRequest
from foveate.wire.body import as_text
from foveate.wire.events import MAX_EVENT_BYTES
from foveate.wire.replies import parse_object_leniently

_PRELUDE_BYTES = 12
_CHECKSUM_BYTES = 4
_STRING_TYPE = b"\x07"  # the type of a header's value; all of Bedrock's are strings
_NAME_HEADERS = (b":event-type", b":exception-type")
_CHUNK_NAME = b"chunk"


@dataclass(frozen=True, slots=True)
class AwsFrame:
    """One frame of a stream."""

    raw: bytes

    @property
    def data(self) -> bytes:
        """Its payload under the name in its headers, as the documentation writes it: `{"messageStop": {…}}`."""
        payload_start = _PRELUDE_BYTES + int.from_bytes(self.raw[4:8])
        payload = self.raw[payload_start:-_CHECKSUM_BYTES]
        name = next((said for header, said in self._headers(payload_start) if header in _NAME_HEADERS), b"")
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
    """The event of a model's maker that InvokeModel has in base64; nothing where there is none."""
    try:
        return b64decode(as_text(parse_object_leniently(payload).get("bytes")), validate=True)
    except (MalformedRequest, ValueError):
        return b""


class AwsFrameSplitter:
    """Frames out of chunks. After what is no frame none comes any more: nothing tells where one begins."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._bytes_to_skip = 0  # of a frame that is too large
        self._is_out_of_sync = False

    def feed(self, chunk: bytes) -> list[AwsFrame]:
        """The frames that end in `chunk`."""
        skipped = min(self._bytes_to_skip, len(chunk))
        self._bytes_to_skip -= skipped
        self._buffer += b"" if self._is_out_of_sync else chunk[skipped:]
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
        """Nothing: a frame that is cut says nothing."""
        return []
