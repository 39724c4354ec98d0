"""Hit ratios of the last hour for each agent, in bounded memory."""

import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.model import CacheUsage
from foveate.prompt_cache.hit_ratio import (
    BUCKET_SECONDS,
    WINDOW_SECONDS,
    HitRatio,
    HitRatioLevel,
    HitRatios,
    HitRatioThresholds,
)


def make_usage(read_tokens: int, uncached_tokens: int = 0, written_tokens: int = 0) -> CacheUsage:
    return CacheUsage(uncached=uncached_tokens, read=read_tokens, written_5m=written_tokens)


def build_ratios(*events: tuple[float, int, int], agent: str = "ana") -> HitRatios:
    ratios = HitRatios()
    for seconds, read_tokens, uncached_tokens in events:
        ratios.add(agent, make_usage(read_tokens, uncached_tokens), at=seconds)
    return ratios


def test_the_ratio_includes_all_input_tokens() -> None:
    hits = HitRatios()
    hits.add("ana", CacheUsage(uncached=10, read=60, written_5m=20, written_1h=10), at=0)

    assert hits.ratio("ana", at=0).ratio == 0.6


def test_agents_have_their_own_ratios() -> None:
    ratios = build_ratios((0, 9, 1))
    ratios.add("ben", make_usage(1, 9), at=0)

    assert [(name, hit_ratio.ratio) for name, hit_ratio in ratios.ratios(at=10).items()] == [
        ("ana", 0.9),
        ("ben", 0.1),
    ]


@pytest.mark.parametrize(
    ("read_tokens", "input_tokens", "level"),
    [
        (70, 100, HitRatioLevel.HEALTHY),
        (699, 1000, HitRatioLevel.FAIR),
        (30, 100, HitRatioLevel.FAIR),
        (299, 1000, HitRatioLevel.FLAGGED),
        (0, 5, HitRatioLevel.FLAGGED),
        (0, 0, HitRatioLevel.UNKNOWN),
    ],
)
def test_a_ratio_is_healthy_fair_flagged_or_unknown(
    read_tokens: int, input_tokens: int, level: HitRatioLevel
) -> None:
    assert HitRatio(read_tokens, input_tokens).level() is level


def test_thresholds_can_be_configured() -> None:
    assert (
        HitRatio(5, 10).level(HitRatioThresholds(healthy_from=0.5, flagged_below=0.1)) is HitRatioLevel.HEALTHY
    )


def test_usage_older_than_an_hour_does_not_count() -> None:
    ratios = build_ratios((0, 10, 0), (1800, 0, 10))

    assert ratios.ratio("ana", at=3599).ratio == 0.5
    assert ratios.ratio("ana", at=3600).ratio == 0.0
    assert ratios.ratio("ana", at=1800 + 3600).level() is HitRatioLevel.UNKNOWN
    assert not ratios.ratios(at=1800 + 3600)


def test_an_unknown_agent_has_no_ratio() -> None:
    assert HitRatios().ratio("nobody", at=0).level() is HitRatioLevel.UNKNOWN


def test_late_arrivals_count_in_their_own_bucket() -> None:
    ratios = build_ratios((7200, 10, 0), (4000, 0, 10), (0, 0, 1000))

    assert ratios.ratio("ana", at=7200).ratio == 0.5
    assert ratios.ratio("ana", at=0).input_tokens == 1000


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    ratios = build_ratios(*((seconds, 1, 0) for seconds in range(108_000, 111_600, 30)))
    for seconds in range(54_000, 57_600, 30):
        ratios.add("ana", make_usage(0, 1), at=seconds)

    assert ratios.ratio("ana", at=57_599) == HitRatio(0, 120)
    assert ratios.ratio("ana", at=111_599) == HitRatio(120, 120)


@given(
    events=st.lists(
        st.tuples(st.integers(-8000, 8000), st.integers(0, 50), st.integers(0, 50)),
        max_size=60,
    ),
    now=st.integers(-9000, 12_000),
)
def test_the_ratio_always_equals_the_sum_over_all_requests(
    events: list[tuple[int, int, int]], now: int
) -> None:
    last = now // BUCKET_SECONDS
    first = last - WINDOW_SECONDS // BUCKET_SECONDS
    counted_events = [event for event in events if first < event[0] // BUCKET_SECONDS <= last]

    assert build_ratios(*events).ratio("ana", at=now) == HitRatio(
        sum(read_tokens for _, read_tokens, _ in counted_events),
        sum(read_tokens + uncached_tokens for _, read_tokens, uncached_tokens in counted_events),
    )


@pytest.mark.slow
def test_a_busy_day_takes_no_more_memory_than_a_busy_hour() -> None:
    tracemalloc.start()
    try:
        ratios = build_ratios(*((second * 3, 9, 1) for second in range(3 * 1200)))
        three_hours_bytes = tracemalloc.get_traced_memory()[0]
        for second in range(3 * 1200, 24 * 1200):
            ratios.add("ana", make_usage(9, 1), at=second * 3)
        day_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert day_bytes < three_hours_bytes * 1.5
    assert ratios.ratio("ana", at=24 * 3600 - 1).input_tokens == 1200 * 10


def test_the_agent_that_was_idle_longest_is_dropped_first() -> None:
    hits = HitRatios(max_agents=2)
    for agent in ("ana", "ben", "ana", "cleo"):
        hits.add(agent, make_usage(1), at=0)

    assert list(hits.ratios(at=0)) == ["ana", "cleo"]


def test_no_usage_is_lost_between_threads() -> None:
    ratios = HitRatios()

    def add_usage(start: int) -> None:
        for seconds in range(start, start + 2000):
            ratios.add("ana", make_usage(1, 1), at=seconds % 60)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # otherwise threads hardly ever interleave
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(add_usage, range(0, 8000, 2000)))
    finally:
        sys.setswitchinterval(interval)

    assert ratios.ratio("ana", at=60) == HitRatio(8000, 16_000)
