"""Fields of Responses API requests: tables of rejected and of accepted values."""

from typing import Any

import pytest

from foveate.model import Format
from tests.support.scenarios.valid_requests import Json, accepts, rejection, response

FUNCTION_CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "found"}
OUTPUT_TEXT = {"type": "output_text", "text": "x", "annotations": [], "logprobs": []}
OBJECT_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def tool(**fields: Any) -> Json:
    return {"type": "function", "name": "look", "parameters": {"type": "object"}} | fields


def with_input(*parts: Any, **fields: Any) -> Json:
    return response({"role": "user", "content": list(parts)} | fields)


REJECTED: dict[str, tuple[Json, str, str]] = {
    # parameters
    "temperature over 2": (response(temperature=3), "decimal above maximum value", "temperature"),
    "temperature on o3": (
        response(model="o3", temperature=0.2),
        "'temperature' is not supported",
        "temperature",
    ),
    "unknown include value": (response(include=["foo"]), "Invalid value: 'foo'.", "include[0]"),
    "include as a string": (response(include="x"), "expected an array of strings", "include"),
    "unknown truncation": (response(truncation="maybe"), "Invalid value: 'maybe'.", "truncation"),
    "reasoning as a string": (response(model="o3", reasoning="x"), "expected an object", "reasoning"),
    "effort as a list": (
        response(model="o3", reasoning={"effort": []}),
        "expected a string",
        "reasoning.effort",
    ),
    "unknown effort": (response(model="o3", reasoning={"effort": "huge"}), "Invalid value", "reasoning.effort"),
    "text as a list": (response(text=[]), "expected an object", "text"),
    "unknown format": (
        response(text={"format": {"type": "yaml"}}),
        "Invalid value: 'yaml'.",
        "text.format.type",
    ),
    "format without name": (
        response(text={"format": {"type": "json_schema", "schema": {}}}),
        "Missing required parameter",
        "text.format.name",
    ),
    "strict format with additional properties": (
        response(
            text={"format": {"type": "json_schema", "name": "a", "schema": OBJECT_SCHEMA, "strict": True}}
        ),
        "'additionalProperties' is required",
        "text.format.schema",
    ),
    "effort without reasoning": (response(reasoning={"effort": "low"}), "is not supported", "reasoning.effort"),
    "JSON mode without the word JSON": (
        response(text={"format": {"type": "json_object"}}),
        "must contain the word 'json'",
        "input",
    ),
    "chat completion parameter": (
        response(response_format={"type": "text"}),
        "Unknown parameter",
        "response_format",
    ),
    # tools
    "unknown tool": (response(tools=[{"type": "zz"}]), "Invalid value: 'zz'.", "tools[0].type"),
    "tool in the chat completion format": (
        response(tools=[{"type": "function", "function": {"name": "look"}}]),
        "Missing required parameter",
        "tools[0].name",
    ),
    "tool with an unknown field": (response(tools=[tool(color="red")]), "Unknown parameter", "tools[0].color"),
    "parameters as a list": (
        response(tools=[tool(parameters=[])]),
        "expected an object",
        "tools[0].parameters",
    ),
    "strict with additional properties": (
        response(tools=[tool(parameters=OBJECT_SCHEMA, strict=True)]),
        "Invalid schema for function 'look': In context=(), 'additionalProperties'",
        "tools[0].parameters",
    ),
    "tool choice as a number": (
        response(tools=[tool()], tool_choice=3),
        "one of a string or object",
        "tool_choice",
    ),
    "empty tool choice": (
        response(tools=[tool()], tool_choice={}),
        "Missing required parameter",
        "tool_choice.type",
    ),
    "tool choice of an unknown tool": (
        response(tools=[tool()], tool_choice={"type": "function", "name": "write"}),
        "Tool choice 'function' not found in 'tools' parameter: 'write'.",
        "tool_choice",
    ),
    # items
    "text missing": (
        with_input({"type": "input_text"}),
        "Missing required parameter",
        "input[0].content[0].text",
    ),
    "text as a number": (
        with_input({"type": "input_text", "text": 5}),
        "expected a string",
        "input[0].content[0].text",
    ),
    "part with an unknown field": (
        with_input({"type": "input_text", "text": "x", "cache_control": {"type": "ephemeral"}}),
        "Unknown parameter",
        "input[0].content[0].cache_control",
    ),
    "part as a string": (with_input("x"), "expected an object", "input[0].content[0]"),
    "image without a source": (with_input({"type": "input_image"}), "Missing", "input[0].content[0].image_url"),
    "file without a source": (with_input({"type": "input_file"}), "Missing", "input[0].content[0].file_id"),
    "part without type": (with_input({"text": "x"}), "Missing required parameter", "input[0].content[0].type"),
    "output text in a user message": (
        with_input(OUTPUT_TEXT),
        "Invalid value: 'output_text'.",
        "input[0].content[0].type",
    ),
    "input text in an assistant message": (
        with_input({"type": "input_text", "text": "x"}, role="assistant"),
        "Invalid value: 'input_text'.",
        "input[0].content[0].type",
    ),
    "message with an unknown field": (
        with_input({"type": "input_text", "text": "x"}, mood="good"),
        "Unknown",
        "input[0].mood",
    ),
    "message without role": (response({"content": "x"}), "Missing required parameter", "input[0].role"),
    "message without content": (response({"role": "user"}), "Missing required parameter", "input[0].content"),
    "content as a number": (response({"role": "user", "content": 5}), "expected one of", "input[0].content"),
    "call without arguments": (
        response({"type": "function_call", "call_id": "a", "name": "look"}, OUTPUT),
        "Missing required parameter",
        "input[0].arguments",
    ),
    "arguments as an object": (
        response(FUNCTION_CALL | {"arguments": {}}, OUTPUT),
        "expected a string, but got an object",
        "input[0].arguments",
    ),
    "call with an unknown field": (
        response(FUNCTION_CALL | {"parsed_arguments": {}}, OUTPUT),
        "Unknown",
        "input[0].parsed_arguments",
    ),
    "output without a call id": (
        response({"type": "function_call_output", "output": "x"}),
        "Missing required parameter",
        "input[0].call_id",
    ),
    "output missing": (
        response(FUNCTION_CALL, {"type": "function_call_output", "call_id": "a"}),
        "Missing required parameter",
        "input[1].output",
    ),
    "output as an object": (
        response(FUNCTION_CALL, OUTPUT | {"output": {}}),
        "expected one of a string",
        "input[1].output",
    ),
    "text missing in an output": (
        response(FUNCTION_CALL, OUTPUT | {"output": [{"type": "input_text"}]}),
        "Missing required parameter",
        "input[1].output[0].text",
    ),
    "output text in a tool output": (
        response(FUNCTION_CALL, OUTPUT | {"output": [OUTPUT_TEXT]}),
        "Invalid value: 'output_text'.",
        "input[1].output[0].type",
    ),
    "reference without an id": (
        response({"type": "item_reference"}),
        "Missing required parameter",
        "input[0].id",
    ),
}

