"""The forecast of a session's remaining requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.forecast import AgentActivity, SessionActivity, forecast_requests


@given(
    requests=st.integers(0, 5_000),
    grown_tokens=st.integers(0, 5_000_000),
    calls_tool=st.booleans(),
    is_idle=st.booleans(),
    cold_share=st.floats(0, 1),
)
def test_a_forecast_always_consists_of_probabilities_and_growing_requests(
    requests: int, grown_tokens: int, calls_tool: bool, is_idle: bool, cold_share: float
) -> None:
    session = SessionActivity(requests=requests, grown_tokens=grown_tokens, calls_tool=calls_tool)

    forecast = forecast_requests(session, cold_share=cold_share, is_idle=is_idle)

    first, second, *_ = forecast.requests
    assert 0 < second.expected <= first.expected <= 1
    assert all(group.expected >= 0 and 0 <= group.cold_share <= 1 for group in forecast.requests)
    sizes = [group.grown_tokens for group in forecast.requests]
    assert sizes == sorted(sizes)
    # No more are expected than there were.
    assert forecast.expected_requests <= max(requests, 16)


def test_a_session_whose_turn_has_ended_goes_on_less_often() -> None:
    open_turn = forecast_requests(SessionActivity(requests=20), cold_share=0.05)
    ended_turn = forecast_requests(SessionActivity(requests=20, calls_tool=False), cold_share=0.05)

    assert ended_turn.expected_requests < open_turn.expected_requests
    assert ended_turn.requests[0].cold_share > open_turn.requests[0].cold_share


def test_an_idle_session_returns_to_an_expired_cache() -> None:
    forecast = forecast_requests(SessionActivity(requests=20, calls_tool=False), cold_share=0.05, is_idle=True)

    assert forecast.requests[0].cold_share == 1


def test_a_longer_session_is_expected_to_go_on_longer() -> None:
    expected = [
        forecast_requests(SessionActivity(requests=requests), cold_share=0.05).expected_requests
        for requests in (10, 30, 100, 400)
    ]

    assert expected == sorted(expected)
    assert expected[-1] > 5 * expected[0]


def test_growth_is_learnt_from_the_session_and_its_agent() -> None:
    def growth(session: SessionActivity, agent: AgentActivity) -> float:
        return forecast_requests(session, agent=agent, cold_share=0.05).growth_tokens

    unknown = growth(SessionActivity(), AgentActivity())
    of_agent = growth(SessionActivity(), AgentActivity(grown_requests=1_000, grown_tokens=300_000))
    own = growth(SessionActivity(requests=201, grown_tokens=1_000_000), AgentActivity())
    assert unknown > 1_000
    assert of_agent == pytest.approx(308, abs=5)
    assert own == pytest.approx(4_860, abs=50)


def test_an_agent_with_short_sessions_is_expected_to_end_sooner() -> None:
    session = SessionActivity(requests=30)
    short = AgentActivity(sessions=50, requests=500)
    long = AgentActivity(sessions=50, requests=20_000)

    expected = [
        forecast_requests(session, agent=agent, cold_share=0.05).expected_requests for agent in (short, long)
    ]

    assert expected[0] < expected[1]
