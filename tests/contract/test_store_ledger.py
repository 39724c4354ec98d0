"""Reservations, settlements, releases and balances, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal

import pytest
from msgspec import structs

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import AccountBalance, AccountOverLimit, Ledger
from foveate.errors import BadOption
from foveate.model import Savings
from foveate.store import Store, open_store
from tests.support.stores.ledger_records import (
    CALL,
    CHARGE,
    NOON,
    make_call,
    make_charge,
    make_reservation,
    make_standing,
    reserve,
    settle_one,
)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


@pytest.fixture
def ledger(store: Store) -> Ledger:
    """The type checker verifies that the store implements the protocol."""
    return store.ledger


async def record_charge(ledger: Ledger, id_: str, dollars: str | None, *, at: float = NOON) -> bool:
    charge = make_charge(make_call(id_, at=at), dollars)
    return await settle_one(ledger, charge, accounts=list_accounts(charge.call))


async def total_balance(ledger: Ledger, *, now: float = NOON) -> AccountBalance:
    return (await ledger.get_balances(["total"], now=now))["total"]


async def list_charged(ledger: Ledger) -> list[tuple[str, Decimal | None]]:
    return [(charge.call.id, charge.dollars) async for charge in ledger.list_charges()]


async def test_a_reservation_counts_in_every_limited_account_until_it_is_settled(
    ledger: Ledger,
) -> None:
    balances = await ledger.reserve(make_reservation(CALL, "0.5", {"total": Decimal(1)}), now=NOON)

    assert balances == {"total": make_standing(0, "0.5")}
    assert await ledger.get_balances(list_accounts(CALL), now=NOON) == dict.fromkeys(
        list_accounts(CALL), make_standing(0, "0.5")
    )
    assert await settle_one(ledger, make_charge(CALL, "0.2"), accounts=list_accounts(CALL))
    assert await ledger.get_balances(list_accounts(CALL), now=NOON) == dict.fromkeys(
        list_accounts(CALL), make_standing("0.2", 0)
    )


async def test_an_account_without_charges_has_a_balance_of_zero(ledger: Ledger) -> None:
    assert await ledger.get_balances(["session new", "agent new"], now=NOON) == {
        "session new": make_standing(0),
        "agent new": make_standing(0),
    }
    assert await ledger.get_balances([], now=NOON) == {}


async def test_a_cap_is_filled_to_the_last_picodollar_and_not_beyond(ledger: Ledger) -> None:
    assert await reserve(ledger, make_call("a"), "0.999999999999", total=1)
    assert not await reserve(ledger, make_call("b"), "0.000000000002", total=1)
    assert await reserve(ledger, make_call("c"), "0.000000000001", total=1)
    assert not await reserve(ledger, make_call("d"), "0.000000000001", total=1)


async def test_less_than_a_picodollar_is_reserved_as_one_picodollar(ledger: Ledger) -> None:
    assert await reserve(ledger, make_call("a"), "0.0000000000001", total=1)
    assert await total_balance(ledger) == make_standing(0, "0.000000000001")


async def test_nothing_is_reserved_if_one_account_is_over_its_limit(ledger: Ledger) -> None:
    assert await reserve(ledger, make_call("a"), "0.7", session=1, agent=5)

    over = await ledger.reserve(
        make_reservation(make_call("b"), "0.4", {"session s": Decimal(1), "agent ana": Decimal(5)}), now=NOON
    )

    assert over == AccountOverLimit(account="session s", limit=Decimal(1), balance=make_standing(0, "0.7"))
    assert await total_balance(ledger) == make_standing(0, "0.7")
    assert not await ledger.release("b")
    assert await reserve(ledger, make_call("c", session_id="another"), "0.4", session=1, agent=5)


async def test_an_account_without_a_limit_is_never_over_it(ledger: Ledger) -> None:
    for number in range(3):
        assert await reserve(ledger, make_call(f"{number}"), "400")

    assert await total_balance(ledger) == make_standing(0, 1200)


async def test_reserving_twice_for_a_call_reserves_once(ledger: Ledger) -> None:
    reservation = make_reservation(CALL, "0.6", {"total": Decimal(1)})
    first = await ledger.reserve(reservation, now=NOON)

    assert await ledger.reserve(reservation, now=NOON) == first
    assert await ledger.reserve(replace(reservation, dollars=Decimal(100)), now=NOON) == first
    assert await total_balance(ledger) == make_standing(0, "0.6")


async def test_settling_twice_charges_once_as_the_first_time(ledger: Ledger) -> None:
    assert await record_charge(ledger, "a", "0.2")

    assert not await record_charge(ledger, "a", "0.3")
    assert await list_charged(ledger) == [("a", Decimal("0.2"))]
    assert await total_balance(ledger) == make_standing("0.2", 0)


async def test_a_call_without_a_reservation_is_charged(ledger: Ledger) -> None:
    assert await record_charge(ledger, "a", "0.2")
    assert await total_balance(ledger) == make_standing("0.2", 0)


async def test_releasing_a_reservation_frees_it_without_a_charge(ledger: Ledger) -> None:
    assert await reserve(ledger, make_call("a"), "0.6", total=1)

    assert await ledger.release("a")

    assert await total_balance(ledger) == make_standing(0, 0)
    assert await list_charged(ledger) == []
    assert not await ledger.release("a")
    assert not await ledger.release("never")
    assert await total_balance(ledger) == make_standing(0, 0)


async def test_releasing_after_settling_does_nothing_and_settling_after_releasing_charges(
    ledger: Ledger,
) -> None:
    assert await reserve(ledger, make_call("a"), "0.6", total=1)
    assert await record_charge(ledger, "a", "0.2")
    assert not await ledger.release("a")
    assert await total_balance(ledger) == make_standing("0.2", 0)

    assert await reserve(ledger, make_call("b"), "0.6", total=1)
    assert await ledger.release("b")
    assert await record_charge(ledger, "b", "0.3")
    assert await total_balance(ledger) == make_standing("0.5", 0)


async def test_an_expired_reservation_is_freed_and_a_late_charge_is_still_recorded(
    ledger: Ledger,
) -> None:
    assert await reserve(ledger, make_call("late"), "0.6", total=1)

    assert not await reserve(ledger, make_call("early"), "0.6", now=NOON + 1199.9, total=1)
    assert await total_balance(ledger, now=NOON + 1199.9) == make_standing(0, "0.6")
    assert await reserve(ledger, make_call("next"), "0.6", now=NOON + 1200, total=1)
    assert await total_balance(ledger, now=NOON + 1200) == make_standing(0, "0.6")

    assert await record_charge(ledger, "late", "0.5")
    assert await total_balance(ledger, now=NOON + 1200) == make_standing("0.5", "0.6")
    assert await record_charge(ledger, "next", "0.6")
    assert await total_balance(ledger, now=NOON + 1200) == make_standing("1.1", 0)


async def test_any_number_of_expired_reservations_is_freed(ledger: Ledger) -> None:
    """More than one batch: a gateway with many calls in flight was killed."""
    expiring = [reserve(ledger, make_call(f"dead {number}"), "0.01", total=3) for number in range(300)]
    assert all(await asyncio.gather(*expiring))
    assert not await reserve(ledger, make_call("too early"), "1", total=3)

    assert await reserve(ledger, make_call("next"), "3", now=NOON + 1200, total=3)
    assert await total_balance(ledger, now=NOON + 1200) == make_standing(0, 3)
    assert await ledger.release("next")
    for number in range(300):
        assert not await ledger.release(f"dead {number}")


async def test_balances_exclude_expired_reservations(ledger: Ledger) -> None:
    for number in range(70):
        assert await reserve(ledger, make_call(f"dead {number}"), "0.01")

    assert await total_balance(ledger, now=NOON + 1200) == make_standing(0, 0)


async def test_reading_balances_never_deletes_reservations(ledger: Ledger) -> None:
    """Regression: `foveate cost caps` on a machine whose clock is ahead let others exceed their caps."""
    assert await reserve(ledger, make_call("a"), "0.6", session=1, total=1)
    assert await reserve(ledger, make_call("later", session_id="another"), "0.3", now=NOON + 60, total=1)

    balances = await ledger.get_balances(["session another", "session s", "total"], now=NOON + 1200)

    assert balances == {
        "session another": make_standing(0, "0.3"),
        "session s": make_standing(0),
        "total": make_standing(0, "0.3"),
    }
    assert await total_balance(ledger) == make_standing(0, "0.9")
    assert not await reserve(ledger, make_call("b"), "0.6", total=1)
    assert await ledger.release("a")


async def test_a_call_of_unknown_price_is_charged_what_was_reserved(ledger: Ledger) -> None:
    """Regression: it was $0, so that a client that cancelled its streams before the usage came had no cap."""
    assert await reserve(ledger, make_call("a"), "0.6", total=1)

    assert await record_charge(ledger, "a", None)

    assert await list_charged(ledger) == [("a", None)]
    assert await ledger.get_balances(list_accounts(CALL), now=NOON) == dict.fromkeys(
        list_accounts(CALL), make_standing("0.6", 0)
    )
    assert not await reserve(ledger, make_call("b"), "0.6", total=1)
    (charge_total,) = await ledger.sum_charges([])
    assert (charge_total.calls, charge_total.unknown_calls, charge_total.dollars) == (1, 1, Decimal(0))


async def test_a_call_of_unknown_price_is_charged_its_own_estimate_if_it_has_one(ledger: Ledger) -> None:
    for number, (dollars, reserved) in enumerate([("0", "0.6"), ("0.2", "0.6"), ("0.1", None)]):
        row = structs.replace(make_charge(make_call(f"{number}"), None), charge=Decimal(dollars))
        if reserved:
            assert await reserve(ledger, row.call, reserved, total=1)
        assert await settle_one(ledger, row, accounts=list_accounts(row.call))

    assert await total_balance(ledger) == make_standing("0.3", 0)
    assert await list_charged(ledger) == [("0", None), ("1", None), ("2", None)]


async def test_a_call_of_unknown_price_without_a_reservation_is_charged_nothing(ledger: Ledger) -> None:
    assert await reserve(ledger, make_call("gone"), "0.6", total=1)
    assert await ledger.release("gone")
    assert await record_charge(ledger, "gone", None)
    assert await record_charge(ledger, "never", None)
    # A call of unknown price that a cap allows reserves the minimum.
    assert await reserve(ledger, make_call("allowed"), "0.000000000001", total=1)
    assert await record_charge(ledger, "allowed", None)

    assert await total_balance(ledger) == make_standing(0, 0)


async def test_an_estimated_charge_is_ignored_if_the_price_is_known(ledger: Ledger) -> None:
    charge = structs.replace(make_charge(CALL, "0.2"), charge=Decimal("0.5"))

    assert await settle_one(ledger, charge, accounts=list_accounts(CALL))

    assert await total_balance(ledger) == make_standing("0.2", 0)


async def test_settling_a_call_again_leaves_no_reservation(ledger: Ledger) -> None:
    """Regression: a reservation under the id of a recorded call stayed until it expired."""
    assert await record_charge(ledger, "a", "0.2")
    assert await reserve(ledger, make_call("a"), "0.6", total=1)

    assert not await record_charge(ledger, "a", None)

    assert await total_balance(ledger) == make_standing("0.2", 0)


async def test_a_limit_is_rounded_down(ledger: Ledger) -> None:
    """Fractions of a picodollar cannot be spent."""
    reservation = make_reservation(CALL, "0.000000000001", {"total": Decimal("0.0000000000009")})

    result = await ledger.reserve(reservation, now=NOON)

    assert result == AccountOverLimit(account="total", limit=Decimal(0), balance=make_standing(0))


async def test_days_have_accounts_of_their_own(ledger: Ledger) -> None:
    assert await record_charge(ledger, "today", "0.2")
    assert await record_charge(ledger, "tomorrow", "0.3", at=NOON + 86_400)

    assert await ledger.get_balances(["day 2026-11-15", "day 2026-11-16 of ana", "agent ana"], now=NOON) == {
        "day 2026-11-15": make_standing("0.2"),
        "day 2026-11-16 of ana": make_standing("0.3"),
        "agent ana": make_standing("0.5"),
    }


@pytest.mark.parametrize("amount", ["-0.01", "NaN", "Infinity", "5e6"])
async def test_invalid_amounts_are_rejected_and_nothing_is_stored(ledger: Ledger, amount: str) -> None:
    with pytest.raises(BadOption, match="dollars"):
        await reserve(ledger, make_call("a"), amount, total=1)
    with pytest.raises(BadOption, match="dollars"):
        await record_charge(ledger, "a", amount)

    assert await list_charged(ledger) == []
    assert await total_balance(ledger) == make_standing(0, 0)


async def test_a_charge_is_stored_even_if_its_estimate_or_savings_cannot_be(ledger: Ledger) -> None:
    """Regression: a request for 1e30 choices made the price of its response unknown."""
    charge = structs.replace(
        CHARGE, estimated_dollars=Decimal("1e30"), savings=Savings(context=Decimal("-1e30"))
    )

    assert await settle_one(ledger, charge, accounts=["total"])

    (stored,) = [row async for row in ledger.list_charges()]
    assert stored == structs.replace(charge, estimated_dollars=None, savings=Savings())


async def test_an_account_is_clamped_at_its_maximum_and_the_ledger_still_has_every_charge(
    ledger: Ledger,
) -> None:
    """Beyond 64 bits SQLite switches to floats, and PostgreSQL raises an error."""
    for number in range(4):
        assert await record_charge(ledger, f"{number}", "4611686")

    balance = await total_balance(ledger)
    assert Decimal(4_611_686) < balance.spent < Decimal(4_611_687)
    assert not balance.reserved
    (charge_total,) = await ledger.sum_charges([])
    assert charge_total.dollars == 4 * 4_611_686
    assert not await reserve(ledger, make_call("next"), "0.01", total=4_611_686)


async def test_reservations_that_would_overflow_are_rejected(ledger: Ledger) -> None:
    assert await reserve(ledger, make_call("a"), "4611686")

    with pytest.raises(BadOption, match=r"the reservations of .* exceed the largest amount"):
        await reserve(ledger, make_call("b"), "4611686")

    assert await total_balance(ledger) == make_standing(0, 4_611_686)


async def test_a_charge_with_an_unstorable_name_is_still_stored(ledger: Ledger) -> None:
    call = structs.replace(
        make_call("a\0"), agent="an\0a", session_id="\ud83d", model="m\0", provider="p\udc00"
    )
    reservation = make_reservation(call, "0.5", {f"agent {call.agent}": Decimal(1)})

    balances = await ledger.reserve(reservation, now=NOON)
    assert not isinstance(balances, AccountOverLimit)
    assert balances == {"agent an\0a": make_standing(0, "0.5")}
    assert isinstance(
        await ledger.reserve(replace(reservation, call_id="b", dollars=Decimal(1)), now=NOON), AccountOverLimit
    )
    assert await settle_one(ledger, make_charge(call, "0.2"), accounts=list_accounts(call))

    assert await ledger.get_balances(["agent an\0a"], now=NOON) == {"agent an\0a": make_standing("0.2", 0)}
    assert [
        charge.call.model async for charge in ledger.list_charges(agent=call.agent, session_id=call.session_id)
    ] == ["m\ufffd"]


async def test_a_renewed_reservation_expires_later_and_a_lost_one_is_reported(ledger: Ledger) -> None:
    for id_ in "abcd":
        assert await reserve(ledger, make_call(id_), "0.2", total=1)
    await record_charge(ledger, "b", "0.1")
    await ledger.release("c")

    renewed = await ledger.renew(["a", "b", "c", "never"], expires_at=NOON + 5000)

    assert renewed == {"a"}
    assert await total_balance(ledger, now=NOON + 1199) == make_standing("0.1", "0.4")
    assert await total_balance(ledger, now=NOON + 4999) == make_standing("0.1", "0.2")
    assert await total_balance(ledger, now=NOON + 5000) == make_standing("0.1")
    # The next reservation deletes what has expired, which then cannot be renewed.
    assert await reserve(ledger, make_call("e"), "0.9", now=NOON + 5000, total=1)
    assert await ledger.renew(["a", "d"], expires_at=NOON + 9000) == set()


async def test_hundreds_of_calls_are_renewed_at_once(ledger: Ledger) -> None:
    ids = [f"{number:04}" for number in range(700)]
    await asyncio.gather(*(reserve(ledger, make_call(id_), "0.001", total=1) for id_ in ids))

    assert await ledger.renew(ids, expires_at=NOON + 5000) == set(ids)
    assert await ledger.renew([], expires_at=NOON + 5000) == set()
    assert await total_balance(ledger, now=NOON + 4999) == make_standing(0, "0.7")


@pytest.mark.slow
async def test_deleting_old_charges_does_not_change_balances(store: Store) -> None:
    day = 86_400.0
    for number in range(1_205):
        await record_charge(store.ledger, f"old {number}", "0.001", at=NOON - 9 * day - number)
    await record_charge(store.ledger, "new", "0.1")
    before = NOON - 5 * day

    assert await store.ledger.count_before(before=before) == 1_205
    assert await store.ledger.delete_before(before=before) == 1_205
    assert await store.ledger.delete_before(before=before) == 0
    assert await list_charged(store.ledger) == [("new", Decimal("0.1"))]
    assert await total_balance(store.ledger) == make_standing("1.305")
