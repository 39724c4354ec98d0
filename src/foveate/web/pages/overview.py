"""The overview page: spending, savings, cache hit ratios, added latency and health problems."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any

from foveate.cost.ledger import Category
from foveate.engine.metrics import definitions
from foveate.engine.metrics.registry import Sample
from foveate.prompt_cache.hit_ratio import DEFAULT_THRESHOLDS
from foveate.session.rollups import TotalsGroup
from foveate.session.store import RECENT_SECONDS
from foveate.session.traces import describe_step
from foveate.store import Store
from foveate.web.charts import OTHER_COLOUR, SERIES_COLOURS, Chart, Series, Shape, Unit
from foveate.web.formatting import export_lines, format_count, format_money, format_percent, shorten_name
from foveate.web.page import GatewayData, PageRequest, Viewer, WebPage
from foveate.web.spending import (
    NO_SPENDING,
    TIME_RANGES,
    WEEK,
    CapUsageRow,
    SpendingTotals,
    TimeRange,
    TotalsRows,
    format_day,
    group_by_category,
    group_by_first,
    list_agent_cap_usage,
    list_cap_usage,
    resolve_time_range,
    sum_spending,
)

MAX_SERIES = 6
"""Number of agents or models with their own colour; the rest is one more series."""
OTHERS_NAME = "others"
_MAX_NAME_CHARS = 32

SpendingOverTime = Mapping[str, SpendingTotals]
"""Spending by the units of a time range."""


def most_expensive(spending_by_name: Mapping[str, SpendingTotals]) -> list[str]:
    """Return the agents or models that get their own colour, the most expensive first."""
    names = [name for name, spending in spending_by_name.items() if not spending.is_empty]
    return sorted(
        names, key=lambda name: (-spending_by_name[name].dollars, -spending_by_name[name].input_tokens, name)
    )[:MAX_SERIES]


def build_cost_chart(
    time_range: TimeRange, overall: SpendingOverTime, parts: Mapping[str, SpendingOverTime], by: str
) -> Chart:
    """Stack the costs of `parts`; the rest of `overall` is shown as others."""
    amounts_by_name = {name: _amounts(time_range, part, _dollars) for name, part in parts.items()}
    total = _amounts(time_range, overall, _dollars)
    # Parts are read after the whole, and may include newer requests.
    rest = [
        max(Decimal(0), total_amount - sum(column, Decimal(0)))
        for total_amount, column in zip(total, _columns(time_range, amounts_by_name), strict=True)
    ]
    series = [
        _bars(time_range, _series_name(name), amounts, SERIES_COLOURS[place])
        for place, (name, amounts) in enumerate(amounts_by_name.items())
        if any(amounts)
    ]
    if any(rest):
        series.append(_bars(time_range, OTHERS_NAME, rest, OTHER_COLOUR))
    return Chart(
        id="money",
        title=f"Spending by {time_range.unit} and {by}",
        description=_describe_costs(time_range, total, amounts_by_name),
        labels=time_range.labels,
        series=series or [_bars(time_range, "dollars", total, SERIES_COLOURS[0])],
        unit=Unit.DOLLARS,
        stacked=True,
    )


def build_savings_chart(time_range: TimeRange, overall: SpendingOverTime) -> Chart:
    kinds: dict[str, tuple[Callable[[SpendingTotals], Decimal], str]] = {
        "saved by breakpoints": (lambda spending: spending.saved_by_breakpoints, "three"),
        "saved by compaction and trimming": (lambda spending: spending.saved_by_compaction, "four"),
        "saved by keep-alive": (lambda spending: spending.saved_by_keep_alive, "five"),
        "saved by injected context": (lambda spending: spending.saved_by_context, "two"),
        "lost to cache misses": (lambda spending: spending.lost_dollars, "miss"),
    }
    amounts = {name: _amounts(time_range, overall, get_amount) for name, (get_amount, _) in kinds.items()}
    texts = [
        f"{name} {format_money(sum(values, Decimal(0)))}" for name, values in amounts.items() if any(values)
    ]
    return Chart(
        id="saved",
        title=f"Savings and losses by {time_range.unit}",
        description=f"{time_range.title}, {', '.join(texts) or 'no savings or losses'}",
        labels=time_range.labels,
        series=[
            Series(name=name, values=_chart_values(time_range, values), colour=kinds[name][1], shape=Shape.LINE)
            for name, values in amounts.items()
            if any(values) or name == "saved by breakpoints"
        ],
        unit=Unit.DOLLARS,
    )


def build_hit_ratio_chart(time_range: TimeRange, agents: Mapping[str, SpendingOverTime]) -> Chart:
    ratios = {
        name: [part.get(group, NO_SPENDING).ratio for group in time_range.groups]
        for name, part in agents.items()
    }
    known_ratios = {
        name: values for name, values in ratios.items() if any(value is not None for value in values)
    }
    last = {
        name: next(value for value in reversed(values) if value is not None)
        for name, values in known_ratios.items()
    }
    levels = (
        (DEFAULT_THRESHOLDS.healthy_from, "target", "good"),
        (DEFAULT_THRESHOLDS.flagged_below, "flagged below", "limit"),
    )
    places = {name: place for place, name in enumerate(ratios)}
    return Chart(
        id="ratio",
        title=f"Cache hit ratio by {time_range.unit} and agent",
        description=", ".join(
            f"{_series_name(name)} last {format_percent(ratio)}" for name, ratio in last.items()
        )
        or "no requests",
        labels=time_range.labels,
        series=[
            *(
                Series(
                    name=_series_name(name),
                    values=values,
                    colour=SERIES_COLOURS[places[name]],
                    shape=Shape.LINE,
                )
                for name, values in known_ratios.items()
            ),
            *(
                Series(
                    name=f"{title}: {format_percent(level)}",
                    values=[level] * len(time_range.labels),
                    colour=colour,
                    shape=Shape.LIMIT,
                )
                for level, title, colour in levels
            ),
        ],
        unit=Unit.PERCENT,
    )


def build_requests_chart(time_range: TimeRange, overall: SpendingOverTime) -> Chart:
    values = [overall.get(group, NO_SPENDING) for group in time_range.groups]
    requests, failed = (
        sum(spending.requests for spending in values),
        sum(spending.failed for spending in values),
    )
    return Chart(
        id="requests",
        title=f"Requests and errors by {time_range.unit}",
        description=f"{format_count(requests, 'request')} {time_range.title}, of which {failed:,} failed",
        labels=time_range.labels,
        series=[
            _bars(
                time_range,
                "successful",
                [spending.requests - spending.failed for spending in values],
                SERIES_COLOURS[0],
            ),
            _bars(time_range, "failed", [spending.failed for spending in values], "miss"),
        ],
        unit=Unit.NUMBER,
        stacked=True,
    )


def _describe_costs(
    time_range: TimeRange, total: Sequence[Decimal], amounts_by_name: Mapping[str, Sequence[Decimal]]
) -> str:
    dollars = sum(total, Decimal(0))
    if not dollars:
        return f"no spending {time_range.title}"
    peak = max(range(len(total)), key=lambda at: total[at])
    maximum = f"{time_range.labels[peak]} with {format_money(total[peak])}"
    text = f"{format_money(dollars)} {time_range.title}, highest at {maximum}"
    sums = {name: sum(amounts, Decimal(0)) for name, amounts in amounts_by_name.items()}
    first = max(sums, key=lambda name: sums[name], default=None)
    return text if first is None else f"{text}; {_series_name(first)} spent {format_money(sums[first])}"


def _amounts(
    time_range: TimeRange, spending: SpendingOverTime, get_amount: Callable[[SpendingTotals], Decimal]
) -> list[Decimal]:
    return [get_amount(spending.get(group, NO_SPENDING)) for group in time_range.groups]


def _columns(
    time_range: TimeRange, amounts_by_name: Mapping[str, Sequence[Decimal]]
) -> Iterable[Sequence[Decimal]]:
    return ([amounts[at] for amounts in amounts_by_name.values()] for at in range(len(time_range.groups)))


def _dollars(spending: SpendingTotals) -> Decimal:
    return spending.dollars


def _bars(time_range: TimeRange, name: str, amounts: Iterable[Decimal | int], colour: str) -> Series:
    return Series(name=name, values=_chart_values(time_range, amounts), colour=colour, shape=Shape.BAR)


def _chart_values(time_range: TimeRange, amounts: Iterable[Decimal | int]) -> list[float | None]:
    """None stands for units that have not started."""
    return [float(amount) if place < time_range.started else None for place, amount in enumerate(amounts)]


def _series_name(name: str) -> str:
    return shorten_name(name, _MAX_NAME_CHARS) or '""'


TEMPLATE = "overview.html"
_TITLE = "Overview"
_MAX_MISSES = 10
_MAX_ROWS = 50
# With more agents, the name is typed instead of selected.
_MAX_LISTED_AGENTS = 200
_GROUPINGS = frozenset((TotalsGroup.AGENT.value, TotalsGroup.MODEL.value))
_CATEGORY_TEXTS = {
    Category.MAIN: "requests of the agents",
    Category.COMPACTION: "summaries of long histories",
    Category.COUNTING: "token counts by a provider",
    Category.PING: "keep-alive requests to the prompt cache",
}


@dataclass(frozen=True, slots=True)
class SpendingRow:
    name: str
    spending: SpendingTotals


@dataclass(frozen=True, slots=True)
class _OverviewSpending:
    """Spending in a time range: over time, and by agent, model and category.

    `dearest_models` are the models with their own colour in charts, over time.
    """

    over_time: SpendingOverTime
    agents: Mapping[str, SpendingTotals]
    models: Mapping[str, SpendingTotals]
    categories: Mapping[str, SpendingTotals]
    dearest_models: Mapping[str, SpendingOverTime]


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
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
            "problems": problems,
            "rejections": rejections,
            "export_lines": export_lines(page_request.gateway_url),
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
        lambda: [_build_rows(group) for group in (spending.agents, spending.models, spending.categories)]
    )
    return WebPage(
        template=TEMPLATE,
        title=_TITLE,
        context={
            "is_empty": False,
            "problems": problems,
            "time_ranges": TIME_RANGES,
            "time_range": time_range,
            "agent": agent or "",
            "by": by.value,
            "agents": agents if len(agents) <= _MAX_LISTED_AGENTS else [],
            "today": total if time_range.is_today else spending.over_time.get(format_day(now), NO_SPENDING),
            "total": total,
            "charts": charts,
            "agent_rows": agent_rows,
            "agents_left_out": max(0, len(spending.agents) - _MAX_ROWS),
            "model_rows": model_rows,
            "models_left_out": max(0, len(spending.models) - _MAX_ROWS),
            "category_rows": category_rows,
            "categories": _CATEGORY_TEXTS,
            "misses": misses,
            "caps": caps,
            "limits": [limit for limit in limits if agent in (None, limit.agent)][:_MAX_ROWS],
            "rejections": _count_rejections(samples, agent),
            "added_latency": summarize_added_latency(samples),
            "step_latencies": summarize_steps(samples),
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
    # Summing thousands of agents would block the event loop for too long.
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
            for name in most_expensive(models)
        },
    )


async def _load_charts(
    store: Store, time_range: TimeRange, agent: str | None, by: TotalsGroup, spending: _OverviewSpending
) -> Sequence[Chart]:
    agents: Mapping[str, SpendingOverTime] = {} if agent is None else {agent: spending.over_time}
    if agent is None:
        names = await asyncio.to_thread(most_expensive, spending.agents)
        agents = await _load_agents_over_time(store, time_range, names)
    parts = spending.dearest_models if by is TotalsGroup.MODEL else agents
    return await asyncio.to_thread(_build_charts, time_range, by, spending.over_time, parts, agents)


def _build_charts(
    time_range: TimeRange,
    by: TotalsGroup,
    overall: SpendingOverTime,
    parts: Mapping[str, SpendingOverTime],
    agents: Mapping[str, SpendingOverTime],
) -> Sequence[Chart]:
    return (
        build_cost_chart(time_range, overall, parts, by.value),
        build_savings_chart(time_range, overall),
        build_hit_ratio_chart(time_range, agents),
        build_requests_chart(time_range, overall),
    )


async def _load_agents_over_time(
    store: Store, time_range: TimeRange, names: Sequence[str]
) -> Mapping[str, SpendingOverTime]:
    """Query each agent alone: there may be thousands of others."""
    rows = await asyncio.gather(
        *(
            store.totals.sum_totals([time_range.per, TotalsGroup.CATEGORY], since=time_range.since, agent=name)
            for name in names
        )
    )
    return {name: group_by_first(agent_rows) for name, agent_rows in zip(names, rows, strict=True)}


def _count_rejections(samples: Iterable[Sample], agent: str | None) -> Mapping[str, int]:
    """Count the requests that the gateway itself answered with an error since its start, by reason."""
    counts: Counter[str] = Counter()
    for sample in samples:
        if sample.name == definitions.REJECTIONS.name and agent in (None, sample.labels[0]):
            counts[sample.labels[1].replace("_", " ")] += round(sample.values[0])
    return dict(counts.most_common())


def _build_rows(spending_by_name: Mapping[str, SpendingTotals]) -> Sequence[SpendingRow]:
    order = sorted(
        spending_by_name.items(),
        key=lambda entry: (-entry[1].dollars, -entry[1].requests, -entry[1].calls, entry[0]),
    )
    return [SpendingRow(name, entry) for name, entry in order[:_MAX_ROWS]]


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """`path` is a page with details."""

    problem: str
    remedy: str
    path: str = ""


def list_health_problems(health: Mapping[str, Any]) -> list[HealthProblem]:
    return list(_find_health_problems(health))


def _find_health_problems(health: Mapping[str, Any]) -> Iterator[HealthProblem]:
    config, store, log = health["config"], health["store"], health["log"]
    if not config["valid"]:
        yield HealthProblem(
            f"The configuration file is invalid: {config['problem']}",
            "The previous configuration stays in effect. Correct the file;"
            " the gateway reloads it with the next request.",
            "/-/configuration",
        )
    if not store["reachable"]:
        yield HealthProblem(
            f"The store is unavailable: {store['problem']}",
            f"Check that {store['where']} is reachable. Until then, the gateway rejects calls under caps.",
        )
    if failures := health["failures"]:
        failed_steps = ", ".join(
            f"{describe_step(step)} {_format_times(times)}" for step, times in sorted(failures.items())
        )
        yield HealthProblem(
            f"Steps failed in the last five minutes: {failed_steps}",
            "The gateway sent the requests without these steps. See its log for the reason.",
        )
    waiting, lost = health["bills"]["waiting"], health["bills"]["lost"]
    if waiting:
        verb = "is" if waiting == 1 else "are"
        yield HealthProblem(
            f"{format_count(waiting, 'charge')} {verb} not stored yet, so the totals here are too low",
            "The gateway stores pending charges as soon as the store accepts them.",
        )
    if lost:
        verb = "was" if lost == 1 else "were"
        yield HealthProblem(
            f"{format_count(lost, 'charge')} {verb} lost since the gateway started,"
            " so the totals here are too low",
            "See the gateway's log for the reason, and the provider's account for the actual spending.",
        )
    if not log["written"]:
        yield HealthProblem(
            f"The gateway cannot write its log: {log['problem']}",
            "Check the free disk space and the permissions of the log file.",
        )


def _format_times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    name: str
    count: int
    mean: float
    p50: float
    p99: float


def summarize_added_latency(samples: Iterable[Sample]) -> Latency | None:
    numbers = next((sample.values for sample in samples if sample.name == definitions.ADDED_SECONDS.name), None)
    return None if numbers is None else _summarize_histogram("", numbers, definitions.ADDED_SECONDS.buckets)


def summarize_steps(samples: Iterable[Sample]) -> list[Latency]:
    latencies = [
        latency
        for item in samples
        if item.name == definitions.STEP_SECONDS.name
        and (latency := _summarize_histogram(item.labels[0], item.values, definitions.STEP_SECONDS.buckets))
        is not None
    ]
    return sorted(latencies, key=lambda item: (-item.p99, -item.mean, item.name))


def _summarize_histogram(name: str, numbers: Sequence[float], bounds: Sequence[float]) -> Latency | None:
    total, *counts = numbers
    count = sum(counts)
    if not count:
        return None
    return Latency(
        name=name,
        count=round(count),
        mean=total / count,
        p50=_quantile(0.5, counts, bounds),
        p99=_quantile(0.99, counts, bounds),
    )


def _quantile(share: float, counts: Sequence[float], bounds: Sequence[float]) -> float:
    """Interpolate linearly within a bucket, as Prometheus does; beyond the last bound, return that."""
    rank = share * sum(counts)
    below = 0.0
    for at, up_to in enumerate(accumulate(counts)):
        if up_to >= rank and counts[at]:
            if at == len(bounds):
                return bounds[-1]
            lower = bounds[at - 1] if at else 0.0
            return lower + (bounds[at] - lower) * (rank - below) / counts[at]
        below = up_to
    return bounds[-1]
