"""The observer that counts requests for metrics, and keeps recent failures for health checks.

Labels have a limited cardinality, since anybody can send any agent in a header and any model in a body.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.admission import Settlement, SettlementOutcome
from foveate.cost.ledger import Charge
from foveate.engine.exchange import Exchange
from foveate.engine.metrics import definitions
from foveate.engine.metrics.definitions import MetricDefinition
from foveate.engine.metrics.registry import Histogram, MetricsRegistry, Sample
from foveate.engine.observer import SessionCacheMiss
from foveate.engine.redaction import redact_keys
from foveate.engine.request import IncomingRequest, StepFailure
from foveate.errors import FoveateError
from foveate.formats.response.rate_limits import RateLimit
from foveate.model import ComparisonOutcome
from foveate.prompt_cache.hit_ratio import HitRatios

OTHER = "other"
"""Replaces values beyond the limit."""

MAX_VALUES = 100
MAX_LABEL_SETS = 300
MAX_LABEL_CHARS = 80
MAX_PATH_CHARS = 4096
RECENT_SECONDS = 300.0
_MAX_FAILURES = 1000
_COMPACTION_STEP = "compaction"
_BOOL_LABELS = {True: "true", False: "false"}
_CallLabels = tuple[str, str, str]


class CardinalityLimiter:
    """The values of a label: known ones, and the first `max_values` of all others.

    A value longer than `max_chars` is not shown, unless it is known.
    """

    def __init__(
        self,
        known_values: Iterable[str] = (),
        *,
        max_values: int = MAX_VALUES,
        max_chars: int = MAX_LABEL_CHARS,
    ) -> None:
        self._labels = {OTHER: OTHER, "": ""}
        self._max_values = max_values
        self._max_chars = max_chars
        self._new_values = 0
        self.add_known(known_values)

    def add_known(self, values: Iterable[str]) -> None:
        for value in values:
            self._labels.setdefault(value, _to_label(value))

    def label(self, value: str, *, may_be_new: bool = True) -> str:
        """The label for a value. An unconfirmed one (`may_be_new` is false) takes no place."""
        text = self._labels.get(value)
        if text is not None:
            return text
        if not may_be_new or self._new_values >= self._max_values or len(value) > self._max_chars:
            return OTHER
        self._new_values += 1
        self._labels[value] = _to_label(value)
        return self._labels[value]


def _to_label(value: str) -> str:
    return redact_keys(replace_unprintable(value))


def replace_unprintable(value: str) -> str:
    """Replace what is not printable, and unpaired surrogates."""
    if value.isascii() and value.isprintable():
        return value
    printable = "".join(char if char.isprintable() else "?" for char in value)
    return printable.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class RecentFailure:
    problem: StepFailure
    request_id: str
    at: float


class RecentFailures:
    def __init__(self) -> None:
        self._failures: deque[RecentFailure] = deque(maxlen=_MAX_FAILURES)

    def add(self, problem: StepFailure, request_id: str, *, at: float) -> None:
        self._failures.append(RecentFailure(problem, request_id, at))

    def count_by_step(self, now: float, *, seconds: float = RECENT_SECONDS) -> Mapping[str, int]:
        return Counter(failure.problem.step for failure in self._failures if now - failure.at <= seconds)


class WorkspaceCacheCounts(Protocol):
    @property
    def hits(self) -> int: ...

    @property
    def misses(self) -> int: ...

    @property
    def invalidations(self) -> int: ...


class MetricsCollector:
    """The metrics of one process. Not thread-safe: for one event loop."""

    def __init__(self, *, version: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._registry = MetricsRegistry()
        self._agents, self._models = CardinalityLimiter(), CardinalityLimiter()
        self._paths = CardinalityLimiter(max_chars=MAX_PATH_CHARS)  # named by an operator, and long
        self._call_labels: set[_CallLabels] = set()
        self._step_seconds: dict[str, Histogram] = {}
        self._hit_ratios = HitRatios()
        self._seen_agents: set[str] = set()
        self._polls: list[Callable[[], None]] = []
        self._totals: dict[tuple[str, str], float] = {}
        self._rate_limits: dict[tuple[str, str, str], RateLimit] = {}
        self.recent_failures = RecentFailures()
        self.open_requests = self._registry.scalar(definitions.OPEN_REQUESTS)
        self.open_streams = self._registry.scalar(definitions.OPEN_STREAMS)
        self.request_bytes = self._registry.scalar(definitions.REQUEST_BYTES)
        self.response_bytes = self._registry.scalar(definitions.RESPONSE_BYTES)
        self._registry.scalar(definitions.BUILD, version).value = 1
        self._registry.histogram(definitions.ADDED_SECONDS)
        for outcome in SettlementOutcome:
            self._registry.scalar(definitions.CHARGES, outcome.value)
        self.set_charges(waiting=0, lost=0, expired=0)
        self.set_health(config=True, store=True)

    def add_known_agents(self, agents: Iterable[str]) -> None:
        self._agents.add_known(agents)

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        self._registry.scalar(definitions.STEP_FAILURES, problem.step).value += 1
        self.recent_failures.add(problem, incoming.id, at=self._clock())

    def on_step(self, step: str, seconds: float) -> None:
        histogram = self._step_seconds.get(step)
        if histogram is None:  # a dozen of these lookups with labels take 1% of a request
            histogram = self._step_seconds[step] = self._registry.histogram(definitions.STEP_SECONDS, step)
        histogram.observe(seconds if seconds > 0 else 0.0)

    def on_rejected(self, agent: str, error: FoveateError) -> None:
        self.count_rejection(agent, error.code)

    def count_rejection(self, agent: str, code: str) -> None:
        self._registry.scalar(definitions.REJECTIONS, self._agents.label(agent), code).value += 1

    def on_compaction(self, agent: str, result: CompactionResult) -> None:
        """Count a compaction, and its duration if it is our own."""
        labels = self._agents.label(agent), result.outcome.value
        self._registry.scalar(definitions.COMPACTIONS, *labels).value += 1
        if result.has_failed:
            request_id = "" if result.compaction is None else result.compaction.id
            self.recent_failures.add(StepFailure(_COMPACTION_STEP, result.reason), request_id, at=self._clock())
        is_summary = result.outcome.concerns_summary and result.outcome is not CompactionOutcome.LOCK_HELD
        if result.compaction is not None and is_summary:
            self._registry.histogram(definitions.COMPACTION_SECONDS, *labels).observe(
                result.compaction.duration_seconds
            )

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        labels = self._agents.label(miss.agent), miss.verdict.cause.value
        metric = definitions.PLANNED_REWRITES if miss.is_planned else definitions.CACHE_MISSES
        self._registry.scalar(metric, *labels).value += 1

    def on_charge(self, charge: Charge, settlement: Settlement) -> None:
        """Add a charge, unless it was reported before."""
        scalar = self._registry.scalar
        scalar(definitions.CHARGES, settlement.outcome.value).value += 1
        if settlement.outcome is SettlementOutcome.ALREADY_RECORDED:
            return
        call = charge.call
        labels = self._limit_labels(call.agent, call.provider, call.model)
        if charge.dollars is None:
            scalar(definitions.UNPRICED, *labels, call.category.value).value += 1
            if charge.is_possibly_charged:
                scalar(definitions.POSSIBLY_CHARGED, *labels, call.category.value).value += 1
        else:
            dollars = float(charge.dollars)
            scalar(definitions.COST, *labels, call.category.value).value += dollars
            if call.is_subscription:
                scalar(definitions.SUBSCRIPTION_COST, *labels).value += dollars
            if charge.is_inherited:
                scalar(definitions.INHERITED_COST, *labels).value += dollars
        self._add_savings(labels[0], charge)

    def _add_savings(self, agent: str, charge: Charge) -> None:
        scalar, savings = self._registry.scalar, charge.savings
        if savings.comparison is ComparisonOutcome.WOULD_NOT_FIT:
            scalar(definitions.NOT_FITTING, agent).value += 1
        if savings.without is None or savings.total is None or charge.dollars is None:
            return
        scalar(definitions.COMPARED, agent, "charged").value += float(charge.dollars)
        scalar(definitions.COMPARED, agent, "simulated").value += float(savings.without - savings.total)
        scalar(definitions.COMPARED, agent, "without").value += float(savings.without)
        for mechanism, dollars in (
            ("compaction", savings.compaction),
            ("context", savings.context),
            ("breakpoints", savings.breakpoints),
            ("keep_alive", savings.keep_alive),
        ):
            if dollars:
                # Both are reported from the first difference on.
                saved = scalar(definitions.SAVED, agent, mechanism)
                overpaid = scalar(definitions.OVERPAID, agent, mechanism)
                (overpaid if dollars < 0 else saved).value += abs(float(dollars))

    def on_finished(self, exchange: Exchange) -> None:
        incoming, context = exchange.incoming, exchange.context
        scalar, histogram = self._registry.scalar, self._registry.histogram
        histogram(definitions.ADDED_SECONDS).observe(max(0.0, exchange.sent_at - exchange.received_at))
        for applied in exchange.upstream_request.applied_edits:
            scalar(definitions.EDITS, applied.step).value += 1
        if context is not None and context.truncated_result_count:
            labels = self._agents.label(incoming.agent), CompactionOutcome.TOOL_RESULT_TRUNCATED.value
            scalar(definitions.COMPACTIONS, *labels).value += context.truncated_result_count
        if not exchange.status:
            return
        for limit in exchange.rate_limits:
            key = self._agents.label(incoming.agent), incoming.provider, limit.name
            if key in self._rate_limits or len(self._rate_limits) < MAX_LABEL_SETS:
                self._rate_limits[key] = limit
        histogram(definitions.FIRST_BYTE_SECONDS, incoming.provider).observe(
            max(0.0, exchange.response_started_at - exchange.sent_at)
        )
        histogram(definitions.CALL_SECONDS, incoming.provider).observe(
            max(0.0, exchange.ended_at - exchange.received_at)
        )
        usage = exchange.usage
        if usage is None or not 200 <= exchange.status < 300:
            return
        call_labels = self._limit_labels(incoming.agent, incoming.provider, response_model(exchange))
        cache, exact = usage.cache, _BOOL_LABELS[exchange.has_complete_usage]
        scalar(definitions.INPUT_TOKENS, *call_labels, exact).value += cache.input_tokens
        scalar(definitions.OUTPUT_TOKENS, *call_labels, exact).value += usage.output_tokens
        scalar(definitions.CACHE_READ, *call_labels, exact).value += cache.read
        scalar(definitions.CACHE_CREATION, *call_labels, exact).value += cache.written_5m + cache.written_1h
        self._hit_ratios.add(call_labels[0], cache, at=exchange.response_started_at)
        if context is None or context.count.total is None:
            return
        exact = _BOOL_LABELS[context.count.total.exact]
        histogram(definitions.ESTIMATED, *call_labels, exact).observe(context.count.total.tokens)
        drift = histogram(definitions.DRIFT, *call_labels, exact)
        if context.count.drift_percent is not None:
            drift.observe(context.count.drift_percent)

    def count_response(self, agent: str, provider: str, model: str, status: int) -> None:
        """Count a request by the status that its client got; a new model is believed if it has responded."""
        labels = self._limit_labels(agent, provider, model, may_be_new=200 <= status < 300)
        self._registry.scalar(definitions.REQUESTS, *labels, str(status)).value += 1

    def set_health(self, *, config: bool | None = None, store: bool | None = None) -> None:
        if config is not None:
            self._registry.scalar(definitions.CONFIG_VALID).value = int(config)
        if store is not None:
            self._registry.scalar(definitions.STORE_UP).value = int(store)

    def add_poll(self, poll: Callable[[], None]) -> None:
        self._polls.append(poll)

    def set_charges(self, *, waiting: int, lost: int, expired: int) -> None:
        self._registry.scalar(definitions.CHARGES_WAITING).value = waiting
        self._registry.scalar(definitions.CHARGES_LOST).value = lost
        self._registry.scalar(definitions.EXPIRED_RESERVATIONS).value = expired

    def set_workspace_counts(self, counts: Mapping[str, WorkspaceCacheCounts]) -> None:
        for root, count in counts.items():
            self._add_growth(definitions.WORKSPACE_HITS, root, count.hits)
            self._add_growth(definitions.WORKSPACE_MISSES, root, count.misses)
            self._add_growth(definitions.WORKSPACE_INVALIDATIONS, root, count.invalidations)

    def samples(self) -> list[Sample]:
        """All current values, including those that change by themselves, such as a sliding hour."""
        for poll in self._polls:
            poll()
        for labels, limit in self._rate_limits.items():
            is_reset = limit.resets_at is not None and limit.resets_at <= self._clock()
            if limit.used is not None:
                self._registry.scalar(definitions.RATE_LIMIT_USED, *labels).value = (
                    0 if is_reset else limit.used
                )
            if limit.resets_at is not None:
                self._registry.scalar(definitions.RATE_LIMIT_RESET, *labels).value = limit.resets_at
        ratios = self._hit_ratios.ratios(at=self._clock())
        for agent in self._seen_agents | set(ratios):
            ratio = ratios.get(agent)
            self._registry.scalar(definitions.WINDOW_READ, agent).value = ratio.read_tokens if ratio else 0
            self._registry.scalar(definitions.WINDOW_INPUT, agent).value = ratio.input_tokens if ratio else 0
        self._seen_agents |= set(ratios)
        return self._registry.samples()

    def _limit_labels(self, agent: str, provider: str, model: str, *, may_be_new: bool = True) -> _CallLabels:
        """Return the labels of a call: at most `MAX_LABEL_SETS` different ones, and then `other`."""
        labels = self._agents.label(agent), provider, self._models.label(model, may_be_new=may_be_new)
        if labels not in self._call_labels:
            if len(self._call_labels) >= MAX_LABEL_SETS:
                return OTHER, provider, OTHER
            self._call_labels.add(labels)
        return labels

    def _add_growth(self, metric: MetricDefinition, root: str, total: float) -> None:
        previous = self._totals.get((metric.name, root), 0)
        self._totals[metric.name, root] = total
        self._registry.scalar(metric, self._paths.label(root)).value += max(0, total - previous)


def response_model(exchange: Exchange) -> str:
    if exchange.context is not None:
        return exchange.context.model
    return exchange.charge.call.model if exchange.charge is not None else ""
