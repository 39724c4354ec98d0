"""One row of a log of requests: where the body stands in it, and what is told of answer, bill and time.

Gateways and observers name these things each in a way of its own; those of LiteLLM, Helicone, Langfuse, Portkey
and OpenPipe are known (November 2026), and whatever is called like one of them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.replay.recognising import WRAPPERS, Fields, fields_of, items_of, text_of
from foveate.replay.times import seconds
from foveate.values import CacheUsage, Format, Usage
from foveate.wire.body import as_record, as_text, compact, value
from foveate.wire.usage import tokens

MESSAGES = ("messages", "contents", "input", "generateContentRequest")
_ANSWERS = (
    "response", "response_body", "responseBody", "providerResponse", "respPayload", "answer", "output",
    "completion", "result",
)  # fmt: skip
_INSIDE = ("body", "json", "data", "response", "content")
_USAGES = ("usage", "usageDetails", "usage_details", "usage_metadata", "usageMetadata", "token_usage")
_SENT_AT = (
    "timestamp", "time", "ts", "at", "startTime", "start_time", "started_at", "startedAt", "created_at",
    "createdAt", "request_created_at", "requestedAt", "date", "created",
)  # fmt: skip
_ANSWERED_AT = (
    "completionStartTime", "completion_start_time", "endTime", "end_time", "ended_at", "receivedAt",
    "response_created_at",
)  # fmt: skip
_SESSIONS = (
    "session_id", "sessionId", "session", "conversation_id", "conversationId", "thread_id", "threadId",
)  # fmt: skip
_IDS = ("request_id", "requestId", "call_id", "litellm_call_id", "id")
_DOLLARS = ("response_cost", "cost", "costUSD", "cost_usd", "total_cost", "totalCost", "calculatedTotalCost")
# What is told of a request and was not sent with it.
_TOLD = frozenset(
    (*_ANSWERS, *_USAGES, *_SENT_AT, *_ANSWERED_AT, *_SESSIONS, *_IDS, *_DOLLARS, "metadata", "uri", "url",
     "status", "latency", "provider", "traceId", "trace_id", "prompt_tokens", "completion_tokens")
)  # fmt: skip
# Of requests that ask for no text.
_NO_TEXT = frozenset(("encoding_format", "dimensions", "output_dimension", "input_type"))
_DEEPEST = 4
# Up to a verb of the API, as in `gemini-2.5-pro:streamGenerateContent`; other colons are the name's own.
_MODEL_IN_PATH = re.compile(r"/(?:model|models|deployments)/([^/?](?:[^/?:]|:(?![a-z][A-Za-z]*(?:[/?]|$)))*+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request that was logged, and what was logged with it."""

    body: Fields
    format: Format
    model: str
    answer: bytes = b""
    billed: Usage | None = None
    at: float = 0.0
    answers_at: float = 0.0
    session: str = ""
    id: str = ""


def row_of(told: Fields) -> Row | None:
    """The request that a row holds; None where it holds none that asks a model for a text."""
    body = _body(told, _DEEPEST)
    if body is None:
        return None
    model = text_of(body, "model") or text_of(body, "modelId") or _first(told, ("model", "model_id", "modelId"))
    if body.keys() & _NO_TEXT or "embed" in model:
        return None
    try:
        spoken = wire.recognise(body)
    except MalformedRequest:
        return None
    reply = _answer(told) if told is not body else b""
    at = _time(told, _SENT_AT)
    answered = _time(told, _ANSWERED_AT)
    return Row(
        body=body,
        format=spoken,
        model=(model or _model_in_path(told)).removeprefix("models/"),
        answer=said_in(spoken, reply),
        billed=_billed(told, reply, spoken),
        at=at,
        answers_at=max(answered, at),
        session=_first(told, _SESSIONS) or _first(fields_of(told.get("metadata", b"")), _SESSIONS),
        id=_first(told, _IDS) if told is not body else "",
    )


def _body(told: Fields, deepest: int) -> Fields | None:
    """The body in a row: the row itself, or what stands under one of the names for it."""
    if any(_is_messages(told, name) for name in ("messages", "contents", "generateContentRequest")):
        return _sent(told)
    if deepest:
        for name in WRAPPERS:
            raw = told.get(name)
            inner = _object(raw) if raw is not None else {}
            if inner and (found := _body(inner, deepest - 1)) is not None:
                return found
    if "input" not in told:
        return None
    if told.keys() & {"output", "traceId", "usageDetails"} and _is_messages(told, "input"):
        return {"messages": told["input"], **{key: told[key] for key in ("model", "tools") if key in told}}
    return _sent(told)


def _sent(told: Fields) -> Fields:
    """A body that stands among what is told of it, without that."""
    is_log = told.keys() & {*_ANSWERS, *_USAGES, *_SENT_AT, *_SESSIONS, "uri", "provider"}
    return {name: raw for name, raw in told.items() if name not in _TOLD} if is_log else told


def _is_messages(told: Fields, name: str) -> bool:
    raw = told.get(name)
    if raw is None:
        return False
    head = bytes(memoryview(raw)[:1])
    return head == b"[" or (name == "generateContentRequest" and head == b"{")


