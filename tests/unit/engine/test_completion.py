"""Finished exchanges are completed in batches; nothing is lost, and one failure does not affect the others."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from foveate.cost.admission import Admission, AdmittedCall, Settlement
from foveate.cost.ledger import Charge
from foveate.engine.completion import CompletionQueue
from foveate.engine.context import RequestContext
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.options import AgentOptions
from foveate.engine.request import UpstreamRequest
from foveate.errors import StoreUnavailable
from foveate.formats import parse_request
from foveate.session.store import CountUpdate, PendingWrite, SessionWrite
from tests.support.stores.ledger_records import make_call, make_charge
from tests.support.stores.memory_ledger import Books, admission
from tests.support.stores.memory_session_store import InMemory
from tests.unit.engine.test_observer import BODY, Watching, incoming

GONE = 410


class Shelf(InMemory):
    """Turns that remember how many rows they were given at once; `never` holds hashes that cannot be kept."""

    def __init__(self, *, never: Sequence[bytes] = (), error: Exception | None = None) -> None:
        super().__init__()
        self.at_once: list[int] = []
        self.never = never
        self.error = error

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        self.at_once.append(len(rows))
        if self.error is not None:
            raise self.error
        if any(one in self.never for row in rows if isinstance(row, CountUpdate) for one in row.counts):
            raise ValueError("it cannot be kept")
        await super().save(rows)


class Ending(Watching):
    """Tells when something has come to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = asyncio.Event()

    def on_finished(self, exchange: Exchange) -> None:
        super().on_finished(exchange)
        self.has_ended.set()
        if exchange.status == GONE:
            raise RuntimeError("gone")


class Desk:
    """Exchanges that are over, and what becomes of them."""

    def __init__(self, books: Books, shelf: Shelf | None = None, *, seconds: float = 60.0) -> None:
        self.books, self.shelf, self.watching = books, shelf or Shelf(), Ending()
        self.behind = CompletionQueue(admission(books), self.shelf, interval_seconds=seconds)
        self.remembered: list[str] = []
        self.kept: list[tuple[str, bool]] = []

    def over(self, id_: str, *, is_broken: bool = False, fails: bool = False) -> Exchange:
        """One that has a bill and a count to be kept, both under this name."""
        request = parse_request(BODY, incoming().api_format)
        context = RequestContext(
            incoming=incoming(), options=AgentOptions(), received_at=0.0, original=request, request=request
        )
        rows = CountUpdate(agent="ana", counter="c", counts={id_.encode(): b"1"})
        context.pending_writes.append(
            PendingWrite(
                lambda: self._alone(rows),
                lambda: rows,
                lambda is_kept: self.kept.append((id_, is_kept)),
            )
        )

        def settle(_: Exchange) -> None:
            if fails:
                raise RuntimeError(id_)

        exchange = Exchange(
            incoming(),
            context,
            UpstreamRequest(body=BODY),
            background_hooks=(settle,),
            clock=lambda: 0.0,
            observer=self.watching,
            session_hooks=(lambda _: self.remembered.append(id_),),
            completer=self.behind,
        )
        exchange.charge = make_charge(make_call(id_), "0.25")
        exchange.finish(is_interrupted=is_broken)
        return exchange

    async def _alone(self, rows: CountUpdate) -> None:
        if any(one in self.shelf.never for one in rows.counts):
            raise RuntimeError("never")
        await self.shelf.save_counts(rows.agent, rows.counts, rows.counter)


async def test_exchanges_of_a_batch_are_recorded_and_stored_together() -> None:
    desk = Desk(Books(), seconds=0.01)
    for id_ in "abc":
        desk.over(id_)
    assert (desk.books.asked, desk.remembered) == ([], [])
    await asyncio.sleep(0)
    assert desk.remembered == ["a", "b", "c"]  # before any of them sends something more
    await asyncio.wait_for(desk.watching.has_ended.wait(), 30)
    desk.over("d")
    await desk.behind.close()

    assert desk.books.asked == ["settle a b c", "settle d"]
    assert desk.shelf.at_once == [3, 1]
    assert desk.kept == [(id_, True) for id_ in "abcd"]
    assert desk.watching.told == ["ended with 0"] * 4


async def test_waiting_for_an_exchange_flushes_the_batch() -> None:
    desk = Desk(Books())
    desk.over("a")
    await asyncio.wait_for(desk.over("b", is_broken=True).wait_until_completed(), 30)

    assert desk.books.booked == ["a", "b"]


