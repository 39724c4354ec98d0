"""Admission under caps, and charges while the ledger is unavailable."""

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.cost.admission import AdmittedCall, Settlement, SettlementOutcome
from foveate.cost.caps import Cap, CapScope, UnknownPricePolicy, list_accounts
from foveate.cost.ledger import Reservation
from foveate.errors import CapExceeded, CapUncheckable
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.ledger_records import CALL, NOON, make_call, make_cap, make_charge, make_standing
from tests.support.stores.memory_ledger import Books, Naps, admission

GONE = "/data/foveate.sqlite: is locked by another process"


BOOKED = Settlement(outcome=SettlementOutcome.BOOKED)
DAY = [make_cap(CapScope.DAY, 1)]


async def test_without_caps_nothing_is_reserved_and_the_charge_is_recorded() -> None:
    books = Books()
    ours = admission(books)

    assert await ours.admit(CALL, None, []) == AdmittedCall(call=CALL)
    assert await ours.settle(make_charge(CALL, "0.2")) == BOOKED
    assert books.asked == [f"settle {CALL.id}"]
    assert await ours.close() == ()


async def test_under_a_cap_what_it_may_cost_is_reserved_until_it_is_settled() -> None:
    books = Books()
    ours = admission(books)

    admitted = await ours.admit(CALL, Decimal("0.5"), DAY)
    assert admitted == AdmittedCall(call=CALL, ceiling=Decimal("0.5"), is_reserved=True)
    assert books.reserved[CALL.id] == Reservation(
        call_id=CALL.id,
        dollars=Decimal("0.5"),
        accounts=list_accounts(CALL),  # also where no cap is yet: one may come while the call goes on
        limits={"day 2026-11-15": Decimal(1)},
        expires_at=NOON + 60.0,
    )
    assert await ours.settle(make_charge(CALL, "0.2")) == BOOKED
    assert not books.reserved


async def test_a_cap_without_room_rejects_and_names_itself_and_all_amounts() -> None:
    ours = admission(Books())
    caps = [*DAY, make_cap(CapScope.AGENT, 5), make_cap(CapScope.CALL, 1)]
    await ours.admit(make_call("a"), Decimal("0.5"), caps)
    await ours.settle(make_charge(make_call("b"), "0.3"))

    with pytest.raises(CapExceeded) as refused:
        await ours.admit(CALL, Decimal("0.25"), caps)

    assert str(refused.value) == (
        "this call may cost $0.25, and the cap on a day is $1.00, of which $0.30 are spent and $0.50 reserved"
        " for calls under way; try again when calls under way are done, or raise the cap"
    )
    told = refused.value
    assert (told.cap, told.limit, told.spent, told.reserved, told.ceiling) == (
        "the cap on a day",
        *map(Decimal, ("1", "0.3", "0.5", "0.25")),
    )


async def test_beyond_the_warning_level_the_call_is_let_through_with_a_warning() -> None:
    ours = admission(Books())

    assert (await ours.admit(make_call("a"), Decimal("0.79"), DAY)).warnings == ()
    (warning,) = (await ours.admit(make_call("b"), Decimal("0.01"), DAY)).warnings

    assert (warning.cap, warning.balance) == (DAY[0], make_standing(0, "0.8"))


async def test_a_call_of_unknown_price_is_refused_unless_the_cap_allows_it() -> None:
    books = Books()
    ours = admission(books)
    allows = [Cap(scope=CapScope.DAY, dollars=Decimal(1), unknown=UnknownPricePolicy.ALLOW)]

    with pytest.raises(CapUncheckable, match="price of claude-opus-5-5 is not known"):
        await ours.admit(CALL, None, DAY)

    assert (await ours.admit(make_call("a"), None, allows)).is_reserved
    await ours.settle(make_charge(make_call("b"), 1))
    with pytest.raises(CapExceeded, match="costs nobody knows how much"):
        await ours.admit(make_call("c"), None, allows)


