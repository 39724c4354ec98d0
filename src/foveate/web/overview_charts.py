"""The charts of the overview: money, what was saved and lost, hit ratios and requests over a span."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal

from foveate.cache.hits import DEFAULT_THRESHOLDS
from foveate.web.charts import OTHER_COLOUR, SERIES_COLOURS, Chart, Series, Shape, Unit
from foveate.web.spans import TimeRange
from foveate.web.spent import NO_SPENDING, SpendingTotals
from foveate.web.words import format_count, format_money, format_percent, shorten

MAX_SERIES = 6
"""So many agents or models have a colour of their own; the rest is one more series."""
OTHERS_NAME = "others"
_MAX_NAME_CHARS = 32

SpendingOverTime = Mapping[str, SpendingTotals]
"""What was spent by the pieces of a span."""


def most_expensive(spent: Mapping[str, SpendingTotals]) -> list[str]:
    """The agents or models that have a colour, those first that cost most."""
    names = [name for name, spending in spent.items() if not spending.is_nothing]
    return sorted(names, key=lambda name: (-spent[name].dollars, -spent[name].input_tokens, name))[:MAX_SERIES]


def build_cost_chart(
    time_range: TimeRange, whole: SpendingOverTime, parts: Mapping[str, SpendingOverTime], by: str
) -> Chart:
    """Money by the piece of a span, in `parts` on each other; what is in none of them is that of others."""
    amounts_by_name = {name: _amounts(time_range, part, _dollars) for name, part in parts.items()}
    total = _amounts(time_range, whole, _dollars)
    # Parts are read after the whole, and may have grown meanwhile.
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
        title=f"Money by {time_range.unit} and {by}",
        says=_describe_costs(time_range, total, amounts_by_name),
        labels=time_range.labels,
        series=series or [_bars(time_range, "dollars", total, SERIES_COLOURS[0])],
        unit=Unit.DOLLARS,
        stacked=True,
    )


def build_savings_chart(time_range: TimeRange, whole: SpendingOverTime) -> Chart:
    """What each mechanism saved, by simulation without it, and what unplanned cache misses lost."""
    kinds: dict[str, tuple[Callable[[SpendingTotals], Decimal], str]] = {
        "saved by breakpoints": (lambda spending: spending.saved_by_breakpoints, "three"),
        "saved by compaction and trimming": (lambda spending: spending.saved_by_compaction, "four"),
        "saved by keep-alive": (lambda spending: spending.saved_by_keep_alive, "five"),
        "saved by injected context": (lambda spending: spending.saved_by_context, "two"),
        "lost to cache breaks": (lambda spending: spending.lost_dollars, "break"),
    }
    amounts = {name: _amounts(time_range, whole, amount_of) for name, (amount_of, _) in kinds.items()}
    texts = [
        f"{name} {format_money(sum(values, Decimal(0)))}" for name, values in amounts.items() if any(values)
    ]
    return Chart(
        id="saved",
        title=f"Saved and lost by {time_range.unit}",
        says=f"{time_range.title}, {', '.join(texts) or 'nothing was saved or lost'}",
        labels=time_range.labels,
        series=[
            Series(name=name, values=_chart_values(time_range, values), colour=kinds[name][1], shape=Shape.LINE)
            for name, values in amounts.items()
            if any(values) or name == "saved by breakpoints"
        ],
        unit=Unit.DOLLARS,
    )


def build_hit_ratio_chart(time_range: TimeRange, agents: Mapping[str, SpendingOverTime]) -> Chart:
    """The hit ratio of each agent, with the lines of the health levels."""
    ratios = {
        name: [part.get(group, NO_SPENDING).ratio for group in time_range.groups]
        for name, part in agents.items()
    }
    known = {name: values for name, values in ratios.items() if any(value is not None for value in values)}
    last = {
        name: next(value for value in reversed(values) if value is not None) for name, values in known.items()
    }
    levels = (
        (DEFAULT_THRESHOLDS.healthy_from, "the aim", "good"),
        (DEFAULT_THRESHOLDS.flagged_below, "flagged below", "limit"),
    )
    places = {name: place for place, name in enumerate(ratios)}
    return Chart(
        id="ratio",
        title=f"Hit ratio by {time_range.unit} and agent",
        says=", ".join(f"{_series_name(name)} last {format_percent(ratio)}" for name, ratio in last.items())
        or "nothing was sent",
        labels=time_range.labels,
        series=[
            *(
                Series(
                    name=_series_name(name),
                    values=values,
                    colour=SERIES_COLOURS[places[name]],
                    shape=Shape.LINE,
                )
                for name, values in known.items()
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


def build_requests_chart(time_range: TimeRange, whole: SpendingOverTime) -> Chart:
    """Requests, those that failed on those that did not."""
    spent = [whole.get(group, NO_SPENDING) for group in time_range.groups]
    requests, failed = sum(spending.requests for spending in spent), sum(spending.failed for spending in spent)
    return Chart(
        id="requests",
        title=f"Requests and errors by {time_range.unit}",
        says=f"{format_count(requests, 'request')} {time_range.title}, of which {failed:,} failed",
        labels=time_range.labels,
        series=[
            _bars(
                time_range,
                "without an error",
                [spending.requests - spending.failed for spending in spent],
                SERIES_COLOURS[0],
            ),
            _bars(time_range, "failed", [spending.failed for spending in spent], "break"),
        ],
        unit=Unit.NUMBER,
        stacked=True,
    )


def _describe_costs(
    time_range: TimeRange, total: Sequence[Decimal], amounts_by_name: Mapping[str, Sequence[Decimal]]
) -> str:
    spent = sum(total, Decimal(0))
    if not spent:
        return f"nothing {time_range.title}"
    peak = max(range(len(total)), key=lambda at: total[at])
    text = f"{format_money(spent)} {time_range.title}, the most at {time_range.labels[peak]} with {format_money(total[peak])}"
    sums = {name: sum(amounts, Decimal(0)) for name, amounts in amounts_by_name.items()}
    first = max(sums, key=lambda name: sums[name], default=None)
    return text if first is None else f"{text}; {_series_name(first)} has {format_money(sums[first])} of it"


def _amounts(
    time_range: TimeRange, spent: SpendingOverTime, amount_of: Callable[[SpendingTotals], Decimal]
) -> list[Decimal]:
    return [amount_of(spent.get(group, NO_SPENDING)) for group in time_range.groups]


def _columns(
    time_range: TimeRange, amounts_by_name: Mapping[str, Sequence[Decimal]]
) -> Iterable[Sequence[Decimal]]:
    return ([amounts[at] for amounts in amounts_by_name.values()] for at in range(len(time_range.groups)))


def _dollars(spent: SpendingTotals) -> Decimal:
    return spent.dollars


def _bars(time_range: TimeRange, name: str, amounts: Iterable[Decimal | int], colour: str) -> Series:
    return Series(name=name, values=_chart_values(time_range, amounts), colour=colour, shape=Shape.BAR)


def _chart_values(time_range: TimeRange, amounts: Iterable[Decimal | int]) -> list[float | None]:
    """What is drawn of amounts: nothing where a piece of the span has not begun."""
    return [float(amount) if place < time_range.started else None for place, amount in enumerate(amounts)]


def _series_name(name: str) -> str:
    return shorten(name, _MAX_NAME_CHARS) or '""'
