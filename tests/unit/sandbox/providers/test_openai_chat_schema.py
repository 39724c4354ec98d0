"""Fields of chat completion requests: tables of rejected and of accepted values."""

from typing import Any

import pytest

from foveate.model import Format
from tests.support.scenarios.valid_requests import Json, accepts, chat, rejection

HELLO = {"role": "user", "content": "Hello"}
OBJECT_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
STRICT_SCHEMA = OBJECT_SCHEMA | {"additionalProperties": False}
CUSTOM = {"type": "custom", "custom": {"name": "write"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def tool(name: str = "look", **fields: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}} | fields}


def with_messages(*parts: Any) -> Json:
    return chat({"role": "user", "content": list(parts)})


def with_format(**fields: Any) -> Json:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {}} | fields})


def messages_with_call(**overrides: Any) -> list[Json]:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}} | overrides
    assistant_message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [assistant_message, {"role": "tool", "tool_call_id": "a", "content": "x"}]


REJECTED: dict[str, tuple[Json, str, str | None]] = {
    # parameters
    "temperature over 2": (
        chat(temperature=3),
        "decimal above maximum value. Expected a value <= 2",
        "temperature",
    ),
    "temperature as a string": (chat(temperature="hot"), "expected a decimal, but got a string", "temperature"),
    "top_p over 1": (chat(top_p=2), "decimal above maximum value", "top_p"),
    "penalty below -2": (chat(presence_penalty=-3), "decimal below minimum value", "presence_penalty"),
    "zero choices": (chat(n=0), "integer below minimum value", "n"),
    "too many choices": (chat(n=129), "integer above maximum value", "n"),
    "unknown effort": (chat(model="o3", reasoning_effort="huge"), "Invalid value: 'huge'.", "reasoning_effort"),
    "effort without reasoning": (chat(reasoning_effort="low"), "Unrecognized request argument", None),
    "temperature on o3": (chat(model="o3", temperature=0.2), "'temperature' is not supported", "temperature"),
    "temperature on gpt-5": (
        chat(model="gpt-5", temperature=0.2),
        "'temperature' is not supported",
        "temperature",
    ),
    "five stop sequences": (
        chat(stop=["a", "b", "c", "d", "e"]),
        "array too long. Expected an array with maximum",
        "stop",
    ),
    "stop as a number": (chat(stop=5), "expected one of a string or array of strings", "stop"),
    "stream options as a string": (
        chat(stream=True, stream_options="x"),
        "expected an object",
        "stream_options",
    ),
    "top_logprobs without logprobs": (
        chat(top_logprobs=3),
        "only allowed when 'logprobs' is enabled",
        "top_logprobs",
    ),
    "seed as a string": (chat(seed="x"), "expected an integer, but got a string", "seed"),
    "unknown verbosity": (chat(verbosity="loud"), "Invalid value: 'loud'.", "verbosity"),
    "model null": (chat(model=None), "Missing required parameter: 'model'.", "model"),
    # formats
    "unknown format": (
        chat(response_format={"type": "yaml"}),
        "Invalid value: 'yaml'.",
        "response_format.type",
    ),
    "format without type": (chat(response_format={}), "Missing required parameter", "response_format.type"),
    "format without schema": (
        chat(response_format={"type": "json_schema"}),
        "Missing required parameter",
        "response_format.json_schema",
    ),
    "format without name": (
        chat(response_format={"type": "json_schema", "json_schema": {"schema": {}}}),
        "Missing required parameter",
        "response_format.json_schema.name",
    ),
    "format name with a space": (
        with_format(name="a b"),
        "does not match pattern",
        "response_format.json_schema.name",
    ),
    "strict format with additional properties": (
        with_format(strict=True, schema=OBJECT_SCHEMA),
        "'additionalProperties' is required to be supplied and to be false",
        "response_format.json_schema.schema",
    ),
    # tools
    "129 tools": (chat(tools=[tool(f"t{i}") for i in range(129)]), "array too long", "tools"),
    "parameters as a list": (
        chat(tools=[tool(parameters=[])]),
        "expected an object",
        "tools[0].function.parameters",
    ),
    "parameters of type string": (
        chat(tools=[tool(parameters={"type": "string"})]),
        "Invalid schema for function 'look': schema must be a JSON Schema of 'type: \"object\"'",
        "tools[0].function.parameters",
    ),
    "strict with additional properties": (
        chat(tools=[tool(parameters=OBJECT_SCHEMA, strict=True)]),
        "In context=(), 'additionalProperties' is required to be supplied and to be false",
        "tools[0].function.parameters",
    ),
    "strict with nested additional properties": (
        chat(
            tools=[tool(parameters=STRICT_SCHEMA | {"properties": {"path": {"type": "object"}}}, strict=True)]
        ),
        "In context=('properties', 'path'), 'additionalProperties'",
        "tools[0].function.parameters",
    ),
    "strict with optional properties": (
        chat(tools=[tool(parameters=STRICT_SCHEMA | {"required": []}, strict=True)]),
        "Missing 'path'",
        "tools[0].function.parameters",
    ),
    "tool with an unknown field": (
        chat(tools=[tool(color="red")]),
        "Unknown parameter",
        "tools[0].function.color",
    ),
    "tool in the Responses format": (
        chat(tools=[{"type": "function", "name": "look"}]),
        "Missing required parameter",
        "tools[0].function",
    ),
    "tool in the Anthropic format": (
        chat(tools=[{"name": "look"}]),
        "Missing required parameter",
        "tools[0].type",
    ),
    "tool not an object": (chat(tools=["look"]), "expected an object", "tools[0]"),
    "empty tool choice": (
        chat(tools=[tool()], tool_choice={}),
        "Missing required parameter",
        "tool_choice.type",
    ),
    "tool choice as a number": (
        chat(tools=[tool()], tool_choice=3),
        "expected one of a string or object",
        "tool_choice",
    ),
    "unknown tool choice": (
        chat(tools=[tool()], tool_choice="any"),
        "Invalid value: 'any'.",
        "tool_choice",
    ),
    "tool choice of an unknown custom tool": (
        chat(tools=[tool()], tool_choice={"type": "custom", "custom": {"name": "write"}}),
        "Tool choice 'custom' not found in 'tools' parameter: 'write'.",
        "tool_choice",
    ),
    "parallel without tools": (
        chat(parallel_tool_calls=True),
        "only allowed when 'tools'",
        "parallel_tool_calls",
    ),
    "function call without functions": (chat(function_call="auto"), "only allowed when", "function_call"),
    "function call of an unknown function": (
        chat(functions=[{"name": "look"}], function_call={"name": "write"}),
        "no function named 'write'",
        "function_call",
    ),
    # messages
    "part as a string": (with_messages("x"), "expected an object", "messages[0].content[0]"),
    "part without type": (
        with_messages({"text": "x"}),
        "Missing required parameter",
        "messages[0].content[0].type",
    ),
    "text missing": (
        with_messages({"type": "text"}),
        "Missing required parameter",
        "messages[0].content[0].text",
    ),
    "text as a number": (
        with_messages({"type": "text", "text": 5}),
        "expected a string",
        "messages[0].content[0].text",
    ),
    "text with Anthropic's cache_control": (
        with_messages({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}),
        "Unknown parameter",
        "messages[0].content[0].cache_control",
    ),
    "image without url": (
        with_messages({"type": "image_url", "image_url": {}}),
        "Missing required parameter",
        "messages[0].content[0].image_url.url",
    ),
    "image as a string": (
        with_messages({"type": "image_url", "image_url": "https://example.com/a.png"}),
        "expected an object",
        "messages[0].content[0].image_url",
    ),
    "file without a source": (
        with_messages({"type": "file", "file": {"filename": "a.pdf"}}),
        "Missing required parameter",
        "messages[0].content[0].file.file_id",
    ),
    "breakpoint with an unknown field": (
        with_messages({"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit", "age": 1}}),
        "Unknown parameter",
        "messages[0].content[0].prompt_cache_breakpoint.age",
    ),
    "cache options with an unknown field": (
        chat(model="gpt-5.6-sol", prompt_cache_options={"prewarm": True}),
        "Unknown parameter",
        "prompt_cache_options.prewarm",
    ),
    "image in a tool message": (
        chat(*messages_with_call()[:1], {"role": "tool", "tool_call_id": "a", "content": [IMAGE]}),
        "Invalid value: 'image_url'.",
        "messages[1].content[0].type",
    ),
    "call without arguments": (
        chat(*messages_with_call(function={"name": "look"})),
        "Missing required parameter",
        "messages[0].tool_calls[0].function.arguments",
    ),
    "arguments as an object": (
        chat(*messages_with_call(function={"name": "look", "arguments": {}})),
        "expected a string, but got an object",
        "messages[0].tool_calls[0].function.arguments",
    ),
    "call without id": (
        chat(*messages_with_call(id=None)),
        "expected a string",
        "messages[0].tool_calls[0].id",
    ),
    "no calls": (chat(HELLO, {"role": "assistant", "tool_calls": []}), "empty array", "messages[1].tool_calls"),
    "name as a number": (chat(HELLO | {"name": 5}), "expected a string", "messages[0].name"),
}

