"""States of the most recently used sessions, however many there are."""

from foveate.engine.session_state import SessionState, SessionStates
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
