"""Recorded sessions by step: what a response and the results after it added to the next request."""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from foveate.model import Format, Message, Part, Text, ToolCall, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """One step: the response, what followed it, and by how many tokens the input grew."""

    answer: Message
    results: tuple[Message, ...]
    added_tokens: int
    output_tokens: int | None
    is_code: bool

    @property
    def result_texts(self) -> list[Text]:
        parts = [part for message in self.results for part in message.parts if isinstance(part, ToolResult)]
        return [inner for part in parts for inner in part.parts if isinstance(inner, Text)]


class _UnreadableBlock(Exception):
    """A block whose tokens cannot be determined from the log."""


def increments(folder: Path) -> list[Increment]:
    """Yield every step of the recorded Claude sessions that the log contains completely."""
    found: list[Increment] = []
    for path in sorted((folder / "pi").glob("*.gz")):
        found += _pi(_lines(path))
    for path in sorted((folder / "claude_code").glob("*.gz")):
        found += _claude_code(_lines(path), is_agent="agent-" in path.name)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as lines:
        return [json.loads(line) for line in lines]


@dataclass(slots=True)
class _LoggedStep:
    """A request of a session, reconstructed from the log."""

    input_tokens: int
    output_tokens: int | None
    model: str
    answer: list[Part]
    after: list[Part]
    readable: bool = True


def _steps(requests: list[_LoggedStep], *, is_code: bool) -> Iterator[Increment]:
    for before, now in pairwise(requests):
        added = now.input_tokens - before.input_tokens
        if not before.readable or added <= 0 or not before.input_tokens or before.model != now.model:
            continue
        results = (Message(role="user", parts=tuple(before.after)),) if before.after else ()
        yield Increment(
            answer=Message(role="assistant", parts=tuple(before.answer)),
            results=results,
            added_tokens=added,
            output_tokens=before.output_tokens,
            is_code=is_code,
        )


def _pi(entries: list[dict[str, Any]]) -> Iterator[Increment]:
    requests: list[_LoggedStep] = []
    for entry in entries:
        message = entry.get("message", {})
        if entry["type"] != "message":
            if requests:
                requests[-1].readable = False
        elif message["role"] == "assistant":
            usage = message["usage"]
            spent = usage["input"] + usage["cacheRead"] + usage["cacheWrite"]
            whole = message.get("stopReason") in ("stop", "toolUse")
            parts, readable = _read_content(message["content"])
            requests.append(
                _LoggedStep(spent if whole else 0, usage["output"], "pi", parts, [], readable and whole)
            )
        elif requests:
            _add_pi_reply(requests[-1], message)
    return _steps(requests, is_code=True)


def _add_pi_reply(request: _LoggedStep, message: Mapping[str, Any]) -> None:
    parts, readable = _read_content(message["content"])
    request.readable = request.readable and readable
    if message["role"] == "user":
        request.after += parts
    else:
        request.after.append(ToolResult(parts=tuple(parts), is_error=bool(message.get("isError"))))


def _claude_code(entries: list[dict[str, Any]], *, is_agent: bool) -> Iterator[Increment]:
    requests: dict[str, _LoggedStep] = {}
    seen: set[object] = set()
    last: _LoggedStep | None = None
    for entry in entries:
        is_relevant = entry.get("type") in ("user", "assistant") and (is_agent or not entry.get("isSidechain"))
        if not is_relevant or entry.get("uuid") in seen:
            continue
        seen.add(entry.get("uuid"))
        message = entry["message"]
        parts, readable = _read_content(message["content"])
        if entry["type"] == "user":
            if last is not None:
                last.after += parts
                last.readable = last.readable and readable
            continue
        key = entry.get("requestId") or message.get("id")
        last = requests.setdefault(key, _LoggedStep(0, None, message["model"], [], []))
        last.answer += parts
        last.readable = last.readable and readable
        last.input_tokens = _input_tokens(message.get("usage") or {})
    return _steps(list(requests.values()), is_code=False)


def _input_tokens(usage: Mapping[str, Any]) -> int:
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(usage.get(name) or 0 for name in names)


def _read_content(content: object) -> tuple[list[Part], bool]:
    """Return the parts of a log's content, and whether all of them could be read."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    assert isinstance(blocks, list)
    parts: list[Part] = []
    readable = True
    for block in blocks:
        try:
            parts.append(_part(block))
        except _UnreadableBlock:
            readable = False
    return parts, readable


def _part(block: Mapping[str, Any]) -> Part:
    match block["type"]:
        case "text":
            return Text(block["text"])
        case "toolCall":
            arguments = json.dumps(block["arguments"], ensure_ascii=False)
            return ToolCall(name=block["name"], arguments=arguments, format=Format.ANTHROPIC)
        case "tool_use":
            arguments = json.dumps(block["input"], ensure_ascii=False)
            return ToolCall(name=block["name"], arguments=arguments, format=Format.ANTHROPIC)
        case "tool_result":
            parts, readable = _read_content(block.get("content") or "")
            if not readable:
                raise _UnreadableBlock
            return ToolResult(parts=tuple(parts), is_error=block.get("is_error") is True)
        case _:
            raise _UnreadableBlock
