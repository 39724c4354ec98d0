"""Offsets of JSON parts, compared with a scanner that goes byte by byte."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveate.errors import MalformedRequest
from foveate.formats.json_text.offsets import (
    ByteSpan,
    find_items,
    find_members,
    find_members_and_lists,
    find_value_end,
    value_span,
)
from tests.support.oracles.json_tree import TreeNode, scan, spell_oddly

json_strings = st.text(st.sampled_from('ab"\\/{}[]:, \n\u00e9漢😀\ud83d\udfff'), max_size=6)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-20, 20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | json_strings,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(json_strings, children, max_size=4),
    max_leaves=12,
)


def check_spans(data: bytes, node: TreeNode) -> None:
    """Check that every object and list of the tree is found at the offsets of the oracle."""
    span = ByteSpan(node.start, node.end)
    assert find_value_end(data, node.start) == node.end
    if node.first_char == "{":
        members = find_members(data, span)
        assert members.values == {
            entry.key: ByteSpan(entry.current.start, entry.current.end) for entry in node.entries
        }
        known = {entry.key: data[entry.current.start : entry.current.end] for entry in node.entries}
        for values in ({}, known, dict.fromkeys(known, b"1"), dict.fromkeys(known, b"[]")):
            assert find_members_and_lists(data, span, {}, values) == (members, {})
        assert members.last_end == (node.entries[-1].current.end if node.entries else node.start + 1)
    elif node.first_char == "[":
        expected = tuple(ByteSpan(child.start, child.end) for child in node.items())
        assert find_items(data, span) == expected
        assert find_items(data, span, [item_span.read(data) for item_span in expected]) == expected
        assert find_items(data, span, [b"1", b'"a"', b"{}"]) == expected  # with wrong hints
    for child in node.items():
        check_spans(data, child)


@given(json_values, st.integers(0, 2**32))
def test_every_part_is_found_at_its_offset(value: Any, seed: int) -> None:
    data = b" \n" + spell_oddly(value, seed) + b"\t"
    assert json.loads(data) == json.loads(json.dumps(value))
    node = scan(data)

    assert value_span(data) == ByteSpan(node.start, node.end)
    check_spans(data, node)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":12,"a":1}',  # the first value begins with the last one
        '{"a":1,"a":12}',
        '{"a":"a","b":"a"}',  # keys that equal values
        '{"a\\u0062":1,"ab":2}',  # one name in two spellings
        '{"a":{"a":{"a":1}},"a":{"a":1}}',
        '[1E5,-0,1.0,1e-7,0,"\\\\",""]',
        '{"":{},"x":[]}',
        '[{"a":"\\ud83d"},{"\\ude00":"\\\\ud83d"}]',  # lone surrogates, and an escaped text that is not one
        '{"a": [ ] , "b" :{ } }',
    ],
)
def test_ambiguous_texts_are_parsed_correctly(text: str) -> None:
    check_spans(text.encode(), scan(text.encode()))


def test_members_are_found_behind_long_whitespace_and_long_names() -> None:
    long = 300_000
    data = b'{"a":1%b,%b"%b"%b:%b2}' % (b" " * long, b" " * long, b"b" * long, b" " * long, b" " * long)

    members = find_members(data, ByteSpan(0, len(data)))

    assert [span.read(data) for span in members.values.values()] == [b"1", b"2"]


def test_deep_nesting_is_supported() -> None:
    data = b'{"a":' * 20_000 + b"1" + b"}" * 20_000

    assert find_value_end(data, 0) == len(data)


@given(st.binary(max_size=12) | st.text(st.sampled_from('{}[]":,a1\\ '), max_size=12).map(str.encode))
@example(b'{"a":1')
@example(b'{"a"')
@example(b"[1")
@example(b'["')
@example(b'{"\\\x00"')
def test_invalid_json_is_rejected_with_a_clear_error(data: bytes) -> None:
    for find in (find_members, find_items):
        try:
            find(data, ByteSpan(0, len(data)))
        except MalformedRequest:
            continue
        assert data[:1] in (b"{", b"[")


def test_one_long_gap_between_items_takes_no_more_memory_than_the_body() -> None:
    """Regression: the gap was used as the separator of all items, and 400 KB took 1.3 GB."""
    data = b"[1," + b" " * 20_000 + b",".join([b"1"] * 10_000) + b"]"
    tracemalloc.start()
    try:
        items = find_items(data, value_span(data))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(items) == 10_001
    assert peak_bytes < 100 * len(data)