async def test_draining_waits_for_running_completions() -> None:
    desk = Desk(Books(pause=asyncio.Event()))
    desk.over("a")
    caught_up = asyncio.ensure_future(desk.behind.drain_all_processes())
    await asyncio.sleep(0.1)
    assert not caught_up.done()
    assert desk.books.pause is not None
    desk.books.pause.set()
    await asyncio.wait_for(caught_up, 30)

    assert desk.books.booked == ["a"]


async def test_one_failure_does_not_affect_the_others() -> None:
    never = OverflowError("too many")
    desk = Desk(Books(never={"b": never}), Shelf(never=[b"c"]))
    for id_ in "abcd":
        desk.over(id_, fails=id_ == "a").status = GONE if id_ == "b" else 0
    await desk.behind.close()

    assert desk.books.booked == ["a", "c", "d"]
    assert {hash_ for _, hash_, _ in desk.shelf.counted} == {b"a", b"b", b"d"}
    assert sorted(desk.watching.told) == [
        *["ended with 0"] * 3,
        f"ended with {GONE}",
        "function failed: RuntimeError: a",
        "keep failed: RuntimeError: never",
        "method failed: RuntimeError: gone",
    ]


async def test_an_invalid_write_is_reported_and_does_not_affect_the_others() -> None:
    """Defect: nothing was kept of any request that was over by the same beat, and nobody was told."""
    desk = Desk(Books())

    def never() -> CountUpdate:
        raise OverflowError("too many")

    async def alone() -> None:
        never()

    exchange = desk.over("a")
    assert exchange.context is not None
    exchange.context.pending_writes[:] = [PendingWrite(alone, never)]
    desk.over("b")
    await desk.behind.close()

    assert {hash_ for _, hash_, _ in desk.shelf.counted} == {b"b"}
    assert "keep failed: OverflowError: too many" in desk.watching.told


async def test_an_unavailable_store_is_reported_per_request_and_charges_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Defect: a full disk was told twice of each request, each time with twenty lines of where in the code."""
    away = StoreUnavailable("/data", "is locked")
    desk = Desk(Books(gone=1), Shelf(error=away))
    for id_ in "ab":
        context = desk.over(id_).context
        assert context is not None
        context.pending_writes *= 2
    await desk.behind.close()

    assert (desk.books.asked, desk.books.booked) == (["settle a b"], [])
    assert desk.kept == []
    assert [told for told in desk.watching.told if told.startswith("keep failed: StoreUnavailable")] != []
    assert len(desk.watching.told) == 4
    assert caplog.text.count("keep failed: StoreUnavailable: /data") == 2
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("is_noted", [True, False])
async def test_a_reservation_is_released_unless_the_charge_is_unknown(is_noted: bool) -> None:
    """What may be billed stands in the way of others under a cap, until its time is over."""
    books = Books()

    def note(_: Exchange) -> None:
        if not is_noted:
            raise RuntimeError("no")

    exchange = Exchange(
        msgspec.structs.replace(incoming(), id="a"),
        None,
        UpstreamRequest(body=BODY),
        background_hooks=(),
        clock=lambda: 0.0,
        record_charge=note,
        completer=CompletionQueue(admission(books)),
        reservation=AdmittedCall(call=make_call("a"), is_reserved=True),
        observer=NO_OBSERVER,
    )
    exchange.finish()
    await exchange.wait_until_completed()

    assert books.asked == (["release a"] if is_noted else [])


class Blot(Admission):
    """Books nothing, and frees what was reserved."""

    async def settle_all(self, charges: Sequence[Charge]) -> Sequence[Settlement]:
        raise RuntimeError(f"{len(charges)} bills")


async def test_a_reservation_is_released_even_if_other_charges_cannot_be_recorded() -> None:
    """Defect: it stood in the way of others under a cap for as long as a call may take."""
    books = Books()
    behind, watching = CompletionQueue(Blot(books, clock=lambda: 0.0)), Watching()
    for id_, bill in (("a", make_charge(make_call("a"), "0.25")), ("b", None)):
        exchange = Exchange(
            incoming(),
            None,
            UpstreamRequest(body=BODY),
            background_hooks=(),
            clock=lambda: 0.0,
            observer=watching,
            completer=behind,
            reservation=AdmittedCall(call=make_call(id_), is_reserved=True),
        )
        exchange.charge = bill
        exchange.finish()
    await behind.close()

    assert books.asked == ["release b"]
    assert watching.told == [*["book failed: RuntimeError: 1 bills"] * 2, *["ended with 0"] * 2]
