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
from foveate.replay.recognising import BODY_FIELDS, Fields, read_fields, read_items, read_text
from foveate.replay.times import parse_time
from foveate.values import CacheUsage, Format, Usage
from foveate.wire.body import as_dict, as_text, parse_json, to_json
from foveate.wire.usage import tokens_or_zero

MESSAGE_FIELDS = ("messages", "contents", "input", "generateContentRequest")
_RESPONSE_FIELDS = (
    "response", "response_body", "responseBody", "providerResponse", "respPayload", "answer", "output",
    "completion", "result",
)  # fmt: skip
_NESTED_FIELDS = ("body", "json", "data", "response", "content")
_USAGE_FIELDS = ("usage", "usageDetails", "usage_details", "usage_metadata", "usageMetadata", "token_usage")
_SENT_AT_FIELDS = (
    "timestamp", "time", "ts", "at", "startTime", "start_time", "started_at", "startedAt", "created_at",
    "createdAt", "request_created_at", "requestedAt", "date", "created",
)  # fmt: skip
_RESPONSE_AT_FIELDS = (
    "completionStartTime", "completion_start_time", "endTime", "end_time", "ended_at", "receivedAt",
    "response_created_at",
)  # fmt: skip
_SESSION_FIELDS = (
    "session_id", "sessionId", "session", "conversation_id", "conversationId", "thread_id", "threadId",
)  # fmt: skip
_ID_FIELDS = ("request_id", "requestId", "call_id", "litellm_call_id", "id")
_DOLLARS = ("response_cost", "cost", "costUSD", "cost_usd", "total_cost", "totalCost", "calculatedTotalCost")
# What is told of a request and was not sent with it.
_LOG_FIELDS = frozenset(
    (*_RESPONSE_FIELDS, *_USAGE_FIELDS, *_SENT_AT_FIELDS, *_RESPONSE_AT_FIELDS, *_SESSION_FIELDS, *_ID_FIELDS, *_DOLLARS, "metadata", "uri", "url",
     "status", "latency", "provider", "traceId", "trace_id", "prompt_tokens", "completion_tokens")
)  # fmt: skip
# Of requests that ask for no text.
_EMBEDDING_FIELDS = frozenset(("encoding_format", "dimensions", "output_dimension", "input_type"))
_MAX_DEPTH = 4
# Up to a verb of the API, as in `gemini-2.5-pro:streamGenerateContent`; other colons are the name's own.
_MODEL_IN_PATH = re.compile(r"/(?:model|models|deployments)/([^/?](?:[^/?:]|:(?![a-z][A-Za-z]*(?:[/?]|$)))*+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request that was logged, and what was logged with it."""

    body: Fields
    format: Format
    model: str
    response: bytes = b""
    usage: Usage | None = None
    at: float = 0.0
    response_at: float = 0.0
    session: str = ""
    id: str = ""


def parse_row(fields: Fields) -> LoggedRequest | None:
    """The request that a row holds; None where it holds none that asks a model for a text."""
    body = _find_body(fields, _MAX_DEPTH)
    if body is None:
        return None
    model = (
        read_text(body, "model")
        or read_text(body, "modelId")
        or _first_text(fields, ("model", "model_id", "modelId"))
    )
    if body.keys() & _EMBEDDING_FIELDS or "embed" in model:
        return None
    try:
        api_format = wire.detect_format(body)
    except MalformedRequest:
        return None
    reply = _find_response(fields) if fields is not body else b""
    at = _first_time(fields, _SENT_AT_FIELDS)
    response_at = _first_time(fields, _RESPONSE_AT_FIELDS)
    return LoggedRequest(
        body=body,
        format=api_format,
        model=(model or _find_model_in_path(fields)).removeprefix("models/"),
        response=extract_message(api_format, reply),
        usage=_find_usage(fields, reply, api_format),
        at=at,
        response_at=max(response_at, at),
        session=_first_text(fields, _SESSION_FIELDS)
        or _first_text(read_fields(fields.get("metadata", b"")), _SESSION_FIELDS),
        id=_first_text(fields, _ID_FIELDS) if fields is not body else "",
    )


def _find_body(fields: Fields, max_depth: int) -> Fields | None:
    """The body in a row: the row itself, or what stands under one of the names for it."""
    if any(_is_messages(fields, name) for name in ("messages", "contents", "generateContentRequest")):
        return _strip_log_fields(fields)
    if max_depth:
        for name in BODY_FIELDS:
            raw = fields.get(name)
            inner = _read_object(raw) if raw is not None else {}
            if inner and (found := _find_body(inner, max_depth - 1)) is not None:
                return found
    if "input" not in fields:
        return None
    if fields.keys() & {"output", "traceId", "usageDetails"} and _is_messages(fields, "input"):
        return {
            "messages": fields["input"],
            **{key: fields[key] for key in ("model", "tools") if key in fields},
        }
    return _strip_log_fields(fields)


def _strip_log_fields(fields: Fields) -> Fields:
    """A body that stands among what is told of it, without that."""
    is_log = fields.keys() & {
        *_RESPONSE_FIELDS,
        *_USAGE_FIELDS,
        *_SENT_AT_FIELDS,
        *_SESSION_FIELDS,
        "uri",
        "provider",
    }
    return {name: raw for name, raw in fields.items() if name not in _LOG_FIELDS} if is_log else fields


def _is_messages(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    if raw is None:
        return False
    head = bytes(memoryview(raw)[:1])
    return head == b"[" or (name == "generateContentRequest" and head == b"{")


def _read_object(raw: msgspec.Raw) -> Fields:
    """An object, also where it is written as a string."""
    if bytes(memoryview(raw)[:1]) == b'"':
        return read_fields(as_text(parse_json(raw)).encode("utf-8", "replace"))
    return read_fields(raw)


def _find_model_in_path(fields: Fields) -> str:
    """The model where only the address names it: Gemini, Bedrock, Azure."""
    found = _MODEL_IN_PATH.search(_first_text(fields, ("uri", "url", "path", "route")))
    return unquote(found[1].strip()) if found else ""


def _first_text(fields: Fields, names: Iterable[str]) -> str:
    return next((found for name in names if (found := read_text(fields, name))), "")


def _first_time(fields: Fields, names: Iterable[str]) -> float:
    for name in names:
        raw = fields.get(name)
        if raw is not None and bytes(memoryview(raw)[:1]) not in (b"{", b"["):
            found = parse_time(parse_json(raw))
            if found:
                return found
    return 0.0


def _find_response(fields: Fields) -> bytes:
    """The provider's answer, as it came or as a log keeps it; nothing where it was not kept."""
    for name in _RESPONSE_FIELDS:
        raw = fields.get(name)
        if raw is None:
            continue
        found = bytes(raw)
        if found.startswith(b'"'):
            found = as_text(parse_json(found)).encode("utf-8", "replace").strip()
        inner = read_fields(found)
        for below in _NESTED_FIELDS:
            if below in inner and not inner.keys() & {"choices", "usage", "role", "candidates"}:
                deeper = bytes(inner[below])
                if deeper.startswith(b"{"):
                    found = deeper
                elif deeper.startswith(b'"') and below != "content":
                    found = as_text(parse_json(deeper)).encode("utf-8", "replace").strip()
        if found and found != b"null":
            return found
    return b""


def _find_usage(fields: Fields, reply: bytes, api_format: Format) -> Usage | None:
    """The bill, from the answer or from what the log itself says of it."""
    if reply.startswith((b"data:", b"event:")):
        reader = wire.StreamReader(api_format)
        reader.feed(reply)
        reader.end()
        if reader.usage is not None:
            return reader.usage
    elif reply.startswith((b"{", b"[")) and (usage := wire.read_response_usage(api_format, reply)) is not None:
        return usage
    for name in _USAGE_FIELDS:
        raw = fields.get(name)
        if raw is None or bytes(memoryview(raw)[:1]) != b"{":
            continue
        if (
            usage := wire.parse_usage(api_format, bytes(raw)) or _parse_langfuse_usage(as_dict(parse_json(raw)))
        ) is not None:
            return usage
    if "prompt_tokens" in fields and "completion_tokens" in fields:
        numbers = {name: fields[name] for name in ("prompt_tokens", "completion_tokens")}
        return wire.parse_usage(Format.CHAT, msgspec.json.encode(numbers))
    return None


def _parse_langfuse_usage(counts: dict[str, Any]) -> Usage | None:
    """Langfuse's own numbers: what no cache served, and beside it what one did."""
    if not counts.keys() & {"input", "promptTokens", "inputTokens"}:
        return None
    read = ("cache_read_input_tokens", "input_cached_tokens", "input_cache_read")
    written = ("cache_creation_input_tokens", "input_cache_creation")
    return Usage(
        cache=CacheUsage(
            uncached=max(tokens_or_zero(counts.get(name)) for name in ("input", "promptTokens", "inputTokens")),
            read=max(tokens_or_zero(counts.get(name)) for name in read),
            written_5m=max(tokens_or_zero(counts.get(name)) for name in written),
        ),
        output_tokens=max(
            tokens_or_zero(counts.get(name)) for name in ("output", "completionTokens", "outputTokens")
        ),
        raw=to_json(counts),
    )


def extract_message(api_format: Format, reply: bytes) -> bytes:
    """What a model said in an answer, as the message that is sent again; nothing where it cannot be told."""
    found = read_fields(reply)
    if "choices" in found:
        first = next(iter(read_items(found["choices"])), None)
        return bytes(read_fields(first).get("message", b"")) if first is not None else b""
    if "candidates" in found:
        first = next(iter(read_items(found["candidates"])), None)
        return bytes(read_fields(first).get("content", b"")) if first is not None else b""
    output = found.get("output")
    if output is not None and bytes(memoryview(output)[:1]) == b"[":
        return _join_items(read_items(output))
    if output is not None:  # Bedrock
        return bytes(read_fields(output).get("message", b""))
    if "content" in found:
        return msgspec.json.encode({"role": "assistant", "content": found["content"]})
    if reply.startswith((b"{", b"[", b"data:", b"event:")) or not reply or api_format is Format.GEMINI:
        return b""
    return to_json({"role": "assistant", "content": reply.decode("utf-8", "replace")})


def _join_items(items: Iterable[msgspec.Raw]) -> bytes:
    """The items of an answer of OpenAI's Responses as one message."""
    texts = []
    for item in items:
        fields = read_fields(item)
        texts += [read_text(read_fields(block), "text") for block in read_items(fields.get("content", b""))]
        texts.append(read_text(fields, "arguments"))
    blocks = [{"type": "output_text", "text": text} for text in texts if text]
    return to_json({"type": "message", "role": "assistant", "content": blocks})
