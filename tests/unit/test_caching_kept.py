"""What is kept of what was built, against the plainest model of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.caching import BuildCache
from tests.support.harness.example_limits import limit_examples

KEYS = st.integers(0, 3)


@pytest.mark.slow
@settings(max_examples=limit_examples(120))
@given(
    capacity=st.integers(0, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["get", "keep", "get", "keep", "get", "keep", "drop"]), KEYS),
        min_size=10,
        max_size=40,
    ),
)
def test_the_most_recently_used_are_kept_and_never_more_than_there_is_room_for(
    capacity: int, steps: list[tuple[str, int]]
) -> None:
    kept: BuildCache[int, str] = BuildCache(capacity)
    used: list[int] = []

    for step, key in steps:
        if step == "drop":
            kept.clear()
            used = []
        elif step == "keep":
            assert kept.put_if_absent(key, f"value {key}", kept.generation) == f"value {key}"
            used = [other for other in used if other != key] + [key]
        else:
            assert kept.get(key) == (f"value {key}" if key in used else None)
            if key in used:
                used = [other for other in used if other != key] + [key]
        used = used[len(used) - capacity :] if len(used) > capacity else used
        assert len(kept) == len(used)
    assert [key for key in range(4) if kept.get(key) is not None] == sorted(used)


def test_what_was_kept_first_holds() -> None:
    kept: BuildCache[str, str] = BuildCache(2)

    assert kept.put_if_absent("key", "first", kept.generation) == "first"
    assert kept.put_if_absent("key", "second", kept.generation) == "first"
    assert kept.get("key") == "first"


def test_what_was_begun_before_a_drop_is_not_kept_after_it() -> None:
    kept: BuildCache[str, str] = BuildCache(2)
    era = kept.generation
    kept.clear()

    assert kept.put_if_absent("key", "old", era) == "old"
    assert kept.get("key") is None