ACCEPTED: dict[str, Json] = {
    "bounds": chat(
        temperature=2, top_p=0, presence_penalty=-2, frequency_penalty=2, n=128, stop=["a", "b", "c", "d"]
    ),
    "nulls for optional fields": chat(temperature=None, tools=None, stop=None, n=None, stream=None, seed=None),
    "default temperature on o3": chat(model="o3", temperature=1, top_p=1),
    "temperature on gpt-5.1": chat(model="gpt-5.1", temperature=0.2),
    "128 tools": chat(tools=[tool(f"t{i}") for i in range(128)], parallel_tool_calls=False),
    "tool without parameters": chat(tools=[{"type": "function", "function": {"name": "look"}}]),
    "tool with empty parameters": chat(tools=[tool(parameters={})]),
    "strict tool": chat(tools=[tool(parameters=STRICT_SCHEMA, strict=True)]),
    "additional properties without strict": chat(tools=[tool(parameters=OBJECT_SCHEMA, strict=False)]),
    "custom tool": chat(tools=[CUSTOM], tool_choice={"type": "custom", "custom": {"name": "write"}}),
    "allowed tools": chat(
        tools=[tool()],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool()]}},
    ),
    "legacy functions": chat(
        functions=[{"name": "look", "parameters": {"type": "object"}}], function_call="auto"
    ),
    "strict format": with_format(strict=True, schema=STRICT_SCHEMA),
    "logprobs": chat(logprobs=True, top_logprobs=3),
    "text and image": with_messages({"type": "text", "text": "Look"}, IMAGE),
    "tool call assembled from a stream": chat(*messages_with_call(index=0)),
    "assistant message as returned": chat(
        HELLO, {"role": "assistant", "content": "x", "refusal": None, "annotations": []}, HELLO
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_errors_name_the_parameter(name: str) -> None:
    body, message, param = REJECTED[name]
    error = rejection(Format.CHAT, body)

    assert message in error.message
    assert (error.status, error.kind, error.param) == (400, "invalid_request_error", param)


@pytest.mark.parametrize("name", ACCEPTED)
def test_valid_fields_are_accepted(name: str) -> None:
    assert accepts(Format.CHAT, ACCEPTED[name])
