"""Responses of providers in every API format, complete and streamed."""

from collections.abc import Mapping, Sequence
from typing import Any

_CLAUDE_USAGE = {
    "input_tokens": 9,
    "cache_read_input_tokens": 4,
    "cache_creation_input_tokens": 2,
    "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 3,
    "service_tier": "standard",
}
_CLAUDE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-5",
    "content": [
        {"type": "text", "text": "Well \u00e9 \U0001f600"},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"path": "a"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": _CLAUDE_USAGE,
}
_CHAT_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "a"}'}}
_CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4.1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Well", "tool_calls": [_CALL]},
            "finish_reason": "stop",
        }
    ],
    "usage": _CHAT_USAGE,
    "service_tier": "default",
}
RESPONSES: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "gpt-4.1",
    "output": [
        {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Well", "annotations": []}],
        },
        {"type": "function_call", "id": "f1", "call_id": "c1", "name": "look", "arguments": "{}"},
    ],
    "error": None,
    "incomplete_details": None,
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 12,
    },
}
_GEMINI = {
    "candidates": [
        {"content": {"parts": [{"text": "Well"}], "role": "model"}, "finishReason": "STOP", "index": 0}
    ],
    "usageMetadata": {
        "promptTokenCount": 9,
        "candidatesTokenCount": 3,
        "totalTokenCount": 13,
        "cachedContentTokenCount": 4,
        "thoughtsTokenCount": 1,
    },
    "modelVersion": "gemini-2.5-pro",
    "responseId": "r1",
}
_BEDROCK: dict[str, Any] = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Well"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 9, "outputTokens": 3, "totalTokens": 12, "cacheReadInputTokens": 4},
    "metrics": {"latencyMs": 5},
}
_EMBEDDINGS = {
    "object": "list",
    "model": "text-embedding-3-small",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
    "usage": {"prompt_tokens": 9, "total_tokens": 9},
}

COMPLETE: Mapping[str, Any] = {
    "anthropic": _CLAUDE,
    "chat": _CHAT,
    "responses": RESPONSES,
    "gemini": _GEMINI,
    "bedrock": _BEDROCK,
    "embeddings": _EMBEDDINGS,
}
"""A complete response by format."""


def _delta(index: int, **delta: object) -> dict[str, object]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _chat_chunk(**more: object) -> dict[str, object]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-4.1", **more}


STREAMED: Mapping[str, Sequence[Any]] = {
    "anthropic": [
        {"type": "message_start", "message": {**_CLAUDE, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        _delta(0, type="text_delta", text="Well \u00e9 \U0001f600"),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
        },
        _delta(1, type="input_json_delta", partial_json='{"path": "a"}'),
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 5},
        },
        {"type": "message_stop"},
    ],
    "chat": [
        _chat_chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]),
        _chat_chunk(choices=[{"index": 0, "delta": {"content": "Well"}, "finish_reason": None}], usage=None),
        _chat_chunk(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0, **_CALL}]}}]),
        _chat_chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
        _chat_chunk(choices=[], usage=_CHAT_USAGE),
        "[DONE]",
    ],
    "responses": [
        {"type": "response.created", "response": {**RESPONSES, "status": "in_progress", "usage": None}},
        {"type": "response.output_text.delta", "item_id": "m1", "output_index": 0, "delta": "Well"},
        {"type": "response.output_item.done", "output_index": 0, "item": RESPONSES["output"][0]},
        {"type": "response.completed", "response": RESPONSES},
    ],
    "gemini": [
        {"candidates": [{"content": {"parts": [{"text": "We"}], "role": "model"}, "index": 0}]},
        _GEMINI,
    ],
    "bedrock": [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Well"}}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": _BEDROCK["usage"], "metrics": {"latencyMs": 5}}},
    ],
}
"""The events of a streamed response by format; a string is written as it is."""
