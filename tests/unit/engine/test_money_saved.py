"""What was saved on a call is noted with its bill: whoever books it, now or after a crash, tells the same."""

import asyncio
import json
from decimal import Decimal

from foveate.cost.admission import Admission
from foveate.cost.ledger import Entry
from foveate.cost.price_book import PriceBook
from foveate.cost.savings import with_savings
from foveate.engine.behind import Behind
from foveate.engine.calls import Done, Incoming
from foveate.engine.engine import Engine
from foveate.engine.money import Book, HoldCaps, MoneyOptions
from foveate.engine.options import AgentOptions
from foveate.engine.remembered import Remembered
from foveate.engine.steps import ReplaceHistory
from foveate.engine.uncounted import HoldUncounted
from foveate.engine.work import Work
from foveate.values import Format, ReplaceMessages, TokenCount
from tests.sandboxes import Clock
from tests.unit.engine.ledgers import InMemory
from tests.unit.engine.test_engine import Watching
from tests.unit.engine.test_noting import Jotted

PRICES = PriceBook()
FOLDED = 90_000
OPUS_READ, OPUS_WRITE = Decimal("0.5e-6"), Decimal("6.25e-6")
BODY = b'{"model": "claude-opus-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}'


class Folded:
    """The steps before: a summary stands for much of the history."""

    name = "folded"

    async def take(self, work: Work) -> None:
        work.count = TokenCount(10_000, exact=True, upper=10_000)
        edit = ReplaceMessages(start=0, end=1, messages=(), reason="", saved_tokens=FOLDED)
        work.done.append(Done(ReplaceHistory.name, edit))


class Till:
    """A gateway that has just started, with all that it jots down and books."""

    def __init__(self) -> None:
        self.ledger, self.notes, self.clock = InMemory(), Jotted(), Clock()
        admission = Admission(self.ledger, clock=self.clock, notes=self.notes)
        money = MoneyOptions(caps=(), prices=PRICES)
        book = Book(admission, lambda: money, Remembered())
        self._engine = Engine(
            steps=(Folded(), HoldCaps(admission, lambda: money)),
            settle=(),
            note=book.note,
            remember=(book,),
            behind=Behind(admission),
            options=lambda _: AgentOptions(),
            clock=self.clock,
            watch=Watching(),
            uncounted=HoldUncounted(admission, lambda: money, self.clock),
        )

    async def booked(self, **usage: int) -> Entry:
        """The bill of one more call of a session."""
        incoming = Incoming(
            id=f"call {len(self.notes.bills)}",
            agent="ana",
            spoken=Format.ANTHROPIC,
            provider="anthropic",
            upstream="u",
            body=BODY,
        )
        exchange = await self._engine.prepare(incoming)
        await asyncio.sleep(0)  # it is sent
        exchange.begun(200, streams=False)
        exchange.passed(json.dumps({"usage": {"output_tokens": 5, **usage}}).encode())
        exchange.rest()
        exchange.over()
        await exchange.settled()
        return self.ledger.settled[-1]


async def test_a_bill_is_jotted_down_with_all_that_is_needed_to_tell_what_was_saved_and_expected() -> None:
    """Defect: where its process was killed before it was booked, neither was known."""
    till = Till()
    booked = await till.booked(cache_creation_input_tokens=10_000)

    (noted,) = till.notes.bills
    assert noted.left_out is not None
    assert with_savings(noted, PRICES) == booked
    assert booked.estimated_dollars is not None


async def test_where_most_was_read_so_would_have_been_what_a_fold_took_whoever_kept_it_warm() -> None:
    """Defect: the first call after a restart, or at another gateway, was said to save a dozen times as much."""
    warm = await Till().booked(cache_read_input_tokens=9_900, cache_creation_input_tokens=100)
    cold = await Till().booked(cache_creation_input_tokens=10_000)

    assert warm.savings.folds == FOLDED * OPUS_READ
    assert cold.savings.folds == FOLDED * OPUS_WRITE
