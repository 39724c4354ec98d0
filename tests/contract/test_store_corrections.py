"""Corrections: the ledger, the accounts and the totals change together, and each correction is recorded."""

import dataclasses
from decimal import Decimal

import pytest
from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import AccountBalance, AccountOverLimit, Charge, Correction
from foveate.errors import BadOption
from foveate.model import CacheUsage, Savings, Usage
from foveate.store import Store, open_store
from tests.support.stores.ledger_records import CALL, CHARGE, NOON, RESERVATION, settle_one

UNKNOWN = Charge(
    call=replace(CALL, id="unknown"), usage=Usage(cache=CacheUsage(), raw=b'{"x": -1}'), dollars=None
)
POSSIBLE = replace(
    UNKNOWN,
    call=replace(CALL, id="possible"),
    charge=Decimal("0.30"),
    is_partial=True,
    is_possibly_charged=True,
)


async def spent_amounts(store: Store) -> set[Decimal]:
    """Return the amount spent in the accounts of a call, which is the same in all of them."""
    balances = await store.ledger.get_balances(list_accounts(CALL), now=NOON)
    assert {balance.reserved for balance in balances.values()} == {Decimal(0)}
    return {balance.spent for balance in balances.values()}


async def correct_call(store: Store, call_id: str, dollars: str) -> Correction:
    correction = await store.corrections.correct_call(call_id, Decimal(dollars), reason="invoice", at=NOON)
    assert correction is not None
    return correction


async def check_sums(store: Store, *, dollars: str, unknown: int, possible: int = 0) -> None:
    (charge_total,) = await store.ledger.sum_charges([])
    ((_, totals),) = await store.totals.sum_totals()
    session = await store.totals.get_session(CALL.session_id)
    assert session is not None
    for calls, paid, unpriced, possibly in (
        (
            charge_total.calls,
            charge_total.dollars,
            charge_total.unknown_calls,
            charge_total.possibly_charged_calls,
        ),
        (totals.calls, totals.dollars, totals.unpriced, totals.possibly_charged),
        (
            *(session.totals.calls, session.totals.dollars),
            *(session.totals.unpriced, session.totals.possibly_charged),
        ),
    ):
        assert (calls, paid, unpriced, possibly) == (1, Decimal(dollars), unknown, possible)


async def test_a_call_of_unknown_cost_is_corrected_everywhere(database_url: str) -> None:
    async with await open_store(database_url) as store:
        reservation = dataclasses.replace(
            RESERVATION, call_id="unknown", dollars=Decimal("0.30"), accounts=list_accounts(CALL), limits={}
        )
        assert not isinstance(await store.ledger.reserve(reservation, now=NOON), AccountOverLimit)
        await settle_one(store.ledger, UNKNOWN, accounts=list_accounts(CALL))
        assert await spent_amounts(store) == {Decimal("0.30")}
        await check_sums(store, dollars="0", unknown=1)

        correction = await correct_call(store, "unknown", "0.12")
        assert (correction.before, correction.charged, correction.after) == (
            None,
            Decimal("0.30"),
            Decimal("0.12"),
        )
        assert await spent_amounts(store) == {Decimal("0.12")}
        await check_sums(store, dollars="0.12", unknown=0)
        charge = await store.ledger.get_charge("unknown")
        assert charge is not None
        assert (charge.dollars, charge.usage.raw) == (Decimal("0.12"), b'{"x": -1}')

        second = await correct_call(store, "unknown", "0.20")
        assert (second.before, second.charged) == (Decimal("0.12"), Decimal("0.12"))
        assert await spent_amounts(store) == {Decimal("0.20")}
        await check_sums(store, dollars="0.20", unknown=0)
        corrections = await store.corrections.find(call_id="unknown")
        assert sorted(corrections, key=lambda item: item.after) == [correction, second]
        assert await store.corrections.find(agent="nobody") == []


async def test_a_possibly_charged_call_is_corrected_to_nothing(database_url: str) -> None:
    async with await open_store(database_url) as store:
        await settle_one(store.ledger, POSSIBLE, accounts=list_accounts(CALL))
        assert await spent_amounts(store) == {Decimal("0.30")}
        await check_sums(store, dollars="0", unknown=1, possible=1)

        await correct_call(store, "possible", "0")
        assert await spent_amounts(store) == {Decimal(0)}
        await check_sums(store, dollars="0", unknown=0)


async def test_a_known_cost_is_corrected_and_its_comparison_still_adds_up(database_url: str) -> None:
    savings = Savings(without=Decimal(3), breakpoints=Decimal(1), simulation_error=Decimal("0.5"))
    async with await open_store(database_url) as store:
        await settle_one(
            store.ledger, replace(CHARGE, dollars=Decimal("2.5"), savings=savings), accounts=list_accounts(CALL)
        )
        correction = await correct_call(store, CALL.id, "2")
        assert correction.before == Decimal("2.5")
        assert await spent_amounts(store) == {Decimal(2)}
        charge = await store.ledger.get_charge(CALL.id)
        assert charge is not None
        assert charge.savings.simulation_error == 0
        ((_, totals),) = await store.totals.sum_totals()
        assert (totals.dollars, totals.simulation_error) == (Decimal(2), Decimal(0))
        assert totals.compared == 1


async def test_correcting_an_account_changes_nothing_else(database_url: str) -> None:
    async with await open_store(database_url) as store:
        await settle_one(store.ledger, CHARGE, accounts=list_accounts(CALL))
        correction = await store.corrections.correct_account(
            "total", Decimal(9), reason="\x1b[31m why", at=NOON
        )
        assert correction is not None
        assert (correction.before, correction.after, correction.call_id) == (CHARGE.dollars, Decimal(9), "")
        balances = await store.ledger.get_balances(["total", f"agent {CALL.agent}"], now=NOON)
        assert balances["total"] == AccountBalance(spent=Decimal(9), reserved=Decimal(0))
        assert balances[f"agent {CALL.agent}"].spent == CHARGE.dollars
        assert await store.corrections.find() == [correction]


async def test_unknown_calls_and_invalid_amounts_are_not_corrected(database_url: str) -> None:
    async with await open_store(database_url) as store:
        assert await store.corrections.correct_call("nobody", Decimal(1), reason="why", at=NOON) is None
        assert (
            await store.corrections.correct_account("agent nobody", Decimal(1), reason="why", at=NOON) is None
        )
        for amount in (Decimal(-1), Decimal("NaN"), Decimal("1e300")):
            with pytest.raises(BadOption):
                await store.corrections.correct_account("total", amount, reason="why", at=NOON)
        assert await store.corrections.find() == []
