"""Renders responses of Google's generateContent, or the chunks of a stream.

After https://ai.google.dev/api/generate-content (read November 2026).
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.sandbox.response import (
    GeneratedResponse,
    ResponseMetadata,
    ResponseSpec,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    split_chunks,
)

_FINISH_REASONS = {StopReason.LIMIT: "MAX_TOKENS", StopReason.WINDOW: "MAX_TOKENS"}


def read_response_spec(
    body: dict[str, Any], model: str, room_tokens: int | None, *, streams: bool
) -> ResponseSpec:
    config = as_dict(body.get("generationConfig"))
    tools = [
        as_dict(function)
        for tool in as_list(body.get("tools"))
        for function in as_list(as_dict(tool).get("functionDeclarations"))
    ]
    calling = as_dict(as_dict(body.get("toolConfig")).get("functionCallingConfig"))
    allowed = as_list(calling.get("allowedFunctionNames"))
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    is_json = config.get("responseMimeType") == "application/json"
    last = as_dict(as_list(body.get("contents"))[-1])
    return ResponseSpec(
        model=model,
        is_streaming=streams,
        includes_thinking=as_dict(config.get("thinkingConfig")).get("includeThoughts") is True,
        tools=tuple((as_text(tool.get("name")), _tool_schema(tool)) for tool in tools),
        forced_tool=(as_text(allowed[0]) if allowed else "") if calling.get("mode") == "ANY" else None,
        schema=(as_dict(schema) if schema else {}) if is_json else None,
        limit_tokens=config.get("maxOutputTokens"),
        window_tokens_left=room_tokens,
        stop_sequences=tuple(as_list(config.get("stopSequences"))),
        last_message_text="\n".join(
            as_text(part.get("text")) for part in map(as_dict, as_list(last.get("parts")))
        ),
    )


def count_candidates(body: dict[str, Any]) -> int:
    return as_dict(body.get("generationConfig")).get("candidateCount") or 1


def _tool_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a function's schema. Google also accepts type names in capitals."""
    return as_dict(_lowercase_types(tool.get("parametersJsonSchema") or tool.get("parameters")))


def _lowercase_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_lowercase_types(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else _lowercase_types(value)
        for name, value in schema.items()
    }


class GeminiResponse:
    """A rendered response. `as_events`: a stream uses server-sent events instead of one JSON list."""

    def __init__(
        self, generated: GeneratedResponse, metadata: ResponseMetadata, body: dict[str, Any], *, as_events: bool
    ) -> None:
        self._generated = generated
        self._metadata = metadata
        self._id = metadata.new_id("")
        self._candidate_count = count_candidates(body)
        self._as_events = as_events

    def body(self) -> bytes:
        parts = [
            part
            for generated_part in self._generated.parts
            for part in _render_parts(generated_part, is_whole=True)
        ]
        candidates = [self._candidate(index, parts, is_last=True) for index in range(self._candidate_count)]
        return to_json(self._envelope(candidates))

    def events(self) -> Iterator[bytes]:
        chunks: list[dict[str, Any]] = []
        for index in range(self._candidate_count):
            parts = [
                part
                for generated_part in self._generated.parts
                for part in _render_parts(generated_part, is_whole=False)
            ]
            chunks += [self._candidate(index, [part], is_last=False) for part in parts]
            chunks.append(self._candidate(index, [{"text": ""}], is_last=True))
        for number, chunk in enumerate(chunks):
            encoded = to_json(self._envelope([chunk]))
            if self._as_events:
                yield b"data: " + encoded + b"\r\n\r\n"
            else:
                yield (b",\r\n" if number else b"[") + encoded
        if not self._as_events:
            yield b"]"

    def _candidate(self, index: int, parts: list[dict[str, Any]], *, is_last: bool) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": index}
        return (
            candidate | {"finishReason": _FINISH_REASONS.get(self._generated.stop, "STOP")}
            if is_last
            else candidate
        )

    def _envelope(self, candidates: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "candidates": candidates,
            "usageMetadata": usage_block(self._metadata),
            "modelVersion": self._metadata.model,
            "responseId": self._id,
        }


def _render_parts(part: ThinkingPart | TextPart | ToolCallPart, *, is_whole: bool) -> list[dict[str, Any]]:
    """Render a part; a streamed text becomes several."""
    if isinstance(part, ToolCallPart):
        signature = b64encode(part.name.encode() * 4).decode()
        call = {"name": part.name, "args": json.loads(part.arguments)}
        return [{"functionCall": call, "thoughtSignature": signature}]
    texts = [part.text] if is_whole else split_chunks(part.text)
    extra: dict[str, Any] = {"thought": True} if isinstance(part, ThinkingPart) else {}
    return [{"text": text} | extra for text in texts]


def usage_block(metadata: ResponseMetadata) -> dict[str, Any]:
    """Render usage as Google does: the prompt includes cache reads, the candidates exclude thinking."""
    usage = metadata.usage
    prompt, thinking_tokens = usage.cache.input_tokens, usage.reasoning_tokens
    block: dict[str, Any] = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": usage.output_tokens - thinking_tokens,
        "totalTokenCount": prompt + usage.output_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
    }
    if usage.cache.read:
        block["cachedContentTokenCount"] = usage.cache.read
        block["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": usage.cache.read}]
    return block | ({"thoughtsTokenCount": thinking_tokens} if thinking_tokens else {})


def render_count(tokens: int) -> bytes:
    return to_json({"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]})
