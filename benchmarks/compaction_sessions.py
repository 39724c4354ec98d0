"""Recorded sessions of coding agents as plain conversations, complete from first to last message."""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import BadData
from benchmarks.logged_requests import LoggedBlock, LoggedMessage, LoggedRequest, read_logs
from foveate import formats
from foveate.model import Format, Message, Part, Text, Thinking, ToolCall, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSession:
    """One session: its recorder, and all of its messages."""

    kind: str
    name: str
    messages: tuple[Message, ...]

    @property
    def source(self) -> str:
        """Author of the work: sessions of one source mention the same files."""
        return self.name.partition("_")[0] if self.kind == "claude-code" else self.kind


def recorded_sessions(folder: Path) -> list[RecordedSession]:
    """Return every session below `folder`, in a fixed order: Claude Code and pi logs, SWE-agent trajectories.

    Raises:
        BadData: there are none.
    """
    sessions = [
        *_read_logs(sorted(folder.rglob("*.jsonl.gz")) + sorted(folder.rglob("*.jsonl"))),
        *map(_trajectory, sorted(folder.rglob("*.traj.gz")) + sorted(folder.rglob("*.traj"))),
    ]
    if not sessions:
        raise BadData(f"no session logs (.jsonl, .traj, also gzipped) below {folder}")
    return sessions


def _read_logs(paths: list[Path]) -> Iterator[RecordedSession]:
    """Read a log's conversations. The parts of one that was compacted meanwhile are joined."""
    requests: dict[tuple[str, str], list[LoggedRequest]] = {}
    for request in read_logs(paths).requests:
        requests.setdefault((request.log, request.sequence), []).append(request)
    for (log, sequence), session_requests in sorted(requests.items()):
        yield RecordedSession(
            kind=session_requests[0].client.split()[0],
            name=f"{log}:{sequence[:8]}",
            messages=_join_messages(session_requests),
        )


def _join_messages(requests: list[LoggedRequest]) -> tuple[Message, ...]:
    """Return all messages that were ever sent, in order: each request continues from the previous one."""
    whole = list(requests[0].messages)
    for request in requests[1:]:
        openings = [message.blocks[0].raw for message in request.messages]
        if not whole:  # the first question is not in the log
            whole = list(request.messages)
            continue
        known = whole[-1].blocks[0].raw
        if known in openings:
            at = len(openings) - 1 - openings[::-1].index(known)
            whole[-1:] = request.messages[at:]
    return tuple(map(_message, whole))


def _message(logged: LoggedMessage) -> Message:
    return Message(role=logged.role, parts=tuple(part for block in logged.blocks for part in _parts(block)))


def _parts(block: LoggedBlock) -> list[Part]:
    parsed = json.loads(block.raw)
    match block.kind:
        case "text":
            return [Text(block.text)]
        case "thinking":
            return [Thinking(block.text)]
        case "tool_use":
            name = str(parsed.get("name", ""))
            return [ToolCall(name=name, arguments=block.text or "{}", format=Format.ANTHROPIC, id=block.call)]
        case "tool_result":
            content = parsed.get("content")
            texts = [content] if isinstance(content, str) else [
                str(inner["text"]) for inner in content or () if isinstance(inner, dict) and "text" in inner
            ]  # fmt: skip
            return [
                ToolResult(
                    parts=tuple(map(Text, texts)), id=block.call, is_error=parsed.get("is_error") is True
                )
            ]
        case _:
            return []


def _trajectory(path: Path) -> RecordedSession:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        history: list[Mapping[str, Any]] = json.load(file)["history"]
    fields = ("role", "content", "tool_calls", "tool_call_id")
    messages = [
        formats.parse_message(
            Format.CHAT, json.dumps({key: line[key] for key in fields if line.get(key)}).encode()
        )
        for line in history
        if line["role"] != "system"
    ]
    return RecordedSession(kind="swe-agent", name=path.name, messages=tuple(messages))
