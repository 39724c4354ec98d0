"""Failed work leaves no references to its callers, on both databases."""

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


def open_database(url: str) -> tuple[Database, type[Exception]]:
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return SQLiteDatabase.open(path, wait_seconds=5.0), sqlite3.OperationalError
    return PostgresDatabase.open(url, wait_seconds=5.0), psycopg.OperationalError


class CallerObject:
    """An object that the caller holds."""


async def test_a_failed_write_keeps_no_reference_to_its_caller(database_url: str) -> None:
    """Regression: while a store was unreachable, requests stayed in memory until garbage collection."""
    database, driver_error = open_database(database_url)
    references: list[ReferenceType[CallerObject]] = []

    def fail(_: Transaction) -> None:
        raise driver_error("away")

    async def call_store(*, is_write: bool) -> None:
        caller = CallerObject()
        references.append(ref(caller))
        await (database.write(fail, is_idempotent=False) if is_write else database.read(fail))

    gc.disable()
    try:
        for is_write, concurrency in ((True, 1), (True, 3), (False, 1), (False, 3)):
            errors = await asyncio.gather(
                *(call_store(is_write=is_write) for _ in range(concurrency)), return_exceptions=True
            )
            assert [type(error) for error in errors] == [StoreUnavailable] * concurrency
            del errors
        async with asyncio.timeout(5):
            while any(reference() for reference in references):  # noqa: ASYNC110 - the loop and the threads hold them for a moment
                await asyncio.sleep(0.005)
    finally:
        gc.enable()
        await database.close()
