"""Logs of requests, one a line: bodies as they were sent, bare or with what came back for them.

A body holds the whole conversation so far, so what one body has in common with an earlier one is held once. It
takes time in proportion to the bytes of the log: each message is looked up behind the one before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec

from foveate.errors import MalformedRequest
from foveate.replay.growing import MessageTree
from foveate.replay.lists import find_missing_front
from foveate.replay.log_files import LogFile, describe_problem
from foveate.replay.marks_seen import find_breakpoint_ttl
from foveate.replay.recognising import Fields, list_rows, read_fields, read_items, read_text
from foveate.replay.recordings import (
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)
from foveate.replay.rows import MESSAGE_FIELDS, LoggedRequest, parse_row
from foveate.replay.times import parse_time
from foveate.values import Format
from foveate.wire.body import as_dict, as_text, parse_json, to_json

_GEMINI_WRAPPER = "generateContentRequest"
# What observers call what is no call of a model, and the model where they do not simply call it that.
_NON_CALL_TYPES = frozenset(("SPAN", "EVENT", "TOOL", "CHAIN", "AGENT", "RETRIEVER", "EVALUATOR", "GUARDRAIL"))
_MODEL_FIELDS = ("provided_model_name", "providedModelName", "request_model", "model_name", "modelName")
_STATUS_FIELDS = ("status", "status_code", "statusCode", "response_status", "responseStatus", "level")
_FAILED_STATUSES = frozenset(("failure", "failed", "error"))
_MIN_ERROR_STATUS = 400
_RESPONSE_BODY_FIELDS = ("response", "response_body", "responseBody")
_THINKING_FIELDS = ("thinking", "reasoning")


@dataclass(slots=True)
class LoggedConversations:
    """Calls that are added one by one, put together by the conversation that they go on with."""

    source: RecordingSource
    name: str
    _trees: dict[Format, MessageTree] = field(default_factory=dict)
    _envelopes: dict[bytes, bytes] = field(default_factory=dict)
    _envelope_fields: dict[tuple[Format, str], set[str]] = field(default_factory=dict)
    _calls: dict[tuple[Format, str], list[RecordedCall]] = field(default_factory=dict)
    _roots: dict[RecordedMessage, str] = field(default_factory=dict)

    def add(self, row: LoggedRequest, default_id: str) -> None:
        """Add a call under an id of its own, `called` where the row has none; none where nothing is said.

        Raises:
            MalformedRequest: a message of it cannot be read.
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
            # A bill tells it better.
            breakpoint_ttl=find_breakpoint_ttl(bytes(body[messages_field])) or find_breakpoint_ttl(envelope)
            if row.usage is None
            else None,
            usage=row.usage,
        )
        self._calls.setdefault((row.format, session), []).append(call)
        self._envelope_fields.setdefault((row.format, session), set()).update(envelope_fields)

    def recordings(self) -> list[Recording]:
        """A recording for each conversation; those of one call alone are put together."""
        single_calls: dict[Format, list[RecordedCall]] = {}
        found = []
        for (api_format, session), calls in self._calls.items():
            if len(calls) == 1 and session.startswith(f"{self.name}:") and len(self._calls) > 1:
                single_calls.setdefault(api_format, []).extend(calls)
            else:
                name = self.name if len(self._calls) == 1 and session in self._roots.values() else session
                found.append(
                    self._make_recording(name, api_format, calls, self._envelope_fields[api_format, session])
                )
        for api_format, calls in single_calls.items():
            envelope_fields = {"tools", "system"}  # each had its own
            found.append(
                self._make_recording(f"{self.name} ({api_format})", api_format, calls, envelope_fields)
            )
        return found

    def _make_recording(
        self, name: str, api_format: Format, calls: list[RecordedCall], envelope_fields: set[str]
    ) -> Recording:
        ordered = tuple(sorted(calls, key=lambda call: call.at))
        missing = find_missing_parts(ordered)
        if not any(call.envelope for call in calls):
            missing |= find_missing_front(ordered, envelope_fields)
        return Recording(name=name, source=self.source, format=api_format, calls=ordered, missing=missing)


def read_request_logs(file: LogFile, model: str | None = None) -> list[Recording]:
    """The conversations in a log.

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
            file.report_unreadable(number, describe_problem(document, "is JSON, but no object"))
    return [
        replace(recording, unreadable=tuple(file.unreadable), size_bytes=file.size_bytes)
        if at == 0
        else recording
        for at, recording in enumerate(conversations.recordings())
    ]


def _list_rows(document: bytes) -> Iterator[Fields]:
    """The rows of a document: itself, or each of a list, or of one that it holds."""
    if document.startswith(b"["):
        yield from map(read_fields, read_items(document))
    elif fields := read_fields(document):
        held = [item for rows in list_rows(fields) for item in rows]
        yield from map(read_fields, held) if held and parse_row(fields) is None else (fields,)


def _read_row(fields: Fields, model: str | None) -> LoggedRequest | None:
    """The call that a row shows; None where it asked for no text, is none of a model, or was refused."""
    if read_text(fields, "type").upper() in _NON_CALL_TYPES and fields.keys() & {"traceId", "trace_id"}:
        return None
    row = parse_row(fields)
    if row is None or (row.usage is None and _has_failed(fields)):
        return None
    named = row.model or next((name for name in (read_text(fields, one) for one in _MODEL_FIELDS) if name), "")
    at = row.at or _response_time(fields)
    return replace(row, model=named or model or "", at=at, response_at=row.response_at or at)


def _has_failed(fields: Fields) -> bool:
    """Whether a row says that its request failed, for which nobody is billed."""
    for name in _STATUS_FIELDS:
        status = parse_json(fields[name]) if name in fields else None
        if (isinstance(status, int) and status >= _MIN_ERROR_STATUS) or as_text(
            status
        ).lower() in _FAILED_STATUSES:
            return True
    responses = (read_fields(fields[name]) for name in _RESPONSE_BODY_FIELDS if name in fields)
    return any("error" in response and bytes(response["error"]) != b"null" for response in responses)


def _response_time(fields: Fields) -> float:
    """The time that an answer bears itself, where the row has none."""
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
    """Whether a body asks the model to think first."""
    thinking, reasoning = (as_dict(parse_json(body[name])) if name in body else {} for name in _THINKING_FIELDS)
    return thinking.get("type") in ("enabled", "adaptive") or reasoning.get("effort") not in (None, "none")


def _list_messages(raw: msgspec.Raw | None) -> Iterator[bytes]:
    if raw is None:
        return
    if bytes(memoryview(raw)[:1]) == b'"':  # the input of OpenAI's Responses can be a mere string
        text = as_text(parse_json(raw))
        if text:
            yield to_json({"role": "user", "content": text})
        return
    for item in read_items(raw):
        found = bytes(item)
        if found.startswith(b"{"):
            yield found
