"""Validates chat completion requests as OpenAI does: messages, tool calls with their results, and parameters.

After https://platform.openai.com/docs/api-reference/chat and recorded error responses of its API (read November
2026).
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text
from foveate.formats.response.errors import ErrorResponse
from foveate.model import Format, Ttl
from foveate.sandbox.models import find_model
from foveate.sandbox.validation import openai
from foveate.sandbox.validation.openai import (
    empty_array,
    list_content_parts,
    missing_parameter,
    unsupported_parameter,
)

# Fields that an assistant message may have instead of content.
_CONTENT_ALTERNATIVES = ("tool_calls", "function_call", "refusal", "audio")
_TTLS = (Ttl.THIRTY_MINUTES,)  # 12h is only for Responses


def find_error(body: dict[str, Any]) -> ErrorResponse | None:
    return next(_check_request(body), None)


def find_window_error(body: dict[str, Any], prompt_tokens: int) -> ErrorResponse | None:
    output_tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    return openai.window_error(body["model"], prompt_tokens, output_tokens, "messages")


def _check_request(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    yield from openai.check_model(body)
    yield from openai.check_schema(Format.CHAT, body)
    messages = body["messages"]
    yield from chain(
        _check_contents(messages), _check_tool_pairs(messages), _check_tools(body), _check_options(body)
    )
    parts = [
        part
        for i, message in enumerate(messages)
        for part in list_content_parts(
            f"messages[{i}].content", message.get("content"), is_from_model=message["role"] == "assistant"
        )
    ]
    yield from openai.check_breakpoints(body, parts, _TTLS)


def _check_contents(messages: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    for i, message in enumerate(messages):
        content, role = message.get("content"), message["role"]
        has_alternative = role == "assistant" and any(message.get(field) for field in _CONTENT_ALTERNATIVES)
        if content is None and not has_alternative:
            yield ErrorResponse(
                message="Invalid value for 'content': expected a string, got null.",
                param=f"messages.[{i}].content",
            )
        if content == [] and role != "assistant":
            yield empty_array(f"messages[{i}].content")
        for path, _, part in list_content_parts(f"messages[{i}].content", content, is_from_model=False):
            file = as_dict(part.get("file"))
            if part["type"] == "file" and file.get("file_id") is None and file.get("file_data") is None:
                yield missing_parameter(f"{path}.file.file_id")


def _check_tool_pairs(messages: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    """Check that each tool call is answered by one of the tool messages that follow immediately."""
    call_ids: list[str] = []
    waiting: dict[str, None] = {}
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if not call_ids:
                yield ErrorResponse(
                    message="Invalid parameter: messages with role 'tool' must be a response to a preceeding "
                    "message with 'tool_calls'.",
                    param=f"messages.[{i}].role",
                )
            if call not in call_ids:
                yield ErrorResponse(
                    message=f"Invalid parameter: 'tool_call_id' of '{call}' not found in 'tool_calls' of "
                    "previous message.",
                    param=f"messages.[{i}].tool_call_id",
                )
            if call not in waiting:
                yield ErrorResponse(
                    message=f"Duplicate value for 'tool_call_id' of '{call}'",
                    param=f"messages.[{i}].tool_call_id",
                )
            waiting.pop(call, None)
            continue
        if waiting:
            yield _missing_results(i, waiting)
        call_ids = [as_text(as_dict(call).get("id")) for call in as_list(message.get("tool_calls"))]
        waiting = dict.fromkeys(call_ids)
        if len(waiting) < len(call_ids):
            yield ErrorResponse(
                message="Duplicate value for 'tool_call_id' in 'tool_calls'", param=f"messages.[{i}]"
            )
    if waiting:
        yield _missing_results(len(messages), waiting)


def _missing_results(i: int, waiting: dict[str, None]) -> ErrorResponse:
    return ErrorResponse(
        message="An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}",
        param=f"messages.[{i}].role",
    )


def _check_tools(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    tools = [
        _to_tool(f"tools[{i}].{tool['type']}", tool[tool["type"]])
        for i, tool in enumerate(as_list(body.get("tools")))
    ]
    functions = [
        _to_tool(f"functions[{i}]", function) for i, function in enumerate(as_list(body.get("functions")))
    ]
    yield from openai.check_tools([*tools, *functions])
    names = [tool.name for tool in tools]
    yield from openai.check_tool_choice(body.get("tool_choice"), names, has_tools=bool(tools))
    if body.get("parallel_tool_calls") is not None and not tools:
        yield ErrorResponse(
            message="Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when "
            "'tools' are specified.",
            param="parallel_tool_calls",
        )
    if body.get("function_call") is not None and not functions:
        yield ErrorResponse(
            message="Invalid value for 'function_call': 'function_call' is only allowed when 'functions' are "
            "specified.",
            param="function_call",
        )
    forced_function = as_dict(body.get("function_call")).get("name")
    if forced_function is not None and forced_function not in [function.name for function in functions]:
        yield ErrorResponse(
            message=f"Invalid value for 'function_call': no function named '{forced_function}' was specified "
            "in the 'functions' parameter.",
            param="function_call",
        )


def _to_tool(path: str, definition: dict[str, Any]) -> openai.CallableTool:
    strict = definition.get("strict") is True
    return openai.CallableTool(
        path=path, name=definition["name"], schema=definition.get("parameters"), is_strict=strict
    )


def _check_options(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    model = find_model(Format.CHAT, body["model"])
    reasons = model is not None and model.reasons
    if body.get("stream_options") is not None and not body.get("stream"):
        yield ErrorResponse(
            message="The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        yield ErrorResponse(
            message="Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            param="max_tokens",
            code="invalid_parameter_combination",
        )
    if body.get("max_tokens") is not None and reasons:
        yield unsupported_parameter("max_tokens", " Use 'max_completion_tokens' instead.")
    for param in ("max_tokens", "max_completion_tokens"):
        yield from openai.check_output_limit(body, param, minimum=1)
    yield from openai.check_sampling(Format.CHAT, body)
    if body.get("reasoning_effort") is not None and not reasons:
        yield ErrorResponse(message="Unrecognized request argument supplied: reasoning_effort")
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        yield ErrorResponse(
            message="The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
            param="top_logprobs",
        )
    yield from _check_response_format(body)


def _check_response_format(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    response_format = as_dict(body.get("response_format"))
    if response_format.get("type") == "json_schema":
        yield from openai.check_json_schema("response_format.json_schema", response_format["json_schema"])
    if response_format.get("type") == "json_object":
        contents = str([message.get("content") for message in body["messages"]])
        if "json" not in contents.lower():
            yield ErrorResponse(
                message="'messages' must contain the word 'json' in some form, to use 'response_format' of "
                "type 'json_object'.",
                param="messages",
            )
