"""Charges that cannot be stored are counted, and do not block others."""

from decimal import Decimal

import pytest
from msgspec.structs import replace

from foveate.cost.admission import Settlement, SettlementOutcome
from foveate.cost.caps import CapScope, list_accounts, utc_day
from foveate.errors import BadOption
from foveate.model import Savings
from tests.support.stores.ledger_records import CALL, make_call, make_cap, make_charge
from tests.support.stores.memory_ledger import InMemoryLedger, make_admission

TOTAL = [make_cap(CapScope.TOTAL, 1)]
BAD_OPTION = BadOption("cannot be stored")


async def test_a_charge_that_cannot_be_stored_is_recorded_with_unknown_price() -> None:
    """Regression: a stated price of 1e300 dollars lost the charge and kept its reservation."""
    ledger = InMemoryLedger(unpriced={CALL.id})
    admission = make_admission(ledger)
    await admission.admit(CALL, Decimal("0.5"), TOTAL)
    charge = replace(
        make_charge(CALL, "1e300"),
        estimated_input_tokens=9,
        estimated_dollars=Decimal("1e300"),
        savings=Savings(breakpoints=Decimal("1e300")),
        charge=Decimal("1e300"),
    )

    settlement = await admission.settle(charge)

    assert settlement == Settlement(outcome=SettlementOutcome.RECORDED, problem="that is no price")
    assert ledger.stored_charges == [replace(make_charge(CALL, None), estimated_input_tokens=9)]
    assert not ledger.reserved
    assert (admission.lost_count, admission.waiting_count) == (0, 0)


@pytest.mark.parametrize("problem", [BAD_OPTION, RuntimeError("cannot be stored")])
async def test_a_charge_that_can_never_be_stored_is_counted_and_released(problem: Exception) -> None:
    ledger = InMemoryLedger(unstorable={CALL.id: problem})
    admission = make_admission(ledger)
    await admission.admit(CALL, Decimal("0.5"), TOTAL)

    settlement = await admission.settle(make_charge(CALL, 1))

    assert settlement == Settlement(outcome=SettlementOutcome.LOST, problem="cannot be stored")
    assert (admission.lost_count, admission.problem) == (1, "cannot be stored")
    assert not ledger.reserved
    assert ledger.operations[-1] == f"release {CALL.id}"


@pytest.mark.parametrize("problem", [BAD_OPTION, RuntimeError("cannot be stored")])
async def test_a_charge_that_can_never_be_stored_does_not_block_later_ones(problem: Exception) -> None:
    ledger = InMemoryLedger(failures_left=1, unstorable={"b": problem}, unpriced={"c"})
    admission = make_admission(ledger)
    for id_ in "abcd":
        await admission.settle(make_charge(make_call(id_), 1))

    assert await admission.close() == ()
    dollars_by_call = {charge.call.id: charge.dollars for charge in ledger.stored_charges}
    assert dollars_by_call == {"a": 1, "c": None, "d": 1}
    assert admission.lost_count == 1


@pytest.mark.parametrize("at", [1e300, -1e300, float("nan"), float("inf"), 1e14])
async def test_a_charge_with_an_impossible_timestamp_is_counted_as_lost(at: float) -> None:
    """Regression: it raised OverflowError."""
    ledger = InMemoryLedger()
    admission = make_admission(ledger)
    call = make_call("a", at=at)

    with pytest.raises(BadOption, match="is not a valid date"):
        utc_day(at)
    with pytest.raises(BadOption, match="is not a valid date"):
        list_accounts(call)
    assert (await admission.settle(make_charge(call, 1))).outcome is SettlementOutcome.LOST
    assert (admission.lost_count, ledger.charged_ids) == (1, [])
