"""A session that grows by a message per turn and is counted after each: Foveate and its peers.

The first two methods count every turn. The others read the whole session again at each turn, so they are
measured at a few lengths, and the total is the area under the line through these.
"""

import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import foveate
from benchmarks.corpus import Source
from benchmarks.harness import Cell
from foveate.tokens import Conversation

TURNS = 2000
WINDOWS = (10, 100, 1000, 2000)
_LENGTHS = (1, 10, 100, 500, 1000, 2000)
_ROUNDS = 3
_MODEL = "gpt-4o"
# Repeated pattern of turns: role and kind of text. A question, tool calls, an answer.
_ROUND = (
    ("user", "prose"),
    *((role, kind) for kind in ("json", "code", "json", "code") for role in ("call", "tool")),
    ("assistant", "prose"),
)
# Lengths with equal probability, and the same sizes in every cycle, so that cycles are comparable.
_CYCLE_TURNS = 2 * len(_ROUND)
_MIN_BYTES, _MAX_BYTES = 200, 3000
_SEED = 2000

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTimings:
    """Total seconds of each method by name, and Foveate's seconds per turn at each of `WINDOWS`."""

    total_seconds: Mapping[str, float]
    turn_seconds: Mapping[int, float]
    rows: Sequence[Mapping[str, Cell]]


def time_growing_session(
    sources: Mapping[str, Source], encode: Callable[[str], Sequence[int]]
) -> SessionTimings:
    """Count one session by every method; `encode` is tiktoken's."""
    body = _opening()
    ours: list[list[float]] = []
    memoed: list[list[float]] = []
    for _ in range(_ROUNDS):
        messages = [_message(role, sources[kind].take(size), n) for n, (role, size, kind) in enumerate(_plan())]
        ours.append(_conversation(body, messages))
        memoed.append(_with_memo(messages, encode))
    whole = {
        "litellm": _litellm(messages, body["tools"]),
        "langchain": _langchain(messages),
        "foveate.count_request": _request(body, messages),
    }
    totals = {
        "foveate": statistics.median(map(sum, ours)),
        "tiktoken_memo": statistics.median(map(sum, memoed)),
    } | {name: _area(_seconds_at(call)) for name, call in whole.items()}
    medians = {name: _median_turns(rounds) for name, rounds in (("foveate", ours), ("tiktoken_memo", memoed))}
    windows = {turn: _mean_around(medians["foveate"], turn) for turn in WINDOWS}
    rows: list[dict[str, Cell]] = [
        {
            "measure": f"session of {TURNS} turns",
            "who": name,
            "seconds": round(seconds, 4),
            "how": "all turns" if name in ("foveate", "tiktoken_memo") else f"from {len(_LENGTHS)} lengths",
        }
        for name, seconds in totals.items()
    ]
    for name, turns in medians.items():
        rows.extend(
            {"measure": "one turn", "who": name, "turn": turn, "us": round(_mean_around(turns, turn) * 1e6, 1)}
            for turn in WINDOWS
        )
    return SessionTimings(total_seconds=totals, turn_seconds=windows, rows=rows)


def _plan() -> list[tuple[str, int, str]]:
    chance = random.Random(_SEED)
    sizes = [chance.randint(_MIN_BYTES, _MAX_BYTES) for _ in range(_CYCLE_TURNS)]
    turns = zip(itertools.cycle(_ROUND), itertools.cycle(sizes), strict=False)
    return [(role, size, kind) for (role, kind), size in itertools.islice(turns, TURNS)]


def _opening() -> dict[str, Any]:
    properties = {
        "path": {"type": "string", "description": "The file, from the project's root"},
        "pattern": {"type": "string", "description": "What to look for"},
        "limit": {"type": "integer", "description": "How many lines at most"},
    }
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"{name.title()} in the project, and say what was found there.",
                "parameters": {"type": "object", "properties": properties, "required": ["path"]},
            },
        }
        for name in ("read", "write", "search", "list", "run", "test", "edit", "diff")
    ]
    return {"model": _MODEL, "tools": tools, "messages": []}


def _message(role: str, text: str, turn: int) -> Message:
    if role == "tool":
        return {"role": "tool", "tool_call_id": f"call_{turn - 1}", "content": text}
    if role == "call":
        function = {"name": "edit", "arguments": json.dumps({"path": f"src/part_{turn}.py", "text": text})}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"role": role, "content": text}


def _text(message: Message) -> str:
    calls = message.get("tool_calls")
    return str(calls[0]["function"]["arguments"] if calls else message["content"])


def _conversation(body: dict[str, Any], messages: Sequence[Message]) -> list[float]:
    """Return seconds of each turn: append the message and count the whole."""
    conversation = Conversation(body)
    conversation.count()
    seconds = []
    for message in messages:
        started = time.perf_counter()
        conversation.append(message)
        conversation.count()
        seconds.append(time.perf_counter() - started)
    return seconds


def _with_memo(messages: Sequence[Message], encode: Callable[[str], Sequence[int]]) -> list[float]:
    """Return seconds of each turn: tokenize every text once, and add all of them up again."""
    memo: dict[str, int] = {}
    texts: list[str] = []
    seconds = []
    for message in messages:
        started = time.perf_counter()
        texts.append(_text(message))
        total = 3
        for text in texts:
            tokens = memo.get(text)
            if tokens is None:
                tokens = memo[text] = len(encode(text))
            total += tokens + 4
        seconds.append(time.perf_counter() - started)
    return seconds


def _litellm(messages: Sequence[Message], tools: object) -> Callable[[int], None]:
    import litellm

    def count(turns: int) -> None:
        litellm.token_counter(model=_MODEL, messages=list(messages[:turns]), tools=tools)

    return count


def _langchain(messages: Sequence[Message]) -> Callable[[int], None]:
    from langchain_core.messages import convert_to_messages
    from langchain_core.messages.utils import count_tokens_approximately

    converted = convert_to_messages(messages)

    def count(turns: int) -> None:
        count_tokens_approximately(converted[:turns])

    return count


def _request(body: dict[str, Any], messages: Sequence[Message]) -> Callable[[int], None]:
    """Count a request after the body of the previous turn, as in a session."""

    def count(turns: int) -> None:
        foveate.count_request({**body, "messages": messages[:turns]})

    return count


def _seconds_at(count: Callable[[int], None]) -> list[tuple[int, float]]:
    """Return seconds of one count at each of `_LENGTHS`; the previous turn is counted first, untimed."""
    points = []
    for length in _LENGTHS:
        seconds = []
        for turn in range(max(length - _ROUNDS, 0), length + 1):
            started = time.perf_counter()
            count(turn)
            seconds.append(time.perf_counter() - started)
        points.append((length, statistics.median(seconds[1:])))
    return points


def _area(points: Sequence[tuple[int, float]]) -> float:
    """Return the sum over all turns, interpolated between those that were measured."""
    pairs = itertools.pairwise(points)
    between = sum((right - left) * (low + high) / 2 for (left, low), (right, high) in pairs)
    return points[0][1] + between


def _median_turns(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of the rounds for each turn."""
    return [statistics.median(turn) for turn in zip(*rounds, strict=True)]


def _mean_around(seconds: Sequence[float], turn: int) -> float:
    """Return the mean of the cycle around `turn`, so that every window contains the same kinds of messages."""
    last = min(max(turn + _CYCLE_TURNS // 2, _CYCLE_TURNS), len(seconds))
    return statistics.mean(seconds[last - _CYCLE_TURNS : last])
