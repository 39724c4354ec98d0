"""The overview: what is spent, saved and lost, how well caches work, and what is wrong."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from foveate.cost.ledger import Category
from foveate.engine import series
from foveate.engine.board import Sample
from foveate.session.rate_limits import RECENT_SECONDS
from foveate.session.totals import TotalsGroup
from foveate.store import Store
from foveate.web import latency, overview_charts
from foveate.web.asking import PageRequest, WebPage
from foveate.web.caps import CapUsageRow, list_agent_cap_usage, list_cap_usage
from foveate.web.charts import Chart
from foveate.web.inside import GatewayData
from foveate.web.overview_charts import SpendingOverTime
from foveate.web.pointing import export_lines
from foveate.web.spans import TIME_RANGES, WEEK, TimeRange, format_day, resolve_time_range
from foveate.web.spent import (
    NO_SPENDING,
    SpendingTotals,
    TotalsRows,
    group_by_category,
    group_by_first,
    sum_spending,
)
from foveate.web.troubles import list_health_problems
from foveate.web.viewer import Viewer

TEMPLATE = "overview.html"
_TITLE = "Overview"
_MAX_MISSES = 10
_MAX_ROWS = 50
# Beyond so many nobody looks for one in a list: a name can be typed.
_MAX_LISTED_AGENTS = 200
_GROUPINGS = frozenset((TotalsGroup.AGENT.value, TotalsGroup.MODEL.value))
_CATEGORY_TEXTS = {
    Category.MAIN: "the agents' own",
    Category.COMPACTION: "summaries of long histories",
    Category.COUNTING: "tokens counted by a server",
    Category.PING: "keeping caches warm",
}


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """A row of a table: of whom or what, and what was spent."""

    name: str
    spent: SpendingTotals


@dataclass(frozen=True, slots=True)
class _OverviewSpending:
    """What was spent over a span: by its pieces, and in all of it by agent, by model and by category.

    `dearest_models` are those that have a colour on charts, by the pieces of the span.
    """

    over_time: SpendingOverTime
    agents: Mapping[str, SpendingTotals]
    models: Mapping[str, SpendingTotals]
    categories: Mapping[str, SpendingTotals]
    dearest_models: Mapping[str, SpendingOverTime]


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """The overview of a span, of all agents or of one."""
    now, store = data.clock(), data.store
    time_range = resolve_time_range(page_request.choice("span", WEEK, TIME_RANGES), now)
    viewer = page_request.viewer
    agent = page_request.agent() or None
    by = TotalsGroup(
        page_request.choice("by", TotalsGroup.AGENT if agent is None else TotalsGroup.MODEL, _GROUPINGS)
    )
    health, agents = await asyncio.gather(data.health(), store.totals.list_agents())
    agents = [name for name in agents if viewer.can_see(name)]
    problems = list_health_problems(health) if viewer.sees_everything else []
    if not agents:
        rejections = _count_rejections(data.samples(), agent)
        context = {
            "is_empty": True,
            "troubles": problems,
            "refused": rejections,
            "exports": export_lines(page_request.gateway_url),
        }
        return WebPage(template=TEMPLATE, title=_TITLE, context=context)
    spending, misses, caps, limits = await asyncio.gather(
        _load_spending(store, time_range, agent),
        store.find_latest_cache_misses(limit=_MAX_MISSES, since=time_range.since, agent=agent),
        _load_cap_usage(data, viewer, now),
        store.rate_limits.find_recent(since=now - RECENT_SECONDS),
    )
    samples = data.samples()
    total = sum_spending(spending.over_time.values())
    charts = await _load_charts(store, time_range, agent, by, spending)
    agent_rows, model_rows, category_rows = await asyncio.to_thread(
        lambda: [_build_rows(spent) for spent in (spending.agents, spending.models, spending.categories)]
    )
    return WebPage(
        template=TEMPLATE,
        title=_TITLE,
        context={
            "is_empty": False,
            "troubles": problems,
            "spans": TIME_RANGES,
            "span": time_range,
            "agent": agent or "",
            "by": by.value,
            "agents": agents if len(agents) <= _MAX_LISTED_AGENTS else [],
            "today": total if time_range.is_today else spending.over_time.get(format_day(now), NO_SPENDING),
            "whole": total,
            "charts": charts,
            "agent_rows": agent_rows,
            "agents_left_out": max(0, len(spending.agents) - _MAX_ROWS),
            "model_rows": model_rows,
            "models_left_out": max(0, len(spending.models) - _MAX_ROWS),
            "category_rows": category_rows,
            "categories": _CATEGORY_TEXTS,
            "breaks": misses,
            "caps": caps,
            "limits": [limit for limit in limits if agent in (None, limit.agent)][:_MAX_ROWS],
            "refused": _count_rejections(samples, agent),
            "added": latency.summarize_added_latency(samples),
            "steps": latency.summarize_steps(samples),
        },
    )


async def _load_cap_usage(data: GatewayData, viewer: Viewer, now: float) -> list[CapUsageRow]:
    caps = data.current_config().caps
    if viewer.agent is None:
        return await list_cap_usage(data.store, caps, now=now)
    return await list_agent_cap_usage(data.store, caps, viewer.agent, now=now, shows_shared=False)


async def _load_spending(store: Store, time_range: TimeRange, agent: str | None) -> _OverviewSpending:
    over_time, agents = await asyncio.gather(
        *(
            store.totals.sum_totals([*per, TotalsGroup.CATEGORY], since=time_range.since, agent=agent)
            for per in ([time_range.per, TotalsGroup.MODEL], [TotalsGroup.AGENT])
        )
    )
    # Of thousands of agents it takes longer than requests should wait for the event loop.
    return await asyncio.to_thread(_group_spending, over_time, agents)


def _group_spending(over_time: TotalsRows, agents: TotalsRows) -> _OverviewSpending:
    models = group_by_first([(group[1:], totals) for group, totals in over_time])
    return _OverviewSpending(
        over_time=group_by_first(over_time),
        agents=group_by_first(agents),
        models=models,
        categories=group_by_category(over_time),
        dearest_models={
            name: group_by_first([row for row in over_time if row[0][1] == name])
            for name in overview_charts.most_expensive(models)
        },
    )


async def _load_charts(
    store: Store, time_range: TimeRange, agent: str | None, by: TotalsGroup, spending: _OverviewSpending
) -> Sequence[Chart]:
    agents: Mapping[str, SpendingOverTime] = {} if agent is None else {agent: spending.over_time}
    if agent is None:
        names = await asyncio.to_thread(overview_charts.most_expensive, spending.agents)
        agents = await _load_agents_over_time(store, time_range, names)
    parts = spending.dearest_models if by is TotalsGroup.MODEL else agents
    return await asyncio.to_thread(_build_charts, time_range, by, spending.over_time, parts, agents)


def _build_charts(
    time_range: TimeRange,
    by: TotalsGroup,
    whole: SpendingOverTime,
    parts: Mapping[str, SpendingOverTime],
    agents: Mapping[str, SpendingOverTime],
) -> Sequence[Chart]:
    return (
        overview_charts.build_cost_chart(time_range, whole, parts, by.value),
        overview_charts.build_savings_chart(time_range, whole),
        overview_charts.build_hit_ratio_chart(time_range, agents),
        overview_charts.build_requests_chart(time_range, whole),
    )


async def _load_agents_over_time(
    store: Store, time_range: TimeRange, names: Sequence[str]
) -> Mapping[str, SpendingOverTime]:
    """Of each agent by itself: there may be thousands beside them."""
    rows = await asyncio.gather(
        *(
            store.totals.sum_totals([time_range.per, TotalsGroup.CATEGORY], since=time_range.since, agent=name)
            for name in names
        )
    )
    return {name: group_by_first(agent_rows) for name, agent_rows in zip(names, rows, strict=True)}


def _count_rejections(samples: Iterable[Sample], agent: str | None) -> Mapping[str, int]:
    """How many requests the gateway itself has answered with an error since it started, by why, most first."""
    found: Counter[str] = Counter()
    for sample in samples:
        if sample.name == series.REJECTIONS.name and agent in (None, sample.labels[0]):
            found[sample.labels[1].replace("_", " ")] += round(sample.values[0])
    return dict(found.most_common())


def _build_rows(spent: Mapping[str, SpendingTotals]) -> Sequence[SpendingRow]:
    """The dearest first; those that cost nothing by what they asked."""
    order = sorted(
        spent.items(), key=lambda entry: (-entry[1].dollars, -entry[1].requests, -entry[1].calls, entry[0])
    )
    return [SpendingRow(name, entry) for name, entry in order[:_MAX_ROWS]]
