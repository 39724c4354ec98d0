"""Every family can count any schema, in time proportional to its size."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import parse_fields, to_bytes
from foveate.model import Format, Tool
from foveate.tokens.rendering.chat_templates import ChatTemplateRules, find_template
from foveate.tokens.rendering.gemini import build_gemini_rules
from foveate.tokens.rendering.json_schema import write_function_type
from foveate.tokens.rendering.openai import build_openai_rules

FAMILIES = (
    "gpt-4o",
    "gpt-5",
    "gpt-oss-20b",
    "claude-sonnet-4-5",
    "gemini-2.0-flash",
    "gemini-2.5-flash",
    "gemini-3-pro",
    "qwen3",
    "llama-3.1-8b",
    "deepseek-chat",
    "mistral-large",
    "glm-4.6",
    "unknown",
)
HI = {"role": "user", "content": "Hi"}


def tool(parameters: Any) -> Tool:
    raw = json.dumps(parameters).encode()
    return Tool(kind="function", name="f", description="", parameters=raw, raw=b"{}")


def count_rendered_chars(model: str, parameters: Any) -> int:
    """Length of a tool's rendering in one family."""
    rules = (
        build_gemini_rules(model, "")
        if "gemini" in model
        else build_openai_rules(model)
        if model in ("gpt-4o", "gpt-5")
        else ChatTemplateRules(find_template(model, ""))
    )
    return sum(map(len, rules.render_tool(tool(parameters), 0).texts))


def chat(parameters: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters}
    return {"n": 1, "messages": [HI], "tools": [{"type": "function", "function": function}]}


def refer_to_node(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"$ref": "#/$defs/node"} for name in names}}


def nest(
    inner: dict[str, Any], outer: Callable[[dict[str, Any]], dict[str, Any]], times: int
) -> dict[str, Any]:
    for _ in range(times):
        inner = outer(inner)
    return inner


def nest_list(inner: list[Any], times: int) -> list[Any]:
    for _ in range(times):
        inner = [inner]
    return inner


def double_references(definitions: int) -> dict[str, Any]:
    """A chain of definitions, each of which refers to the next one twice."""
    chain = {
        f"d{i}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/d{i + 1}"} for side in "lr"}}
        for i in range(definitions)
    }
    return {"type": "object", "properties": {"top": {"$ref": "#/$defs/d0"}}, "$defs": chain}


WIDE = {
    "type": "object",
    "properties": {f"p{i}": {"$ref": "#/$defs/node"} for i in range(260)},
    "$defs": {"node": {"type": "object", "properties": {f"q{i}": {"type": "string"} for i in range(250)}}},
}
HOSTILE_SCHEMAS: dict[str, dict[str, Any]] = {
    "refers to itself twice": {
        **refer_to_node("left", "right"),
        "$defs": {"node": refer_to_node("left", "right")},
    },
    "refers to itself in a choice": {
        **refer_to_node("value"),
        "$defs": {"node": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}, {"type": "string"}]}},
    },
    "refers to its own root twice": {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}},
    "a chain of doubles": double_references(40),
    "one definition used often": WIDE,
    "several types at every level": nest(
        {"type": "string"}, lambda inner: {"type": ["object", "x", "y", "z"], "properties": {"a": inner}}, 12
    ),
    "one type often at every level": nest(
        {"type": "string"}, lambda inner: {"type": ["object"] * 8, "properties": {"a": inner}}, 12
    ),
    "three names for a choice": nest(
        {"type": "string", "description": "word " * 500},
        lambda inner: {"anyOf": [inner], "any_of": [], "oneOf": []},
        12,
    ),
    "a long list deep down": {
        "type": "object",
        "properties": {"a": {"enum": nest_list([1] * 4000, 250)}},
    },
}


@pytest.mark.parametrize("model", [name for name in FAMILIES if not name.startswith("claude")])
@pytest.mark.parametrize("parameters", HOSTILE_SCHEMAS.values(), ids=HOSTILE_SCHEMAS)
def test_a_small_schema_never_renders_to_a_large_text(model: str, parameters: dict[str, Any]) -> None:
    size = len(json.dumps(parameters))

    assert size < 16 * 1024
    assert count_rendered_chars(model, parameters) < 40 * size + 20_000


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("parameters", HOSTILE_SCHEMAS.values(), ids=HOSTILE_SCHEMAS)
def test_a_request_with_a_hostile_schema_is_counted(model: str, parameters: dict[str, Any]) -> None:
    count = foveate.count_request(chat(parameters), model)

    assert 0 < count.total.tokens < 500_000
    assert not count.total.exact


