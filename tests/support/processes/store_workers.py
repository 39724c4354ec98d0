"""What several processes do to one store at once, and the way to have them do it."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

from foveate.compaction.store import CompactionLease
from foveate.session.store import SessionUpdate, Turn
from foveate.store import open_store
from tests.support.stores.records import AGENT, make_session, make_turns, message_hashes

T = TypeVar("T")
# New processes that share nothing with this one. They are forked from a server that has loaded the modules: to
# load them takes most of a second.
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(
    ["tests.support.processes.store_workers", "tests.support.processes.ledger_workers", "alembic.command"]
)
WAIT_SECONDS = 120.0

_gate: Barrier


def run_together(work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """What `work` gives with each of `arguments`, in as many processes, which begin at the same moment."""
    barrier = SPAWN.Barrier(len(arguments))
    with ProcessPoolExecutor(len(arguments), SPAWN, _set_barrier, (barrier,)) as pool:
        return list(pool.map(_run_after_barrier, [work] * len(arguments), arguments, timeout=WAIT_SECONDS))


def _set_barrier(barrier: Barrier) -> None:
    global _gate
    _gate = barrier


def _run_after_barrier(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    _gate.wait(WAIT_SECONDS)
    return work(*arguments)


def acquire_lease(url: str, holder: str) -> CompactionLease | None:
    """Whether this process gets the right to fold."""

    async def ask() -> CompactionLease | None:
        async with await open_store(url, wait_seconds=30.0) as store:
            return await store.compactions.acquire_lease("s", holder, ttl_seconds=300.0, now=1000.0)

    return asyncio.run(ask())


def extend_session(url: str, name: str, messages: int) -> int:
    """Keep a session of half as many messages that all processes have, and lengthen it by one until it has all.

    How often this process did so.
    """

    async def keep() -> int:
        lengthened = 0
        half = messages // 2
        async with await open_store(url, wait_seconds=30.0) as store:
            await store.sessions.save(
                [SessionUpdate(session=make_session(name, half), turns=make_turns(name, 0, half))]
            )
            while True:
                now = await store.sessions.get_session(name)
                assert now is not None
                if now.messages >= messages:
                    return lengthened
                new = make_turns(name, now.messages, now.messages + 1)
                await store.sessions.save(
                    [SessionUpdate(session=make_session(name, now.messages + 1), turns=new)]
                )
                lengthened += 1

    return asyncio.run(keep())


def hold_lease(url: str, reports: Connection) -> None:
    """Take the right to fold, say so, and never give it back."""
    reports.send(acquire_lease(url, "holder"))
    time.sleep(WAIT_SECONDS)


def write_until_killed(url: str, reports: Connection) -> None:
    """Keep one session after the other, and say which are kept, until something ends this process."""

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
    """The positions of a session's turns that are not kept."""
    async with await open_store(url) as store:
        known: dict[bytes, Turn] = dict(
            await store.sessions.find_turns(AGENT, message_hashes(name, 0, messages))
        )
    return sorted({*range(messages)} - {turn.position for turn in known.values()})
