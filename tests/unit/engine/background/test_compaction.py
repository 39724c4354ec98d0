"""The cost of compactions: each call for a summary is admitted and recorded by itself."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

import msgspec
import pytest

from foveate import formats
from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL
from foveate.cost.admission import Admission, AdmittedCall
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import Call, Category
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.background.compaction import SessionCompactor
from foveate.engine.context import RequestContext
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.request import RoutedRequest
from foveate.engine.spending.paid_client import PaidClient, PaymentOptions
from foveate.errors import UpstreamStatus, UpstreamTimeout, UpstreamUnreachable
from foveate.http import JsonClient, JsonReply
from foveate.model import Format
from foveate.tokens import counter_for
from tests.support.scenarios.compaction_sessions import AGENT, OPTIONS, claude_body, make_subject
from tests.support.scenarios.compactors import COMPLETE_SUMMARY
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore as Journal
from tests.support.stores.recording_ledger import InMemory

URL = "https://a.example/v1/messages"
MODEL = "claude-opus-4-5"
PRICES = PriceBook()
AT = 1_800_000_000.0
CALLS = "calls a tool"  # and is shown the work as data at once
FOREVER = "thinks forever"


class Asked(JsonClient):
    """A model that answers as it is told; what it is asked is kept, and what was open in the ledger then."""

    def __init__(self, ledger: InMemory, *answers: str | Exception, input_tokens: int = 1_000) -> None:
        super().__init__(timeout_seconds=300)
        self.thinks = asyncio.Event()
        self._input_tokens = input_tokens
        self.open: list[list[str]] = []
        self._ledger = ledger
        self._answers = list(answers)

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> JsonReply:
        self.open.append(list(self._ledger.open))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer == FOREVER:
            self.thinks.set()
            await asyncio.sleep(3600)
        said = {
            "content": [{"type": "tool_use" if answer == CALLS else "text", "text": answer}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": self._input_tokens, "output_tokens": 100 if self._input_tokens else 0},
        }
        return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in said.items()}


class Shop:
    """Folds with a ledger in memory."""

    def __init__(self, *answers: str | Exception, caps: Sequence[Cap] = (), input_tokens: int = 1_000) -> None:
        self.ledger = InMemory()
        self.model = Asked(self.ledger, *answers, input_tokens=input_tokens)
        self.money = SpendingOptions(caps=caps, prices=PRICES)
        self.admission = Admission(self.ledger, clock=lambda: AT)
        self.folds = SessionCompactor(
            Journal(),
            self.model,
            self.admission,
            lambda: self.money,
            holder="this one",
            clock=lambda: AT,
        )

    async def folded(self, *, ttl: str = "5m", due: bool = True, searches: int = 0) -> CompactionResult | None:
        body = claude_body(30, model=MODEL)
        if searches:
            body["tools"] = [{"type": "web_search_20250305", "name": "web_search", "max_uses": searches}]
        body["messages"][-1]["content"][-1]["cache_control"]["ttl"] = ttl
        subject = make_subject(body)
        if not due:
            subject = replace(subject, window_tokens=10 * subject.sent_tokens)
        request = formats.parse_request(json.dumps(body).encode(), Format.ANTHROPIC)
        context = RequestContext(
            incoming=RoutedRequest(
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
        context.token_count = counter_for(MODEL).count_request(request).total
        return await self.folds.compact_now(context, subject)


def total(dollars: str) -> Cap:
    return Cap(scope=CapScope.TOTAL, dollars=Decimal(dollars))


async def test_a_summary_is_reserved_before_the_call_and_recorded_after_it() -> None:
    shop = Shop(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("10")])
    folded = await shop.folded()

    assert folded is not None
    assert folded.outcome is CompactionOutcome.OK
    assert shop.ledger.settled
    assert all(len(open_then) == 1 for open_then in shop.model.open)
    for reserved, entry in zip(shop.ledger.reserved, shop.ledger.settled, strict=True):
        assert entry.call.id == reserved.call_id
        assert entry.call.category is Category.COMPACTION
        assert entry.dollars == 1_000 * Decimal("5e-6") + 100 * Decimal("25e-6")
        assert entry.estimated_dollars == reserved.dollars > entry.dollars
        assert entry.savings.compaction == -(entry.dollars or 0)
    assert shop.ledger.open == {}


async def test_every_attempt_is_admitted_by_itself_with_its_own_id() -> None:
    """Defect: only the first of a fold's calls was reserved for, and two folds of a request shared names."""
    shop = Shop(CALLS, COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("10")])
    await shop.folded()
    again = Shop(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("10")])
    await again.folded()

    ids = [entry.call.id for entry in (*shop.ledger.settled, *again.ledger.settled)]
    assert len(shop.ledger.reserved) == len(shop.ledger.settled) == len(shop.model.open) >= 2
    assert all(len(open_then) == 1 for open_then in shop.model.open)
    assert len(set(ids)) == len(ids)


