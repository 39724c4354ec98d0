"""OpenAI's chat completions: validates requests, and renders responses or the chunks of a stream.

After https://platform.openai.com/docs/api-reference/chat,
https://platform.openai.com/docs/api-reference/chat-streaming and recorded error responses of the API (read
November 2026).
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.formats.response.errors import ErrorResponse
from foveate.model import Format, Ttl
from foveate.sandbox.models import find_model
from foveate.sandbox.providers import openai
from foveate.sandbox.providers.openai import (
    empty_array,
    list_content_parts,
    missing_parameter,
    read_tool_name,
    unsupported_parameter,
)
from foveate.sandbox.response import (
    GeneratedResponse,
    ResponseMetadata,
    ResponseSpec,
    StopReason,
    TextPart,
    ToolCallPart,
    encode_event,
    split_chunks,
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


_FINISH_REASONS = {
    StopReason.DONE: "stop",
    StopReason.TOOL_CALL: "tool_calls",
    StopReason.LIMIT: "length",
    StopReason.SEQUENCE: "stop",
    StopReason.WINDOW: "length",
}
DONE_EVENT = b"data: [DONE]\n\n"
_FINGERPRINT = "fp_sandbox"


def read_response_spec(body: dict[str, Any], room_tokens: int | None) -> ResponseSpec:
    stops = body.get("stop")
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    tools = [as_dict(tool) for tool in as_list(body.get("tools"))]
    definitions = [as_dict(tool.get(as_text(tool.get("type")))) for tool in tools]
    forced = find_forced_tool(body.get("tool_choice"))
    if not tools:  # the API of 2023 has functions instead
        definitions = as_list(body.get("functions"))
        forced = as_dict(body.get("function_call")).get("name")
    output = as_dict(body.get("response_format"))
    schema = as_dict(as_dict(output.get("json_schema")).get("schema"))
    last = as_dict(body["messages"][-1]).get("content")
    return ResponseSpec(
        model=as_text(body["model"]),
        is_streaming=bool(body.get("stream")),
        tools=tuple((as_text(tool.get("name")), as_dict(tool.get("parameters"))) for tool in definitions),
        forced_tool=forced,
        text_tools=text_tool_names(tools),
        schema={"json_schema": schema, "json_object": {}}.get(as_text(output.get("type"))),
        limit_tokens=limit,
        window_tokens_left=room_tokens,
        stop_sequences=(stops,) if isinstance(stops, str) else tuple(as_list(stops)),
        last_message_text=last if isinstance(last, str) else join_text(last),
    )


def find_forced_tool(choice: object) -> str | None:
    """Return the tool that must be called; "" for any, None if none must be."""
    if choice == "required":
        return ""
    chosen = as_dict(choice)
    kind = chosen.get("type")
    if kind == "allowed_tools":
        allowed = as_dict(chosen.get("allowed_tools")) or chosen
        names = [read_tool_name(as_dict(tool)) for tool in as_list(allowed.get("tools"))]
        return next(filter(None, names), None) if allowed.get("mode") == "required" else None
    return read_tool_name(chosen) if kind in ("function", "custom") else None


def text_tool_names(tools: list[dict[str, Any]]) -> frozenset[str]:
    """Return the names of custom tools, which take free text."""
    return frozenset(read_tool_name(tool) for tool in tools if tool.get("type") == "custom")


def count_choices(body: dict[str, Any]) -> int:
    """Return how many choices are requested, each of which is charged."""
    return body.get("n") or 1


def join_text(parts: object) -> str:
    return "\n".join(as_text(part.get("text")) for part in map(as_dict, as_list(parts)))


class ChatResponse:
    def __init__(self, generated: GeneratedResponse, metadata: ResponseMetadata, body: dict[str, Any]) -> None:
        self._metadata = metadata
        self._id = metadata.new_id("chatcmpl-")
        self._includes_usage = as_dict(body.get("stream_options")).get("include_usage") is True
        self._uses_functions = not body.get("tools") and bool(body.get("functions"))
        tool_calls = [part for part in generated.parts if isinstance(part, ToolCallPart)]
        calls_function = self._uses_functions and generated.stop is StopReason.TOOL_CALL
        self._finish = "function_call" if calls_function else _FINISH_REASONS[generated.stop]
        self._text = "".join(part.text for part in generated.parts if isinstance(part, TextPart))
        self._choices = [
            [_render_call(part, metadata) for part in tool_calls] for _ in range(count_choices(body))
        ]

    def body(self) -> bytes:
        choices = [
            {"index": index, "message": self._message(calls), "logprobs": None, "finish_reason": self._finish}
            for index, calls in enumerate(self._choices)
        ]
        return to_json(
            self._envelope("chat.completion") | {"choices": choices, "usage": usage_block(self._metadata)}
        )

    def _message(self, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text or None, "refusal": None}
        if calls and self._uses_functions:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message | {"annotations": []}

    def events(self) -> Iterator[bytes]:
        for index, calls in enumerate(self._choices):
            opening = {"role": "assistant", "content": None if calls else "", "refusal": None}
            yield self._chunk(index, opening)
            for chunk in split_chunks(self._text):
                yield self._chunk(index, {"content": chunk})
            for number, call in enumerate(calls[:1] if self._uses_functions else calls):
                for delta in _split_call(call):
                    call_delta = {"tool_calls": [{"index": number, **delta}]}
                    yield self._chunk(
                        index, {"function_call": delta["function"]} if self._uses_functions else call_delta
                    )
            yield self._chunk(index, {}, finish=self._finish)
        if self._includes_usage:
            envelope = self._envelope("chat.completion.chunk")
            yield encode_event(envelope | {"choices": [], "usage": usage_block(self._metadata)})
        yield DONE_EVENT

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice]}
        return encode_event(chunk | {"usage": None} if self._includes_usage else chunk)

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": int(self._metadata.created_at),
            "model": self._metadata.model,
            "service_tier": "default",
            "system_fingerprint": _FINGERPRINT,
        }


def _render_call(part: ToolCallPart, metadata: ResponseMetadata) -> dict[str, Any]:
    kind, field = ("custom", "input") if part.is_text else ("function", "arguments")
    return {"id": metadata.new_id("call_"), "type": kind, kind: {"name": part.name, field: part.arguments}}


def _split_call(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a call as it is streamed: first the name, then its arguments."""
    kind = call["type"]
    field = "input" if kind == "custom" else "arguments"
    yield call | {kind: call[kind] | {field: ""}}
    for chunk in split_chunks(call[kind][field]):
        yield {kind: {field: chunk}}


def usage_block(metadata: ResponseMetadata) -> dict[str, Any]:
    """Render usage as chat completions do: the prompt includes cache reads and writes."""
    cache, output = metadata.usage.cache, metadata.usage.output_tokens
    details = {"cached_tokens": cache.read, "audio_tokens": 0}
    if metadata.charges_cache_writes:
        details["cache_write_tokens"] = cache.written_5m + cache.written_1h
    return {
        "prompt_tokens": cache.input_tokens,
        "completion_tokens": output,
        "total_tokens": cache.input_tokens + output,
        "prompt_tokens_details": details,
        "completion_tokens_details": {
            "reasoning_tokens": metadata.usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
