"""Dashboard reads leave capacity for reads of requests."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from foveate.errors import StoreUnavailable
from foveate.session.rollups import Totals
from foveate.store.database import (
    MAX_CONCURRENT_READS,
    LowPriorityReader,
    Reader,
    T,
    Transaction,
    TransactionCallback,
)
from foveate.store.repositories.rollups import SqlRollupStore
from foveate.store.sqlite import SQLiteDatabase

NO_ROWS = cast("Transaction", None)


class SlowDatabase:
    """A database that counts concurrent reads."""

    def __init__(self) -> None:
        self.current_reads = 0
        self.max_reads = 0

    async def read(self, callback: TransactionCallback[T]) -> T:
        self.current_reads += 1
        self.max_reads = max(self.max_reads, self.current_reads)
        try:
            await asyncio.sleep(0)
            return callback(NO_ROWS)
        finally:
            self.current_reads -= 1


async def test_concurrent_dashboard_reads_are_limited() -> None:
    database = SlowDatabase()
    reader = LowPriorityReader(database)

    assert await asyncio.gather(*(reader.read(lambda _: "found") for _ in range(20))) == ["found"] * 20

    assert database.max_reads == MAX_CONCURRENT_READS


async def test_a_failed_or_cancelled_read_frees_its_slot() -> None:
    def fail(_: Transaction) -> int:
        raise StoreUnavailable("here", "is gone")

    reader = LowPriorityReader(SlowDatabase(), max_concurrent=1)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await reader.read(fail)
    cancelled = asyncio.ensure_future(reader.read(lambda _: 1))
    await asyncio.sleep(0)
    cancelled.cancel()

    assert await asyncio.wait_for(reader.read(lambda _: 2), 5) == 2


def test_reads_of_one_event_loop_do_not_wait_for_those_of_another() -> None:
    reader = LowPriorityReader(SlowDatabase(), max_concurrent=1)

    async def read() -> list[int]:
        return await asyncio.gather(*(reader.read(lambda _: 3) for _ in range(3)))

    assert [asyncio.run(read()), asyncio.run(read())] == [[3] * 3] * 2


async def test_totals_are_converted_in_the_reader_thread_and_not_on_the_event_loop(tmp_path: Path) -> None:
    results: list[object] = []

    class RecordingReader:
        def __init__(self, database: Reader) -> None:
            self._database = database

        async def read(self, callback: TransactionCallback[T]) -> T:
            value = await self._database.read(callback)
            results.append(value)
            return value

    database = SQLiteDatabase.open(tmp_path / "store.sqlite", wait_seconds=5)
    try:
        result = await SqlRollupStore(RecordingReader(database)).sum_totals()
    finally:
        await database.close()

    assert results == [result] == [[((), Totals())]]