async def test_a_cap_that_cannot_be_checked_refuses_and_says_why() -> None:
    books = Books(gone=1)
    ours = admission(books)

    with pytest.raises(CapUncheckable) as refused:
        await ours.admit(CALL, Decimal("0.5"), [make_cap(CapScope.TOTAL, 9), *DAY])

    assert str(refused.value) == (
        f"the cap on a day ($1.00) cannot be checked: {GONE}; bring the store back, or take the cap away"
    )
    assert (await ours.admit(CALL, Decimal("0.5"), DAY)).is_reserved


async def test_without_a_ledger_only_what_needs_none_is_let_through() -> None:
    books = Books(gone=1e9)
    ours = admission(books)

    for caps in ([], [make_cap(CapScope.CALL, 1)], [make_cap(CapScope.DAY, 1, agent="bob")]):
        assert not (await ours.admit(CALL, Decimal("0.5"), caps)).is_reserved
    assert not (await ours.admit(CALL, Decimal(0), DAY)).is_reserved
    with pytest.raises(CapExceeded, match="the cap on a call"):
        await ours.admit(CALL, Decimal(2), [make_cap(CapScope.CALL, 1)])
    assert books.asked == []


async def test_what_was_reserved_is_released_and_what_was_not_is_not_asked_for() -> None:
    books = Books()
    ours = admission(books)

    await ours.release(await ours.admit(CALL, Decimal("0.5"), DAY))
    await ours.release(await ours.admit(CALL, Decimal("0.5"), []))

    assert not books.reserved
    assert books.asked == [f"reserve {CALL.id}", f"release {CALL.id}"]


async def test_a_release_that_cannot_be_written_expires() -> None:
    books = Books()
    ours = admission(books)
    admitted = await ours.admit(CALL, Decimal("0.5"), DAY)
    books.gone = 1

    await ours.release(admitted)

    assert CALL.id in books.reserved
    assert ours.problem == GONE
    await ours.settle(make_charge(make_call("next"), 1))
    assert not ours.problem


async def test_a_charge_waits_for_the_ledger_and_is_recorded_when_it_is_back() -> None:
    books, naps = Books(gone=3), Naps()
    ours = admission(books, naps)

    for id_ in "abc":
        assert await ours.settle(make_charge(make_call(id_), 1)) == Settlement(
            outcome=SettlementOutcome.WAITING, problem=GONE
        )
    assert (ours.waiting, ours.problem) == (3, GONE)
    assert books.asked == ["settle a"]  # those behind it do not wait for what does not answer

    await naps.end()
    await naps.end()
    assert (ours.waiting, books.booked) == (3, [])
    await naps.end()

    assert books.booked == ["a", "b", "c"]
    assert (ours.waiting, ours.lost, ours.problem) == (0, 0, "")
    assert naps.asked == [1.0, 2.0, 4.0]
    assert await ours.settle(make_charge(make_call("d"), 1)) == BOOKED
    assert await ours.close() == ()


async def test_no_cap_is_checked_while_charges_are_missing_from_accounts() -> None:
    books = Books(gone=2)
    ours = admission(books)
    await ours.settle(make_charge(make_call("a"), "0.8"))

    with pytest.raises(CapUncheckable, match="cannot be checked: /data"):
        await ours.admit(CALL, Decimal("0.3"), DAY)
    with pytest.raises(CapExceeded) as refused:  # the ledger is back, and the bill is written first
        await ours.admit(CALL, Decimal("0.3"), DAY)

    assert refused.value.spent == Decimal("0.8")
    await ours.close()


async def test_more_charges_than_can_wait_are_lost_and_reported() -> None:
    books = Books(gone=2)
    ours = admission(books, most_waiting=2)

    outcomes = [(await ours.settle(make_charge(make_call(id_), 1))).outcome for id_ in "abcd"]

    assert outcomes == [SettlementOutcome.WAITING] * 2 + [SettlementOutcome.LOST] * 2
    assert (ours.waiting, ours.lost) == (2, 2)
    assert [one.call.id for one in await ours.close()] == ["a", "b"]


