"""The charts of the overview."""

from decimal import Decimal

from foveate.prompt_cache.hit_ratio import HitRatio
from foveate.web.charts import OTHER_COLOUR, SERIES_COLOURS, Shape
from foveate.web.pages import overview
from foveate.web.spending import SpendingTotals, resolve_time_range
from tests.support.stores.ledger_records import NOON

TODAY, WEEK = resolve_time_range("today", NOON), resolve_time_range("7d", NOON)
LAST = WEEK.groups[-1]


def make_spending(dollars: str) -> SpendingTotals:
    return SpendingTotals(calls=1, dollars=Decimal(dollars))


def test_the_rest_of_the_total_is_shown_as_others() -> None:
    total = {LAST: make_spending("3.5"), WEEK.groups[0]: make_spending("1")}
    parts = {"ana": {LAST: make_spending("2")}, "bob": {}}

    chart = overview.build_cost_chart(WEEK, total, parts, "agent")

    assert [(series.name, series.values, series.colour) for series in chart.series] == [
        ("ana", [0, 0, 0, 0, 0, 0, 2], SERIES_COLOURS[0]),
        (overview.OTHERS_NAME, [1, 0, 0, 0, 0, 0, 1.5], OTHER_COLOUR),
    ]
    assert chart.description == "$4.50 in the last 7 days, highest at 15 Nov with $3.50; ana spent $2.00"


def test_the_rest_is_never_negative() -> None:
    chart = overview.build_cost_chart(
        WEEK, {LAST: make_spending("2")}, {"ana": {LAST: make_spending("2.5")}}, "agent"
    )

    assert [series.name for series in chart.series] == ["ana"]


def test_an_empty_chart_has_its_labels_and_says_so() -> None:
    chart = overview.build_cost_chart(WEEK, {}, {}, "agent")

    assert [series.values for series in chart.series] == [[0] * 7]
    assert chart.description == "no spending in the last 7 days"
    assert overview.build_savings_chart(WEEK, {}).description.endswith("no savings or losses")
    assert overview.build_hit_ratio_chart(WEEK, {}).description == "no requests"


def test_hours_that_have_not_started_are_not_drawn() -> None:
    total = {TODAY.groups[0]: SpendingTotals(requests=3, failed=1)}

    succeeded, failed = overview.build_requests_chart(TODAY, total).series

    assert succeeded.values[:2] == [2, 0]
    assert failed.values[:2] == [1, 0]
    assert succeeded.values[13:] == [None] * 11


def test_an_agent_has_the_same_colour_in_every_chart() -> None:
    agents = {
        "dear": {LAST: make_spending("9")},
        "busy": {LAST: SpendingTotals(calls=1, dollars=Decimal(1), hits=HitRatio(3, 4))},
    }
    total = {LAST: make_spending("10")}

    colours = {
        series.name: series.colour for series in overview.build_cost_chart(WEEK, total, agents, "agent").series
    }
    ratios = [
        series for series in overview.build_hit_ratio_chart(WEEK, agents).series if series.shape is Shape.LINE
    ]

    assert [(series.name, series.colour) for series in ratios] == [("busy", colours["busy"])]


def test_the_health_levels_are_lines_over_the_whole_time_range() -> None:
    limits = [
        series for series in overview.build_hit_ratio_chart(WEEK, {}).series if series.shape is Shape.LIMIT
    ]

    assert [(series.name, series.values) for series in limits] == [
        ("target: 70%", [0.7] * 7),
        ("flagged below: 30%", [0.3] * 7),
    ]


def test_losses_are_negative_and_unused_mechanisms_are_left_out() -> None:
    total = {LAST: SpendingTotals(saved_by_compaction=Decimal("-0.5"), lost_dollars=Decimal("0.25"))}

    chart = overview.build_savings_chart(WEEK, total)

    assert {series.name: series.values[-1] for series in chart.series} == {
        "saved by breakpoints": 0,
        "saved by compaction and trimming": -0.5,
        "lost to cache misses": 0.25,
    }


def test_only_the_most_expensive_have_their_own_colour() -> None:
    totals = {f"agent {at}": make_spending(str(at)) for at in range(20)} | {"silent": SpendingTotals()}

    assert overview.most_expensive(totals) == [f"agent {at}" for at in range(19, 13, -1)]
