"""Generated responses: within their limits, and the same streamed or whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.sandbox.response import (
    DEFAULT_TEXT,
    ResponseSpec,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    build_example,
    generate_response,
    split_chunks,
)
from foveate.sandbox.script import ScriptedCall, ScriptStep

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = (("look", SCHEMA), ("listen", {"type": "object"}))


def count_words(text: str) -> int:
    return len(text.split())


def make_spec(**fields: Any) -> ResponseSpec:
    return ResponseSpec(model="m", is_streaming=False, **fields)


def test_without_a_script_the_response_identifies_the_sandbox() -> None:
    response = generate_response(make_spec(), None, count_words)

    assert response.parts == (TextPart(DEFAULT_TEXT),)
    assert (response.stop, response.output_tokens) == (StopReason.DONE, count_words(DEFAULT_TEXT))


@pytest.mark.parametrize(("forced_tool", "name"), [("", "look"), ("listen", "listen")])
def test_a_forced_tool_is_called_with_what_its_schema_requires(forced_tool: str, name: str) -> None:
    response = generate_response(make_spec(tools=TOOLS, forced_tool=forced_tool), None, count_words)

    (call,) = response.parts
    assert isinstance(call, ToolCallPart)
    assert call.name == name
    assert json.loads(call.arguments) == ({"path": "sandbox"} if name == "look" else {})
    assert response.stop is StopReason.TOOL_CALL


def test_tools_that_are_not_forced_are_not_called() -> None:
    assert generate_response(make_spec(tools=TOOLS), None, count_words).stop is StopReason.DONE


def test_a_step_may_have_thinking_text_and_tool_calls() -> None:
    step = ScriptStep(
        thinking="Hm.",
        text="I look.",
        tools=(ScriptedCall(name="look"), ScriptedCall(name="look", input={"path": "a"})),
    )
    response = generate_response(make_spec(tools=TOOLS), step, count_words)

    assert response.parts == (
        ThinkingPart("Hm."),
        TextPart("I look."),
        ToolCallPart("look", '{"path": "sandbox"}'),
        ToolCallPart("look", '{"path": "a"}'),
    )
    assert response.thinking_tokens == 1
    assert response.output_tokens == 1 + 2 + 2 + 2


def test_a_stop_sequence_ends_the_text_and_prevents_tool_calls() -> None:
    step = ScriptStep(text="one STOP two END", tools=(ScriptedCall(name="look"),))
    response = generate_response(make_spec(stop_sequences=("END", "STOP")), step, count_words)

    assert response.parts == (TextPart("one "),)
    assert (response.stop, response.stop_sequence) == (StopReason.SEQUENCE, "STOP")


def test_the_lower_of_two_limits_is_the_stop_reason() -> None:
    assert (
        generate_response(make_spec(limit_tokens=3, window_tokens_left=9), None, count_words).stop
        is StopReason.LIMIT
    )
    assert (
        generate_response(make_spec(limit_tokens=9, window_tokens_left=3), None, count_words).stop
        is StopReason.WINDOW
    )


def test_a_limit_of_zero_yields_an_empty_response() -> None:
    response = generate_response(make_spec(limit_tokens=0), None, count_words)

    assert (response.parts, response.output_tokens, response.stop) == ((), 0, StopReason.LIMIT)


@given(
    thinking=st.none() | st.text(max_size=40),
    text=st.text(max_size=80),
    calls=st.integers(0, 3),
    limit=st.integers(0, 30),
)
def test_no_response_exceeds_its_limit(thinking: str | None, text: str, calls: int, limit: int) -> None:
    step = ScriptStep(thinking=thinking, text=text, tools=(ScriptedCall(name="look"),) * calls)
    response = generate_response(make_spec(tools=TOOLS, limit_tokens=limit), step, count_words)

    counted_tokens = sum(
        count_words(part.name + part.arguments if isinstance(part, ToolCallPart) else part.text)
        for part in response.parts
    )
    assert counted_tokens <= response.output_tokens <= limit
    assert response.thinking_tokens <= response.output_tokens
    unlimited = generate_response(make_spec(tools=TOOLS), step, count_words)
    assert (response.parts == unlimited.parts) == (
        response.stop is not StopReason.LIMIT
    ) or unlimited.output_tokens > limit


@given(st.text())
def test_the_chunks_of_a_text_join_to_the_text(text: str) -> None:
    assert "".join(split_chunks(text)) == text
    assert all(split_chunks(text))


def test_a_cut_never_leaves_only_whitespace() -> None:
    response = generate_response(
        make_spec(limit_tokens=1), ScriptStep(text="     word"), lambda text: len(text) // 3
    )

    assert response.parts == ()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {}),
        ({"type": "string"}, "sandbox"),
        ({"type": "string", "minLength": 9}, "sandbox.."),
        ({"type": "string", "maxLength": 3}, "san"),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 5}, 5),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
        ({"type": "integer", "exclusiveMinimum": 7}, 8),
        ({"type": "integer", "maximum": -4}, -4),
        ({"type": ["null", "string"]}, None),
        ({"type": "array", "items": {"type": "boolean"}}, []),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [True, True]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"allOf": [{"type": "object"}, {"required": ["a"], "properties": {"a": {"const": 1}}}]}, {"a": 1}),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}, "b": {}}, "required": ["a"],
             "$defs": {"A": {"type": "number"}}},
            {"a": 1},
        ),
    ],
)  # fmt: skip
def test_an_example_value_conforms_to_its_schema(schema: dict[str, Any], value: object) -> None:
    assert build_example(schema) == value


def test_a_recursive_schema_terminates() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}

    assert json.dumps(build_example(schema)).count('"a"') < 20
