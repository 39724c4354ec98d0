"""Answers as Google's generateContent gives them: a whole one, or the chunks that stream it.

After https://ai.google.dev/api/generate-content (read November 2026).
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from foveate.sandbox.answers import Answer, Called, Said, Stop, Thought, Wish, pieces
from foveate.sandbox.rendering import Sheet
from foveate.wire.body import as_list, as_record, as_text, compact

_STOPS = {Stop.LIMIT: "MAX_TOKENS", Stop.WINDOW: "MAX_TOKENS"}


def wish(asked: dict[str, Any], model: str, room_tokens: int | None, *, streams: bool) -> Wish:
    """What an accepted request wants of its answer."""
    config = as_record(asked.get("generationConfig"))
    tools = [
        as_record(function)
        for tool in as_list(asked.get("tools"))
        for function in as_list(as_record(tool).get("functionDeclarations"))
    ]
    calling = as_record(as_record(asked.get("toolConfig")).get("functionCallingConfig"))
    allowed = as_list(calling.get("allowedFunctionNames"))
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    is_json = config.get("responseMimeType") == "application/json"
    last = as_record(as_list(asked.get("contents"))[-1])
    return Wish(
        model=model,
        streams=streams,
        thinks=as_record(config.get("thinkingConfig")).get("includeThoughts") is True,
        tools=tuple((as_text(tool.get("name")), _schema(tool)) for tool in tools),
        must_call=(as_text(allowed[0]) if allowed else "") if calling.get("mode") == "ANY" else None,
        schema=(as_record(schema) if schema else {}) if is_json else None,
        limit_tokens=config.get("maxOutputTokens"),
        room_tokens=room_tokens,
        stops=tuple(as_list(config.get("stopSequences"))),
        text="\n".join(as_text(part.get("text")) for part in map(as_record, as_list(last.get("parts")))),
    )


def candidates(asked: dict[str, Any]) -> int:
    """How many answers are wanted, each of which is billed."""
    return as_record(asked.get("generationConfig")).get("candidateCount") or 1


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    """A function's schema; Google also has the names of types in capitals."""
    return as_record(_plain(tool.get("parametersJsonSchema") or tool.get("parameters")))


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: said.lower() if name == "type" and isinstance(said, str) else _plain(said)
        for name, said in schema.items()
    }


class Rendered:
    """An answer in Google's words. `as_events`: a stream has server-sent events, and not one JSON list."""

    def __init__(self, answer: Answer, sheet: Sheet, asked: dict[str, Any], *, as_events: bool) -> None:
        self._answer = answer
        self._sheet = sheet
        self._id = sheet.new_id("")
        self._times = candidates(asked)
        self._as_events = as_events

    def body(self) -> bytes:
        """The whole answer."""
        parts = [part for one in self._answer.parts for part in _parts(one, whole=True)]
        told = [self._candidate(index, parts, is_last=True) for index in range(self._times)]
        return compact(self._frame(told))

    def events(self) -> Iterator[bytes]:
        """The same as a stream."""
        chunks: list[dict[str, Any]] = []
        for index in range(self._times):
            told = [part for one in self._answer.parts for part in _parts(one, whole=False)]
            chunks += [self._candidate(index, [part], is_last=False) for part in told]
            chunks.append(self._candidate(index, [{"text": ""}], is_last=True))
        for number, chunk in enumerate(chunks):
            said = compact(self._frame([chunk]))
            if self._as_events:
                yield b"data: " + said + b"\r\n\r\n"
            else:
                yield (b",\r\n" if number else b"[") + said
        if not self._as_events:
            yield b"]"

    def _candidate(self, index: int, parts: list[dict[str, Any]], *, is_last: bool) -> dict[str, Any]:
        told: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": index}
        return told | {"finishReason": _STOPS.get(self._answer.stop, "STOP")} if is_last else told

    def _frame(self, told: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "candidates": told,
            "usageMetadata": usage_block(self._sheet),
            "modelVersion": self._sheet.model,
            "responseId": self._id,
        }


def _parts(part: Thought | Said | Called, *, whole: bool) -> list[dict[str, Any]]:
    """A part of an answer; a text that streams comes in several."""
    if isinstance(part, Called):
        signature = b64encode(part.name.encode() * 4).decode()
        call = {"name": part.name, "args": json.loads(part.arguments)}
        return [{"functionCall": call, "thoughtSignature": signature}]
    texts = [part.text] if whole else pieces(part.text)
    marked: dict[str, Any] = {"thought": True} if isinstance(part, Thought) else {}
    return [{"text": text} | marked for text in texts]


def usage_block(sheet: Sheet) -> dict[str, Any]:
    """A bill as Google writes it: the prompt includes what was read, thoughts stand beside the candidates."""
    usage = sheet.usage
    prompt, thoughts = usage.cache.input_tokens, usage.reasoning_tokens
    block: dict[str, Any] = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": usage.output_tokens - thoughts,
        "totalTokenCount": prompt + usage.output_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
    }
    if usage.cache.read:
        block["cachedContentTokenCount"] = usage.cache.read
        block["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": usage.cache.read}]
    return block | ({"thoughtsTokenCount": thoughts} if thoughts else {})


def count_body(tokens: int) -> bytes:
    """A count as Google answers it."""
    return compact({"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]})
