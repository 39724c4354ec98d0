"""Requests of the gateway benchmark: one-shot calls, agent sessions, streams.

Their text is code of Python's standard library, so that it is counted like real text. No two requests share
text unless intended, so that a gateway's caches for one do not help with another.
"""

import hashlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.gateway_upstream import SLOWLY
from foveate.gateway.request import AGENT_HEADER

MODEL, CHAT_MODEL = "claude-opus-5-5", "gpt-5.2"
# LiteLLM does not start without its own key, and requires it from clients; the others pass it on.
KEY = "sk-" + hashlib.sha256(b"benchmark").hexdigest()
# Has a window that a session soon exceeds.
COMPACTING_AGENT, COMPACTING_WINDOW_TOKENS = "folding", 100_000
SESSION_TURNS = 200
SESSION_BYTES = 300_000
_TOOLS = 16
_SYSTEM_BYTES = 12_000
# Text of a turn without its JSON, so that a session of SESSION_TURNS has SESSION_BYTES.
_CALL_BYTES, _RESULT_BYTES = 150, 915

_HEADERS = {
    "anthropic": (
        ("host", "127.0.0.1"),
        ("content-type", "application/json"),
        ("x-api-key", KEY),
        ("anthropic-version", "2023-06-01"),
        ("accept", "application/json"),
        ("user-agent", "Anthropic/Python 1.4.0"),
    ),
    "chat": (
        ("host", "127.0.0.1"),
        ("content-type", "application/json"),
        ("authorization", f"Bearer {KEY}"),
        ("accept", "application/json"),
        ("user-agent", "OpenAI/Python 2.9.0"),
    ),
}
_PATHS = {"anthropic": "/v1/messages", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Kind of request to repeat. `is_cold_first`: the first request of each session is reported separately.

    `is_slow`: the response arrives in pieces, at the pace of a model.
    """

    name: str
    api_format: str = "anthropic"
    is_cold_first: bool = False
    agent: str | None = None
    is_slow: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        RequestKind("small"),
        RequestKind("small chat", api_format="chat"),
        RequestKind("session", is_cold_first=True),
        RequestKind("same", is_cold_first=True),
        RequestKind("folded", is_cold_first=True, agent=COMPACTING_AGENT),
        RequestKind("stream"),
        RequestKind("stream paced", is_slow=True),
        RequestKind("many"),
    )
}


def requests(kind: str, seed: str) -> Iterator[bytes]:
    """Yield requests of a kind as bytes on the wire; `seed` makes them differ from others."""
    api_format, agent = KINDS[kind].api_format, KINDS[kind].agent
    headers = (*_HEADERS[api_format], *(((AGENT_HEADER, agent),) if agent else ()))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"POST {_PATHS[api_format]} HTTP/1.1\r\n{lines}content-length: ".encode()
    for body in _bodies(kind, seed):
        yield b"%s%d\r\n\r\n%s" % (head, len(body), body)


def _bodies(kind: str, seed: str) -> Iterator[bytes]:
    match kind:
        case "small":
            return _small_bodies(seed)
        case "small chat":
            return _small_bodies(seed, model=CHAT_MODEL)
        case "stream":
            return _small_bodies(seed, stream=True)
        case "stream paced":
            return _small_bodies(seed, stream=True, asking=SLOWLY)
        case "session" | "folded":
            return _session_bodies(seed)
        case "same":
            return _repeated_bodies(seed)
        case "many":
            return _many_session_bodies(seed)
        case _:
            raise ValueError(kind)


def _small_bodies(
    seed: str, *, model: str = MODEL, stream: bool = False, asking: str = "Answer with the number alone."
) -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        message = f"What is the sum of {number} and 17? It is question {seed}. {asking}"
        body: dict[str, Any] = {"model": model, "max_tokens": 100}
        if stream:
            body["stream"] = True
        yield _encode(body | {"messages": [{"role": "user", "content": message}]})


def _session_bodies(
    seed: str, turns: int = SESSION_TURNS, result_bytes: int = _RESULT_BYTES
) -> Iterator[bytes]:
    """Yield the requests of one agent after `turns` turns, each longer by a tool call and its result."""
    rng = random.Random(seed)
    messages = [_encode({"role": "user", "content": f"Task {seed}. {_text(rng, 400)}"})]
    for number in range(turns):
        messages += _turn(rng, number, result_bytes)
    grown = _opening() + b",".join(messages)
    while True:
        yield grown + b"]}"
        number += 1
        grown += b"," + b",".join(_turn(rng, number, result_bytes))


def _repeated_bodies(seed: str) -> Iterator[bytes]:
    """Yield a request of that size repeatedly."""
    body = next(_session_bodies(seed))
    while True:
        yield body


def _many_session_bodies(seed: str) -> Iterator[bytes]:
    """Yield session after session, each of 20 turns."""
    number = 0
    while True:
        number += 1
        session = _session_bodies(f"{seed} {number}", turns=1, result_bytes=400)
        yield from (body for body, _ in zip(session, range(20), strict=False))


def _turn(rng: random.Random, number: int, result_bytes: int) -> list[bytes]:
    call_id = f"toolu_{rng.getrandbits(64):016x}"
    call = {
        "type": "tool_use",
        "id": call_id,
        "name": f"tool_{rng.randrange(_TOOLS)}",
        "input": {"path": f"src/module_{rng.randrange(100)}.py", "line": rng.randrange(1000)},
    }
    message = {"type": "text", "text": _text(rng, _CALL_BYTES)}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": f"{number} {_text(rng, result_bytes)}"}
    return [
        _encode({"role": "assistant", "content": [message, call]}),
        _encode({"role": "user", "content": [result]}),
    ]


@cache
def _opening() -> bytes:
    """Return the start of every session: parameters, tools and system prompt."""
    rng = random.Random("opening")
    tools = [
        {
            "name": f"tool_{number}",
            "description": _text(rng, 300),
            "input_schema": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": _text(rng, 60)},
                    "line": {"type": "integer", "description": _text(rng, 60)},
                },
                "required": ["path"],
            },
        }
        for number in range(_TOOLS)
    ]
    opening = {
        "model": MODEL,
        "max_tokens": 4096,
        "tools": tools,
        "system": [{"type": "text", "text": _text(rng, _SYSTEM_BYTES)}],
        "messages": [],
    }
    return _encode(opening).removesuffix(b"]}")


def _text(rng: random.Random, size: int) -> str:
    start = rng.randrange(len(_library()) - size)
    return _library()[start : start + size]


@cache
def _library() -> str:
    """Return code and its comments, in ASCII."""
    files = sorted(Path(os.__file__).parent.glob("[a-m]*.py"))
    texts = (path.read_text(encoding="utf-8", errors="ignore") for path in files)
    return "".join(texts).encode("ascii", "ignore").decode()


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
