"""Reports of the engine to its observer: no failure stays silent."""

import asyncio

import pytest

from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.engine import Engine
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.options import AgentOptions
from foveate.engine.request import StepFailure, UpstreamRequest
from foveate.engine.request_context import RequestContext
from foveate.errors import DoesNotFit
from tests.support.oracles.engine_observers import EventObserver
from tests.support.scenarios.incoming_requests import BODY, make_incoming_request
from tests.support.stores.ledger_records import CHARGE
from tests.support.stores.memory_ledger import InMemoryLedger, make_admission, make_recorder


class FailingStep:
    """A step, or a hook, that fails."""

    name = "fails"

    async def apply(self, context: RequestContext) -> None:
        raise RuntimeError("no")

    def __call__(self, exchange: Exchange) -> None:
        raise RuntimeError("no")


class RejectingStep:
    name = "refuses"

    async def apply(self, context: RequestContext) -> None:
        raise DoesNotFit("too long", tokens=2, limit_tokens=1, window_tokens=1)


class DegradedStep:
    """A step that reports a problem and goes on."""

    name = "notes"

    async def apply(self, context: RequestContext) -> None:
        context.problems.append(StepFailure("notes", "a tool result could not be stored"))


async def admit_always(request_id: str, agent: str, reason: str) -> None: ...


def make_engine(observer: EventObserver, *steps: FailingStep | RejectingStep | DegradedStep) -> Engine:
    times = iter(range(100))
    return Engine(
        steps=steps,
        hooks=CallHooks(in_background=(FailingStep(),)),
        options=lambda _: AgentOptions(),
        clock=lambda: float(next(times)),
        observer=observer,
        admit_uncounted=admit_always,
    )


async def test_failures_of_steps_and_hooks_and_the_end_are_reported() -> None:
    observer = EventObserver()

    exchange = await make_engine(observer, FailingStep(), DegradedStep()).prepare(make_incoming_request())
    before = list(observer.events)
    exchange.on_response_start(200, is_streaming=False)
    exchange.finish()
    await exchange.wait_until_completed()

    assert [event for event in before if "failed" in event] == [
        "fails failed: RuntimeError: no",
        "notes failed: a tool result could not be stored",
    ]
    assert observer.events[len(before) :] == ["FailingStep failed: RuntimeError: no", "ended with 200"]


async def test_failures_before_a_rejection_are_reported() -> None:
    observer = EventObserver()

    with pytest.raises(DoesNotFit):
        await make_engine(observer, FailingStep(), RejectingStep()).prepare(make_incoming_request())

    assert "fails failed: RuntimeError: no" in observer.events


async def test_an_unreadable_request_is_reported_and_sent() -> None:
    observer = EventObserver()

    exchange = await make_engine(observer).prepare(make_incoming_request(b"{"))

    assert exchange.upstream_request.body == b"{"
    assert len(observer.events) == 1
    assert observer.events[0].startswith("read failed: MalformedRequest")


async def test_a_cancelled_exchange_is_reported() -> None:
    observer, ledger = EventObserver(), InMemoryLedger(pause=asyncio.Event())
    queue = CompletionQueue(make_recorder(make_admission(ledger)))
    exchange = Exchange(
        make_incoming_request(),
        None,
        UpstreamRequest(body=BODY),
        clock=lambda: 0.0,
        observer=observer,
        completer=queue,
    )
    exchange.charge = CHARGE
    exchange.finish(is_interrupted=True)
    completion = asyncio.ensure_future(exchange.wait_until_completed())
    await asyncio.sleep(0)
    completion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await completion
    assert observer.events == []
    assert ledger.pause is not None
    ledger.pause.set()
    await queue.close()

    assert (observer.events, ledger.stored_charges) == (["ended with 0"], [CHARGE])
