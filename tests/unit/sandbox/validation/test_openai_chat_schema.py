"""Fields of chat completion requests: tables of rejected and of accepted values."""

from typing import Any

import pytest

from foveate.model import Format
from tests.support.scenarios.valid_requests import Json, accepts, chat, rejection

HELLO = {"role": "user", "content": "Hello"}
CLOSED = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
STRICT = CLOSED | {"additionalProperties": False}
CUSTOM = {"type": "custom", "custom": {"name": "write"}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def tool(name: str = "look", **fields: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}} | fields}


def with_messages(*parts: Any) -> Json:
    return chat({"role": "user", "content": list(parts)})


def with_format(**fields: Any) -> Json:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {}} | fields})


def calling(**inner: Any) -> list[Json]:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}} | inner
    arguments = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [arguments, {"role": "tool", "tool_call_id": "a", "content": "x"}]


REJECTED: dict[str, tuple[Json, str, str | None]] = {
    # parameters
    "temperature over 2": (
        chat(temperature=3),
        "decimal above maximum value. Expected a value <= 2",
        "temperature",
    ),
    "temperature a string": (chat(temperature="hot"), "expected a decimal, but got a string", "temperature"),
    "top_p over 1": (chat(top_p=2), "decimal above maximum value", "top_p"),
    "penalty below -2": (chat(presence_penalty=-3), "decimal below minimum value", "presence_penalty"),
    "no choices": (chat(n=0), "integer below minimum value", "n"),
    "too many choices": (chat(n=129), "integer above maximum value", "n"),
    "unknown effort": (chat(model="o3", reasoning_effort="huge"), "Invalid value: 'huge'.", "reasoning_effort"),
    "effort without reasoning": (chat(reasoning_effort="low"), "Unrecognized request argument", None),
    "temperature on o3": (chat(model="o3", temperature=0.2), "'temperature' is not supported", "temperature"),
    "temperature on gpt-5": (
        chat(model="gpt-5", temperature=0.2),
        "'temperature' is not supported",
        "temperature",
    ),
    "five stops": (
        chat(stop=["a", "b", "c", "d", "e"]),
        "array too long. Expected an array with maximum",
        "stop",
    ),
    "stop a number": (chat(stop=5), "expected one of a string or array of strings", "stop"),
    "stream options a string": (chat(stream=True, stream_options="x"), "expected an object", "stream_options"),
    "logprobs without leave": (chat(top_logprobs=3), "only allowed when 'logprobs' is enabled", "top_logprobs"),
    "seed a string": (chat(seed="x"), "expected an integer, but got a string", "seed"),
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
    "format with a name of two words": (
        with_format(name="a b"),
        "does not match pattern",
        "response_format.json_schema.name",
    ),
    "strict format that is open": (
        with_format(strict=True, schema=CLOSED),
        "'additionalProperties' is required to be supplied and to be false",
        "response_format.json_schema.schema",
    ),
    # tools
    "129 tools": (chat(tools=[tool(f"t{i}") for i in range(129)]), "array too long", "tools"),
    "parameters a list": (
        chat(tools=[tool(parameters=[])]),
        "expected an object",
        "tools[0].function.parameters",
    ),
    "parameters of a string": (
        chat(tools=[tool(parameters={"type": "string"})]),
        "Invalid schema for function 'look': schema must be a JSON Schema of 'type: \"object\"'",
        "tools[0].function.parameters",
    ),
    "strict and open": (
        chat(tools=[tool(parameters=CLOSED, strict=True)]),
        "In context=(), 'additionalProperties' is required to be supplied and to be false",
        "tools[0].function.parameters",
    ),
    "strict and open inside": (
        chat(tools=[tool(parameters=STRICT | {"properties": {"path": {"type": "object"}}}, strict=True)]),
        "In context=('properties', 'path'), 'additionalProperties'",
        "tools[0].function.parameters",
    ),
    "strict and optional": (
        chat(tools=[tool(parameters=STRICT | {"required": []}, strict=True)]),
        "Missing 'path'",
        "tools[0].function.parameters",
    ),
    "tool with more": (chat(tools=[tool(color="red")]), "Unknown parameter", "tools[0].function.color"),
    "tool of Responses": (
        chat(tools=[{"type": "function", "name": "look"}]),
        "Missing required parameter",
        "tools[0].function",
    ),
    "tool of Anthropic": (chat(tools=[{"name": "look"}]), "Missing required parameter", "tools[0].type"),
    "tool no object": (chat(tools=["look"]), "expected an object", "tools[0]"),
    "choice empty": (chat(tools=[tool()], tool_choice={}), "Missing required parameter", "tool_choice.type"),
    "choice a number": (
        chat(tools=[tool()], tool_choice=3),
        "expected one of a string or object",
        "tool_choice",
    ),
    "choice of nothing known": (
        chat(tools=[tool()], tool_choice="any"),
        "Invalid value: 'any'.",
        "tool_choice",
    ),
    "choice of a custom tool that there is not": (
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
    "function call of another": (
        chat(functions=[{"name": "look"}], function_call={"name": "write"}),
        "no function named 'write'",
        "function_call",
    ),
    # messages
    "part a string": (with_messages("x"), "expected an object", "messages[0].content[0]"),
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
    "text a number": (
        with_messages({"type": "text", "text": 5}),
        "expected a string",
        "messages[0].content[0].text",
    ),
    "text with a mark of Anthropic's": (
        with_messages({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}),
        "Unknown parameter",
        "messages[0].content[0].cache_control",
    ),
    "image without url": (
        with_messages({"type": "image_url", "image_url": {}}),
        "Missing required parameter",
        "messages[0].content[0].image_url.url",
    ),
    "image a string": (
        with_messages({"type": "image_url", "image_url": "https://example.com/a.png"}),
        "expected an object",
        "messages[0].content[0].image_url",
    ),
    "file from nowhere": (
        with_messages({"type": "file", "file": {"filename": "a.pdf"}}),
        "Missing required parameter",
        "messages[0].content[0].file.file_id",
    ),
    "mark with more": (
        with_messages({"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit", "age": 1}}),
        "Unknown parameter",
        "messages[0].content[0].prompt_cache_breakpoint.age",
    ),
    "cache options with more": (
        chat(model="gpt-5.6-sol", prompt_cache_options={"prewarm": True}),
        "Unknown parameter",
        "prompt_cache_options.prewarm",
    ),
    "image by a tool": (
        chat(*calling()[:1], {"role": "tool", "tool_call_id": "a", "content": [PICTURE]}),
        "Invalid value: 'image_url'.",
        "messages[1].content[0].type",
    ),
    "call without arguments": (
        chat(*calling(function={"name": "look"})),
        "Missing required parameter",
        "messages[0].tool_calls[0].function.arguments",
    ),
    "arguments an object": (
        chat(*calling(function={"name": "look", "arguments": {}})),
        "expected a string, but got an object",
        "messages[0].tool_calls[0].function.arguments",
    ),
    "call without id": (chat(*calling(id=None)), "expected a string", "messages[0].tool_calls[0].id"),
    "no calls": (chat(HELLO, {"role": "assistant", "tool_calls": []}), "empty array", "messages[1].tool_calls"),
    "name a number": (chat(HELLO | {"name": 5}), "expected a string", "messages[0].name"),
}

