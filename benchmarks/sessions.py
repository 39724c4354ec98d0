"""Requests a second that the session step sustains, at 10, 200 and 2,000 turns, on both databases.

The step is all that is done with a request to know its session: its messages hashed, the session found, the new
turns kept, and the whole counted. Each request says two messages more than the one before it; each process has
several sessions under way at once, as a gateway has. Databases keep what they are told as they do by default.
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

from benchmarks.databases import at_once, new_database, new_file, running_postgres
from benchmarks.harness import Cell, Report
from foveate import wire
from foveate.session.chain import chain_of
from foveate.session.conversation import conversation_of
from foveate.session.counting import TurnCounts
from foveate.session.sessions import Sessions
from foveate.session.turns import Move
from foveate.store import Store, open_store
from foveate.tokens import counter_for, drop_caches
from foveate.values import Request

PROCESSES = (1, 4)
_AGENT = "bench"
_MODEL = "claude-sonnet-4-5"
_WORDS = ("the", "a", "file", "test", "run", "path", "of", "error", "line", "value", "read", "hash", "is")
_LEAST_CHARS, _MOST_CHARS = 100, 1100
_NEW_MESSAGES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What each process does: so many sessions at once, each of them with so many requests around `turns`."""

    turns: int
    at_once: int
    sessions: int
    requests: int

    @property
    def first(self) -> int:
        """How many messages a session has when it begins to be timed."""
        return self.turns - _NEW_MESSAGES * ((self.requests + 1) // 2)


LOADS = (
    Load(turns=10, at_once=16, sessions=400, requests=2),
    Load(turns=200, at_once=16, sessions=32, requests=20),
    Load(turns=2000, at_once=8, sessions=8, requests=40),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What one process measured."""

    began: float
    ended: float
    seconds: list[float]
    chain_seconds: float
    cold_seconds: float


FIGURES = (
    "<database>_<processes>_processes_<turns>_turns_per_second",
    "load_before",
)


def run(_data: Path | None) -> Report:
    """Requests a second, and how long one takes, also where nothing is remembered of its session."""
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


def _row(database: str, url: str, load: Load, processes: int) -> dict[str, Cell]:
    timed = _measured(url, load, processes)
    seconds = sorted(second for one in timed for second in one.seconds)
    elapsed = max(one.ended for one in timed) - min(one.began for one in timed)
    return {
        "database": database,
        "processes": processes,
        "turns": load.turns,
        "requests_per_second": round(len(seconds) / elapsed, 1),
        "requests": len(seconds),
        "at_once": load.at_once * processes,
        "median_ms": round(statistics.median(seconds) * 1e3, 2),
        "p99_ms": round(seconds[int(len(seconds) * 0.99)] * 1e3, 2),
        "hashing_ms": round(statistics.median(one.chain_seconds for one in timed) * 1e3, 2),
        "cold_ms": round(statistics.median(one.cold_seconds for one in timed) * 1e3, 2),
    }


def _measured(url: str, load: Load, processes: int) -> list[Timed]:
    """What each of so many processes measured; they begin together."""
    return at_once(partial(_timed, load), url, processes)


async def _timed(load: Load, number: int, url: str, barrier: Barrier) -> Timed:
    sessions = [_session(load, f"{number}-{one}") for one in range(load.sessions)]
    seconds: list[float] = []
    async with await open_store(url, wait_seconds=60.0) as store:
        process = _Process(store)
        for session in sessions:
            await process.step(_cut(session, load.first))
        await asyncio.to_thread(barrier.wait)
        began = time.time()
        waiting = iter(sessions)

        async def served() -> None:
            for session in waiting:
                for length in range(load.first, len(session.messages), _NEW_MESSAGES):
                    started = time.perf_counter()
                    await process.step(_cut(session, length + _NEW_MESSAGES))
                    seconds.append(time.perf_counter() - started)

        await asyncio.gather(*(served() for _ in range(load.at_once)))
        ended = time.time()
        await asyncio.to_thread(barrier.wait)
        return Timed(
            began=began,
            ended=ended,
            seconds=seconds,
            chain_seconds=_chain_seconds(sessions[-1]),
            cold_seconds=await _cold_seconds(store, sessions[-1]),
        )


class _Process:
    """What a gateway's process holds for its sessions."""

    def __init__(self, store: Store) -> None:
        self._turns = store.turns
        self._sessions = Sessions(store.turns)
        self._counts = TurnCounts(store.turns)

    async def step(self, request: Request) -> None:
        chain = chain_of(request)
        conversation = conversation_of(request, chain, agent=_AGENT)
        found = await self._sessions.find(conversation, now=time.time())
        self._sessions.begin(found)
        await self._turns.keep([Move(session=found.session, turns=found.turns)])
        await self._counts.count(_AGENT, request, chain, counter_for(_MODEL), known=found.known)


def _chain_seconds(session: Request) -> float:
    started = time.perf_counter()
    chain_of(session)
    return time.perf_counter() - started


async def _cold_seconds(store: Store, session: Request) -> float:
    """The same in a process that has never seen the session; the database has."""
    drop_caches()
    process = _Process(store)
    counter_for(_MODEL).text("warm")
    started = time.perf_counter()
    await process.step(session)
    return time.perf_counter() - started


def _session(load: Load, name: str) -> Request:
    """All that a session will ever say."""
    chance = random.Random(name)
    length = load.first + _NEW_MESSAGES * load.requests
    messages = tuple(json.dumps(_message(at, name, chance)).encode() for at in range(length))
    body = {"model": _MODEL, "max_tokens": 1024, "system": "Be brief. " * 50, "messages": []}
    return replace(wire.read(json.dumps(body).encode()), messages=messages)


def _message(at: int, name: str, chance: random.Random) -> dict[str, object]:
    chars = chance.randint(_LEAST_CHARS, _MOST_CHARS)
    text = f"{name} {at} " + " ".join(chance.choices(_WORDS, k=chars // 5))
    return {"role": ("user", "assistant")[at % 2], "content": [{"type": "text", "text": text}]}


def _cut(session: Request, length: int) -> Request:
    return replace(session, messages=session.messages[:length])
