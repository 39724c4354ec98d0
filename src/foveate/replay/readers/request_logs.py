"""Reads logs of requests: request bodies, alone or with their responses, usage and times.

Gateways and observability tools name these fields differently. Those of LiteLLM, Helicone, Langfuse, Portkey
and OpenPipe are known (November 2026), and any that use the same names.

A body contains the whole conversation so far, so the common part of two bodies is stored once. Reading takes
time in proportion to the size of the log.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import msgspec

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import as_dict, as_text, parse_json, to_json
from foveate.formats.response.usage import tokens_or_zero
from foveate.model import CacheUsage, Format, Usage
from foveate.replay.readers.format_detection import (
    BODY_FIELDS,
    Fields,
    list_rows,
    read_fields,
    read_items,
    read_text,
)
from foveate.replay.readers.log_file import LogFile, describe_problem, parse_time
from foveate.replay.readers.message_lists import find_missing_preamble
from foveate.replay.readers.message_tree import MessageTree, find_breakpoint_ttl
from foveate.replay.recording import (
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)

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
_COST_FIELDS = (
    "response_cost",
    "cost",
    "costUSD",
    "cost_usd",
    "total_cost",
    "totalCost",
    "calculatedTotalCost",
)
# Fields of the log that are not part of the request.
_LOG_FIELDS = frozenset(
    (*_RESPONSE_FIELDS, *_USAGE_FIELDS, *_SENT_AT_FIELDS, *_RESPONSE_AT_FIELDS, *_SESSION_FIELDS, *_ID_FIELDS,
     *_COST_FIELDS, "metadata", "uri", "url", "status", "latency", "provider", "traceId", "trace_id",
     "prompt_tokens", "completion_tokens")
)  # fmt: skip
# Fields of requests that do not generate text.
_EMBEDDING_FIELDS = frozenset(("encoding_format", "dimensions", "output_dimension", "input_type"))
_MAX_DEPTH = 4
# Up to a method of the API, as in `gemini-2.5-pro:streamGenerateContent`; other colons are part of the name.
_MODEL_IN_PATH = re.compile(
    r"/(?:model|models|deployments)/([^/?](?>(?:[^/?:]|:(?![a-z][A-Za-z]*(?:[/?]|$)))*))"
)
_GEMINI_WRAPPER = "generateContentRequest"
# Types of rows that are not model calls, and further fields that name the model.
_NON_CALL_TYPES = frozenset(("SPAN", "EVENT", "TOOL", "CHAIN", "AGENT", "RETRIEVER", "EVALUATOR", "GUARDRAIL"))
_MODEL_FIELDS = ("provided_model_name", "providedModelName", "request_model", "model_name", "modelName")
_STATUS_FIELDS = ("status", "status_code", "statusCode", "response_status", "responseStatus", "level")
_FAILED_STATUSES = frozenset(("failure", "failed", "error"))
_MIN_ERROR_STATUS = 400
_RESPONSE_BODY_FIELDS = ("response", "response_body", "responseBody")
_THINKING_FIELDS = ("thinking", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
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
    """The request in a row; None if it contains none that generates text."""
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
        api_format = formats.detect_format(body)
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
    """The body in a row: the row itself, or a field that contains it."""
    if any(_is_messages(fields, name) for name in ("messages", "contents", "generateContentRequest")):
        return _strip_log_fields(fields)
    if max_depth:
        for name in BODY_FIELDS:
            raw = fields.get(name)
            inner = _read_object(raw) if raw is not None else {}
            if inner and (body := _find_body(inner, max_depth - 1)) is not None:
                return body
    if "input" not in fields:
        return None
    if fields.keys() & {"output", "traceId", "usageDetails"} and _is_messages(fields, "input"):
        return {
            "messages": fields["input"],
            **{key: fields[key] for key in ("model", "tools") if key in fields},
        }
    return _strip_log_fields(fields)


def _strip_log_fields(fields: Fields) -> Fields:
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
    if bytes(memoryview(raw)[:1]) == b'"':
        return read_fields(as_text(parse_json(raw)).encode("utf-8", "replace"))
    return read_fields(raw)


def _find_model_in_path(fields: Fields) -> str:
    """The model, if only the URL names it: Gemini, Bedrock, Azure."""
    match = _MODEL_IN_PATH.search(_first_text(fields, ("uri", "url", "path", "route")))
    return unquote(match[1].strip()) if match else ""


def _first_text(fields: Fields, names: Iterable[str]) -> str:
    return next((text for name in names if (text := read_text(fields, name))), "")


def _first_time(fields: Fields, names: Iterable[str]) -> float:
    for name in names:
        raw = fields.get(name)
        if raw is not None and bytes(memoryview(raw)[:1]) not in (b"{", b"["):
            at = parse_time(parse_json(raw))
            if at:
                return at
    return 0.0


def _find_response(fields: Fields) -> bytes:
    """The provider's response, as received or as a log stores it; empty if it was not stored."""
    for name in _RESPONSE_FIELDS:
        raw = fields.get(name)
        if raw is None:
            continue
        response = bytes(raw)
        if response.startswith(b'"'):
            response = as_text(parse_json(response)).encode("utf-8", "replace").strip()
        inner = read_fields(response)
        for below in _NESTED_FIELDS:
            if below in inner and not inner.keys() & {"choices", "usage", "role", "candidates"}:
                deeper = bytes(inner[below])
                if deeper.startswith(b"{"):
                    response = deeper
                elif deeper.startswith(b'"') and below != "content":
                    response = as_text(parse_json(deeper)).encode("utf-8", "replace").strip()
        if response and response != b"null":
            return response
    return b""


