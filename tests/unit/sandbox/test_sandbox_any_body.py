"""The sandbox answers or rejects any body, and never fails itself."""

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.model import Format
from foveate.sandbox import validate_request
from foveate.sandbox.http import SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from tests.support.scenarios.valid_requests import (
    BREAKPOINT,
    Json,
    assistant,
    call,
    claude,
    result,
    text,
    tool,
    user,
)
from tests.support.servers.sandbox import ManualClock

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=5,
)

FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
BODIES: dict[str, Json] = {
    "/v1/messages": claude(
        user("Hello", {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}),
        assistant(call()),
        user(result(content=[text("found")]), text("And?", BREAKPOINT)),
        system=[text("Be brief.")],
        tools=[tool()],
        tool_choice={"type": "auto"},
        thinking={"type": "disabled"},
        stop_sequences=["END"],
        stream=False,
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    ),
    "/v1/chat/completions": {
        "model": "gpt-5.6-sol",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "a", "content": "found"},
        ],
        "tools": [FUNCTION],
        "tool_choice": "auto",
        "n": 1,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 50,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        "prompt_cache_options": {"mode": "explicit"},
    },
    "/v1/responses": {
        "model": "gpt-5.6-sol",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "reasoning", "id": "rs", "summary": []},
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "found"},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
        "max_output_tokens": 50,
        "stream": False,
    },
}
HEADERS = {"x-api-key": "k", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the path of every value in JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(nested_path for name, child in items for nested_path in list_paths(child, (*path, name)))]


def replace_value(body: Json, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    body = copy.deepcopy(body)
    container: Any = body
    for name in path[:-1]:
        container = container[name]
    container[path[-1]] = value
    return body


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(clock=ManualClock(), seed=b"x")


@pytest.mark.parametrize("route", BODIES)
def test_the_unmodified_bodies_are_accepted(sandbox: Sandbox, route: str) -> None:
    reply = sandbox.reply(
        SandboxRequest(method="POST", path=route, headers=HEADERS, body=json.dumps(BODIES[route]).encode())
    )

    assert reply.status == 200, reply.chunks


@pytest.mark.parametrize("route", BODIES)
@given(data=st.data())
def test_a_body_with_any_value_anywhere_is_answered_or_rejected(
    sandbox: Sandbox, route: str, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(list_paths(BODIES[route])))
    body = msgspec.json.encode(replace_value(BODIES[route], path, data.draw(json_values)))
    reply = sandbox.reply(SandboxRequest(method="POST", path=route, headers=HEADERS, body=body))

    assert reply.status == 200 or 400 <= reply.status < 500
    assert reply.chunks


@pytest.mark.parametrize("route", BODIES)
def test_a_deeply_nested_body_is_answered_or_rejected(sandbox: Sandbox, route: str) -> None:
    for depth in (300, *range(940, 1000), 100_000):
        nested_arrays = "[" * depth + "]" * depth
        body = json.dumps(BODIES[route]).replace(
            '{"type": "object"}', f'{{"type": "object", "x": {nested_arrays}}}'
        )
        reply = sandbox.reply(SandboxRequest(method="POST", path=route, headers=HEADERS, body=body.encode()))

        assert reply.status in (200, 400)


def test_an_unsupported_format_raises_an_error() -> None:
    body: Json = {"messages": []}

    with pytest.raises(MalformedRequest, match="does not support bedrock"):
        validate_request(formats.parse_request(body, Format.BEDROCK))
