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
values = st.recursive(
    st.none() | st.integers() | st.sampled_from(("", '"[{', "\\", '\\"[', "]}", "😀")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(value=values, seed=st.integers(0, 2**32))
def test_the_depth_of_a_text_is_that_of_its_lists_and_objects(value: Any, seed: int) -> None:
    assert nesting_depth(spell_oddly(value, seed)) == depth_of(value)


@cache
def last_field(filler: str) -> bytes:
    return f',"filler":{json.dumps(filler)}}}'.encode()


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["", "x" * 1_100_000, '\\"[{' * 200_000])
@given(messages=st.integers(1, 7), tools=st.integers(0, 6), deep=values, seed=st.integers(0, 2**32))
def test_a_request_is_refused_if_and_only_if_it_is_beyond_a_limit(
    filler: str, messages: int, tools: int, deep: Any, seed: int
) -> None:
    said = {
        "metadata": {"deep": deep},
        "messages": [{"role": "user", "content": f"Hi {at}"} for at in range(messages)],
        "tools": [{"name": f"t{at}", "input_schema": {"type": "object"}} for at in range(tools)],
        "model": "claude-opus-4-5",
    }
    # The filler makes it large, and is not spelled anew each time.
    data = spell_oddly(said, seed)[:-1] + last_field(filler)
    is_beyond = messages > 5 or tools > 4 or depth_of(said) > 8
    with pytest.raises(RequestLimitExceeded) if is_beyond else nullcontext():
        formats.parse_request(data, Format.ANTHROPIC, limits=LIMITS)


def test_a_request_that_grew_beyond_a_limit_is_refused() -> None:
    """Known messages are not scanned again, but still count."""
    messages = [{"role": "user", "content": f"{at} " + "word " * 4_000} for at in range(6)]

    def body(number: int, **more: Any) -> bytes:
        return json.dumps({"model": "m", "max_tokens": 1, "messages": messages[:number], **more}).encode()

    assert len(formats.parse_request(body(5), Format.ANTHROPIC, limits=LIMITS).messages) == 5
    with pytest.raises(RequestLimitExceeded, match="6 messages, and at most 5"):
        formats.parse_request(body(6), Format.ANTHROPIC, limits=LIMITS)
    with pytest.raises(RequestLimitExceeded, match="levels of nesting"):
        formats.parse_request(body(5, metadata=[[[[[[[[]]]]]]]]), Format.ANTHROPIC, limits=LIMITS)


@pytest.mark.parametrize("added", [[[[[[[[[]]]]]]]], [1] * 400_000, [1] * 900_000])
def test_a_request_that_was_refused_is_refused_again(added: list[Any]) -> None:
    """Regression: it was cached, and accepted the second time."""
    first = {"role": "user", "content": f"{len(added)} " + "word " * 4_000}

    def body(*messages: object) -> bytes:
        return json.dumps({"model": "m", "max_tokens": 1, "messages": messages}, separators=(",", ":")).encode()

    formats.parse_request(body(first), Format.ANTHROPIC, limits=LIMITS)
    for _ in range(2):
        with pytest.raises(RequestLimitExceeded):
            formats.parse_request(
                body(first, {"role": "user", "content": added}), Format.ANTHROPIC, limits=LIMITS
            )
