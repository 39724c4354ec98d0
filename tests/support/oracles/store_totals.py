"""Totals of a store, checked against its charges and traces."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from foveate.cost.ledger import Category, Charge
from foveate.model import CacheUsage, ComparisonOutcome
from foveate.session.rollups import Totals, TotalsGroup
from foveate.session.traces import ChargedTrace
from foveate.store import Store

HOUR = 3_600.0


def sum_up(all_charges: Iterable[Charge], traced: Iterable[ChargedTrace]) -> Totals:
    """Sum the requests one by one."""
    charges, traces = list(all_charges), [request.trace for request in traced]
    misses = [trace.cache_miss for trace in traces if trace.cache_miss is not None]
    caches = [charge.usage.cache for charge in charges]
    pico = Decimal("1e-12")

    def dollars(amounts: Iterable[Decimal | None]) -> Decimal:
        return sum((amount.quantize(pico) for amount in amounts if amount is not None), Decimal(0))

    return Totals(
        requests=len(traces),
        failed=sum(trace.status >= 400 for trace in traces),
        added_seconds=sum(round(trace.added_seconds * 1e6) for trace in traces) / 1e6,
        cache_misses=len(misses),
        lost_tokens=sum(miss.lost_tokens for miss in misses),
        lost_dollars=dollars(miss.lost_dollars for miss in misses),
        calls=len(charges),
        unpriced=sum(charge.dollars is None for charge in charges),
        cache=CacheUsage(
            uncached=sum(cache.uncached for cache in caches),
            read=sum(cache.read for cache in caches),
            written_5m=sum(cache.written_5m for cache in caches),
            written_1h=sum(cache.written_1h for cache in caches),
        ),
        output_tokens=sum(charge.usage.output_tokens for charge in charges),
        dollars=dollars(charge.dollars for charge in charges),
        compared=sum(charge.savings.without is not None for charge in charges),
        without=dollars(charge.savings.without for charge in charges),
        saved_by_compaction=dollars(charge.savings.compaction for charge in charges),
        saved_by_context=dollars(charge.savings.context for charge in charges),
        saved_by_breakpoints=dollars(charge.savings.breakpoints for charge in charges),
        saved_by_keep_alive=dollars(charge.savings.keep_alive for charge in charges),
        simulation_error=dollars(charge.savings.simulation_error for charge in charges),
        would_not_fit=sum(charge.savings.comparison is ComparisonOutcome.WOULD_NOT_FIT for charge in charges),
        would_not_fit_dollars=dollars(
            charge.dollars for charge in charges if charge.savings.comparison is ComparisonOutcome.WOULD_NOT_FIT
        ),
        inherited=sum(charge.is_inherited for charge in charges),
        inherited_dollars=dollars(charge.dollars for charge in charges if charge.is_inherited),
        subscription=sum(charge.call.is_subscription for charge in charges),
        subscription_dollars=dollars(charge.dollars for charge in charges if charge.call.is_subscription),
        possibly_charged=sum(charge.is_possibly_charged for charge in charges),
        possibly_charged_dollars=dollars(charge.charge for charge in charges if charge.is_possibly_charged),
    )


async def check_totals(store: Store) -> None:
    """Check all totals against the stored rows."""
    charges = [charge async for charge in store.ledger.list_charges()]
    traced = await store.traces.list_traces(limit=10_000)
    groupings: dict[tuple[TotalsGroup, ...], Callable[[str, str, str, float], tuple[str, ...]]] = {
        (): lambda *_: (),
        (TotalsGroup.AGENT, TotalsGroup.CATEGORY): lambda agent, _, category, __: (agent, category),
        (TotalsGroup.HOUR, TotalsGroup.MODEL): lambda _, model, __, at: (f"{at // HOUR}", model),
        (TotalsGroup.DAY,): lambda _, __, ___, at: (f"{at // (24 * HOUR)}",),
    }
    for per, make_group in groupings.items():
        groups: dict[tuple[str, ...], tuple[list[Charge], list[ChargedTrace]]] = defaultdict(lambda: ([], []))
        for charge in charges:
            call = charge.call
            groups[make_group(call.agent, call.model, call.category.value, call.at)][0].append(charge)
        for request in traced:
            groups[make_group(request.trace.agent, request.trace.model, "main", request.trace.at)][1].append(
                request
            )
        actual = [totals for _, totals in await store.totals.sum_totals(per)]
        assert actual == [sum_up(*groups[group]) for group in sorted(groups)]
    await check_sessions(store, charges, traced)


async def check_sessions(store: Store, all_charges: Sequence[Charge], traced: Sequence[ChargedTrace]) -> None:
    """Check that each session has its own totals, with the model and window of its newest request."""
    ids = {charge.call.session_id for charge in all_charges} | {request.trace.session_id for request in traced}
    sessions = {session.session_id: session for session in await store.totals.list_sessions(limit=10_000)}
    assert sessions.keys() == ids - {""}
    for session_id, session in sessions.items():
        charges = [charge for charge in all_charges if charge.call.session_id == session_id]
        traces = [request for request in traced if request.trace.session_id == session_id]
        assert session.totals == sum_up(charges, traces)
        times = [charge.call.at for charge in charges] + [request.trace.at for request in traces]
        assert (session.first_at, session.last_at) == (min(times), max(times))
        models = [(request.trace.at, request.trace.model) for request in traces]
        models += [
            (charge.call.at, charge.call.model) for charge in charges if charge.call.category is Category.MAIN
        ]
        if models:
            assert session.model == max(models)[1]
        if traces:
            newest = max(traces, key=lambda request: request.trace.at).trace
            assert (session.tokens, session.window_tokens) == (newest.tokens, newest.window_tokens)
