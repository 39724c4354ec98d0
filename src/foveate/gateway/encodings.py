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
# A smaller one is unpacked sooner than a thread is there; but a few bytes of Brotli or zstd can be megabytes.
_SMALL_BYTES = 1024
# One call decompresses all of its input, and four bytes of that can be a block of 128 KB.
_ZSTD_PIECE_BYTES = 256
# RFC 9659: a content encoding has no larger window.
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
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
    if len(body) <= _SMALL_BYTES and _DENSE.isdisjoint(encodings):
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
            self.add(found)
            packed, has_more = unpacking.unconsumed_tail, len(found) == most
        return at - len(unpacking.unused_data)

    def add(self, found: bytes) -> None:
        """Append a decompressed piece."""
        if len(found) > self._limit_bytes - self._pieces.tell():
            raise TooLarge(self._limit_bytes)
        self._grow(len(found))
        self._pieces.write(found)

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


def _zstd(body: bytes, unpacked: _Unpacked) -> bytes:
    """All frames of a zstd body (RFC 8878), one after the other."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    view = memoryview(body)
    at = 0
    for _ in range(_MOST_MEMBERS):
        if at == len(body):
            return unpacked.whole()
        frame = decompressor.decompressobj()
        while not frame.eof:
            if at == len(body):
                raise EOFError
            piece = view[at : at + _ZSTD_PIECE_BYTES]
            at += len(piece)
            try:
                unpacked.add(frame.decompress(piece))
            except zstandard.ZstdError as error:
                raise EOFError from error
        at -= len(frame.unused_data)
    raise EOFError


def _brotli(body: bytes, unpacked: _Unpacked) -> bytes:
    """The one stream of a Brotli body (RFC 7932)."""
    import brotli

    decompressor = brotli.Decompressor()
    view = memoryview(body)
    at = 0
    while not decompressor.is_finished():
        piece = view[:0]
        if decompressor.can_accept_more_data():
            if at == len(body):
                raise EOFError
            piece = view[at : at + _PIECE_BYTES]
            at += len(piece)
        try:
            unpacked.add(decompressor.process(piece, output_buffer_limit=_UNPACKED_BYTES))
        except brotli.error as error:
            raise EOFError from error
    if at < len(body):
        raise EOFError
    return unpacked.whole()


_KNOWN: dict[str, Callable[[bytes, _Unpacked], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "br": _brotli,
}
_DENSE = frozenset(("zstd", "br"))
