"""Killed processes, full disks and locked files: no charge is lost."""

import asyncio
import os
import signal
import time
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from foveate.cost.admission import Admission, SettlementOutcome
from foveate.cost.caps import CapScope
from foveate.cost.ledger import Ledger
from foveate.errors import CapUncheckable
from foveate.store import open_store
from tests.support.processes.ledger_workers import LEASE_SECONDS, call_until_killed, settle_on_a_full_disk
from tests.support.processes.sqlite_lock import locked_by_another_process
from tests.support.processes.store_workers import SPAWN, WAIT_SECONDS
from tests.support.stores.ledger_records import (
    CALL,
    NOON,
    make_call,
    make_cap,
    make_charge,
    make_standing,
    reserve,
)

CAPS = [make_cap(CapScope.TOTAL, 1_000_000)]
Messages = list[tuple[str, str]]


async def create_store(database_url: str) -> None:
    await (await open_store(database_url)).close()


async def read_charged_ids(ledger: Ledger) -> set[str]:
    return {charge.call.id async for charge in ledger.list_charges()}


def messages_before_kill_9(url: str, *, at_once: int, until: tuple[str, str], seconds: float) -> Messages:
    """Return the messages of a process that is killed `seconds` after its message `until`."""
    asyncio.run(create_store(url))
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=call_until_killed, args=(url, sender, at_once))
    process.start()
    sender.close()
    messages: Messages = []
    while until not in messages[-1:]:
        assert receiver.poll(WAIT_SECONDS)
        messages.append(receiver.recv())
    time.sleep(seconds)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    messages.extend(receive_rest(receiver))
    return messages


def receive_rest(receiver: Connection) -> Messages:
    messages: Messages = []
    try:
        while True:
            messages.append(receiver.recv())
    except EOFError:
        return messages


@pytest.mark.process
def test_a_reservation_of_a_killed_process_expires(database_url: str) -> None:
    messages_before_kill_9(database_url, at_once=1, until=("reserved", "call 20"), seconds=0)

    async def check_store() -> None:
        async with await open_store(database_url) as store:
            spent = make_standing(20 * Decimal("0.25")).spent
            assert await read_charged_ids(store.ledger) == {f"call {number}" for number in range(20)}
            assert await store.ledger.get_balances(["total"], now=NOON + LEASE_SECONDS - 0.1) == {
                "total": make_standing(spent, "0.5")
            }
            assert await store.ledger.get_balances(["total"], now=NOON + LEASE_SECONDS) == {
                "total": make_standing(spent)
            }
            # The next reservation frees it.
            assert await reserve(store.ledger, make_call("next"), "0.1", now=NOON + LEASE_SECONDS)
            assert not await store.ledger.release("call 20")

    asyncio.run(check_store())


@pytest.mark.process
@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_kill_9_during_many_calls_loses_no_confirmed_charge(database_url: str, seconds: float) -> None:
    messages = messages_before_kill_9(database_url, at_once=8, until=("settled", "call 60"), seconds=seconds)
    reserved, settled = (
        {call_id for state, call_id in messages if state == name} for name in ("reserved", "settled")
    )

    async def check_store() -> None:
        async with await open_store(database_url) as store:
            charged_ids = await read_charged_ids(store.ledger)
            assert settled <= charged_ids
            assert len(charged_ids - settled) <= 8  # charged, but killed before the message about it
            (total,) = await store.ledger.sum_charges([])
            (balance,) = (await store.ledger.get_balances(["total"], now=NOON)).values()
            assert balance.spent == total.dollars == len(charged_ids) * Decimal("0.25")
            assert balance.reserved >= Decimal("0.5") * len(reserved - charged_ids)
            after = await store.ledger.get_balances(["total"], now=NOON + LEASE_SECONDS)
            assert after == {"total": make_standing(balance.spent)}

    asyncio.run(check_store())


def test_on_a_full_disk_charges_wait_and_caps_reject_until_there_is_space(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'foveate.sqlite'}"
    asyncio.run(create_store(url))
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=settle_on_a_full_disk, args=(url, sender))
    process.start()
    sender.close()
    assert receiver.poll(WAIT_SECONDS)
    outcomes, rejection, unwritten = receiver.recv()
    process.join(WAIT_SECONDS)

    assert outcomes.count(SettlementOutcome.RECORDED) > 10
    assert (
        outcomes
        == [SettlementOutcome.RECORDED] * outcomes.count(SettlementOutcome.RECORDED)
        + [SettlementOutcome.WAITING] * 20
    )
    assert "cannot be checked" in rejection
    assert "disk is full" in rejection
    assert unwritten == ()

    async def check_store() -> None:
        async with await open_store(url) as store:
            assert await read_charged_ids(store.ledger) == {f"call {number}" for number in range(len(outcomes))}
            assert await store.ledger.get_balances(["total"], now=NOON) == {
                "total": make_standing(len(outcomes) * Decimal("0.25"))
            }

    asyncio.run(check_store())


@pytest.mark.process
async def test_while_a_file_is_locked_caps_reject_and_charges_wait_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "foveate.sqlite"
    async with await open_store(f"sqlite:///{path}", wait_seconds=0.2) as store:
        admission = Admission(store.ledger, clock=lambda: NOON)
        reservation = await admission.admit(CALL, Decimal("0.5"), CAPS)
        with locked_by_another_process(path):
            with pytest.raises(CapUncheckable, match="is locked by another process"):
                await admission.admit(make_call("b"), Decimal("0.5"), CAPS)
            assert not (await admission.admit(make_call("c"), Decimal("0.5"), [])).is_reserved
            assert (
                await admission.settle(make_charge(reservation.call, "0.25"))
            ).outcome is SettlementOutcome.WAITING
            assert (
                await admission.settle(make_charge(make_call("c"), "0.1"))
            ).outcome is SettlementOutcome.WAITING

        assert await admission.close() == ()
        assert await read_charged_ids(store.ledger) == {CALL.id, "c"}
        assert await store.ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.35")}


async def test_a_store_that_is_closed_too_early_returns_the_unwritten_charges(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'foveate.sqlite'}")
    admission = Admission(store.ledger, clock=lambda: NOON)
    await store.close()
    charges = [make_charge(make_call(call_id), "0.25") for call_id in "abc"]

    for charge in charges:
        outcome = await admission.settle(charge)
        assert (outcome.outcome, "is closed" in outcome.problem) == (SettlementOutcome.WAITING, True)

    assert list(await admission.close()) == charges
