"""The cost of compactions: each call for a summary is admitted and recorded by itself."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from foveate import formats
from foveate.compaction.compact import CompactionResult
from foveate.compaction.plan import CompactionPlan
from foveate.compaction.store import ClearedBlock, CompactionOutcome, EditDecision
from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL
from foveate.cost.admission import Admission, AdmittedCall
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import Call, Category
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.background.compaction import SessionCompactor
from foveate.engine.options import AgentOptions, Clearing, SpendingOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.spending.paid_client import PaidClient, PaymentOptions
from foveate.errors import UpstreamStatus, UpstreamTimeout, UpstreamUnreachable
from foveate.model import Format
from foveate.session.hash_chain import compute_chain
from foveate.tokens import counter_for
from tests.support.clients.summarizer import (
    BODY,
    CALLS_A_TOOL,
    MODEL,
    NEVER,
    URL,
    ScriptedModel,
)
from tests.support.scenarios.compaction_sessions import AGENT, OPTIONS, claude_body, make_subject
from tests.support.scenarios.compactors import COMPLETE_SUMMARY
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore
from tests.support.stores.recording_ledger import RecordingLedger

PRICES = PriceBook()
AT = 1_800_000_000.0
DECISION = EditDecision(
    moment="arrival", gain_dollars=1.0, cost_dollars=0.1, expected_requests=9.0, growth_tokens=500.0
)


class CompactorWithLedger:
    """A compactor with a ledger in memory."""

    def __init__(
        self, *responses: str | Exception, caps: Sequence[Cap] = (), input_tokens: int = 1_000
    ) -> None:
        self.ledger = RecordingLedger()
        self.model = ScriptedModel(self.ledger, *responses, input_tokens=input_tokens)
        self.spending = SpendingOptions(caps=caps, prices=PRICES)
        self.admission = Admission(self.ledger, clock=lambda: AT)
        self.compactor = SessionCompactor(
            InMemoryCompactionStore(),
            self.model,
            self.admission,
            lambda: self.spending,
            holder="this one",
            clock=lambda: AT,
        )

    async def compact(
        self,
        *,
        ttl: str = "5m",
        due: bool = True,
        searches: int = 0,
        fallbacks: Sequence[str] = (),
        must_fit: bool = False,
        decide: Callable[[CompactionPlan], EditDecision | None] | None = None,
    ) -> CompactionResult | None:
        body = claude_body(30, model=MODEL)
        if fallbacks:
            body["models"] = list(fallbacks)
        if searches:
            body["tools"] = [{"type": "web_search_20250305", "name": "web_search", "max_uses": searches}]
        body["messages"][-1]["content"][-1]["cache_control"]["ttl"] = ttl
        subject = replace(make_subject(body), must_fit=must_fit, decide=decide)
        if not due:
            subject = replace(subject, window_tokens=10 * subject.sent_tokens)
        request = formats.parse_request(json.dumps(body).encode(), Format.ANTHROPIC)
        context = RequestContext(
            incoming=IncomingRequest(
                id="r",
                agent=AGENT,
                api_format=Format.ANTHROPIC,
                provider="anthropic",
                upstream="anthropic",
                body=request.body,
                find_endpoint=lambda: SummarizerEndpoint(url=URL, api_format=Format.ANTHROPIC, headers={}),
            ),
            options=AgentOptions(compaction=True, compaction_options=replace(OPTIONS, extractive=True)),
            received_at=AT,
            original=request,
            request=request,
        )
        context.count.total = counter_for(MODEL).count_request(request).total
        return await self.compactor.compact_for_request(context, subject)


def total_cap(dollars: str) -> Cap:
    return Cap(scope=CapScope.TOTAL, dollars=Decimal(dollars))


async def test_a_summary_is_reserved_before_the_call_and_recorded_after_it() -> None:
    setup = CompactorWithLedger(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("10")])
    result = await setup.compact()

    assert result is not None
    assert result.outcome is CompactionOutcome.OK
    assert setup.ledger.settled
    assert all(len(reserved_ids) == 1 for reserved_ids in setup.model.reserved_ids)
    for reserved, entry in zip(setup.ledger.reserved, setup.ledger.settled, strict=True):
        assert entry.call.id == reserved.call_id
        assert entry.call.category is Category.COMPACTION
        dollars = 1_000 * Decimal("5e-6") + 100 * Decimal("25e-6")
        assert entry.dollars == dollars
        assert entry.estimated_dollars == reserved.dollars > dollars
        assert entry.savings.compaction == -dollars
    assert setup.ledger.open == {}


async def test_tool_results_are_not_cleared_while_another_gateway_edits_the_session() -> None:
    store = InMemoryCompactionStore()
    ledger = RecordingLedger()
    compactor = SessionCompactor(
        store,
        ScriptedModel(ledger),
        Admission(ledger, clock=lambda: AT),
        lambda: SpendingOptions(caps=(), prices=PRICES),
        holder="this one",
        clock=lambda: AT,
    )
    request = formats.parse_request(json.dumps(claude_body(4, model=MODEL)).encode(), Format.ANTHROPIC)
    context = RequestContext(
        incoming=IncomingRequest(
            id="r",
            agent=AGENT,
            api_format=Format.ANTHROPIC,
            provider="anthropic",
            upstream="anthropic",
            body=request.body,
        ),
        options=AgentOptions(clearing=Clearing.COST),
        received_at=AT,
        original=request,
        request=request,
    )
    context.session.chain = compute_chain(request)
    block = ClearedBlock(message=2, block=0, text="[cleared: a file]", tokens=900, saved_tokens=800)

    lease = await store.acquire_lease(context.session_id, "another one", ttl_seconds=60, now=AT)
    assert lease is not None
    assert await compactor.clear_results(context, [block], DECISION) is None
    assert await store.list_compactions() == []
    await store.release_lease(lease)
    assert await compactor.clear_results(context, [block], DECISION) is not None


async def test_every_attempt_is_admitted_by_itself_with_its_own_id() -> None:
    """Defect: only the first call of a compaction was reserved, and two compactions of a request shared ids."""
    setup = CompactorWithLedger(CALLS_A_TOOL, COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("10")])
    await setup.compact()
    second_setup = CompactorWithLedger(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("10")])
    await second_setup.compact()

    ids = [entry.call.id for entry in (*setup.ledger.settled, *second_setup.ledger.settled)]
    assert len(setup.ledger.reserved) == len(setup.ledger.settled) == len(setup.model.reserved_ids) >= 2
    assert all(len(reserved_ids) == 1 for reserved_ids in setup.model.reserved_ids)
    assert len(set(ids)) == len(ids)


async def test_one_hour_caching_is_reserved_at_its_price() -> None:
    reserved = []
    for ttl in ("5m", "1h"):
        setup = CompactorWithLedger(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("10")])
        await setup.compact(ttl=ttl)
        reserved.append(setup.ledger.reserved[0].dollars)

    tokens = (
        counter_for(MODEL).count_request(make_subject(claude_body(30, model=MODEL)).sent_request).total.tokens
    )
    assert reserved[1] - reserved[0] >= tokens * (Decimal("10e-6") - Decimal("6.25e-6"))


async def test_a_summary_by_a_fallback_model_is_reserved_at_its_price() -> None:
    """Defect: the request of a summary names the same fallback models, and only the first was reserved."""
    setup, with_fallback = CompactorWithLedger(COMPLETE_SUMMARY), CompactorWithLedger(COMPLETE_SUMMARY)
    for each in (setup, with_fallback):
        each.spending = SpendingOptions(caps=(Cap(scope=CapScope.DAY, dollars=Decimal(10)),), prices=PRICES)
    await setup.compact()
    await with_fallback.compact(fallbacks=["claude-opus-4-1"])

    assert b"claude-opus-4-1" in with_fallback.model.bodies[0]
    opus_4_1_times = Decimal(15) / Decimal(5)
    assert with_fallback.ledger.reserved[0].dollars >= opus_4_1_times * setup.ledger.reserved[0].dollars


async def test_input_that_the_provider_fetches_for_a_summary_is_reserved() -> None:
    """Defect: only the tokens in the request of a summary were reserved, whatever else was read for it."""
    setup = CompactorWithLedger(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("10")])
    await setup.compact(searches=2)
    document = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
    messages = [{"role": "user", "content": [document]}]
    client = paid_client(
        with_document := CompactorWithLedger(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("10")])
    )
    for _ in range(2):
        await client.post_json(
            URL, json.dumps({"model": MODEL, "max_tokens": 9, "messages": messages}).encode()
        )

    assert setup.ledger.reserved[0].dollars >= 3 * 200_000 * Decimal("6.25e-6")
    assert with_document.ledger.reserved[0].dollars >= 200_000 * Decimal("6.25e-6")


async def test_without_room_under_the_cap_the_summary_is_extractive() -> None:
    setup = CompactorWithLedger(COMPLETE_SUMMARY, caps=[total_cap("0.01")])
    result = await setup.compact()

    assert result is not None
    assert result.compaction is not None
    assert result.compaction.model == EXTRACTIVE_MODEL
    assert "the cap on total spending is $0.01" in result.compaction.reason
    assert result.has_failed
    assert (setup.model.reserved_ids, setup.ledger.settled) == ([], [])


async def test_no_second_attempt_is_made_if_the_first_filled_the_cap() -> None:
    setup = CompactorWithLedger(
        CALLS_A_TOOL, COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("2")], input_tokens=400_000
    )
    result = await setup.compact()

    assert result is not None
    assert result.compaction is not None
    assert result.compaction.model == EXTRACTIVE_MODEL
    assert len(setup.model.reserved_ids) == len(setup.ledger.settled) == 1
    assert setup.ledger.open == {}


async def test_a_compaction_that_is_not_due_releases_its_reservation() -> None:
    setup = CompactorWithLedger(COMPLETE_SUMMARY, caps=[total_cap("10")])
    assert await setup.compact(due=False) is None

    assert len(setup.ledger.reserved) == 1
    assert (setup.ledger.open, setup.ledger.settled) == ({}, [])


@pytest.mark.parametrize("error", [UpstreamStatus(URL, 401), UpstreamStatus(URL, 400)])
async def test_a_rejected_summary_is_not_charged(error: Exception) -> None:
    setup = CompactorWithLedger(error, error, caps=[total_cap("10")])
    await setup.compact()

    assert (setup.ledger.open, setup.ledger.settled) == ({}, [])
    assert len(setup.ledger.released) == len(setup.model.reserved_ids)


def payment_options(setup: CompactorWithLedger) -> tuple[PaymentOptions, Callable[[], Call]]:
    numbers = iter(range(9))

    def call() -> Call:
        return Call(
            id=f"call {next(numbers)}",
            agent=AGENT,
            session_id="s",
            provider="anthropic",
            model=MODEL,
            category=Category.COMPACTION,
            at=AT,
        )

    payment = PaymentOptions(
        admission=setup.admission, options=lambda: setup.spending, make_call=call, api_format=Format.ANTHROPIC
    )
    return payment, call


def paid_client(setup: CompactorWithLedger) -> PaidClient:
    payment, call = payment_options(setup)
    return PaidClient(setup.model, payment, AdmittedCall(call=call()))


@pytest.mark.parametrize(("error", "is_charged"), [
    (UpstreamTimeout(URL, 300), True),
    (UpstreamUnreachable(URL, "no"), False),
    (UpstreamStatus(URL, 500), False),
])  # fmt: skip
async def test_a_call_that_may_be_charged_costs_its_whole_reservation(
    error: Exception, is_charged: bool
) -> None:
    setup = CompactorWithLedger(COMPLETE_SUMMARY, error, caps=[total_cap("10")])
    client = paid_client(setup)
    await client.post_json(URL, BODY)
    spent = setup.ledger.spent["total"]
    with pytest.raises(type(error)):
        await client.post_json(URL, BODY)

    (reserved,) = setup.ledger.reserved
    assert reserved.dollars >= 200 * Decimal("6.25e-6") + 1_000 * Decimal("25e-6")
    assert setup.ledger.spent["total"] - spent == (reserved.dollars if is_charged else 0)
    assert setup.ledger.open == {}


async def test_a_request_for_a_longer_summary_than_reserved_is_admitted_again() -> None:
    """Defect: a client with thinking may get a long response, and only a short summary was reserved."""
    cap = total_cap("1")
    for limit, is_first in ((1_000, True), (999, False)):
        setup = CompactorWithLedger(COMPLETE_SUMMARY, caps=[cap])
        payment, call = payment_options(setup)
        first = await setup.admission.admit(call(), Decimal("0.001"), [cap])
        await PaidClient(setup.model, payment, first, output_tokens=limit).post_json(URL, BODY)

        assert (setup.ledger.settled[0].call.id == first.call.id) == is_first
        assert setup.ledger.released == ([] if is_first else [first.call.id])
        assert setup.ledger.open == {}
    assert setup.ledger.reserved[-1].dollars >= 1_000 * Decimal("25e-6")


async def test_a_summary_is_reserved_at_the_price_of_its_own_model() -> None:
    """A deployment has its own name, which has no price."""
    setup = CompactorWithLedger(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("10")])
    client = paid_client(setup)
    for _ in range(2):
        await client.post_json(URL, BODY.replace(MODEL.encode(), b"house"))

    (reserved,) = setup.ledger.reserved
    assert reserved.dollars >= 200 * Decimal("6.25e-6") + 1_000 * Decimal("25e-6")


async def test_empty_usage_is_unknown_and_not_free() -> None:
    """Defect: summaries of hosts that report 0 tokens were recorded as free."""
    setup = CompactorWithLedger(COMPLETE_SUMMARY, input_tokens=0)
    await paid_client(setup).post_json(URL, BODY)

    assert [entry.dollars for entry in setup.ledger.settled] == [None]


async def test_an_interrupted_call_is_charged() -> None:
    setup = CompactorWithLedger(COMPLETE_SUMMARY, NEVER, caps=[total_cap("10")])
    client = paid_client(setup)
    await client.post_json(URL, BODY)
    task = asyncio.create_task(client.post_json(URL, BODY))
    await setup.model.is_called.wait()
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert [entry.is_partial for entry in setup.ledger.settled] == [False, True]
    assert setup.ledger.open == {}


async def test_a_call_that_exceeds_a_cap_is_not_sent() -> None:
    setup = CompactorWithLedger(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total_cap("0.001")])
    client = paid_client(setup)
    await client.post_json(URL, BODY)
    with pytest.raises(UpstreamStatus, match="the cap on total spending") as raised:
        await client.post_json(URL, BODY)

    assert raised.value.status == 402
    assert len(setup.model.reserved_ids) == 1


@pytest.mark.parametrize("must_fit", [False, True])
async def test_a_compaction_goes_on_for_the_next_request_if_the_client_gives_up(must_fit: bool) -> None:
    """Defect: each attempt of a client with a short timeout paid for a summary that was thrown away."""
    setup = CompactorWithLedger(COMPLETE_SUMMARY, COMPLETE_SUMMARY, COMPLETE_SUMMARY)
    decide = None if must_fit else lambda _: DECISION
    setup.model.may_answer.clear()
    first = asyncio.create_task(setup.compact(must_fit=must_fit, decide=decide))
    await setup.model.is_called.wait()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(setup.compact(must_fit=must_fit, decide=decide))
    setup.model.may_answer.set()
    result = await second

    assert first.cancelled()
    assert result is not None
    assert result.compaction is not None
    assert result.compaction.outcome is CompactionOutcome.OK
    assert result.compaction.model == MODEL
    assert len(setup.model.reserved_ids) == len(setup.ledger.settled)
    assert not any(entry.is_partial for entry in setup.ledger.settled)
