"""Lookups in PostgreSQL on the event loop return what a thread would read, even if connections are lost."""

import asyncio
from collections.abc import AsyncIterator
from threading import Event
from typing import Any

import psycopg
import pytest

from foveate.errors import StoreUnavailable
from foveate.store.postgres import PostgresDatabase
from tests.support.stores.postgres import PostgresServer

_TYPES = """
SELECT CAST(? AS BYTEA), CAST(? AS TEXT), CAST(-7 AS BIGINT), CAST(3 AS INTEGER), CAST(1.5 AS DOUBLE PRECISION),
CAST(NULL AS TEXT), 1 = 1
"""
_TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_store()


@pytest.fixture
async def database(url: str) -> AsyncIterator[PostgresDatabase]:
    opened = await asyncio.to_thread(PostgresDatabase.open, url, wait_seconds=5.0)
    yield opened
    await opened.close()


async def connect(database: PostgresDatabase) -> None:
    """Look up until the event loop has its own connection."""
    for _ in range(100):
        if await is_on_event_loop(database):
            return
    raise AssertionError("no connection for lookups")


async def is_on_event_loop(database: PostgresDatabase) -> bool:
    """Look up while no thread of the store is free."""
    may_end = Event()
    reads = [asyncio.ensure_future(database.read(lambda _: may_end.wait(30))) for _ in range(8)]
    lookup = asyncio.ensure_future(database.look_up("SELECT 'lookup_me'", ()))
    await asyncio.wait([lookup], timeout=0.5)
    is_found = lookup.done()
    may_end.set()
    await asyncio.gather(lookup, *reads)
    return is_found


async def test_a_lookup_does_not_wait_for_other_reads(database: PostgresDatabase) -> None:
    """Regression: every request of a gateway waited for a thread of the store."""
    await connect(database)

    assert await is_on_event_loop(database)


async def test_a_lookup_returns_the_same_values_as_a_read(database: PostgresDatabase) -> None:
    values = (b"\0\xff bytes", "täxt")
    expected = await database.read(lambda transaction: transaction.fetch_all(_TYPES, values))
    await connect(database)

    assert await database.look_up(_TYPES, values) == expected
    assert expected == [(b"\0\xff bytes", "täxt", -7, 3, 1.5, None, True)]


async def test_each_of_many_concurrent_lookups_gets_its_own_rows(database: PostgresDatabase) -> None:
    await connect(database)
    lookups = [database.look_up(f"SELECT CAST(? AS TEXT), {n % 3}", (str(n),)) for n in range(300)]

    assert await asyncio.gather(*lookups) == [[(str(n), n % 3)] for n in range(300)]


async def test_a_cancelled_lookup_does_not_affect_others(database: PostgresDatabase) -> None:
    await connect(database)
    lookups = [
        asyncio.ensure_future(database.look_up("SELECT CAST(? AS TEXT), pg_sleep(0.01)", (str(n),)))
        for n in range(20)
    ]
    await asyncio.sleep(0.02)
    for lookup in lookups[::2]:
        lookup.cancel()
    found = await asyncio.gather(*lookups, return_exceptions=True)

    assert [rows[0][0] for rows in found[1::2] if isinstance(rows, list)] == [str(n) for n in range(1, 20, 2)]


async def test_lookups_go_on_after_the_connection_was_lost(database: PostgresDatabase, url: str) -> None:
    await connect(database)
    running = [asyncio.ensure_future(database.look_up("SELECT 1, pg_sleep(0.2)", ())) for _ in range(3)]
    await asyncio.sleep(0.05)
    await asyncio.to_thread(terminate_others, url)

    assert [row[0] for rows in await asyncio.gather(*running) for row in rows] == [1, 1, 1]
    await connect(database)


def terminate_others(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TERMINATE)


async def test_an_invalid_lookup_is_reported_as_by_a_read(database: PostgresDatabase) -> None:
    await connect(database)

    with pytest.raises(StoreUnavailable, match="nothing_here"):
        await database.look_up("SELECT 1 FROM nothing_here", ())
    await connect(database)


async def test_a_closed_database_rejects_lookups(postgres: PostgresServer) -> None:
    database = await asyncio.to_thread(PostgresDatabase.open, postgres.new_store(), wait_seconds=5.0)
    await connect(database)
    await database.close()

    with pytest.raises(StoreUnavailable, match="is closed"):
        await database.look_up("SELECT 1", ())


def test_another_event_loop_has_its_own_connection(postgres: PostgresServer) -> None:
    database = PostgresDatabase.open(postgres.new_store(), wait_seconds=5.0)

    async def look_up_twice(closes: bool) -> list[tuple[Any, ...]]:
        await connect(database)
        rows = await database.look_up("SELECT 5", ())
        if closes:
            await database.close()
        return rows

    assert asyncio.run(look_up_twice(False)) == asyncio.run(look_up_twice(True)) == [(5,)]
