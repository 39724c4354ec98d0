"""What a run cost, read from the ledger and the traces of its requests, and what would have saved most."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate.agents.run_prefix import request_id_prefix
from foveate.cost.ledger import Category, Charge
from foveate.cost.savings import add_savings
from foveate.model import ComparisonOutcome
from foveate.prompt_cache.misses.causes import MissCause, describe_cause
from foveate.store import Store
from foveate.store.dashboard import CacheMissRecord

_MAX_FAILED = 100
# Newest first; a run with more misses than this reports the latest of them.
_MAX_MISSES = 10_000
_ZERO = Decimal(0)
# Requests of this size cost more than most answers, although their history is read from the cache.
_LONG_INPUT_TOKENS = 100_000
# What to do about misses, by their cause. The others depend on the program; `foveate explain` shows them.
_FIXES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *(MissCause.TIMESTAMP, MissCause.DATE, MissCause.TIME, MissCause.UUID, MissCause.RANDOM_ID),
            *(MissCause.COUNTER, MissCause.NUMBER),
        ),
        "move it behind the history, into the last message",
    ),
    **dict.fromkeys(
        (MissCause.TOOL_ADDED, MissCause.TOOL_REMOVED, MissCause.TOOL_CHANGED, MissCause.TOOLS_REORDERED),
        "keep the same tools in the same order for the whole session",
    ),
    MissCause.MODEL: "each model has its own cache: change it when a new conversation starts",
    MissCause.EXPIRED: "`foveate advise` computes whether keep-alive requests or a longer TTL would pay",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Calls and costs of a run.

    `dollars` is None if no price is known; `unknown_calls` are not in it. `without_dollars` is what the same
    calls would have cost without Foveate: calls that could not be compared count as charged. It is None if none
    could be compared. `lost_dollars` are those of `misses`, which nobody planned. `worst_miss` is the most
    expensive one of the cause that cost most, `worst_cause_dollars`. `max_input_tokens` are those of the
    longest call. `failed_requests` are counted only if no request was charged.
    """

    calls: int = 0
    sessions: int = 0
    dollars: Decimal | None = None
    unknown_calls: int = 0
    subscription_calls: int = 0
    without_dollars: Decimal | None = None
    compared_calls: int = 0
    misses: int = 0
    lost_dollars: Decimal = _ZERO
    worst_miss: CacheMissRecord | None = None
    worst_cause_dollars: Decimal = _ZERO
    max_input_tokens: int = 0
    failed_requests: int = 0


async def read_run(store: Store, *, run: str, agent: str | None, since: float) -> RunSummary:
    """Read the summary of a run from the store.

    The requests of a run have its id. With `agent`, requests of that agent since the start count as well: it
    has its address in a file, which cannot name the run.
    """
    start = request_id_prefix(run)

    def is_own(request_id: str, name: str) -> bool:
        return request_id.startswith(start) or name == agent

    charges = [charge async for charge in store.ledger.list_charges(since=since)]
    misses = await store.dashboard.find_latest_cache_misses(limit=_MAX_MISSES, since=since)
    summary = summarize_run(
        _select_charges(charges, is_own), [miss for miss in misses if is_own(miss.request_id, miss.agent)]
    )
    if summary.calls:
        return summary
    traces = await store.traces.list_traces(limit=_MAX_FAILED, since=since)
    return replace(summary, failed_requests=sum(is_own(found.trace.id, found.trace.agent) for found in traces))


def _select_charges(charges: Sequence[Charge], is_own: Callable[[str, str], bool]) -> list[Charge]:
    """Select the calls of a run, and keep-alive requests of its sessions, whose ids are their own."""
    own = [charge for charge in charges if is_own(charge.call.id, charge.call.agent)]
    sessions = {charge.call.session_id for charge in own}
    pings = [
        charge
        for charge in charges
        if charge.call.category is Category.PING and charge.call.session_id in sessions and charge not in own
    ]
    return own + pings


def summarize_run(charges: Iterable[Charge], misses: Iterable[CacheMissRecord]) -> RunSummary:
    recorded = list(charges)
    unplanned = [miss for miss in misses if not miss.cache_miss.is_planned]
    known = [charge.dollars for charge in recorded if charge.dollars is not None]
    compared = [charge for charge in recorded if charge.savings.comparison is ComparisonOutcome.SIMULATED]
    others = [charge.dollars or _ZERO for charge in recorded if charge not in compared]
    without = add_savings(charge.savings for charge in compared).without
    lost_by_cause: dict[str, Decimal] = {}
    for miss in unplanned:
        cause, lost = miss.cache_miss.cause, miss.cache_miss.lost_dollars or _ZERO
        lost_by_cause[cause] = lost_by_cause.get(cause, _ZERO) + lost
    worst = max(
        unplanned,
        key=lambda miss: (lost_by_cause[miss.cache_miss.cause], miss.cache_miss.lost_dollars or _ZERO),
        default=None,
    )
    return RunSummary(
        calls=sum(charge.call.category is Category.MAIN for charge in recorded),
        sessions=len({charge.call.session_id for charge in recorded}),
        dollars=sum(known, _ZERO) if known else None,
        unknown_calls=len(recorded) - len(known),
        subscription_calls=sum(charge.call.is_subscription for charge in recorded),
        without_dollars=None if without is None else without + sum(others, _ZERO),
        compared_calls=len(compared),
        misses=len(unplanned),
        lost_dollars=sum(lost_by_cause.values(), _ZERO),
        worst_miss=worst,
        worst_cause_dollars=_ZERO if worst is None else lost_by_cause[worst.cache_miss.cause],
        max_input_tokens=max((charge.usage.cache.input_tokens for charge in recorded), default=0),
    )


def find_advice(summary: RunSummary) -> str:
    """Return what would have saved most in a run with calls; empty if nothing is wrong.

    It uses only what was recorded. Simulating other settings is left to `foveate advise`, which takes seconds.
    """
    worst = summary.worst_miss
    if worst is not None:
        cause, where = worst.cache_miss.cause, worst.cache_miss.where
        share = (
            f", {summary.worst_cause_dollars / summary.lost_dollars:.0%} of it" if summary.lost_dollars else ""
        )
        place = f" in {where}" if where else ""
        fix = _FIXES.get(cause, "")
        return (
            f"most expensive cause{share}: {describe_cause(cause)}{place}; {f'{fix}; ' if fix else ''}"
            f"see `foveate explain {worst.request_id}`"
        )
    if summary.unknown_calls:
        return "set the price of the model under cost.prices in foveate.yaml"
    if summary.max_input_tokens >= _LONG_INPUT_TOKENS:
        return (
            f"requests grew to {summary.max_input_tokens:,} tokens, which are paid again with each call: start "
            "a new conversation for a new task, or see in `foveate advise` what compaction would save"
        )
    if (
        summary.dollars is not None
        and summary.without_dollars is not None
        and summary.dollars > summary.without_dollars
    ):
        return (
            "this run cost more than without Foveate, as short ones can: cache writes pay from the second read "
            "on; `foveate cost` shows what all runs saved"
        )
    return ""
