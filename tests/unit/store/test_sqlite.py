"""Processes that write one SQLite file take turns, lock files prevent no write, and lookups do not wait."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from foveate.errors import StoreUnavailable
from foveate.store.database import Transaction
from foveate.store.sqlite import SQLiteDatabase, WriterQueue
from tests.support.oracles.system_state import wait_until


def is_queued(database: Path) -> bool:
    """Check if a writer is waiting."""
    import fcntl

    with Path(f"{database}-next").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_process_that_writes_again_queues_behind_waiting_writers(tmp_path: Path) -> None:
    """Regression: a busy process starved the others, since SQLite's waiting writers poll ever less often."""
    database = tmp_path / "store.sqlite"
    busy_queue, waiting_queue = WriterQueue(database), WriterQueue(database)
    order: list[str] = []

    def write() -> None:
        with waiting_queue.hold_turn():
            order.append("waiting")

    other_writer = Thread(target=write)
    with busy_queue.hold_turn():
        order.append("busy")
        other_writer.start()
        wait_until(lambda: is_queued(database), bool, 30)
    with busy_queue.hold_turn():
        order.append("busy again")
    other_writer.join()
    busy_queue.close()
    waiting_queue.close()

    assert order == ["busy", "waiting", "busy again"]


def test_a_writer_proceeds_if_another_process_holds_the_turn_too_long(tmp_path: Path) -> None:
    database = tmp_path / "store.sqlite"
    stuck_queue, other_queue = WriterQueue(database), WriterQueue(database)
    has_written = Event()
    with stuck_queue.hold_turn(), other_queue.hold_turn():
        has_written.set()

    assert has_written.is_set()


def test_a_writer_proceeds_if_the_lock_files_cannot_be_opened(tmp_path: Path) -> None:
    queue = WriterQueue(tmp_path / "no such folder" / "store.sqlite")
    with queue.hold_turn():
        pass
    queue.close()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SQLiteDatabase]:
    opened = await asyncio.to_thread(SQLiteDatabase.open, tmp_path / "store.sqlite", wait_seconds=5.0)
    yield opened
    await opened.close()


async def test_a_lookup_does_not_wait_for_other_reads(database: SQLiteDatabase) -> None:
    """Regression: every request of a gateway with several workers waited for a thread of the store."""
    may_end = Event()
    reads = [asyncio.ensure_future(database.read(lambda _: may_end.wait(30))) for _ in range(8)]
    await asyncio.sleep(0)
    try:
        lookup = database.look_up("SELECT 1", ())

        assert await asyncio.wait_for(lookup, 10) == [(1,)]
        assert not any(read.done() for read in reads)
    finally:
        may_end.set()
        await asyncio.gather(*reads)


async def test_a_lookup_that_finds_the_file_locked_waits_in_a_thread(database: SQLiteDatabase) -> None:
    with closing(sqlite3.connect(database.location, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")  # locks readers out as well
        lookup = asyncio.ensure_future(database.look_up("SELECT 'found' FROM sessions_v1", ()))
        await asyncio.sleep(0.05)

        assert not lookup.done()
    assert await asyncio.wait_for(lookup, 10) == []


async def test_a_lookup_in_a_deleted_file_is_rejected(database: SQLiteDatabase) -> None:
    await asyncio.to_thread(Path(database.location).unlink)

    with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
        await database.look_up("SELECT 1", ())


class FailingConnection:
    """A connection that can neither roll back nor be closed."""

    in_transaction = True

    def rollback(self) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    close = rollback


async def test_writing_continues_with_a_new_connection_if_a_transaction_cannot_be_rolled_back(
    database: SQLiteDatabase,
) -> None:
    """Regression: the thread that writes ended, and all later writes waited for ever."""
    connections: list[sqlite3.Connection] = []

    def fail(_: Transaction) -> None:
        connections.append(database._thread_local.connection)
        database._thread_local.connection = FailingConnection()
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(database.write(fail, is_idempotent=True), 10)
    connections[0].rollback()  # as the operating system does once the disk works
    row = await asyncio.wait_for(
        database.write(lambda transaction: transaction.fetch_all("SELECT 1"), is_idempotent=True), 10
    )

    assert row == [(1,)]
