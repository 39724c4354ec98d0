"""A PostgreSQL server that restarts or drops a connection at commit: no charge is lost or duplicated."""

import asyncio
import itertools
from decimal import Decimal

import psycopg
import pytest

from foveate.cost.admission import Admission, AdmissionOptions, SettlementOutcome
from foveate.cost.caps import CapScope, list_accounts
from foveate.cost.ledger import AccountOverLimit
from foveate.errors import CapUncheckable
from foveate.store import open_store
from foveate.store.database import T, TransactionCallback
from foveate.store.postgres import PostgresDatabase
from foveate.store.repositories.ledger import SqlLedger
from tests.support.stores.ledger_records import (
    CALL,
    CHARGE,
    NOON,
    make_call,
    make_cap,
    make_charge,
    make_reservation,
    make_standing,
    settle_one,
)
from tests.support.stores.postgres import TERMINATE_AT_COMMIT, PostgresServer

CAPS = [make_cap(CapScope.TOTAL, 1_000_000), make_cap(CapScope.SESSION, 1_000_000)]


@pytest.fixture
def url(own_server: PostgresServer) -> str:
    return own_server.new_database()


async def call_until(end: asyncio.Event, admission: Admission, name: str, charged_ids: list[str]) -> int:
    """Charge calls one after the other; return how many were rejected because a cap could not be checked."""
    rejected = 0
    for number in itertools.count():
        if end.is_set():
            break
        call = make_call(f"{name} {number}", session_id=name)
        try:
            await admission.admit(call, Decimal("0.5"), CAPS)
        except CapUncheckable:
            rejected += 1
            await asyncio.sleep(0.05)
            continue
        await asyncio.sleep(0.005)
        outcome = await admission.settle(make_charge(call, "0.25"))
        assert outcome.outcome in (
            SettlementOutcome.RECORDED,
            SettlementOutcome.ALREADY_RECORDED,
            SettlementOutcome.WAITING,
        )
        charged_ids.append(call.id)
    return rejected


async def wait_for_more_charges(charged_ids: list[str]) -> None:
    """Wait until more calls are charged."""
    target = len(charged_ids) + 12
    async with asyncio.timeout(60):
        while len(charged_ids) < target:  # noqa: ASYNC110 - several tasks append to the list
            await asyncio.sleep(0.01)


@pytest.mark.process
@pytest.mark.parametrize("wait_seconds", [0.3, 30.0])
async def test_a_server_crash_loses_no_charge_and_duplicates_none(
    own_server: PostgresServer, url: str, wait_seconds: float
) -> None:
    async with await open_store(url, wait_seconds=wait_seconds) as store:
        admission = Admission(store.ledger, clock=lambda: NOON, options=AdmissionOptions(lease_seconds=60))
        end = asyncio.Event()
        charged_ids: list[str] = []
        callers = [asyncio.ensure_future(call_until(end, admission, f"c{n}", charged_ids)) for n in range(6)]
        for _ in range(2):
            await wait_for_more_charges(charged_ids)
            await asyncio.to_thread(own_server.crash)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(own_server.start)
        await wait_for_more_charges(charged_ids)
        end.set()
        rejected = sum(await asyncio.gather(*callers))

        assert await admission.close() == ()
        assert sorted([charge.call.id async for charge in store.ledger.list_charges()]) == sorted(charged_ids)
        spent = len(charged_ids) * Decimal("0.25")
        (total,) = await store.ledger.sum_charges([])
        assert total.dollars == spent
        # Reservations of calls that were rejected afterwards expire.
        assert await store.ledger.get_balances(["total"], now=NOON + 60) == {"total": make_standing(spent)}
        if wait_seconds > 1:
            assert rejected == 0


@pytest.mark.process
async def test_while_a_server_is_down_caps_reject_and_charges_wait(
    own_server: PostgresServer, url: str
) -> None:
    async with await open_store(url, wait_seconds=0.3) as store:
        admission = Admission(store.ledger, clock=lambda: NOON)
        reservation = await admission.admit(CALL, Decimal("0.5"), CAPS)
        await asyncio.to_thread(own_server.crash)
        try:
            with pytest.raises(CapUncheckable, match="cannot be checked: postgresql://"):
                await admission.admit(make_call("b"), Decimal("0.5"), CAPS)
            assert (
                await admission.settle(make_charge(reservation.call, "0.25"))
            ).outcome is SettlementOutcome.WAITING
        finally:
            await asyncio.to_thread(own_server.start)

        assert (await admission.admit(make_call("c"), Decimal("0.5"), CAPS)).is_reserved
        assert admission.waiting_count == 0
        assert await store.ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.25", "0.5")}
        assert await admission.close() == ()


@pytest.mark.parametrize("table", ["ledger_v1", "reservations_v1", "accounts_v1"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_transaction_lost_at_commit_is_repeated_once(url: str, table: str, times: int) -> None:
    async with await open_store(url) as store:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TERMINATE_AT_COMMIT.format(table, times).encode())

        reservation = make_reservation(CALL, "0.5", {"total": Decimal("0.5")})
        assert not isinstance(await store.ledger.reserve(reservation, now=NOON), AccountOverLimit)
        assert await settle_one(store.ledger, CHARGE, accounts=list_accounts(CALL))

        assert CHARGE.dollars
        assert await store.ledger.get_balances(["total"], now=NOON) == {"total": make_standing(CHARGE.dollars)}
        assert [charge async for charge in store.ledger.list_charges()] == [CHARGE]


class RepeatingDatabase(PostgresDatabase):
    """Commits, loses the connection before the acknowledgement, and repeats the transaction."""

    async def write(self, callback: TransactionCallback[T], *, is_idempotent: bool) -> T:
        assert is_idempotent
        await super().write(callback, is_idempotent=True)
        return await super().write(callback, is_idempotent=True)


async def test_an_unacknowledged_commit_is_not_applied_twice(url: str) -> None:
    await (await open_store(url)).close()
    database = RepeatingDatabase.open(url, wait_seconds=5.0)
    ledger = SqlLedger(database)

    assert not isinstance(
        await ledger.reserve(make_reservation(CALL, "0.5", {"total": Decimal(1)}), now=NOON), AccountOverLimit
    )
    other_call = make_call("b")
    assert not isinstance(
        await ledger.reserve(make_reservation(other_call, "0.5", {"total": Decimal(1)}), now=NOON),
        AccountOverLimit,
    )
    assert isinstance(
        await ledger.reserve(make_reservation(make_call("c"), "0.1", {"total": Decimal(1)}), now=NOON),
        AccountOverLimit,
    )
    await settle_one(ledger, CHARGE, accounts=list_accounts(CALL))
    await ledger.release(other_call.id)

    assert CHARGE.dollars
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing(CHARGE.dollars)}
    assert [charge async for charge in ledger.list_charges()] == [CHARGE]
    await database.close()
