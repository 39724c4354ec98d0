"""Recorded sessions of coding agents as a list of requests, block by block."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from foveate.formats.json_text.parse import to_json
from foveate.model import CacheUsage
from foveate.replay.recording import RecordedCall, RecordedMessage, RecordingSource
from foveate.replay.recording_files import peek_file, read_recordings

# Keys of a block that hold the text for the model.
_TEXTS: Mapping[str, str] = {
    "text": "text",
    "thinking": "thinking",
    "tool_use": "input",
    "tool_result": "content",
}
_AGENTS = (RecordingSource.CLAUDE_CODE, RecordingSource.PI)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBlock:
    """One block of a message: its kind, everything that the log has of it, and the text for the model."""

    kind: str
    raw: str
    text: str
    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMessage:
    """Consecutive blocks of one role, as they were sent; `latest` is the one that was logged last."""

    role: str
    blocks: tuple[LoggedBlock, ...]
    latest: int

    @property
    def opens_turn(self) -> bool:
        """Return whether it contains more than tool results."""
        return self.role == "user" and any(block.kind != "tool_result" for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request and its usage; `sequence` identifies its conversation in a log."""

    client: str
    log: str
    sequence: str
    is_agent: bool
    model: str
    at: float
    answers_at: float
    messages: tuple[LoggedMessage, ...]
    thinks: bool
    usage: CacheUsage


@dataclass(slots=True)
class Logs:
    """Requests of every log in order of time, and the number of invalid lines."""

    requests: list[LoggedRequest] = field(default_factory=list)
    broken_lines: int = 0


def read_logs(paths: Iterable[Path]) -> Logs:
    """Read the requests of all agent logs at `paths`, each with its usage."""
    logs = Logs()
    for path in paths:
        if peek_file(path).source not in _AGENTS:
            continue
        for recording in read_recordings(path):
            seen: dict[RecordedMessage, LoggedMessage] = {}
            logs.broken_lines += len(recording.unreadable)
            for call in recording.calls:
                if call.usage is not None:
                    is_agent = call.conversation != recording.name
                    logs.requests.append(
                        _request(call, call.usage.cache, recording.source, path.name, is_agent, seen)
                    )
    logs.requests.sort(key=lambda request: request.at)
    return logs


def _request(
    call: RecordedCall,
    usage: CacheUsage,
    client: str,
    log: str,
    is_agent: bool,
    seen: dict[RecordedMessage, LoggedMessage],
) -> LoggedRequest:
    return LoggedRequest(
        client=client,
        log=log,
        sequence=call.conversation,
        is_agent=is_agent,
        model=call.model,
        at=call.at,
        answers_at=call.response_at,
        messages=tuple(_messages(call.last_message, seen)),
        thinks=call.has_thinking,
        usage=usage,
    )


def _messages(last: RecordedMessage, seen: dict[RecordedMessage, LoggedMessage]) -> Iterator[LoggedMessage]:
    for message in last.history():
        known = seen.get(message)
        if known is None:
            blocks = tuple(map(_block, msgspec.json.decode(message.raw)["content"]))
            known = seen[message] = LoggedMessage(
                role=message.role, blocks=blocks, latest=message.last_logged_block % (len(blocks) or 1)
            )
        if known.blocks:
            yield known


def _block(block: dict[str, Any]) -> LoggedBlock:
    kind = str(block.get("type"))
    text = block.get(_TEXTS.get(kind, ""))
    return LoggedBlock(
        kind=kind,
        raw=to_json(block).decode(),
        text=text if isinstance(text, str) else to_json(text).decode() if text else "",
        call=str(block.get("tool_use_id") or block.get("id") or ""),
    )