async def test_one_hour_caching_is_reserved_at_its_price() -> None:
    reserved = []
    for ttl in ("5m", "1h"):
        shop = Shop(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("10")])
        await shop.folded(ttl=ttl)
        reserved.append(shop.ledger.reserved[0].dollars)

    tokens = (
        counter_for(MODEL).count_request(make_subject(claude_body(30, model=MODEL)).sent_request).total.tokens
    )
    assert reserved[1] - reserved[0] >= tokens * (Decimal("10e-6") - Decimal("6.25e-6"))


async def test_input_that_the_provider_fetches_for_a_summary_is_reserved() -> None:
    """Defect: a summary was held to the tokens that stood in its request, whatever else was read for it."""
    shop = Shop(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("10")])
    await shop.folded(searches=2)
    document = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
    messages = [{"role": "user", "content": [document]}]
    client = paid(later := Shop(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("10")]))
    for _ in range(2):
        await client.post_json(
            URL, json.dumps({"model": MODEL, "max_tokens": 9, "messages": messages}).encode()
        )

    assert shop.ledger.reserved[0].dollars >= 3 * 200_000 * Decimal("6.25e-6")
    assert later.ledger.reserved[0].dollars >= 200_000 * Decimal("6.25e-6")


async def test_without_room_under_the_cap_rules_write_the_summary() -> None:
    shop = Shop(COMPLETE_SUMMARY, caps=[total("0.01")])
    folded = await shop.folded()

    assert folded is not None
    assert folded.compaction is not None
    assert folded.compaction.model == EXTRACTIVE_MODEL
    assert "the cap on all that is spent is $0.01" in folded.compaction.reason
    assert folded.has_failed
    assert (shop.model.open, shop.ledger.settled) == ([], [])


async def test_no_second_attempt_is_made_if_the_first_filled_the_cap() -> None:
    shop = Shop(CALLS, COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("2")], input_tokens=400_000)
    folded = await shop.folded()

    assert folded is not None
    assert folded.compaction is not None
    assert folded.compaction.model == EXTRACTIVE_MODEL
    assert len(shop.model.open) == len(shop.ledger.settled) == 1
    assert shop.ledger.open == {}


async def test_a_compaction_that_is_not_due_releases_its_reservation() -> None:
    shop = Shop(COMPLETE_SUMMARY, caps=[total("10")])
    assert await shop.folded(due=False) is None

    assert len(shop.ledger.reserved) == 1
    assert (shop.ledger.open, shop.ledger.settled) == ({}, [])


@pytest.mark.parametrize("error", [UpstreamStatus(URL, 401), UpstreamStatus(URL, 400)])
async def test_a_rejected_summary_is_not_charged(error: Exception) -> None:
    shop = Shop(error, error, caps=[total("10")])
    await shop.folded()

    assert (shop.ledger.open, shop.ledger.settled) == ({}, [])
    assert len(shop.ledger.released) == len(shop.model.open)


def payment_of(shop: Shop) -> tuple[PaymentOptions, Callable[[], Call]]:
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
        admission=shop.admission, options=lambda: shop.money, make_call=call, api_format=Format.ANTHROPIC
    )
    return payment, call


