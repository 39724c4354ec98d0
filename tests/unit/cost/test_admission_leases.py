"""Reservations of calls in flight are short leases, which are renewed and never lost silently."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest

from foveate.cost.admission import Admission, AdmissionOptions, SettlementOutcome
from foveate.cost.caps import CapScope, UnknownPricePolicy
from foveate.errors import CapExceeded, CapUncheckable
from tests.support.stores.ledger_records import CALL, NOON, make_call, make_cap, make_charge
from tests.support.stores.memory_ledger import InMemoryLedger, ManualSleeps

DAY = [make_cap(CapScope.DAY, 1)]
DAY_ALLOWING_UNKNOWN = [replace(DAY[0], unknown=UnknownPricePolicy.ALLOW)]


@dataclass
class FakeClock:
    """A clock that a test sets, whose sleeps end when the test advances it."""

    now: float = NOON
    sleeps: ManualSleeps = field(default_factory=ManualSleeps)

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        await self.sleeps.end()


def make_admission(ledger: InMemoryLedger, clock: FakeClock, *, lifetime_seconds: float = 1200.0) -> Admission:
    return Admission(
        ledger,
        clock=lambda: clock.now,
        options=AdmissionOptions(lease_seconds=90.0, lifetime_seconds=lifetime_seconds),
        sleep=clock.sleeps.sleep,
    )


def free_expired(ledger: InMemoryLedger, now: float) -> list[str]:
    """Free expired reservations as another process would, and return their call ids."""
    expired = [call_id for call_id, reservation in ledger.reserved.items() if reservation.expires_at <= now]
    for call_id in expired:
        del ledger.reserved[call_id]
    return expired


async def test_a_lease_is_renewed_only_while_its_call_is_in_flight() -> None:
    ledger, clock = InMemoryLedger(), FakeClock()
    admission = make_admission(ledger, clock)
    await admission.admit(CALL, Decimal("0.5"), DAY)
    assert ledger.reserved[CALL.id].expires_at == NOON + 90

    for step in range(1, 9):
        await clock.advance(30)
        assert not free_expired(ledger, clock.now)
        assert ledger.reserved[CALL.id].expires_at == NOON + 90 + 30 * step
    assert clock.sleeps.seconds == [30.0] * 9

    await admission.settle(make_charge(CALL, "0.1"))
    operations = len(ledger.operations)
    await clock.advance(30)
    assert len(ledger.operations) == operations  # no call is in flight, so nothing is renewed
    assert admission.lapsed_count == 0
    await admission.close()


async def test_all_due_leases_are_renewed_in_one_operation_and_short_calls_never() -> None:
    ledger, clock = InMemoryLedger(), FakeClock()
    admission = make_admission(ledger, clock)
    for id_ in "abc":
        await admission.admit(make_call(id_), Decimal("0.1"), DAY)
    clock.now += 25
    await admission.admit(make_call("d"), Decimal("0.1"), DAY)
    released = await admission.admit(make_call("e"), Decimal("0.1"), DAY)
    await admission.release(released)

    await clock.advance(5)

    assert [operation for operation in ledger.operations if operation.startswith("renew")] == ["renew a b c"]
    await admission.close()


async def test_after_a_stall_expired_reservations_are_reserved_again_and_fill_the_cap() -> None:
    ledger, clock = InMemoryLedger(), FakeClock()
    admission = make_admission(ledger, clock)
    await admission.admit(CALL, Decimal("0.8"), DAY)

    clock.now += 300  # this process stalls, and another one uses the freed room
    assert free_expired(ledger, clock.now) == [CALL.id]
    other_process = make_admission(ledger, FakeClock(now=clock.now))
    await other_process.admit(make_call("other"), Decimal("0.9"), DAY)

    # The next admission detects the lost lease before its renewal does.
    with pytest.raises(CapExceeded) as failure:
        await admission.admit(make_call("next"), Decimal("0.01"), DAY)
    assert failure.value.reserved == Decimal("1.7")
    with pytest.raises(CapExceeded):
        await other_process.admit(make_call("next elsewhere"), Decimal("0.01"), DAY)
    assert admission.lapsed_count == 1

    await clock.advance(0)
    assert admission.lapsed_count == 1  # counted once
    await admission.close()
    await other_process.close()


async def test_nothing_is_admitted_while_leases_cannot_be_checked() -> None:
    ledger, clock = InMemoryLedger(), FakeClock()
    admission = make_admission(ledger, clock)
    await admission.admit(CALL, Decimal("0.1"), DAY)

    ledger.failures_left = 2
    await clock.advance(91)
    with pytest.raises(CapUncheckable):
        await admission.admit(make_call("next"), Decimal("0.01"), DAY)

    assert (await admission.admit(make_call("next"), Decimal("0.01"), DAY)).is_reserved
    assert CALL.id in ledger.reserved
    assert ledger.reserved[CALL.id].expires_at == clock.now + 90
    await admission.close()


def _settle_after_expiry(ledger: InMemoryLedger, clock: FakeClock) -> None:
    clock.now += 300
    free_expired(ledger, clock.now)


def _settle_while_the_ledger_is_unavailable(ledger: InMemoryLedger, _clock: FakeClock) -> None:
    ledger.failures_left = 1


@pytest.mark.parametrize("meanwhile", [_settle_after_expiry, _settle_while_the_ledger_is_unavailable])
@pytest.mark.parametrize(("ceiling", "charge"), [("0.8", "0.8"), (None, "0")])
async def test_a_charge_without_a_price_is_the_reserved_amount_even_if_expired(
    meanwhile: Callable[[InMemoryLedger, FakeClock], None], ceiling: str | None, charge: str
) -> None:
    """Regression: nothing was charged, because the ledger had dropped the reservation."""
    ledger, clock = InMemoryLedger(), FakeClock()
    admission = make_admission(ledger, clock)
    caps = DAY if ceiling else DAY_ALLOWING_UNKNOWN
    await admission.admit(CALL, None if ceiling is None else Decimal(ceiling), caps)

    meanwhile(ledger, clock)
    await admission.settle(make_charge(CALL, None))
    assert await admission.close() == ()

    (charge_record,) = ledger.stored_charges
    assert (charge_record.dollars, charge_record.charge) == (None, Decimal(charge))


async def test_a_lease_ends_with_the_maximum_lifetime_of_a_call() -> None:
    """A call that is never settled must not block a cap for the lifetime of its process."""
    ledger, clock = InMemoryLedger(), FakeClock()
    admission = make_admission(ledger, clock, lifetime_seconds=100)
    await admission.admit(CALL, Decimal("0.8"), DAY)

    for _ in range(4):
        await clock.advance(30)

    assert ledger.reserved[CALL.id].expires_at <= NOON + 100 + 90
    operations = len(ledger.operations)
    await clock.advance(30)
    assert len(ledger.operations) == operations
    assert (await admission.settle(make_charge(CALL, "0.1"))).outcome is SettlementOutcome.RECORDED
    await admission.close()


async def test_a_call_that_ends_during_a_renewal_is_not_reserved_again() -> None:
    ledger, clock = InMemoryLedger(), FakeClock()
    admission = make_admission(ledger, clock)
    await admission.admit(CALL, Decimal("0.8"), DAY)
    ledger.pause = asyncio.Event()
    await clock.advance(60)
    settling = asyncio.create_task(admission.settle(make_charge(CALL, "0.1")))
    await asyncio.sleep(0)
    ledger.reserved.clear()  # the charge is recorded before the renewal
    ledger.pause.set()
    await settling
    await clock.advance(0)

    assert not ledger.reserved
    assert admission.lapsed_count == 0
    await admission.close()


async def test_nothing_stays_reserved_for_a_call_that_ends_while_it_is_reserved_again() -> None:
    """Regression: it did for the duration of a lease after a stall."""
    ledger, clock = InMemoryLedger(), FakeClock()
    admission = make_admission(ledger, clock)
    await admission.admit(CALL, Decimal("0.8"), DAY)
    assert free_expired(ledger, clock.now + 300) == [CALL.id]
    renewing, reserving = asyncio.Event(), asyncio.Event()
    ledger.pause = renewing
    await clock.advance(300)
    ledger.pause = reserving
    renewing.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert ledger.operations[-1] == f"reserve {CALL.id}"
    ledger.pause = None
    assert (await admission.settle(make_charge(CALL, "0.1"))).outcome is SettlementOutcome.RECORDED
    reserving.set()
    await clock.advance(0)

    assert not ledger.reserved
    await admission.close()