ACCEPTED: dict[str, Json] = {
    "bounds": chat(
        temperature=2, top_p=0, presence_penalty=-2, frequency_penalty=2, n=128, stop=["a", "b", "c", "d"]
    ),
    "nulls where nothing has to be": chat(
        temperature=None, tools=None, stop=None, n=None, stream=None, seed=None
    ),
    "the usual temperature on o3": chat(model="o3", temperature=1, top_p=1),
    "temperature on gpt-5.1": chat(model="gpt-5.1", temperature=0.2),
    "128 tools": chat(tools=[tool(f"t{i}") for i in range(128)], parallel_tool_calls=False),
    "tool without parameters": chat(tools=[{"type": "function", "function": {"name": "look"}}]),
    "tool with empty parameters": chat(tools=[tool(parameters={})]),
    "strict tool": chat(tools=[tool(parameters=STRICT, strict=True)]),
    "open tool that is not strict": chat(tools=[tool(parameters=CLOSED, strict=False)]),
    "custom tool": chat(tools=[CUSTOM], tool_choice={"type": "custom", "custom": {"name": "write"}}),
    "allowed tools": chat(
        tools=[tool()],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool()]}},
    ),
    "functions of old": chat(
        functions=[{"name": "look", "parameters": {"type": "object"}}], function_call="auto"
    ),
    "strict format": with_format(strict=True, schema=STRICT),
    "logprobs": chat(logprobs=True, top_logprobs=3),
    "text and image": with_messages({"type": "text", "text": "Look"}, PICTURE),
    "call out of a stream": chat(*calling(index=0)),
    "assistant as it answered": chat(
        HELLO, {"role": "assistant", "content": "x", "refusal": None, "annotations": []}, HELLO
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_errors_name_the_parameter(name: str) -> None:
    body, message, param = REJECTED[name]
    problem = rejection(Format.CHAT, body)

    assert message in problem.message
    assert (problem.status, problem.kind, problem.param) == (400, "invalid_request_error", param)


@pytest.mark.parametrize("name", ACCEPTED)
def test_valid_fields_are_accepted(name: str) -> None:
    assert accepts(Format.CHAT, ACCEPTED[name])
