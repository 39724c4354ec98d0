"""Sizes of inline images and page counts of inline PDFs, from base64 data."""

import base64
import binascii
import re
import struct
from collections.abc import Iterator
from itertools import islice

# A JPEG's size follows its metadata, which is rarely longer than this.
_HEADER_BYTES = 256 * 1024
_PAGE = re.compile(rb"/Type\s{0,32}/Page(?![a-zA-Z])")
_PAGE_TREE = re.compile(rb"/Type\s{0,32}/Pages\b")
_PAGE_COUNT = re.compile(rb"/Count\s{1,32}(\d{1,6})(?!\d)")
# Maximum distance between type and count of a page tree, and maximum length of a match.
_TREE_BYTES, _MATCH_BYTES = 250, 64
_MAX_PAGES = 10_000
# A call into C holds the interpreter lock, so large data is processed in slices.
_SLICE_BYTES = 256 * 1024


def decode_base64(data: str, limit_bytes: int | None = None) -> bytes:
    """Decode base64 text up to `limit_bytes`; empty if it is not base64."""
    if limit_bytes is not None:
        data = data[: (limit_bytes + 2) // 3 * 4]
    step = _SLICE_BYTES // 3 * 4
    if len(data) <= step:
        return _decode_piece(data)
    pieces: list[bytes] = []
    rest = ""
    for start in range(0, len(data), step):
        text = rest + "".join(data[start : start + step].split())
        whole_chars = len(text) // 4 * 4
        pieces.append(_decode_piece(text[:whole_chars]))
        rest = text[whole_chars:]
    return b"".join((*pieces, _decode_piece(rest)))


def _decode_piece(data: str) -> bytes:
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4), validate=False)
    except (binascii.Error, ValueError):
        return b""


def image_size(data: str) -> tuple[int, int] | None:
    """Return width and height of a base64 PNG, JPEG, GIF or WebP; None if they cannot be determined."""
    head = decode_base64(data, 64)
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return struct.unpack(">II", head[16:24])
    if head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:
        return struct.unpack("<HH", head[6:10])
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_size(head)
    if head.startswith(b"\xff\xd8"):
        return _jpeg_size(decode_base64(data, _HEADER_BYTES))
    return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8 " and len(head) >= 30:
        width, height = struct.unpack("<HH", head[26:30])
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and len(head) >= 25:
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X" and len(head) >= 30:
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # padding between segments
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def count_pdf_pages(data: str) -> int | None:
    """Count the pages of a base64 PDF, up to 10,000; None if its page tree is compressed."""
    pdf = decode_base64(data)
    pages = sum(1 for _ in islice(_find_matches(_PAGE, pdf), _MAX_PAGES))
    if pages:
        return pages
    counts = islice(_find_matches(_PAGE_COUNT, pdf), _MAX_PAGES)
    totals = [int(count[1]) for count in counts if _is_in_page_tree(count, pdf)]
    return min(max(totals), _MAX_PAGES) if totals else None


def _find_matches(pattern: re.Pattern[bytes], pdf: bytes) -> Iterator[re.Match[bytes]]:
    """Yield every match, in slices. A match that starts in a slice may end after it."""
    for start in range(0, len(pdf), _SLICE_BYTES):
        end = start + _SLICE_BYTES
        for match in pattern.finditer(pdf, start, end + _MATCH_BYTES):
            if match.start() >= end:
                break
            yield match


def _is_in_page_tree(count: re.Match[bytes], pdf: bytes) -> bool:
    context = pdf[max(0, count.start() - _TREE_BYTES) : count.end() + _TREE_BYTES]
    return _PAGE_TREE.search(context) is not None
