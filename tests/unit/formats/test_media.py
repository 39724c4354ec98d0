"""Sizes and page counts of inline media; invalid data is never guessed."""

import base64
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.formats import media
from foveate.model import Document, Format, Image, MediaSource
from tests.support.harness.example_limits import limit_examples


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\x00\x00\x00"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x00\x00\x00"


def jpeg(width: int, height: int) -> bytes:
    metadata = b"\xff\xe1" + struct.pack(">H", 5002) + b"x" * 5000
    return (
        b"\xff\xd8" + metadata + b"\xff\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01" * 9
    )


def webp_lossy(width: int, height: int) -> bytes:
    frame = b"\x10\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF\x00\x00\x00\x00WEBPVP8 " + struct.pack("<I", len(frame)) + frame


def webp_lossless(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14
    return b"RIFF\x00\x00\x00\x00WEBPVP8L\x05\x00\x00\x00\x2f" + struct.pack("<I", bits) + b"\x00" * 8


def webp_extended(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00" + size


IMAGE_BUILDERS = [png, gif, jpeg, webp_lossy, webp_lossless, webp_extended]


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("build_image", IMAGE_BUILDERS)
@given(width=st.integers(1, 16_383), height=st.integers(1, 16_383))
@settings(max_examples=limit_examples(20))
def test_the_size_of_an_image_is_read(
    build_image: Callable[[int, int], bytes], width: int, height: int
) -> None:
    assert media.image_size(encode_base64(build_image(width, height))) == (width, height)


@pytest.mark.parametrize("build_image", IMAGE_BUILDERS)
def test_a_truncated_image_has_no_size_or_its_own(build_image: Callable[[int, int], bytes]) -> None:
    image = build_image(800, 600)

    for end in range(len(image)):
        assert media.image_size(encode_base64(image[:end])) in (None, (800, 600))


@given(st.one_of(st.text(), st.binary().map(encode_base64)))
def test_other_data_has_no_size_and_is_no_error(data: str) -> None:
    media.image_size(data)
    media.count_pdf_pages(data)


def test_pages_are_counted_and_the_page_tree_is_not_a_page() -> None:
    pages = b"1 0 obj <</Type /Pages /Kids [2 0 R 3 0 R] /Count 2>> endobj\n"
    leaves = b"2 0 obj <</Type /Page>> endobj\n3 0 obj <</Type/Page/Parent 1 0 R>> endobj\n"

    assert media.count_pdf_pages(encode_base64(b"%PDF-1.4\n" + pages + leaves)) == 2
    assert media.count_pdf_pages(encode_base64(b"%PDF-1.4\n" + pages)) == 2
    assert media.count_pdf_pages(encode_base64(b"%PDF-1.7\nall in a compressed stream")) is None


@pytest.mark.parametrize("digits", [7, 4_000, 5_000, 1_000_000])
def test_a_page_count_with_very_many_digits_is_ignored(digits: int) -> None:
    pdf = b"/Type /Pages /Count " + b"1" * digits

    assert media.count_pdf_pages(encode_base64(pdf)) is None
    assert media.count_pdf_pages(encode_base64(b"/Count " + b"1" * digits + b" /Type /Pages")) is None


def test_a_pdf_has_at_most_ten_thousand_pages() -> None:
    assert media.count_pdf_pages(encode_base64(b"<</Type /Pages /Count 999999>>")) == 10_000
    assert media.count_pdf_pages(encode_base64(b"<</Type /Page>>" * 10_001)) == 10_000


@pytest.mark.parametrize("split", range(24))
@pytest.mark.parametrize("tree", [b"/Type /Page\n", b"/Type /Pages /Count 17 ", b"/Count 17 /Type /Pages "])
def test_a_match_across_two_slices_is_found_once(tree: bytes, split: int) -> None:
    data = b"%" * (256 * 1024 - split) + tree + b"%" * 1000

    assert media.count_pdf_pages(encode_base64(data)) == (1 if b"Pages" not in tree else 17)


def test_no_pattern_is_applied_to_more_than_a_slice_at_once() -> None:
    searched_bytes: list[int] = []

    class RecordingPattern:
        def finditer(self, data: bytes, start: int, end: int) -> list[re.Match[bytes]]:
            searched_bytes.append(end - start)
            return []

    pattern: Any = RecordingPattern()
    list(media._find_matches(pattern, b" " * 10_000_000))

    assert max(searched_bytes) < 300_000


@pytest.mark.parametrize("line_chars", [76, 64, 1000])
def test_long_base64_with_line_breaks_is_decoded_completely(line_chars: int) -> None:
    data = bytes(range(256)) * 4096
    encoded = encode_base64(data)
    with_line_breaks = "\r\n".join(
        encoded[start : start + line_chars] for start in range(0, len(encoded), line_chars)
    )

    assert media.decode_base64(encoded) == data
    assert media.decode_base64(with_line_breaks) == data


@pytest.mark.parametrize(
    ("api_format", "raw"),
    [
        (
            Format.ANTHROPIC,
            '{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}}]}',
        ),
        (
            Format.CHAT,
            '{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}',
        ),
        (Format.RESPONSES, '{"content":[{"type":"input_image","image_url":"data:image/png;base64,%s"}]}'),
        (Format.GEMINI, '{"parts":[{"inlineData":{"mimeType":"image/png","data":"%s"}}]}'),
        (Format.BEDROCK, '{"content":[{"image":{"format":"png","source":{"bytes":"%s"}}}]}'),
    ],
)
def test_the_size_of_an_inline_image_is_read_in_every_format(api_format: Format, raw: str) -> None:
    message = formats.parse_message(api_format, (raw % encode_base64(png(640, 480))).encode())

    assert message.parts == (Image(source=MediaSource.INLINE, width=640, height=480),)


@pytest.mark.parametrize(
    ("api_format", "raw"),
    [
        (Format.ANTHROPIC, '{"content":[{"type":"document","source":{"type":"base64","data":"%s"}}]}'),
        (
            Format.CHAT,
            '{"content":[{"type":"file","file":{"file_data":"data:application/pdf;base64,%s"}}]}',
        ),
        (Format.GEMINI, '{"parts":[{"inlineData":{"mimeType":"application/pdf","data":"%s"}}]}'),
        (Format.BEDROCK, '{"content":[{"document":{"format":"pdf","source":{"bytes":"%s"}}}]}'),
    ],
)
def test_the_pages_of_an_inline_document_are_read_in_every_format(api_format: Format, raw: str) -> None:
    data = encode_base64(b"%PDF-1.4\n<</Type /Page>> <</Type /Page>> <</Type /Page>>")
    (document,) = formats.parse_message(api_format, (raw % data).encode()).parts

    assert isinstance(document, Document)
    assert (document.source, document.media_type, document.pages) == (MediaSource.INLINE, "application/pdf", 3)
