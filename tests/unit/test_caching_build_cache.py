"""The build cache compared with a simple model of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.caching import BuildCache

KEYS = st.integers(0, 3)


@pytest.mark.slow
@given(
    capacity=st.integers(0, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["get", "put", "get", "put", "get", "put", "clear"]), KEYS),
        min_size=10,
        max_size=40,
    ),
)
def test_a_build_cache_is_bounded_and_keeps_the_most_recently_used(
    capacity: int, steps: list[tuple[str, int]]
) -> None:
    cache: BuildCache[int, str] = BuildCache(capacity)
    used: list[int] = []

    for step, key in steps:
        if step == "clear":
            cache.clear()
            used = []
        elif step == "put":
            assert cache.put_if_absent(key, f"value {key}", cache.generation) == f"value {key}"
            used = [other for other in used if other != key] + [key]
        else:
            assert cache.get(key) == (f"value {key}" if key in used else None)
            if key in used:
                used = [other for other in used if other != key] + [key]
        used = used[len(used) - capacity :] if len(used) > capacity else used
        assert len(cache) == len(used)
    assert [key for key in range(4) if cache.get(key) is not None] == sorted(used)


def test_the_value_stored_first_wins() -> None:
    cache: BuildCache[str, str] = BuildCache(2)

    assert cache.put_if_absent("key", "first", cache.generation) == "first"
    assert cache.put_if_absent("key", "second", cache.generation) == "first"
    assert cache.get("key") == "first"


def test_a_build_that_began_before_a_drop_is_not_stored() -> None:
    cache: BuildCache[str, str] = BuildCache(2)
    generation = cache.generation
    cache.clear()

    assert cache.put_if_absent("key", "old", generation) == "old"
    assert cache.get("key") is None
