"""A PostgreSQL server that hangs, restarts, is slow or rejects connections loses and duplicates nothing."""

import asyncio
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from foveate.errors import StoreUnavailable
from foveate.session.store import SessionUpdate
from foveate.store import Store, open_store
from foveate.store.database import Transaction, TransactionCallback
from foveate.store.postgres import PostgresDatabase
from tests.support.stores.postgres import TERMINATE_AT_COMMIT, PostgresServer
from tests.support.stores.records import (
    AGENT,
    COMPACTED_MESSAGES,
    COMPACTION,
    compaction_ids,
    make_session,
    make_turns,
    message_hashes,
)


@pytest.fixture
def url(own_server: PostgresServer) -> str:
    return own_server.new_database()


async def save_until(store: Store, stop: asyncio.Event, name: str) -> tuple[int, int]:
    """Store sessions one after the other, and return how many were stored and how many attempts failed."""
    saved = failures = 0
    while not stop.is_set():
        session_id = f"{name} {saved}"
        try:
            await store.sessions.save(
                [SessionUpdate(session=make_session(session_id, 3), turns=make_turns(session_id, 0, 3))]
            )
        except StoreUnavailable:
            failures += 1
            await asyncio.sleep(0.05)
            if await is_stored(store, session_id):
                saved += 1
        else:
            saved += 1
    return saved, failures


async def is_stored(store: Store, name: str) -> bool:
    try:
        return await store.sessions.get_session(name) is not None
    except StoreUnavailable:
        return False


@pytest.mark.process
async def test_a_server_that_crashes_and_restarts_during_a_run_loses_nothing(
    own_server: PostgresServer, url: str
) -> None:
    async with await open_store(url, wait_seconds=30.0) as store:  # the machine may be busy
        stop = asyncio.Event()
        writers = [asyncio.ensure_future(save_until(store, stop, f"w{number}")) for number in range(6)]
        for _ in range(2):
            await asyncio.sleep(0.4)
            await asyncio.to_thread(own_server.crash)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(own_server.start)
        await asyncio.sleep(0.5)
        stop.set()
        results = await asyncio.gather(*writers)

        assert sum(failures for _, failures in results) == 0
        for number, (saved, _) in enumerate(results):
            assert saved > 1
            for index in range(saved):
                turns = await store.sessions.find_turns(AGENT, message_hashes(f"w{number} {index}", 0, 3))
                assert len(turns) == 3, "confirmed, but not stored"


@pytest.mark.process
async def test_an_unreachable_server_is_reported_in_time_and_used_again_when_it_is_back(
    own_server: PostgresServer, url: str
) -> None:
    async with await open_store(url, wait_seconds=0.5) as store:
        lease = await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)
        assert await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
        await asyncio.to_thread(own_server.crash)
        try:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable) as raised:
                await store.compactions.get_compaction(COMPACTION.id)
            assert time.monotonic() - started < 30
            assert raised.value.where.startswith("postgresql://")
            with pytest.raises(StoreUnavailable):
                await open_store(url, wait_seconds=0.5)
        finally:
            await asyncio.to_thread(own_server.start)

        assert await store.compactions.get_compaction(COMPACTION.id) == COMPACTION
        assert await store.compactions.load_messages(COMPACTION.id) == list(COMPACTED_MESSAGES)
        assert await store.compactions.acquire_lease("s", "other", ttl_seconds=300, now=1000.0) is None


