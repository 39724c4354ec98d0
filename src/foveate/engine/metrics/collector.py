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
from foveate.engine.metrics.registry import Histogram, MetricsRegistry, Sample, Scalar
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
# Observations of so many requests are counted together.
_FLUSH_REQUESTS = 64


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _UsageCounters:
    input: Scalar
    output: Scalar
    read: Scalar
    created: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class _CountHistograms:
    estimated: Histogram
    drift: Histogram


class _CallMetrics:
    """The metrics of one kind of calls, looked up once: `labels` are agent, provider and model."""

    __slots__ = ("_registry", "comparisons", "costs", "counts", "labels", "savings", "statuses", "usage")

    def __init__(self, registry: MetricsRegistry, labels: _CallLabels) -> None:
        self._registry = registry
        self.labels = labels
        self.usage: dict[bool, _UsageCounters] = {}
        self.counts: dict[bool, _CountHistograms] = {}
        self.statuses: dict[int, Scalar] = {}
        self.costs: dict[str, Scalar] = {}
        self.savings: dict[str, tuple[Scalar, Scalar]] = {}
        self.comparisons: dict[str, Scalar] = {}

    def usage_counters(self, is_complete: bool) -> _UsageCounters:
        counters = self.usage.get(is_complete)
        if counters is None:
            labels = (*self.labels, _BOOL_LABELS[is_complete])
            counters = self.usage[is_complete] = _UsageCounters(
                input=self._registry.scalar(definitions.INPUT_TOKENS, *labels),
                output=self._registry.scalar(definitions.OUTPUT_TOKENS, *labels),
                read=self._registry.scalar(definitions.CACHE_READ, *labels),
                created=self._registry.scalar(definitions.CACHE_CREATION, *labels),
            )
        return counters

    def count_histograms(self, exact: bool) -> _CountHistograms:
        histograms = self.counts.get(exact)
        if histograms is None:
            labels = (*self.labels, _BOOL_LABELS[exact])
            histograms = self.counts[exact] = _CountHistograms(
                estimated=self._registry.histogram(definitions.ESTIMATED, *labels),
                drift=self._registry.histogram(definitions.DRIFT, *labels),
            )
        return histograms

    def cost_counter(self, category: str) -> Scalar:
        counter = self.costs.get(category)
        if counter is None:
            counter = self.costs[category] = self._registry.scalar(definitions.COST, *self.labels, category)
        return counter

    def add_saving(self, mechanism: str, dollars: float) -> None:
        counters = self.savings.get(mechanism)
        if counters is None:
            labels = self.labels[0], mechanism
            counters = self.savings[mechanism] = (
                self._registry.scalar(definitions.SAVED, *labels),
                self._registry.scalar(definitions.OVERPAID, *labels),
            )
        counters[dollars < 0].value += abs(dollars)

    def add_compared(self, cost: str, dollars: float) -> None:
        counter = self.comparisons.get(cost)
        if counter is None:
            counter = self.comparisons[cost] = self._registry.scalar(definitions.COMPARED, self.labels[0], cost)
        counter.value += dollars

    def status_counter(self, status: int) -> Scalar:
        counter = self.statuses.get(status)
        if counter is None:
            counter = self.statuses[status] = self._registry.scalar(
                definitions.REQUESTS, *self.labels, str(status)
            )
        return counter


