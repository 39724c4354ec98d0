"""A PostgreSQL server that hangs, restarts, is slow or rejects connections loses and duplicates nothing."""

import asyncio
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from foveate.errors import StoreUnavailable
from foveate.session.store import SessionUpdate
from foveate.store import Store, open_store
from foveate.store.database import Transaction, TransactionCallback
from foveate.store.postgres import PostgresDatabase
from tests.support.stores.postgres import PostgresServer
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


async def store_until(store: Store, end: asyncio.Event, name: str) -> tuple[int, int]:
    """Store sessions one after the other, and return how many were stored and how many attempts failed."""
    stored = failed = 0
    while not end.is_set():
        one = f"{name} {stored}"
        try:
            await store.sessions.save(
                [SessionUpdate(session=make_session(one, 3), turns=make_turns(one, 0, 3))]
            )
        except StoreUnavailable:
            failed += 1
            await asyncio.sleep(0.05)
            if await is_there(store, one):
                stored += 1
        else:
            stored += 1
    return stored, failed


async def is_there(store: Store, name: str) -> bool:
    try:
        return await store.sessions.get_session(name) is not None
    except StoreUnavailable:
        return False


@pytest.mark.process
async def test_a_server_that_crashes_and_restarts_during_a_run_loses_nothing(
    own_server: PostgresServer, url: str
) -> None:
    async with await open_store(url, wait_seconds=30.0) as store:  # the machine may be busy
        end = asyncio.Event()
        writers = [asyncio.ensure_future(store_until(store, end, f"w{number}")) for number in range(6)]
        for _ in range(2):
            await asyncio.sleep(0.4)
            await asyncio.to_thread(own_server.crash)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(own_server.start)
        await asyncio.sleep(0.5)
        end.set()
        done = await asyncio.gather(*writers)

        assert sum(failed for _, failed in done) == 0
        for number, (stored, _) in enumerate(done):
            assert stored > 1
            for one in range(stored):
                known = await store.sessions.find_turns(AGENT, message_hashes(f"w{number} {one}", 0, 3))
                assert len(known) == 3, "told to be kept, and is not"


@pytest.mark.process
async def test_an_unreachable_server_is_reported_in_time_and_used_again_when_it_is_back(
    own_server: PostgresServer, url: str
) -> None:
    async with await open_store(url, wait_seconds=0.5) as store:
        lease = await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)
        assert await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
        await asyncio.to_thread(own_server.crash)
        try:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as raised:
                await store.compactions.get_compaction(COMPACTION.id)
            assert time.monotonic() - began < 10
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
    tries = 0

    def work(rows: Transaction) -> int:
        nonlocal tries
        tries += 1
        rows.execute(
            "INSERT INTO compaction_locks_v1 (session_id, holder, fence, expires_at) VALUES (?, ?, 1, 0)",
            (f"try {tries}", "me"),
        )
        if tries == 1:
            terminate_connections(url)
        return len(rows.fetch_all("SELECT session_id FROM compaction_locks_v1"))

    database = PostgresDatabase.open(url, wait_seconds=5.0)
    await (await open_store(url)).close()

    assert await database.write(work, is_idempotent=False) == 1  # the first attempt left nothing
    assert tries == 2
    await database.close()


async def test_retries_of_a_lost_connection_are_limited(url: str) -> None:
    tries = 0

    def work(rows: Transaction) -> None:
        nonlocal tries
        tries += 1
        terminate_connections(url)
        rows.fetch_all("SELECT 1")

    database = PostgresDatabase.open(url, wait_seconds=1.0)

    with pytest.raises(StoreUnavailable, match="terminating connection"):
        await database.write(work, is_idempotent=True)
    assert 2 <= tries <= 5
    await database.close()


LOST_AT_COMMIT = """
CREATE SEQUENCE commits;
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('commits') <= {1} THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER lost AFTER INSERT OR UPDATE ON {0} DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION lose()
"""


async def test_a_transaction_lost_at_its_commit_is_only_repeated_if_idempotent(url: str) -> None:
    async with await open_store(url) as store:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(LOST_AT_COMMIT.format("compaction_locks_v1", 1))

        with pytest.raises(StoreUnavailable, match="may or may not be kept"):
            await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)

        lease = await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)
        assert lease
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT setval('commits', 1, false)")
        assert await store.compactions.renew_lease(lease, ttl_seconds=300, now=1100.0)


async def test_a_server_that_does_not_respond_blocks_no_caller(url: str) -> None:
    def wait(rows: Transaction) -> None:
        rows.fetch_all("SELECT 1")
        time.sleep(3)  # as on a dead connection

    database = PostgresDatabase.open(url, wait_seconds=0.2)
    began = time.monotonic()

    with pytest.raises(StoreUnavailable, match="no answer within"):
        await database.read(wait)

    assert time.monotonic() - began < 2.5
    await database.close()


def stop_server_processes(own_server: PostgresServer) -> list[int]:
    """Stop the server processes of a store's connections, as on a machine that hangs."""
    with psycopg.connect(own_server.server.get_uri(), autocommit=True) as connection:
        found = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'foveate'")
        processes = [process for (process,) in found.fetchall()]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    return processes


