"""Renders responses as Anthropic messages, or as the events of a stream.

After https://platform.claude.com/docs/en/build-with-claude/streaming (read November 2026).
"""

from collections.abc import Callable, Iterator
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text, parse_json, to_json
from foveate.model import Usage
from foveate.sandbox.response import (
    GeneratedResponse,
    ResponseMetadata,
    ResponseSpec,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    encode_event,
    split_chunks,
)
from foveate.sandbox.validation.anthropic import is_thinking_enabled
from foveate.sandbox.validation.anthropic_messages import content_blocks

_STOP_REASONS = {
    StopReason.DONE: "end_turn",
    StopReason.TOOL_CALL: "tool_use",
    StopReason.LIMIT: "max_tokens",
    StopReason.SEQUENCE: "stop_sequence",
    StopReason.WINDOW: "model_context_window_exceeded",
}
_JSON = "json_schema"
# Tools that the provider defines and the client runs. The provider runs its other tools itself.
_CLIENT_TOOL_PREFIXES = ("bash_", "text_editor_", "computer_2", "memory_")


def read_response_spec(body: dict[str, Any], room_tokens: int | None) -> ResponseSpec:
    choice = as_dict(body.get("tool_choice"))
    forced = {"any": "", "tool": as_text(choice.get("name"))}.get(as_text(choice.get("type")))
    output = as_dict(as_dict(body.get("output_config")).get("format") or body.get("output_format"))
    last = content_blocks(as_dict(body["messages"][-1]))
    return ResponseSpec(
        model=as_text(body["model"]),
        is_streaming=bool(body.get("stream")),
        includes_thinking=is_thinking_enabled(body),
        tools=tuple(
            (as_text(tool.get("name")), as_dict(tool.get("input_schema")))
            for tool in map(as_dict, as_list(body.get("tools")))
            if "input_schema" in tool or as_text(tool.get("type")).startswith(_CLIENT_TOOL_PREFIXES)
        ),
        forced_tool=forced,
        schema=as_dict(output.get("schema")) if output.get("type") == _JSON else None,
        limit_tokens=body["max_tokens"],
        window_tokens_left=room_tokens,
        stop_sequences=tuple(as_list(body.get("stop_sequences"))),
        last_message_text="\n".join(as_text(block.get("text")) for block in last),
    )


def visible_thinking(body: dict[str, Any], thinking: str) -> str:
    """Return the thinking text that the response shows; it may be omitted, and only its signature sent."""
    return "" if as_dict(body.get("thinking")).get("display") == "omitted" else thinking


class AnthropicResponse:
    """A rendered response. `sign` returns the signature of the visible thinking."""

    def __init__(
        self,
        generated: GeneratedResponse,
        metadata: ResponseMetadata,
        *,
        show: Callable[[str], str],
        sign: Callable[[str], str],
    ) -> None:
        self._generated = generated
        self._metadata = metadata
        self.id = metadata.new_id("msg_01")
        self.content = [_render_block(part, metadata, show, sign) for part in generated.parts]

    def body(self) -> bytes:
        usage = usage_block(self._metadata.usage)
        return to_json(self._message(self.content, self._stop_fields(), usage))

    def events(self) -> Iterator[bytes]:
        initial_usage = usage_block(self._metadata.usage) | {"output_tokens": 1}
        silent: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}
        yield _encode_typed_event(
            {"type": "message_start", "message": self._message([], silent, initial_usage)}
        )
        for index, block in enumerate(self.content):
            empty, deltas = _split_deltas(block)
            yield _encode_typed_event({"type": "content_block_start", "index": index, "content_block": empty})
            if index == 0:
                yield _encode_typed_event({"type": "ping"})
            for delta in deltas:
                yield _encode_typed_event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _encode_typed_event({"type": "content_block_stop", "index": index})
        usage = usage_block(self._metadata.usage)
        del usage["cache_creation"], usage["service_tier"]
        yield _encode_typed_event({"type": "message_delta", "delta": self._stop_fields(), "usage": usage})
        yield _encode_typed_event({"type": "message_stop"})

    def _stop_fields(self) -> dict[str, str | None]:
        return {
            "stop_reason": _STOP_REASONS[self._generated.stop],
            "stop_sequence": self._generated.stop_sequence,
        }

    def _message(
        self, blocks: list[dict[str, Any]], ending: dict[str, str | None], usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._metadata.model,
            "content": blocks,
            **ending,
            "usage": usage,
        }


def usage_block(usage: Usage) -> dict[str, Any]:
    """Render usage as Anthropic does: cache reads and writes are not part of the input tokens."""
    cache = usage.cache
    return {
        "input_tokens": cache.uncached,
        "cache_creation_input_tokens": cache.written_5m + cache.written_1h,
        "cache_read_input_tokens": cache.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cache.written_5m,
            "ephemeral_1h_input_tokens": cache.written_1h,
        },
        "output_tokens": usage.output_tokens,
        "service_tier": "standard",
    }


def error_event(message: str) -> bytes:
    return _encode_typed_event({"type": "error", "error": {"type": "overloaded_error", "message": message}})


def _render_block(
    part: ThinkingPart | TextPart | ToolCallPart,
    metadata: ResponseMetadata,
    show: Callable[[str], str],
    sign: Callable[[str], str],
) -> dict[str, Any]:
    match part:
        case ThinkingPart(text):
            return {"type": "thinking", "thinking": show(text), "signature": sign(show(text))}
        case TextPart(text):
            return {"type": "text", "text": text}
        case ToolCallPart(name, arguments, _):
            tool_input = parse_json(arguments.encode())
            return {"type": "tool_use", "id": metadata.new_id("toolu_01"), "name": name, "input": tool_input}


def _split_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return an empty block, and the deltas that fill it."""
    match block["type"]:
        case "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": chunk} for chunk in split_chunks(block["thinking"])
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "text":
            return {"type": "text", "text": ""}, [
                {"type": "text_delta", "text": chunk} for chunk in split_chunks(block["text"])
            ]
        case _:
            encoded_input = to_json(block["input"]).decode()
            deltas = [
                {"type": "input_json_delta", "partial_json": chunk}
                for chunk in ("", *split_chunks(encoded_input))
            ]
            return block | {"input": {}}, deltas


def _encode_typed_event(data: dict[str, Any]) -> bytes:
    return encode_event(data, data["type"])
