"""JSON parsed in slices equals the result of msgspec, for any slice size."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveate.formats.json_text import large_json
from foveate.formats.json_text.large_json import SliceSizes
from foveate.formats.json_text.surrogates import repair_surrogates

json_strings = st.text(max_size=30) | st.text(st.sampled_from('\\"{}[],:\n é漢😀u'), max_size=200)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | json_strings,
    lambda children: st.lists(children, max_size=8) | st.dictionaries(json_strings, children, max_size=8),
    max_leaves=30,
)
slice_sizes = st.integers(13, 60).map(lambda size: SliceSizes(slice_bytes=size, large_bytes=2 * size + 1))
separator_pairs = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")])
# The only defect of the last one is a lone surrogate.
INVALID_TEXTS = [
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
UNUSUAL_TEXTS = [
    b"[]",
    b" {} ",
    b"[[],[]]",
    b'{"a":1,"a":[2],"b":{},"b":3}',
    b'"a"',
    b" 1 ",
    b'["\\ud83d"]',
    b'["\\ud83d\\ude00"]',
]


def dump_json(value: Any, spacing: tuple[str, str], *, is_ascii: bool) -> bytes:
    return json.dumps(value, separators=spacing, ensure_ascii=is_ascii).encode()


def decode_with_msgspec(decoder: "msgspec.json.Decoder[Any]", data: bytes) -> Any:
    """Return the value that msgspec decodes, or the class of its error."""
    try:
        return decoder.decode(repair_surrogates(data))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.MsgspecError


def parse_in_slices(parse: Any, data: bytes, sizes: SliceSizes) -> Any:
    try:
        return parse(data, sizes)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.MsgspecError


@given(json_values, separator_pairs, st.booleans(), slice_sizes)
def test_a_text_is_parsed_the_same_in_slices(
    value: Any, spacing: tuple[str, str], is_ascii: bool, sizes: SliceSizes
) -> None:
    data = dump_json(value, spacing, is_ascii=is_ascii)

    assert large_json.parse_json(data, sizes) == msgspec.json.decode(data)


@pytest.mark.slow
@given(st.lists(json_values, max_size=9), separator_pairs, st.booleans(), slice_sizes)
def test_items_have_the_same_bytes(
    value: list[Any], spacing: tuple[str, str], is_ascii: bool, sizes: SliceSizes
) -> None:
    data = dump_json(value, spacing, is_ascii=is_ascii)

    expected = [bytes(raw) for raw in msgspec.json.decode(data, type=list[msgspec.Raw])]
    assert large_json.parse_items(data, sizes) == expected


@pytest.mark.slow
@given(st.dictionaries(json_strings, json_values, max_size=9), separator_pairs, st.booleans(), slice_sizes)
def test_fields_have_the_same_names_and_bytes(
    value: dict[str, Any], spacing: tuple[str, str], is_ascii: bool, sizes: SliceSizes
) -> None:
    data = dump_json(value, spacing, is_ascii=is_ascii)

    fields = {name: bytes(raw) for name, raw in large_json.parse_fields(data, sizes).items()}
    expected = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    assert list(fields.items()) == [(name, bytes(raw)) for name, raw in expected.items()]


@given(json_values, separator_pairs, st.booleans(), slice_sizes, st.data())
def test_an_invalid_text_is_invalid_in_slices_too(
    value: Any, spacing: tuple[str, str], is_ascii: bool, sizes: SliceSizes, data_object: st.DataObject
) -> None:
    data = dump_json(value, spacing, is_ascii=is_ascii)
    offset = data_object.draw(st.integers(0, len(data)))
    inserted = data_object.draw(
        st.sampled_from([b"", b",", b"]", b"}", b"[", b"{", b'"', b"\\", b" ", b"x", b"\xff"])
    )
    data = data[:offset] + inserted + data[offset + data_object.draw(st.integers(0, 2)) :]

    assert parse_in_slices(large_json.parse_json, data, sizes) == decode_with_msgspec(
        msgspec.json.Decoder(), data
    )


@pytest.mark.parametrize("data", [*INVALID_TEXTS, *UNUSUAL_TEXTS])
@pytest.mark.parametrize("size", range(13, 20))
def test_unusual_texts_are_parsed_like_msgspec_does(data: bytes, size: int) -> None:
    sizes = SliceSizes(slice_bytes=size, large_bytes=2 * size + 1)

    assert parse_in_slices(large_json.parse_json, data, sizes) == decode_with_msgspec(
        msgspec.json.Decoder(), data
    )


@given(json_values, st.sampled_from([None, "sorted"]), slice_sizes)
@example({"é": 1, "z": 2, "漢": "x" * 20, "😀": 3, "\uffee": 4}, "sorted", SliceSizes(6, 13))
def test_a_value_is_encoded_the_same_in_slices(value: Any, order: Any, sizes: SliceSizes) -> None:
    assert large_json.to_json(value, order=order, sizes=sizes) == msgspec.json.encode(value, order=order)
