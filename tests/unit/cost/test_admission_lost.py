"""Charges that cannot be stored are counted, and do not block others."""

from decimal import Decimal

import pytest
from msgspec.structs import replace

from foveate.cost.admission import Settlement, SettlementOutcome
from foveate.cost.caps import CapScope, list_accounts, utc_day
from foveate.errors import BadOption
from foveate.model import Savings
from tests.support.stores.ledger_records import CALL, make_call, make_cap, make_charge
from tests.support.stores.memory_ledger import Books, admission

TOTAL = [make_cap(CapScope.TOTAL, 1)]
BAD = BadOption("that cannot be kept")


async def test_a_charge_that_cannot_be_stored_is_recorded_with_unknown_price() -> None:
    """Regression: a stated price of 1e300 dollars lost the charge and kept its reservation."""
    books = Books(unpriced={CALL.id})
    ours = admission(books)
    await ours.admit(CALL, Decimal("0.5"), TOTAL)
    billed = replace(
        make_charge(CALL, "1e300"),
        estimated_input_tokens=9,
        estimated_dollars=Decimal("1e300"),
        savings=Savings(breakpoints=Decimal("1e300")),
        charge=Decimal("1e300"),
    )

    settled = await ours.settle(billed)

    assert settled == Settlement(outcome=SettlementOutcome.BOOKED, problem="that is no price")
    assert books.entries_ == [replace(make_charge(CALL, None), estimated_input_tokens=9)]
    assert not books.reserved
    assert (ours.lost, ours.waiting) == (0, 0)


@pytest.mark.parametrize("problem", [BAD, RuntimeError("that cannot be kept")])
async def test_a_charge_that_can_never_be_stored_is_counted_and_released(problem: Exception) -> None:
    books = Books(never={CALL.id: problem})
    ours = admission(books)
    await ours.admit(CALL, Decimal("0.5"), TOTAL)

    settled = await ours.settle(make_charge(CALL, 1))

    assert settled == Settlement(outcome=SettlementOutcome.LOST, problem="that cannot be kept")
    assert (ours.lost, ours.problem) == (1, "that cannot be kept")
    assert not books.reserved
    assert books.asked[-1] == f"release {CALL.id}"


@pytest.mark.parametrize("problem", [BAD, RuntimeError("that cannot be kept")])
async def test_a_charge_that_can_never_be_stored_does_not_block_later_ones(problem: Exception) -> None:
    books = Books(gone=1, never={"b": problem}, unpriced={"c"})
    ours = admission(books)
    for id_ in "abcd":
        await ours.settle(make_charge(make_call(id_), 1))

    assert await ours.close() == ()
    booked = {one.call.id: one.dollars for one in books.entries_}
    assert booked == {"a": 1, "c": None, "d": 1}
    assert ours.lost == 1


@pytest.mark.parametrize("at", [1e300, -1e300, float("nan"), float("inf"), 1e14])
async def test_a_charge_outside_of_the_calendar_is_counted_as_lost(at: float) -> None:
    """Regression: it raised OverflowError."""
    books = Books()
    ours = admission(books)
    nowhere = make_call("a", at=at)

    with pytest.raises(BadOption, match="is on no day"):
        utc_day(at)
    with pytest.raises(BadOption, match="is on no day"):
        list_accounts(nowhere)
    assert (await ours.settle(make_charge(nowhere, 1))).outcome is SettlementOutcome.LOST
    assert (ours.lost, books.booked) == (1, [])
