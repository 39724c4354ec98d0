"""One call forgets every text that is remembered, and disturbs nobody who counts meanwhile."""

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from weakref import ref

import pytest

import foveate
from foveate.caching import register
from foveate.tokens import drop_caches
from foveate.tokens.counter import RequestCounter
from foveate.tokens.families import counter_for
from foveate.tokens.text_meter import TextMeter
from foveate.tokens.tokenizers.tokenizer import AdditiveCounts
from tests.support.oracles.reachable_objects import held

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
    """The counter of a model, after all that it can be asked."""
    counter = counter_for(model)
    counter.text(LONG)
    foveate.count_request(BODY, model)
    sections = [foveate.Section("long", LONG), foveate.Section("short", SECRET)]
    foveate.assemble(sections, foveate.Budget(50_000), model)
    return counter


@pytest.mark.parametrize("model", MODELS)
def test_after_it_a_counter_holds_no_text_and_counts_as_before(model: str) -> None:
    """Was: texts stayed in what a counter had measured, whatever was dropped elsewhere."""
    counter = fill(model)
    before = counter.text(LONG), foveate.count_request(BODY, model)
    assert any(SECRET in text for text in held(counter))

    drop_caches()

    assert [text for text in held(counter) if SECRET in text] == []
    assert len(counter._measurer._lengths) + len(counter._cache.tail_messages) + len(counter._cache.parts) == 0
    assert (counter.text(LONG), foveate.count_request(BODY, model)) == before


def test_after_it_the_engine_holds_no_word_either() -> None:
    engine = fill("gpt-4o")._tokenizer._vocabulary._engine  # type: ignore[attr-defined]
    assert engine.cache_len

    drop_caches()

    assert engine.cache_len == 0


def test_a_counter_that_only_its_user_holds_is_dropped_too() -> None:
    known = counter_for("gpt-4o")
    own = RequestCounter(model="own", backend="offline", tokenizer=known._tokenizer, rules=known._rules)
    own.text_meter.measure(LONG)

    drop_caches()

    assert not any(SECRET in text for text in held(own))


@pytest.mark.slow
def test_what_nobody_holds_is_not_held_to_be_dropped() -> None:
    class Nothing:
        def clear(self) -> None:
            raise AssertionError("nobody holds it any more")

    cache = Nothing()
    register(cache)
    gone = ref(cache)
    del cache
    gc.collect()

    assert gone() is None
    drop_caches()


class Interrupted:
    """A scale that calls `meanwhile` whenever it counts."""

    def __init__(self) -> None:
        scale = counter_for("gpt-4o")._tokenizer
        self.safe_boundary, self.to_token_count, self.count_steps = (
            scale.safe_boundary,
            scale.to_token_count,
            scale.count_steps,
        )
        self._counts = scale.additive_counts
        self.meanwhile: Callable[[], None] = lambda: None

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        self.meanwhile()
        return self._counts(texts)


def test_what_is_measured_while_all_is_dropped_is_right_and_not_kept() -> None:
    scale = Interrupted()
    gauge = TextMeter(scale)
    first = gauge.measure(LONG)
    scale.meanwhile = gauge.clear

    tapes = gauge.measure_many([LONG, f"another {LONG}"])
    assert tapes[0] is first
    assert [text for text in held(gauge) if SECRET in text] == []
    assert gauge._cached_chars == 0

    assert gauge.count([*tapes, SECRET]) == foveate.count(f"{LONG}another {LONG}{SECRET}")
    assert [text for text in held(gauge) if SECRET in text] == []


def test_what_meets_is_not_kept_either_where_there_is_no_more_room_for_it() -> None:
    scale = Interrupted()
    gauge = TextMeter(scale)
    tape = gauge.measure(PLAIN)
    gauge.count([part for i in range(16_000) for part in (f" {i} ", tape)])
    assert len(gauge._join_counts) > 15_000
    scale.meanwhile = gauge.clear

    gauge.join([part for i in range(1000) for part in (f" {SECRET} {i} ", tape)])

    assert [text for text in held(gauge) if SECRET in text] == []


@pytest.mark.slow
def test_threads_that_count_while_all_is_dropped_count_right() -> None:
    texts = [f"{i} {SECRET} and some more. " * (i * 40) for i in range(1, 9)]
    sections = [foveate.Section(f"part {i}", text) for i, text in enumerate(texts)]
    right = [foveate.count(text) for text in texts]
    prompt = foveate.assemble(sections, foveate.Budget(4000))
    request = foveate.count_request(BODY)
    done = Event()

    def drop() -> int:
        times = 0
        while not done.is_set():
            drop_caches()
            times += 1
        return times

    def count(_: int) -> bool:
        return all(
            [foveate.count(text) for text in texts] == right
            and foveate.assemble(sections, foveate.Budget(4000)) == prompt
            and foveate.count_request(BODY) == request
            for _ in range(30)
        )

    with ThreadPoolExecutor(5) as pool:
        dropping = pool.submit(drop)
        try:
            assert all(pool.map(count, range(4)))
        finally:
            done.set()
    assert dropping.result() > 10
