"""Decompresses request bodies, so that they can be parsed and counted."""

import asyncio
import zlib
from collections.abc import Callable
from io import BytesIO

from foveate.gateway.body.errors import TooLarge
from foveate.gateway.headers import Headers

_CONTENT_ENCODING = b"content-encoding"
# No honest client uses more encodings or members.
_MAX_ENCODINGS, _MAX_MEMBERS = 4, 1024
_PIECE_BYTES = 64 * 1024
_OUTPUT_PIECE_BYTES = 1024 * 1024
# Smaller bodies are decompressed faster than a thread starts; but a few bytes of Brotli or zstd can be
# megabytes.
_SMALL_BODY_BYTES = 1024
# One call decompresses all of its input, and four bytes of it can be a block of 128 KB.
_ZSTD_PIECE_BYTES = 256
# RFC 9659: the largest window of this content encoding.
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS

ReserveMemory = Callable[[int], None]


def _reserve_nothing(_: int) -> None: ...


def parse_content_encodings(headers: Headers) -> tuple[str, ...]:
    """Return the content encodings in the order in which they were applied (RFC 9110, 8.4)."""
    values = [value.decode("latin-1") for name, value in headers if name == _CONTENT_ENCODING]
    if not values:
        return ()
    words = (word.strip().lower() for value in values for word in value.split(","))
    return tuple(word for word in words if word not in ("", "identity"))


def strip_content_encoding(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name != _CONTENT_ENCODING]


async def decompress_in_thread(
    body: bytes, encodings: tuple[str, ...], *, limit_bytes: int, grow: ReserveMemory = _reserve_nothing
) -> bytes | None:
    if not encodings:
        return body
    if len(body) <= _SMALL_BODY_BYTES and _DENSE_ENCODINGS.isdisjoint(encodings):
        return decompress(body, encodings, limit_bytes=limit_bytes, grow=grow)
    return await asyncio.to_thread(decompress, body, encodings, limit_bytes=limit_bytes, grow=grow)


def decompress(
    body: bytes, encodings: tuple[str, ...], *, limit_bytes: int, grow: ReserveMemory = _reserve_nothing
) -> bytes | None:
    """Decompress a body; None if an encoding is unknown or the data is corrupt.

    `grow` is called with the size of each decompressed piece.

    Raises:
        TooLarge: it has more than `limit_bytes`; the rest is not decompressed.
        NoRoom: `grow` has no memory for it.
    """
    if len(encodings) > _MAX_ENCODINGS:
        return None
    for encoding in reversed(encodings):
        decoder = _DECODERS.get(encoding)
        if decoder is None:
            return None
        try:
            body = decoder(body, _DecompressedBody(limit_bytes, grow))
        except (zlib.error, EOFError):
            return None
    return body


class _DecompressedBody:
    def __init__(self, limit_bytes: int, grow: ReserveMemory) -> None:
        self._limit_bytes = limit_bytes
        self._grow = grow
        self._pieces = BytesIO()

    def inflate(self, body: bytes, at: int, wbits: int) -> int:
        """Decompress the data that starts at `at`, and return the position of its end."""
        decompressor = zlib.decompressobj(wbits)
        view = memoryview(body)
        compressed: bytes | memoryview = b""
        has_more = False
        while not decompressor.eof:
            if not compressed and not has_more:
                if at == len(body):
                    raise EOFError
                # In pieces, since zlib copies everything behind the end of the stream.
                compressed = view[at : at + _PIECE_BYTES]
                at += len(compressed)
            left_bytes = self._limit_bytes - self._pieces.tell()
            max_bytes = min(left_bytes + 1, _OUTPUT_PIECE_BYTES)
            piece = decompressor.decompress(compressed, max_bytes)
            self.add(piece)
            compressed, has_more = decompressor.unconsumed_tail, len(piece) == max_bytes
        return at - len(decompressor.unused_data)

    def add(self, piece: bytes) -> None:
        if len(piece) > self._limit_bytes - self._pieces.tell():
            raise TooLarge(self._limit_bytes)
        self._grow(len(piece))
        self._pieces.write(piece)

    def restart(self) -> None:
        self._pieces = BytesIO()

    def getvalue(self) -> bytes:
        return self._pieces.getvalue()


def _decompress_gzip(body: bytes, output: _DecompressedBody) -> bytes:
    at = 0
    for _ in range(_MAX_MEMBERS):
        if at == len(body):
            return output.getvalue()
        at = output.inflate(body, at, _GZIP)
    raise EOFError


def _decompress_deflate(body: bytes, output: _DecompressedBody) -> bytes:
    """Decompress deflate data; some clients leave out the zlib header."""
    try:
        output.inflate(body, 0, _ZLIB)
    except zlib.error:
        output.restart()
        output.inflate(body, 0, _RAW)
    return output.getvalue()


def _decompress_zstd(body: bytes, output: _DecompressedBody) -> bytes:
    """Decompress all frames of a zstd body (RFC 8878)."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    view = memoryview(body)
    at = 0
    for _ in range(_MAX_MEMBERS):
        if at == len(body):
            return output.getvalue()
        frame = decompressor.decompressobj()
        while not frame.eof:
            if at == len(body):
                raise EOFError
            piece = view[at : at + _ZSTD_PIECE_BYTES]
            at += len(piece)
            try:
                output.add(frame.decompress(piece))
            except zstandard.ZstdError as error:
                raise EOFError from error
        at -= len(frame.unused_data)
    raise EOFError


def _decompress_brotli(body: bytes, output: _DecompressedBody) -> bytes:
    """Decompress the one stream of a Brotli body (RFC 7932)."""
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
            output.add(decompressor.process(piece, output_buffer_limit=_OUTPUT_PIECE_BYTES))
        except brotli.error as error:
            raise EOFError from error
    if at < len(body):
        raise EOFError
    return output.getvalue()


_DECODERS: dict[str, Callable[[bytes, _DecompressedBody], bytes]] = {
    "gzip": _decompress_gzip,
    "x-gzip": _decompress_gzip,
    "deflate": _decompress_deflate,
    "zstd": _decompress_zstd,
    "br": _decompress_brotli,
}
_DENSE_ENCODINGS = frozenset(("zstd", "br"))
