"""What a conversation has cost and what became of its requests, as the engine tells it."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce

from foveate.cost.admission import Settled
from foveate.cost.ledger import Category, Entry
from foveate.cost.prices import EXACT, ZERO
from foveate.engine.calls import Incoming, Problem
from foveate.engine.exchange import Exchange
from foveate.engine.watch import SeenBreak, Unwatched
from foveate.fold.folding import Folded
from foveate.fold.journal import Outcome

# A bill is booked within this, or where the store is away, waits.
_BOOKED_SECONDS = 5.0
_MOST_NOTES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
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


def spent_in(entries: Iterable[Entry], *, model: str = "", category: str = "") -> Spent:
    """What calls cost together."""
    found = list(entries)
    known = [entry.dollars for entry in found if entry.dollars is not None]
    return Spent(
        model=model,
        category=category,
        calls=len(found),
        prompt_tokens=sum(entry.usage.cache.input_tokens for entry in found),
        read_tokens=sum(entry.usage.cache.read for entry in found),
        completion_tokens=sum(entry.usage.output_tokens for entry in found),
        dollars=reduce(EXACT.add, known, ZERO),
        unknown_calls=len(found) - len(known),
        partial_calls=sum(entry.is_partial for entry in found),
    )


def spent_by_model(entries: Iterable[Entry]) -> list[Spent]:
    """A row for each model and category, in the order in which they were first called."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.call.model, entry.call.category.value), []).append(entry)
    return [spent_in(group, model=model, category=category) for (model, category), group in groups.items()]


class Bills(Unwatched):
    """Hears what the engine tells of one conversation's requests."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._ended: dict[str, asyncio.Event] = {}
        self._notes: deque[str] = deque(maxlen=_MOST_NOTES)
        self._tells_folds = True
        self.last: Exchange | None = None
        """The last exchange that came to its end."""

    def of(self, sessions: Set[str]) -> list[Entry]:
        """What was billed for sessions, in its order."""
        return [entry for entry in self._entries if entry.call.session_id in sessions]

    def billed(self, entry: Entry, settled: Settled) -> None:
        """Keep a bill."""
        self._entries.append(entry)
        if settled.problem:
            self.note(f"the bill of the last call is {settled.outcome.value}: {settled.problem}")

    def ended(self, exchange: Exchange) -> None:
        """Keep what is known of an exchange at its end."""
        self.last = exchange
        self._event(exchange.incoming.id).set()

    def failed(self, incoming: Incoming, problem: Problem) -> None:
        """Note what a request went out without."""
        del incoming
        self.note(f"without {problem.step}: {problem.reason}")

    def folded(self, agent: str, folded: Folded) -> None:
        """Note that the history was folded behind an answer, or why not."""
        del agent
        fold = folded.fold
        if not self._tells_folds:
            return
        if folded.outcome is Outcome.OK and fold is not None:
            self.note(
                f"folded {fold.messages} messages: {fold.tokens_before:,} tokens are {fold.tokens_after:,} now"
            )
        elif folded.outcome is Outcome.FAILED:
            self.note(f"the history could not be folded: {folded.reason}")

    @contextmanager
    def untold_folds(self) -> Iterator[None]:
        """Folds are not noted meanwhile, since who asked for one is told."""
        self._tells_folds = False
        try:
            yield
        finally:
            self._tells_folds = True

    def broke(self, seen: SeenBreak) -> None:
        """Nothing: `foveate explain` tells it."""

    async def booked(self, request_id: str) -> None:
        """Wait until a call is over and its bill is in the ledger, or waits for it."""
        try:
            async with asyncio.timeout(_BOOKED_SECONDS):
                await self._event(request_id).wait()
        except TimeoutError:
            self.note("the bill of the last call is not booked yet")
        self._ended.clear()  # one is asked after the other

    def notes(self) -> list[str]:
        """What is to be told since it was last asked, each once."""
        told = list(dict.fromkeys(self._notes))
        self._notes.clear()
        return told

    def note(self, text: str) -> None:
        """Have something told with the next answer."""
        self._notes.append(text)

    def _event(self, request_id: str) -> asyncio.Event:
        return self._ended.setdefault(request_id, asyncio.Event())


def is_main(entry: Entry) -> bool:
    """Whether it is of an answer, and not of a summary, a count or a ping."""
    return entry.call.category is Category.MAIN
