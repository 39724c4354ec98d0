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
    "llm_cache_read_tokens_total",
    "Input tokens that providers read from their prompt cache.",
    *_CALL_LABELS,
    "exact",
)
CACHE_CREATION = _counter(
    "llm_cache_creation_tokens_total",
    "Input tokens that providers wrote to their prompt cache.",
    *_CALL_LABELS,
    "exact",
)
HIT_RATIO = _gauge(
    "llm_cache_hit_ratio",
    "Share of an agent's input tokens in the last hour that were read from the cache.",
    "agent",
)
CACHE_MISSES = _counter(
    "foveate_cache_breaks_total",
    "Cache misses: requests that could not read the cache entry of the previous request, by cause.",
    "agent",
    "cause",
)
PLANNED_REWRITES = _counter(
    "foveate_planned_rewrites_total",
    "Requests that could not read the cache because Foveate changed their history, by cause.",
    "agent",
    "cause",
)
COMPACTIONS = _counter(
    "llm_compaction_triggered_total",
    "Compactions, other edits of the history and moves of injected sections, by outcome.",
    "agent",
    "outcome",
)
COMPACTION_SECONDS = _histogram(
    "llm_compaction_duration_seconds", "Duration of compactions.", _COMPACTION_BUCKETS, "agent", "outcome"
)
ESTIMATED = _histogram(
    "llm_prompt_tokens_estimated",
    "Estimated input tokens of requests, before they were sent.",
    _TOKEN_BUCKETS,
    *_CALL_LABELS,
    "exact",
)
DRIFT = _histogram(
    "llm_prompt_tokens_drift",
    "Difference between reported and estimated input tokens, in percent; positive: more were reported.",
    _PERCENT_BUCKETS,
    *_CALL_LABELS,
    "exact",
)
WORKSPACE_HITS = _counter(
    "workspace_cache_hits_total", "Requests for workspace contents that were served from the cache.", "path"
)
WORKSPACE_MISSES = _counter(
    "workspace_cache_misses_total", "Requests for workspace contents that were read from disk.", "path"
)
WORKSPACE_INVALIDATIONS = _counter(
    "workspace_cache_invalidations_total",
    "Times that changed files invalidated the cached contents of a workspace.",
    "path",
)

WINDOW_READ = _gauge(
    "foveate_cache_window_read_tokens", "Input tokens in the last hour that were read from the cache.", "agent"
)
WINDOW_INPUT = _gauge("foveate_cache_window_input_tokens", "Input tokens in the last hour.", "agent")

INPUT_TOKENS = _counter(
    "foveate_input_tokens_total",
    "Input tokens that providers reported, including cached ones.",
    *_CALL_LABELS,
    "exact",
)
OUTPUT_TOKENS = _counter(
    "foveate_output_tokens_total", "Output tokens that providers reported.", *_CALL_LABELS, "exact"
)
COST = _counter(
    "foveate_cost_dollars_total", "Cost of calls with a known price, in dollars.", *_CALL_LABELS, "category"
)
UNPRICED = _counter("foveate_unpriced_calls_total", "Calls with an unknown price.", *_CALL_LABELS, "category")
POSSIBLY_CHARGED = _counter(
    "foveate_possibly_charged_calls_total",
    "Calls that were in flight when their process ended; it is unknown whether they were charged.",
    *_CALL_LABELS,
    "category",
)
SAVED = _counter(
    "foveate_saved_dollars_total",
    "Dollars that a mechanism saved, from a simulation with and without it.",
    "agent",
    "by",
)
OVERPAID = _counter(
    "foveate_overpaid_dollars_total",
    "Dollars by which a mechanism made single calls more expensive, from the same simulation.",
    "agent",
    "by",
)
COMPARED = _counter(
    "foveate_compared_dollars_total",
    "Cost of simulated calls in dollars: as charged, simulated with Foveate, simulated without it.",
    "agent",
    "cost",
)
NOT_FITTING = _counter(
    "foveate_would_not_fit_calls_total",
    "Calls of sessions that would have exceeded the context window without Foveate.",
    "agent",
)
CHARGES = _counter("foveate_bills_total", "Charges, by their outcome in the ledger.", "outcome")
CHARGES_WAITING = _gauge("foveate_bills_waiting", "Charges that wait until the ledger is available again.")
CHARGES_LOST = _counter("foveate_bills_lost_total", "Charges that could not be stored at all.")

EXPIRED_RESERVATIONS = _counter(
    "foveate_reservations_lapsed_total",
    "Reservations that expired while their calls were still running.",
)

SUBSCRIPTION_COST = _counter(
    "foveate_subscription_dollars_total",
    "Part of the cost that is a list-price equivalent: calls paid by a subscription.",
    *_CALL_LABELS,
)
INHERITED_COST = _counter(
    "foveate_inherited_dollars_total",
    "Part of the cost at the highest price of the model's family, for models without their own price.",
    *_CALL_LABELS,
)
RATE_LIMIT_USED = _gauge(
    "foveate_rate_limit_used_ratio",
    "Used share of a subscription's rate limit, as last reported by the provider; 0 after its reset.",
    *("agent", "provider", "limit"),
    aggregation=Aggregation.MAX,
)
RATE_LIMIT_RESET = _gauge(
    "foveate_rate_limit_reset_timestamp_seconds",
    "Time at which a subscription's rate limit is reset, as a Unix timestamp.",
    *("agent", "provider", "limit"),
    aggregation=Aggregation.MAX,
)

REQUESTS = _counter(
    "foveate_requests_total", "Requests, by the HTTP status sent to the client.", *_CALL_LABELS, "status"
)
REJECTIONS = _counter(
    "foveate_refusals_total", "Requests that the gateway rejected itself, by error code.", "agent", "code"
)
EDITS = _counter("foveate_edits_total", "Edits of requests, by pipeline step.", "step")
STEP_FAILURES = _counter(
    "foveate_step_failures_total", "Pipeline steps that failed; the request was sent without the step.", "step"
)
STEP_SECONDS = _histogram(
    "foveate_step_duration_seconds", "Duration of pipeline steps.", _ADDED_BUCKETS, "step"
)
ADDED_SECONDS = _histogram(
    "foveate_added_seconds",
    "Time that the gateway needed before it sent a request to the upstream.",
    _ADDED_BUCKETS,
)
FIRST_BYTE_SECONDS = _histogram(
    "foveate_upstream_first_byte_seconds",
    "Time from sending a request to the upstream until its response headers.",
    _CALL_BUCKETS,
    "provider",
)
CALL_SECONDS = _histogram(
    "foveate_request_duration_seconds",
    "Time from receiving a request to the end of its response.",
    _CALL_BUCKETS,
    "provider",
)
REQUEST_BYTES = _counter("foveate_request_bytes_total", "Bytes of request bodies received from clients.")
RESPONSE_BYTES = _counter("foveate_response_bytes_total", "Bytes of response bodies sent to clients.")
OPEN_REQUESTS = _gauge("foveate_open_requests", "Requests in progress.")
OPEN_STREAMS = _gauge("foveate_open_streams", "Streamed responses in progress.")
CONFIG_VALID = _gauge(
    "foveate_config_valid", "1 if the configuration file is valid, else 0.", aggregation=Aggregation.MIN
)
STORE_UP = _gauge(
    "foveate_store_up", "1 if the store responded to the last probe, else 0.", aggregation=Aggregation.MIN
)
BUILD = _gauge(
    "foveate_build_info", "Always 1; the label is the running version.", "version", aggregation=Aggregation.MAX
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
