"""Functions that use one store in several processes at once."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

from msgspec.structs import replace

from foveate.compaction.store import CompactionLease
from foveate.session.store import SessionUpdate, Turn
from foveate.store import open_store
from tests.support.stores.records import AGENT, make_session, make_turns, message_hashes

T = TypeVar("T")
# Processes that share nothing with this one, forked from a server that has loaded the modules: loading
# them takes most of a second.
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(
    ["tests.support.processes.store_workers", "tests.support.processes.ledger_workers", "alembic.command"]
)
WAIT_SECONDS = 120.0

_barrier: Barrier


def run_together(work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """Call `work` with each of `arguments` in as many processes, starting at the same moment."""
    barrier = SPAWN.Barrier(len(arguments))
    with ProcessPoolExecutor(len(arguments), SPAWN, _set_barrier, (barrier,)) as pool:
        return list(pool.map(_run_after_barrier, [work] * len(arguments), arguments, timeout=WAIT_SECONDS))


def _set_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _run_after_barrier(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    _barrier.wait(WAIT_SECONDS)
    return work(*arguments)


def acquire_lease(url: str, holder: str) -> CompactionLease | None:
    """Try to get the lease for compactions."""

    async def acquire() -> CompactionLease | None:
        async with await open_store(url, wait_seconds=30.0) as store:
            return await store.compactions.acquire_lease("s", holder, ttl_seconds=300.0, now=1000.0)

    return asyncio.run(acquire())


def extend_session(url: str, name: str, messages: int) -> int:
    """Store half of a session, then extend it message by message together with other processes.

    Returns how often this process extended it.
    """

    async def extend() -> int:
        extensions = 0
        half = messages // 2
        async with await open_store(url, wait_seconds=30.0) as store:
            await store.sessions.save(
                [SessionUpdate(session=make_session(name, half), turns=make_turns(name, 0, half))]
            )
            while True:
                session = await store.sessions.get_session(name)
                assert session is not None
                if session.messages >= messages:
                    return extensions
                turns = make_turns(name, session.messages, session.messages + 1)
                await store.sessions.save(
                    [SessionUpdate(session=make_session(name, session.messages + 1), turns=turns)]
                )
                extensions += 1

    return asyncio.run(extend())


def save_forks(url: str, process: int, *, families: int = 6, rounds: int = 30) -> None:
    """Store, again and again, the parents of some families together with forks of the parents of others.

    Two processes with adjacent numbers store each parent, and a fork of it, at the same time.
    """

    async def save() -> None:
        async with await open_store(url, wait_seconds=30.0) as store:
            for round_number in range(rounds):
                updates = []
                for family in range(families):
                    parent = make_session(f"{family}", 2, seen_at=float(round_number))
                    turns = make_turns(parent.id, 0, 2)
                    if (family + process) % 2:
                        fork = make_session(f"{family} {process} {round_number}", 3, parent=parent)
                        turns = [replace(turn, session_id=fork.id) for turn in turns]
                        updates.append(SessionUpdate(session=fork, turns=[*turns, *make_turns(fork.id, 2, 3)]))
                    else:
                        updates.append(SessionUpdate(session=parent, turns=turns))
                await store.sessions.save(updates)

    asyncio.run(save())


def hold_lease(url: str, reports: Connection) -> None:
    """Take the lease for compactions and never release it."""
    reports.send(acquire_lease(url, "holder"))
    time.sleep(WAIT_SECONDS)


def write_until_killed(url: str, reports: Connection) -> None:
    """Store sessions in a row and report each, until this process is killed."""

    async def write() -> None:
        async with await open_store(url) as store:
            for number in range(1_000_000):
                name = f"s{number}"
                await store.sessions.save(
                    [SessionUpdate(session=make_session(name, 20), turns=make_turns(name, 0, 20))]
                )
                reports.send(number)

    asyncio.run(write())


async def missing_positions(url: str, name: str, messages: int) -> list[int]:
    """Return the positions of a session's turns that are not stored."""
    async with await open_store(url) as store:
        turns: dict[bytes, Turn] = dict(
            await store.sessions.find_turns(AGENT, message_hashes(name, 0, messages))
        )
    return sorted({*range(messages)} - {turn.position for turn in turns.values()})
