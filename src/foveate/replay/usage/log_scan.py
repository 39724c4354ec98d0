"""Reads only the usage of calls from the logs of coding agents.

The readers of `replay/readers` reconstruct conversations. A report needs no messages, so these skip all lines
without usage, and decode nothing else of the others: gigabytes take seconds.

The same call can be in logs several times: a streamed response has a line for each block, and resumed and
forked sessions copy lines. `LoggedCall.key` is the same in all copies.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from foveate import formats
from foveate.cost.ledger import Charge
from foveate.cost.money import to_picodollars
from foveate.cost.pricing.price_book import PriceBook
from foveate.formats.json_text.parse import as_dict, as_text
from foveate.model import Format, Usage
from foveate.prompt_cache.rules import rules_for
from foveate.replay.local_logs import LogPlace, list_log_files
from foveate.replay.readers import codex, gemini_cli, opencode, pi
from foveate.replay.readers.log_file import decode_line, parse_time
from foveate.replay.recording import RecordingSource
from foveate.replay.usage.report import UsageRecord

T = TypeVar("T")

_CHUNK_BYTES = 4 * 1024 * 1024
# No agent writes longer lines. A longer one is cut, and its parts are reported as unreadable.
_MAX_LINE_BYTES = 64 * 1024 * 1024
# Shorter ids of messages are not unique: some hosts give every message the same.
_MIN_UNIQUE_ID_CHARS = 20
_SYNTHETIC_MODEL = "<synthetic>"  # messages that Claude Code writes itself


class LoggedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call in a log. `at` is when its response was logged; `provider` can be empty."""

    key: str
    at: float
    session: str
    project: str
    model: str
    usage: Usage
    provider: str = ""


class ScannedLog(msgspec.Struct, kw_only=True):
    """The calls of a log, each once, and the number of lines with usage that could not be read."""

    calls: list[LoggedCall]
    unreadable_lines: int = 0


def scan_log(agent: RecordingSource, path: Path) -> ScannedLog:
    """Read the calls of a file, a database or, of opencode, a storage folder.

    Raises:
        OSError: it cannot be opened.
        sqlite3.Error: it is not a database.
    """
    return _SCANNERS[agent](path)


