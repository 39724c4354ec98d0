"""JSON texts inside messages are counted completely, even with duplicate keys."""

import json

import pytest

from foveate.tokens.request_bodies import count_body

LONG = "one more word " * 500
DUPLICATE_KEYS = json.dumps({"a": LONG})[:-1] + ', "\\u0061": 1}'
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": DUPLICATE_KEYS}}
MODELS = [
    "gpt-4o",
    "gpt-5",
    "claude-sonnet-4-5",
    "gemini-2.5-flash",
    "deepseek-v3.2",
    "qwen3-32b",
    "nobody-knows-it",
]


def tokens(*messages: object, model: str) -> int:
    return count_body({"model": model, "messages": messages}, model).total.tokens


@pytest.mark.parametrize("model", MODELS)
def test_tool_call_arguments_with_a_duplicate_key_are_counted_completely(model: str) -> None:
    """A client could send any number of tokens under the first of two keys, past every cap."""
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}

    assert tokens(call, model=model) > 0.9 * tokens({"role": "user", "content": LONG}, model=model)


@pytest.mark.parametrize("model", MODELS)
def test_a_tool_result_with_a_duplicate_key_is_counted_completely(model: str) -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": DUPLICATE_KEYS}

    assert tokens(result, model=model) > 0.9 * tokens({"role": "user", "content": LONG}, model=model)
