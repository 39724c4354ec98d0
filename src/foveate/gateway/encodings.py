"""Bodies that come packed, unpacked: only what is read can be counted."""

import asyncio
import zlib
from collections.abc import Callable

from foveate.gateway.asks import TooLarge
from foveate.gateway.headers import Headers

_NAME = b"content-encoding"
# Nobody packs a body more often, or in more parts; whoever does means to keep us busy.
_MOST_ENCODINGS, _MOST_MEMBERS = 4, 1024
_PIECE_BYTES = 64 * 1024
# A smaller one is unpacked sooner than a thread is there.
_SMALL_BYTES = 1024
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


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


async def read_beside(body: bytes, encodings: tuple[str, ...], *, limit_bytes: int) -> bytes | None:
    """What `unpacked` gives, while others are served."""
    if not encodings:
        return body
    if len(body) <= _SMALL_BYTES:
        return unpacked(body, encodings, limit_bytes=limit_bytes)
    return await asyncio.to_thread(unpacked, body, encodings, limit_bytes=limit_bytes)


def unpacked(body: bytes, encodings: tuple[str, ...], *, limit_bytes: int) -> bytes | None:
    """The body itself; None where it is packed in a way that is not known, or is broken.

    Raises:
        TooLarge: it has more than `limit_bytes`; the rest of it is not unpacked.
    """
    if len(encodings) > _MOST_ENCODINGS:
        return None
    for encoding in reversed(encodings):
        unpack = _KNOWN.get(encoding)
        if unpack is None:
            return None
        try:
            body = unpack(body, limit_bytes)
        except (zlib.error, EOFError):
            return None
    return body


def _gzip(body: bytes, limit_bytes: int) -> bytes:
    """All members of a gzip file, one after the other."""
    pieces: list[bytes] = []
    left, at = limit_bytes, 0
    for _ in range(_MOST_MEMBERS):
        if at == len(body):
            return b"".join(pieces)
        piece, at = _inflated(body, at, _GZIP, left)
        pieces.append(piece)
        left -= len(piece)
    raise EOFError


def _deflate(body: bytes, limit_bytes: int) -> bytes:
    """What is called deflate comes with zlib's head, and from some clients without."""
    try:
        return _inflated(body, 0, _ZLIB, limit_bytes)[0]
    except zlib.error:
        return _inflated(body, 0, _RAW, limit_bytes)[0]


def _inflated(body: bytes, at: int, wbits: int, limit_bytes: int) -> tuple[bytes, int]:
    """What was packed from a place on, and where its end is."""
    unpacking = zlib.decompressobj(wbits)
    pieces: list[bytes] = []
    left = limit_bytes
    view = memoryview(body)
    while not unpacking.eof:
        if at == len(body):
            raise EOFError
        # By pieces, since what stands behind the end of one is copied.
        packed = view[at : at + _PIECE_BYTES]
        found = unpacking.decompress(packed, left + 1)
        if len(found) > left:
            raise TooLarge
        pieces.append(found)
        left -= len(found)
        at += len(packed) - len(unpacking.unused_data)
    return b"".join(pieces), at


_KNOWN: dict[str, Callable[[bytes, int], bytes]] = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate}
