"""Generated responses: within their limits, and the same streamed or whole."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.sandbox.response import (
    DEFAULT_TEXT,
    ResponseSpec,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    generate_response,
    split_chunks,
)
from foveate.sandbox.schema_examples import build_example
from foveate.sandbox.script import ScriptedCall, ScriptStep
from tests.support.harness.example_limits import limit_examples

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = (("look", SCHEMA), ("listen", {"type": "object"}))


def words(text: str) -> int:
    return len(text.split())


def wish(**more: Any) -> ResponseSpec:
    return ResponseSpec(model="m", is_streaming=False, **more)


def test_without_a_script_the_response_identifies_the_sandbox() -> None:
    told = generate_response(wish(), None, words)

    assert told.parts == (TextPart(DEFAULT_TEXT),)
    assert (told.stop, told.output_tokens) == (StopReason.DONE, words(DEFAULT_TEXT))


@pytest.mark.parametrize(("forced_tool", "name"), [("", "look"), ("listen", "listen")])
def test_a_forced_tool_is_called_with_what_its_schema_requires(forced_tool: str, name: str) -> None:
    told = generate_response(wish(tools=TOOLS, forced_tool=forced_tool), None, words)

    (called,) = told.parts
    assert isinstance(called, ToolCallPart)
    assert called.name == name
    assert json.loads(called.arguments) == ({"path": "sandbox"} if name == "look" else {})
    assert told.stop is StopReason.TOOL_CALL


def test_tools_that_are_not_forced_are_not_called() -> None:
    assert generate_response(wish(tools=TOOLS), None, words).stop is StopReason.DONE


def test_a_step_may_have_thinking_text_and_tool_calls() -> None:
    step = ScriptStep(
        thinking="Hm.",
        text="I look.",
        tools=(ScriptedCall(name="look"), ScriptedCall(name="look", input={"path": "a"})),
    )
    told = generate_response(wish(tools=TOOLS), step, words)

    assert told.parts == (
        ThinkingPart("Hm."),
        TextPart("I look."),
        ToolCallPart("look", '{"path": "sandbox"}'),
        ToolCallPart("look", '{"path": "a"}'),
    )
    assert told.thinking_tokens == 1
    assert told.output_tokens == 1 + 2 + 2 + 2


def test_a_stop_sequence_ends_the_text_and_prevents_tool_calls() -> None:
    step = ScriptStep(text="one STOP two END", tools=(ScriptedCall(name="look"),))
    told = generate_response(wish(stop_sequences=("END", "STOP")), step, words)

    assert told.parts == (TextPart("one "),)
    assert (told.stop, told.stop_sequence) == (StopReason.SEQUENCE, "STOP")


def test_the_lower_of_two_limits_is_the_stop_reason() -> None:
    assert generate_response(wish(limit_tokens=3, window_tokens_left=9), None, words).stop is StopReason.LIMIT
    assert generate_response(wish(limit_tokens=9, window_tokens_left=3), None, words).stop is StopReason.WINDOW


def test_a_limit_of_zero_yields_an_empty_response() -> None:
    told = generate_response(wish(limit_tokens=0), None, words)

    assert (told.parts, told.output_tokens, told.stop) == ((), 0, StopReason.LIMIT)


@settings(max_examples=limit_examples(100))
@given(
    thinking=st.none() | st.text(max_size=40),
    text=st.text(max_size=80),
    calls=st.integers(0, 3),
    limit=st.integers(0, 30),
)
def test_no_response_exceeds_its_limit(thinking: str | None, text: str, calls: int, limit: int) -> None:
    step = ScriptStep(thinking=thinking, text=text, tools=(ScriptedCall(name="look"),) * calls)
    told = generate_response(wish(tools=TOOLS, limit_tokens=limit), step, words)

    api_format = sum(words(p.name + p.arguments if isinstance(p, ToolCallPart) else p.text) for p in told.parts)
    assert api_format <= told.output_tokens <= limit
    assert told.thinking_tokens <= told.output_tokens
    whole = generate_response(wish(tools=TOOLS), step, words)
    assert (told.parts == whole.parts) == (told.stop is not StopReason.LIMIT) or whole.output_tokens > limit


@given(st.text())
def test_the_chunks_of_a_text_join_to_the_text(text: str) -> None:
    assert "".join(split_chunks(text)) == text
    assert all(split_chunks(text))


def test_a_cut_never_leaves_only_whitespace() -> None:
    told = generate_response(wish(limit_tokens=1), ScriptStep(text="     word"), lambda text: len(text) // 3)

    assert told.parts == ()


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
