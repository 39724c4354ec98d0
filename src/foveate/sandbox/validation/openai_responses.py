"""Validates Responses API requests as OpenAI does: input items, tool calls with their outputs, and parameters.

After https://platform.openai.com/docs/api-reference/responses and recorded error responses of its API (read
November 2026).
"""

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text
from foveate.formats.response.errors import ErrorResponse
from foveate.model import Format, Ttl
from foveate.sandbox.models import find_model
from foveate.sandbox.validation import openai
from foveate.sandbox.validation.openai import (
    invalid_value,
    list_content_parts,
    missing_parameter,
    unsupported_parameter,
)

_OUTPUT_BY_CALL_TYPE = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_INPUT_PARTS = ("input_text", "input_image", "input_file", "input_audio")
_SOURCE_FIELDS = {"input_image": ("image_url", "file_id"), "input_file": ("file_id", "file_data", "file_url")}
_OUTPUT_PARTS = ("output_text", "refusal")
_TTLS = (Ttl.THIRTY_MINUTES, Ttl.TWELVE_HOURS)
_MIN_OUTPUT_TOKENS = 16
# Fields that refer to earlier items, which the body does not contain.
_STORED_HISTORY_FIELDS = ("previous_response_id", "conversation")


def find_error(body: dict[str, Any]) -> ErrorResponse | None:
    return next(_check_request(body), None)


def find_window_error(body: dict[str, Any], prompt_tokens: int) -> ErrorResponse | None:
    """Return an error if prompt and output limit exceed the window, unless truncation is enabled."""
    if body.get("truncation") == "auto":
        return None
    return openai.window_error(body["model"], prompt_tokens, body.get("max_output_tokens") or 0, "input")


def _check_request(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    yield from openai.check_model(body)
    yield from openai.check_schema(Format.RESPONSES, body)
    input_value = body.get("input")
    is_continued = any(body.get(field) is not None for field in (*_STORED_HISTORY_FIELDS, "prompt"))
    if input_value is None and not is_continued:
        yield ErrorResponse(
            message="One of 'input', 'previous_response_id', 'conversation' or 'prompt' must be provided.",
            param="input",
            code="missing_required_parameter",
        )
    if body.get("previous_response_id") is not None and body.get("conversation") is not None:
        yield ErrorResponse(
            message="Mutually exclusive parameters: 'previous_response_id' and 'conversation'.",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    items = as_list(input_value)
    yield from chain(
        _check_parts(items),
        _check_tool_pairs(items, body),
        _check_reasoning(items),
        _check_tools(body),
        _check_options(body),
        _check_breakpoints(body, items),
    )


def _check_parts(items: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    """Check that messages of the model and of others have their own kinds of parts."""
    for i, item in enumerate(items):
        if item.get("type", "message") == "message":
            allowed = _OUTPUT_PARTS if item["role"] == "assistant" else _INPUT_PARTS
            for path, _, part in list_content_parts(
                f"input[{i}].content", item["content"], is_from_model=False
            ):
                if part["type"] not in allowed:
                    yield invalid_value(f"{path}.type", part["type"], allowed)
                yield from _check_source(path, part)


def _check_source(path: str, part: dict[str, Any]) -> Iterator[ErrorResponse]:
    fields = _SOURCE_FIELDS.get(part["type"], ())
    if fields and all(part.get(field) is None for field in fields):
        yield missing_parameter(f"{path}.{fields[0]}")


def _check_tool_pairs(items: list[dict[str, Any]], body: dict[str, Any]) -> Iterator[ErrorResponse]:
    """Check that every output follows its call and every call has an output, unless the call is stored."""
    is_continued = any(body.get(field) is not None for field in _STORED_HISTORY_FIELDS)
    for call_kind, output_kind in _OUTPUT_BY_CALL_TYPE.items():
        call_ids: list[str] = []
        searched: set[str] = set()  # a tool search may be answered by a tool output
        answered_ids: set[str] = set()
        for item in items:
            call = as_text(item.get("call_id"))
            if item.get("type") == call_kind:
                if call in call_ids:
                    yield ErrorResponse(message=f"Duplicate call_id {call} in input.", param="input")
                call_ids.append(call)
            elif item.get("type") == "tool_search_call":
                searched.add(call)
            elif item.get("type") == output_kind:
                if call not in call_ids and call not in searched and not is_continued:
                    yield ErrorResponse(
                        message=f"No tool call found for function call output with call_id {call}.",
                        param="input",
                    )
                if call in answered_ids:
                    yield ErrorResponse(
                        message=f"Duplicate output for function call {call} in input.", param="input"
                    )
                answered_ids.add(call)
        for call in call_ids:
            if call not in answered_ids:
                yield ErrorResponse(message=f"No tool output found for function call {call}.", param="input")


def _check_reasoning(items: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    """Check that a reasoning item is followed by what it led to."""
    for item, following in pairwise((*items, {})):
        if item.get("type") == "reasoning":
            kind = following.get("type", "message")
            is_from_model = (
                following.get("role") == "assistant" if kind == "message" else not kind.endswith("_output")
            )
            if not following or not is_from_model:
                yield ErrorResponse(
                    message=f"Item '{item.get('id', '')}' of type 'reasoning' was provided without its "
                    "required following item.",
                    param="input",
                )


def _check_tools(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    tools = as_list(body.get("tools"))
    callable_tools = [
        openai.CallableTool(
            path=f"tools[{i}]",
            name=tool["name"],
            schema=tool.get("parameters"),
            is_strict=tool.get("strict") is True,
        )
        for i, tool in enumerate(tools)
        if tool["type"] in ("function", "custom")
    ]
    yield from openai.check_tools(callable_tools)
    names = [tool.name for tool in callable_tools]
    yield from openai.check_tool_choice(body.get("tool_choice"), names, has_tools=bool(tools))


def _check_options(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    yield from openai.check_output_limit(body, "max_output_tokens", minimum=_MIN_OUTPUT_TOKENS)
    yield from openai.check_sampling(Format.RESPONSES, body)
    if body.get("stream_options") is not None and not body.get("stream"):
        yield ErrorResponse(
            message="The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    model = find_model(Format.RESPONSES, body["model"])
    if model is not None and not model.reasons and as_dict(body.get("reasoning")).get("effort") is not None:
        yield unsupported_parameter("reasoning.effort")
    yield from _check_text_format(body)


def _check_text_format(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    text_format = as_dict(as_dict(body.get("text")).get("format"))
    if text_format.get("type") == "json_schema":
        yield from openai.check_json_schema("text.format", text_format)
    is_continued = any(body.get(field) is not None for field in (*_STORED_HISTORY_FIELDS, "prompt"))
    if text_format.get("type") == "json_object" and not is_continued:
        contents = str([body.get("instructions"), body.get("input")])
        if "json" not in contents.lower():
            yield ErrorResponse(
                message="Response input messages must contain the word 'json' in some form to use "
                "'text.format' of type 'json_object'.",
                param="input",
            )


def _check_breakpoints(body: dict[str, Any], items: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    parts = []
    for i, item in enumerate(items):
        is_from_model = item.get("role") == "assistant"
        parts += list_content_parts(f"input[{i}].content", item.get("content"), is_from_model=is_from_model)
        parts += list_content_parts(f"input[{i}].output", item.get("output"), is_from_model=False)
    return openai.check_breakpoints(body, parts, _TTLS)
