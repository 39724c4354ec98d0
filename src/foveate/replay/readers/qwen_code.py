"""Reads chat recordings of Qwen Code (`~/.qwen/**/chats/*.jsonl`, versions 0.5 to 0.20).

A line is one record with its parent (`parentUuid`), as in Claude Code; the message is one content of Gemini's
API. An `assistant` record is one response with its `usageMetadata`. A record `chat_compression` contains the
history that replaces all before it, and `agent_bootstrap` the one that a sub-agent starts with. A branch
copies the records with their ids.
"""

from collections.abc import Mapping
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

_HISTORIES = {"chat_compression": "compressedHistory", "agent_bootstrap": "history"}
_SENT_TYPES = frozenset(("user", "assistant", "tool_result"))


class _QwenLine(msgspec.Struct, rename="camel"):
    uuid: Any = None
    parent_uuid: Any = None
    session_id: Any = None
    agent_id: Any = None
    timestamp: Any = None
    type: Any = None
    subtype: Any = None
    message: Any = None
    model: Any = None
    usage_metadata: Any = None
    system_payload: Any = None


_LINE_DECODER = msgspec.json.Decoder(_QwenLine)


class _RecordPosition(msgspec.Struct, frozen=True):
    """The last message up to a record, and its time."""

    last: RecordedMessage | None = None
    at: float = 0.0


def read_qwen_code(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the session of a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    session = _QwenSession(file.name, model or "")
    for number, raw in file.objects():
        try:
            session.add(decode_line(_LINE_DECODER, raw))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            file.report_unreadable(number, describe_decode_error(error))
        except RecursionError:
            file.report_unreadable(number, TOO_DEEP)
    if not session.is_started:
        return []
    calls = tuple(sorted(session.calls.values(), key=lambda call: call.at))
    return [
        Recording(
            name=session.name,
            source=RecordingSource.QWEN_CODE,
            format=Format.GEMINI,
            calls=calls,
            missing=find_missing_parts(calls) | {MissingPart.SYSTEM, MissingPart.TOOLS},
            unreadable=tuple(file.unreadable),
            size_bytes=file.size_bytes,
        )
    ]


class _QwenSession:
    def __init__(self, name: str, default_model: str) -> None:
        self.name = name
        self.is_started = False
        self.calls: dict[str, RecordedCall] = {}
        self._default_model = default_model
        self._tree = MessageTree()
        self._positions: dict[str, _RecordPosition] = {}

    def add(self, line: _QwenLine) -> None:
        record_id = as_text(line.uuid)
        if not record_id:
            return
        if not self.is_started:
            self.is_started = True
            self.name = as_text(line.agent_id) or as_text(line.session_id) or self.name
        kind, at = as_text(line.type), parse_time(line.timestamp)
        before = self._positions.get(as_text(line.parent_uuid), _RecordPosition())
        last, sent_at = before.last, before.at
        history = as_dict(line.system_payload).get(_HISTORIES.get(as_text(line.subtype), ""))
        message = as_dict(line.message)
        if isinstance(history, list):
            last, sent_at = self._tree.append_all(to_json(content) for content in history if content), at
        elif kind in _SENT_TYPES and as_list(message.get("parts")):
            raw = to_json({"role": as_text(message.get("role")), "parts": message["parts"]})
            if kind == "assistant" and last is not None:
                self._note_call(record_id, line, last, raw, sent_at or at, at)
            last, sent_at = self._tree.append(last, raw), at
        self._positions[record_id] = _RecordPosition(last, sent_at)

    def _note_call(
        self, record_id: str, line: _QwenLine, last: RecordedMessage, response: bytes, sent_at: float, at: float
    ) -> None:
        usage = _make_usage(as_dict(line.usage_metadata))
        self.calls[record_id] = RecordedCall(
            id=record_id,
            conversation=self.name,
            model=as_text(line.model) or self._default_model,
            at=sent_at,
            response_at=max(at, sent_at),
            last_message=last,
            response=response,
            has_thinking=b'"thought":true' in response,
            usage=usage if usage is not None and not usage.is_empty else None,
        )


def _make_usage(metadata: Mapping[str, Any]) -> Usage | None:
    """Parse usage, in which the candidates include thinking with OpenAI's API, but not with Gemini's."""
    if not metadata:
        return None
    candidates, thoughts = (
        tokens_or_zero(metadata.get(name)) for name in ("candidatesTokenCount", "thoughtsTokenCount")
    )
    if candidates and thoughts:
        total, *inputs = (
            tokens_or_zero(metadata.get(name))
            for name in ("totalTokenCount", "promptTokenCount", "toolUsePromptTokenCount")
        )
        output = max(candidates, thoughts, min(candidates + thoughts, total - sum(inputs)))
        metadata = {**metadata, "candidatesTokenCount": output - thoughts}
    return formats.parse_usage(Format.GEMINI, to_json(metadata))


class _QwenUsageLine(msgspec.Struct, rename="camel"):
    uuid: Any = None
    session_id: Any = None
    timestamp: Any = None
    type: Any = None
    cwd: Any = None
    model: Any = None
    usage_metadata: Any = None


_USAGE_DECODER = msgspec.json.Decoder(_QwenUsageLine)


def scan_qwen_code(path: Path) -> ScannedLog:
    reader, calls = UsageLines(path), CallsByKey()
    for line in reader.read(_USAGE_DECODER, b'"usageMetadata"'):
        usage = _make_usage(as_dict(line.usage_metadata))
        if line.type != "assistant" or usage is None:
            continue
        reader.unreadable += usage.is_unreadable
        if not usage.is_empty:
            calls.add(
                LoggedCall(
                    key=as_text(line.uuid),
                    at=parse_time(line.timestamp),
                    session=as_text(line.session_id) or path.stem,
                    project=as_text(line.cwd),
                    model=as_text(line.model),
                    usage=usage,
                )
            )
    return ScannedLog(calls=calls.list(), unreadable_lines=reader.unreadable)
