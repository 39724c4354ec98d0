"""Reads chat recordings of Gemini CLI (`~/.gemini/tmp/*/chats/session-*`, versions 0.10 to 0.40).

Until version 0.39 a recording is one JSON document. Since then it is lines: one with a known id replaces the
earlier one, `$rewindTo` drops a message and all after it, and `$set` can replace all messages. A `gemini`
message is one response: its text, its tool calls with their results, and its tokens. `input` includes cached
tokens; `output` does not include thinking.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from foveate import formats
from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.formats.response.usage import tokens_or_zero
from foveate.model import Format, Usage
from foveate.replay.readers.log_file import TOO_DEEP, LogFile, decode_line, describe_decode_error, parse_time
from foveate.replay.readers.message_tree import MessageTree
from foveate.replay.readers.usage_scan import CallsByKey, LoggedCall, ScannedLog, UsageLines
from foveate.replay.recording import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)

_RECORD_DECODER = msgspec.json.Decoder()
_USER_TYPE, _MODEL_TYPE = "user", "gemini"
_Record = dict[str, Any]


def read_gemini_cli(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the session of a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    session = _GeminiSession(file.name, model or "")
    for number, raw in file.objects():
        try:
            session.add(as_dict(_RECORD_DECODER.decode(raw)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            file.report_unreadable(number, describe_decode_error(error))
        except RecursionError:
            file.report_unreadable(number, TOO_DEEP)
    calls = session.calls()
    if not calls and not session.is_started:
        return []
    return [
        Recording(
            name=session.name,
            source=RecordingSource.GEMINI_CLI,
            format=Format.GEMINI,
            calls=calls,
            missing=find_missing_parts(calls) | {MissingPart.SYSTEM, MissingPart.TOOLS},
            unreadable=tuple(file.unreadable),
            size_bytes=file.size_bytes,
        )
    ]


class _GeminiSession:
    def __init__(self, name: str, default_model: str) -> None:
        self.name = name
        self.is_started = False
        self._default_model = default_model
        self._messages: dict[str, _Record] = {}
        self._calls: dict[str, RecordedCall] = {}
        self._tree = MessageTree()

    def add(self, record: _Record) -> None:
        """Read one document: a whole recording, its metadata, a message or a change."""
        rewind_to = record.get("$rewindTo")
        changed = as_dict(record.get("$set"))
        if isinstance(rewind_to, str):
            self._note_calls()
            self._rewind(rewind_to)
        elif changed:
            if isinstance(changed.get("messages"), list):
                self._note_calls()
                self._messages = dict(_by_id(changed["messages"]))
        elif "sessionId" in record:
            self.is_started = True
            self.name = as_text(record["sessionId"]) or self.name
            self._messages.update(_by_id(as_list(record.get("messages"))))
        else:
            self._messages.update(_by_id([record]))

    def calls(self) -> tuple[RecordedCall, ...]:
        """All calls by time, including those of messages that were dropped later."""
        self._note_calls()
        return tuple(sorted(self._calls.values(), key=lambda call: call.at))

    def _rewind(self, message_id: str) -> None:
        ids = list(self._messages)
        kept_ids = ids[: ids.index(message_id)] if message_id in self._messages else []
        self._messages = {known: self._messages[known] for known in kept_ids}

    def _note_calls(self) -> None:
        last: RecordedMessage | None = None
        sent_at = 0.0
        for message_id, message in self._messages.items():
            kind, at = as_text(message.get("type")), parse_time(message.get("timestamp"))
            if kind == _USER_TYPE:
                last, sent_at = self._append(last, "user", _content_parts(message.get("content"))), at
            elif kind == _MODEL_TYPE:
                if last is not None and (call := self._make_call(message_id, message, last, sent_at or at, at)):
                    self._calls[call.id] = call
                last = self._append(last, "model", _response_parts(message))
                results, done_at = _tool_results(message)
                last, sent_at = self._append(last, "user", results), max(at, done_at)

    def _append(self, last: RecordedMessage | None, role: str, parts: list[Any]) -> RecordedMessage | None:
        return self._tree.append(last, to_json({"role": role, "parts": parts})) if parts else last

    def _make_call(
        self, message_id: str, message: _Record, last: RecordedMessage, sent_at: float, at: float
    ) -> RecordedCall | None:
        usage = _make_usage(as_dict(message.get("tokens")))
        if usage is None or usage.is_empty:  # a response that failed or was cancelled
            return None
        return RecordedCall(
            id=f"{self.name}:{message_id}",
            conversation=self.name,
            model=as_text(message.get("model")) or self._default_model,
            at=min(sent_at, at) if at else sent_at,
            response_at=at,
            last_message=last,
            response=to_json({"role": "model", "parts": _response_parts(message)}),
            has_thinking=bool(message.get("thoughts")),
            usage=usage,
        )


def _by_id(messages: Iterable[Any]) -> Iterator[tuple[str, _Record]]:
    for message in map(as_dict, messages):
        if message_id := as_text(message.get("id")):
            yield message_id, message


def _content_parts(content: object) -> list[Any]:
    """Gemini's API also accepts a single part, or a string."""
    if isinstance(content, str):
        return [{"text": content}] if content else []
    if isinstance(content, dict):
        return [content]
    return [{"text": part} if isinstance(part, str) else part for part in as_list(content) if part]


