"""Latency that Foveate adds to requests, from histograms."""

import pytest

from foveate.engine.metrics import definitions
from foveate.engine.metrics.registry import MetricsRegistry
from foveate.web.pages import overview


def test_quantiles_are_interpolated_within_a_bucket() -> None:
    board = MetricsRegistry()
    spread = board.histogram(definitions.ADDED_SECONDS)
    for _ in range(98):
        spread.observe(0.0015)
    for _ in range(2):
        spread.observe(0.3)

    result = overview.summarize_added_latency(board.samples())

    assert result is not None
    assert result.count == 100
    assert 0.001 < result.p50 < 0.002
    assert 0.1 < result.p99 < 0.5
    assert result.mean == pytest.approx((98 * 0.0015 + 2 * 0.3) / 100)


def test_values_beyond_the_last_bound_are_reported_as_that_bound() -> None:
    board = MetricsRegistry()
    board.histogram(definitions.ADDED_SECONDS).observe(1_000.0)

    result = overview.summarize_added_latency(board.samples())

    assert result is not None
    assert result.p50 == result.p99 == definitions.ADDED_SECONDS.buckets[-1]


def test_without_requests_there_is_no_latency() -> None:
    board = MetricsRegistry()
    assert overview.summarize_added_latency(board.samples()) is None
    board.histogram(definitions.ADDED_SECONDS)
    assert overview.summarize_added_latency(board.samples()) is None
    assert overview.summarize_steps(board.samples()) == []


def test_steps_are_sorted_by_duration() -> None:
    board = MetricsRegistry()
    for step, seconds in (("cache", 0.0003), ("fold", 0.02), ("count", 0.004)):
        board.histogram(definitions.STEP_SECONDS, step).observe(seconds)

    assert [step.name for step in overview.summarize_steps(board.samples())] == ["fold", "count", "cache"]