class MetricsCollector:
    """The metrics of one process. Not thread-safe: for one event loop."""

    def __init__(self, *, version: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._registry = MetricsRegistry()
        self._agents, self._models = CardinalityLimiter(), CardinalityLimiter()
        self._paths = CardinalityLimiter(max_chars=MAX_PATH_CHARS)  # named by an operator, and long
        self._metrics_by_call: dict[_CallLabels, _CallMetrics] = {}
        self._metrics_by_labels: dict[_CallLabels, _CallMetrics] = {}
        self._steps: dict[str, Histogram] = {}
        self._edits: dict[str, Scalar] = {}
        self._latencies: dict[str, tuple[Histogram, Histogram]] = {}
        self._charges = {
            outcome: self._registry.scalar(definitions.CHARGES, outcome.value) for outcome in SettlementOutcome
        }
        self._hit_ratios = HitRatios()
        self._unflushed = 0
        self._seen_agents: set[str] = set()
        self._polls: list[Callable[[], None]] = []
        self._totals: dict[tuple[str, str], float] = {}
        self._rate_limits: dict[tuple[str, str, str], RateLimit] = {}
        self._added_seconds = self._registry.histogram(definitions.ADDED_SECONDS)
        self.recent_failures = RecentFailures()
        self.open_requests = self._registry.scalar(definitions.OPEN_REQUESTS)
        self.open_streams = self._registry.scalar(definitions.OPEN_STREAMS)
        self.request_bytes = self._registry.scalar(definitions.REQUEST_BYTES)
        self.response_bytes = self._registry.scalar(definitions.RESPONSE_BYTES)
        self._registry.scalar(definitions.BUILD, version).value = 1
        self.set_charges(waiting=0, lost=0, expired=0)
        self.set_health(config=True, store=True)

    def add_known_agents(self, agents: Iterable[str]) -> None:
        self._agents.add_known(agents)

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        self._registry.scalar(definitions.STEP_FAILURES, problem.step).value += 1
        self.recent_failures.add(problem, incoming.id, at=self._clock())

    def on_step(self, step: str, seconds: float) -> None:
        histogram = self._steps.get(step)
        if histogram is None:
            histogram = self._steps[step] = self._registry.histogram(definitions.STEP_SECONDS, step)
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
        if result.compaction is not None and result.outcome is not CompactionOutcome.LOCK_HELD:
            self._registry.histogram(definitions.COMPACTION_SECONDS, *labels).observe(
                result.compaction.duration_seconds
            )

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        labels = self._agents.label(miss.agent), miss.verdict.cause.value
        metric = definitions.PLANNED_REWRITES if miss.is_planned else definitions.CACHE_MISSES
        self._registry.scalar(metric, *labels).value += 1

    def on_charge(self, charge: Charge, settlement: Settlement) -> None:
        """Add a charge, unless it was reported before."""
        self._charges[settlement.outcome].value += 1
        if settlement.outcome is SettlementOutcome.ALREADY_RECORDED:
            return
        call = charge.call
        call_metrics = self._call_metrics(call.agent, call.provider, call.model)
        if charge.dollars is None:
            self._registry.scalar(definitions.UNPRICED, *call_metrics.labels, call.category.value).value += 1
            if charge.is_possibly_charged:
                self._registry.scalar(
                    definitions.POSSIBLY_CHARGED, *call_metrics.labels, call.category.value
                ).value += 1
        else:
            call_metrics.cost_counter(call.category.value).value += float(charge.dollars)
            if call.is_subscription:
                self._registry.scalar(definitions.SUBSCRIPTION_COST, *call_metrics.labels).value += float(
                    charge.dollars
                )
            if charge.is_inherited:
                self._registry.scalar(definitions.INHERITED_COST, *call_metrics.labels).value += float(
                    charge.dollars
                )
        self._add_savings(call_metrics, charge)

    def _add_savings(self, call_metrics: _CallMetrics, charge: Charge) -> None:
        savings = charge.savings
        if savings.comparison is ComparisonOutcome.WOULD_NOT_FIT:
            self._registry.scalar(definitions.NOT_FITTING, call_metrics.labels[0]).value += 1
        if savings.without is None or savings.total is None or charge.dollars is None:
            return
        call_metrics.add_compared("charged", float(charge.dollars))
        call_metrics.add_compared("simulated", float(savings.without - savings.total))
        call_metrics.add_compared("without", float(savings.without))
        for feature, dollars in (
            ("compaction", savings.compaction),
            ("context", savings.context),
            ("breakpoints", savings.breakpoints),
            ("keep_alive", savings.keep_alive),
        ):
            if dollars:
                call_metrics.add_saving(feature, float(dollars))

    def on_finished(self, exchange: Exchange) -> None:
        incoming, context = exchange.incoming, exchange.context
        self._added_seconds.observe(max(0.0, exchange.sent_at - exchange.received_at))
        for applied in exchange.upstream_request.applied_edits:
            self._edit_counter(applied.step).value += 1
        if context is not None and context.truncated_result_count:
            labels = self._agents.label(incoming.agent), CompactionOutcome.TOOL_RESULT_TRUNCATED.value
            self._registry.scalar(definitions.COMPACTIONS, *labels).value += context.truncated_result_count
        if not exchange.status:
            return
        for limit in exchange.rate_limits:
            key = self._agents.label(incoming.agent), incoming.provider, limit.name
            if key in self._rate_limits or len(self._rate_limits) < MAX_LABEL_SETS:
                self._rate_limits[key] = limit
        first_byte, total = self._latency_histograms(incoming.provider)
        first_byte.observe(max(0.0, exchange.response_started_at - exchange.sent_at))
        total.observe(max(0.0, exchange.ended_at - exchange.received_at))
        usage = exchange.usage
        if usage is None or not 200 <= exchange.status < 300:
            return
        call_metrics = self._call_metrics(incoming.agent, incoming.provider, response_model(exchange))
        is_complete = exchange.has_complete_usage
        cache, usage_counters = usage.cache, call_metrics.usage_counters(is_complete)
        input_tokens = cache.input_tokens
        usage_counters.input.value += input_tokens
        usage_counters.output.value += usage.output_tokens
        usage_counters.read.value += cache.read
        usage_counters.created.value += cache.written_5m + cache.written_1h
        self._hit_ratios.add(call_metrics.labels[0], cache, at=exchange.response_started_at)
        if context is None or context.count.total is None:
            return
        histograms = call_metrics.count_histograms(context.count.total.exact)
        histograms.estimated.observe(context.count.total.tokens)
        if context.count.drift_percent is not None:
            histograms.drift.observe(context.count.drift_percent)

    def count_response(self, agent: str, provider: str, model: str, status: int) -> None:
        """Count a request by the status that its client got; a new model is believed if it has responded."""
        self._unflushed += 1
        if self._unflushed >= _FLUSH_REQUESTS:
            self._unflushed = 0
            self._registry.flush()
        self._call_metrics(agent, provider, model, may_be_new=200 <= status < 300).status_counter(
            status
        ).value += 1

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

    def _call_metrics(self, agent: str, provider: str, model: str, *, may_be_new: bool = True) -> _CallMetrics:
        """The metrics of a call; the number of label sets is limited."""
        metrics = self._metrics_by_call.get((agent, provider, model))
        if metrics is not None:
            return metrics
        labels = self._agents.label(agent), provider, self._models.label(model, may_be_new=may_be_new)
        if labels not in self._metrics_by_labels and len(self._metrics_by_labels) >= MAX_LABEL_SETS:
            labels = (OTHER, provider, OTHER)
        call_metrics = self._metrics_by_labels.get(labels) or self._metrics_by_labels.setdefault(
            labels, _CallMetrics(self._registry, labels)
        )
        if labels == (agent, provider, model):
            self._metrics_by_call[labels] = call_metrics
        return call_metrics

    def _edit_counter(self, step: str) -> Scalar:
        counter = self._edits.get(step)
        if counter is None:
            counter = self._edits[step] = self._registry.scalar(definitions.EDITS, step)
        return counter

    def _latency_histograms(self, provider: str) -> tuple[Histogram, Histogram]:
        histograms = self._latencies.get(provider)
        if histograms is None:
            histograms = self._latencies[provider] = (
                self._registry.histogram(definitions.FIRST_BYTE_SECONDS, provider),
                self._registry.histogram(definitions.CALL_SECONDS, provider),
            )
        return histograms

    def _add_growth(self, metric: MetricDefinition, root: str, total: float) -> None:
        previous = self._totals.get((metric.name, root), 0)
        self._totals[metric.name, root] = total
        self._registry.scalar(metric, self._paths.label(root)).value += max(0, total - previous)


def response_model(exchange: Exchange) -> str:
    if exchange.context is not None:
        return exchange.context.model
    return exchange.charge.call.model if exchange.charge is not None else ""
