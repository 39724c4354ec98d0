"""A charge is in the write-ahead log before its client has the whole response, once, for all kinds of calls."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.cost.admission import Admission, AdmittedCall
from foveate.cost.ledger import Call, Category, Charge
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.embeddings import EmbeddingsEngine
from foveate.engine.engine import Engine
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.spending.charges import ChargeRecorder, CompareCosts
from foveate.engine.spending.observed_admission import CapUncounted
from foveate.engine.spending.paid_client import PaidClient, PaymentOptions
from foveate.engine.steps.caps import EnforceCaps
from foveate.model import Format, Savings, TokenCount
from tests.support.clients.summarizer import BODY, MODEL, URL, ScriptedModel
from tests.support.oracles.engine_observers import StepObserver
from tests.support.scenarios.compactors import COMPLETE_SUMMARY
from tests.support.servers.sandbox import ManualClock
from tests.support.stores.recording_ledger import RecordingLedger


class RecordingLog:
    """Keeps what was appended, and what was marked as recorded."""

    def __init__(self) -> None:
        self.charges: list[Charge] = []
        self.recorded_ids: list[str] = []
        self.discarded_ids: list[str] = []

    def append(self, charge: Charge) -> None:
        self.charges.append(charge)

    def mark_recorded(self, call_id: str) -> None:
        self.recorded_ids.append(call_id)

    def discard(self, call_id: str) -> None:
        self.discarded_ids.append(call_id)


class EngineWithLedger:
    """An engine and embeddings with caps and charges only, and their ledger."""

    def __init__(self) -> None:
        self.ledger, self.write_ahead_log, clock = RecordingLedger(), RecordingLog(), ManualClock()
        self.admission = Admission(self.ledger, clock=clock, write_ahead_log=self.write_ahead_log)
        self.spending = SpendingOptions(caps=(), prices=PriceBook())
        uncounted = CapUncounted(self.admission, lambda: self.spending, clock)
        recorder = ChargeRecorder(self.admission, lambda: self.spending)
        self.engine = Engine(
            steps=(EnforceCaps(self.admission, lambda: self.spending),),
            hooks=CallHooks(
                before_last_byte=(recorder.complete,),
                after_response=(CompareCosts(lambda: self.spending, SessionStates()),),
            ),
            charges=recorder,
            completion_queue=CompletionQueue(recorder),
            options=lambda _: AgentOptions(),
            clock=clock,
            observer=StepObserver(),
            admit_uncounted=uncounted,
        )
        self.embeddings = EmbeddingsEngine(
            admission=self.admission,
            charges=recorder,
            options=lambda: self.spending,
            admit_uncounted=uncounted,
            clock=clock,
            completion_queue=self.engine.completion_queue,
        )

    async def prepare(
        self, api_format: Format, *, is_embeddings: bool = False, provider: str = "p", **fields: Any
    ) -> Exchange:
        prepare = self.embeddings.prepare if is_embeddings else self.engine.prepare
        body = json.dumps(fields).encode()
        return await prepare(
            IncomingRequest(
                id="call", agent="ana", api_format=api_format, provider=provider, upstream="u", body=body
            )
        )


def events(*fields: dict[str, Any] | str) -> list[bytes]:
    return [
        b"data: %b\n\n" % (event if isinstance(event, str) else json.dumps(event)).encode() for event in fields
    ]


CLAUDE = events(
    {"type": "message_start", "message": {"usage": {"input_tokens": 900, "output_tokens": 1}}},
    {"type": "message_delta", "usage": {"output_tokens": 42}},
    {"type": "message_stop"},
)
CHAT = events(
    {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 900, "completion_tokens": 42}},
    "[DONE]",
)
RESPONSES = events(
    {"type": "response.created", "response": {}},
    {"type": "response.completed", "response": {"usage": {"input_tokens": 900, "output_tokens": 42}}},
)
HELLO = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("api_format", "stream"), [(Format.ANTHROPIC, CLAUDE), (Format.CHAT, CHAT), (Format.RESPONSES, RESPONSES)]
)
@pytest.mark.parametrize("is_broken", [False, True])
async def test_the_charge_of_a_stream_is_logged_before_its_last_event_is_forwarded(
    api_format: Format, stream: list[bytes], is_broken: bool
) -> None:
    """Defect: it was logged when the connection to the provider ended, and a process killed before lost it."""
    setup = EngineWithLedger()
    fields: dict[str, Any] = {"input": "Hi"} if api_format is Format.RESPONSES else {"messages": HELLO}
    exchange = await setup.prepare(api_format, model="m", max_tokens=9, stream=True, **fields)
    (announced,) = setup.write_ahead_log.charges
    assert announced.is_possibly_charged
    exchange.on_response_start(200, is_streaming=True)
    for piece in stream[:-1]:
        exchange.on_chunk(piece)
        assert setup.write_ahead_log.charges == [announced]
    assert exchange.on_chunk(stream[-1]) == stream[-1]
    (_, logged) = setup.write_ahead_log.charges
    exchange.finish(is_interrupted=is_broken)
    await exchange.wait_until_completed()

    assert (logged.usage.output_tokens, logged.is_partial) == (42, False)
    (recorded,) = setup.ledger.settled
    assert replace(recorded, savings=Savings()) == logged  # the savings are added later
    assert setup.write_ahead_log.charges == [announced, logged]
    assert setup.write_ahead_log.recorded_ids == ["call"]


async def test_the_charge_of_embeddings_is_logged_like_any_other() -> None:
    """Defect: it was not in a file until it was recorded, and a gateway could end before that."""
    setup = EngineWithLedger()
    exchange = await setup.prepare(Format.CHAT, is_embeddings=True, model="text-embedding-3-small", input="Hi")
    exchange.on_response_start(200, is_streaming=False)
    exchange.on_chunk(b'{"data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}}')
    exchange.flush()
    exchange.finish()  # without waiting
    (announced, logged) = setup.write_ahead_log.charges
    assert announced.is_possibly_charged
    await setup.engine.close()

    assert setup.ledger.settled == [logged]
    assert setup.write_ahead_log.recorded_ids == ["call"]


async def test_the_charge_of_a_summary_is_logged_until_it_is_recorded() -> None:
    """Defect: it was not in a file until it was recorded."""
    setup = EngineWithLedger()
    call = Call(
        id="call",
        agent="ana",
        session_id="s",
        provider="anthropic",
        model=MODEL,
        category=Category.COMPACTION,
        at=0.0,
    )
    payment = PaymentOptions(
        admission=setup.admission,
        options=lambda: setup.spending,
        make_call=lambda: call,
        api_format=Format.ANTHROPIC,
    )
    await PaidClient(ScriptedModel(setup.ledger, COMPLETE_SUMMARY), payment, AdmittedCall(call=call)).post_json(
        URL, BODY
    )

    announced, *charges = setup.write_ahead_log.charges
    assert announced.is_possibly_charged
    assert charges == setup.ledger.settled
    assert setup.write_ahead_log.recorded_ids == ["call"]


@pytest.mark.parametrize("is_embeddings", [False, True])
async def test_a_rejected_call_is_removed_from_the_log(is_embeddings: bool) -> None:
    setup = EngineWithLedger()
    fields: dict[str, Any] = {"input": "Hi"} if is_embeddings else {"messages": HELLO}
    exchange = await setup.prepare(Format.CHAT, is_embeddings=is_embeddings, model="gpt-5.6", **fields)
    exchange.on_response_start(400, is_streaming=False)
    exchange.on_chunk(b"{}")
    exchange.finish()
    await exchange.wait_until_completed()

    assert setup.ledger.settled == []
    assert setup.write_ahead_log.discarded_ids == ["call"]


async def test_the_cost_ceiling_is_logged_once_it_is_known() -> None:
    setup = EngineWithLedger()
    setup.engine = dataclasses.replace(setup.engine, steps=(FakeCount(), *setup.engine.steps))
    exchange = await setup.prepare(
        Format.CHAT, provider="openai", model="gpt-5.4", max_completion_tokens=9, messages=HELLO
    )
    await asyncio.sleep(0)  # runs while the provider responds
    announced_first, announced_again = setup.write_ahead_log.charges
    assert (announced_first.estimated_dollars, announced_first.estimated_input_tokens) == (None, 7)
    assert announced_again.estimated_dollars is not None
    assert announced_again.charge == announced_again.estimated_dollars
    assert announced_again.estimated_dollars > 0

    exchange.mark_unsent()
    exchange.finish(is_interrupted=True)
    setup.admission.announce_ceiling("call", announced_again.estimated_dollars)
    await exchange.wait_until_completed()
    assert len(setup.write_ahead_log.charges) == 2  # a finished call is not logged again
    assert setup.write_ahead_log.discarded_ids == ["call"]


class FakeCount:
    name = "count"

    async def apply(self, context: RequestContext) -> None:
        context.count.total = TokenCount(7, exact=True, upper=7)
