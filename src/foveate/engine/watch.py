"""The protocol of observers of requests, for metrics, and the events that they are told."""

from dataclasses import dataclass
from typing import Protocol

from foveate.cache.causes import PLANNED
from foveate.cache.explain import Break
from foveate.cost.admission import Settled
from foveate.cost.ledger import Entry
from foveate.engine.calls import Incoming, Problem
from foveate.engine.exchange import Exchange, ExchangeObserver
from foveate.errors import FoveateError
from foveate.fold.folding import Folded


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBreak:
    """A request that could not read what the one before it had left, why, and what that cost."""

    at: float
    request_id: str
    previous_id: str
    agent: str
    session_id: str
    provider: str
    model: str
    verdict: Break

    @property
    def is_planned(self) -> bool:
        """Whether Foveate caused it on purpose."""
        return self.verdict.cause in PLANNED


class Watch(ExchangeObserver, Protocol):
    """Is told what becomes of requests. It is told on their way: whatever it does has to be quick."""

    def took(self, step: str, seconds: float) -> None:
        """How long a step has taken."""

    def refused(self, agent: str, error: FoveateError) -> None:
        """A request was answered with an error of our own: a cap, the window, a provider out of reach."""

    def billed(self, entry: Entry, settled: Settled) -> None:
        """A call was billed, and what became of its bill."""

    def folded(self, agent: str, folded: Folded) -> None:
        """What became of a fold of one of an agent's sessions."""

    def broke(self, seen: SeenBreak) -> None:
        """A request could not read what the one before it had left in the provider's cache."""


class Unwatched:
    """Tells nobody."""

    def failed(self, incoming: Incoming, problem: Problem) -> None:
        """Nothing."""

    def took(self, step: str, seconds: float) -> None:
        """Nothing."""

    def refused(self, agent: str, error: FoveateError) -> None:
        """Nothing."""

    def ended(self, exchange: Exchange) -> None:
        """Nothing."""

    def billed(self, entry: Entry, settled: Settled) -> None:
        """Nothing."""

    def folded(self, agent: str, folded: Folded) -> None:
        """Nothing."""

    def broke(self, seen: SeenBreak) -> None:
        """Nothing."""


UNWATCHED = Unwatched()
