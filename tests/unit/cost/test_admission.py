"""Admission under caps, and charges while the ledger is unavailable."""

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.cost.admission import AdmittedCall, Settlement, SettlementOutcome
from foveate.cost.caps import Cap, CapScope, UnknownPricePolicy, list_accounts
from foveate.cost.ledger import Reservation
from foveate.errors import CapExceeded, CapUncheckable
from tests.support.stores.ledger_records import CALL, NOON, make_call, make_cap, make_charge, make_standing
from tests.support.stores.memory_ledger import InMemoryLedger, ManualSleeps, make_admission

UNAVAILABLE = "/data/foveate.sqlite: is locked by another process"


RECORDED = Settlement(outcome=SettlementOutcome.RECORDED)
DAY = [make_cap(CapScope.DAY, 1)]


async def test_without_caps_nothing_is_reserved_and_the_charge_is_recorded() -> None:
    ledger = InMemoryLedger()
    admission = make_admission(ledger)

    assert await admission.admit(CALL, None, []) == AdmittedCall(call=CALL)
    assert await admission.settle(make_charge(CALL, "0.2")) == RECORDED
    assert ledger.operations == [f"settle {CALL.id}"]
    assert await admission.close() == ()


async def test_under_a_cap_the_cost_ceiling_is_reserved_until_settlement() -> None:
    ledger = InMemoryLedger()
    admission = make_admission(ledger)

    admitted = await admission.admit(CALL, Decimal("0.5"), DAY)
    assert admitted == AdmittedCall(call=CALL, ceiling=Decimal("0.5"), is_reserved=True)
    assert ledger.reserved[CALL.id] == Reservation(
        call_id=CALL.id,
        dollars=Decimal("0.5"),
        accounts=list_accounts(CALL),  # all of them: a cap may be added during the call
        limits={"day 2026-11-15": Decimal(1)},
        expires_at=NOON + 60.0,
    )
    assert await admission.settle(make_charge(CALL, "0.2")) == RECORDED
    assert not ledger.reserved


async def test_a_cap_without_room_rejects_and_names_itself_and_all_amounts() -> None:
    admission = make_admission(InMemoryLedger())
    caps = [*DAY, make_cap(CapScope.AGENT, 5), make_cap(CapScope.CALL, 1)]
    await admission.admit(make_call("a"), Decimal("0.5"), caps)
    await admission.settle(make_charge(make_call("b"), "0.3"))

    with pytest.raises(CapExceeded) as failure:
        await admission.admit(CALL, Decimal("0.25"), caps)

    assert str(failure.value) == (
        "this call may cost $0.25, and the cap on a day is $1.00, of which $0.30 is spent and $0.50 is reserved"
        " for running calls; try again when running calls are finished, or raise the cap"
    )
    error = failure.value
    assert (error.cap, error.limit, error.spent, error.reserved, error.ceiling) == (
        "the cap on a day",
        *map(Decimal, ("1", "0.3", "0.5", "0.25")),
    )


async def test_beyond_the_warning_level_the_call_is_admitted_with_a_warning() -> None:
    admission = make_admission(InMemoryLedger())

    assert (await admission.admit(make_call("a"), Decimal("0.79"), DAY)).warnings == ()
    (warning,) = (await admission.admit(make_call("b"), Decimal("0.01"), DAY)).warnings

    assert (warning.cap, warning.balance) == (DAY[0], make_standing(0, "0.8"))


async def test_a_call_of_unknown_price_is_rejected_unless_the_cap_allows_it() -> None:
    ledger = InMemoryLedger()
    admission = make_admission(ledger)
    allows = [Cap(scope=CapScope.DAY, dollars=Decimal(1), unknown=UnknownPricePolicy.ALLOW)]

    with pytest.raises(CapUncheckable, match="price of claude-opus-5-5 is unknown"):
        await admission.admit(CALL, None, DAY)

    assert (await admission.admit(make_call("a"), None, allows)).is_reserved
    await admission.settle(make_charge(make_call("b"), 1))
    with pytest.raises(CapExceeded, match="has an unknown cost"):
        await admission.admit(make_call("c"), None, allows)


