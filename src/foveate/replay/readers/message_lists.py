"""Reads plain lists of messages, without usage or times: each response was requested with everything before
it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import as_text, parse_json, to_json
from foveate.model import Format
from foveate.replay.readers.format_detection import Fields, read_fields, read_items, read_text
from foveate.replay.readers.log_file import LogFile, describe_problem
from foveate.replay.readers.message_tree import MessageTree, find_breakpoint_ttl, read_role
from foveate.replay.recording import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)

_LIST_FIELDS = ("messages", "contents", "input", "conversations", "conversation")
# Fields that are sent besides the messages.
_ENVELOPE_FIELDS = ("model", "system", "tools", "functions", "tool_choice", "systemInstruction", "instructions")
_MAX_DEPTH = 2
_TOOL_CALLS = (b'"tool_calls"', b'"tool_use"', b'"function_call"', b'"functionCall"', b'"toolUse"')
# Role names in training data sets.
_ROLE_ALIASES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _MessageList:
    """One list of messages and its envelope; `line` is where it begins."""

    line: int
    messages: tuple[bytes, ...]
    field_name: str = "messages"
    envelope: Fields | None = None
    name: str = ""


def read_message_lists(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the conversations in a file, each as a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    conversations = _ListConversations()
    for message_list in _find_lists(file):
        if message_list.messages:
            try:
                conversations.add(message_list, _detect_api_format(message_list, model))
            except MalformedRequest as error:
                file.report_unreadable(message_list.line, str(error))
    recordings = [
        _make_recording(conversation, file, model, is_alone=len(conversations.all) == 1)
        for conversation in conversations.all
    ]
    return [
        replace(recording, unreadable=tuple(file.unreadable), size_bytes=file.size_bytes)
        if at == 0
        else recording
        for at, recording in enumerate(recordings)
    ]


@dataclass(slots=True)
class _ListConversation:
    first_list: _MessageList
    format: Format
    calls: list[tuple[RecordedMessage, bytes]] = field(default_factory=list)


class _ListConversations:
    """A list that begins with all of an earlier one continues that."""

    def __init__(self) -> None:
        self.all: list[_ListConversation] = []
        self._trees: dict[Format, MessageTree] = {}
        self._by_last_message: dict[RecordedMessage, _ListConversation] = {}

    def add(self, message_list: _MessageList, api_format: Format) -> None:
        tree = self._trees.setdefault(api_format, MessageTree())
        conversation = _ListConversation(message_list, api_format)
        last: RecordedMessage | None = None
        for raw in message_list.messages:
            # Consecutive items of the Responses API are one response.
            continues_response = (
                api_format is Format.RESPONSES and last is not None and last.role == "assistant"
            )
            if last is not None and read_role(raw) == "assistant" and not continues_response:
                conversation.calls.append((last, raw))
            last = tree.append(last, raw)
            if last in self._by_last_message:
                conversation = self._by_last_message.pop(last)
        if last is None:
            return
        if not conversation.calls and last.role != "assistant":  # the last message had no response yet
            conversation.calls.append((last, b""))
        if conversation.first_list is message_list:
            self.all.append(conversation)
        self._by_last_message[last] = conversation


def _find_lists(file: LogFile) -> Iterator[_MessageList]:
    """Single messages on lines of their own form one list."""
    first, messages = 0, []
    for number, document in file.documents():
        if document.startswith(b"["):
            lists = list(_find_in_list(read_items(document), number, _MAX_DEPTH))
            yield from lists
            if not lists:
                file.report_unreadable(number, describe_problem(document, "contains no messages"))
            continue
        fields = read_fields(document)
        if (message_list := _find_in_object(fields, number)) is not None:
            yield message_list
        elif (message := _normalize_message(document, fields)) is not None:
            first = first or number
            messages.append(message)
        else:
            file.report_unreadable(number, describe_problem(document, "contains no messages"))
    yield _MessageList(line=first, messages=tuple(messages))


def _find_in_list(items: list[msgspec.Raw], number: int, max_depth: int) -> Iterator[_MessageList]:
    """A list of messages is one conversation; a list of such lists is several."""
    messages = []
    for item in items:
        raw = bytes(item)
        if raw.startswith(b"["):
            if max_depth:
                yield from _find_in_list(read_items(raw), number, max_depth - 1)
            continue
        fields = read_fields(raw)
        if (message_list := _find_in_object(fields, number)) is not None:
            yield message_list
        elif (message := _normalize_message(raw, fields)) is not None:
            messages.append(message)
    if messages:
        yield _MessageList(line=number, messages=tuple(messages))


def _find_in_object(fields: Fields, number: int) -> _MessageList | None:
    for name in _LIST_FIELDS:
        raw = fields.get(name)
        if raw is None:
            continue
        document = bytes(raw)
        if document.startswith(b'"'):  # JSON in a string
            document = as_text(parse_json(document)).encode("utf-8", "replace")
        items = [(bytes(item), read_fields(item)) for item in read_items(document)]
        messages = [
            message for item, inner in items if (message := _normalize_message(item, inner)) is not None
        ]
        if messages:
            envelope = {key: fields[key] for key in _ENVELOPE_FIELDS if key in fields}
            field_name = name if name in ("contents", "input") else "messages"
            conversation_id = (
                read_text(fields, "id")
                or read_text(fields, "session_id")
                or read_text(fields, "conversation_id")
            )
            return _MessageList(
                line=number,
                messages=tuple(messages),
                field_name=field_name,
                envelope=envelope,
                name=conversation_id,
            )
    return None


def _normalize_message(raw: bytes, fields: Fields) -> bytes | None:
    if "role" in fields or ("type" in fields and fields.keys() & {"call_id", "summary"}):
        return raw
    if "from" in fields and "value" in fields:
        speaker = read_text(fields, "from")
        text = as_text(parse_json(fields["value"]))
        return to_json({"role": _ROLE_ALIASES.get(speaker, speaker), "content": text})
    return None


def _make_recording(
    conversation: _ListConversation, file: LogFile, model: str | None, *, is_alone: bool
) -> Recording:
    first_list, api_format = conversation.first_list, conversation.format
    name = first_list.name or (file.name if is_alone else f"{file.name}:{first_list.line}")
    envelope_fields = first_list.envelope or {}
    envelope = msgspec.json.encode(envelope_fields) if envelope_fields.keys() - {"model"} else b""
    model_name = read_text(envelope_fields, "model") or model or ""
    breakpoint_ttl = next(
        (ttl for raw in (*first_list.messages, envelope) if (ttl := find_breakpoint_ttl(raw)) is not None),
        None,
    )
    calls = tuple(
        RecordedCall(
            id=f"{file.path}:{first_list.line}:{number}",
            conversation=name,
            model=model_name,
            at=0.0,
            response_at=0.0,
            last_message=last,
            response=response,
            envelope=envelope,
            breakpoint_ttl=breakpoint_ttl,
            has_thinking=b'"thinking"' in response or b'"reasoning' in response,
        )
        for number, (last, response) in enumerate(conversation.calls)
    )
    return Recording(
        name=name,
        source=RecordingSource.MESSAGES,
        format=api_format,
        calls=calls,
        missing=find_missing_parts(calls) | find_missing_preamble(calls, envelope_fields),
    )


def find_missing_preamble(
    calls: Sequence[RecordedCall], envelope_fields: Iterable[str]
) -> frozenset[MissingPart]:
    missing, names = set(), set(envelope_fields)
    for call in calls:
        if not names & {"tools", "functions", "toolConfig"} and _calls_tools(call.response):
            missing.add(MissingPart.TOOLS)
    first = next(iter(calls), None)
    has_system = bool(names & {"system", "systemInstruction", "system_instruction", "instructions"})
    if (
        first is not None
        and not has_system
        and first.last_message.history()[0].role not in ("system", "developer")
    ):
        missing.add(MissingPart.SYSTEM)
    return frozenset(missing)


def _calls_tools(response: bytes) -> bool:
    return any(name in response for name in _TOOL_CALLS)


def _detect_api_format(message_list: _MessageList, model: str | None) -> Format:
    if message_list.field_name == "contents" or any(
        b'"parts"' in raw[:200] for raw in message_list.messages[:4]
    ):
        return Format.GEMINI
    if message_list.field_name == "input" or any(b'"call_id"' in raw for raw in message_list.messages):
        return Format.RESPONSES
    body = dict(message_list.envelope or {}) | {
        "messages": msgspec.Raw(b"[" + b",".join(message_list.messages) + b"]")
    }
    if "model" not in body and model:
        body["model"] = msgspec.Raw(to_json(model))
    try:
        return formats.detect_format(body)
    except MalformedRequest:
        return Format.CHAT
