"""Bodies that come packed, unpacked: only what is read can be counted."""

import zlib
from collections.abc import Callable

from foveate.gateway.asks import TooLarge
from foveate.gateway.headers import Headers

_NAME = b"content-encoding"
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


def encodings_of(headers: Headers) -> tuple[str, ...]:
    """How a body is packed, in the order in which that was done (RFC 9110, 8.4)."""
    said = b",".join(value for name, value in headers if name == _NAME).decode("latin-1")
    words = (word.strip().lower() for word in said.split(","))
    return tuple(word for word in words if word not in ("", "identity"))


def without_encodings(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers of the same body once it is unpacked."""
    return [(name, value) for name, value in headers if name != _NAME]


def unpacked(body: bytes, encodings: tuple[str, ...], *, limit_bytes: int) -> bytes | None:
    """The body itself; None where it is packed in a way that is not known, or is broken.

    Raises:
        TooLarge: it has more than `limit_bytes`; the rest of it is not unpacked.
    """
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
    left = limit_bytes
    while body:
        piece, body = _inflated(body, _GZIP, left)
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _deflate(body: bytes, limit_bytes: int) -> bytes:
    """What is called deflate comes with zlib's head, and from some clients without."""
    try:
        return _inflated(body, _ZLIB, limit_bytes)[0]
    except zlib.error:
        return _inflated(body, _RAW, limit_bytes)[0]


def _inflated(body: bytes, wbits: int, limit_bytes: int) -> tuple[bytes, bytes]:
    """What was packed, and what comes after it."""
    unpacking = zlib.decompressobj(wbits)
    found = unpacking.decompress(body, limit_bytes + 1)
    if len(found) > limit_bytes:
        raise TooLarge
    if not unpacking.eof:
        raise EOFError
    return found, unpacking.unused_data


_KNOWN: dict[str, Callable[[bytes, int], bytes]] = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate}
