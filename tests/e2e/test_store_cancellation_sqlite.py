"""Writes of cancelled callers to an SQLite file do not affect others."""

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from foveate.session.store import SessionUpdate
from foveate.store import Store
from foveate.store.database import Transaction
from foveate.store.sqlite import SQLiteDatabase
from tests.support.oracles.intact_store import check_intact, create_store
from tests.support.stores.records import make_session, make_turns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "foveate.sqlite"


@dataclass
class BlockingJob:
    """A job that keeps the writer busy until it is released."""

    has_started: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def run(self, _: Transaction) -> None:
        self.has_started.set()
        self.may_end.wait(60)


def test_writes_of_cancelled_callers_are_not_started(path: Path) -> None:
    async def use() -> None:
        database = SQLiteDatabase.open(path, wait_seconds=5.0)
        store = Store(database)
        job = BlockingJob()
        blocking_write = asyncio.ensure_future(database.write(job.run, is_idempotent=True))
        try:
            await asyncio.to_thread(job.has_started.wait, 60)
            cancelled_write = asyncio.ensure_future(
                store.sessions.save([SessionUpdate(session=make_session("s", 2), turns=make_turns("s", 0, 2))])
            )
            await asyncio.sleep(0.1)
            cancelled_write.cancel()
            await asyncio.sleep(0)
        finally:
            job.may_end.set()
        async with asyncio.timeout(60):
            await blocking_write
            await check_intact(store)
        assert cancelled_write.cancelled()
        assert await store.sessions.get_session("s") is None
        await store.close()

    asyncio.run(create_store(path))
    asyncio.run(use())


def test_an_event_loop_that_ends_during_a_write_does_not_affect_others(path: Path) -> None:
    asyncio.run(create_store(path))
    database = SQLiteDatabase.open(path, wait_seconds=5.0)
    job = BlockingJob()

    async def cancel_write() -> None:
        write = asyncio.ensure_future(database.write(job.run, is_idempotent=True))
        await asyncio.to_thread(job.has_started.wait, 60)
        write.cancel()

    async def use() -> None:
        store = Store(database)
        async with asyncio.timeout(30):
            await check_intact(store)
            await store.close()

    asyncio.run(cancel_write())
    job.may_end.set()  # only after the event loop of the caller has ended
    asyncio.run(use())