def terminate_connections(url: str) -> None:
    """Terminate all other connections to a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_a_transaction_lost_before_its_commit_is_repeated_once(url: str) -> None:
    attempts = 0

    def insert_row(rows: Transaction) -> int:
        nonlocal attempts
        attempts += 1
        rows.execute(
            "INSERT INTO compaction_locks_v1 (session_id, holder, fence, expires_at) VALUES (?, ?, 1, 0)",
            (f"try {attempts}", "me"),
        )
        if attempts == 1:
            terminate_connections(url)
        return len(rows.fetch_all("SELECT session_id FROM compaction_locks_v1"))

    database = PostgresDatabase.open(url, wait_seconds=5.0)
    await (await open_store(url)).close()

    assert await database.write(insert_row, is_idempotent=False) == 1  # the first attempt left nothing
    assert attempts == 2
    await database.close()


async def test_retries_of_a_lost_connection_are_limited(url: str) -> None:
    attempts = 0

    def read_row(rows: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        terminate_connections(url)
        rows.fetch_all("SELECT 1")

    database = PostgresDatabase.open(url, wait_seconds=1.0)

    with pytest.raises(StoreUnavailable, match="terminating connection"):
        await database.write(read_row, is_idempotent=True)
    assert 2 <= attempts <= 5
    await database.close()


async def test_a_transaction_lost_at_its_commit_is_only_repeated_if_idempotent(url: str) -> None:
    async with await open_store(url) as store:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TERMINATE_AT_COMMIT.format("compaction_locks_v1", 1).encode())

        with pytest.raises(StoreUnavailable, match="may or may not be stored"):
            await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)

        lease = await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)
        assert lease
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT setval('commits', 1, false)")
        assert await store.compactions.renew_lease(lease, ttl_seconds=300, now=1100.0)


async def test_a_server_that_does_not_respond_blocks_no_caller(url: str) -> None:
    responds = threading.Event()

    def wait(rows: Transaction) -> None:
        rows.fetch_all("SELECT 1")
        responds.wait(60)  # as on a dead connection

    database = PostgresDatabase.open(url, wait_seconds=0.2)

    async with asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="no response within"):
            await database.read(wait)

    responds.set()
    await database.close()


def stop_server_processes(own_server: PostgresServer) -> list[int]:
    """Stop the server processes of a store's connections, as on a machine that hangs."""
    with psycopg.connect(own_server.server.get_uri(), autocommit=True) as connection:
        cursor = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'foveate'")
        pids = [pid for (pid,) in cursor.fetchall()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


async def test_a_store_can_be_closed_while_its_server_does_not_respond(
    own_server: PostgresServer, url: str
) -> None:
    store = await open_store(url, wait_seconds=0.3)
    await asyncio.gather(*(store.sessions.get_session(f"s{number}") for number in range(12)))
    pids = stop_server_processes(own_server)
    try:
        async with asyncio.timeout(60):
            reads = [store.sessions.get_session(f"s{number}") for number in range(12)]
            results = await asyncio.gather(*reads, return_exceptions=True)
            assert StoreUnavailable in {type(result) for result in results}
            await store.close()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


EXIT_SCRIPT = """
import asyncio, os, signal, sys
import psycopg
from foveate.errors import StoreUnavailable
from foveate.store import open_store

async def main():
    store = await open_store(sys.argv[1], wait_seconds=0.3)
    await store.sessions.get_session("s")
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        found = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'foveate'"
            " AND datname = current_database()")
        processes = [process for (process,) in found]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        await store.sessions.get_session("s")
    except StoreUnavailable:
        print(*processes, flush=True)

asyncio.run(main())
"""


@pytest.mark.process
def test_a_program_can_exit_without_closing_its_store_while_the_server_hangs(url: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", EXIT_SCRIPT, url], capture_output=True, text=True, check=True, timeout=60
    )

    pids = [int(pid) for pid in result.stdout.split()]
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert pids


@pytest.mark.process
async def test_opening_a_store_waits_for_a_server_that_is_briefly_unreachable(
    own_server: PostgresServer, url: str
) -> None:
    for is_new in (True, False):  # with tables to be created, and without
        await asyncio.to_thread(own_server.crash)
        opening = asyncio.ensure_future(open_store(url, wait_seconds=60.0))
        try:
            await asyncio.sleep(0.5)
            assert not opening.done(), is_new
        finally:
            await asyncio.to_thread(own_server.start)
        await (await opening).close()


OPEN_SCRIPT = """
import asyncio, sys
from foveate.store import open_store

async def main():
    await (await open_store(sys.argv[1], wait_seconds=30.0)).close()

asyncio.run(main())
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for a socket, whose path is limited to a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="fov") as name:
        yield Path(name)


@pytest.mark.process
async def test_opening_a_store_waits_for_a_server_that_has_just_started(short_path: Path, url: str) -> None:
    """The first connection is rejected as by a starting server; the next one is accepted."""
    server = conninfo_to_dict(url)
    connections = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await reader.read(65536)
            message = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is not yet accepting connections\0\0"
            writer.write(b"E" + struct.pack("!i", len(message) + 4) + message)
            writer.close()
            return
        server_streams = await asyncio.open_unix_connection(f"{server['host']}/.s.PGSQL.5432")
        await asyncio.gather(relay(reader, server_streams[1]), relay(server_streams[0], writer))

    async with await asyncio.start_unix_server(accept, short_path / ".s.PGSQL.5432"):
        proxy_url = url.replace(str(server["host"]), str(short_path))
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", OPEN_SCRIPT, proxy_url)
        assert await process.wait() == 0
    assert connections > 2


async def test_waiting_for_a_locked_row_is_limited(url: str) -> None:
    async with await open_store(url, wait_seconds=0.4) as store:
        lease = await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)
        assert lease
        with psycopg.connect(url) as connection:
            connection.execute("SELECT * FROM compaction_locks_v1 FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="took too long"):
                await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
        assert await store.compactions.list_compactions() == []
        assert await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
        assert compaction_ids(await store.compactions.list_compactions()) == [COMPACTION.id]


async def test_taking_over_a_lease_waits_for_a_compaction_that_is_being_recorded(url: str) -> None:
    async with await open_store(url, wait_seconds=20.0) as store:
        old_lease = await store.compactions.acquire_lease("s", "late", ttl_seconds=300, now=1000.0)
        assert old_lease
        with psycopg.connect(url) as connection:  # as `record` does first
            connection.execute("UPDATE compaction_locks_v1 SET fence = fence WHERE session_id = 's'")
            takeover = asyncio.ensure_future(
                store.compactions.acquire_lease("s", "next", ttl_seconds=300, now=2000.0)
            )
            await asyncio.sleep(0.2)
            assert not takeover.done()
        new_lease = await takeover
        assert new_lease
        assert new_lease.fence == 2
        assert not await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=old_lease)


async def test_a_deadlock_is_resolved_and_both_transactions_succeed(url: str) -> None:
    def lock_both(first: str, second: str, locked_rows: list[str]) -> TransactionCallback[int]:
        def update_both(rows: Transaction) -> int:
            rows.execute("UPDATE sessions_v1 SET messages = messages + 1 WHERE id = ?", (first,))
            locked_rows.append(first)
            deadline = time.monotonic() + 5
            while len(set(locked_rows)) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            return rows.execute("UPDATE sessions_v1 SET messages = messages + 1 WHERE id = ?", (second,))

        return update_both

    async with await open_store(url) as store:
        for name in ("a", "b"):
            await store.sessions.save(
                [SessionUpdate(session=make_session(name, 2), turns=make_turns(name, 0, 2))]
            )
        database = PostgresDatabase.open(url, wait_seconds=10.0)
        locked_rows: list[str] = []

        try:
            await asyncio.gather(
                database.write(lock_both("a", "b", locked_rows), is_idempotent=False),
                database.write(lock_both("b", "a", locked_rows), is_idempotent=False),
            )
        finally:
            await database.close()

        for name in ("a", "b"):
            session = await store.sessions.get_session(name)
            assert session
            assert session.messages == 4


async def test_a_missing_table_is_reported(url: str) -> None:
    async with await open_store(url) as store:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE turns_v1")

        with pytest.raises(StoreUnavailable, match="turns_v1"):
            await store.sessions.find_turns(AGENT, message_hashes("s", 0, 2))
        assert await store.sessions.get_session("s") is None
