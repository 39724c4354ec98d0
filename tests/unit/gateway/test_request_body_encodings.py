"""Compressed bodies are decompressed, or recognized as unreadable."""

import gzip
import random
import time
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from foveate.gateway.request_body import (
    TooLarge,
    decompress,
    decompress_in_thread,
    parse_content_encodings,
    strip_content_encoding,
)

BODY = b'{"model": "gpt-4.1"}' * 50
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
DEFLATED = RAW.compress(BODY) + RAW.flush()


BROTLI = brotli.compress(BODY)
ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress(BODY)
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"


def compress_gzip(data: bytes) -> bytes:
    """Return reproducible bytes, since they are part of a test's name."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("compressed", "encodings"),
    [
        (BODY, []),
        (BODY, [b"identity"]),
        (compress_gzip(BODY), [b"gzip"]),
        (compress_gzip(BODY), [b"identity", b"GZIP "]),
        (compress_gzip(BODY[:9]) + compress_gzip(BODY[9:]), [b"x-gzip"]),
        (zlib.compress(BODY), [b"deflate"]),
        (DEFLATED, [b"deflate"]),
        (compress_gzip(zlib.compress(BODY)), [b"deflate, gzip"]),
        (compress_gzip(zlib.compress(BODY)), [b"deflate", b"gzip"]),
        (BROTLI, [b"br"]),
        (ZSTD, [b"zstd"]),
        (SKIPPABLE_FRAME + ZSTD, [b"zstd"]),
        (zstandard.compress(BODY[:9]) + zstandard.compress(BODY[9:]), [b"ZSTD"]),
        (compress_gzip(ZSTD), [b"zstd, gzip"]),
    ],
)
def test_a_body_is_decompressed_as_its_headers_say(compressed: bytes, encodings: list[bytes]) -> None:
    headers = [(b"content-encoding", value) for value in encodings]

    assert decompress(compressed, parse_content_encodings(headers), limit_bytes=len(BODY)) == BODY


def test_many_gzip_members_take_linear_time() -> None:
    """Regression: the rest was copied for each member, so one small request froze the gateway."""
    empty_members = gzip.compress(b"") * 1_000
    large_member = gzip.compress(random.Random(1).randbytes(16_000_000), 0)
    started_at = time.process_time()

    assert decompress(empty_members + large_member, ("gzip",), limit_bytes=20_000_000) is not None
    assert decompress(gzip.compress(b"") * 80_000, ("gzip",), limit_bytes=20_000_000) is None
    assert decompress(gzip.compress(b"", 9), ("gzip",) * 5, limit_bytes=99) is None
    # Copies would take a minute.
    assert time.process_time() - started_at < 15


@pytest.mark.parametrize("size", [10, 1_000_000])
async def test_decompressing_in_a_thread_gives_the_same_bytes(size: int) -> None:
    body = random.Random(1).randbytes(size)
    compressed = gzip.compress(body)

    assert await decompress_in_thread(compressed, ("gzip",), limit_bytes=size) == body
    assert await decompress_in_thread(body, (), limit_bytes=size) == body
    assert await decompress_in_thread(body, ("gzip",), limit_bytes=size) is None
    with pytest.raises(TooLarge):
        await decompress_in_thread(compressed, ("gzip",), limit_bytes=size - 1)


@pytest.mark.parametrize(
    ("compressed", "encoding"),
    [
        (BODY, "br"),
        (BODY, "zstd"),
        (BODY, "gzip"),
        (BODY, "deflate"),
        (compress_gzip(BODY)[:-4], "gzip"),
        (compress_gzip(BODY) + b"more", "gzip"),
        (zlib.compress(BODY)[:-1], "deflate"),
        (b"", "deflate"),
        (BROTLI[:-1], "br"),
        (BROTLI + b"more", "br"),
        (b"", "br"),
        (ZSTD[:-1], "zstd"),
        (ZSTD[:-1] + b"x", "zstd"),
        (ZSTD + b"more", "zstd"),
    ],
)
def test_unknown_encodings_and_corrupt_bodies_are_unreadable(compressed: bytes, encoding: str) -> None:
    assert decompress(compressed, (encoding,), limit_bytes=10_000) is None


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: bytes(brotli.compress(data, quality=1)),
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("encoding", COMPRESSORS)
def test_decompression_stops_at_the_body_limit(encoding: str) -> None:
    compress = COMPRESSORS[encoding]
    assert decompress(compress(bytes(1_000_000)), (encoding,), limit_bytes=1_000_000) == bytes(1_000_000)
    with pytest.raises(TooLarge):
        decompress(compress(bytes(1_000_001)), (encoding,), limit_bytes=1_000_000)
    with pytest.raises(TooLarge):
        decompress(gzip.compress(BODY) * 2, ("gzip",), limit_bytes=2 * len(BODY) - 1)


@pytest.mark.parametrize("encoding", COMPRESSORS)
def test_a_decompression_bomb_takes_little_more_memory_than_the_body_limit(encoding: str) -> None:
    bomb = COMPRESSORS[encoding](bytes(40_000_000))
    grown: list[int] = []
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decompress(bomb, (encoding,), limit_bytes=1_000_000, grow=grown.append)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sum(grown) <= 1_000_000
    assert peak_bytes < 20_000_000


@given(data=st.binary(max_size=3_000), encoding=st.sampled_from(sorted(COMPRESSORS)), cut=st.integers(0, 3_100))
def test_a_body_is_decompressed_completely_or_not_at_all(data: bytes, encoding: str, cut: int) -> None:
    compressed = COMPRESSORS[encoding](data)

    assert decompress(compressed, (encoding,), limit_bytes=3_000) == data
    if 0 < cut < len(compressed):
        assert decompress(compressed[:cut], (encoding,), limit_bytes=3_000) is None


def test_a_decompressed_body_has_no_content_encoding() -> None:
    assert strip_content_encoding([(b"content-encoding", b"gzip"), (b"a", b"b")]) == [(b"a", b"b")]
