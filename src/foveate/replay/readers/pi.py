"""Reads sessions of the coding agent pi.

Lines name their parent (`parentId`); in the first version of the format, each follows the previous line. A
compaction replaces all before the first entry that it keeps. Messages are converted to the Anthropic format,
whatever API they were sent to.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.formats.response.usage import tokens_or_zero
from foveate.model import CacheUsage, Format, Usage
from foveate.replay.readers.log_file import TOO_DEEP, LogFile, decode_line, describe_decode_error, parse_time
from foveate.replay.readers.usage_scan import CallsByKey, LoggedCall, ScannedLog, UsageLines
from foveate.replay.recording import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)

# Responses that did not finish are not sent again.
_UNFINISHED_REASONS = ("aborted", "error")
_SUMMARY_ROLES = frozenset(("branchSummary", "compactionSummary"))


class _PiLine(msgspec.Struct, rename="camel"):
    type: Any = None
    id: Any = None
    parent_id: Any = msgspec.UNSET
    timestamp: Any = None
    message: Any = None
    content: Any = None
    summary: Any = None
    model_id: Any = None
    first_kept_entry_id: Any = None
    first_kept_entry_index: Any = None


_LINE_DECODER = msgspec.json.Decoder(_PiLine)


class _PiEntry:
    """The content of an entry after the previous one. Consecutive entries of one role form one message.

    `starts_turn`: it comes from the user, not from a tool.
    """

    __slots__ = ("blocks", "entry_id", "message", "previous", "role", "starts_turn", "turns")

    def __init__(
        self, previous: "_PiEntry | None", entry_id: str, role: str, blocks: list[bytes], *, starts_turn: bool
    ) -> None:
        self.previous = previous
        self.entry_id = entry_id
        self.role = role
        self.blocks = blocks
        self.starts_turn = starts_turn
        self.message: RecordedMessage | None = None
        self.turns = 0


def read_pi(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the session of a log.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    session = _PiSession(file.name, model)
    for number, raw in file.objects():
        try:
            line = decode_line(_LINE_DECODER, raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            file.report_unreadable(number, describe_decode_error(error))
            continue
        try:
            session.add(line)
        except RecursionError:  # could be decoded, but is too deep to encode
            file.report_unreadable(number, TOO_DEEP)
    if not session.calls and not session.is_started:
        return []
    calls = session.ordered_calls()
    dollars = [
        call.usage.reported_dollars for call in calls if call.usage and call.usage.reported_dollars is not None
    ]
    return [
        Recording(
            name=session.name,
            source=RecordingSource.PI,
            format=Format.ANTHROPIC,
            calls=calls,
            missing=frozenset((MissingPart.SYSTEM, MissingPart.TOOLS)) | find_missing_parts(calls),
            unreadable=tuple(file.unreadable),
            reported_dollars=sum(dollars, Decimal(0)) if dollars else None,
            size_bytes=file.size_bytes,
        )
    ]


class _PiSession:
    def __init__(self, name: str, model: str | None) -> None:
        self.name = name
        self.calls: list[tuple[RecordedCall, int]] = []
        self.is_started = False
        self._default_model = model or ""
        self._model = ""
        self._entries: dict[str, _PiEntry | None] = {}
        self._last: _PiEntry | None = None
        self._ids: set[str] = set()
        self._index = -1

    def add(self, line: _PiLine) -> None:
        self._index += 1
        kind = as_text(line.type)
        if kind == "session":
            self.is_started = True
            self.name = as_text(line.id) or self.name
            self._model = as_text(line.model_id) or self._model
            return
        if kind == "model_change":
            self._model = as_text(line.model_id) or self._model
        entry_id = as_text(line.id) or str(self._index)
        previous = self._find_previous(line)
        match kind:
            case "message":
                entry = self._add_message(previous, entry_id, line)
            case "compaction":
                entry = self._add_compaction(previous, entry_id, line)
            case "branch_summary":
                entry = _add_user_entry(previous, entry_id, line.summary)
            case "custom_message":
                entry = _add_user_entry(previous, entry_id, line.content)
            case _:
                entry = previous
        self._entries[entry_id] = entry
        self._last = entry

    def ordered_calls(self) -> tuple[RecordedCall, ...]:
        """The calls by time, with `has_thinking` set on all calls of a turn if one has thinking."""
        thinking = {turns for call, turns in self.calls if call.has_thinking}
        adjusted = [replace(call, has_thinking=turns in thinking) for call, turns in self.calls]
        return tuple(sorted(adjusted, key=lambda call: call.at))

    def _add_compaction(self, previous: _PiEntry | None, entry_id: str, line: _PiLine) -> _PiEntry | None:
        """Add a summary, followed by all entries that it keeps; nothing is kept if the first one is unknown."""
        index = line.first_kept_entry_index
        first = as_text(line.first_kept_entry_id) or (str(index) if isinstance(index, int) else "")
        kept_entries: list[_PiEntry] = []
        if first in self._entries:
            end = self._entries[first]  # the last message up to there
            current = previous
            while current is not None and current is not end:
                kept_entries.append(current)
                current = current.previous
            if current is not None and current.entry_id == first:
                kept_entries.append(current)
        entry = _add_user_entry(None, entry_id, line.summary)
        for kept_entry in reversed(kept_entries):
            entry = _PiEntry(
                entry,
                kept_entry.entry_id,
                kept_entry.role,
                kept_entry.blocks,
                starts_turn=kept_entry.starts_turn,
            )
        return entry

    def _find_previous(self, line: _PiLine) -> _PiEntry | None:
        if line.parent_id is msgspec.UNSET:
            return self._last
        if line.parent_id is None:
            return None
        return self._entries.get(as_text(line.parent_id), self._last)

    def _add_message(self, previous: _PiEntry | None, entry_id: str, line: _PiLine) -> _PiEntry | None:
        message = as_dict(line.message)
        match as_text(message.get("role")):
            case "assistant":
                blocks = _convert_blocks(message.get("content"))
                self._add_call(previous, entry_id, line, message, blocks)
                is_whole = as_text(message.get("stopReason")) not in _UNFINISHED_REASONS
                if not blocks or not is_whole:
                    return previous
                return _PiEntry(previous, entry_id, "assistant", _encode_blocks(blocks), starts_turn=False)
            case "toolResult":
                return _PiEntry(
                    previous, entry_id, "user", _encode_blocks([_tool_result_block(message)]), starts_turn=False
                )
            case "bashExecution":
                if message.get("excludeFromContext") is True:
                    return previous
                command_text = f"Ran `{as_text(message.get('command'))}`\n{as_text(message.get('output'))}"
                return _add_user_entry(previous, entry_id, command_text)
            case role:
                return _add_user_entry(
                    previous, entry_id, message.get("summary" if role in _SUMMARY_ROLES else "content")
                )

    def _add_call(
        self,
        previous: _PiEntry | None,
        entry_id: str,
        line: _PiLine,
        message: Mapping[str, Any],
        blocks: list[dict[str, Any]],
    ) -> None:
        usage = _make_usage(as_dict(message.get("usage")))
        if usage is not None and not usage.cache.input_tokens and not usage.output_tokens:
            return
        last = _build_message(previous) or RecordedMessage(
            previous=None, role="user", raw=_encode_message("user", []), depth=0
        )
        at = parse_time(message.get("timestamp")) or parse_time(line.timestamp)
        model = as_text(message.get("model")) or self._model or self._default_model
        call_id = as_text(message.get("responseId")) or _call_name(self.name, entry_id, model, at, usage)
        call_id = f"{call_id}:{entry_id}" if call_id in self._ids else call_id
        self._ids.add(call_id)
        call = RecordedCall(
            id=call_id,
            conversation=self.name,
            model=model,
            at=at,
            response_at=at,
            last_message=last,
            response=_encode_message("assistant", _encode_blocks(blocks)),
            has_thinking=any(block["type"] == "thinking" for block in blocks),
            usage=usage,
        )
        self.calls.append((call, previous.turns if previous is not None else 0))


def _call_name(session: str, entry_id: str, model: str, at: float, usage: Usage | None) -> str:
    """An id for a call that is the same in every file: a forked session copies its history."""
    if not at or usage is None:
        return f"{session}:{entry_id}"
    return f"{model}:{at:.3f}:{usage.cache.input_tokens}:{usage.output_tokens}"


def _add_user_entry(previous: _PiEntry | None, entry_id: str, content: object) -> _PiEntry | None:
    blocks = _convert_blocks(content)
    return (
        _PiEntry(previous, entry_id, "user", _encode_blocks(blocks), starts_turn=True) if blocks else previous
    )


def _build_message(entry: _PiEntry | None) -> RecordedMessage | None:
    runs: list[list[_PiEntry]] = []
    current = entry
    while current is not None and current.message is None:
        run = [current]
        while current.previous is not None and current.previous.role == current.role:
            current = current.previous
            run.append(current)
        runs.append(run)
        current = current.previous
    for run in reversed(runs):
        first, last = run[-1], run[0]
        previous = first.previous.message if first.previous is not None else None
        blocks = [block for run_entry in reversed(run) for block in run_entry.blocks]
        last.turns = (first.previous.turns if first.previous is not None else 0) + any(
            run_entry.starts_turn for run_entry in run
        )
        last.message = RecordedMessage(
            previous=previous,
            role=last.role,
            raw=_encode_message(last.role, blocks),
            depth=0 if previous is None else previous.depth + 1,
        )
    return entry.message if entry is not None else None


def _encode_message(role: str, blocks: Iterable[bytes]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks))


def _encode_blocks(blocks: Iterable[Mapping[str, Any]]) -> list[bytes]:
    return [to_json(block) for block in blocks]


def _convert_blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_convert_block(as_dict(block)) for block in as_list(content) if isinstance(block, dict)]


def _convert_block(block: dict[str, Any]) -> dict[str, Any]:
    match block.get("type"):
        case "toolCall":
            name, arguments = as_text(block.get("name")), block.get("arguments")
            return {"type": "tool_use", "id": as_text(block.get("id")), "name": name, "input": arguments or {}}
        case "thinking":
            signature = as_text(block.get("thinkingSignature"))
            return {"type": "thinking", "thinking": as_text(block.get("thinking")), "signature": signature}
        case "text":
            return {"type": "text", "text": as_text(block.get("text"))}
        case "image" if "data" in block:
            source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
            return {"type": "image", "source": source}
        case _:
            return block if isinstance(block.get("type"), str) else {**block, "type": "unknown"}


def _tool_result_block(message: Mapping[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": as_text(message.get("toolCallId")),
        "content": _convert_blocks(message.get("content")),
    }
    return block | {"is_error": True} if message.get("isError") is True else block


def _make_usage(usage: Mapping[str, Any]) -> Usage | None:
    if not usage:
        return None
    total = as_dict(usage.get("cost")).get("total")
    is_sum = isinstance(total, int | float) and not isinstance(total, bool) and total > 0
    return Usage(
        cache=CacheUsage(
            uncached=tokens_or_zero(usage.get("input")),
            read=tokens_or_zero(usage.get("cacheRead")),
            written_5m=tokens_or_zero(usage.get("cacheWrite")),
        ),
        output_tokens=tokens_or_zero(usage.get("output")),
        reported_dollars=Decimal(repr(total)) if is_sum else None,
        raw=to_json(usage),
    )


class _PiUsageLine(msgspec.Struct, rename="camel"):
    type: Any = None
    id: Any = None
    timestamp: Any = None
    cwd: Any = None
    message: Any = None


_USAGE_DECODER = msgspec.json.Decoder(_PiUsageLine)


def scan_pi(path: Path) -> ScannedLog:
    reader, calls = UsageLines(path), CallsByKey()
    session, project = path.stem, ""
    for line in reader.read(_USAGE_DECODER, b'"usage"', b'"session"'):
        if line.type == "session":
            session, project = as_text(line.id) or session, as_text(line.cwd)
        message = as_dict(line.message)
        if line.type != "message" or message.get("role") != "assistant":
            continue
        usage = _make_usage(as_dict(message.get("usage")))
        if usage is None or not (usage.cache.input_tokens or usage.output_tokens):
            continue
        at = parse_time(message.get("timestamp")) or parse_time(line.timestamp)
        calls.add(
            LoggedCall(  # a forked session copies messages with their times
                key=f"{at}:{usage.cache.input_tokens}:{usage.output_tokens}",
                at=at,
                session=session,
                project=project,
                model=as_text(message.get("model")),
                usage=usage,
                provider=as_text(message.get("provider")),
            )
        )
    return ScannedLog(calls=calls.list(), unreadable_lines=reader.unreadable)
