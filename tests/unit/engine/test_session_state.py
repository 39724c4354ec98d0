"""States of the most recently used sessions, however many there are."""

import pytest

from foveate.compaction.forecast import NO_AGENT_ACTIVITY, AgentActivity
from foveate.engine.session_state import (
    SessionProgress,
    SessionState,
    SessionStates,
    is_compacted_by_client,
)
from foveate.model import SimulatedState, Ttl
from foveate.prompt_cache.placement.arrival_times import NO_GAPS
from foveate.prompt_cache.simulator import CacheEntries, SimulatedCache, write_entry


def test_the_most_recently_used_sessions_are_remembered() -> None:
    session_states = SessionStates()
    for number in range(6_000):
        session_states.put("ana", f"session {number}", SessionState(last_request_at=float(number)))
        session_states.put("ana", "the first", SessionState(last_request_at=0.0))

    known = [
        n for n in range(6_000) if session_states.session("ana", f"session {n}").last_request_at is not None
    ]
    assert session_states.session("ana", "the first").last_request_at == 0.0
    assert session_states.session("bo", "the first") == SessionState()
    assert known == list(range(6_000 - len(known), 6_000))
    assert 1_000 < len(known) < 5_000


def test_the_rhythms_of_the_most_recently_used_agents_are_remembered() -> None:
    session_states = SessionStates()
    for number in range(3_000):
        session_states.add_gap(f"agent {number}", 5.0)

    known = [number for number in range(3_000) if session_states.agent_rhythm(f"agent {number}") != NO_GAPS]
    assert known == list(range(3_000 - len(known), 3_000))
    assert 500 < len(known) < 2_000


def test_cache_entries_of_the_most_recently_used_sessions_are_remembered() -> None:
    session_states = SessionStates(max_entries=1_000)
    entry = write_entry(9, Ttl.ONE_HOUR, at=0.0, readable_at=0.0)
    cache = SimulatedCache(CacheEntries({bytes([number]): entry for number in range(60)}))
    for number in range(5_000):
        simulated = {SimulatedState.CLIENT: cache}
        session_states.put(
            "ana",
            f"session {number}",
            SessionState(last_request_at=1.0, cache=cache, simulated_caches=simulated),
        )

    states = [session_states.session("ana", f"session {number}") for number in range(4_000, 5_000)]
    assert sum(state.entries for state in states) == 960
    assert [state.has_served_all for state in states] == [False] * 992 + [True] * 8
    assert {state.last_request_at for state in states} == {1.0}


@pytest.mark.parametrize(
    ("previous", "messages", "known", "expected"),
    [
        (100, 3, 0, True),  # a summary instead of the history
        (100, 40, 1, True),
        (100, 40, 40, False),  # taken back to an earlier message
        (100, 60, 0, False),  # not much shorter
        (10, 2, 0, False),  # hardly a history
        (0, 1, 0, False),
    ],
)
def test_a_client_that_replaces_its_history_by_a_shorter_one_compacts_itself(
    previous: int, messages: int, known: int, expected: bool
) -> None:
    assert is_compacted_by_client(previous, messages, known) is expected


def test_the_gaps_of_an_agent_are_those_of_the_store_until_it_is_seen() -> None:
    states = SessionStates()
    long_gaps = NO_GAPS.with_gap(5_000.0)
    states.add_gap("ana", 20.0)

    states.set_activities(
        {"ana": AgentActivity(sessions=3, gaps=long_gaps), "ben": AgentActivity(gaps=long_gaps)}
    )

    assert states.agent_activity("ana").sessions == 3
    assert states.agent_activity("eve") == NO_AGENT_ACTIVITY
    assert states.agent_rhythm("ana") == NO_GAPS.with_gap(20.0)
    assert states.agent_rhythm("ben") == long_gaps


def test_progress_adds_up_growth_and_never_shrinkage() -> None:
    progress = SessionProgress()
    for tokens in (1_000, 1_500, 700, 900):
        progress = progress.with_response(
            requests=0, tokens=tokens, spent_dollars=0.5, saved_dollars=0.1, edits=frozenset({"edit"})
        )

    assert (progress.requests, progress.last_tokens, progress.grown_tokens) == (4, 900, 700)
    assert (progress.spent_dollars, round(progress.saved_dollars, 9)) == (2.0, 0.4)
    resumed = SessionProgress().with_response(
        requests=31, tokens=5, spent_dollars=0.0, saved_dollars=0.0, edits=frozenset()
    )
    assert resumed.requests == 31
