"""The definitions of all metrics: names, help and labels.

The first ten names are required, and dashboards rely on all of them: a name never changes.
docs/reference/metrics.md explains each, and a test compares the two.
"""

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Aggregation(StrEnum):
    """Ways to combine gauges of several workers, in prometheus-client's words."""

    SUM = "livesum"
    MIN = "livemin"
    MAX = "livemax"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDefinition:
    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    aggregation: Aggregation = Aggregation.SUM


def _counter(name: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(name=name, kind=MetricKind.COUNTER, help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str, aggregation: Aggregation = Aggregation.SUM) -> MetricDefinition:
    return MetricDefinition(name=name, kind=MetricKind.GAUGE, help=text, labels=labels, aggregation=aggregation)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> MetricDefinition:
    return MetricDefinition(name=name, kind=MetricKind.HISTOGRAM, help=text, buckets=buckets, labels=labels)


_CALL_LABELS = ("agent", "provider", "model")

_TOKEN_BUCKETS = (256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 204800, 409600, 1048576)
_PERCENT_BUCKETS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50, 100)
_COMPACTION_BUCKETS = (0.05, 0.2, 0.5, 1, 2, 5, 10, 20, 45, 90, 180, 300, 600)
# For what the gateway adds to a request, from 50 µs on.
_ADDED_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2, 10)
_CALL_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 45, 90, 180, 600)

CACHE_READ = _counter(
    "llm_cache_read_tokens_total", "Input tokens that providers read from their cache.", *_CALL_LABELS, "exact"
)
CACHE_CREATION = _counter(
    "llm_cache_creation_tokens_total",
    "Input tokens that providers wrote to their cache.",
    *_CALL_LABELS,
    "exact",
)
HIT_RATIO = _gauge(
    "llm_cache_hit_ratio", "Share of an agent's input tokens of the last hour that the cache had.", "agent"
)
CACHE_MISSES = _counter(
    "foveate_cache_breaks_total",
    "Requests that could not read what the one before them had left in the provider's cache, by why.",
    "agent",
    "cause",
)
PLANNED_REWRITES = _counter(
    "foveate_planned_rewrites_total",
    "Requests that could not read the provider's cache because Foveate rewrote their history, by why.",
    "agent",
    "cause",
)
COMPACTIONS = _counter(
    "llm_compaction_triggered_total",
    "Folds and cuts of tool results, by what became of them.",
    "agent",
    "outcome",
)
COMPACTION_SECONDS = _histogram(
    "llm_compaction_duration_seconds", "How long folds took.", _COMPACTION_BUCKETS, "agent", "outcome"
)
ESTIMATED = _histogram(
    "llm_prompt_tokens_estimated",
    "Tokens of requests, as counted before they were sent.",
    _TOKEN_BUCKETS,
    *_CALL_LABELS,
    "exact",
)
DRIFT = _histogram(
    "llm_prompt_tokens_drift",
    "By how many percent the billed input was more than the count (less: below zero).",
    _PERCENT_BUCKETS,
    *_CALL_LABELS,
    "exact",
)
WORKSPACE_HITS = _counter("workspace_cache_hits_total", "Workspace bundles that were there already.", "path")
WORKSPACE_MISSES = _counter("workspace_cache_misses_total", "Workspace bundles that had to be read.", "path")
WORKSPACE_INVALIDATIONS = _counter(
    "workspace_cache_invalidations_total", "Times that a change of files dropped the bundles of a root.", "path"
)

WINDOW_READ = _gauge(
    "foveate_cache_window_read_tokens", "Input tokens of the last hour that the cache had.", "agent"
)
WINDOW_INPUT = _gauge("foveate_cache_window_input_tokens", "Input tokens of the last hour.", "agent")

INPUT_TOKENS = _counter(
    "foveate_input_tokens_total", "Input tokens that were billed, cached ones too.", *_CALL_LABELS, "exact"
)
OUTPUT_TOKENS = _counter(
    "foveate_output_tokens_total", "Output tokens that were billed.", *_CALL_LABELS, "exact"
)
COST = _counter(
    "foveate_cost_dollars_total", "Dollars that calls of a known price cost.", *_CALL_LABELS, "category"
)
UNPRICED = _counter(
    "foveate_unpriced_calls_total", "Calls whose price is not known.", *_CALL_LABELS, "category"
)
POSSIBLY_CHARGED = _counter(
    "foveate_possibly_charged_calls_total",
    "Calls that were under way when their process ended: nobody knows whether they were billed.",
    *_CALL_LABELS,
    "category",
)
SAVED = _counter(
    "foveate_saved_dollars_total",
    "Dollars that a mechanism saved, by simulation with and without it.",
    "agent",
    "by",
)
OVERPAID = _counter(
    "foveate_overpaid_dollars_total",
    "Dollars that a mechanism cost more than it saved on single calls, by the same simulation.",
    "agent",
    "by",
)
COMPARED = _counter(
    "foveate_compared_dollars_total",
    "Cost of calls that were simulated: charged, simulated with Foveate, simulated without it.",
    "agent",
    "cost",
)
NOT_FITTING = _counter(
    "foveate_would_not_fit_calls_total",
    "Calls of sessions that would have outgrown the context window without Foveate.",
    "agent",
)
CHARGES = _counter("foveate_bills_total", "Bills, by what became of them in the ledger.", "outcome")
CHARGES_WAITING = _gauge("foveate_bills_waiting", "Bills that wait for the ledger to be back.")
CHARGES_LOST = _counter("foveate_bills_lost_total", "Bills that could not be kept at all.")