async def test_a_cap_that_cannot_be_checked_rejects_with_a_reason() -> None:
    ledger = InMemoryLedger(failures_left=1)
    admission = make_admission(ledger)

    with pytest.raises(CapUncheckable) as failure:
        await admission.admit(CALL, Decimal("0.5"), [make_cap(CapScope.TOTAL, 9), *DAY])

    assert str(failure.value) == (
        f"the cap on a day ($1.00) cannot be checked: {UNAVAILABLE}; restore the store, or remove the cap"
    )
    assert (await admission.admit(CALL, Decimal("0.5"), DAY)).is_reserved


async def test_without_a_ledger_only_calls_that_need_none_are_admitted() -> None:
    ledger = InMemoryLedger(failures_left=1e9)
    admission = make_admission(ledger)

    for caps in ([], [make_cap(CapScope.CALL, 1)], [make_cap(CapScope.DAY, 1, agent="bob")]):
        assert not (await admission.admit(CALL, Decimal("0.5"), caps)).is_reserved
    assert not (await admission.admit(CALL, Decimal(0), DAY)).is_reserved
    with pytest.raises(CapExceeded, match="the cap on a call"):
        await admission.admit(CALL, Decimal(2), [make_cap(CapScope.CALL, 1)])
    assert ledger.operations == []


async def test_only_reserved_calls_are_released() -> None:
    ledger = InMemoryLedger()
    admission = make_admission(ledger)

    await admission.release(await admission.admit(CALL, Decimal("0.5"), DAY))
    await admission.release(await admission.admit(CALL, Decimal("0.5"), []))

    assert not ledger.reserved
    assert ledger.operations == [f"reserve {CALL.id}", f"release {CALL.id}"]


async def test_a_release_that_cannot_be_written_expires() -> None:
    ledger = InMemoryLedger()
    admission = make_admission(ledger)
    admitted = await admission.admit(CALL, Decimal("0.5"), DAY)
    ledger.failures_left = 1

    await admission.release(admitted)

    assert CALL.id in ledger.reserved
    assert admission.problem == UNAVAILABLE
    await admission.settle(make_charge(make_call("next"), 1))
    assert not admission.problem


async def test_a_charge_waits_for_the_ledger_and_is_recorded_when_it_is_back() -> None:
    ledger, sleeps = InMemoryLedger(failures_left=3), ManualSleeps()
    admission = make_admission(ledger, sleeps)

    for id_ in "abc":
        assert await admission.settle(make_charge(make_call(id_), 1)) == Settlement(
            outcome=SettlementOutcome.WAITING, problem=UNAVAILABLE
        )
    assert (admission.waiting_count, admission.problem) == (3, UNAVAILABLE)
    assert ledger.operations == ["settle a"]  # later charges do not wait for an unavailable ledger

    await sleeps.end()
    await sleeps.end()
    assert (admission.waiting_count, ledger.charged_ids) == (3, [])
    await sleeps.end()

    assert ledger.charged_ids == ["a", "b", "c"]
    assert (admission.waiting_count, admission.lost_count, admission.problem) == (0, 0, "")
    assert sleeps.seconds == [1.0, 2.0, 4.0]
    assert await admission.settle(make_charge(make_call("d"), 1)) == RECORDED
    assert await admission.close() == ()


async def test_no_cap_is_checked_while_charges_are_missing_from_accounts() -> None:
    ledger = InMemoryLedger(failures_left=2)
    admission = make_admission(ledger)
    await admission.settle(make_charge(make_call("a"), "0.8"))

    with pytest.raises(CapUncheckable, match="cannot be checked: /data"):
        await admission.admit(CALL, Decimal("0.3"), DAY)
    with pytest.raises(CapExceeded) as failure:  # the ledger is back, and the charge is recorded first
        await admission.admit(CALL, Decimal("0.3"), DAY)

    assert failure.value.spent == Decimal("0.8")
    await admission.close()


async def test_more_charges_than_can_wait_are_lost_and_reported() -> None:
    ledger = InMemoryLedger(failures_left=2)
    admission = make_admission(ledger, max_waiting=2)

    outcomes = [(await admission.settle(make_charge(make_call(id_), 1))).outcome for id_ in "abcd"]

    assert outcomes == [SettlementOutcome.WAITING] * 2 + [SettlementOutcome.LOST] * 2
    assert (admission.waiting_count, admission.lost_count) == (2, 2)
    assert [charge.call.id for charge in await admission.close()] == ["a", "b"]


async def test_waiting_charges_are_retried_once_on_closing() -> None:
    ledger = InMemoryLedger(failures_left=1)
    admission = make_admission(ledger)
    await admission.settle(make_charge(make_call("a"), 1))
    await admission.settle(make_charge(make_call("b"), 1))

    assert await admission.close() == ()
    assert ledger.charged_ids == ["a", "b"]