async def test_a_store_can_be_closed_while_its_server_does_not_respond(
    own_server: PostgresServer, url: str
) -> None:
    store = await open_store(url, wait_seconds=0.3)
    await asyncio.gather(*(store.sessions.get_session(f"s{number}") for number in range(12)))
    processes = stop_server_processes(own_server)
    try:
        began = time.monotonic()
        reads = [store.sessions.get_session(f"s{number}") for number in range(12)]
        raised = await asyncio.gather(*reads, return_exceptions=True)
        assert StoreUnavailable in {type(error) for error in raised}
        async with asyncio.timeout(20):
            await store.close()
        assert time.monotonic() - began < 15
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


ENDS = """
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
    ended_ = subprocess.run(
        [sys.executable, "-c", ENDS, url], capture_output=True, text=True, check=True, timeout=60
    )

    processes = [int(process) for process in ended_.stdout.split()]
    for process in processes:
        os.kill(process, signal.SIGCONT)
    assert processes


@pytest.mark.process
async def test_opening_a_store_waits_for_a_server_that_is_briefly_unreachable(
    own_server: PostgresServer, url: str
) -> None:
    for is_new in (True, False):  # with tables to be created, and without
        await asyncio.to_thread(own_server.crash)
        began = time.monotonic()
        opening = asyncio.ensure_future(open_store(url, wait_seconds=30.0))
        try:
            await asyncio.sleep(0.5)
            assert not opening.done(), is_new
        finally:
            await asyncio.to_thread(own_server.start)
        await (await opening).close()
        assert time.monotonic() - began < 25


OPENS = """
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
    there = psycopg.conninfo.conninfo_to_dict(url)
    connections = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await reader.read(65536)
            message = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is not yet accepting connections\0\0"
            writer.write(b"E" + struct.pack("!i", len(message) + 4) + message)
            writer.close()
            return
        into = await asyncio.open_unix_connection(f"{there['host']}/.s.PGSQL.5432")
        await asyncio.gather(relay(reader, into[1]), relay(into[0], writer))

    async with await asyncio.start_unix_server(answer, short_path / ".s.PGSQL.5432"):
        through = url.replace(str(there["host"]), str(short_path))
        opens = await asyncio.create_subprocess_exec(sys.executable, "-c", OPENS, through)
        assert await opens.wait() == 0
    assert connections > 2


async def test_waiting_for_a_locked_row_is_limited(url: str) -> None:
    async with await open_store(url, wait_seconds=0.4) as store:
        lease = await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)
        assert lease
        with psycopg.connect(url) as holds:
            holds.execute("SELECT * FROM compaction_locks_v1 FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="took too long"):
                await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
        assert await store.compactions.list_compactions() == []
        assert await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
        assert compaction_ids(await store.compactions.list_compactions()) == [COMPACTION.id]


async def test_taking_over_a_lease_waits_for_a_compaction_that_is_being_recorded(url: str) -> None:
    async with await open_store(url, wait_seconds=20.0) as store:
        late = await store.compactions.acquire_lease("s", "late", ttl_seconds=300, now=1000.0)
        assert late
        with psycopg.connect(url) as records:  # as `record` does first
            records.execute("UPDATE compaction_locks_v1 SET fence = fence WHERE session_id = 's'")
            over = asyncio.ensure_future(
                store.compactions.acquire_lease("s", "next", ttl_seconds=300, now=2000.0)
            )
            await asyncio.sleep(0.2)
            assert not over.done()
        new = await over
        assert new
        assert new.fence == 2
        assert not await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=late)


async def test_a_deadlock_is_resolved_and_both_transactions_succeed(url: str) -> None:
    def lock_both(first: str, second: str, meet: list[str]) -> TransactionCallback[int]:
        def work(rows: Transaction) -> int:
            rows.execute("UPDATE sessions_v1 SET messages = messages + 1 WHERE id = ?", (first,))
            meet.append(first)
            waited = time.monotonic() + 5
            while len(set(meet)) < 2 and time.monotonic() < waited:
                time.sleep(0.01)
            return rows.execute("UPDATE sessions_v1 SET messages = messages + 1 WHERE id = ?", (second,))

        return work

    async with await open_store(url) as store:
        for name in ("a", "b"):
            await store.sessions.save(
                [SessionUpdate(session=make_session(name, 2), turns=make_turns(name, 0, 2))]
            )
        database = PostgresDatabase.open(url, wait_seconds=10.0)
        meet: list[str] = []

        try:
            await asyncio.gather(
                database.write(lock_both("a", "b", meet), is_idempotent=False),
                database.write(lock_both("b", "a", meet), is_idempotent=False),
            )
        finally:
            await database.close()

        for name in ("a", "b"):
            found = await store.sessions.get_session(name)
            assert found
            assert found.messages == 4


async def test_a_missing_table_is_reported(url: str) -> None:
    async with await open_store(url) as store:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE turns_v1")

        with pytest.raises(StoreUnavailable, match="turns_v1"):
            await store.sessions.find_turns(AGENT, message_hashes("s", 0, 2))
        assert await store.sessions.get_session("s") is None
