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
from tests.e2e.test_store_faults_sqlite import check_unharmed, make
from tests.support.stores.records import make_session, make_turns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "foveate.sqlite"


@dataclass
class Busy:
    """A job that keeps the writer busy until it is released."""

    began: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def work(self, _: Transaction) -> None:
        self.began.set()
        self.may_end.wait(60)


def test_writes_of_cancelled_callers_are_not_started(path: Path) -> None:
    async def use() -> None:
        database = SQLiteDatabase.open(path, wait_seconds=5.0)
        store = Store(database)
        busy = Busy()
        writing = asyncio.ensure_future(database.write(busy.work, is_idempotent=True))
        try:
            await asyncio.to_thread(busy.began.wait, 60)
            keeping = asyncio.ensure_future(
                store.sessions.save([SessionUpdate(session=make_session("s", 2), turns=make_turns("s", 0, 2))])
            )
            await asyncio.sleep(0.1)
            keeping.cancel()
            await asyncio.sleep(0)
        finally:
            busy.may_end.set()
        async with asyncio.timeout(60):
            await writing
            await check_unharmed(store)
        assert keeping.cancelled()
        assert await store.sessions.get_session("s") is None
        await store.close()

    asyncio.run(make(path))
    asyncio.run(use())


def test_an_event_loop_that_ends_during_a_write_does_not_affect_others(path: Path) -> None:
    asyncio.run(make(path))
    database = SQLiteDatabase.open(path, wait_seconds=5.0)
    busy = Busy()

    async def leave() -> None:
        writing = asyncio.ensure_future(database.write(busy.work, is_idempotent=True))
        await asyncio.to_thread(busy.began.wait, 60)
        writing.cancel()

    async def use() -> None:
        store = Store(database)
        async with asyncio.timeout(30):
            await check_unharmed(store)
            await store.close()

    asyncio.run(leave())
    busy.may_end.set()  # only now, when no caller is left
    asyncio.run(use())
