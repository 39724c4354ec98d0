"""The protocol of observers of requests, used for metrics, and the events that they receive."""

from dataclasses import dataclass
from typing import Protocol

from foveate.compaction.compact import CompactionResult
from foveate.cost.admission import Settlement
from foveate.cost.ledger import Charge
from foveate.engine.exchange import Exchange, ExchangeObserver
from foveate.engine.request import IncomingRequest, StepFailure
from foveate.errors import FoveateError
from foveate.prompt_cache.misses.causes import PLANNED_CAUSES
from foveate.prompt_cache.misses.explain import ExplainedMiss

SHORT_MESSAGE = "short_message"
"""Attribute of a log record: the message for people at a terminal. JSON logs have the complete one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCacheMiss:
    """A request that could not read what the previous one had cached, the cause, and its cost."""

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
        """Return whether Foveate caused it on purpose."""
        return self.verdict.cause in PLANNED_CAUSES


class Observer(ExchangeObserver, Protocol):
    """Is notified about requests while they run, so it must be quick."""

    def on_step(self, step: str, seconds: float) -> None: ...

    def on_rejected(self, agent: str, error: FoveateError) -> None:
        """Called when the response is one of our own errors: a cap, the window, an unreachable provider."""

    def on_charge(self, charge: Charge, settlement: Settlement) -> None: ...

    def on_compaction(self, agent: str, result: CompactionResult) -> None: ...

    def on_cache_miss(self, miss: SessionCacheMiss) -> None: ...


class NullObserver:
    """Ignores everything; a base class for observers of a few events."""

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None: ...

    def on_step(self, step: str, seconds: float) -> None: ...

    def on_rejected(self, agent: str, error: FoveateError) -> None: ...

    def on_finished(self, exchange: Exchange) -> None: ...

    def on_charge(self, charge: Charge, settlement: Settlement) -> None: ...

    def on_compaction(self, agent: str, result: CompactionResult) -> None: ...

    def on_cache_miss(self, miss: SessionCacheMiss) -> None: ...


NO_OBSERVER = NullObserver()
