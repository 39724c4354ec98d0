"""Turns of recorded sessions, with pauses, changed system prompts and forks."""

from hypothesis import strategies as st

from tests.support.scenarios.recorded_sessions import PlannedTurn

turn_lists = st.lists(
    st.builds(
        PlannedTurn,
        result_chars=st.integers(0, 9_000),
        is_question=st.booleans(),
        gap_seconds=st.sampled_from((0.5, 10.0, 40.0, 299.0, 320.0, 2_000.0, 4_000.0)),
        changes_system=st.sampled_from((False, False, False, True)),
        steps_back=st.sampled_from((0, 0, 0, 1, 2)),
    ),
    min_size=1,
    max_size=14,
)
