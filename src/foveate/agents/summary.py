"""What a run cost, read from the ledger and the traces of its requests."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate.agents.run_prefix import request_id_prefix
from foveate.cost.ledger import Category, Charge
from foveate.cost.savings import add_savings
from foveate.model import ComparisonOutcome
from foveate.store import Store
from foveate.store.dashboard import CacheMissRecord

_MAX_FAILED = 100
# Newest first; a run with more misses than this reports the latest of them.
_MAX_MISSES = 10_000
_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Calls and costs of a run.

    `dollars` is None if no price is known; `unknown_calls` are not in it. `without_dollars` is what the same
    calls would have cost without Foveate: calls that could not be compared count as charged. It is None if none
    could be compared. `lost_dollars` are those of `misses`, which nobody planned; `worst_miss` is the most
    expensive one. `failed_requests` are counted only if no request was charged; `failed_status` is the status
    of the latest.
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
    failed_requests: int = 0
    failed_status: int = 0


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
    failed = [found.trace for found in traces if is_own(found.trace.id, found.trace.agent)]
    return replace(
        summary, failed_requests=len(failed), failed_status=next((trace.status for trace in failed), 0)
    )


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
    return RunSummary(
        calls=sum(charge.call.category is Category.MAIN for charge in recorded),
        sessions=len({charge.call.session_id for charge in recorded}),
        dollars=sum(known, _ZERO) if known else None,
        unknown_calls=len(recorded) - len(known),
        subscription_calls=sum(charge.call.is_subscription for charge in recorded),
        without_dollars=None if without is None else without + sum(others, _ZERO),
        compared_calls=len(compared),
        misses=len(unplanned),
        lost_dollars=sum((miss.cache_miss.lost_dollars or _ZERO for miss in unplanned), _ZERO),
        worst_miss=max(unplanned, key=lambda miss: miss.cache_miss.lost_dollars or _ZERO, default=None),
    )