def paid(shop: Shop) -> PaidClient:
    payment, call = payment_of(shop)
    return PaidClient(shop.model, payment, AdmittedCall(call=call()))


BODY = json.dumps(
    {"model": MODEL, "max_tokens": 1_000, "messages": [{"role": "user", "content": "Sum it up. " * 100}]}
).encode()


@pytest.mark.parametrize(("error", "is_charged"), [
    (UpstreamTimeout(URL, 300), True),
    (UpstreamUnreachable(URL, "no"), False),
    (UpstreamStatus(URL, 500), False),
])  # fmt: skip
async def test_a_call_that_may_be_charged_costs_its_whole_reservation(
    error: Exception, is_charged: bool
) -> None:
    shop = Shop(COMPLETE_SUMMARY, error, caps=[total("10")])
    client = paid(shop)
    await client.post_json(URL, BODY)
    spent = shop.ledger.spent["total"]
    with pytest.raises(type(error)):
        await client.post_json(URL, BODY)

    (reserved,) = shop.ledger.reserved
    assert reserved.dollars >= 200 * Decimal("6.25e-6") + 1_000 * Decimal("25e-6")
    assert shop.ledger.spent["total"] - spent == (reserved.dollars if is_charged else 0)
    assert shop.ledger.open == {}


async def test_a_request_for_a_longer_summary_than_reserved_is_admitted_again() -> None:
    """Defect: a client that thinks may be answered at length, and only a short summary was reserved for."""
    cap = total("1")
    for limit, is_first in ((1_000, True), (999, False)):
        shop = Shop(COMPLETE_SUMMARY, caps=[cap])
        payment, call = payment_of(shop)
        first = await shop.admission.admit(call(), Decimal("0.001"), [cap])
        await PaidClient(shop.model, payment, first, output_tokens=limit).post_json(URL, BODY)

        assert (shop.ledger.settled[0].call.id == first.call.id) == is_first
        assert shop.ledger.released == ([] if is_first else [first.call.id])
        assert shop.ledger.open == {}
    assert shop.ledger.reserved[-1].dollars >= 1_000 * Decimal("25e-6")


async def test_a_summary_is_reserved_at_the_price_of_its_own_model() -> None:
    """A deployment has a name of its own, for which there is no price."""
    shop = Shop(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("10")])
    client = paid(shop)
    for _ in range(2):
        await client.post_json(URL, BODY.replace(MODEL.encode(), b"house"))

    (reserved,) = shop.ledger.reserved
    assert reserved.dollars >= 200 * Decimal("6.25e-6") + 1_000 * Decimal("25e-6")


async def test_empty_usage_is_unknown_and_not_free() -> None:
    """Defect: summaries of hosts that count nothing, and say 0, were booked as free."""
    shop = Shop(COMPLETE_SUMMARY, input_tokens=0)
    await paid(shop).post_json(URL, BODY)

    assert [entry.dollars for entry in shop.ledger.settled] == [None]


async def test_an_interrupted_call_is_charged() -> None:
    shop = Shop(COMPLETE_SUMMARY, FOREVER, caps=[total("10")])
    client = paid(shop)
    await client.post_json(URL, BODY)
    asking = asyncio.create_task(client.post_json(URL, BODY))
    await shop.model.thinks.wait()
    asking.cancel()
    await asyncio.wait([asking])

    assert asking.cancelled()
    assert [entry.is_partial for entry in shop.ledger.settled] == [False, True]
    assert shop.ledger.open == {}


async def test_a_call_that_exceeds_a_cap_is_not_sent() -> None:
    shop = Shop(COMPLETE_SUMMARY, COMPLETE_SUMMARY, caps=[total("0.001")])
    client = paid(shop)
    await client.post_json(URL, BODY)
    with pytest.raises(UpstreamStatus, match="the cap on all that is spent") as refused:
        await client.post_json(URL, BODY)

    assert refused.value.status == 402
    assert len(shop.model.open) == 1