def _response_parts(message: _Record) -> list[Any]:
    tool_calls = [as_dict(call) for call in as_list(message.get("toolCalls"))]
    calls = [
        {"functionCall": {"name": as_text(call.get("name")), "args": as_dict(call.get("args"))}}
        for call in tool_calls
    ]
    return [*_content_parts(message.get("content")), *calls]


def _tool_results(message: _Record) -> tuple[list[Any], float]:
    tool_calls = [as_dict(call) for call in as_list(message.get("toolCalls"))]
    done_at = max((parse_time(call.get("timestamp")) for call in tool_calls), default=0.0)
    return [part for call in tool_calls for part in _content_parts(call.get("result"))], done_at


def _make_usage(tokens: _Record) -> Usage | None:
    if not tokens:
        return None
    block = {
        "promptTokenCount": tokens_or_zero(tokens.get("input")),
        "cachedContentTokenCount": tokens_or_zero(tokens.get("cached")),
        "candidatesTokenCount": tokens_or_zero(tokens.get("output")),
        "thoughtsTokenCount": tokens_or_zero(tokens.get("thoughts")),
        "toolUsePromptTokenCount": tokens_or_zero(tokens.get("tool")),
    }
    return formats.parse_usage(Format.GEMINI, to_json(block))


class _GeminiUsageMessage(msgspec.Struct):
    id: Any = None
    timestamp: Any = None
    type: Any = None
    model: Any = None
    tokens: Any = None


class _GeminiUsageChanges(msgspec.Struct):
    messages: list[_GeminiUsageMessage] = []


class _GeminiUsageRecord(_GeminiUsageMessage, kw_only=True):
    session: Any = msgspec.field(default=None, name="sessionId")
    messages: list[_GeminiUsageMessage] = []
    changes: _GeminiUsageChanges | None = msgspec.field(default=None, name="$set")


_USAGE_DECODER = msgspec.json.Decoder(_GeminiUsageRecord)


def scan_gemini_cli(path: Path) -> ScannedLog:
    """Read a recording: one document, or one line per message. Messages that were dropped later count too."""
    reader, calls = UsageLines(path), CallsByKey()
    if path.suffix == ".json":
        try:
            records: Iterable[_GeminiUsageRecord] = [decode_line(_USAGE_DECODER, path.read_bytes())]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ScannedLog(calls=[], unreadable_lines=1)
    else:
        records = reader.read(_USAGE_DECODER, b'"tokens"', b'"sessionId"')
    session, project = path.stem, _find_project(path)
    for record in records:
        session = as_text(record.session) or session
        for message in (record, *record.messages, *(record.changes.messages if record.changes else ())):
            usage = _make_usage(as_dict(message.tokens)) if message.type == "gemini" else None
            if usage is not None and not usage.is_empty:
                calls.add(
                    LoggedCall(
                        key=f"{session}:{as_text(message.id)}",
                        at=parse_time(message.timestamp),
                        session=session,
                        project=project,
                        model=as_text(message.model),
                        usage=usage,
                    )
                )
    return ScannedLog(calls=calls.list(), unreadable_lines=reader.unreadable)


def _find_project(path: Path) -> str:
    """The path in `.project_root`, or the name of the folder: old versions only have a hash of the path."""
    folder = next((parent.parent for parent in path.parents if parent.name == "chats"), path.parent)
    try:
        return (folder / ".project_root").read_text().strip() or folder.name
    except (OSError, UnicodeDecodeError):
        return folder.name