async def test_a_charge_that_is_settled_twice_is_recorded_once() -> None:
    ledger = InMemoryLedger()
    admission = make_admission(ledger)

    assert await admission.settle(make_charge(CALL, 1)) == RECORDED
    assert await admission.settle(make_charge(CALL, 1)) == Settlement(
        outcome=SettlementOutcome.ALREADY_RECORDED
    )


async def cancel_after_start(task: "asyncio.Task[object]") -> None:
    """Cancel the caller after the operation has started."""
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_settlement_loses_nothing() -> None:
    ledger, sleeps = InMemoryLedger(pause=asyncio.Event()), ManualSleeps()
    admission = make_admission(ledger, sleeps)

    await cancel_after_start(asyncio.create_task(admission.settle(make_charge(CALL, 1))))
    assert admission.waiting_count == 1
    assert ledger.pause
    ledger.pause.set()
    await sleeps.end()

    assert ledger.charged_ids == [CALL.id]
    assert admission.waiting_count == 0


async def test_a_cancelled_reservation_leaves_nothing_reserved() -> None:
    ledger, sleeps = InMemoryLedger(pause=asyncio.Event()), ManualSleeps()
    admission = make_admission(ledger, sleeps)

    await cancel_after_start(asyncio.create_task(admission.admit(CALL, Decimal("0.5"), DAY)))
    assert ledger.pause
    ledger.pause.set()
    await ledger.reserve(  # as a database does that had already started
        Reservation(
            call_id=CALL.id, dollars=Decimal("0.5"), accounts=["day 2026-11-15"], limits={}, expires_at=0.0
        ),
        now=NOON,
    )
    await sleeps.end()

    assert not ledger.reserved
    await admission.close()


async def test_a_cancelled_release_is_completed() -> None:
    ledger = InMemoryLedger()
    admission = make_admission(ledger)
    admitted = await admission.admit(CALL, Decimal("0.5"), DAY)
    ledger.pause = asyncio.Event()

    await cancel_after_start(asyncio.create_task(admission.release(admitted)))
    ledger.pause.set()
    await admission.close()

    assert not ledger.reserved


@given(st.lists(st.sampled_from(["charge", "outage", "end of a pause", "cancel"]), max_size=30))
def test_every_charge_is_recorded_once_or_reported_as_lost(
    steps: list[str],
) -> None:
    async def check() -> None:
        ledger, sleeps = InMemoryLedger(), ManualSleeps()
        admission = make_admission(ledger, sleeps, max_waiting=4)
        call_ids: list[str] = []
        reported_lost = 0
        for number, step in enumerate(steps):
            if step in ("charge", "cancel"):
                call_ids.append(f"{number:03}")
                settling = asyncio.create_task(admission.settle(make_charge(make_call(call_ids[-1]), 1)))
                if step == "cancel":
                    ledger.pause = asyncio.Event()
                    await asyncio.sleep(0)
                    settling.cancel()
                    ledger.pause.set()
                (result,) = await asyncio.gather(settling, return_exceptions=True)
                reported_lost += isinstance(result, Settlement) and result.outcome is SettlementOutcome.LOST
                ledger.pause = None
            elif step == "outage":
                ledger.failures_left = 2
            else:
                await sleeps.end()
        ledger.failures_left = 0
        assert await admission.close() == ()
        assert len(ledger.charged_ids) == len(set(ledger.charged_ids)) == len(call_ids) - admission.lost_count
        assert set(ledger.charged_ids) <= set(call_ids)
        assert admission.lost_count >= reported_lost

    asyncio.run(check())


async def test_waiting_charges_are_recorded_together_before_a_cap_is_checked() -> None:
    """Regression: each was written alone, and the first caller after an outage waited for thousands."""
    ledger = InMemoryLedger(failures_left=1)
    admission = make_admission(ledger, max_waiting=1_000)
    for number in range(300):
        await admission.settle(make_charge(make_call(f"{number:03}"), "0.001"))
    assert admission.waiting_count == 300
    await admission.admit(CALL, Decimal("0.5"), DAY)

    assert len(ledger.stored_charges) == 300
    assert len(ledger.operations) == 4  # a failed charge, two batches of charges, and the reservation
    await admission.close()
