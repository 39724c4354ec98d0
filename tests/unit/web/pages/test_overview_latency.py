"""Latency that Foveate adds to requests, from histograms."""

import pytest

from foveate.engine.metrics import definitions
from foveate.engine.metrics.registry import MetricsRegistry
from foveate.web.pages.overview import summarize_added_latency, summarize_steps


def test_quantiles_are_interpolated_within_a_bucket() -> None:
    registry = MetricsRegistry()
    histogram = registry.histogram(definitions.ADDED_SECONDS)
    for _ in range(98):
        histogram.observe(0.0015)
    for _ in range(2):
        histogram.observe(0.3)

    latency = summarize_added_latency(registry.samples())

    assert latency is not None
    assert latency.count == 100
    assert 0.001 < latency.p50 < 0.002
    assert 0.1 < latency.p99 < 0.5
    assert latency.mean == pytest.approx((98 * 0.0015 + 2 * 0.3) / 100)


def test_values_beyond_the_last_bound_are_reported_as_that_bound() -> None:
    registry = MetricsRegistry()
    registry.histogram(definitions.ADDED_SECONDS).observe(1_000.0)

    latency = summarize_added_latency(registry.samples())

    assert latency is not None
    assert latency.p50 == latency.p99 == definitions.ADDED_SECONDS.buckets[-1]


def test_without_requests_there_is_no_latency() -> None:
    registry = MetricsRegistry()
    assert summarize_added_latency(registry.samples()) is None
    registry.histogram(definitions.ADDED_SECONDS)
    assert summarize_added_latency(registry.samples()) is None
    assert summarize_steps(registry.samples()) == []


def test_steps_are_sorted_by_duration() -> None:
    registry = MetricsRegistry()
    for step, seconds in (("cache", 0.0003), ("fold", 0.02), ("count", 0.004)):
        registry.histogram(definitions.STEP_SECONDS, step).observe(seconds)

    assert [step.name for step in summarize_steps(registry.samples())] == ["fold", "count", "cache"]
