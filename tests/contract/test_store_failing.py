"""The same of both databases: what is left of those whose work has failed."""

import asyncio
import gc
import sqlite3
from pathlib import Path
from weakref import ReferenceType, ref

import psycopg

from foveate.errors import StoreUnavailable
from foveate.store.database import Database, Transaction
from foveate.store.postgres import PostgresDatabase
from foveate.store.sqlite import SQLiteDatabase


def opened(url: str) -> tuple[Database, type[Exception]]:
    """A database, and what its driver raises."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return SQLiteDatabase.open(path, wait_seconds=5.0), sqlite3.OperationalError
    return PostgresDatabase.open(url, wait_seconds=5.0), psycopg.OperationalError


class Held:
    """Something that whoever asks has at hand."""


async def test_who_was_told_of_a_failure_is_gone_with_it(database_url: str) -> None:
    """Defect: while a store was away, each request stayed until garbage was looked for, which is seldom."""
    database, away = opened(database_url)
    held: list[ReferenceType[Held]] = []

    def fail(_: Transaction) -> None:
        raise away("away")

    async def asking(*, writes: bool) -> None:
        own = Held()
        held.append(ref(own))
        await (database.write(fail, is_idempotent=False) if writes else database.read(fail))

    gc.disable()
    try:
        for writes, at_once in ((True, 1), (True, 3), (False, 1), (False, 3)):
            told = await asyncio.gather(
                *(asking(writes=writes) for _ in range(at_once)), return_exceptions=True
            )
            assert [type(one) for one in told] == [StoreUnavailable] * at_once
            del told
        async with asyncio.timeout(5):
            while any(one() for one in held):  # noqa: ASYNC110 - the loop and the threads have them for a moment
                await asyncio.sleep(0.005)
    finally:
        gc.enable()
        await database.close()
