"""The chart of a session's context window."""

from decimal import Decimal
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from foveate.session.traces import CacheMiss, WindowSection
from foveate.store.dashboard import WindowContents, WindowSample
from foveate.web.charts import Shape
from foveate.web.pages.sessions import (
    MAX_POINTS,
    build_window_chart,
    choose_points,
    describe_current_window,
    list_required_requests,
)
from tests.support.stores.records import COMPACTION

NOON = 1_794_744_000.0


def make_sample(
    number: int,
    tokens: int | None = 1_000,
    *,
    window: int | None = 4_000,
    compaction_id: str | None = None,
    is_cache_miss: bool = False,
) -> WindowSample:
    return WindowSample(
        id=f"r{number}",
        at=NOON + 60 * number,
        tokens=tokens,
        window_tokens=window,
        compaction_id=compaction_id,
        is_cache_miss=is_cache_miss,
    )


def make_contents(miss: CacheMiss | None = None, **sizes: int) -> WindowContents:
    sections = [WindowSection(name.replace("_", " "), tokens) for name, tokens in sizes.items()]
    return WindowContents(sections=sections, exact=True, reserved_tokens=300, cache_miss=miss)


@given(st.lists(st.none() | st.integers(0, 10**6), max_size=60), st.integers(1, 12))
def test_the_fullest_of_each_stretch_is_shown_and_the_last(sizes: list[int | None], max_points: int) -> None:
    points = [make_sample(number, tokens) for number, tokens in enumerate(sizes)]
    indexes = choose_points(points, max_points)

    assert indexes == sorted(set(indexes))
    assert len(indexes) == min(len(points), max_points)
    if points:
        assert indexes[-1] == len(points) - 1
        max_stretch = ceil(len(points) / len(indexes))
        earlier = [size or 0 for size in sizes[:-max_stretch]]
        assert max(sizes[at] or 0 for at in indexes) >= max(earlier, default=0)


def test_a_session_without_counts_has_no_chart() -> None:
    assert build_window_chart([], {}, {}) is None
    assert build_window_chart([make_sample(0, None)], {}, {}) is None
    assert describe_current_window([make_sample(0, None)], {}) is None


def test_kinds_of_sections_are_stacked_in_the_order_of_the_prompt() -> None:
    points = [make_sample(0, 1_000), make_sample(1, None), make_sample(2, 1_500)]
    contents = {
        "r0": make_contents(user=400, tools=600),
        "r2": make_contents(tools=600, injected_time=40, injected_memory=60, user=500, tool_results=250),
    }
    chart = build_window_chart(points, contents, {})

    assert chart is not None
    assert chart.stacked
    assert {series.name: list(series.values) for series in chart.series} == {
        "tools": [600, None, 600],
        "injected": [0, None, 100],
        "user": [400, None, 500],
        "tool results": [0, None, 250],
        "other": [0, None, 50],
        "limit": [4_000, 4_000, 4_000],
    }
    assert [series.shape for series in chart.series][-1] is Shape.LIMIT
    assert len({series.colour for series in chart.series}) == len(chart.series)
    assert list(chart.labels) == ["#1 12:00:00", "#2 12:01:00", "#3 12:02:00"]
    assert chart.description == "1.5k tokens at the last of 3 requests, 37.5% of a window of 4k; maximum 1.5k"


def test_a_distant_limit_does_not_flatten_the_chart() -> None:
    chart = build_window_chart([make_sample(0, 1_000, window=200_000)], {"r0": make_contents(user=1_000)}, {})

    assert chart is not None
    assert [series.name for series in chart.series] == ["user"]
    assert "0.5% of a window of 200k" in chart.description
    assert chart.title == "Context window over time (limit 200k tokens, not shown)"


def test_compactions_and_cache_misses_are_events_of_the_chart() -> None:
    miss = CacheMiss(cause="timestamp", where="system[0]", lost_tokens=3_000, lost_dollars=Decimal("0.5"))
    points = [
        make_sample(0),
        make_sample(1, compaction_id=COMPACTION.id, is_cache_miss=True),
        make_sample(2, compaction_id=COMPACTION.id),
        make_sample(3, compaction_id="unknown"),
        make_sample(4),
    ]
    contents = {point.id: make_contents(miss if point.is_cache_miss else None, user=1_000) for point in points}
    chart = build_window_chart(points, contents, {COMPACTION.id: COMPACTION})

    assert chart is not None
    assert [(event.label, event.kind, event.description) for event in chart.events] == [
        (1, "compaction", "Compacted from 9k to 700 tokens"),
        (
            1,
            "miss",
            "Cache miss: a timestamp changed, at system[0]; 3,000 tokens paid again, $0.50",
        ),
        (3, "compaction", "Compacted"),
        (4, "compaction", "Compaction undone"),
    ]
    second_page = build_window_chart(points[2:], contents, {}, first_number=3)
    assert second_page is not None
    assert [event.label for event in second_page.events] == [1, 2], (
        "a state that did not change is not an event"
    )
    assert second_page.labels[0].startswith("#3 ")


def test_a_long_session_has_few_points_and_all_events() -> None:
    points = [
        make_sample(number, 1_000 + number, is_cache_miss=number % 3 == 0) for number in range(4 * MAX_POINTS)
    ]
    ids = list_required_requests(points)
    contents = {id_: make_contents(user=1_000) for id_ in ids}
    chart = build_window_chart(points, contents, {})

    assert chart is not None
    assert len(chart.labels) == MAX_POINTS
    assert len(ids) < 3 * MAX_POINTS
    assert chart.labels[-1].startswith(f"#{len(points)} ")
    assert {event.label for event in chart.events} == set(range(MAX_POINTS))
    assert any(event.description == "Cache miss (and 1 more)" for event in chart.events)


def test_the_current_window_is_unknown_if_the_last_request_was_not_counted() -> None:
    assert (
        describe_current_window([make_sample(0), make_sample(1, None)], {"r0": make_contents(system=500)})
        is None
    )


def test_the_current_window_is_that_of_the_last_request() -> None:
    points = [make_sample(0), make_sample(1, 2_000)]
    window = describe_current_window(points, {"r1": make_contents(system=500, nobody_knows_it=1_000)})

    assert window is not None
    assert (window.tokens, window.share, window.exact, window.reserved_tokens) == (2_000, 0.5, True, 300)
    assert [(part.name, part.tokens, part.share) for part in window.parts] == [
        ("system", 500, 0.25),
        ("nobody knows it", 1_000, 0.5),
        ("other", 500, 0.25),
    ]
