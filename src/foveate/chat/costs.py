"""Charges and events of a conversation, as the engine reports them."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce

from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.admission import Settlement, SettlementOutcome
from foveate.cost.ledger import Category, Charge
from foveate.cost.pricing.rates import EXACT, ZERO
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver, SessionCacheMiss
from foveate.engine.request import IncomingRequest, StepFailure

# A charge is recorded within this time, or waits in the outbox.
_CHARGE_TIMEOUT_SECONDS = 5.0
_MAX_NOTES = 100
_OUTCOMES = {
    SettlementOutcome.RECORDED: "recorded",
    SettlementOutcome.ALREADY_RECORDED: "recorded already",
    SettlementOutcome.WAITING: "waiting to be recorded",
    SettlementOutcome.LOST: "lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTotals:
    """Totals of calls. `dollars` covers calls with a known price; `unknown_calls` have none."""

    model: str = ""
    category: str = ""
    calls: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    completion_tokens: int = 0
    dollars: Decimal = ZERO
    unknown_calls: int = 0
    partial_calls: int = 0
    saved_dollars: Decimal | None = None
    """Savings compared with the same requests without Foveate; None if unknown, negative for a loss."""

    @property
    def hit_ratio(self) -> float | None:
        """The share of prompt tokens read from the provider's cache; None without prompts."""
        return self.read_tokens / self.prompt_tokens if self.prompt_tokens else None


def sum_charges(charges: Iterable[Charge], *, model: str = "", category: str = "") -> CallTotals:
    all_charges = list(charges)
    known_dollars = [charge.dollars for charge in all_charges if charge.dollars is not None]
    known_savings = [saved for charge in all_charges if (saved := charge.savings.total) is not None]
    return CallTotals(
        model=model,
        category=category,
        calls=len(all_charges),
        prompt_tokens=sum(charge.usage.cache.input_tokens for charge in all_charges),
        read_tokens=sum(charge.usage.cache.read for charge in all_charges),
        completion_tokens=sum(charge.usage.output_tokens for charge in all_charges),
        dollars=reduce(EXACT.add, known_dollars, ZERO),
        unknown_calls=len(all_charges) - len(known_dollars),
        partial_calls=sum(charge.is_partial for charge in all_charges),
        saved_dollars=reduce(EXACT.add, known_savings, ZERO) if known_savings else None,
    )


def sum_charges_by_model(charges: Iterable[Charge]) -> list[CallTotals]:
    """Sum charges by model and category, in the order of their first calls."""
    groups: dict[tuple[str, str], list[Charge]] = {}
    for charge in charges:
        groups.setdefault((charge.call.model, charge.call.category.value), []).append(charge)
    return [sum_charges(group, model=model, category=category) for (model, category), group in groups.items()]


class ChatObserver(NullObserver):
    def __init__(self) -> None:
        self._charges: list[Charge] = []
        self._finished: dict[str, asyncio.Event] = {}
        self._notes: deque[str] = deque(maxlen=_MAX_NOTES)
        self._notes_compactions = True
        self.last_exchange: Exchange | None = None
        """The last exchange that ended."""

    @property
    def all_charges(self) -> list[Charge]:
        return list(self._charges)

    def charges_for(self, sessions: Set[str]) -> list[Charge]:
        return [charge for charge in self._charges if charge.call.session_id in sessions]

    def on_charge(self, charge: Charge, settlement: Settlement) -> None:
        self._charges.append(charge)
        if settlement.problem:
            self.add_note(
                f"the charge of the last call is {_OUTCOMES[settlement.outcome]}: {settlement.problem}"
            )

    def on_finished(self, exchange: Exchange) -> None:
        self.last_exchange = exchange
        self._event(exchange.incoming.id).set()

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        """Note the step that a request was sent without."""
        del incoming
        self.add_note(f"the request was sent without the step {problem.step}: {problem.reason}")

    def on_compaction(self, agent: str, result: CompactionResult) -> None:
        del agent
        compaction = result.compaction
        if not self._notes_compactions:
            return
        if result.outcome is CompactionOutcome.OK and compaction is not None:
            self.add_note(
                f"compacted {compaction.messages} messages from {compaction.tokens_before:,} to "
                f"{compaction.tokens_after:,} tokens"
            )
        elif result.outcome is CompactionOutcome.FAILED:
            self.add_note(f"the history could not be compacted: {result.reason}")

    @contextmanager
    def mute_compactions(self) -> Iterator[None]:
        """Add no notes about compactions until the end of the block; the caller reports its own."""
        self._notes_compactions = False
        try:
            yield
        finally:
            self._notes_compactions = True

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        """Do nothing: `foveate explain` shows it."""

    async def wait_for_charge(self, request_id: str) -> None:
        """Wait until a call has ended, and its charge is in the ledger or the outbox."""
        try:
            async with asyncio.timeout(_CHARGE_TIMEOUT_SECONDS):
                await self._event(request_id).wait()
        except TimeoutError:
            self.add_note("the charge of the last call is not recorded yet")
        self._finished.clear()  # there is only one request at a time

    def take_notes(self) -> list[str]:
        """Return and clear the notes, without duplicates."""
        notes = list(dict.fromkeys(self._notes))
        self._notes.clear()
        return notes

    def add_note(self, text: str) -> None:
        self._notes.append(text)

    def _event(self, request_id: str) -> asyncio.Event:
        return self._finished.setdefault(request_id, asyncio.Event())


def is_main_call(charge: Charge) -> bool:
    """Summaries, counts and keep-alive requests are not main calls."""
    return charge.call.category is Category.MAIN