def _find_usage(fields: Fields, reply: bytes, api_format: Format) -> Usage | None:
    if reply.startswith((b"data:", b"event:")):
        reader = formats.StreamReader(api_format)
        reader.feed(reply)
        reader.end()
        if reader.usage is not None:
            return reader.usage
    elif (
        reply.startswith((b"{", b"[")) and (usage := formats.read_response_usage(api_format, reply)) is not None
    ):
        return usage
    for name in _USAGE_FIELDS:
        raw = fields.get(name)
        if raw is None or bytes(memoryview(raw)[:1]) != b"{":
            continue
        if (
            usage := formats.parse_usage(api_format, bytes(raw))
            or _parse_langfuse_usage(as_dict(parse_json(raw)))
        ) is not None:
            return usage
    if "prompt_tokens" in fields and "completion_tokens" in fields:
        numbers = {name: fields[name] for name in ("prompt_tokens", "completion_tokens")}
        return formats.parse_usage(Format.CHAT, msgspec.json.encode(numbers))
    return None


def _parse_langfuse_usage(counts: dict[str, Any]) -> Usage | None:
    """Langfuse's own format: uncached input, and cached input in separate fields."""
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
    """The message in a response, as it is sent again; empty if it cannot be determined."""
    response = read_fields(reply)
    if "choices" in response:
        first = next(iter(read_items(response["choices"])), None)
        return bytes(read_fields(first).get("message", b"")) if first is not None else b""
    if "candidates" in response:
        first = next(iter(read_items(response["candidates"])), None)
        return bytes(read_fields(first).get("content", b"")) if first is not None else b""
    output = response.get("output")
    if output is not None and bytes(memoryview(output)[:1]) == b"[":
        return _join_items(read_items(output))
    if output is not None:  # Bedrock
        return bytes(read_fields(output).get("message", b""))
    if "content" in response:
        return msgspec.json.encode({"role": "assistant", "content": response["content"]})
    if reply.startswith((b"{", b"[", b"data:", b"event:")) or not reply or api_format is Format.GEMINI:
        return b""
    return to_json({"role": "assistant", "content": reply.decode("utf-8", "replace")})


def _join_items(items: Iterable[msgspec.Raw]) -> bytes:
    texts = []
    for item in items:
        fields = read_fields(item)
        texts += [read_text(read_fields(block), "text") for block in read_items(fields.get("content", b""))]
        texts.append(read_text(fields, "arguments"))
    blocks = [{"type": "output_text", "text": text} for text in texts if text]
    return to_json({"type": "message", "role": "assistant", "content": blocks})


@dataclass(slots=True)
class LoggedConversations:
    source: RecordingSource
    name: str
    _trees: dict[Format, MessageTree] = field(default_factory=dict)
    _envelopes: dict[bytes, bytes] = field(default_factory=dict)
    _envelope_fields: dict[tuple[Format, str], set[str]] = field(default_factory=dict)
    _calls: dict[tuple[Format, str], list[RecordedCall]] = field(default_factory=dict)
    _roots: dict[RecordedMessage, str] = field(default_factory=dict)

    def add(self, row: LoggedRequest, default_id: str) -> None:
        """Add a call under the row's id, or `default_id`. Requests without messages are ignored.

        Raises:
            MalformedRequest: one of its messages cannot be read.
        """
        tree = self._trees.setdefault(row.format, MessageTree())
        body = read_fields(row.body[_GEMINI_WRAPPER]) if _GEMINI_WRAPPER in row.body else row.body
        messages_field = next((name for name in MESSAGE_FIELDS if name in body), "")
        last = tree.append_all(_list_messages(body.get(messages_field)))
        if last is None:
            return
        root = tree.find_root(last)
        session = row.session or self._roots.setdefault(root, f"{self.name}:{len(self._roots) + 1}")
        envelope_fields = {name: raw for name, raw in body.items() if name != messages_field}
        envelope = msgspec.json.encode(envelope_fields) if envelope_fields else b""
        call = RecordedCall(
            id=row.id or default_id,
            conversation=self._roots.get(root, session),
            model=row.model,
            at=row.at,
            response_at=row.response_at,
            last_message=last,
            response=row.response,
            envelope=self._envelopes.setdefault(envelope, envelope),
            has_thinking=_requests_thinking(body),
            # Usage tells it more reliably.
            breakpoint_ttl=find_breakpoint_ttl(bytes(body[messages_field])) or find_breakpoint_ttl(envelope)
            if row.usage is None
            else None,
            usage=row.usage,
        )
        self._calls.setdefault((row.format, session), []).append(call)
        self._envelope_fields.setdefault((row.format, session), set()).update(envelope_fields)

    def recordings(self) -> list[Recording]:
        """One recording per conversation; conversations of a single call are combined."""
        single_calls: dict[Format, list[RecordedCall]] = {}
        recordings = []
        for (api_format, session), calls in self._calls.items():
            if len(calls) == 1 and session.startswith(f"{self.name}:") and len(self._calls) > 1:
                single_calls.setdefault(api_format, []).extend(calls)
            else:
                name = self.name if len(self._calls) == 1 and session in self._roots.values() else session
                recordings.append(
                    self._make_recording(name, api_format, calls, self._envelope_fields[api_format, session])
                )
        for api_format, calls in single_calls.items():
            envelope_fields = {"tools", "system"}  # each had its own
            recordings.append(
                self._make_recording(f"{self.name} ({api_format})", api_format, calls, envelope_fields)
            )
        return recordings

    def _make_recording(
        self, name: str, api_format: Format, calls: list[RecordedCall], envelope_fields: set[str]
    ) -> Recording:
        ordered = tuple(sorted(calls, key=lambda call: call.at))
        missing = find_missing_parts(ordered)
        if not any(call.envelope for call in calls):
            missing |= find_missing_preamble(ordered, envelope_fields)
        return Recording(name=name, source=self.source, format=api_format, calls=ordered, missing=missing)