def test_references_in_schemas_of_ordinary_size_are_all_resolved() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}
    line = {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}
    rendered = write_function_type(tool({"type": "object", "properties": line, "$defs": {"point": point}}))

    assert (
        rendered
        == "type f = (_: { from?: { x?: number, y?: number }, to?: { x?: number, y?: number } }) => any"
    )


@pytest.mark.slow
def test_a_definition_used_thousands_of_times_is_rendered_in_proportion() -> None:
    definition = {"type": "object", "properties": {f"q{i}": {"type": "string"} for i in range(500)}}
    properties = {f"p{i}": {"$ref": "#/$defs/node"} for i in range(3_000)}
    parameters = {"type": "object", "properties": properties, "$defs": {"node": definition}}

    for model in ("gpt-4o", "gpt-oss-20b", "gemini-2.5-flash", "gemini-3-pro"):
        assert count_rendered_chars(model, parameters) < 40 * len(json.dumps(parameters))


@pytest.mark.parametrize("required", [True, 5, "city", None, {"city": 1}, [["city"], {}, 5]])
@pytest.mark.parametrize("model", FAMILIES)
def test_required_may_be_something_other_than_a_list_of_names(model: str, required: Any) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": required}

    assert foveate.count_request(chat(parameters), model).total.tokens > 0


_KEYS = """type properties required items anyOf oneOf allOf enum const default description title format $ref
$defs definitions additionalProperties pattern minimum node"""
_WORDS = ("object", "array", "string", "integer", "null", "#", "#/$defs/node", "#/properties/node", "node", "")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**301)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(_WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_KEYS.split()), inner, max_size=5)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=20,
)


def bodies(value: Any) -> dict[Format, dict[str, Any]]:
    """A body of each format with `value` as the schema of a tool and of the response."""
    schema_format = {"name": "f", "schema": value}
    return {
        Format.CHAT: {**chat(value), "response_format": {"type": "json_schema", "json_schema": schema_format}},
        Format.RESPONSES: {
            "input": "Hi",
            "tools": [{"type": "function", "name": "f", "parameters": value}],
            "text": {"format": {"type": "json_schema", **schema_format}},
        },
        Format.ANTHROPIC: {
            "messages": [HI],
            "tools": [{"name": "f", "input_schema": value}],
            "output_config": {"format": {"type": "json_schema", "schema": value}},
        },
        Format.GEMINI: {
            "contents": [{"parts": [{"text": "Hi"}]}],
            "tools": [{"functionDeclarations": [{"name": "f", "parameters": value, "response": value}]}],
            "generationConfig": {"responseSchema": value},
        },
        Format.BEDROCK: {
            "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
            "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": value}}}]},
            "outputConfig": {"textFormat": {"structure": {"jsonSchema": schema_format}}},
        },
    }


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES)
@given(value=json_values, api_format=st.sampled_from(list(Format)))
def test_any_json_as_a_schema_is_counted_or_rejected(model: str, value: Any, api_format: Format) -> None:
    body = bodies(value)[api_format]
    assert formats.detect_format(parse_fields(to_bytes(body))) is api_format
    with suppress(MalformedRequest):
        assert foveate.count_request(body, model).total.tokens > 0


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("schema", ["no JSON", "", "[1", '"text"', "\ud83d", '{"a":' * 3000])
def test_a_response_schema_that_is_not_json_is_counted_as_text(model: str, schema: str) -> None:
    """On Bedrock the schema is a string with any content."""
    structure = {"jsonSchema": {"name": "City", "schema": schema}}
    body = {**bodies({})[Format.BEDROCK], "outputConfig": {"textFormat": {"structure": structure}}}

    count = foveate.count_request(body, model)

    assert count.total.tokens > 0
    assert not count.total.exact


@pytest.mark.parametrize("model", FAMILIES)
def test_truncated_arguments_are_counted_as_text(model: str) -> None:
    """A response that reaches its limit ends inside a call."""
    long_text = "All work and no play makes Jack a dull boy. " * 400
    complete = {"name": "write", "arguments": json.dumps({"path": "a.txt", "text": long_text})}
    truncated = {**complete, "arguments": complete["arguments"][:-2]}

    def count_call(function: dict[str, str]) -> foveate.TokenCount:
        call = {"id": "c", "type": "function", "function": function}
        body = {"messages": [HI, {"role": "assistant", "content": None, "tool_calls": [call]}]}
        return foveate.count_request(body, model).total

    assert abs(count_call(truncated).tokens - count_call(complete).tokens) < 40
    assert count_call(truncated).upper > count_call(truncated).tokens
    assert not count_call(truncated).exact
