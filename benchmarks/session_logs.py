"""Session logs of coding agents, read into the requests that they show: Claude Code's and pi's."""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from foveate.values import CacheUsage

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBlock:
    """One block of a message: what it is, all that the log has of it, and the text that a model reads.

    `call` names the tool call that it is, or is the result of.
    """

    kind: str
    said: str
    text: str
    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMessage:
    """Blocks that one speaker said in a row, as they were sent; `latest` is the one that was logged last."""

    role: str
    blocks: tuple[LoggedBlock, ...]
    latest: int

    @property
    def opens_turn(self) -> bool:
        """Whether the user speaks in it, and not tools alone."""
        return self.role == "user" and any(block.kind != "tool_result" for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request as far as its log shows it, and its bill. System prompt and tools are never shown.

    `sequence` tells the conversations of a log apart: a sub-agent has one of its own. `thinks` says whether an
    answer of the same turn shows thinking.
    """

    client: str
    log: str
    sequence: str
    is_agent: bool
    model: str
    at: float
    answers_at: float
    messages: tuple[LoggedMessage, ...]
    thinks: bool
    billed: CacheUsage


@dataclass(slots=True)
class Logs:
    """What was read: the requests of every log in the order of time, and how many lines were no good."""

    requests: list[LoggedRequest] = field(default_factory=list)
    broken_lines: int = 0


def read_logs(paths: Iterable[Path]) -> Logs:
    """The requests of all logs at `paths` (`.jsonl`, also gzipped), whichever agent wrote them."""
    logs = Logs()
    for path in paths:
        lines = _lines(path, logs)
        reader = _pi if any(line.get("type") == "session" for line in lines) else _claude_code
        logs.requests += _with_thinking(list(reader(path.name, lines)))
    logs.requests.sort(key=lambda request: request.at)
    return logs


def _lines(path: Path, logs: Logs) -> list[Line]:
    found: list[Line] = []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for raw in lines:
            try:
                line = json.loads(raw)
            except ValueError:
                line = None
            if isinstance(line, dict):
                found.append(line)
            elif raw.strip():
                logs.broken_lines += 1
    return found


def _with_thinking(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """The same, each of them thinking if one of its turn does: not every answer shows that it could."""
    turns = [(request.sequence, _turn(request)) for request in requests]
    thinking = {turn for turn, request in zip(turns, requests, strict=True) if request.thinks}
    return [replace(request, thinks=turn in thinking) for turn, request in zip(turns, requests, strict=True)]


def _turn(request: LoggedRequest) -> int:
    return sum(message.opens_turn for message in request.messages)


def _claude_code(log: str, lines: Sequence[Line]) -> Iterator[LoggedRequest]:
    """A request is what stands on the way from the first line of its answer up to the root.

    Each block of an answer is a line of its own; the usage of the last one counts. Results of calls that were
    made side by side may stand on side branches.
    """
    by_id = {line["uuid"]: line for line in lines if isinstance(line.get("uuid"), str)}
    results = {
        block["tool_use_id"]: line
        for line in by_id.values()
        for block in _content(line)
        if block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str)
    }
    blocks = {key: tuple(map(_block, _content(line))) for key, line in by_id.items()}
    answers: dict[str, list[Line]] = {}
    for line in by_id.values():
        said = line.get("message")
        if line.get("type") == "assistant" and isinstance(said, dict) and isinstance(said.get("usage"), dict):
            answers.setdefault(str(line.get("requestId") or said.get("id")), []).append(line)
    for answer in answers.values():
        billed = _anthropic_bill(answer[-1]["message"]["usage"])
        if not billed.input_tokens:  # what the agent said in the model's name, and refusals
            continue
        path = _way(answer[0], by_id)
        spoken = _with_results(path, results, before=_seconds(answer[0]))
        sent = [_seconds(line) for line in spoken if line["type"] == "user"]
        answers_at = _seconds(answer[0])
        yield LoggedRequest(
            client=f"claude-code {answer[0].get('version', '')}",
            log=log,
            sequence=str(path[0].get("uuid"))
            if answer[0].get("isSidechain")
            else str(answer[0].get("sessionId")),
            is_agent=bool(answer[0].get("isSidechain")),
            model=str(answer[-1]["message"].get("model", "")),
            at=min(max(sent, default=answers_at), answers_at),
            answers_at=answers_at,
            messages=_messages((line["type"], blocks[line["uuid"]]) for line in spoken),
            thinks=any("thinking" in str(block.get("type")) for line in answer for block in _content(line)),
            billed=billed,
        )


def _way(line: Line, by_id: Mapping[str, Line]) -> list[Line]:
    """The lines before `line`, from the root on, those of its own request left out."""
    way, seen, request = [], set(), line.get("requestId")
    here: Line | None = line
    while here is not None and id(here) not in seen:
        seen.add(id(here))
        if here is line or here.get("requestId") != request or here.get("type") != "assistant":
            way.append(here)
        here = by_id.get(str(here.get("parentUuid") or here.get("logicalParentUuid")))
        if here is not None and here.get("subtype") == "compact_boundary":
            break
    return way[:0:-1] or [line]


def _with_results(path: Sequence[Line], results: Mapping[str, Line], *, before: float) -> list[Line]:
    """The spoken lines of `path`, with the results of calls that it makes but has no results of."""
    spoken = [line for line in path if line.get("type") in ("user", "assistant")]
    there = {id(line) for line in spoken}
    found = []
    calls: list[str] = []
    for line in spoken:
        if line["type"] == "user":
            for call in calls:
                result = results.get(call)
                if result is not None and id(result) not in there and _seconds(result) <= before:
                    there.add(id(result))
                    found.append(result)
            calls = []
        calls += [str(block.get("id")) for block in _content(line) if block.get("type") == "tool_use"]
        found.append(line)
    return found


def _anthropic_bill(usage: Line) -> CacheUsage:
    by_time = usage.get("cache_creation")
    written_1h = _number(by_time, "ephemeral_1h_input_tokens") if isinstance(by_time, dict) else 0
    return CacheUsage(
        uncached=_number(usage, "input_tokens"),
        read=_number(usage, "cache_read_input_tokens"),
        written_5m=_number(usage, "cache_creation_input_tokens") - written_1h,
        written_1h=written_1h,
    )


def _pi(log: str, lines: Sequence[Line]) -> Iterator[LoggedRequest]:
    """Every answer was asked for with all messages before it, but for those that a summary stands for."""
    before: list[tuple[str, tuple[LoggedBlock, ...]]] = []
    ids: list[str] = []
    for line in lines:
        said = line.get("message")
        if line.get("type") == "compaction":
            kept = ids.index(line["firstKeptEntryId"]) if line.get("firstKeptEntryId") in ids else len(before)
            before[:kept] = [("user", (_block({"type": "text", "text": str(line.get("summary", ""))}),))]
            ids[:kept] = [""]
        if line.get("type") != "message" or not isinstance(said, dict):
            continue
        if said.get("role") == "assistant" and isinstance(said.get("usage"), dict):
            usage = said["usage"]
            billed = CacheUsage(
                uncached=_number(usage, "input"),
                read=_number(usage, "cacheRead"),
                written_5m=_number(usage, "cacheWrite"),
            )
            at = _number(said, "timestamp") / 1000 or _seconds(line)
            if billed.input_tokens:
                yield LoggedRequest(
                    client="pi",
                    log=log,
                    sequence=log,
                    is_agent=False,
                    model=str(said.get("model", "")),
                    at=at,
                    answers_at=at,
                    messages=_messages(before),
                    thinks=any(block.get("type") == "thinking" for block in _blocks(said.get("content"))),
                    billed=billed,
                )
        role = "assistant" if said.get("role") == "assistant" else "user"
        content = _blocks(said.get("content"))
        if said.get("role") == "toolResult":
            content = [{"type": "tool_result", "content": said.get("content"), "id": said.get("toolCallId")}]
        before.append((role, tuple(map(_block, content))))
        ids.append(str(line.get("id", "")))


def _messages(spoken: Iterable[tuple[str, tuple[LoggedBlock, ...]]]) -> tuple[LoggedMessage, ...]:
    """Messages as they are sent: what one speaker says in a row is one, results in the order of their calls."""
    said: list[tuple[str, list[LoggedBlock]]] = []
    for role, blocks in spoken:
        if said and said[-1][0] == role:
            said[-1][1].extend(blocks)
        elif blocks:
            said.append((role, list(blocks)))
    found: list[LoggedMessage] = []
    calls: dict[str, int] = {}
    for role, logged in said:
        sent = sorted(logged, key=lambda block: calls.get(block.call, len(calls)))
        latest = next(at for at, block in enumerate(sent) if block is logged[-1])
        found.append(LoggedMessage(role=role, blocks=tuple(sent), latest=latest))
        calls = {block.call: at for at, block in enumerate(logged) if block.kind == "tool_use"}
    return tuple(found)


_KINDS: Mapping[str, str] = {"toolCall": "tool_use"}
# Where in a block the text stands that a model reads.
_TEXTS: Mapping[str, str] = {
    "text": "text",
    "thinking": "thinking",
    "tool_use": "input",
    "toolCall": "arguments",
    "tool_result": "content",
}


def _block(block: Line) -> LoggedBlock:
    kind = str(block.get("type"))
    text = block.get(_TEXTS.get(kind, ""))
    return LoggedBlock(
        kind=_KINDS.get(kind, kind),
        said=json.dumps(block, sort_keys=True),
        text=text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) if text else "",
        call=str(block.get("tool_use_id") or block.get("id") or ""),
    )


def _content(line: Line) -> list[Line]:
    said = line.get("message")
    return _blocks(said.get("content")) if isinstance(said, dict) else []


def _blocks(content: object) -> list[Line]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _number(numbers: Line, name: str) -> int:
    value = numbers.get(name)
    return int(value) if isinstance(value, int | float) else 0


def _seconds(line: Line) -> float:
    try:
        return datetime.fromisoformat(str(line.get("timestamp"))).timestamp()
    except ValueError:
        return 0.0