EXPIRED_RESERVATIONS = _counter(
    "foveate_reservations_lapsed_total",
    "Reservations that ran out while their calls went on: something stalled.",
)

SUBSCRIPTION_COST = _counter(
    "foveate_subscription_dollars_total",
    "The part of the cost that is a list-price equivalent: calls that a subscription pays for.",
    *_CALL_LABELS,
)
INHERITED_COST = _counter(
    "foveate_inherited_dollars_total",
    "The part of the cost that is an upper bound, for models without a price of their own.",
    *_CALL_LABELS,
)
RATE_LIMIT_USED = _gauge(
    "foveate_rate_limit_used_ratio",
    "The share of a subscription's limit that is used, as its provider last said; 0 once it was reset.",
    *("agent", "provider", "limit"),
    aggregation=Aggregation.MAX,
)
RATE_LIMIT_RESET = _gauge(
    "foveate_rate_limit_reset_timestamp_seconds",
    "When a subscription's limit is reset, in seconds since 1970.",
    *("agent", "provider", "limit"),
    aggregation=Aggregation.MAX,
)

REQUESTS = _counter(
    "foveate_requests_total", "Requests, by the status that clients got.", *_CALL_LABELS, "status"
)
REJECTIONS = _counter(
    "foveate_refusals_total", "Requests that the gateway itself answered with an error.", "agent", "code"
)
EDITS = _counter("foveate_edits_total", "Edits written into requests, by the step that made them.", "step")
STEP_FAILURES = _counter(
    "foveate_step_failures_total", "Steps that failed; their requests went out without them.", "step"
)
STEP_SECONDS = _histogram("foveate_step_duration_seconds", "How long steps took.", _ADDED_BUCKETS, "step")
ADDED_SECONDS = _histogram(
    "foveate_added_seconds", "What the engine added to a request before it was sent on.", _ADDED_BUCKETS
)
FIRST_BYTE_SECONDS = _histogram(
    "foveate_upstream_first_byte_seconds",
    "From sending a request on to the head of its answer.",
    _CALL_BUCKETS,
    "provider",
)
CALL_SECONDS = _histogram(
    "foveate_request_duration_seconds", "From a request to the end of its answer.", _CALL_BUCKETS, "provider"
)
REQUEST_BYTES = _counter("foveate_request_bytes_total", "Bytes of the bodies that clients sent.")
RESPONSE_BYTES = _counter("foveate_response_bytes_total", "Bytes of the bodies that clients got.")
OPEN_REQUESTS = _gauge("foveate_open_requests", "Requests that are being served now.")
OPEN_STREAMS = _gauge("foveate_open_streams", "Answers that are being passed on now as they are written.")
CONFIG_VALID = _gauge(
    "foveate_config_valid", "1 where the configuration file can be used as it is.", aggregation=Aggregation.MIN
)
STORE_UP = _gauge(
    "foveate_store_up", "1 where the store answered when it was last asked.", aggregation=Aggregation.MIN
)
BUILD = _gauge(
    "foveate_build_info", "Always 1; the labels say what runs.", "version", aggregation=Aggregation.MAX
)

METRICS = (
    CACHE_READ,
    CACHE_CREATION,
    HIT_RATIO,
    COMPACTIONS,
    COMPACTION_SECONDS,
    ESTIMATED,
    DRIFT,
    WORKSPACE_HITS,
    WORKSPACE_MISSES,
    WORKSPACE_INVALIDATIONS,
    WINDOW_READ,
    WINDOW_INPUT,
    CACHE_MISSES,
    PLANNED_REWRITES,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    COST,
    UNPRICED,
    POSSIBLY_CHARGED,
    SAVED,
    OVERPAID,
    COMPARED,
    NOT_FITTING,
    CHARGES,
    CHARGES_WAITING,
    CHARGES_LOST,
    EXPIRED_RESERVATIONS,
    SUBSCRIPTION_COST,
    INHERITED_COST,
    RATE_LIMIT_USED,
    RATE_LIMIT_RESET,
    REQUESTS,
    REJECTIONS,
    EDITS,
    STEP_FAILURES,
    STEP_SECONDS,
    ADDED_SECONDS,
    FIRST_BYTE_SECONDS,
    CALL_SECONDS,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    OPEN_REQUESTS,
    OPEN_STREAMS,
    CONFIG_VALID,
    STORE_UP,
    BUILD,
)
"""All metrics."""
