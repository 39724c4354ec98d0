"""Finished exchanges are completed in batches; nothing is lost, and one failure does not affect the others."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise

import msgspec
import pytest

from foveate.cost.admission import Admission, AdmittedCall, Settlement
from foveate.cost.ledger import Charge
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.options import AgentOptions
from foveate.engine.request import UpstreamRequest
from foveate.engine.request_context import CostFields, RequestContext
from foveate.errors import StoreUnavailable
from foveate.formats import parse_request
from foveate.session.store import CountUpdate, PendingWrite, SessionWrite
from tests.support.oracles.engine_observers import EventObserver
from tests.support.scenarios.incoming_requests import BODY, make_incoming_request
from tests.support.servers.scripted_http import wait_until
from tests.support.stores.ledger_records import make_call, make_charge
from tests.support.stores.memory_ledger import InMemoryLedger, make_admission, make_recorder
from tests.support.stores.memory_session_store import InMemorySessionStore

FAILING_STATUS = 410


class RecordingStore(InMemorySessionStore):
    """A session store that records the sizes of batches; hashes in `rejected` cannot be stored."""

    def __init__(self, *, rejected: Sequence[bytes] = (), error: Exception | None = None) -> None:
        super().__init__()
        self.batch_sizes: list[int] = []
        self.rejected = rejected
        self.error = error

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        self.batch_sizes.append(len(rows))
        if self.error is not None:
            raise self.error
        if any(
            digest in self.rejected for row in rows if isinstance(row, CountUpdate) for digest in row.counts
        ):
            raise ValueError("it cannot be kept")
        await super().save(rows)


class FinishObserver(EventObserver):
    """Signals that an exchange has finished."""

    def __init__(self) -> None:
        super().__init__()
        self.has_finished = asyncio.Event()

    def on_finished(self, exchange: Exchange) -> None:
        super().on_finished(exchange)
        self.has_finished.set()
        if exchange.status == FAILING_STATUS:
            raise RuntimeError("gone")


class QueueSetup:
    """A completion queue, and finished exchanges for it."""

    def __init__(
        self,
        ledger: InMemoryLedger,
        session_store: RecordingStore | None = None,
        *,
        seconds: float = 60.0,
        spacing_seconds: float = 0.0,
        sessions_spacing_seconds: float = 0.0,
        has_other_gateways: bool = False,
    ) -> None:
        self.ledger, self.session_store, self.observer = (
            ledger,
            session_store or RecordingStore(),
            FinishObserver(),
        )
        self.queue = CompletionQueue(
            make_recorder(make_admission(ledger)),
            self.session_store,
            interval_seconds=seconds,
            charges_spacing_seconds=spacing_seconds,
            sessions_spacing_seconds=sessions_spacing_seconds,
            has_other_gateways=lambda: has_other_gateways,
        )
        self.hook_calls: list[str] = []
        self.stored: list[tuple[str, bool]] = []

    def finish_exchange(
        self,
        id_: str,
        *,
        is_broken: bool = False,
        has_failing_hook: bool = False,
        reservation: AdmittedCall | None = None,
        body: bytes = BODY,
        options: AgentOptions | None = None,
    ) -> Exchange:
        """Finish an exchange with a charge and a count to be stored, both under this name."""
        request = parse_request(BODY, make_incoming_request().api_format)
        context = RequestContext(
            incoming=make_incoming_request(),
            options=options or AgentOptions(),
            received_at=0.0,
            original=request,
            request=request,
        )
        update = CountUpdate(agent="ana", counter="c", counts={id_.encode(): b"1"})
        context.pending_writes.append(
            PendingWrite(
                lambda: self._write_alone(update),
                lambda: update,
                lambda is_stored: self.stored.append((id_, is_stored)),
            )
        )

        def run_hook(_: Exchange) -> None:
            if has_failing_hook:
                raise RuntimeError(id_)

        exchange = Exchange(
            msgspec.structs.replace(make_incoming_request(), body=body),
            context,
            UpstreamRequest(body=BODY),
            hooks=CallHooks(after_response=(lambda _: self.hook_calls.append(id_),), in_background=(run_hook,)),
            clock=lambda: 0.0,
            observer=self.observer,
            completer=self.queue,
        )
        exchange.charge = make_charge(make_call(id_), "0.25")
        exchange.cost.reservation = reservation
        exchange.finish(is_interrupted=is_broken)
        return exchange

    def has_stored(self, number: int) -> bool:
        return len(self.stored) == number

    async def _write_alone(self, rows: CountUpdate) -> None:
        if any(digest in self.session_store.rejected for digest in rows.counts):
            raise RuntimeError("never")
        await self.session_store.save_counts(rows.agent, rows.counts, rows.counter)


async def test_exchanges_of_a_batch_are_recorded_and_stored_together() -> None:
    setup = QueueSetup(InMemoryLedger(), seconds=0.01)
    for id_ in "abc":
        setup.finish_exchange(id_)
    assert (setup.ledger.operations, setup.hook_calls) == ([], [])
    await asyncio.sleep(0)
    assert setup.hook_calls == ["a", "b", "c"]  # before any of them sends another request
    await asyncio.wait_for(setup.observer.has_finished.wait(), 30)
    setup.finish_exchange("d")
    await setup.queue.close()

    assert setup.ledger.operations == ["settle a b c", "settle d"]
    assert setup.session_store.batch_sizes == [3, 1]
    assert setup.stored == [(id_, True) for id_ in "abcd"]
    assert setup.observer.events == ["ended with 0"] * 4


async def test_sessions_that_other_gateways_need_do_not_wait_for_charges() -> None:
    """Regression: with many workers, almost every call had its own transaction in the ledger."""
    setup = QueueSetup(InMemoryLedger(), seconds=0.001, spacing_seconds=60.0, has_other_gateways=True)
    for number, id_ in enumerate("abcd", 1):
        setup.finish_exchange(id_)
        await wait_until(partial(setup.has_stored, number))

    assert setup.ledger.operations == ["settle a"]
    assert setup.session_store.batch_sizes == [1, 1, 1, 1]
    await setup.queue.close()
    assert setup.ledger.operations == ["settle a", "settle b c d"]


async def test_sessions_soon_after_others_wait_for_a_common_transaction() -> None:
    """Regression: each of eight workers had twenty transactions a second, most of them with one session."""
    setup = QueueSetup(
        InMemoryLedger(),
        seconds=0.001,
        spacing_seconds=60.0,
        sessions_spacing_seconds=60.0,
        has_other_gateways=True,
    )
    setup.finish_exchange("a")
    await wait_until(partial(setup.has_stored, 1))
    for id_ in "bcd":
        setup.finish_exchange(id_)
        await asyncio.sleep(0.01)

    assert setup.session_store.batch_sizes == [1]
    await setup.queue.close()
    assert setup.session_store.batch_sizes == [1, 3]


@pytest.mark.parametrize("has_other_gateways", [True, False])
async def test_a_session_is_stored_before_its_response_only_for_other_gateways(
    has_other_gateways: bool,
) -> None:
    setup = QueueSetup(InMemoryLedger(), seconds=0.001, has_other_gateways=has_other_gateways)
    setup.queue.store_early(CountUpdate(agent="ana", counter="c", counts={b"a": b"1"}))
    await asyncio.sleep(0.05)

    assert setup.session_store.batch_sizes == ([1] if has_other_gateways else [])
    await setup.queue.close()


async def test_large_requests_do_not_wait_in_memory() -> None:
    setup = QueueSetup(InMemoryLedger(), seconds=0.001, spacing_seconds=60.0)
    setup.finish_exchange("a")
    await wait_until(partial(setup.has_stored, 1))
    for id_ in "bc":
        setup.finish_exchange(id_, body=bytes(9 * 1024 * 1024))
    await wait_until(lambda: len(setup.ledger.operations) == 2)

    assert setup.ledger.operations == ["settle a", "settle b c"]
    setup.finish_exchange("d")
    await asyncio.sleep(0.05)
    assert len(setup.ledger.operations) == 2
    await setup.queue.close()


async def test_sessions_that_may_be_compacted_do_not_wait() -> None:
    """Regression: a compaction began half a second after the response, after the next request."""
    setup = QueueSetup(InMemoryLedger(), seconds=0.001, spacing_seconds=60.0)
    setup.finish_exchange("a")
    await wait_until(partial(setup.has_stored, 1))
    setup.finish_exchange("b", options=AgentOptions(compaction=True))
    await wait_until(lambda: len(setup.observer.events) == 2)

    assert setup.ledger.operations == ["settle a", "settle b"]
    await setup.queue.close()


async def test_other_requests_run_between_the_hooks_of_a_large_batch() -> None:
    setup = QueueSetup(InMemoryLedger())
    for number in range(64):
        setup.finish_exchange(f"{number}")
    finished_counts = {0}

    async def serve_others() -> None:
        while len(setup.observer.events) < 64:
            finished_counts.add(len(setup.observer.events))
            await asyncio.sleep(0)

    await asyncio.wait_for(asyncio.gather(setup.queue.drain(), serve_others()), 30)

    counts = sorted({*finished_counts, 64})
    assert max(after - before for before, after in pairwise(counts)) <= 16


async def test_sessions_that_no_other_process_needs_are_stored_with_the_charges() -> None:
    setup = QueueSetup(InMemoryLedger(), seconds=0.001, spacing_seconds=60.0)
    setup.finish_exchange("a")
    await wait_until(partial(setup.has_stored, 1))
    for id_ in "bcd":
        setup.finish_exchange(id_)
        await asyncio.sleep(0.01)

    assert setup.session_store.batch_sizes == [1]
    await setup.queue.close()
    assert setup.session_store.batch_sizes == [1, 3]
    assert setup.ledger.operations == ["settle a", "settle b c d"]


@pytest.mark.parametrize("is_reserved", [True, False])
async def test_only_a_reservation_ends_the_batch_early(is_reserved: bool) -> None:
    """A transaction for every few calls kept the store busy; a reservation blocks money of others meanwhile."""
    setup = QueueSetup(InMemoryLedger(), seconds=60.0)
    setup.finish_exchange("a")
    setup.finish_exchange("b", reservation=AdmittedCall(call=make_call("b"), is_reserved=is_reserved))
    setup.finish_exchange("c")
    with suppress(TimeoutError):
        await asyncio.wait_for(setup.observer.has_finished.wait(), 30 if is_reserved else 0.2)

    assert setup.ledger.operations == (["settle a b c"] if is_reserved else [])
    await setup.queue.close()


async def test_sessions_do_not_follow_charges_that_replace_reservations() -> None:
    """Regression: requests under a cap waited for the sessions of others, with each of these transactions."""
    setup = QueueSetup(InMemoryLedger(), seconds=0.001, spacing_seconds=60.0)
    for number, id_ in enumerate("abcd", 1):
        setup.finish_exchange(id_, reservation=AdmittedCall(call=make_call(id_), is_reserved=True))
        await wait_until(lambda: len(setup.ledger.operations) == number)  # noqa: B023

    assert setup.session_store.batch_sizes == [1]
    await setup.queue.close()
    assert setup.session_store.batch_sizes == [1, 3]


async def test_waiting_for_an_exchange_flushes_the_batch() -> None:
    setup = QueueSetup(InMemoryLedger())
    setup.finish_exchange("a")
    await asyncio.wait_for(setup.finish_exchange("b", is_broken=True).wait_until_completed(), 30)

    assert setup.ledger.charged_ids == ["a", "b"]


async def test_draining_waits_for_running_completions() -> None:
    setup = QueueSetup(InMemoryLedger(pause=asyncio.Event()))
    setup.finish_exchange("a")
    drained = asyncio.ensure_future(setup.queue.drain_all_processes())
    await asyncio.sleep(0.1)
    assert not drained.done()
    assert setup.ledger.pause is not None
    setup.ledger.pause.set()
    await asyncio.wait_for(drained, 30)

    assert setup.ledger.charged_ids == ["a"]


async def test_one_failure_does_not_affect_the_others() -> None:
    never = OverflowError("too many")
    setup = QueueSetup(InMemoryLedger(unstorable={"b": never}), RecordingStore(rejected=[b"c"]))
    for id_ in "abcd":
        setup.finish_exchange(id_, has_failing_hook=id_ == "a").status = FAILING_STATUS if id_ == "b" else 0
    await setup.queue.close()

    assert setup.ledger.charged_ids == ["a", "c", "d"]
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
    setup = QueueSetup(InMemoryLedger())

    def make_invalid_update() -> CountUpdate:
        raise OverflowError("too many")

    async def write_alone() -> None:
        make_invalid_update()

    exchange = setup.finish_exchange("a")
    assert exchange.context is not None
    exchange.context.pending_writes[:] = [PendingWrite(write_alone, make_invalid_update)]
    setup.finish_exchange("b")
    await setup.queue.close()

    assert {hash_ for _, hash_, _ in setup.session_store.counted} == {b"b"}
    assert "keep failed: OverflowError: too many" in setup.observer.events


async def test_an_unavailable_store_is_reported_per_request_and_charges_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Defect: a full disk was logged twice per request, each time with a traceback."""
    unavailable = StoreUnavailable("/data", "is locked")
    setup = QueueSetup(InMemoryLedger(failures_left=1), RecordingStore(error=unavailable))
    for id_ in "ab":
        context = setup.finish_exchange(id_).context
        assert context is not None
        context.pending_writes *= 2
    await setup.queue.close()

    assert (setup.ledger.operations, setup.ledger.charged_ids) == (["settle a b"], [])
    assert setup.stored == []
    assert [event for event in setup.observer.events if event.startswith("keep failed: StoreUnavailable")] != []
    assert len(setup.observer.events) == 4
    assert caplog.text.count("keep failed: StoreUnavailable: /data") == 2
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_reservation_is_released_unless_the_charge_is_unknown(is_recorded: bool) -> None:
    """A reservation that may still be charged blocks others under a cap until it expires."""
    ledger = InMemoryLedger()

    def record_charge(_: Exchange) -> None:
        if not is_recorded:
            raise RuntimeError("no")

    exchange = Exchange(
        msgspec.structs.replace(make_incoming_request(), id="a"),
        None,
        UpstreamRequest(body=BODY),
        clock=lambda: 0.0,
        hooks=CallHooks(before_last_byte=(record_charge,)),
        completer=CompletionQueue(make_recorder(make_admission(ledger))),
        cost=CostFields(reservation=AdmittedCall(call=make_call("a"), is_reserved=True)),
        observer=NO_OBSERVER,
    )
    exchange.finish()
    await exchange.wait_until_completed()

    assert ledger.operations == (["release a"] if is_recorded else [])


class FailingAdmission(Admission):
    """Records nothing, and releases reservations."""

    async def settle_all(self, charges: Sequence[Charge]) -> Sequence[Settlement]:
        raise RuntimeError(f"{len(charges)} bills")


async def test_a_reservation_is_released_even_if_other_charges_cannot_be_recorded() -> None:
    """Defect: it blocked others under a cap for as long as a call may take."""
    ledger = InMemoryLedger()
    queue, observer = (
        CompletionQueue(make_recorder(FailingAdmission(ledger, clock=lambda: 0.0))),
        EventObserver(),
    )
    for id_, charge in (("a", make_charge(make_call("a"), "0.25")), ("b", None)):
        exchange = Exchange(
            make_incoming_request(),
            None,
            UpstreamRequest(body=BODY),
            clock=lambda: 0.0,
            observer=observer,
            completer=queue,
            cost=CostFields(reservation=AdmittedCall(call=make_call(id_), is_reserved=True)),
        )
        exchange.charge = charge
        exchange.finish()
    await queue.close()

    assert ledger.operations == ["release b"]
    assert observer.events == [*["book failed: RuntimeError: 1 bills"] * 2, *["ended with 0"] * 2]
