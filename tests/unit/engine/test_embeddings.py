"""Embeddings: parsed for model and size, admitted under caps, and recorded by their usage."""

import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest

from foveate.cost.admission import Admission
from foveate.cost.caps import Cap, CapScope, UnknownPricePolicy
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.counting.offline_counters import load_counter
from foveate.engine.embeddings import EmbeddingsEngine, read_embeddings_model, read_embeddings_request
from foveate.engine.exchange import Exchange
from foveate.engine.options import SpendingOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.spending.charges import ChargeRecorder
from foveate.engine.spending.observed_admission import CapUncounted
from foveate.errors import CapExceeded, CapUncheckable, DuplicateKey, MalformedRequest
from foveate.model import Format
from foveate.tokens.offline_counters import CounterOptions
from tests.support.oracles.event_loop import turns_while
from tests.support.servers.sandbox import ManualClock
from tests.support.stores.recording_ledger import RecordingLedger

MODEL = "text-embedding-3-small"
PER_TOKEN = Decimal("0.02e-6")
PRICES = PriceBook()


def make_body(inputs: Any, model: Any = MODEL) -> bytes:
    return json.dumps({"model": model, "input": inputs}).encode()


class EmbeddingsSetup:
    def __init__(self, *caps: Cap) -> None:
        self.ledger, clock = RecordingLedger(), ManualClock()
        admission = Admission(self.ledger, clock=clock)
        spending = SpendingOptions(caps=caps, prices=PRICES)
        uncounted = CapUncounted(admission, lambda: spending, clock)
        charges = ChargeRecorder(admission, lambda: spending)
        self.embeddings = EmbeddingsEngine(
            admission=admission,
            charges=charges,
            options=lambda: spending,
            admit_uncounted=uncounted,
            clock=clock,
            completion_queue=CompletionQueue(charges),
        )

    async def prepare(self, body: bytes) -> Exchange:
        return await self.embeddings.prepare(
            IncomingRequest(
                id="e", agent="ana", api_format=Format.CHAT, provider="openai", upstream="openai", body=body
            )
        )


def total_cap(dollars: str, unknown: UnknownPricePolicy = UnknownPricePolicy.REJECT) -> Cap:
    return Cap(scope=CapScope.TOTAL, dollars=Decimal(dollars), unknown=unknown)


@pytest.mark.parametrize(
    ("inputs", "tokens"),
    [
        ("Hello world", 2),
        (["Hello world", "Hello world"], 4),
        ([1, 2, 3], 3),
        ([[1, 2, 3], [4]], 4),
        ([], 0),
    ],
)
def test_texts_and_token_ids_are_counted(inputs: Any, tokens: int) -> None:
    embeddings = read_embeddings_request(*read_embeddings_model(make_body(inputs)))

    assert (embeddings.model, embeddings.count.tokens) == (MODEL, tokens)
    assert embeddings.count.upper >= tokens


