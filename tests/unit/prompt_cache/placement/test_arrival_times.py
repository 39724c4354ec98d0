"""Forecasts of the next request from a session's gaps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt_cache.placement.arrival_times import (
    NO_GAPS,
    GapHistogram,
    estimate_returns,
    forecast_next_request,
)
from foveate.prompt_cache.rules import rules_for

HOUR = 3600.0
RULES = rules_for("claude-sonnet-4-5")


def build_histogram(*gaps: float) -> GapHistogram:
    histogram = NO_GAPS
    for gap in gaps:
        histogram = histogram.with_gap(gap)
    return histogram


def test_a_session_without_gaps_is_expected_to_behave_like_recorded_ones() -> None:
    expected = forecast_next_request()
    assert 0.9 < expected.probability(0, 300) < 0.96
    assert 0.02 < expected.probability(300, HOUR) * (1 - expected.probability(0, 300)) < 0.08


def test_a_session_that_always_pauses_is_expected_to_pause() -> None:
    assert (
        forecast_next_request(build_histogram(*[1200.0] * 30)).probability(0, 300)
        < forecast_next_request().probability(0, 300) / 1.4
    )
    assert forecast_next_request(build_histogram(*[20.0] * 30)).probability(
        0, 300
    ) > forecast_next_request().probability(0, 300)


def test_newer_gaps_weigh_more() -> None:
    recent_pauses = forecast_next_request(build_histogram(*[20.0] * 30, *[1200.0] * 30))
    earlier_pauses = forecast_next_request(build_histogram(*[1200.0] * 30, *[20.0] * 30))
    assert recent_pauses.probability(300, HOUR) > earlier_pauses.probability(
        300, HOUR
    ) or recent_pauses.probability(0, 300) < earlier_pauses.probability(0, 300)


def test_gaps_of_an_agents_other_sessions_replace_missing_ones() -> None:
    agent = build_histogram(*[1200.0] * 500)
    assert forecast_next_request(NO_GAPS, agent).probability(0, 300) < forecast_next_request().probability(
        0, 300
    )
    assert forecast_next_request(build_histogram(*[20.0] * 200), agent).probability(
        0, 300
    ) > forecast_next_request(NO_GAPS, agent).probability(0, 300)


def test_a_return_after_an_hour_makes_another_one_more_probable() -> None:
    assert forecast_next_request(build_histogram(20.0, 5000.0, 20.0)).probability(
        HOUR, 2 * HOUR
    ) > 3 * forecast_next_request().probability(HOUR, 2 * HOUR)


def test_an_ended_session_lowers_the_probability_of_a_return() -> None:
    assert forecast_next_request(NO_GAPS, build_histogram(*[math.inf] * 20)).probability(
        300, HOUR
    ) < forecast_next_request().probability(300, HOUR)


@given(st.lists(st.floats(0, 1e6), max_size=20), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_probabilities_are_between_0_and_1_and_grow_with_time(
    gaps: list[float], a: float, b: float, c: float
) -> None:
    forecast = forecast_next_request(build_histogram(*gaps))
    start, earlier_end, later_end = sorted((a, b, c))
    assert 0 <= forecast.probability(start, earlier_end) <= forecast.probability(start, later_end) <= 1


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_weights_of_possible_returns_are_not_negative(gaps: list[float]) -> None:
    returns = estimate_returns(forecast_next_request(build_histogram(*gaps)), RULES)
    assert (
        min(
            returns.short_probability,
            returns.long_probability,
            returns.rewritten_history,
            returns.rewritten_system,
        )
        >= 0
    )


def test_a_gap_equal_to_a_ttl_counts_as_within_it() -> None:
    assert build_histogram(300.0).counts[1] == pytest.approx(1.0)
    assert build_histogram(300.1).counts[2] == pytest.approx(1.0)
