"""The charts of the overview: money, what was saved and lost, hit ratios and requests over a span."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal

from foveate.cache.hits import LEVELS
from foveate.web.charts import COLOURS, REST, Chart, Series, Shape, Unit
from foveate.web.spans import Span
from foveate.web.spent import NOTHING, Spent
from foveate.web.words import counted, money, percent, short

MOST_SERIES = 6
"""So many agents or models have a colour of their own; the rest is one more series."""
OTHERS = "others"
_LONGEST_NAME = 32

OverTime = Mapping[str, Spent]
"""What was spent by the pieces of a span."""


def dearest(spent: Mapping[str, Spent]) -> list[str]:
    """The agents or models that have a colour, those first that cost most."""
    asked = [name for name, one in spent.items() if not one.is_nothing]
    return sorted(asked, key=lambda name: (-spent[name].dollars, -spent[name].input_tokens, name))[:MOST_SERIES]


def money_chart(span: Span, whole: OverTime, parts: Mapping[str, OverTime], by: str) -> Chart:
    """Money by the piece of a span, in `parts` on each other; what is in none of them is that of others."""
    shown = {name: _amounts(span, part, _dollars) for name, part in parts.items()}
    total = _amounts(span, whole, _dollars)
    # Parts are read after the whole, and may have grown meanwhile.
    rest = [
        max(Decimal(0), all_ - sum(column, Decimal(0)))
        for all_, column in zip(total, _columns(span, shown), strict=True)
    ]
    series = [
        _bars(span, _name(name), amounts, COLOURS[place])
        for place, (name, amounts) in enumerate(shown.items())
        if any(amounts)
    ]
    if any(rest):
        series.append(_bars(span, OTHERS, rest, REST))
    return Chart(
        id="money",
        title=f"Money by {span.piece} and {by}",
        says=_money_says(span, total, shown),
        labels=span.labels,
        series=series or [_bars(span, "dollars", total, COLOURS[0])],
        unit=Unit.DOLLARS,
        stacked=True,
    )


def saved_chart(span: Span, whole: OverTime) -> Chart:
    """What each mechanism saved, by simulation without it, and what unplanned cache misses lost."""
    kinds: dict[str, tuple[Callable[[Spent], Decimal], str]] = {
        "saved by breakpoints": (lambda one: one.saved_by_breakpoints, "three"),
        "saved by compaction and trimming": (lambda one: one.saved_by_compaction, "four"),
        "saved by keep-alive": (lambda one: one.saved_by_keep_alive, "five"),
        "saved by injected context": (lambda one: one.saved_by_context, "two"),
        "lost to cache breaks": (lambda one: one.lost_dollars, "break"),
    }
    amounts = {name: _amounts(span, whole, of) for name, (of, _) in kinds.items()}
    said = [f"{name} {money(sum(values, Decimal(0)))}" for name, values in amounts.items() if any(values)]
    return Chart(
        id="saved",
        title=f"Saved and lost by {span.piece}",
        says=f"{span.title}, {', '.join(said) or 'nothing was saved or lost'}",
        labels=span.labels,
        series=[
            Series(name=name, values=_drawn(span, values), colour=kinds[name][1], shape=Shape.LINE)
            for name, values in amounts.items()
            if any(values) or name == "saved by breakpoints"
        ],
        unit=Unit.DOLLARS,
    )


def ratio_chart(span: Span, agents: Mapping[str, OverTime]) -> Chart:
    """The hit ratio of each agent, with the lines of the health levels."""
    ratios = {name: [part.get(group, NOTHING).ratio for group in span.groups] for name, part in agents.items()}
    known = {name: values for name, values in ratios.items() if any(one is not None for one in values)}
    last = {name: next(one for one in reversed(values) if one is not None) for name, values in known.items()}
    levels = ((LEVELS.healthy_from, "the aim", "good"), (LEVELS.flagged_below, "flagged below", "limit"))
    places = {name: place for place, name in enumerate(ratios)}
    return Chart(
        id="ratio",
        title=f"Hit ratio by {span.piece} and agent",
        says=", ".join(f"{_name(name)} last {percent(ratio)}" for name, ratio in last.items())
        or "nothing was sent",
        labels=span.labels,
        series=[
            *(
                Series(name=_name(name), values=values, colour=COLOURS[places[name]], shape=Shape.LINE)
                for name, values in known.items()
            ),
            *(
                Series(
                    name=f"{title}: {percent(level)}",
                    values=[level] * len(span.labels),
                    colour=colour,
                    shape=Shape.LIMIT,
                )
                for level, title, colour in levels
            ),
        ],
        unit=Unit.PERCENT,
    )


def requests_chart(span: Span, whole: OverTime) -> Chart:
    """Requests, those that failed on those that did not."""
    spent = [whole.get(group, NOTHING) for group in span.groups]
    requests, failed = sum(one.requests for one in spent), sum(one.failed for one in spent)
    return Chart(
        id="requests",
        title=f"Requests and errors by {span.piece}",
        says=f"{counted(requests, 'request')} {span.title}, of which {failed:,} failed",
        labels=span.labels,
        series=[
            _bars(span, "without an error", [one.requests - one.failed for one in spent], COLOURS[0]),
            _bars(span, "failed", [one.failed for one in spent], "break"),
        ],
        unit=Unit.NUMBER,
        stacked=True,
    )


def _money_says(span: Span, total: Sequence[Decimal], shown: Mapping[str, Sequence[Decimal]]) -> str:
    spent = sum(total, Decimal(0))
    if not spent:
        return f"nothing {span.title}"
    most = max(range(len(total)), key=lambda at: total[at])
    said = f"{money(spent)} {span.title}, the most at {span.labels[most]} with {money(total[most])}"
    sums = {name: sum(amounts, Decimal(0)) for name, amounts in shown.items()}
    first = max(sums, key=lambda name: sums[name], default=None)
    return said if first is None else f"{said}; {_name(first)} has {money(sums[first])} of it"


def _amounts(span: Span, spent: OverTime, of: Callable[[Spent], Decimal]) -> list[Decimal]:
    return [of(spent.get(group, NOTHING)) for group in span.groups]


def _columns(span: Span, shown: Mapping[str, Sequence[Decimal]]) -> Iterable[Sequence[Decimal]]:
    return ([amounts[at] for amounts in shown.values()] for at in range(len(span.groups)))


def _dollars(spent: Spent) -> Decimal:
    return spent.dollars


def _bars(span: Span, name: str, amounts: Iterable[Decimal | int], colour: str) -> Series:
    return Series(name=name, values=_drawn(span, amounts), colour=colour, shape=Shape.BAR)


def _drawn(span: Span, amounts: Iterable[Decimal | int]) -> list[float | None]:
    """What is drawn of amounts: nothing where a piece of the span has not begun."""
    return [float(amount) if place < span.begun else None for place, amount in enumerate(amounts)]


def _name(name: str) -> str:
    return short(name, _LONGEST_NAME) or '""'
