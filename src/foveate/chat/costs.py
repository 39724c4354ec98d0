"""What a conversation has cost and what became of its requests, as the engine tells it."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce

from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.admission import Settlement
from foveate.cost.ledger import Category, Charge
from foveate.cost.pricing.rates import EXACT, ZERO
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver, SessionCacheMiss
from foveate.engine.request import RoutedRequest, StepFailure

# A bill is booked within this, or where the store is away, waits.
_CHARGE_TIMEOUT_SECONDS = 5.0
_MAX_NOTES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeTotals:
    """Some calls added up. `dollars` are those of calls with a known price; `unknown_calls` have none."""

    model: str = ""
    category: str = ""
    calls: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    completion_tokens: int = 0
    dollars: Decimal = ZERO
    unknown_calls: int = 0
    partial_calls: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Which share of the prompts was read from the provider's cache; None where there were none."""
        return self.read_tokens / self.prompt_tokens if self.prompt_tokens else None


def sum_charges(charges: Iterable[Charge], *, model: str = "", category: str = "") -> ChargeTotals:
    """What calls cost together."""
    all_charges = list(charges)
    known = [charge.dollars for charge in all_charges if charge.dollars is not None]
    return ChargeTotals(
        model=model,
        category=category,
        calls=len(all_charges),
        prompt_tokens=sum(charge.usage.cache.input_tokens for charge in all_charges),
        read_tokens=sum(charge.usage.cache.read for charge in all_charges),
        completion_tokens=sum(charge.usage.output_tokens for charge in all_charges),
        dollars=reduce(EXACT.add, known, ZERO),
        unknown_calls=len(all_charges) - len(known),
        partial_calls=sum(charge.is_partial for charge in all_charges),
    )


def sum_charges_by_model(charges: Iterable[Charge]) -> list[ChargeTotals]:
    """A row for each model and category, in the order in which they were first called."""
    groups: dict[tuple[str, str], list[Charge]] = {}
    for charge in charges:
        groups.setdefault((charge.call.model, charge.call.category.value), []).append(charge)
    return [sum_charges(group, model=model, category=category) for (model, category), group in groups.items()]


class ChatObserver(NullObserver):
    """Hears what the engine tells of one conversation's requests."""

    def __init__(self) -> None:
        self._charges: list[Charge] = []
        self._finished: dict[str, asyncio.Event] = {}
        self._notes: deque[str] = deque(maxlen=_MAX_NOTES)
        self._notes_compactions = True
        self.last_exchange: Exchange | None = None
        """The last exchange that came to its end."""

    def charges_for(self, sessions: Set[str]) -> list[Charge]:
        """What was billed for sessions, in its order."""
        return [charge for charge in self._charges if charge.call.session_id in sessions]

    def on_charge(self, charge: Charge, settled: Settlement) -> None:
        """Keep a bill."""
        self._charges.append(charge)
        if settled.problem:
            self.add_note(f"the bill of the last call is {settled.outcome.value}: {settled.problem}")

    def on_finished(self, exchange: Exchange) -> None:
        """Keep what is known of an exchange at its end."""
        self.last_exchange = exchange
        self._event(exchange.incoming.id).set()

    def on_failure(self, incoming: RoutedRequest, problem: StepFailure) -> None:
        """Note what a request went out without."""
        del incoming
        self.add_note(f"without {problem.step}: {problem.reason}")

    def on_compaction(self, agent: str, result: CompactionResult) -> None:
        """Note that the history was folded behind an answer, or why not."""
        del agent
        fold = result.compaction
        if not self._notes_compactions:
            return
        if result.outcome is CompactionOutcome.OK and fold is not None:
            self.add_note(
                f"folded {fold.messages} messages: {fold.tokens_before:,} tokens are {fold.tokens_after:,} now"
            )
        elif result.outcome is CompactionOutcome.FAILED:
            self.add_note(f"the history could not be folded: {result.reason}")

    @contextmanager
    def mute_compactions(self) -> Iterator[None]:
        """Folds are not noted meanwhile, since who asked for one is told."""
        self._notes_compactions = False
        try:
            yield
        finally:
            self._notes_compactions = True

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        """Nothing: `foveate explain` tells it."""

    async def wait_for_charge(self, request_id: str) -> None:
        """Wait until a call is over and its bill is in the ledger, or waits for it."""
        try:
            async with asyncio.timeout(_CHARGE_TIMEOUT_SECONDS):
                await self._event(request_id).wait()
        except TimeoutError:
            self.add_note("the bill of the last call is not booked yet")
        self._finished.clear()  # one is asked after the other

    def take_notes(self) -> list[str]:
        """What is to be told since it was last asked, each once."""
        notes = list(dict.fromkeys(self._notes))
        self._notes.clear()
        return notes

    def add_note(self, text: str) -> None:
        """Have something told with the next answer."""
        self._notes.append(text)

    def _event(self, request_id: str) -> asyncio.Event:
        return self._finished.setdefault(request_id, asyncio.Event())


def is_main_call(charge: Charge) -> bool:
    """Whether it is of an answer, and not of a summary, a count or a ping."""
    return charge.call.category is Category.MAIN
