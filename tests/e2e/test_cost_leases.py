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
    asyncio.run(_create_store(database_url))
    connection, child_connection = SPAWN.Pipe()
    process = SPAWN.Process(target=hold_long_call, args=(database_url, child_connection, LEASE_SECONDS))
    process.start()
    child_connection.close()
    assert connection.poll(WAIT_SECONDS)
    assert connection.recv() == "reserved"
    assert process.pid

    time.sleep(2 * LEASE_SECONDS)
    # The process is running and renews its lease.
    assert not asyncio.run(_try_to_reserve(database_url, "early"))
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.2 * LEASE_SECONDS)
    # A stopped process looks like a dead one.
    assert asyncio.run(_try_to_reserve(database_url, "in its place"))
    os.kill(process.pid, signal.SIGCONT)

    connection.send("is there room?")
    assert connection.poll(WAIT_SECONDS)
    assert connection.recv() == (1, False)
    assert not asyncio.run(_try_to_reserve(database_url, "late"))
    connection.send("end it")
    assert connection.poll(WAIT_SECONDS)
    assert connection.recv() == "settled"
    process.join(WAIT_SECONDS)

    async def check_store() -> None:
        async with await open_store(database_url) as store:
            balances = await store.ledger.get_balances(["total"], now=time.time())
            assert balances == {"total": make_standing("0.8", "0.8")}

    asyncio.run(check_store())


async def _create_store(url: str) -> None:
    await (await open_store(url)).close()


async def _try_to_reserve(url: str, call_id: str) -> bool:
    async with await open_store(url) as store:
        return await reserve(store.ledger, make_call(call_id), Decimal("0.8"), now=time.time(), total=1)