@pytest.mark.parametrize(
    "body",
    [
        b"no",
        b"{}",
        make_body("x", None),
        make_body("x", ""),
        make_body("x", "m" * 1_001),
        make_body(None),
        make_body([{"a": 1}]),
        make_body([1, "x"]),
        make_body(7),
    ],
)
async def test_an_unreadable_request_is_rejected_under_a_cap_and_sent_without_one(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_embeddings_request(*read_embeddings_model(body))
    with pytest.raises(CapUncheckable):
        await EmbeddingsSetup(total_cap("1")).prepare(body)
    setup = EmbeddingsSetup()
    exchange = await setup.prepare(body)
    exchange.finish()
    await exchange.wait_until_completed()
    assert exchange.upstream_request.body == body
    assert setup.ledger.settled == []


@pytest.mark.parametrize(("times", "is_in_thread"), [(5, False), (5_000, True)])
async def test_long_texts_are_counted_in_a_thread(times: int, is_in_thread: bool) -> None:
    """Defect: counting the input of embeddings blocked all other requests."""
    await load_counter(CounterOptions(), MODEL)
    assert (
        await turns_while(EmbeddingsSetup().prepare(make_body(["Hello there! " * times]))) > 0
    ) == is_in_thread


_TURNS_OF_FIRST_REQUEST = """
import asyncio
from tests.support.oracles.event_loop import turns_while
from tests.unit.engine.test_embeddings import EmbeddingsSetup, make_body

print(asyncio.run(turns_while(EmbeddingsSetup().prepare(make_body("Hello world")))))
"""


@pytest.mark.process
def test_the_first_request_loads_its_vocabulary_in_a_thread() -> None:
    """Regression: it blocked all other requests for 0.3 s."""
    assert int(subprocess.check_output([sys.executable, "-c", _TURNS_OF_FIRST_REQUEST])) > 0


async def test_empty_usage_is_unknown_and_not_free() -> None:
    """Defect: calls to hosts that report 0 tokens were recorded as free."""
    setup = EmbeddingsSetup(total_cap("1"))
    exchange = await setup.prepare(make_body("Hello world"))
    exchange.on_response_start(200, is_streaming=False)
    exchange.on_chunk(b'{"data": [], "usage": {"prompt_tokens": 0, "total_tokens": 0}}')
    exchange.flush()
    exchange.finish()
    await exchange.wait_until_completed()

    (charge,) = setup.ledger.settled
    assert charge.dollars is None
    assert setup.ledger.spent["total"] == setup.ledger.reserved[0].dollars > 0


async def test_the_ceiling_is_reserved_and_the_charge_recorded() -> None:
    setup = EmbeddingsSetup(total_cap("1"))
    exchange = await setup.prepare(make_body([[1] * 1_000]))
    (reserved,) = setup.ledger.reserved
    exchange.on_response_start(200, is_streaming=False)
    exchange.on_chunk(b'{"data": [], "usage": {"prompt_tokens": 900, "total_tokens": 900}}')
    exchange.flush()
    exchange.finish()
    await exchange.wait_until_completed()

    (charge,) = setup.ledger.settled
    assert reserved.dollars == 1_000 * PER_TOKEN
    assert (charge.dollars, charge.call.model, charge.is_partial) == (900 * PER_TOKEN, MODEL, False)
    assert (charge.estimated_input_tokens, charge.usage.cache.uncached) == (1_000, 900)
    assert setup.ledger.open == {}


async def test_a_spent_cap_or_an_unknown_price_rejects_the_request() -> None:
    with pytest.raises(CapExceeded):
        await EmbeddingsSetup(total_cap("0.000001")).prepare(make_body([[1] * 1_000]))
    with pytest.raises(CapUncheckable):
        await EmbeddingsSetup(total_cap("1")).prepare(make_body("x", "nobody-knows-it"))


@pytest.mark.parametrize(("status", "is_charged"), [(0, True), (200, True), (429, False), (500, False)])
async def test_without_usage_the_reservation_is_charged_unless_the_call_failed(
    status: int, is_charged: bool
) -> None:
    setup = EmbeddingsSetup(total_cap("1"))
    exchange = await setup.prepare(make_body([[1] * 1_000]))
    if status:
        exchange.on_response_start(status, is_streaming=False)
    exchange.finish(is_interrupted=True)
    await exchange.wait_until_completed()

    assert setup.ledger.spent.get("total", 0) == (1_000 * PER_TOKEN if is_charged else 0)
    assert setup.ledger.open == {}


@pytest.mark.parametrize("caps", [(), (total_cap("0.01"),), (total_cap("0.01", UnknownPricePolicy.ALLOW),)])
async def test_embeddings_with_a_duplicate_key_are_rejected(caps: tuple[Cap, ...]) -> None:
    body = b'{"model":"text-embedding-3-large","input":"Hi","mod\\u0065l":"text-embedding-3-small"}'

    with pytest.raises(DuplicateKey, match="`model` occurs twice"):
        await EmbeddingsSetup(*caps).prepare(body)
