"""Reads session logs of Codex CLI (`~/.codex/sessions/**/rollout-*.jsonl`, versions 0.20 to 0.152).

A line is `{"timestamp", "type", "payload"}`; logs from before September 2025 contain bare items. A response
item is one item of OpenAI's Responses API, as it is sent again. A `token_count` event has the usage of one
response and the total of the session; it is repeated if only the rate limits have changed. Tool results can
precede the event of the response that called the tools. A forked session begins with a copy of the lines of
its origin.
"""

from collections.abc import Mapping
from hashlib import blake2b
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

# Members of an item that the model reads. Encrypted reasoning is left out: its length does not tell its
# tokens.
_SENT_MEMBERS = (
    "type", "role", "content", "call_id", "name", "arguments", "input", "output", "summary", "action", "tools",
)  # fmt: skip
_MODEL_ITEMS = frozenset(
    ("reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call",
     "tool_search_call", "image_generation_call")
)  # fmt: skip
_NOT_SENT = frozenset(("ghost_snapshot", "other"))
_USAGE_MEMBERS = (
    "input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens",
    "reasoning_output_tokens",
)  # fmt: skip
_UNKNOWN_TIME = 0.0


class _CodexLine(msgspec.Struct):
    timestamp: Any = None
    type: Any = None
    payload: Any = msgspec.UNSET


_LINE_DECODER = msgspec.json.Decoder(_CodexLine)
_RECORD_DECODER = msgspec.json.Decoder(dict[str, Any])
_TokenUsage = tuple[int, ...]


def read_codex(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the session of a log.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    session = _CodexSession(file.name, model or "")
    for number, raw in file.objects():
        try:
            session.add(raw)
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
            source=RecordingSource.CODEX,
            format=Format.RESPONSES,
            calls=calls,
            missing=find_missing_parts(calls) | {MissingPart.SYSTEM, MissingPart.TOOLS},
            unreadable=tuple(file.unreadable),
            size_bytes=file.size_bytes,
        )
    ]


class _Response:
    def __init__(self, history: RecordedMessage, digest: bytes, sent_at: float, response_at: float) -> None:
        self.history = history
        self.digest = digest
        self.sent_at = sent_at
        self.response_at = response_at
        self.items: list[dict[str, Any]] = []


class _CodexSession:
    def __init__(self, name: str, default_model: str) -> None:
        self.name = name
        self.is_started = False
        self._model = ""
        self._default_model = default_model
        self._tree = MessageTree()
        self._last: RecordedMessage | None = None
        self._digest = b""
        self._latest_input_at = _UNKNOWN_TIME
        self._origin = name
        self._total: _TokenUsage = (0,) * len(_USAGE_MEMBERS)
        self._response: _Response | None = None
        self._charged: list[RecordedCall] = []
        # One call for each run of model items, for logs without token counts.
        self._uncharged_run: _Response | None = None
        self._uncharged: list[RecordedCall] = []

    def add(self, raw: bytes) -> None:
        """Read one line.

        Raises:
            msgspec.DecodeError: it is not JSON, or not an object.
            RecursionError: it is nested too deeply.
        """
        line = decode_line(_LINE_DECODER, raw)
        at = parse_time(line.timestamp)
        kind = as_text(line.type)
        if line.payload is msgspec.UNSET:
            self._add_bare(decode_line(_RECORD_DECODER, raw), kind, at)
            return
        payload = as_dict(line.payload)
        match kind:
            case "session_meta":
                self._start(payload)
            case "turn_context":
                self._model = as_text(payload.get("model")) or self._model
            case "response_item":
                self._add_item(payload, at)
            case "inter_agent_communication":
                self._add_item(_make_message("user", as_text(payload.get("content"))), at)
            case "compacted":
                self._compact(payload, at)
            case "event_msg":
                self._add_event(payload, at)

    def calls(self) -> tuple[RecordedCall, ...]:
        """The calls in order: those with a token count, or all of them if the log has no token counts."""
        self._close_run()
        return tuple(self._charged or self._uncharged)

    def _add_bare(self, record: dict[str, Any], kind: str, at: float) -> None:
        """Read a line of an old log: the first one is the metadata, the others are items."""
        if kind:
            self._add_item(record, at)
        elif as_text(record.get("id")):
            self._start(record)

    def _start(self, meta: Mapping[str, Any]) -> None:
        """Set the session's id. In a fork, the metadata of its origin follows with the copied lines."""
        if not self.is_started:
            self.is_started = True
            self.name = as_text(meta.get("id")) or self.name
        self._origin = as_text(meta.get("forked_from_id")) or as_text(meta.get("id")) or self._origin

    def _add_event(self, event: Mapping[str, Any], at: float) -> None:
        match as_text(event.get("type")):
            case "token_count":
                self._charge(as_dict(event.get("info")), at)
            case "thread_rolled_back":
                self._roll_back(tokens_or_zero(event.get("num_turns")))

    def _add_item(self, item: Mapping[str, Any], at: float) -> None:
        kind = as_text(item.get("type")) or "message"
        if kind in _NOT_SENT:
            return
        is_model = kind in _MODEL_ITEMS or as_text(item.get("role")) == "assistant"
        if is_model and self._last is not None:
            self._response = self._response or self._start_response(self._last, at)
            self._response.items.append(dict(item))
            self._uncharged_run = self._uncharged_run or self._start_response(self._last, at)
            self._uncharged_run.items.append(dict(item))
        else:
            self._latest_input_at = at
            self._close_run()
        self._append(item)

    def _append(self, item: Mapping[str, Any]) -> None:
        self._digest = blake2b(self._digest + to_json(item), digest_size=16).digest()
        members = {name: item[name] for name in _SENT_MEMBERS if item.get(name) is not None}
        self._last = self._tree.append(self._last, to_json(members))

    def _charge(self, info: Mapping[str, Any], at: float) -> None:
        """Close the response of a token count. Repeated and estimated counts belong to none."""
        total = _count_tokens(info.get("total_token_usage"))
        if total is None or total == self._total:
            return
        increase = tuple(max(now - before, 0) for now, before in zip(total, self._total, strict=True))
        self._total = total
        latest = _count_tokens(info.get("last_token_usage"))
        charged = latest if latest is not None and any(latest) else increase
        history = self._response.history if self._response is not None else self._last
        if history is None or not any(charged):
            return
        response = self._response or self._start_response(history, at)
        self._response = None
        self._charged.append(self._make_call(response, _make_usage(charged), repr((total, charged)).encode()))

    def _start_response(self, history: RecordedMessage, at: float) -> _Response:
        return _Response(history, self._digest, self._latest_input_at or at, at)

    def _close_run(self) -> None:
        if self._uncharged_run is not None and not self._charged:
            self._uncharged.append(self._make_call(self._uncharged_run, None, b""))
        self._uncharged_run = None

    def _make_call(self, response: _Response, usage: Usage | None, usage_bytes: bytes) -> RecordedCall:
        content = b"".join(to_json(item) for item in response.items)
        call_digest = blake2b(response.digest + content + usage_bytes, digest_size=16).hexdigest()
        return RecordedCall(
            id=f"{self._origin}:{call_digest}",
            conversation=self.name,
            model=self._model or self._default_model,
            at=response.sent_at,
            response_at=max(response.response_at, response.sent_at),
            last_message=response.history,
            response=_join_items(response.items),
            has_thinking=any(item.get("type") == "reasoning" for item in response.items),
            usage=usage,
        )

    def _compact(self, compacted: Mapping[str, Any], at: float) -> None:
        """Replace the history. Old logs contain only the summary, which follows the user's messages."""
        self._close_run()
        replacement = [as_dict(item) for item in as_list(compacted.get("replacement_history"))]
        if not replacement:
            history = self._last.history() if self._last is not None else []
            replacement = [
                as_dict(msgspec.json.decode(recorded.raw)) for recorded in history if _is_user_turn(recorded)
            ]
            replacement.append(_make_message("user", as_text(compacted.get("message"))))
        self._last, self._digest, self._response = None, b"", None
        for item in replacement:
            self._append(item)
        self._latest_input_at = at

    def _roll_back(self, turns: int) -> None:
        while turns and self._last is not None:
            turns -= _is_user_turn(self._last)
            self._last = self._last.previous


