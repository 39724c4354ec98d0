"""Requests a second that the session step sustains, at 10, 200 and 2,000 turns, on both databases.

The step does everything that is needed to identify the session of a request: hash its messages, find the
session, store the new turns, and count the whole. Each request has two messages more than the previous one;
each process has several concurrent sessions, like a gateway. Databases have their default durability.
"""

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.databases import new_database, new_file, run_together, running_postgres
from benchmarks.harness import Cell, Report
from foveate import formats
from foveate.model import Request
from foveate.session.counting import TurnCounter
from foveate.session.hash_chain import compute_chain
from foveate.session.matching import SessionMatcher, observe_conversation
from foveate.session.store import SessionUpdate
from foveate.store import Store, open_store
from foveate.tokens import counter_for, drop_caches

PROCESSES = (1, 4)
_AGENT = "bench"
_MODEL = "claude-sonnet-4-5"
_WORDS = ("the", "a", "file", "test", "run", "path", "of", "error", "line", "value", "read", "hash", "is")
_MIN_CHARS, _MAX_CHARS = 100, 1100
_NEW_MESSAGES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLoad:
    """Load of each process: concurrent sessions, each with this many requests around `turns`."""

    turns: int
    concurrency: int
    sessions: int
    requests: int

    @property
    def first(self) -> int:
        """Number of messages of a session when timing starts."""
        return self.turns - _NEW_MESSAGES * ((self.requests + 1) // 2)


LOADS = (
    SessionLoad(turns=10, concurrency=16, sessions=400, requests=2),
    SessionLoad(turns=200, concurrency=16, sessions=32, requests=20),
    SessionLoad(turns=2000, concurrency=8, sessions=8, requests=40),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTiming:
    """Measurements of one process."""

    started_at: float
    ended_at: float
    seconds: list[float]
    chain_seconds: float
    cold_seconds: float


FIGURES = (
    "<database>_<processes>_processes_<turns>_turns_per_second",
    "load_before",
)


def run(_data: Path | None) -> Report:
    """Return requests per second and latency, also if nothing about the session is cached."""
    load = os.getloadavg()[0]
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder, running_postgres() as server:
        for turns in LOADS:
            for processes in PROCESSES:
                rows.append(_row("sqlite", new_file(folder), turns, processes))
                if server is not None:
                    rows.append(_row("postgresql", new_database(server), turns, processes))
    figures = {
        f"{row['database']}_{row['processes']}_processes_{row['turns']}_turns_per_second": float(
            row["requests_per_second"] or 0
        )
        for row in rows
    }
    return Report(figures={**figures, "load_before": round(load, 2)}, rows=rows)


def _row(database: str, url: str, load: SessionLoad, processes: int) -> dict[str, Cell]:
    timed = _measure(url, load, processes)
    seconds = sorted(second for item in timed for second in item.seconds)
    elapsed = max(item.ended_at for item in timed) - min(item.started_at for item in timed)
    return {
        "database": database,
        "processes": processes,
        "turns": load.turns,
        "requests_per_second": round(len(seconds) / elapsed, 1),
        "requests": len(seconds),
        "at_once": load.concurrency * processes,
        "median_ms": round(statistics.median(seconds) * 1e3, 2),
        "p99_ms": round(seconds[int(len(seconds) * 0.99)] * 1e3, 2),
        "hashing_ms": round(statistics.median(item.chain_seconds for item in timed) * 1e3, 2),
        "cold_ms": round(statistics.median(item.cold_seconds for item in timed) * 1e3, 2),
    }


def _measure(url: str, load: SessionLoad, processes: int) -> list[SessionTiming]:
    """Return the measurements of each process; all start together."""
    return run_together(partial(_time_requests, load), url, processes)


async def _time_requests(load: SessionLoad, number: int, url: str, barrier: Barrier) -> SessionTiming:
    sessions = [_make_session(load, f"{number}-{index}") for index in range(load.sessions)]
    seconds: list[float] = []
    async with await open_store(url, wait_seconds=60.0) as store:
        process = _Process(store)
        for session in sessions:
            await process.step(_prefix_body(session, load.first))
        await asyncio.to_thread(barrier.wait)
        started_at = time.time()
        waiting = iter(sessions)

        async def send_requests() -> None:
            for session in waiting:
                for length in range(load.first, len(session.messages), _NEW_MESSAGES):
                    started = time.perf_counter()
                    await process.step(_prefix_body(session, length + _NEW_MESSAGES))
                    seconds.append(time.perf_counter() - started)

        await asyncio.gather(*(send_requests() for _ in range(load.concurrency)))
        ended = time.time()
        await asyncio.to_thread(barrier.wait)
        return SessionTiming(
            started_at=started_at,
            ended_at=ended,
            seconds=seconds,
            chain_seconds=_chain_seconds(sessions[-1]),
            cold_seconds=await _cold_seconds(store, sessions[-1]),
        )


class _Process:
    """State of a gateway process for its sessions."""

    def __init__(self, store: Store) -> None:
        self._turns = store.sessions
        self._sessions = SessionMatcher(store.sessions)
        self._counts = TurnCounter(store.sessions)

    async def step(self, request: Request) -> None:
        chain = compute_chain(request)
        conversation = observe_conversation(request, chain, agent=_AGENT)
        found = await self._sessions.find(conversation, now=time.time())
        self._sessions.begin(found)
        await self._turns.save([SessionUpdate(session=found.session, turns=found.turns)])
        await self._counts.count(_AGENT, request, chain, counter_for(_MODEL), known=found.known_messages)


def _chain_seconds(session: Request) -> float:
    started = time.perf_counter()
    compute_chain(session)
    return time.perf_counter() - started


async def _cold_seconds(store: Store, session: Request) -> float:
    """Measure the step in a process that has never seen the session; the database has."""
    drop_caches()
    process = _Process(store)
    counter_for(_MODEL).text("warm")
    started = time.perf_counter()
    await process.step(session)
    return time.perf_counter() - started


def _make_session(load: SessionLoad, name: str) -> Request:
    """Return all messages that a session will contain."""
    chance = random.Random(name)
    length = load.first + _NEW_MESSAGES * load.requests
    messages = tuple(json.dumps(_message(at, name, chance)).encode() for at in range(length))
    body = {"model": _MODEL, "max_tokens": 1024, "system": "Be brief. " * 50, "messages": []}
    return replace(formats.parse_request(json.dumps(body).encode()), messages=messages)


def _message(at: int, name: str, chance: random.Random) -> dict[str, object]:
    chars = chance.randint(_MIN_CHARS, _MAX_CHARS)
    text = f"{name} {at} " + " ".join(chance.choices(_WORDS, k=chars // 5))
    return {"role": ("user", "assistant")[at % 2], "content": [{"type": "text", "text": text}]}


def _prefix_body(session: Request, length: int) -> Request:
    return replace(session, messages=session.messages[:length])
