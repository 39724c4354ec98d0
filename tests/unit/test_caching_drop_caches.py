"""One call empties all caches without disturbing counts under way."""

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from weakref import ref

import pytest

import foveate
from foveate.caching import register
from foveate.tokens import drop_caches
from foveate.tokens.counter import RequestCounter
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.text_meter import TextMeter
from foveate.tokens.tokenizers.tokenizer import AdditiveCounts
from tests.support.oracles.reachable_objects import reachable_texts

SECRET = "zq9-xylophone"
LONG = f"{SECRET} and then some more words. " * 200
PLAIN = "It is nothing but plain words. " * 10
SCHEMA = {"name": SECRET, "schema": {"type": "object", "properties": {SECRET: {"type": "string"}}}}
BODY = {
    "messages": [{"role": "user", "content": LONG}],
    "tools": [{"type": "function", "function": {"name": SECRET, "description": LONG}}],
    "response_format": {"type": "json_schema", "json_schema": SCHEMA},
}
MODELS = ("gpt-4o", "claude-sonnet-4-5", "gemini-2.5-flash", "mixtral-8x7b", "nobody/knows-this")


def fill(model: str) -> RequestCounter:
    """Fill the caches of a model's counter and return it."""
    counter = counter_for(model)
    counter.text(LONG)
    foveate.count_request(BODY, model)
    sections = [foveate.Section("long", LONG), foveate.Section("short", SECRET)]
    foveate.assemble(sections, foveate.Budget(50_000), model)
    return counter


@pytest.mark.parametrize("model", MODELS)
def test_after_a_drop_a_counter_holds_no_text_and_counts_as_before(model: str) -> None:
    """Regression: texts stayed in the cache of measured texts."""
    counter = fill(model)
    before = counter.text(LONG), foveate.count_request(BODY, model)
    assert any(SECRET in text for text in reachable_texts(counter))

    drop_caches()

    assert [text for text in reachable_texts(counter) if SECRET in text] == []
    assert len(counter._measurer._lengths) + len(counter._cache.parts) == 0
    assert (counter.text(LONG), foveate.count_request(BODY, model)) == before


def test_after_a_drop_the_engine_caches_no_word() -> None:
    tokenizer: Any = fill("gpt-4o")._tokenizer
    engine = tokenizer._vocabulary._engine
    assert engine.cache_len

    drop_caches()

    assert engine.cache_len == 0


def test_caches_of_a_counter_held_only_by_its_user_are_dropped_too() -> None:
    cached = counter_for("gpt-4o")
    counter = RequestCounter(model="own", backend="offline", tokenizer=cached._tokenizer, rules=cached._rules)
    counter.text_meter.measure(LONG)

    drop_caches()

    assert not any(SECRET in text for text in reachable_texts(counter))


@pytest.mark.slow
def test_registered_caches_can_be_garbage_collected() -> None:
    class UnusedCache:
        def clear(self) -> None:
            raise AssertionError("the cache was garbage collected")

    cache = UnusedCache()
    register(cache)
    reference = ref(cache)
    del cache
    gc.collect()

    assert reference() is None
    drop_caches()


class InterruptedTokenizer:
    """A tokenizer that calls `meanwhile` whenever it counts."""

    def __init__(self) -> None:
        tokenizer = counter_for("gpt-4o")._tokenizer
        self.safe_boundary, self.to_token_count, self.count_steps = (
            tokenizer.safe_boundary,
            tokenizer.to_token_count,
            tokenizer.count_steps,
        )
        self._counts = tokenizer.additive_counts
        self.meanwhile: Callable[[], None] = lambda: None

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        self.meanwhile()
        return self._counts(texts)


def test_a_measurement_during_a_drop_is_correct_and_not_cached() -> None:
    tokenizer = InterruptedTokenizer()
    meter = TextMeter(tokenizer)
    first = meter.measure(LONG)
    tokenizer.meanwhile = meter.clear

    measured = meter.measure_many([LONG, f"another {LONG}"])
    assert measured[0] is first
    assert [text for text in reachable_texts(meter) if SECRET in text] == []
    assert meter._cached_chars == 0

    assert meter.count([*measured, SECRET]) == foveate.count(f"{LONG}another {LONG}{SECRET}")
    assert [text for text in reachable_texts(meter) if SECRET in text] == []


def test_join_counts_are_dropped_when_their_cache_is_full() -> None:
    tokenizer = InterruptedTokenizer()
    meter = TextMeter(tokenizer)
    measured_text = meter.measure(PLAIN)
    meter.count([part for i in range(16_000) for part in (f" {i} ", measured_text)])
    assert len(meter._join_counts) > 15_000
    tokenizer.meanwhile = meter.clear

    meter.join([part for i in range(1000) for part in (f" {SECRET} {i} ", measured_text)])

    assert [text for text in reachable_texts(meter) if SECRET in text] == []


@pytest.mark.slow
def test_counts_in_other_threads_during_a_drop_are_correct() -> None:
    texts = [f"{i} {SECRET} and some more. " * (i * 40) for i in range(1, 9)]
    sections = [foveate.Section(f"part {i}", text) for i, text in enumerate(texts)]
    expected = [foveate.count(text) for text in texts]
    prompt = foveate.assemble(sections, foveate.Budget(4000))
    request = foveate.count_request(BODY)
    has_finished = Event()

    def drop() -> int:
        times = 0
        while not has_finished.is_set():
            drop_caches()
            times += 1
        return times

    def count(_: int) -> bool:
        return all(
            [foveate.count(text) for text in texts] == expected
            and foveate.assemble(sections, foveate.Budget(4000)) == prompt
            and foveate.count_request(BODY) == request
            for _ in range(30)
        )

    with ThreadPoolExecutor(5) as pool:
        dropping = pool.submit(drop)
        try:
            assert all(pool.map(count, range(4)))
        finally:
            has_finished.set()
    assert dropping.result() > 10
