"""Chat recordings of Qwen Code (`~/.qwen/**/chats/*.jsonl`, versions 0.5 to 0.20).

A line is one record with the one before it (`parentUuid`), as Claude Code writes them; the message is one
content of Gemini's API. An `assistant` record is one response with its `usageMetadata`. A record
`chat_compression` holds the history that stands for all before it, and `agent_bootstrap` the one that a
sub-agent starts with. A branch copies the records with their ids.
"""

from typing import Any

import msgspec

from foveate import wire
from foveate.replay.growing import Growing
from foveate.replay.log_files import TOO_DEEP, LogFile, decoded, why_broken
from foveate.replay.recordings import Call, Lacking, Recording, Said, Source, lacks_of
from foveate.replay.times import seconds
from foveate.values import Format
from foveate.wire.body import as_list, as_record, as_text, compact

_HISTORIES = {"chat_compression": "compressedHistory", "agent_bootstrap": "history"}
_SENT = frozenset(("user", "assistant", "tool_result"))


class _Line(msgspec.Struct, rename="camel"):
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


_LINES = msgspec.json.Decoder(_Line)


class _Entry(msgspec.Struct, frozen=True):
    """The last message up to a record, and when that was written."""

    last: Said | None = None
    at: float = 0.0


def read_qwen_code(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the session of a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    session = _Session(file.name, model or "")
    for number, raw in file.objects():
        try:
            session.add(decoded(_LINES, raw))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            file.broke(number, why_broken(error))
        except RecursionError:
            file.broke(number, TOO_DEEP)
    if not session.is_started:
        return []
    calls = tuple(sorted(session.calls.values(), key=lambda call: call.at))
    return [
        Recording(
            name=session.name,
            source=Source.QWEN_CODE,
            format=Format.GEMINI,
            calls=calls,
            lacks=lacks_of(calls) | {Lacking.SYSTEM, Lacking.TOOLS},
            broken=tuple(file.broken),
            size_bytes=file.size_bytes,
        )
    ]


class _Session:
    """A session as far as it has been read."""

    def __init__(self, name: str, default_model: str) -> None:
        self.name = name
        self.is_started = False
        self.calls: dict[str, Call] = {}
        self._default_model = default_model
        self._tree = Growing()
        self._entries: dict[str, _Entry] = {}

    def add(self, line: _Line) -> None:
        """Read one record."""
        record_id = as_text(line.uuid)
        if not record_id:
            return
        if not self.is_started:
            self.is_started = True
            self.name = as_text(line.agent_id) or as_text(line.session_id) or self.name
        kind, at = as_text(line.type), seconds(line.timestamp)
        before = self._entries.get(as_text(line.parent_uuid), _Entry())
        last, sent_at = before.last, before.at
        history = as_record(line.system_payload).get(_HISTORIES.get(as_text(line.subtype), ""))
        message = as_record(line.message)
        if isinstance(history, list):
            last, sent_at = self._tree.last(compact(content) for content in history if content), at
        elif kind in _SENT and as_list(message.get("parts")):
            raw = compact({"role": as_text(message.get("role")), "parts": message["parts"]})
            if kind == "assistant" and last is not None:
                self._note_call(record_id, line, last, raw, sent_at or at, at)
            last, sent_at = self._tree.hung(last, raw), at
        self._entries[record_id] = _Entry(last, sent_at)

    def _note_call(
        self, record_id: str, line: _Line, last: Said, answer: bytes, sent_at: float, at: float
    ) -> None:
        counted = as_record(line.usage_metadata)
        usage = wire.block_usage(Format.GEMINI, compact(counted)) if counted else None
        self.calls[record_id] = Call(
            id=record_id,
            conversation=self.name,
            model=as_text(line.model) or self._default_model,
            at=sent_at,
            answers_at=max(at, sent_at),
            last=last,
            answer=answer,
            thinks=b'"thought":true' in answer,
            billed=usage if usage is not None and not usage.is_empty else None,
        )
