"""Limits on requests of any size and spelling."""

import json
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import RequestLimitExceeded
from foveate.formats.request_limits import RequestLimits, nesting_depth
from foveate.model import Format
from tests.support.oracles.json_tree import spell_oddly

LIMITS = RequestLimits(max_messages=5, max_tools=4, max_depth=8)
json_values = st.recursive(
    st.none() | st.integers() | st.sampled_from(("", '"[{', "\\", '\\"[', "]}", "😀")),
    lambda children: (
        st.lists(children, max_size=2) | st.dictionaries(st.sampled_from("ab"), children, max_size=2)
    ),
    max_leaves=20,
)


def measure_depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(measure_depth, children), default=0)


@given(value=json_values, seed=st.integers(0, 2**32))
def test_the_nesting_depth_is_that_of_lists_and_objects(value: Any, seed: int) -> None:
    assert nesting_depth(spell_oddly(value, seed)) == measure_depth(value)


@cache
def last_field(filler: str) -> bytes:
    return f',"filler":{json.dumps(filler)}}}'.encode()


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["", "x" * 1_100_000, '\\"[{' * 200_000])
@given(messages=st.integers(1, 7), tools=st.integers(0, 6), nested=json_values, seed=st.integers(0, 2**32))
def test_a_request_is_rejected_if_and_only_if_it_exceeds_a_limit(
    filler: str, messages: int, tools: int, nested: Any, seed: int
) -> None:
    body = {
        "metadata": {"deep": nested},
        "messages": [{"role": "user", "content": f"Hi {number}"} for number in range(messages)],
        "tools": [{"name": f"t{number}", "input_schema": {"type": "object"}} for number in range(tools)],
        "model": "claude-opus-4-5",
    }
    # The filler makes the body large, and is encoded only once.
    data = spell_oddly(body, seed)[:-1] + last_field(filler)
    is_over_limit = messages > 5 or tools > 4 or measure_depth(body) > 8
    with pytest.raises(RequestLimitExceeded) if is_over_limit else nullcontext():
        formats.parse_request(data, Format.ANTHROPIC, limits=LIMITS)


def test_a_request_that_grows_beyond_a_limit_is_rejected() -> None:
    """Messages in the cache are not scanned again, but still count."""
    messages = [{"role": "user", "content": f"{number} " + "word " * 4_000} for number in range(6)]

    def body(number: int, **fields: Any) -> bytes:
        return json.dumps({"model": "m", "max_tokens": 1, "messages": messages[:number], **fields}).encode()

    assert len(formats.parse_request(body(5), Format.ANTHROPIC, limits=LIMITS).messages) == 5
    with pytest.raises(RequestLimitExceeded, match="6 messages; the limit is 5"):
        formats.parse_request(body(6), Format.ANTHROPIC, limits=LIMITS)
    with pytest.raises(RequestLimitExceeded, match="levels of nesting"):
        formats.parse_request(body(5, metadata=[[[[[[[[]]]]]]]]), Format.ANTHROPIC, limits=LIMITS)


@pytest.mark.parametrize("content", [[[[[[[[[]]]]]]]], [1] * 400_000, [1] * 900_000])
def test_a_rejected_request_is_rejected_again(content: list[Any]) -> None:
    """Regression: the request was cached, and accepted the second time."""
    first = {"role": "user", "content": f"{len(content)} " + "word " * 4_000}

    def body(*messages: object) -> bytes:
        return json.dumps({"model": "m", "max_tokens": 1, "messages": messages}, separators=(",", ":")).encode()

    formats.parse_request(body(first), Format.ANTHROPIC, limits=LIMITS)
    for _ in range(2):
        with pytest.raises(RequestLimitExceeded):
            formats.parse_request(
                body(first, {"role": "user", "content": content}), Format.ANTHROPIC, limits=LIMITS
            )
