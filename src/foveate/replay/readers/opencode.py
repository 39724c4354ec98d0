"""Reads sessions of opencode: exports (`opencode export`), its storage folder (until version 1.1), its
database.

A message is an object `info` with `parts`. A part `step-finish` ends one response, with its tokens and cost;
its `input` does not include cached tokens. A tool part contains the call and its result. A summary replaces
all before it. Messages are converted to the Anthropic format, whatever API they were sent to.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from foveate.errors import UnreadableInput
from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.formats.response.usage import tokens_or_zero
from foveate.model import CacheUsage, Format, Usage
from foveate.replay.local_logs import LogPlace, list_log_files
from foveate.replay.readers.log_file import (
    TOO_DEEP,
    LogFile,
    describe_decode_error,
    describe_problem,
    parse_time,
)
from foveate.replay.readers.message_tree import MessageTree
from foveate.replay.readers.usage_scan import CallsByKey, LoggedCall, ScannedLog
from foveate.replay.recording import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)

_DOCUMENT_DECODER = msgspec.json.Decoder()
_MESSAGES_QUERY = "SELECT session_id, id, data FROM message ORDER BY session_id, time_created, id"
_PARTS_QUERY = "SELECT message_id, id, data FROM part ORDER BY message_id, id"
_Record = dict[str, Any]
_Row = tuple[str, _Record]
_STEPS_QUERY = """SELECT message_id, data FROM part WHERE data LIKE '%"step-finish"%'"""
_USAGE_QUERY = "SELECT id, session_id, data FROM message"
# A part that ends a response is small; larger files are texts and results of tools.
_MAX_STEP_BYTES = 4096


class _OpencodeMessage(msgspec.Struct):
    info: _Record
    parts: list[_Record]


def read_opencode(files: list[LogFile], model: str | None = None) -> list[Recording]:
    """Read the sessions in exports, or in the files of a storage folder.

    Raises:
        UnreadableInput: a file cannot be opened.
    """
    sessions: dict[str, dict[str, _OpencodeMessage]] = {}
    parts: list[_Record] = []
    for file in files:
        for number, document in file.documents():
            try:
                record = as_dict(_DOCUMENT_DECODER.decode(document))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                file.report_unreadable(number, describe_decode_error(error))
                continue
            except RecursionError:
                file.report_unreadable(number, TOO_DEEP)
                continue
            if isinstance(record.get("messages"), list):
                _add_export(sessions, record)
            elif "messageID" in record:
                parts.append(record)
            elif "sessionID" in record:
                _find_or_add_message(sessions, record)
            elif not as_text(record.get("id")):
                file.report_unreadable(
                    number, describe_problem(document, "is not a session, message or part of opencode")
                )
    _add_parts(sessions, parts)
    recordings = list(_make_recordings(sessions, model or ""))
    broken = tuple(line for file in files for line in file.unreadable)
    size_bytes = sum(file.size_bytes for file in files)
    return [
        replace(recording, unreadable=broken, size_bytes=size_bytes) if not number else recording
        for number, recording in enumerate(recordings)
    ]


def is_opencode_database(path: Path) -> bool:
    try:
        with closing(_connect(path)) as database:
            database.execute(_MESSAGES_QUERY + " LIMIT 0")
            database.execute(_PARTS_QUERY + " LIMIT 0")
    except sqlite3.Error:
        return False
    return True


def read_opencode_database(path: Path, model: str | None = None) -> list[Recording]:
    """Read the sessions in opencode's database.

    Raises:
        UnreadableInput: the database cannot be read.
    """
    sessions: dict[str, dict[str, _OpencodeMessage]] = {}
    try:
        with closing(_connect(path)) as database:
            for session, message_id, data in database.execute(_MESSAGES_QUERY):
                _find_or_add_message(
                    sessions, _decode_record(data) | {"id": str(message_id), "sessionID": str(session)}
                )
            part_rows = database.execute(_PARTS_QUERY)
            parts = [
                _decode_record(data) | {"id": str(own), "messageID": str(of)} for of, own, data in part_rows
            ]
    except sqlite3.Error as error:
        raise UnreadableInput(str(path), f"cannot be read as opencode's database: {error}") from None
    _add_parts(sessions, parts)
    size_bytes = path.stat().st_size
    recordings = list(_make_recordings(sessions, model or ""))
    return [
        replace(recording, size_bytes=size_bytes) if not at else recording
        for at, recording in enumerate(recordings)
    ]


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _decode_record(data: object) -> _Record:
    return _try_decode_record(data) or {}


def _try_decode_record(data: object) -> _Record | None:
    try:
        return as_dict(_DOCUMENT_DECODER.decode(data if isinstance(data, str | bytes) else b""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _add_export(sessions: dict[str, dict[str, _OpencodeMessage]], export: _Record) -> None:
    for entry in map(as_dict, as_list(export.get("messages"))):
        message = _find_or_add_message(sessions, as_dict(entry.get("info")))
        message.parts = [as_dict(part) for part in as_list(entry.get("parts"))]


def _find_or_add_message(sessions: dict[str, dict[str, _OpencodeMessage]], info: _Record) -> _OpencodeMessage:
    session = sessions.setdefault(as_text(info.get("sessionID")), {})
    return session.setdefault(as_text(info.get("id")), _OpencodeMessage(info, []))


def _add_parts(sessions: dict[str, dict[str, _OpencodeMessage]], parts: Iterable[_Record]) -> None:
    messages = {message_id: message for session in sessions.values() for message_id, message in session.items()}
    for part in sorted(parts, key=lambda part: as_text(part.get("id"))):  # ids increase with time
        if (message := messages.get(as_text(part.get("messageID")))) is not None:
            message.parts.append(part)


def _make_recordings(sessions: dict[str, dict[str, _OpencodeMessage]], model: str) -> Iterator[Recording]:
    for name, messages in sessions.items():
        ordered = sorted(
            messages.values(), key=lambda message: (_created_at(message), message.info.get("id", ""))
        )
        session = _OpencodeSession(name, model)
        for message in ordered:
            session.add(message)
        calls = tuple(session.calls)
        if not calls:
            continue
        costs = [
            call.usage.reported_dollars
            for call in calls
            if call.usage and call.usage.reported_dollars is not None
        ]
        yield Recording(
            name=name,
            source=RecordingSource.OPENCODE,
            format=Format.ANTHROPIC,
            calls=calls,
            missing=find_missing_parts(calls) | {MissingPart.SYSTEM, MissingPart.TOOLS},
            reported_dollars=sum(costs, Decimal(0)) if costs else None,
        )


def _created_at(message: _OpencodeMessage) -> float:
    return parse_time(as_dict(message.info.get("time")).get("created"))


class _OpencodeSession:
    def __init__(self, name: str, default_model: str) -> None:
        self.calls: list[RecordedCall] = []
        self._name = name
        self._default_model = default_model
        self._tree = MessageTree()
        self._last: RecordedMessage | None = None

    def add(self, message: _OpencodeMessage) -> None:
        if message.info.get("role") == "user":
            self._append("user", _user_blocks(message.parts))
        elif message.info.get("role") == "assistant":
            self._add_responses(message)
            if message.info.get("summary") is True:
                self._keep_summary(message)

    def _append(self, role: str, blocks: list[_Record]) -> None:
        if blocks:
            self._last = self._tree.append(self._last, to_json({"role": role, "content": blocks}))

    def _add_responses(self, message: _OpencodeMessage) -> None:
        """Read an assistant message: old versions put all responses of a turn into one."""
        steps = list(_split_responses(message.parts))
        sent_at = _created_at(message)
        for number, (parts, finish) in enumerate(steps):
            usage_record = finish or (message.info if len(steps) == 1 else {})
            blocks = [block for part in parts for block in _response_blocks(part)]
            self._note_call(message, blocks, usage_record, sent_at)
            self._append("assistant", blocks)
            self._append("user", [block for part in parts for block in _result_blocks(part)])
            ends = [parse_time(_state_time(part).get("end")) for part in parts]
            sent_at = max(sent_at, *ends) if ends and number + 1 < len(steps) else sent_at

    def _note_call(
        self, message: _OpencodeMessage, blocks: list[_Record], usage_record: _Record, at: float
    ) -> None:
        usage = _make_usage(usage_record)
        if (
            self._last is None or usage is None or usage.is_empty
        ):  # nothing was requested, or nothing was charged
            return
        model = as_text(message.info.get("modelID")) or self._default_model
        call_id = f"{model}:{at:.3f}:{usage.cache.input_tokens}:{usage.output_tokens}"  # the same in a fork
        call = RecordedCall(
            id=call_id,
            conversation=self._name,
            model=model,
            at=at,
            response_at=at,
            last_message=self._last,
            response=to_json({"role": "assistant", "content": blocks}),
            has_thinking=any(block["type"] == "thinking" for block in blocks),
            usage=usage,
        )
        self.calls.append(call)

    def _keep_summary(self, message: _OpencodeMessage) -> None:
        blocks = [block for part in message.parts for block in _response_blocks(part)]
        self._last = None
        self._append("user", [_text_block("What did we do so far?")])
        self._append("assistant", blocks)


def _split_responses(parts: list[_Record]) -> Iterator[tuple[list[_Record], _Record]]:
    pending: list[_Record] = []
    for part in parts:
        if part.get("type") == "step-finish":
            yield pending, part
            pending = []
        else:
            pending.append(part)
    if any(_response_blocks(part) for part in pending):
        yield pending, {}


def _text_block(text: str) -> _Record:
    return {"type": "text", "text": text}


def _user_blocks(parts: list[_Record]) -> list[_Record]:
    blocks = []
    for part in parts:
        if part.get("type") == "text" and part.get("ignored") is not True and as_text(part.get("text")):
            blocks.append(_text_block(as_text(part["text"])))
        elif part.get("type") == "compaction":
            blocks.append(_text_block("What did we do so far?"))
    return blocks


def _response_blocks(part: _Record) -> list[_Record]:
    match part.get("type"):
        case "text" if as_text(part.get("text")):
            return [_text_block(as_text(part["text"]))]
        case "reasoning":
            return [{"type": "thinking", "thinking": as_text(part.get("text")), "signature": ""}]
        case "tool":
            tool_input = as_dict(as_dict(part.get("state")).get("input"))
            name, call_id = as_text(part.get("tool")), as_text(part.get("callID"))
            return [{"type": "tool_use", "id": call_id, "name": name, "input": tool_input}]
        case _:
            return []


def _result_blocks(part: _Record) -> list[_Record]:
    if part.get("type") != "tool":
        return []
    state = as_dict(part.get("state"))
    content = as_text(state.get("output")) or as_text(state.get("error"))
    return [{"type": "tool_result", "tool_use_id": as_text(part.get("callID")), "content": content}]


def _state_time(part: _Record) -> _Record:
    return as_dict(as_dict(part.get("state")).get("time"))


def _make_usage(usage_record: _Record) -> Usage | None:
    numbers = as_dict(usage_record.get("tokens"))
    if not numbers:
        return None
    cached = as_dict(numbers.get("cache"))
    cost = usage_record.get("cost")
    is_cost = isinstance(cost, int | float) and not isinstance(cost, bool) and cost > 0
    reasoning = tokens_or_zero(numbers.get("reasoning"))
    return Usage(
        cache=CacheUsage(
            uncached=tokens_or_zero(numbers.get("input")),
            read=tokens_or_zero(cached.get("read")),
            written_5m=tokens_or_zero(cached.get("write")),
        ),
        output_tokens=tokens_or_zero(numbers.get("output")) + reasoning,
        reasoning_tokens=reasoning,
        reported_dollars=Decimal(repr(cost)) if is_cost else None,
        raw=to_json(numbers),
    )


def scan_opencode(path: Path) -> ScannedLog:
    return _scan_storage(path) if path.is_dir() else _scan_database(path)


def _scan_database(path: Path) -> ScannedLog:
    unreadable = 0
    messages: dict[str, _Record] = {}
    steps: list[_Row] = []
    with closing(_connect(path)) as database:
        for message_id, session_id, data in database.execute(_USAGE_QUERY):
            record = _try_decode_record(data)
            unreadable += record is None
            messages[str(message_id)] = (record or {}) | {"sessionID": str(session_id)}
        for message_id, data in database.execute(_STEPS_QUERY):
            record = _try_decode_record(data)
            unreadable += record is None
            steps.append((str(message_id), record or {}))
    return ScannedLog(calls=_make_logged_calls(messages, steps), unreadable_lines=unreadable)


def _scan_storage(folder: Path) -> ScannedLog:
    unreadable = 0
    messages: dict[str, _Record] = {}
    steps: list[_Row] = []
    for path in list_log_files(LogPlace(RecordingSource.OPENCODE, folder)):
        is_part = "part" in path.relative_to(folder).parts
        try:
            if is_part and path.stat().st_size > _MAX_STEP_BYTES:
                continue
            record = _try_decode_record(path.read_bytes())
        except OSError:
            record = None
        unreadable += record is None
        if record is not None and is_part:
            steps.append((as_text(record.get("messageID")), record))
        elif record is not None:
            messages[as_text(record.get("id"))] = record
    return ScannedLog(calls=_make_logged_calls(messages, steps), unreadable_lines=unreadable)


def _make_logged_calls(messages: Mapping[str, _Record], steps: Iterable[_Row]) -> list[LoggedCall]:
    """One call for each step; a message without steps is one call. Old versions put many steps in a message."""
    calls = CallsByKey()
    with_steps = set()
    for message_id, step in steps:
        if step.get("type") == "step-finish" and message_id in messages:
            with_steps.add(message_id)
            _add_logged_call(calls, messages[message_id], step, f"{message_id}:{as_text(step.get('id'))}")
    for message_id, message in messages.items():
        if message_id not in with_steps:
            _add_logged_call(calls, message, message, message_id)
    return calls.list()


def _add_logged_call(calls: CallsByKey, message: Mapping[str, Any], counted: _Record, number: str) -> None:
    usage = _make_usage(counted) if message.get("role") == "assistant" else None
    if usage is None or not (usage.cache.input_tokens or usage.output_tokens):
        return
    model, at = as_text(message.get("modelID")), parse_time(as_dict(message.get("time")).get("created"))
    cache, paths = usage.cache, as_dict(message.get("path"))
    root = as_text(paths.get("root"))
    # A fork copies messages with new ids, but the same times.
    counts = f"{at}:{model}:{cache.uncached}:{cache.read}:{cache.written_5m}:{usage.output_tokens}"
    calls.add(
        LoggedCall(
            key=counts if at else number,
            at=at,
            session=as_text(message.get("sessionID")),
            project=root if root.strip("/") else as_text(paths.get("cwd")),
            model=model,
            usage=usage,
            provider=as_text(message.get("providerID")),
        )
    )
