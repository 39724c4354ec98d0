"""Bodies that come packed: each is unpacked, or known as one that cannot be read."""

import gzip
import zlib

import pytest

from foveate.gateway.asks import TooLarge
from foveate.gateway.encodings import encodings_of, unpacked, without_encodings

BODY = b'{"model": "gpt-4.1"}' * 50
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
DEFLATED = RAW.compress(BODY) + RAW.flush()


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (BODY, []),
        (BODY, [b"identity"]),
        (gzip.compress(BODY), [b"gzip"]),
        (gzip.compress(BODY), [b"identity", b"GZIP "]),
        (gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]), [b"x-gzip"]),
        (zlib.compress(BODY), [b"deflate"]),
        (DEFLATED, [b"deflate"]),
        (gzip.compress(zlib.compress(BODY)), [b"deflate, gzip"]),
        (gzip.compress(zlib.compress(BODY)), [b"deflate", b"gzip"]),
    ],
)
def test_a_body_is_unpacked_as_its_headers_say(packed: bytes, said: list[bytes]) -> None:
    headers = [(b"content-encoding", value) for value in said]

    assert unpacked(packed, encodings_of(headers), limit_bytes=len(BODY)) == BODY


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (BODY, "br"),
        (BODY, "zstd"),
        (BODY, "gzip"),
        (BODY, "deflate"),
        (gzip.compress(BODY)[:-4], "gzip"),
        (gzip.compress(BODY) + b"more", "gzip"),
        (zlib.compress(BODY)[:-1], "deflate"),
        (b"", "deflate"),
    ],
)
def test_what_is_packed_otherwise_or_broken_cannot_be_read(packed: bytes, encoding: str) -> None:
    assert unpacked(packed, (encoding,), limit_bytes=10_000) is None


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_no_more_is_unpacked_than_a_body_may_have(pack: object) -> None:
    assert callable(pack)
    encoding = "gzip" if pack is gzip.compress else "deflate"
    with pytest.raises(TooLarge):
        unpacked(pack(bytes(1_000_001)), (encoding,), limit_bytes=1_000_000)
    with pytest.raises(TooLarge):
        unpacked(gzip.compress(BODY) * 2, ("gzip",), limit_bytes=2 * len(BODY) - 1)


def test_an_unpacked_body_has_no_header_that_says_it_is_packed() -> None:
    assert without_encodings([(b"content-encoding", b"gzip"), (b"a", b"b")]) == [(b"a", b"b")]
