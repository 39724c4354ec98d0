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
from tests.unit.engine.test_observer import BODY, RecordingObserver, incoming

FAILING_STATUS = 410


class RecordingStore(InMemory):
    """A session store that counts the rows per call; hashes in `never` cannot be stored."""

    def __init__(self, *, never: Sequence[bytes] = (), error: Exception | None = None) -> None:
        super().__init__()
        self.at_once: list[int] = []
        self.never = never
        self.error = error

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        self.at_once.append(len(rows))
        if self.error is not None:
            raise self.error
        if any(digest in self.never for row in rows if isinstance(row, CountUpdate) for digest in row.counts):
            raise ValueError("it cannot be kept")
        await super().save(rows)


class FinishObserver(RecordingObserver):
    """Signals that an exchange has finished."""

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = asyncio.Event()

    def on_finished(self, exchange: Exchange) -> None:
        super().on_finished(exchange)
        self.has_ended.set()
        if exchange.status == FAILING_STATUS:
            raise RuntimeError("gone")


class QueueSetup:
    """Finished exchanges, and what became of them."""

    def __init__(
        self, ledger: Books, session_store: RecordingStore | None = None, *, seconds: float = 60.0
    ) -> None:
        self.ledger, self.session_store, self.observer = (
            ledger,
            session_store or RecordingStore(),
            FinishObserver(),
        )
        self.queue = CompletionQueue(admission(ledger), self.session_store, interval_seconds=seconds)
        self.remembered: list[str] = []
        self.stored: list[tuple[str, bool]] = []

    def finish_exchange(self, id_: str, *, is_broken: bool = False, fails: bool = False) -> Exchange:
        """Finish one with a charge and a count to be stored, both under this name."""
        request = parse_request(BODY, incoming().api_format)
        context = RequestContext(
            incoming=incoming(), options=AgentOptions(), received_at=0.0, original=request, request=request
        )
        rows = CountUpdate(agent="ana", counter="c", counts={id_.encode(): b"1"})
        context.pending_writes.append(
            PendingWrite(
                lambda: self._alone(rows),
                lambda: rows,
                lambda is_kept: self.stored.append((id_, is_kept)),
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
            observer=self.observer,
            session_hooks=(lambda _: self.remembered.append(id_),),
            completer=self.queue,
        )
        exchange.charge = make_charge(make_call(id_), "0.25")
        exchange.finish(is_interrupted=is_broken)
        return exchange

    async def _alone(self, rows: CountUpdate) -> None:
        if any(digest in self.session_store.never for digest in rows.counts):
            raise RuntimeError("never")
        await self.session_store.save_counts(rows.agent, rows.counts, rows.counter)


async def test_exchanges_of_a_batch_are_recorded_and_stored_together() -> None:
    setup = QueueSetup(Books(), seconds=0.01)
    for id_ in "abc":
        setup.finish_exchange(id_)
    assert (setup.ledger.asked, setup.remembered) == ([], [])
    await asyncio.sleep(0)
    assert setup.remembered == ["a", "b", "c"]  # before any of them sends another request
    await asyncio.wait_for(setup.observer.has_ended.wait(), 30)
    setup.finish_exchange("d")
    await setup.queue.close()

    assert setup.ledger.asked == ["settle a b c", "settle d"]
    assert setup.session_store.at_once == [3, 1]
    assert setup.stored == [(id_, True) for id_ in "abcd"]
    assert setup.observer.events == ["ended with 0"] * 4


async def test_waiting_for_an_exchange_flushes_the_batch() -> None:
    setup = QueueSetup(Books())
    setup.finish_exchange("a")
    await asyncio.wait_for(setup.finish_exchange("b", is_broken=True).wait_until_completed(), 30)

    assert setup.ledger.booked == ["a", "b"]


async def test_draining_waits_for_running_completions() -> None:
    setup = QueueSetup(Books(pause=asyncio.Event()))
    setup.finish_exchange("a")
    caught_up = asyncio.ensure_future(setup.queue.drain_all_processes())
    await asyncio.sleep(0.1)
    assert not caught_up.done()
    assert setup.ledger.pause is not None
    setup.ledger.pause.set()
    await asyncio.wait_for(caught_up, 30)

    assert setup.ledger.booked == ["a"]


async def test_one_failure_does_not_affect_the_others() -> None:
    never = OverflowError("too many")
    setup = QueueSetup(Books(never={"b": never}), RecordingStore(never=[b"c"]))
    for id_ in "abcd":
        setup.finish_exchange(id_, fails=id_ == "a").status = FAILING_STATUS if id_ == "b" else 0
    await setup.queue.close()

    assert setup.ledger.booked == ["a", "c", "d"]
    assert {hash_ for _, hash_, _ in setup.session_store.counted} == {b"a", b"b", b"d"}
    assert sorted(setup.observer.events) == [
        *["ended with 0"] * 3,
        f"ended with {FAILING_STATUS}",
        "function failed: RuntimeError: a",
        "keep failed: RuntimeError: never",
        "method failed: RuntimeError: gone",
    ]


async def test_an_invalid_write_is_reported_and_does_not_affect_the_others() -> None:
    """Defect: nothing was stored of any request in the same batch, and nothing was reported."""
    setup = QueueSetup(Books())

    def never() -> CountUpdate:
        raise OverflowError("too many")

    async def alone() -> None:
        never()

    exchange = setup.finish_exchange("a")
    assert exchange.context is not None
    exchange.context.pending_writes[:] = [PendingWrite(alone, never)]
    setup.finish_exchange("b")
    await setup.queue.close()

    assert {hash_ for _, hash_, _ in setup.session_store.counted} == {b"b"}
    assert "keep failed: OverflowError: too many" in setup.observer.events


async def test_an_unavailable_store_is_reported_per_request_and_charges_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Defect: a full disk was logged twice per request, each time with a traceback."""
    away = StoreUnavailable("/data", "is locked")
    setup = QueueSetup(Books(gone=1), RecordingStore(error=away))
    for id_ in "ab":
        context = setup.finish_exchange(id_).context
        assert context is not None
        context.pending_writes *= 2
    await setup.queue.close()

    assert (setup.ledger.asked, setup.ledger.booked) == (["settle a b"], [])
    assert setup.stored == []
    assert [event for event in setup.observer.events if event.startswith("keep failed: StoreUnavailable")] != []
    assert len(setup.observer.events) == 4
    assert caplog.text.count("keep failed: StoreUnavailable: /data") == 2
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("is_noted", [True, False])
async def test_a_reservation_is_released_unless_the_charge_is_unknown(is_noted: bool) -> None:
    """What may be charged blocks others under a cap until it expires."""
    ledger = Books()

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
        completer=CompletionQueue(admission(ledger)),
        reservation=AdmittedCall(call=make_call("a"), is_reserved=True),
        observer=NO_OBSERVER,
    )
    exchange.finish()
    await exchange.wait_until_completed()

    assert ledger.asked == (["release a"] if is_noted else [])


class FailingAdmission(Admission):
    """Records nothing, and releases reservations."""

    async def settle_all(self, charges: Sequence[Charge]) -> Sequence[Settlement]:
        raise RuntimeError(f"{len(charges)} bills")


async def test_a_reservation_is_released_even_if_other_charges_cannot_be_recorded() -> None:
    """Defect: it blocked others under a cap for as long as a call may take."""
    ledger = Books()
    queue, observer = CompletionQueue(FailingAdmission(ledger, clock=lambda: 0.0)), RecordingObserver()
    for id_, charge in (("a", make_charge(make_call("a"), "0.25")), ("b", None)):
        exchange = Exchange(
            incoming(),
            None,
            UpstreamRequest(body=BODY),
            background_hooks=(),
            clock=lambda: 0.0,
            observer=observer,
            completer=queue,
            reservation=AdmittedCall(call=make_call(id_), is_reserved=True),
        )
        exchange.charge = charge
        exchange.finish()
    await queue.close()

    assert ledger.asked == ["release b"]
    assert observer.events == [*["book failed: RuntimeError: 1 bills"] * 2, *["ended with 0"] * 2]