ACCEPTED: dict[str, Json] = {
    "JSON mode with the word JSON": response(
        instructions="Answer in JSON.", text={"format": {"type": "json_object"}}
    ),
    "cache prewarming": response(model="gpt-5.6-sol", prompt_cache_options={"prewarm": True, "ttl": "12h"}),
    "bounds": response(temperature=2, top_p=0, top_logprobs=20),
    "nulls for optional fields": response(
        temperature=None, tools=None, reasoning=None, text=None, include=None
    ),
    "provider tools": response(
        tools=[
            {"type": "web_search", "search_context_size": "low"},
            {"type": "mcp", "server_label": "files", "server_url": "https://example.com"},
            {"type": "code_interpreter", "container": {"type": "auto"}},
        ]
    ),
    "tool without description": response(tools=[tool(description=None, strict=None)]),
    "custom tool": response(
        tools=[{"type": "custom", "name": "write"}], tool_choice={"type": "custom", "name": "write"}
    ),
    "tool choice of a provider tool": response(
        tools=[{"type": "web_search"}], tool_choice={"type": "web_search"}
    ),
    "parallel without tools": response(parallel_tool_calls=True),
    "format": response(
        text={"format": {"type": "json_schema", "name": "a", "schema": OBJECT_SCHEMA}, "verbosity": "low"}
    ),
    "image and file": with_input(
        {"type": "input_text", "text": "Look"},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
        {"type": "input_file", "file_id": "file_1"},
    ),
    "output in parts": response(FUNCTION_CALL, OUTPUT | {"output": [{"type": "input_text", "text": "found"}]}),
    "response items as returned": response(
        {"role": "user", "content": "x"},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [OUTPUT_TEXT]},
        FUNCTION_CALL | {"id": "fc", "status": "completed"},
        OUTPUT,
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_errors_name_the_parameter(name: str) -> None:
    body, message, param = REJECTED[name]
    error = rejection(Format.RESPONSES, body)

    assert message in error.message
    assert (error.status, error.kind, error.param) == (400, "invalid_request_error", param)


@pytest.mark.parametrize("name", ACCEPTED)
def test_valid_fields_are_accepted(name: str) -> None:
    assert accepts(Format.RESPONSES, ACCEPTED[name])
