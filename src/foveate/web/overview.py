"""The overview: what is spent, saved and lost, how well caches work, and what is wrong."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from foveate.cost.ledger import Category
from foveate.engine import series
from foveate.engine.board import Sample
from foveate.session.rate_limits import RECENT_SECONDS
from foveate.session.totals import Per
from foveate.store import Store
from foveate.web import latency, overview_charts
from foveate.web.asking import Asked, Shown
from foveate.web.caps import CapRow, cap_rows, cap_rows_of
from foveate.web.charts import Chart
from foveate.web.inside import Inside
from foveate.web.overview_charts import OverTime
from foveate.web.pointing import exports
from foveate.web.spans import SPANS, WEEK, Span, day_of, span_of
from foveate.web.spent import NOTHING, Rows, Spent, all_of, by_category, by_first
from foveate.web.troubles import troubles
from foveate.web.viewer import Viewer

TEMPLATE = "overview.html"
_TITLE = "Overview"
_BREAKS = 10
_MOST_ROWS = 50
# Beyond so many nobody looks for one in a list: a name can be typed.
_MOST_LISTED = 200
_BY = frozenset((Per.AGENT.value, Per.MODEL.value))
_CATEGORIES = {
    Category.MAIN: "the agents' own",
    Category.COMPACTION: "summaries of long histories",
    Category.COUNTING: "tokens counted by a server",
    Category.PING: "keeping caches warm",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: of whom or what, and what was spent."""

    name: str
    spent: Spent


@dataclass(frozen=True, slots=True)
class _Found:
    """What was spent over a span: by its pieces, and in all of it by agent, by model and by category.

    `dearest_models` are those that have a colour on charts, by the pieces of the span.
    """

    over_time: OverTime
    agents: Mapping[str, Spent]
    models: Mapping[str, Spent]
    categories: Mapping[str, Spent]
    dearest_models: Mapping[str, OverTime]


async def look(inside: Inside, asked: Asked) -> Shown:
    """The overview of a span, of all agents or of one."""
    now, store = inside.clock(), inside.store
    span = span_of(asked.choice("span", WEEK, SPANS), now)
    viewer = asked.viewer
    agent = asked.agent() or None
    by = Per(asked.choice("by", Per.AGENT if agent is None else Per.MODEL, _BY))
    health, agents = await asyncio.gather(inside.health(), store.totals.agents())
    agents = [name for name in agents if viewer.can_see(name)]
    wrong = troubles(health) if viewer.sees_everything else []
    if not agents:
        refused = _refused(inside.samples(), agent)
        given = {"is_empty": True, "troubles": wrong, "refused": refused, "exports": exports(asked.address)}
        return Shown(template=TEMPLATE, title=_TITLE, given=given)
    found, breaks, caps, limits = await asyncio.gather(
        _spent(store, span, agent),
        store.latest_breaks(limit=_BREAKS, since=span.since, agent=agent),
        _cap_rows(inside, viewer, now),
        store.rate_limits.recent(since=now - RECENT_SECONDS),
    )
    samples = inside.samples()
    whole = all_of(found.over_time.values())
    charts = await _charts(store, span, agent, by, found)
    agent_rows, model_rows, category_rows = await asyncio.to_thread(
        lambda: [_rows(spent) for spent in (found.agents, found.models, found.categories)]
    )
    return Shown(
        template=TEMPLATE,
        title=_TITLE,
        given={
            "is_empty": False,
            "troubles": wrong,
            "spans": SPANS,
            "span": span,
            "agent": agent or "",
            "by": by.value,
            "agents": agents if len(agents) <= _MOST_LISTED else [],
            "today": whole if span.is_today else found.over_time.get(day_of(now), NOTHING),
            "whole": whole,
            "charts": charts,
            "agent_rows": agent_rows,
            "agents_left_out": max(0, len(found.agents) - _MOST_ROWS),
            "model_rows": model_rows,
            "models_left_out": max(0, len(found.models) - _MOST_ROWS),
            "category_rows": category_rows,
            "categories": _CATEGORIES,
            "breaks": breaks,
            "caps": caps,
            "limits": [one for one in limits if agent in (None, one.agent)][:_MOST_ROWS],
            "refused": _refused(samples, agent),
            "added": latency.added(samples),
            "steps": latency.steps(samples),
        },
    )


async def _cap_rows(inside: Inside, viewer: Viewer, now: float) -> list[CapRow]:
    caps = inside.configured().caps
    if viewer.agent is None:
        return await cap_rows(inside.store, caps, now=now)
    return await cap_rows_of(inside.store, caps, viewer.agent, now=now, shows_shared=False)


async def _spent(store: Store, span: Span, agent: str | None) -> _Found:
    over_time, agents = await asyncio.gather(
        *(
            store.totals.totals([*per, Per.CATEGORY], since=span.since, agent=agent)
            for per in ([span.per, Per.MODEL], [Per.AGENT])
        )
    )
    # Of thousands of agents it takes longer than requests should wait for the event loop.
    return await asyncio.to_thread(_found, over_time, agents)


def _found(over_time: Rows, agents: Rows) -> _Found:
    models = by_first([(group[1:], totals) for group, totals in over_time])
    return _Found(
        over_time=by_first(over_time),
        agents=by_first(agents),
        models=models,
        categories=by_category(over_time),
        dearest_models={
            name: by_first([row for row in over_time if row[0][1] == name])
            for name in overview_charts.dearest(models)
        },
    )


async def _charts(store: Store, span: Span, agent: str | None, by: Per, found: _Found) -> Sequence[Chart]:
    agents: Mapping[str, OverTime] = {} if agent is None else {agent: found.over_time}
    if agent is None:
        names = await asyncio.to_thread(overview_charts.dearest, found.agents)
        agents = await _agents_over_time(store, span, names)
    parts = found.dearest_models if by is Per.MODEL else agents
    return await asyncio.to_thread(_drawn, span, by, found.over_time, parts, agents)


def _drawn(
    span: Span, by: Per, whole: OverTime, parts: Mapping[str, OverTime], agents: Mapping[str, OverTime]
) -> Sequence[Chart]:
    return (
        overview_charts.money_chart(span, whole, parts, by.value),
        overview_charts.saved_chart(span, whole),
        overview_charts.ratio_chart(span, agents),
        overview_charts.requests_chart(span, whole),
    )


async def _agents_over_time(store: Store, span: Span, names: Sequence[str]) -> Mapping[str, OverTime]:
    """Of each agent by itself: there may be thousands beside them."""
    rows = await asyncio.gather(
        *(store.totals.totals([span.per, Per.CATEGORY], since=span.since, agent=name) for name in names)
    )
    return {name: by_first(one) for name, one in zip(names, rows, strict=True)}


def _refused(samples: Iterable[Sample], agent: str | None) -> Mapping[str, int]:
    """How many requests the gateway itself has answered with an error since it started, by why, most first."""
    found: Counter[str] = Counter()
    for one in samples:
        if one.name == series.REFUSALS.name and agent in (None, one.labels[0]):
            found[one.labels[1].replace("_", " ")] += round(one.numbers[0])
    return dict(found.most_common())


def _rows(spent: Mapping[str, Spent]) -> Sequence[Row]:
    """The dearest first; those that cost nothing by what they asked."""
    order = sorted(spent.items(), key=lambda one: (-one[1].dollars, -one[1].requests, -one[1].calls, one[0]))
    return [Row(name, one) for name, one in order[:_MOST_ROWS]]
