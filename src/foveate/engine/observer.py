"""The protocol of observers of requests, for metrics, and the events that they are told."""

from dataclasses import dataclass
from typing import Protocol

from foveate.compaction.compact import CompactionResult
from foveate.cost.admission import Settlement
from foveate.cost.ledger import Charge
from foveate.engine.exchange import Exchange, ExchangeObserver
from foveate.engine.request import RoutedRequest, StepFailure
from foveate.errors import FoveateError
from foveate.prompt_cache.misses.causes import PLANNED_CAUSES
from foveate.prompt_cache.misses.explain import ExplainedMiss


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCacheMiss:
    """A request that could not read what the one before it had left, why, and what that cost."""

    at: float
    request_id: str
    previous_id: str
    agent: str
    session_id: str
    provider: str
    model: str
    verdict: ExplainedMiss

    @property
    def is_planned(self) -> bool:
        """Whether Foveate caused it on purpose."""
        return self.verdict.cause in PLANNED_CAUSES


class Observer(ExchangeObserver, Protocol):
    """Is told what becomes of requests. It is told on their way: whatever it does has to be quick."""

    def on_step(self, step: str, seconds: float) -> None:
        """How long a step has taken."""

    def on_rejected(self, agent: str, error: FoveateError) -> None:
        """A request was answered with an error of our own: a cap, the window, a provider out of reach."""

    def on_charge(self, charge: Charge, settled: Settlement) -> None:
        """A call was billed, and what became of its bill."""

    def on_compaction(self, agent: str, result: CompactionResult) -> None:
        """What became of a fold of one of an agent's sessions."""

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        """A request could not read what the one before it had left in the provider's cache."""


class NullObserver:
    """Tells nobody."""

    def on_failure(self, incoming: RoutedRequest, problem: StepFailure) -> None:
        """Nothing."""

    def on_step(self, step: str, seconds: float) -> None:
        """Nothing."""

    def on_rejected(self, agent: str, error: FoveateError) -> None:
        """Nothing."""

    def on_finished(self, exchange: Exchange) -> None:
        """Nothing."""

    def on_charge(self, charge: Charge, settled: Settlement) -> None:
        """Nothing."""

    def on_compaction(self, agent: str, result: CompactionResult) -> None:
        """Nothing."""

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        """Nothing."""


NO_OBSERVER = NullObserver()
