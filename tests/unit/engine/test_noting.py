"""A bill is jotted down before its client has all of the answer, once, whatever the call was for."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.cost.admission import Admission, Admitted
from foveate.cost.ledger import Call, Category, Entry
from foveate.cost.price_book import PriceBook
from foveate.engine.behind import Behind
from foveate.engine.calls import Incoming
from foveate.engine.embeddings import Embeddings
from foveate.engine.engine import Engine
from foveate.engine.exchange import Exchange
from foveate.engine.money import Book
from foveate.engine.options import AgentOptions, MoneyOptions
from foveate.engine.remembered import Remembered
from foveate.engine.steps.caps import HoldCaps
from foveate.engine.summaries import PaidClient, Payment
from foveate.engine.uncounted import HoldUncounted
from foveate.engine.work import Work
from foveate.values import Format, Savings, TokenCount
from tests.sandboxes import Clock
from tests.unit.engine.ledgers import InMemory
from tests.unit.engine.test_engine import Watching
from tests.unit.engine.test_folds import BODY, MODEL, URL, Asked
from tests.unit.fold.folders import TOLD


class Jotted:
    """Remembers what was jotted down, and what is crossed out."""

    def __init__(self) -> None:
        self.bills: list[Entry] = []
        self.crossed_out: list[str] = []
        self.discarded: list[str] = []

    def jot(self, entry: Entry) -> None:
        self.bills.append(entry)

    def cross_out(self, call_id: str) -> None:
        self.crossed_out.append(call_id)

    def discard(self, call_id: str) -> None:
        self.discarded.append(call_id)


class Desk:
    """An engine of nothing but money, embeddings beside it, and a ledger that both have."""

    def __init__(self) -> None:
        self.ledger, self.notes, clock = InMemory(), Jotted(), Clock()
        self.admission = Admission(self.ledger, clock=clock, notes=self.notes)
        self.money = MoneyOptions(caps=(), prices=PriceBook())
        uncounted = HoldUncounted(self.admission, lambda: self.money, clock)
        book = Book(self.admission, lambda: self.money, Remembered())
        self.engine = Engine(
            steps=(HoldCaps(self.admission, lambda: self.money),),
            settle=(),
            note=book.note,
            announce=book.announce,
            remember=(book,),
            behind=Behind(self.admission),
            options=lambda _: AgentOptions(),
            clock=clock,
            watch=Watching(),
            uncounted=uncounted,
        )
        self.embeddings = Embeddings(
            admission=self.admission,
            options=lambda: self.money,
            uncounted=uncounted,
            clock=clock,
            behind=self.engine.behind,
        )

    async def asked(
        self, spoken: Format, *, is_embeddings: bool = False, provider: str = "p", **said: Any
    ) -> Exchange:
        prepare = self.embeddings.prepare if is_embeddings else self.engine.prepare
        body = json.dumps(said).encode()
        return await prepare(
            Incoming(id="call", agent="ana", spoken=spoken, provider=provider, upstream="u", body=body)
        )


def events(*said: dict[str, Any] | str) -> list[bytes]:
    return [b"data: %b\n\n" % (one if isinstance(one, str) else json.dumps(one)).encode() for one in said]


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
    ("spoken", "stream"), [(Format.ANTHROPIC, CLAUDE), (Format.CHAT, CHAT), (Format.RESPONSES, RESPONSES)]
)
@pytest.mark.parametrize("is_broken", [False, True])
async def test_the_bill_of_a_stream_is_jotted_down_before_its_last_event_is_passed_on(
    spoken: Format, stream: list[bytes], is_broken: bool
) -> None:
    """Defect: it was when the connection to the provider was done, and a process killed until then lost it."""
    desk = Desk()
    said = {"input": "Hi"} if spoken is Format.RESPONSES else {"messages": HELLO}
    exchange = await desk.asked(spoken, model="m", max_tokens=9, stream=True, **said)
    (announced,) = desk.notes.bills
    assert announced.is_possibly_charged
    exchange.begun(200, streams=True)
    for piece in stream[:-1]:
        exchange.passed(piece)
        assert desk.notes.bills == [announced]
    assert exchange.passed(stream[-1]) == stream[-1]
    (_, jotted) = desk.notes.bills
    exchange.over(is_broken=is_broken)
    await exchange.settled()

    assert (jotted.usage.output_tokens, jotted.is_partial) == (42, False)
    (booked,) = desk.ledger.settled
    assert replace(booked, savings=Savings()) == jotted  # the rest, which nobody waits for, is added behind it
    assert desk.notes.bills == [announced, jotted]
    assert desk.notes.crossed_out == ["call"]


async def test_the_bill_of_embeddings_is_jotted_down_and_waited_for_as_any_other() -> None:
    """Defect: it was in no file until it was booked, and a gateway could end before that."""
    desk = Desk()
    exchange = await desk.asked(Format.CHAT, is_embeddings=True, model="text-embedding-3-small", input="Hi")
    exchange.begun(200, streams=False)
    exchange.passed(b'{"data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}}')
    exchange.rest()
    exchange.over()  # nobody waits for it
    (announced, jotted) = desk.notes.bills
    assert announced.is_possibly_charged
    await desk.engine.close()

    assert desk.ledger.settled == [jotted]
    assert desk.notes.crossed_out == ["call"]


async def test_the_bill_of_a_summary_is_jotted_down_until_it_is_booked() -> None:
    """Defect: it was in no file until it was booked."""
    desk = Desk()
    call = Call(
        id="call",
        agent="ana",
        session_id="s",
        provider="anthropic",
        model=MODEL,
        category=Category.COMPACTION,
        at=0.0,
    )
    payment = Payment(
        admission=desk.admission, options=lambda: desk.money, call=lambda: call, spoken=Format.ANTHROPIC
    )
    await PaidClient(Asked(desk.ledger, TOLD), payment, Admitted(call=call)).post_json(URL, BODY)

    announced, *bills = desk.notes.bills
    assert announced.is_possibly_charged
    assert bills == desk.ledger.settled
    assert desk.notes.crossed_out == ["call"]


@pytest.mark.parametrize("is_embeddings", [False, True])
async def test_a_call_that_the_provider_refuses_is_not_noted_any_longer(is_embeddings: bool) -> None:
    desk = Desk()
    said: dict[str, Any] = {"input": "Hi"} if is_embeddings else {"messages": HELLO}
    exchange = await desk.asked(Format.CHAT, is_embeddings=is_embeddings, model="gpt-5.6", **said)
    exchange.begun(400, streams=False)
    exchange.passed(b"{}")
    exchange.over()
    await exchange.settled()

    assert desk.ledger.settled == []
    assert desk.notes.discarded == ["call"]


async def test_the_most_that_a_call_can_cost_is_noted_once_it_is_known() -> None:
    desk = Desk()
    desk.engine = dataclasses.replace(desk.engine, steps=(CountOne(), *desk.engine.steps))
    exchange = await desk.asked(
        Format.CHAT, provider="openai", model="gpt-5.4", max_completion_tokens=9, messages=HELLO
    )
    await asyncio.sleep(0)  # what is done while the provider answers
    before, after = desk.notes.bills
    assert (before.estimated_dollars, before.estimated_input_tokens) == (None, 7)
    assert after.estimated_dollars is not None
    assert after.charge == after.estimated_dollars
    assert after.estimated_dollars > 0

    exchange.unsent()
    exchange.over(is_broken=True)
    desk.admission.announce_ceiling("call", after.estimated_dollars)
    await exchange.settled()
    assert len(desk.notes.bills) == 2  # what is over is not noted again
    assert desk.notes.discarded == ["call"]


class CountOne:
    """A step that has counted the request."""

    name = "count"

    async def take(self, work: Work) -> None:
        work.count = TokenCount(7, exact=True, upper=7)