def _object(raw: msgspec.Raw) -> Fields:
    """An object, also where it is written as a string."""
    if bytes(memoryview(raw)[:1]) == b'"':
        return fields_of(as_text(value(raw)).encode("utf-8", "replace"))
    return fields_of(raw)


def _model_in_path(told: Fields) -> str:
    """The model where only the address names it: Gemini, Bedrock, Azure."""
    found = _MODEL_IN_PATH.search(_first(told, ("uri", "url", "path", "route")))
    return unquote(found[1].strip()) if found else ""


def _first(told: Fields, names: Iterable[str]) -> str:
    return next((found for name in names if (found := text_of(told, name))), "")


def _time(told: Fields, names: Iterable[str]) -> float:
    for name in names:
        raw = told.get(name)
        if raw is not None and bytes(memoryview(raw)[:1]) not in (b"{", b"["):
            found = seconds(value(raw))
            if found:
                return found
    return 0.0


def _answer(told: Fields) -> bytes:
    """The provider's answer, as it came or as a log keeps it; nothing where it was not kept."""
    for name in _ANSWERS:
        raw = told.get(name)
        if raw is None:
            continue
        found = bytes(raw)
        if found.startswith(b'"'):
            found = as_text(value(found)).encode("utf-8", "replace").strip()
        inner = fields_of(found)
        for below in _INSIDE:
            if below in inner and not inner.keys() & {"choices", "usage", "role", "candidates"}:
                deeper = bytes(inner[below])
                if deeper.startswith(b"{"):
                    found = deeper
                elif deeper.startswith(b'"') and below != "content":
                    found = as_text(value(deeper)).encode("utf-8", "replace").strip()
        if found and found != b"null":
            return found
    return b""


def _billed(told: Fields, reply: bytes, spoken: Format) -> Usage | None:
    """The bill, from the answer or from what the log itself says of it."""
    if reply.startswith((b"data:", b"event:")):
        reader = wire.StreamReader(spoken)
        reader.feed(reply)
        reader.end()
        if reader.usage is not None:
            return reader.usage
    elif reply.startswith((b"{", b"[")) and (usage := wire.reply_usage(spoken, reply)) is not None:
        return usage
    for name in _USAGES:
        raw = told.get(name)
        if raw is None or bytes(memoryview(raw)[:1]) != b"{":
            continue
        if (usage := wire.block_usage(spoken, bytes(raw)) or _plain_usage(as_record(value(raw)))) is not None:
            return usage
    if "prompt_tokens" in told and "completion_tokens" in told:
        numbers = {name: told[name] for name in ("prompt_tokens", "completion_tokens")}
        return wire.block_usage(Format.CHAT, msgspec.json.encode(numbers))
    return None


def _plain_usage(said: dict[str, Any]) -> Usage | None:
    """Langfuse's own numbers: what no cache served, and beside it what one did."""
    if not said.keys() & {"input", "promptTokens", "inputTokens"}:
        return None
    read = ("cache_read_input_tokens", "input_cached_tokens", "input_cache_read")
    written = ("cache_creation_input_tokens", "input_cache_creation")
    return Usage(
        cache=CacheUsage(
            uncached=max(tokens(said.get(name)) for name in ("input", "promptTokens", "inputTokens")),
            read=max(tokens(said.get(name)) for name in read),
            written_5m=max(tokens(said.get(name)) for name in written),
        ),
        output_tokens=max(tokens(said.get(name)) for name in ("output", "completionTokens", "outputTokens")),
        raw=compact(said),
    )


def said_in(spoken: Format, reply: bytes) -> bytes:
    """What a model said in an answer, as the message that is sent again; nothing where it cannot be told."""
    found = fields_of(reply)
    if "choices" in found:
        first = next(iter(items_of(found["choices"])), None)
        return bytes(fields_of(first).get("message", b"")) if first is not None else b""
    if "candidates" in found:
        first = next(iter(items_of(found["candidates"])), None)
        return bytes(fields_of(first).get("content", b"")) if first is not None else b""
    output = found.get("output")
    if output is not None and bytes(memoryview(output)[:1]) == b"[":
        return _joined(items_of(output))
    if output is not None:  # Bedrock
        return bytes(fields_of(output).get("message", b""))
    if "content" in found:
        return msgspec.json.encode({"role": "assistant", "content": found["content"]})
    if reply.startswith((b"{", b"[", b"data:", b"event:")) or not reply or spoken is Format.GEMINI:
        return b""
    return compact({"role": "assistant", "content": reply.decode("utf-8", "replace")})


def _joined(items: Iterable[msgspec.Raw]) -> bytes:
    """The items of an answer of OpenAI's Responses as one message."""
    texts = []
    for item in items:
        told = fields_of(item)
        texts += [text_of(fields_of(block), "text") for block in items_of(told.get("content", b""))]
        texts.append(text_of(told, "arguments"))
    blocks = [{"type": "output_text", "text": text} for text in texts if text]
    return compact({"type": "message", "role": "assistant", "content": blocks})
