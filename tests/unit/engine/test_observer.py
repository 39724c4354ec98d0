"""What the engine reports to its observer: no failure stays silent."""

import asyncio

import pytest

from foveate.engine.completion import CompletionQueue
from foveate.engine.context import RequestContext
from foveate.engine.engine import Engine
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver
from foveate.engine.options import AgentOptions
from foveate.engine.request import RoutedRequest, StepFailure, UpstreamRequest
from foveate.errors import DoesNotFit
from foveate.model import Format
from tests.support.stores.ledger_records import CHARGE
from tests.support.stores.memory_ledger import Books, admission

BODY = b'{"model": "claude-opus-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}'


class RecordingObserver(NullObserver):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_failure(self, incoming: RoutedRequest, problem: StepFailure) -> None:
        self.events.append(f"{problem.step} failed: {problem.reason}")

    def on_step(self, step: str, seconds: float) -> None:
        self.events.append(f"{step} took {seconds:g}")

    def on_finished(self, exchange: Exchange) -> None:
        self.events.append(f"ended with {exchange.status}")


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
        context.problems.append(StepFailure("notes", "a cut could not be kept"))


def incoming(body: bytes = BODY) -> RoutedRequest:
    return RoutedRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="anthropic", body=body
    )


async def admit_always(request_id: str, agent: str, reason: str) -> None: ...


def engine(observer: RecordingObserver, *steps: FailingStep | RejectingStep | DegradedStep) -> Engine:
    times = iter(range(100))
    return Engine(
        steps=steps,
        background_hooks=(FailingStep(),),
        options=lambda _: AgentOptions(),
        clock=lambda: float(next(times)),
        observer=observer,
        admit_uncounted=admit_always,
    )


async def test_failures_of_steps_and_hooks_and_the_end_are_reported() -> None:
    observer = RecordingObserver()

    exchange = await engine(observer, FailingStep(), DegradedStep()).prepare(incoming())
    before = list(observer.events)
    exchange.on_response_start(200, is_streaming=False)
    exchange.finish()
    await exchange.wait_until_completed()

    assert [event for event in before if "failed" in event] == [
        "fails failed: RuntimeError: no",
        "notes failed: a cut could not be kept",
    ]
    assert observer.events[len(before) :] == ["FailingStep failed: RuntimeError: no", "ended with 200"]


async def test_failures_before_a_rejection_are_reported() -> None:
    observer = RecordingObserver()

    with pytest.raises(DoesNotFit):
        await engine(observer, FailingStep(), RejectingStep()).prepare(incoming())

    assert "fails failed: RuntimeError: no" in observer.events


async def test_an_unreadable_request_is_reported_and_sent() -> None:
    observer = RecordingObserver()

    exchange = await engine(observer).prepare(incoming(b"{"))

    assert exchange.upstream_request.body == b"{"
    assert len(observer.events) == 1
    assert observer.events[0].startswith("read failed: MalformedRequest")


async def test_a_cancelled_exchange_is_reported() -> None:
    observer, ledger = RecordingObserver(), Books(pause=asyncio.Event())
    queue = CompletionQueue(admission(ledger))
    exchange = Exchange(
        incoming(),
        None,
        UpstreamRequest(body=BODY),
        background_hooks=(),
        clock=lambda: 0.0,
        observer=observer,
        completer=queue,
    )
    exchange.charge = CHARGE
    exchange.finish(is_interrupted=True)
    settled = asyncio.ensure_future(exchange.wait_until_completed())
    await asyncio.sleep(0)
    settled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settled
    assert observer.events == []
    assert ledger.pause is not None
    ledger.pause.set()
    await queue.close()

    assert (observer.events, ledger.entries_) == (["ended with 0"], [CHARGE])
