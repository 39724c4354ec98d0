"""Streams, whole and in pieces."""

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import strategies as st

cuts = st.lists(st.integers(0, 10_000), max_size=20)


def cut(stream: bytes, positions: list[int]) -> Iterator[bytes]:
    """Cut `stream` into pieces at these positions."""
    offsets = sorted({0, len(stream), *(position % (len(stream) + 1) for position in positions)})
    for start, end in pairwise(offsets):
        yield stream[start:end]


def frame(name: bytes, payload: bytes, kind: bytes = b":event-type") -> bytes:
    """Build a Bedrock stream frame without valid checksums."""
    headers = _header(kind, name) + _header(b":content-type", b"application/json")
    size = 12 + len(headers) + len(payload) + 4
    return size.to_bytes(4) + len(headers).to_bytes(4) + b"sums" + headers + payload + b"sums"


def _header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + b"\x07" + len(value).to_bytes(2) + value
