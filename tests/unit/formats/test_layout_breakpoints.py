"""Cache breakpoints are not part of a message's content."""

import json
from typing import Any

import pytest

from foveate import formats

USER_MESSAGE = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def test_breakpoints_are_removed() -> None:
    cache_control = {"type": "ephemeral"}
    tool_result = {
        "type": "tool_result",
        "content": [{"type": "text", "text": "a", "cache_control": cache_control}],
    }
    message = {
        "role": "user",
        "cache_control": cache_control,
        "content": [{**tool_result, "cache_control": cache_control}],
    }
    expected = {
        "role": "user",
        "content": [{"type": "tool_result", "content": [{"type": "text", "text": "a"}]}],
    }

    assert json.loads(formats.strip_breakpoints(json.dumps(message).encode())) == expected


def test_breakpoints_of_openai_are_removed_too() -> None:
    part = {"type": "text", "text": "a"}
    message = {"role": "user", "content": [{**part, "prompt_cache_breakpoint": {"mode": "explicit"}}]}

    assert json.loads(formats.strip_breakpoints(json.dumps(message).encode())) == {
        "role": "user",
        "content": [part],
    }


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"type": "tool_use", "input": {"cache_control": {"type": "x"}}}]},
        {"role": "user", "content": 'The field "cache_control" is a mark'},
        {"role": "user", "content": [{"type": "text", "text": '{"cache_control": 1}'}]},
    ],
)
def test_the_same_name_elsewhere_is_not_a_breakpoint(message: dict[str, Any]) -> None:
    assert json.loads(formats.strip_breakpoints(json.dumps(message).encode())) == message


def test_messages_without_breakpoints_keep_their_bytes() -> None:
    raw = b'{ "role":"user" , "content":"Hi"}'

    assert formats.strip_breakpoints(raw) is raw
