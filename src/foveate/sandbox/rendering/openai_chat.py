"""Renders responses as OpenAI chat completions, or as the chunks of a stream.

After https://platform.openai.com/docs/api-reference/chat-streaming (read November 2026).
"""

from collections.abc import Iterator
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
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
from foveate.sandbox.validation.openai import read_tool_name

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