class _LineReader:
    """Decodes the lines of a file that contain a marker. `unreadable` counts those that cannot be decoded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.unreadable = 0

    def read(self, decoder: "msgspec.json.Decoder[T]", *markers: bytes) -> Iterator[T]:
        for chunk, is_complete in self._read_chunks():
            for line in _find_lines(chunk, markers):
                try:
                    yield decode_line(decoder, line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    self.unreadable += is_complete

    def _read_chunks(self) -> Iterator[tuple[bytes, bool]]:
        """Many lines at a time. The last one can be incomplete, since an agent may be writing it."""
        rest = b""
        with self._path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                lines, line_break, data = data.rpartition(b"\n")
                if line_break:
                    yield rest + lines, True
                    rest = b""
                rest += data
                if len(rest) > _MAX_LINE_BYTES:
                    self.unreadable += 1
                    rest = b""
        yield rest, False


def _find_lines(chunk: bytes, markers: Sequence[bytes]) -> Iterator[bytes]:
    """The lines that contain a marker. Searching for the next marker is faster than testing each line."""
    positions = {marker: chunk.find(marker) for marker in markers}
    while found := [position for position in positions.values() if position >= 0]:
        start, end = chunk.rfind(b"\n", 0, min(found)) + 1, chunk.find(b"\n", min(found))
        end = end if end >= 0 else len(chunk)
        yield chunk[start:end]
        for marker, position in positions.items():
            if 0 <= position < end:
                positions[marker] = chunk.find(marker, end)


class _CallsByKey:
    """Calls, each once: the copy with the most tokens, since a response that is still streamed has fewer."""

    def __init__(self) -> None:
        self._calls: dict[str, LoggedCall] = {}

    def add(self, call: LoggedCall) -> None:
        known = self._calls.get(call.key)
        if known is None or _count_tokens(call) > _count_tokens(known):
            self._calls[call.key] = call

    def list(self) -> list[LoggedCall]:
        return list(self._calls.values())


def _count_tokens(call: LoggedCall) -> int:
    return call.usage.cache.input_tokens + call.usage.output_tokens


# --- Claude Code


class _ClaudeMessage(msgspec.Struct):
    id: Any = None
    model: Any = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


class _ClaudeLine(msgspec.Struct, rename="camel"):
    type: Any = None
    uuid: Any = None
    timestamp: Any = None
    session_id: Any = None
    request_id: Any = None
    cwd: Any = None
    cost: Any = msgspec.field(default=None, name="costUSD")
    message: _ClaudeMessage | None = None


_CLAUDE_DECODER = msgspec.json.Decoder(_ClaudeLine)


def _scan_claude_code(path: Path) -> ScannedLog:
    """Read the last line of each message: its earlier ones can have the usage from the start of the stream."""
    reader = _LineReader(path)
    lines: dict[str, tuple[_ClaudeLine, _ClaudeMessage]] = {}
    for line in reader.read(_CLAUDE_DECODER, b'"usage"'):
        message = line.message
        if line.type == "assistant" and message is not None and message.model != _SYNTHETIC_MODEL:
            lines[_claude_key(line, message)] = line, message
    folder = _project_folder(path)
    projects: dict[str, str] = {}
    calls = []
    for key, (line, message) in lines.items():
        usage = formats.parse_usage(Format.ANTHROPIC, bytes(message.usage))
        if usage is None or usage.is_empty:
            continue
        if (dollars := _to_dollars(line.cost)) is not None:
            usage = msgspec.structs.replace(usage, reported_dollars=dollars)
        working_folder = as_text(line.cwd)
        if working_folder not in projects:
            projects[working_folder] = _find_claude_project(folder, working_folder)
        calls.append(
            LoggedCall(
                key=key,
                at=parse_time(line.timestamp),
                session=as_text(line.session_id) or path.stem,
                project=projects[working_folder],
                model=as_text(message.model),
                usage=usage,
            )
        )
    return ScannedLog(calls=calls, unreadable_lines=reader.unreadable)


def _claude_key(line: _ClaudeLine, message: _ClaudeMessage) -> str:
    """The id of the message: copies in side conversations have other request ids."""
    message_id = as_text(message.id)
    if len(message_id) >= _MIN_UNIQUE_ID_CHARS:
        return message_id
    usage = formats.parse_usage(Format.ANTHROPIC, bytes(message.usage))
    name = f"{message_id}:{as_text(line.request_id)}".strip(":") or as_text(line.uuid)
    return name if usage is None else f"{name}:{usage.cache}"


def _project_folder(path: Path) -> str:
    """The folder of a project below `projects`; sub-agents are deeper."""
    parts = path.parts
    index = len(parts) - 1 - parts[::-1].index("projects") if "projects" in parts else len(parts) - 3
    return parts[index + 1] if index + 2 < len(parts) else path.parent.name


def _find_claude_project(folder: str, working_folder: str) -> str:
    """The path of a project: that part of the working folder after which Claude Code named the folder."""
    candidate = working_folder
    while candidate.strip("/"):
        if "".join(char if char.isalnum() and char.isascii() else "-" for char in candidate) == folder:
            return candidate
        candidate = candidate.rpartition("/")[0]
    return folder


def _to_dollars(value: object) -> Decimal | None:
    is_amount = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return Decimal(repr(value)) if is_amount else None


# --- Codex


class _CodexUsageLine(msgspec.Struct):
    timestamp: Any = None
    type: Any = None
    payload: Any = None


_CODEX_DECODER = msgspec.json.Decoder(_CodexUsageLine)


def _scan_codex(path: Path) -> ScannedLog:
    """Read the differences of a session's running total. A forked session copies the lines of its origin."""
    reader, calls = _LineReader(path), _CallsByKey()
    session = project = model = origin = provider = ""
    total: tuple[int, ...] | None = None
    for line in reader.read(_CODEX_DECODER, b'"token_count"', b'"turn_context"', b'"session_meta"'):
        payload = as_dict(line.payload)
        if line.type == "session_meta":
            session_id = as_text(payload.get("id"))
            session = session or session_id
            origin = as_text(payload.get("forked_from_id")) or _parent_thread(payload) or session_id
            project = as_text(payload.get("cwd")) or project
            provider = as_text(payload.get("model_provider"))
        elif line.type == "turn_context":
            model = as_text(payload.get("model")) or model
        elif line.type == "event_msg" and payload.get("type") == "token_count":
            info = as_dict(payload.get("info"))
            counts = codex.count_tokens(info.get("total_token_usage"))
            if counts is None or counts == total:
                continue
            before = total if total is not None and all(map(int.__ge__, counts, total)) else (0,) * len(counts)
            increase = tuple(now - earlier for now, earlier in zip(counts, before, strict=True))
            total = counts
            latest = codex.count_tokens(info.get("last_token_usage"))
            charged = latest if latest is not None and any(latest) else increase
            usage = codex.make_usage(charged)
            if usage is None or usage.is_empty:
                continue
            calls.add(
                LoggedCall(
                    key=f"{origin or path.stem}:{counts}:{charged}",
                    at=parse_time(line.timestamp),
                    session=session or path.stem,
                    project=project,
                    model=model,
                    usage=usage,
                    provider=provider,
                )
            )
    return ScannedLog(calls=calls.list(), unreadable_lines=reader.unreadable)