def _is_user_turn(recorded: RecordedMessage) -> bool:
    """Return whether the user wrote a message. Codex's own context messages begin with a tag or a heading."""
    if recorded.role != "user":
        return False
    message = as_dict(msgspec.json.decode(recorded.raw))
    if as_text(message.get("type")) not in ("", "message"):
        return False
    content = message.get("content")
    blocks = [as_dict(block) for block in as_list(content)]
    text = content if isinstance(content, str) else as_text(blocks[0].get("text")) if blocks else ""
    return not text.lstrip().startswith(("<", "# AGENTS.md"))


def _make_message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _count_tokens(usage_object: object) -> _TokenUsage | None:
    numbers = as_dict(usage_object)
    return tuple(tokens_or_zero(numbers.get(name)) for name in _USAGE_MEMBERS) if numbers else None


def _make_usage(token_usage: _TokenUsage) -> Usage | None:
    read, cached, written, output, reasoning = token_usage
    block = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
    }
    return formats.parse_usage(Format.RESPONSES, to_json(block))


def _join_items(items: list[dict[str, Any]]) -> bytes:
    """Join the items of a response into one message, to count its size."""
    texts = []
    for item in items:
        texts += [as_text(as_dict(block).get("text")) for block in as_list(item.get("content"))]
        texts += [as_text(item.get("arguments")), as_text(item.get("input"))]
    blocks = [{"type": "output_text", "text": text} for text in texts if text]
    return to_json({"type": "message", "role": "assistant", "content": blocks})


def scan_codex(path: Path) -> ScannedLog:
    """Read the differences of a session's running total. A forked session copies the lines of its origin."""
    reader, calls = UsageLines(path), CallsByKey()
    session = project = model = origin = provider = ""
    total: tuple[int, ...] | None = None
    for line in reader.read(_LINE_DECODER, b'"token_count"', b'"turn_context"', b'"session_meta"'):
        payload = as_dict(line.payload)
        if line.type == "session_meta":
            session_id = as_text(payload.get("id"))
            session = session or session_id
            origin = as_text(payload.get("forked_from_id")) or session_id
            project = as_text(payload.get("cwd")) or project
            provider = as_text(payload.get("model_provider"))
        elif line.type == "turn_context":
            model = as_text(payload.get("model")) or model
        elif line.type == "event_msg" and payload.get("type") == "token_count":
            info = as_dict(payload.get("info"))
            counts = _count_tokens(info.get("total_token_usage"))
            if counts is None or counts == total:
                continue
            before = total if total is not None and all(map(int.__ge__, counts, total)) else (0,) * len(counts)
            increase = tuple(now - earlier for now, earlier in zip(counts, before, strict=True))
            total = counts
            latest = _count_tokens(info.get("last_token_usage"))
            charged = latest if latest is not None and any(latest) else increase
            usage = _make_usage(charged)
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
