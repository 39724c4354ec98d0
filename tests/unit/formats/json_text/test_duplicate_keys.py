"""Requests with duplicate keys are rejected, however the keys are escaped, and no other request is."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import DuplicateKey, MalformedRequest
from foveate.formats.json_text.duplicate_keys import check_large, check_unique_keys
from foveate.formats.json_text.large_json import SliceSizes
from foveate.formats.json_text.parse import parse_fields
from foveate.model import Format
from tests.support.oracles.json_tree import TreeNode, scan, spell_oddly

object_keys = st.sampled_from(("max_tokens", "Max_Tokens", "model", "", "a")) | st.text(
    st.sampled_from('aAſ"\\漢😀\ud83d\ude00\udfff'), max_size=3
)
json_values = st.recursive(
    st.none() | st.integers() | st.sampled_from(("", '"', "\\", '{"a":1,"a":2}', '":', "😀")),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(object_keys, children, max_size=3),
    max_leaves=12,
)
json_objects = st.dictionaries(object_keys, json_values, min_size=1, max_size=4)
seeds = st.integers(0, 2**32)


class DuplicateStr(str):
    """A string key that a dict can contain twice."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def check_keys(data: bytes) -> None:
    check_unique_keys(data, parse_fields(data))


def iterate_nodes(data: bytes) -> Iterator[TreeNode]:
    """Yield all objects and lists of a text, outermost first, found by the tests' own scanner."""
    pending = [scan(data)]
    for node in pending:
        yield node
        pending += [entry.current for entry in node.entries]


def has_duplicates(data: bytes) -> bool:
    for number, node in enumerate(iterate_nodes(data)):
        if node.first_char == "{":
            names = [re.sub("[\ud800-\udfff]", "\ufffd", entry.key) for entry in node.entries]
            names = names if number else [name.casefold() for name in names]
            if len(set(names)) < len(names):
                return True
    return False


def check_keys_in_slices(data: bytes, slice_bytes: int) -> None:
    parse_fields(data)
    check_large(data, SliceSizes(slice_bytes=slice_bytes, large_bytes=2 * slice_bytes + 1))


@given(body=json_objects, seed=seeds)
def test_a_request_is_rejected_if_and_only_if_an_object_has_a_duplicate_key(
    body: dict[str, Any], seed: int
) -> None:
    data = spell_oddly(body, seed)
    if has_duplicates(data):
        with pytest.raises(DuplicateKey):
            check_keys(data)
    else:
        check_keys(data)


def iterate_objects(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[dict[str, Any], tuple[str | int, ...]]]:
    """Yield every object with members in `value`, and the path to it."""
    if isinstance(value, dict) and value:
        yield value, path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        yield from iterate_objects(child, (*path, step))


@given(body=json_objects, seed=seeds, slice_bytes=st.integers(13, 60))
def test_a_large_request_is_checked_the_same_in_slices(
    body: dict[str, Any], seed: int, slice_bytes: int
) -> None:
    data = spell_oddly({"body": body}, seed)  # only the keys at the top are compared without case
    if has_duplicates(spell_oddly({"a": {"body": body}}, seed)):
        with pytest.raises(DuplicateKey):
            check_keys_in_slices(data, slice_bytes)
    else:
        check_keys_in_slices(data, slice_bytes)


@given(
    body=json_objects,
    seed=seeds,
    value=json_values,
    slice_bytes=st.none() | st.integers(13, 60),
    data=st.data(),
)
def test_an_inserted_duplicate_key_is_rejected_and_named(
    body: dict[str, Any], seed: int, value: Any, slice_bytes: int | None, data: st.DataObject
) -> None:
    if has_duplicates(spell_oddly(body, 0)):
        return
    duplicated = deepcopy(body)
    target, path = data.draw(st.sampled_from(list(iterate_objects(duplicated))))
    key = data.draw(st.sampled_from(list(target)))
    members = list(target.items())
    members.insert(data.draw(st.integers(0, len(members))), (DuplicateStr(key), value))
    target.clear()
    target.update(members)

    check = check_keys if slice_bytes is None else partial(check_keys_in_slices, slice_bytes=slice_bytes)
    with pytest.raises(DuplicateKey) as raised:
        check(spell_oddly(duplicated, seed))

    decoded_path = [json.loads(json.dumps(step)) if isinstance(step, str) else step for step in (*path, key)]
    expected = tuple(
        re.sub("[\ud800-\udfff]", "\ufffd", step) if isinstance(step, str) else step for step in decoded_path
    )
    assert raised.value.path == expected
    assert str(expected[-1]) in str(raised.value)