async def test_what_waits_is_tried_once_more_on_closing() -> None:
    books = Books(gone=1)
    ours = admission(books)
    await ours.settle(make_charge(make_call("a"), 1))
    await ours.settle(make_charge(make_call("b"), 1))

    assert await ours.close() == ()
    assert books.booked == ["a", "b"]


async def test_a_charge_that_is_settled_twice_is_recorded_once() -> None:
    books = Books()
    ours = admission(books)

    assert await ours.settle(make_charge(CALL, 1)) == BOOKED
    assert await ours.settle(make_charge(CALL, 1)) == Settlement(outcome=SettlementOutcome.KNOWN)


async def given_up(work: "asyncio.Task[object]") -> None:
    """Cancel the caller after the operation has started."""
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_a_cancelled_settlement_loses_nothing() -> None:
    books, naps = Books(pause=asyncio.Event()), Naps()
    ours = admission(books, naps)

    await given_up(asyncio.create_task(ours.settle(make_charge(CALL, 1))))
    assert ours.waiting == 1
    assert books.pause
    books.pause.set()
    await naps.end()

    assert books.booked == [CALL.id]
    assert ours.waiting == 0


async def test_a_cancelled_reservation_leaves_nothing_reserved() -> None:
    books, naps = Books(pause=asyncio.Event()), Naps()
    ours = admission(books, naps)

    await given_up(asyncio.create_task(ours.admit(CALL, Decimal("0.5"), DAY)))
    assert books.pause
    books.pause.set()
    await books.reserve(  # as a database does that was already about it
        Reservation(
            call_id=CALL.id, dollars=Decimal("0.5"), accounts=["day 2026-11-15"], limits={}, expires_at=0.0
        ),
        now=NOON,
    )
    await naps.end()

    assert not books.reserved
    await ours.close()


async def test_a_cancelled_release_is_completed() -> None:
    books = Books()
    ours = admission(books)
    admitted = await ours.admit(CALL, Decimal("0.5"), DAY)
    books.pause = asyncio.Event()

    await given_up(asyncio.create_task(ours.release(admitted)))
    books.pause.set()
    await ours.close()

    assert not books.reserved


@settings(max_examples=limit_examples(100))
@given(st.lists(st.sampled_from(["bill", "outage", "end of a pause", "give up"]), max_size=30))
def test_every_charge_is_recorded_once_or_reported_as_lost(
    steps: list[str],
) -> None:
    async def check() -> None:
        books, naps = Books(), Naps()
        ours = admission(books, naps, most_waiting=4)
        came: list[str] = []
        told_lost = 0
        for number, step in enumerate(steps):
            if step in ("bill", "give up"):
                came.append(f"{number:03}")
                settling = asyncio.create_task(ours.settle(make_charge(make_call(came[-1]), 1)))
                if step == "give up":
                    books.pause = asyncio.Event()
                    await asyncio.sleep(0)
                    settling.cancel()
                    books.pause.set()
                (done,) = await asyncio.gather(settling, return_exceptions=True)
                told_lost += isinstance(done, Settlement) and done.outcome is SettlementOutcome.LOST
                books.pause = None
            elif step == "outage":
                books.gone = 2
            else:
                await naps.end()
        books.gone = 0
        assert await ours.close() == ()
        assert len(books.booked) == len(set(books.booked)) == len(came) - ours.lost
        assert set(books.booked) <= set(came)
        assert ours.lost >= told_lost

    asyncio.run(check())


async def test_waiting_charges_are_recorded_together_before_a_cap_is_checked() -> None:
    """Regression: each was written alone, and the first caller after an outage waited for thousands."""
    books = Books(gone=1)
    ours = admission(books, most_waiting=1_000)
    for number in range(300):
        await ours.settle(make_charge(make_call(f"{number:03}"), "0.001"))
    assert ours.waiting == 300
    await ours.admit(CALL, Decimal("0.5"), DAY)

    assert len(books.entries_) == 300
    assert len(books.asked) == 4  # the first of them in vain, two times all that go together, and the call
    await ours.close()
