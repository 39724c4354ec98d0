"""A process that is stopped for longer than its leases: its calls still count after it resumes."""

import asyncio
import os
import signal
import time
from decimal import Decimal

import pytest

from foveate.store import open_store
from tests.support.processes.ledger_workers import hold_long_call
from tests.support.processes.store_workers import SPAWN, WAIT_SECONDS
from tests.support.stores.ledger_records import make_call, make_standing, reserve

pytestmark = pytest.mark.process

LEASE_SECONDS = 1.0


def test_a_resumed_process_restores_the_reservations_of_its_calls(database_url: str) -> None:
    asyncio.run(_made(database_url))
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=hold_long_call, args=(database_url, theirs, LEASE_SECONDS))
    process.start()
    theirs.close()
    assert ours.poll(WAIT_SECONDS)
    assert ours.recv() == "reserved"
    assert process.pid

    time.sleep(2 * LEASE_SECONDS)
    # It goes on, and so does its lease.
    assert not asyncio.run(_let_through(database_url, "early"))
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.2 * LEASE_SECONDS)
    # Nobody can tell it from one that is dead.
    assert asyncio.run(_let_through(database_url, "in its place"))
    os.kill(process.pid, signal.SIGCONT)

    ours.send("is there room?")
    assert ours.poll(WAIT_SECONDS)
    assert ours.recv() == (1, False)
    assert not asyncio.run(_let_through(database_url, "late"))
    ours.send("end it")
    assert ours.poll(WAIT_SECONDS)
    assert ours.recv() == "settled"
    process.join(WAIT_SECONDS)

    async def look() -> None:
        async with await open_store(database_url) as store:
            found = await store.ledger.get_balances(["total"], now=time.time())
            assert found == {"total": make_standing("0.8", "0.8")}

    asyncio.run(look())


async def _made(url: str) -> None:
    await (await open_store(url)).close()


async def _let_through(url: str, id_: str) -> bool:
    async with await open_store(url) as store:
        return await reserve(store.ledger, make_call(id_), Decimal("0.8"), now=time.time(), total=1)
