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
from tests.support.stores.memory_ledger import Books, Naps

DAY = [make_cap(CapScope.DAY, 1)]
ALLOWING = [replace(DAY[0], unknown=UnknownPricePolicy.ALLOW)]


@dataclass
class Time:
    """A clock set by the test, whose sleeps end when it says so."""

    now: float = NOON
    naps: Naps = field(default_factory=Naps)

    async def passes(self, seconds: float) -> None:
        self.now += seconds
        await self.naps.end()


def admission(books: Books, time: Time, *, lifetime_seconds: float = 1200.0) -> Admission:
    return Admission(
        books,
        clock=lambda: time.now,
        options=AdmissionOptions(lease_seconds=90.0, lifetime_seconds=lifetime_seconds),
        sleep=time.naps.sleep,
    )


def freed(books: Books, now: float) -> list[str]:
    """Calls whose expired reservations another process has freed."""
    gone = [call_id for call_id, one in books.reserved.items() if one.expires_at <= now]
    for call_id in gone:
        del books.reserved[call_id]
    return gone


async def test_a_lease_is_renewed_while_its_call_goes_on_and_no_longer() -> None:
    books, time = Books(), Time()
    ours = admission(books, time)
    await ours.admit(CALL, Decimal("0.5"), DAY)
    assert books.reserved[CALL.id].expires_at == NOON + 90

    for step in range(1, 9):
        await time.passes(30)
        assert not freed(books, time.now)
        assert books.reserved[CALL.id].expires_at == NOON + 90 + 30 * step
    assert time.naps.asked == [30.0] * 9

    await ours.settle(make_charge(CALL, "0.1"))
    asked = len(books.asked)
    await time.passes(30)
    assert len(books.asked) == asked  # nothing is under way, and nobody asks
    assert ours.lapsed == 0
    await ours.close()


async def test_all_calls_that_are_due_are_renewed_in_one_go_and_short_ones_never() -> None:
    books, time = Books(), Time()
    ours = admission(books, time)
    for id_ in "abc":
        await ours.admit(make_call(id_), Decimal("0.1"), DAY)
    time.now += 25
    await ours.admit(make_call("d"), Decimal("0.1"), DAY)
    released = await ours.admit(make_call("e"), Decimal("0.1"), DAY)
    await ours.release(released)

    await time.passes(5)

    assert [asked for asked in books.asked if asked.startswith("renew")] == ["renew a b c"]
    await ours.close()


async def test_after_a_stall_what_was_freed_is_reserved_once_more_and_caps_are_found_full() -> None:
    books, time = Books(), Time()
    ours = admission(books, time)
    await ours.admit(CALL, Decimal("0.8"), DAY)

    time.now += 300  # nothing of ours runs; others are in want of room, and take it
    assert freed(books, time.now) == [CALL.id]
    others = admission(books, Time(now=time.now))
    await others.admit(make_call("other"), Decimal("0.9"), DAY)

    # Before its renewal could be: whoever asks first here finds out.
    with pytest.raises(CapExceeded) as refused:
        await ours.admit(make_call("next"), Decimal("0.01"), DAY)
    assert refused.value.reserved == Decimal("1.7")
    with pytest.raises(CapExceeded):
        await others.admit(make_call("next there"), Decimal("0.01"), DAY)
    assert ours.lapsed == 1

    await time.passes(0)
    assert ours.lapsed == 1  # once is enough
    await ours.close()
    await others.close()


async def test_nothing_is_admitted_while_leases_cannot_be_checked() -> None:
    books, time = Books(), Time()
    ours = admission(books, time)
    await ours.admit(CALL, Decimal("0.1"), DAY)

    books.gone = 2
    await time.passes(91)
    with pytest.raises(CapUncheckable):
        await ours.admit(make_call("next"), Decimal("0.01"), DAY)

    assert (await ours.admit(make_call("next"), Decimal("0.01"), DAY)).is_reserved
    assert CALL.id in books.reserved
    assert books.reserved[CALL.id].expires_at == time.now + 90
    await ours.close()


def _settled_late(books: Books, time: Time) -> None:
    time.now += 300
    freed(books, time.now)


def _settled_while_the_ledger_is_away(books: Books, _time: Time) -> None:
    books.gone = 1


@pytest.mark.parametrize("meanwhile", [_settled_late, _settled_while_the_ledger_is_away])
@pytest.mark.parametrize(("ceiling", "charge"), [("0.8", "0.8"), (None, "0")])
async def test_a_charge_without_a_price_is_the_reserved_amount_even_if_expired(
    meanwhile: Callable[[Books, Time], None], ceiling: str | None, charge: str
) -> None:
    """Regression: nothing was charged, because the ledger had dropped the reservation."""
    books, time = Books(), Time()
    ours = admission(books, time)
    caps = DAY if ceiling else ALLOWING
    await ours.admit(CALL, None if ceiling is None else Decimal(ceiling), caps)

    meanwhile(books, time)
    await ours.settle(make_charge(CALL, None))
    assert await ours.close() == ()

    (kept,) = books.entries_
    assert (kept.dollars, kept.charge) == (None, Decimal(charge))


async def test_a_lease_ends_with_the_longest_time_that_a_call_may_take() -> None:
    """A call that is never settled must not block a cap for the lifetime of its process."""
    books, time = Books(), Time()
    ours = admission(books, time, lifetime_seconds=100)
    await ours.admit(CALL, Decimal("0.8"), DAY)

    for _ in range(4):
        await time.passes(30)

    assert books.reserved[CALL.id].expires_at <= NOON + 100 + 90
    asked = len(books.asked)
    await time.passes(30)
    assert len(books.asked) == asked
    assert (await ours.settle(make_charge(CALL, "0.1"))).outcome is SettlementOutcome.BOOKED
    await ours.close()


async def test_a_call_that_ends_while_leases_are_renewed_is_not_reserved_for_again() -> None:
    books, time = Books(), Time()
    ours = admission(books, time)
    await ours.admit(CALL, Decimal("0.8"), DAY)
    books.pause = asyncio.Event()
    await time.passes(60)
    settling = asyncio.create_task(ours.settle(make_charge(CALL, "0.1")))
    await asyncio.sleep(0)
    books.reserved.clear()  # the bill is booked before the renewal is
    books.pause.set()
    await settling
    await time.passes(0)

    assert not books.reserved
    assert ours.lapsed == 0
    await ours.close()


async def test_nothing_stays_reserved_for_a_call_that_ends_while_it_is_reserved_for_once_more() -> None:
    """Regression: it did for the duration of a lease after a stall."""
    books, time = Books(), Time()
    ours = admission(books, time)
    await ours.admit(CALL, Decimal("0.8"), DAY)
    assert freed(books, time.now + 300) == [CALL.id]
    renewing, reserving = asyncio.Event(), asyncio.Event()
    books.pause = renewing
    await time.passes(300)
    books.pause = reserving
    renewing.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert books.asked[-1] == f"reserve {CALL.id}"
    books.pause = None
    assert (await ours.settle(make_charge(CALL, "0.1"))).outcome is SettlementOutcome.BOOKED
    reserving.set()
    await time.passes(0)

    assert not books.reserved
    await ours.close()
