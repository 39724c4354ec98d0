"""The LRU cache compared with a simple model of it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.caching import LruCache

KEYS = st.integers(0, 4)
STEPS = ("get", "peek", "put", "put", "put", "put_if_absent", "put_if_absent", "remove", "clear")


class ModelCache:
    """A list of entries, the least recently used one first."""

    def __init__(self, capacity: int, *, is_weighted: bool) -> None:
        self.capacity = capacity
        self.is_weighted = is_weighted
        self.entries: list[tuple[int, str]] = []
        self.evicted: list[tuple[int, str]] = []

    @property
    def weight(self) -> int:
        return sum(len(value) for _, value in self.entries) if self.is_weighted else 0

    def peek(self, key: int) -> str | None:
        return dict(self.entries).get(key)

    def get(self, key: int) -> str | None:
        self.entries.sort(key=lambda entry: entry[0] == key)
        return self.peek(key)

    def put(self, key: int, value: str) -> None:
        self.remove(key)
        self.entries.append((key, value))
        while len(self.entries) > self.capacity or self.weight > self.capacity:
            self.evicted.append(self.entries.pop(0))

    def put_if_absent(self, key: int, value: str) -> str:
        stored = self.get(key)
        if stored is None:
            self.put(key, value)
        return value if stored is None else stored

    def remove(self, key: int) -> None:
        self.entries = [entry for entry in self.entries if entry[0] != key]

    def clear(self) -> None:
        self.entries = []


@pytest.mark.slow
@given(
    capacity=st.integers(0, 8),
    is_weighted=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), KEYS, st.text("ab", max_size=5)), max_size=40),
)
def test_a_cache_equals_its_model(capacity: int, is_weighted: bool, steps: list[tuple[str, int, str]]) -> None:
    evicted: list[tuple[int, str]] = []
    cache: LruCache[str] = LruCache(
        capacity,
        weigh=(lambda _, value: len(value)) if is_weighted else None,
        on_evict=lambda key, value: evicted.append((key, value)),
    )
    model = ModelCache(capacity, is_weighted=is_weighted)

    for step, key, value in steps:
        arguments = (key, value) if step.startswith("put") else () if step == "clear" else (key,)
        assert getattr(cache, step)(*arguments) == getattr(model, step)(*arguments)
        assert (len(cache), cache.weight, evicted) == (len(model.entries), model.weight, model.evicted)
        assert all(cache.peek(each) == model.peek(each) for each in range(5))


def test_the_value_stored_first_wins() -> None:
    cache: LruCache[str] = LruCache(2)

    assert cache.put_if_absent("key", "first", cache.generation) == "first"
    assert cache.put_if_absent("key", "second", cache.generation) == "first"
    assert cache.get("key") == "first"


def test_a_build_that_began_before_a_drop_is_not_stored() -> None:
    cache: LruCache[str] = LruCache(2)
    generation = cache.generation
    cache.clear()

    assert cache.put_if_absent("key", "old", generation) == "old"
    assert cache.get("key") is None


def test_a_value_heavier_than_the_capacity_is_evicted_at_once() -> None:
    evicted: list[str] = []
    cache: LruCache[str] = LruCache(
        3, weigh=lambda _, value: len(value), on_evict=lambda key, _: evicted.append(key)
    )
    cache.put("small", "a")
    cache.put("large", "aaaa")

    assert evicted == ["small", "large"]
    assert (len(cache), cache.weight) == (0, 0)


@pytest.mark.slow
def test_threads_never_disturb_the_weight() -> None:
    cache: LruCache[str] = LruCache(50, weigh=lambda _, value: len(value))

    def use(seed: int) -> None:
        for number in range(2000):
            key = (seed * 7 + number) % 13
            cache.put(key, "x" * (number % 9))
            cache.get(key + 1)
            cache.put_if_absent(key + 2, "xx")
            cache.remove(key + 3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))

    assert cache.weight == sum(len(cache.peek(key) or "") for key in range(20)) <= 50