def read_request_logs(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the conversations in a log.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    conversations = LoggedConversations(RecordingSource.REQUESTS, file.name)
    for number, document in file.documents():
        for at, fields in enumerate(_list_rows(document)):
            try:
                row = _read_row(fields, model)
                if row is None:
                    continue
                conversations.add(row, f"{file.path}:{number}:{at}")
            except MalformedRequest as error:
                file.report_unreadable(number, str(error))
        if not document.startswith(b"[") and not read_fields(document):
            file.report_unreadable(number, describe_problem(document, "is JSON, but not an object"))
    return [
        replace(recording, unreadable=tuple(file.unreadable), size_bytes=file.size_bytes)
        if at == 0
        else recording
        for at, recording in enumerate(conversations.recordings())
    ]


def _list_rows(document: bytes) -> Iterator[Fields]:
    """The rows of a document: the document itself, the items of a list, or those of a list in it."""
    if document.startswith(b"["):
        yield from map(read_fields, read_items(document))
    elif fields := read_fields(document):
        nested = [item for rows in list_rows(fields) for item in rows]
        yield from map(read_fields, nested) if nested and parse_row(fields) is None else (fields,)


def _read_row(fields: Fields, model: str | None) -> LoggedRequest | None:
    if read_text(fields, "type").upper() in _NON_CALL_TYPES and fields.keys() & {"traceId", "trace_id"}:
        return None
    row = parse_row(fields)
    if row is None or (row.usage is None and _has_failed(fields)):
        return None
    model_name = row.model or next(
        (name for name in (read_text(fields, field_name) for field_name in _MODEL_FIELDS) if name), ""
    )
    at = row.at or _response_time(fields)
    return replace(row, model=model_name or model or "", at=at, response_at=row.response_at or at)


def _has_failed(fields: Fields) -> bool:
    """Return whether a row says that its request failed, so that it was not charged."""
    for name in _STATUS_FIELDS:
        status = parse_json(fields[name]) if name in fields else None
        if (isinstance(status, int) and status >= _MIN_ERROR_STATUS) or as_text(
            status
        ).lower() in _FAILED_STATUSES:
            return True
    responses = (read_fields(fields[name]) for name in _RESPONSE_BODY_FIELDS if name in fields)
    return any("error" in response and bytes(response["error"]) != b"null" for response in responses)


def _response_time(fields: Fields) -> float:
    for name in _RESPONSE_BODY_FIELDS:
        response = read_fields(fields[name]) if name in fields else {}
        for inner in (response, read_fields(response.get("body", b""))):
            created_at = next(
                (inner[created] for created in ("created", "created_at") if created in inner), None
            )
            if created_at is not None and (at := parse_time(parse_json(created_at))):
                return at
    return 0.0


def _requests_thinking(body: Fields) -> bool:
    thinking, reasoning = (as_dict(parse_json(body[name])) if name in body else {} for name in _THINKING_FIELDS)
    return thinking.get("type") in ("enabled", "adaptive") or reasoning.get("effort") not in (None, "none")


def _list_messages(raw: msgspec.Raw | None) -> Iterator[bytes]:
    if raw is None:
        return
    if bytes(memoryview(raw)[:1]) == b'"':  # the input of the Responses API can be a string
        text = as_text(parse_json(raw))
        if text:
            yield to_json({"role": "user", "content": text})
        return
    for item in read_items(raw):
        found = bytes(item)
        if found.startswith(b"{"):
            yield found
