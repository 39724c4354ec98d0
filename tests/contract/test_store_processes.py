"""Several processes on one database, some of which are killed, on both databases."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from foveate.compaction.store import CompactionLease
from foveate.store import open_store
from tests.support.processes.store_workers import (
    SPAWN,
    WAIT_SECONDS,
    acquire_lease,
    extend_session,
    hold_lease,
    missing_positions,
    run_together,
    save_forks,
    write_until_killed,
)
from tests.support.stores.postgres import PostgresServer
from tests.support.stores.records import AGENT, COMPACTED_MESSAGES, COMPACTION, message_hashes

pytestmark = pytest.mark.process


async def create_store(database_url: str) -> None:
    await (await open_store(database_url)).close()


@pytest.mark.slow
def test_eight_processes_open_a_new_database_at_once_and_exactly_one_gets_the_lease(
    bare_database_url: str,
) -> None:
    leases = run_together(acquire_lease, [(bare_database_url, f"process {number}") for number in range(8)])

    (lease,) = [lease for lease in leases if lease]
    assert lease.fence == 1


_OPEN_AND_CLOSE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
connection.close()
"""


async def test_a_store_that_is_opened_twice_in_a_process_stays_usable(tmp_path: Path) -> None:
    """Regression: opening it again released the locks, so another process deleted the WAL file."""
    path = tmp_path / "foveate.sqlite"
    async with await open_store(f"sqlite:///{path}") as first:
        assert await first.compactions.list_compactions(limit=5) == []
        await (await open_store(f"sqlite:///{path}")).close()
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", _OPEN_AND_CLOSE, str(path))
        assert await other.wait() == 0

        assert path.with_name("foveate.sqlite-wal").exists()
        assert await first.compactions.list_compactions(limit=5) == []


@pytest.mark.slow
def test_four_processes_store_the_same_turns_and_extend_a_session_without_duplicates(
    database_url: str,
) -> None:
    asyncio.run(create_store(database_url))
    extended = run_together(extend_session, [(database_url, "s", 80)] * 4)

    assert sum(extended) >= 40
    assert asyncio.run(missing_positions(database_url, "s", 80)) == []


@pytest.mark.slow
def test_processes_that_store_forks_and_their_parents_do_not_deadlock(postgres: PostgresServer) -> None:
    """Regression: each locked its own sessions first, and then the parents of its forks."""
    url = postgres.new_database()
    asyncio.run(create_store(url))
    run_together(save_forks, [(url, number) for number in range(2)])

    assert postgres.count_deadlocks(url) == 0


def test_after_kill_9_of_the_holder_the_lease_is_taken_over_when_it_expires(database_url: str) -> None:
    asyncio.run(create_store(database_url))
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=hold_lease, args=(database_url, sender))
    process.start()
    assert receiver.poll(WAIT_SECONDS)
    old: CompactionLease = receiver.recv()
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_SECONDS)

    async def take_over() -> None:
        async with await open_store(database_url) as store:
            compactions = store.compactions
            assert (
                await compactions.acquire_lease("s", "next", ttl_seconds=300.0, now=old.expires_at - 0.1)
                is None
            )
            new = await compactions.acquire_lease("s", "next", ttl_seconds=300.0, now=old.expires_at)
            assert new
            assert new.fence > old.fence

            assert not await compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=old)
            assert await compactions.get_compaction(COMPACTION.id) is None
            assert await compactions.load_messages(COMPACTION.id) == []
            assert await compactions.renew_lease(old, ttl_seconds=300.0, now=old.expires_at) is None
            await compactions.release_lease(old)
            assert (
                await compactions.acquire_lease("s", "third", ttl_seconds=300.0, now=old.expires_at + 1) is None
            )
            assert await compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=new)

    asyncio.run(take_over())


FORK_SCRIPT = """
import asyncio, os, sys
from foveate.errors import StoreUnavailable
from foveate.session.store import SessionUpdate
from foveate.store import open_store
from tests.support.stores.records import make_session, make_turns

async def print_results(*calls):
    for call in calls:
        try:
            print(await call, flush=True)
        except StoreUnavailable as error:
            print(error.reason, flush=True)

async def save(store, name):
    update = SessionUpdate(session=make_session(name, 2), turns=make_turns(name, 0, 2))
    return await store.sessions.save([update])

async def start():
    store = await open_store(sys.argv[1])
    await save(store, "before")
    await store.sessions.get_session("before")
    return store

async def end(store):
    print(await save(store, "after"))
    await store.close()

store = asyncio.run(start())
child = os.fork()
if not child:
    asyncio.run(print_results(store.sessions.get_session("before"), save(store, "s"), store.close()))
    os._exit(0)
os.waitpid(child, 0)
asyncio.run(end(store))
"""


@pytest.mark.slow
def test_using_a_store_in_a_forked_process_raises_an_error(database_url: str, root: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORK_SCRIPT, database_url],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
    )

    assert result.stdout.splitlines() == [
        "was opened by another process: open the store again after a fork"
    ] * 3 + ["None"]


def test_kill_9_of_a_writer_leaves_complete_sessions_and_every_confirmed_write(
    database_url: str,
) -> None:
    asyncio.run(create_store(database_url))
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=write_until_killed, args=(database_url, sender))
    process.start()
    sender.close()
    confirmed = -1
    while confirmed < 20:
        assert receiver.poll(WAIT_SECONDS)
        confirmed = receiver.recv()
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    try:
        while True:
            confirmed = receiver.recv()
    except EOFError:
        pass

    async def check_sessions() -> None:
        async with await open_store(database_url) as store:
            for number in range(confirmed + 3):
                session = await store.sessions.get_session(f"s{number}")
                turns = await store.sessions.find_turns(AGENT, message_hashes(f"s{number}", 0, 20))
                assert len(turns) == (20 if session else 0)
                assert session or number > confirmed

    asyncio.run(check_sessions())


@pytest.mark.postgres
async def test_a_gateway_knows_whether_others_use_its_database(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    async with (
        await open_store(url, gateway_id="1a") as gateway,
        await open_store(url, gateway_id="1a") as worker,
    ):
        async with await open_store(url) as command:
            await command.sizes()
            assert not await gateway.has_other_gateways()
            assert not await worker.has_other_gateways()
        async with await open_store(url, gateway_id="2b") as other:
            assert await other.has_other_gateways()
            assert await gateway.has_other_gateways()


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["", "billing" * 10, "Zürich" * 10, "a gateway dad"])
async def test_a_gateway_is_known_whatever_its_url_calls_its_connections(
    postgres: PostgresServer, name: str
) -> None:
    """Regression: the server writes other characters than ASCII as four or more, and cut off the id."""
    url = postgres.new_store()
    named_url = f"{url}{'&' if '?' in url else '?'}application_name={quote(name)}"
    async with (
        await open_store(named_url, gateway_id="1a") as gateway,
        await open_store(named_url, gateway_id="2b") as other,
    ):
        assert not await gateway.has_other_gateways()
        assert await other.has_other_gateways()
        assert await gateway.has_other_gateways()


@pytest.mark.postgres
async def test_a_gateway_is_known_if_a_pooler_adds_an_address_to_its_name(postgres: PostgresServer) -> None:
    url = postgres.new_store()
    async with await open_store(url, gateway_id="1a") as gateway:
        with psycopg.connect(url, application_name="foveate gateway 1a - 10.0.0.1:5000"):
            assert not await gateway.has_other_gateways()
        with psycopg.connect(url, application_name="foveate gateway 2b - 10.0.0.1:5001"):
            assert await gateway.has_other_gateways()
