"""Bodies that come packed, unpacked: only what is read can be counted."""

import asyncio
import zlib
from collections.abc import Callable
from io import BytesIO

from foveate.gateway.body_errors import TooLarge
from foveate.gateway.headers import Headers

_NAME = b"content-encoding"
# Nobody packs a body more often, or in more parts; whoever does means to keep us busy.
_MOST_ENCODINGS, _MOST_MEMBERS = 4, 1024
_PIECE_BYTES = 64 * 1024
_UNPACKED_BYTES = 1024 * 1024
# A smaller one is unpacked sooner than a thread is there.
_SMALL_BYTES = 1024
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS

Grow = Callable[[int], None]


def _uncounted(_: int) -> None:
    """Memory that nobody counts."""


def encodings_of(headers: Headers) -> tuple[str, ...]:
    """How a body is packed, in the order in which that was done (RFC 9110, 8.4)."""
    said = [value.decode("latin-1") for name, value in headers if name == _NAME]
    if not said:
        return ()
    words = (word.strip().lower() for value in said for word in value.split(","))
    return tuple(word for word in words if word not in ("", "identity"))


def without_encodings(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers of the same body once it is unpacked."""
    return [(name, value) for name, value in headers if name != _NAME]


async def read_beside(
    body: bytes, encodings: tuple[str, ...], *, limit_bytes: int, grow: Grow = _uncounted
) -> bytes | None:
    """What `unpacked` gives, while others are served."""
    if not encodings:
        return body
    if len(body) <= _SMALL_BYTES:
        return unpacked(body, encodings, limit_bytes=limit_bytes, grow=grow)
    return await asyncio.to_thread(unpacked, body, encodings, limit_bytes=limit_bytes, grow=grow)


def unpacked(
    body: bytes, encodings: tuple[str, ...], *, limit_bytes: int, grow: Grow = _uncounted
) -> bytes | None:
    """The body itself; None where it is packed in a way that is not known, or is broken.

    `grow` is called with the size of each piece that is unpacked.

    Raises:
        TooLarge: it has more than `limit_bytes`; the rest of it is not unpacked.
        NoRoom: `grow` has no memory for it.
    """
    if len(encodings) > _MOST_ENCODINGS:
        return None
    for encoding in reversed(encodings):
        unpack = _KNOWN.get(encoding)
        if unpack is None:
            return None
        try:
            body = unpack(body, _Unpacked(limit_bytes, grow))
        except (zlib.error, EOFError):
            return None
    return body


class _Unpacked:
    """What is unpacked so far, within a limit."""

    def __init__(self, limit_bytes: int, grow: Grow) -> None:
        self._limit_bytes = limit_bytes
        self._grow = grow
        self._pieces = BytesIO()

    def inflate(self, body: bytes, at: int, wbits: int) -> int:
        """Unpack what was packed from a place on, and return where that ends."""
        unpacking = zlib.decompressobj(wbits)
        view = memoryview(body)
        packed: bytes | memoryview = b""
        has_more = False
        while not unpacking.eof:
            if not packed and not has_more:
                if at == len(body):
                    raise EOFError
                # By pieces, since what stands behind the end of one is copied.
                packed = view[at : at + _PIECE_BYTES]
                at += len(packed)
            left = self._limit_bytes - self._pieces.tell()
            most = min(left + 1, _UNPACKED_BYTES)
            found = unpacking.decompress(packed, most)
            if len(found) > left:
                raise TooLarge(self._limit_bytes)
            self._grow(len(found))
            self._pieces.write(found)
            packed, has_more = unpacking.unconsumed_tail, len(found) == most
        return at - len(unpacking.unused_data)

    def restart(self) -> None:
        """Forget what was unpacked."""
        self._pieces = BytesIO()

    def whole(self) -> bytes:
        """All of it."""
        return self._pieces.getvalue()


def _gzip(body: bytes, unpacked: _Unpacked) -> bytes:
    """All members of a gzip file, one after the other."""
    at = 0
    for _ in range(_MOST_MEMBERS):
        if at == len(body):
            return unpacked.whole()
        at = unpacked.inflate(body, at, _GZIP)
    raise EOFError


def _deflate(body: bytes, unpacked: _Unpacked) -> bytes:
    """What is called deflate comes with zlib's head, and from some clients without."""
    try:
        unpacked.inflate(body, 0, _ZLIB)
    except zlib.error:
        unpacked.restart()
        unpacked.inflate(body, 0, _RAW)
    return unpacked.whole()


_KNOWN: dict[str, Callable[[bytes, _Unpacked], bytes]] = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate}