def _parent_thread(meta: Mapping[str, Any]) -> str:
    """The session that started a sub-agent, whose history such a log can begin with."""
    spawn = as_dict(as_dict(as_dict(meta.get("source")).get("subagent")).get("thread_spawn"))
    return as_text(spawn.get("parent_thread_id"))


# --- Gemini CLI and Qwen Code


class _GeminiMessage(msgspec.Struct):
    id: Any = None
    timestamp: Any = None
    type: Any = None
    model: Any = None
    tokens: Any = None


class _GeminiChanges(msgspec.Struct):
    messages: list[_GeminiMessage] = []


class _GeminiRecord(_GeminiMessage, kw_only=True):
    session: Any = msgspec.field(default=None, name="sessionId")
    messages: list[_GeminiMessage] = []
    changes: _GeminiChanges | None = msgspec.field(default=None, name="$set")


_GEMINI_DECODER = msgspec.json.Decoder(_GeminiRecord)


def _scan_gemini_cli(path: Path) -> ScannedLog:
    """Read a recording: one document, or one line per message. Messages that were dropped later count too."""
    reader, calls = _LineReader(path), _CallsByKey()
    if path.suffix == ".json":
        try:
            records: Iterable[_GeminiRecord] = [decode_line(_GEMINI_DECODER, path.read_bytes())]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ScannedLog(calls=[], unreadable_lines=1)
    else:
        records = reader.read(_GEMINI_DECODER, b'"tokens"', b'"sessionId"')
    session, project = path.stem, _gemini_project(path)
    for record in records:
        session = as_text(record.session) or session
        for message in (record, *record.messages, *(record.changes.messages if record.changes else ())):
            usage = gemini_cli.make_usage(as_dict(message.tokens)) if message.type == "gemini" else None
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


def _gemini_project(path: Path) -> str:
    """The path in `.project_root`, or the name of the folder: old versions only have a hash of the path."""
    folder = next((parent.parent for parent in path.parents if parent.name == "chats"), path.parent)
    try:
        return (folder / ".project_root").read_text().strip() or folder.name
    except (OSError, UnicodeDecodeError):
        return folder.name


class _QwenUsageLine(msgspec.Struct, rename="camel"):
    uuid: Any = None
    session_id: Any = None
    timestamp: Any = None
    type: Any = None
    cwd: Any = None
    model: Any = None
    usage_metadata: msgspec.Raw = msgspec.Raw(b"null")


_QWEN_DECODER = msgspec.json.Decoder(_QwenUsageLine)


def _scan_qwen_code(path: Path) -> ScannedLog:
    reader, calls = _LineReader(path), _CallsByKey()
    for line in reader.read(_QWEN_DECODER, b'"usageMetadata"'):
        usage = formats.parse_usage(Format.GEMINI, bytes(line.usage_metadata))
        if line.type == "assistant" and usage is not None and not usage.is_empty:
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


# --- pi


class _PiUsageLine(msgspec.Struct, rename="camel"):
    type: Any = None
    id: Any = None
    timestamp: Any = None
    cwd: Any = None
    message: Any = None


_PI_DECODER = msgspec.json.Decoder(_PiUsageLine)


def _scan_pi(path: Path) -> ScannedLog:
    reader, calls = _LineReader(path), _CallsByKey()
    session, project = path.stem, ""
    for line in reader.read(_PI_DECODER, b'"usage"', b'"session"'):
        if line.type == "session":
            session, project = as_text(line.id) or session, as_text(line.cwd)
        message = as_dict(line.message)
        if line.type != "message" or message.get("role") != "assistant":
            continue
        usage = pi.make_usage(as_dict(message.get("usage")))
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


# --- opencode

_OpencodeRow = tuple[str, dict[str, Any]]
_STEPS_QUERY = """SELECT message_id, data FROM part WHERE data LIKE '%"step-finish"%'"""
_MESSAGES_QUERY = "SELECT id, session_id, data FROM message"
_RECORD_DECODER = msgspec.json.Decoder()
# A part that ends a response is small; larger files are texts and results of tools.
_MAX_STEP_BYTES = 4096


def _scan_opencode(path: Path) -> ScannedLog:
    return _scan_opencode_storage(path) if path.is_dir() else _scan_opencode_database(path)


