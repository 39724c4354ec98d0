"""JSON parsed in pieces equals what msgspec parses at once, for any size of pieces."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveate.formats.json_text import large_json
from foveate.formats.json_text.large_json import SliceSizes
from foveate.formats.json_text.surrogates import repair_surrogates

TEXTS = st.text(max_size=30) | st.text(st.sampled_from('\\"{}[],:\n é漢😀u'), max_size=200)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=8),
    max_leaves=30,
)
SIZES = st.integers(13, 60).map(lambda size: SliceSizes(slice_bytes=size, large_bytes=2 * size + 1))
SPACING = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")])
# Half an emoji is all that is wrong with the last one.
BROKEN = [
    b"[1,]",
    b"[,1]",
    b"[[],,[]]",
    b"[[] []]",
    b'{"a":{},}',
    b'{"a" {}}',
    b"[1}",
    b"[[1]",
    b"[]]",
    b"[] 1",
]
ODD = [
    b"[]",
    b" {} ",
    b"[[],[]]",
    b'{"a":1,"a":[2],"b":{},"b":3}',
    b'"a"',
    b" 1 ",
    b'["\\ud83d"]',
    b'["\\ud83d\\ude00"]',
]


def written(value: Any, spacing: tuple[str, str], *, is_ascii: bool) -> bytes:
    return json.dumps(value, separators=spacing, ensure_ascii=is_ascii).encode()


def as_msgspec(decoder: "msgspec.json.Decoder[Any]", data: bytes) -> Any:
    """The value that msgspec decodes, or the class of its error."""
    try:
        return decoder.decode(repair_surrogates(data))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.MsgspecError


def in_pieces(read: Any, data: bytes, sizes: SliceSizes) -> Any:
    try:
        return read(data, sizes)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.MsgspecError


@given(VALUES, SPACING, st.booleans(), SIZES)
def test_a_text_says_the_same_in_pieces(
    value: Any, spacing: tuple[str, str], is_ascii: bool, sizes: SliceSizes
) -> None:
    data = written(value, spacing, is_ascii=is_ascii)

    assert large_json.parse_json(data, sizes) == msgspec.json.decode(data)


@pytest.mark.slow
@given(st.lists(VALUES, max_size=9), SPACING, st.booleans(), SIZES)
def test_items_have_the_same_bytes(
    value: list[Any], spacing: tuple[str, str], is_ascii: bool, sizes: SliceSizes
) -> None:
    data = written(value, spacing, is_ascii=is_ascii)

    expected = [bytes(raw) for raw in msgspec.json.decode(data, type=list[msgspec.Raw])]
    assert large_json.parse_items(data, sizes) == expected


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, max_size=9), SPACING, st.booleans(), SIZES)
def test_fields_have_the_same_names_and_bytes(
    value: dict[str, Any], spacing: tuple[str, str], is_ascii: bool, sizes: SliceSizes
) -> None:
    data = written(value, spacing, is_ascii=is_ascii)

    found = {name: bytes(raw) for name, raw in large_json.parse_fields(data, sizes).items()}
    expected = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    assert list(found.items()) == [(name, bytes(raw)) for name, raw in expected.items()]


@given(VALUES, SPACING, st.booleans(), SIZES, st.data())
def test_a_broken_text_is_broken_in_pieces_too(
    value: Any, spacing: tuple[str, str], is_ascii: bool, sizes: SliceSizes, draw: st.DataObject
) -> None:
    data = written(value, spacing, is_ascii=is_ascii)
    at = draw.draw(st.integers(0, len(data)))
    inserted = draw.draw(st.sampled_from([b"", b",", b"]", b"}", b"[", b"{", b'"', b"\\", b" ", b"x", b"\xff"]))
    data = data[:at] + inserted + data[at + draw.draw(st.integers(0, 2)) :]

    assert in_pieces(large_json.parse_json, data, sizes) == as_msgspec(msgspec.json.Decoder(), data)


@pytest.mark.parametrize("data", [*BROKEN, *ODD])
@pytest.mark.parametrize("size", range(13, 20))
def test_odd_texts_are_read_as_msgspec_reads_them(data: bytes, size: int) -> None:
    sizes = SliceSizes(slice_bytes=size, large_bytes=2 * size + 1)

    assert in_pieces(large_json.parse_json, data, sizes) == as_msgspec(msgspec.json.Decoder(), data)


@given(VALUES, st.sampled_from([None, "sorted"]), SIZES)
@example({"é": 1, "z": 2, "漢": "x" * 20, "😀": 3, "\uffee": 4}, "sorted", SliceSizes(6, 13))
def test_a_value_is_written_the_same_in_pieces(value: Any, order: Any, sizes: SliceSizes) -> None:
    assert large_json.to_json(value, order=order, sizes=sizes) == msgspec.json.encode(value, order=order)
