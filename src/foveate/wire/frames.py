"""The binary frames in which Bedrock streams (application/vnd.amazon.eventstream, read November 2026).

A frame: its length and that of its headers (4 bytes each), a checksum, headers, a JSON payload, a checksum. The
checksums are the client's to look at.
"""

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass

from foveate.errors import MalformedRequest
from foveate.wire.body import as_text
from foveate.wire.events import MOST_BYTES
from foveate.wire.replies import record

_PRELUDE = 12
_CHECKSUM = 4
_STRING = b"\x07"  # the type of a header's value; all of Bedrock's are strings
_NAMES = (b":event-type", b":exception-type")
_CHUNK = b"chunk"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stream."""

    raw: bytes

    @property
    def data(self) -> bytes:
        """Its payload under the name in its headers, as the documentation writes it: `{"messageStop": {…}}`."""
        begins = _PRELUDE + int.from_bytes(self.raw[4:8])
        payload = self.raw[begins:-_CHECKSUM]
        name = next((said for header, said in self._headers(begins) if header in _NAMES), b"")
        if name == _CHUNK:
            return _unpacked(payload)
        return b'{"%b":%b}' % (name, payload) if name and payload else b""

    def _headers(self, end: int) -> Iterator[tuple[bytes, bytes]]:
        at = _PRELUDE
        while at < end:
            name = self.raw[at + 1 : at + 1 + self.raw[at]]
            at += 1 + len(name)
            kind, size = self.raw[at : at + 1], int.from_bytes(self.raw[at + 1 : at + 3])
            if kind != _STRING:
                return
            yield name, self.raw[at + 3 : at + 3 + size]
            at += 3 + size


def _unpacked(payload: bytes) -> bytes:
    """The event of a model's maker that InvokeModel has in base64; nothing where there is none."""
    try:
        return b64decode(as_text(record(payload).get("bytes")), validate=True)
    except (MalformedRequest, ValueError):
        return b""


class FrameSplitter:
    """Frames out of chunks. After what is no frame none comes any more: nothing tells where one begins."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held = bytearray()
        self._to_pass = 0  # of a frame that is too large
        self._is_lost = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that end in `chunk`."""
        passed = min(self._to_pass, len(chunk))
        self._to_pass -= passed
        self._held += b"" if self._is_lost else chunk[passed:]
        found = []
        at = 0
        while not self._is_lost and len(self._held) - at >= _PRELUDE:
            size = int.from_bytes(self._held[at : at + 4])
            headers = int.from_bytes(self._held[at + 4 : at + 8])
            self._is_lost = size < _PRELUDE + headers + _CHECKSUM
            have = len(self._held) - at
            if size > self._most_bytes and not self._is_lost:
                self._to_pass = max(size - have, 0)
                at += min(size, have)
            elif size > have or self._is_lost:
                break
            else:
                found.append(Frame(bytes(self._held[at : at + size])))
                at += size
        del self._held[: len(self._held) if self._is_lost else at]
        return found

    def end(self) -> list[Frame]:
        """Nothing: a frame that is cut says nothing."""
        return []