def _scan_opencode_database(path: Path) -> ScannedLog:
    unreadable = 0
    messages: dict[str, dict[str, Any]] = {}
    steps: list[_OpencodeRow] = []
    with closing(opencode.connect(path)) as database:
        for message_id, session_id, data in database.execute(_MESSAGES_QUERY):
            record = _decode_record(data)
            unreadable += record is None
            messages[str(message_id)] = (record or {}) | {"sessionID": str(session_id)}
        for message_id, data in database.execute(_STEPS_QUERY):
            record = _decode_record(data)
            unreadable += record is None
            steps.append((str(message_id), record or {}))
    return ScannedLog(calls=_make_opencode_calls(messages, steps), unreadable_lines=unreadable)


def _scan_opencode_storage(folder: Path) -> ScannedLog:
    unreadable = 0
    messages: dict[str, dict[str, Any]] = {}
    steps: list[_OpencodeRow] = []
    for path in list_log_files(LogPlace(RecordingSource.OPENCODE, folder)):
        is_part = "part" in path.relative_to(folder).parts
        try:
            if is_part and path.stat().st_size > _MAX_STEP_BYTES:
                continue
            record = _decode_record(path.read_bytes())
        except OSError:
            record = None
        unreadable += record is None
        if record is not None and is_part:
            steps.append((as_text(record.get("messageID")), record))
        elif record is not None:
            messages[as_text(record.get("id"))] = record
    return ScannedLog(calls=_make_opencode_calls(messages, steps), unreadable_lines=unreadable)


def _decode_record(data: object) -> dict[str, Any] | None:
    try:
        return as_dict(_RECORD_DECODER.decode(data if isinstance(data, str | bytes) else b""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _make_opencode_calls(
    messages: Mapping[str, dict[str, Any]], steps: Iterable[_OpencodeRow]
) -> list[LoggedCall]:
    """One call for each step; a message without steps is one call. Old versions put many steps in a message."""
    calls = _CallsByKey()
    with_steps = set()
    for message_id, step in steps:
        if step.get("type") == "step-finish" and message_id in messages:
            with_steps.add(message_id)
            _add_opencode_call(calls, messages[message_id], step, f"{message_id}:{as_text(step.get('id'))}")
    for message_id, message in messages.items():
        if message_id not in with_steps:
            _add_opencode_call(calls, message, message, message_id)
    return calls.list()


def _add_opencode_call(
    calls: _CallsByKey, message: Mapping[str, Any], counted: dict[str, Any], number: str
) -> None:
    usage = opencode.make_usage(counted) if message.get("role") == "assistant" else None
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


_SCANNERS: dict[RecordingSource, Callable[[Path], ScannedLog]] = {
    RecordingSource.CLAUDE_CODE: _scan_claude_code,
    RecordingSource.CODEX: _scan_codex,
    RecordingSource.GEMINI_CLI: _scan_gemini_cli,
    RecordingSource.QWEN_CODE: _scan_qwen_code,
    RecordingSource.PI: _scan_pi,
    RecordingSource.OPENCODE: _scan_opencode,
}


def price_calls(agent: str, calls: Iterable[LoggedCall], book: PriceBook) -> list[UsageRecord]:
    """Price calls with the cost that the agent logged, or else with the prices on the day of the call."""
    return [_price_call(agent, call, book) for call in calls]


def _price_call(agent: str, call: LoggedCall, book: PriceBook) -> UsageRecord:
    usage, cache = call.usage, call.usage.cache
    dollars, is_inherited = usage.reported_dollars, False
    if dollars is None:
        provider = call.provider or rules_for(call.model).provider
        dollars = book.dollars(call.model, usage, provider=provider, at=call.at)
        rates = book.rates(call.model, provider=provider, at=call.at)
        is_inherited = dollars is not None and rates is not None and bool(rates.inherited_from)
    return UsageRecord(
        agent=agent,
        key=call.key,
        at=call.at,
        session=call.session,
        project=call.project,
        model=call.model,
        uncached=cache.uncached,
        read=cache.read,
        written_5m=cache.written_5m,
        written_1h=cache.written_1h,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        picodollars=_to_picodollars(dollars),
        has_logged_cost=usage.reported_dollars is not None,
        is_inherited=is_inherited,
    )


def _to_picodollars(dollars: Decimal | None) -> int | None:
    try:
        return None if dollars is None else to_picodollars(dollars)
    except OverflowError:  # no call costs millions: the log is wrong
        return None


def to_record(charge: Charge) -> UsageRecord:
    """Convert a charge of the ledger."""
    call, usage, cache = charge.call, charge.usage, charge.usage.cache
    return UsageRecord(
        agent=call.agent,
        key=call.id,
        at=call.at,
        session=call.session_id,
        project="",
        model=call.model,
        uncached=cache.uncached,
        read=cache.read,
        written_5m=cache.written_5m,
        written_1h=cache.written_1h,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        picodollars=_to_picodollars(charge.dollars),
        is_inherited=charge.is_inherited,
        category=call.category.value,
    )