@pytest.mark.parametrize(
    ("body", "key_path"),
    [
        (rb'{"max_tokens":64000,"max_tokens":1}', "max_tokens"),
        (rb'{"max_tokens":64000,"max\u005ftokens":1}', "max_tokens"),
        (rb'{"max\u005Ftokens":64000, "\u006dax_tokens" : 1}', "max_tokens"),
        (b'\xef\xbb\xbf{"model":"a","model":"b"}', "model"),
        (rb'{"thinking":{"budget_tokens":1,"budget_tokens":9}}', "thinking.budget_tokens"),
        (rb'{"messages":[{},{"content":[{"type":"a","type":"b"}]}]}', "messages[1].content[0].type"),
        (rb'{"input":[{"arguments":{"a":[[],[0,{"b":1,"b":2}]]}}]}', "input[0].arguments.a[1][1].b"),
        (rb'{"":1,"":2}', ""),
        (rb'{"a\ud800":1,"a\udfff":2}', "a\ufffd"),
        (b'{"a":"\xff","b":1,"b":2}', "b"),
        (b'{"a":1,"a":' + b"9" * 5000 + b"}", "a"),
        (b'{"%s":1,"%s":2}' % (b"k" * 9999, b"k" * 9999), "k" * 64 + "…"),
        (rb'{"b":{"c":1,"c":2},"a":1,"a":2}', "a"),
    ],
)  # fmt: skip
def test_the_error_says_where_the_duplicate_key_is(body: bytes, key_path: str) -> None:
    with pytest.raises(DuplicateKey) as raised:
        check_keys(body)

    assert str(raised.value).startswith(f"the key `{key_path}` occurs twice: ")


def test_a_duplicate_key_behind_many_lists_is_rejected_and_named() -> None:
    """Regression: 290,000 lists in 580 KB delayed other requests by more than 50 ms."""
    lists = b"[[]]," * 60_000
    check_unique_keys(b'{"a":[%b1],"b":{"c":1}}' % lists, ("a", "b"))

    with pytest.raises(DuplicateKey) as caught:
        check_unique_keys(b'{"a":[%b1],"b":{"c":1,"c":2}}' % lists, ("a", "b"))
    assert caught.value.path == ("b", "c")


@pytest.mark.parametrize("other", ["Max_Tokens", "MAX_TOKENS", "max_to\u212aens", "max_token\u017f"])
def test_top_level_keys_that_differ_only_in_case_are_rejected(other: str) -> None:
    """Go's encoding/json ignores case, and treats the Kelvin sign as a k and the long s as an s."""
    with pytest.raises(DuplicateKey) as raised:
        check_keys(json.dumps({"max_tokens": 1, "model": "m", other: 64000}).encode())

    assert str(raised.value).startswith(f"the keys `max_tokens` and `{other}` differ only in case: ")


def test_deeper_keys_may_differ_in_case() -> None:
    check_keys(b'{"tools":[{"input_schema":{"properties":{"a":{},"A":{}}}}]}')


@pytest.mark.parametrize("invalid_json", [rb'"\q"', b"01", b"[1 2]", b"", b"1}{"])
def test_a_duplicate_key_cannot_hide_in_invalid_json(invalid_json: bytes) -> None:
    with pytest.raises(MalformedRequest):
        check_unique_keys(
            b'{"max_tokens":9,"metadata":%s,"max_tokens":1}' % invalid_json, ["max_tokens", "metadata"]
        )


def test_a_request_that_is_nested_too_deeply_is_malformed() -> None:
    with pytest.raises(MalformedRequest, match="nested too deeply"):
        check_unique_keys(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ["a"])


@pytest.mark.parametrize("api_format", [None, *Format])
@pytest.mark.parametrize("name", ["messages", "input", "contents"])
def test_every_format_rejects_duplicate_keys(api_format: Format | None, name: str) -> None:
    with pytest.raises(DuplicateKey, match=r"`m` occurs twice"):
        formats.parse_request(b'{"%s":[],"m":1,"m":2}' % name.encode(), api_format)
