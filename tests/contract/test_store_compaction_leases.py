"""Leases of cancelled callers and of callers with wrong clocks, on both databases."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from foveate.session.store import SessionUpdate
from foveate.store import Store, open_store
from foveate.store.database import Database, T, TransactionCallback
from foveate.store.postgres import PostgresDatabase
from foveate.store.sqlite import SQLiteDatabase
from tests.support.stores.records import make_session, make_turns

DAY = 86_400.0
YEAR = 365 * DAY


def open_database(url: str) -> Database:
    if url.startswith("sqlite"):
        return SQLiteDatabase.open(Path(url.removeprefix("sqlite:///")), wait_seconds=5.0)
    return PostgresDatabase.open(url, wait_seconds=5.0)


@dataclass
class SlowDatabase:
    """A `Database` that returns results only after `may_return` is set, long after the transaction."""

    database: Database
    is_committed: asyncio.Event = field(default_factory=asyncio.Event)
    may_return: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def location(self) -> str:
        return self.database.location

    async def read(self, callback: TransactionCallback[T]) -> T:
        return await self.database.read(callback)

    async def look_up(self, statement: str, values: Sequence[str | bytes]) -> list[tuple[Any, ...]]:
        return await self.database.look_up(statement, values)

    async def write(self, callback: TransactionCallback[T], *, is_idempotent: bool) -> T:
        result = await self.database.write(callback, is_idempotent=is_idempotent)
        self.is_committed.set()
        await self.may_return.wait()
        return result

    async def has_other_gateways(self) -> bool:
        return await self.database.has_other_gateways()

    async def size_bytes(self) -> int:
        return await self.database.size_bytes()

    async def vacuum(self) -> None:
        await self.database.vacuum()

    async def close(self) -> None:
        await self.database.close()


async def cancel_during_acquisition(store: Store, slow: SlowDatabase) -> None:
    """Request a lease, and cancel after it is acquired and before the result arrives."""
    task = asyncio.ensure_future(store.compactions.acquire_lease("s", "gone", ttl_seconds=300, now=1000.0))
    await slow.is_committed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.may_return.set()


async def test_a_cancelled_caller_does_not_keep_the_lease(
    database_url: str,
) -> None:
    slow = SlowDatabase(open_database(database_url))
    store = Store(slow)
    await cancel_during_acquisition(store, slow)

    for _ in range(500):
        new = await store.compactions.acquire_lease("s", "next", ttl_seconds=300, now=1001.0)
        if new:
            break
        await asyncio.sleep(0.01)

    assert new
    await store.close()


async def test_closing_a_store_first_releases_leases_of_cancelled_callers(
    database_url: str,
) -> None:
    slow = SlowDatabase(open_database(database_url))
    store = Store(slow)
    await cancel_during_acquisition(store, slow)
    await store.close()

    async with await open_store(database_url) as reopened:
        assert await reopened.compactions.acquire_lease("s", "next", ttl_seconds=300, now=1001.0)


async def test_a_cancelled_caller_does_not_take_the_lease_from_its_holder(database_url: str) -> None:
    slow = SlowDatabase(open_database(database_url))
    async with await open_store(database_url) as other_store:
        lease = await other_store.compactions.acquire_lease("s", "holder", ttl_seconds=300, now=1000.0)
        store = Store(slow)
        await cancel_during_acquisition(store, slow)
        await store.close()

        assert lease
        assert await other_store.compactions.renew_lease(lease, ttl_seconds=300, now=1100.0)


@pytest.mark.parametrize("ahead", [601.0, DAY, 10 * YEAR])
async def test_a_lease_from_a_clock_that_was_ahead_is_taken_over(database_url: str, ahead: float) -> None:
    """A crashed process does not block the session."""
    async with await open_store(database_url) as store:
        old = await store.compactions.acquire_lease("s", "ahead", ttl_seconds=300, now=1000.0 + ahead)
        assert old

        new = await store.compactions.acquire_lease("s", "right", ttl_seconds=300, now=1000.0)

        assert new
        assert await store.compactions.renew_lease(old, ttl_seconds=300, now=1000.0 + ahead) is None


async def test_slightly_different_clocks_do_not_break_a_lease(database_url: str) -> None:
    async with await open_store(database_url) as store:
        assert await store.compactions.acquire_lease("s", "ahead", ttl_seconds=300, now=1200.0)

        assert await store.compactions.acquire_lease("s", "right", ttl_seconds=300, now=1000.0) is None


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_lease_from_a_clock_that_was_ahead_does_not_keep_its_session(
    database_url: str, is_stored: bool
) -> None:
    async with await open_store(database_url) as store:
        if is_stored:
            await store.sessions.save(
                [SessionUpdate(session=make_session("s", 2, seen_at=1 * DAY), turns=make_turns("s", 0, 2))]
            )
        await store.compactions.acquire_lease("s", "ahead", ttl_seconds=300, now=10 * YEAR)

        pruned = await store.prune(keep_days=5, now=10 * DAY)

        assert pruned.sessions == is_stored
        new = await store.compactions.acquire_lease("s", "right", ttl_seconds=300, now=10 * DAY)
        assert new
        assert new.fence == 1, "of the old lease nothing is left"
