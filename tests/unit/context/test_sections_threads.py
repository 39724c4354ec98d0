"""Threads share parts of prompts, and none waits for another's build."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from threading import Barrier, Event

from foveate.context import ContextInputs, PromptParts
from tests.support.strategies.context_inputs import CONTEXT, PREFIX, FakeMemory, describe_inputs

TIMEOUT_SECONDS = 10


class SlowMemory:
    """A builder that returns when it is released."""

    def __init__(self) -> None:
        self.started = Event()
        self.released = Event()

    def __call__(self, inputs: ContextInputs) -> str:
        self.started.set()
        assert self.released.wait(TIMEOUT_SECONDS)
        return "the text at the start of the build"


@contextmanager
def threads(thread_count: int, memory: SlowMemory) -> Iterator[ThreadPoolExecutor]:
    """A pool that ends even if the test fails."""
    with ThreadPoolExecutor(thread_count) as pool:
        try:
            yield pool
        finally:
            memory.released.set()


def test_concurrent_builds_of_the_same_part_return_the_same_bytes() -> None:
    """Even if the builder returns a different text each time: the first result wins."""
    thread_count = 8
    parts, barrier, numbers = PromptParts(), Barrier(thread_count), count()

    def build(inputs: ContextInputs) -> str:
        barrier.wait(TIMEOUT_SECONDS)  # all threads are building now
        return f"{inputs.focus}, rendering {next(numbers)}"

    with ThreadPoolExecutor(thread_count) as pool:
        futures = [pool.submit(parts.context, "user", CONTEXT, build) for _ in range(thread_count)]
        built = [future.result() for future in futures]

    assert next(numbers) == thread_count
    assert len({part.sections for part in built}) == 1
    assert sum(part.fresh for part in built) == 1


def test_a_long_build_delays_neither_a_hit_nor_another_build() -> None:
    parts, slow, memory = PromptParts(), SlowMemory(), FakeMemory()
    known, other = replace(CONTEXT, focus="known"), replace(CONTEXT, focus="other")
    parts.context("user", known, memory)

    with threads(2, slow) as pool:
        pool.submit(parts.context, "user", CONTEXT, slow)
        assert slow.started.wait(TIMEOUT_SECONDS)
        hit = pool.submit(parts.context, "user", known, memory).result(TIMEOUT_SECONDS)
        built = pool.submit(parts.context, "user", other, memory).result(TIMEOUT_SECONDS)

    assert not hit.fresh
    assert built.sections[0].text == describe_inputs(other)


def test_a_build_during_a_drop_is_not_cached() -> None:
    parts, slow, memory = PromptParts(), SlowMemory(), FakeMemory()

    with threads(1, slow) as pool:
        building = pool.submit(parts.context, "user", CONTEXT, slow)
        assert slow.started.wait(TIMEOUT_SECONDS)
        parts.clear()
        slow.released.set()
        assert building.result(TIMEOUT_SECONDS).fresh

    assert parts.context("user", CONTEXT, memory).sections[0].text == describe_inputs(CONTEXT)


def test_a_builder_may_request_other_parts() -> None:
    parts, memory = PromptParts(), FakeMemory()

    def nested(inputs: ContextInputs) -> str:
        parts.prefix(PREFIX)
        return parts.context("user", replace(inputs, focus="house"), memory).sections[0].text

    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(parts.context, "user", CONTEXT, nested).result(TIMEOUT_SECONDS)
    assert built.sections[0].text == describe_inputs(replace(CONTEXT, focus="house"))


def test_many_threads_get_the_parts_they_requested() -> None:
    parts = PromptParts(capacity=3)
    pool_of_inputs = [replace(CONTEXT, memory_version=version) for version in range(7)]

    def request_parts(seed: int) -> bool:
        is_correct = True
        for turn in range(300):
            inputs = pool_of_inputs[(seed * turn + turn // 5) % len(pool_of_inputs)]
            if turn % 50 == seed:
                parts.clear()
            is_correct &= parts.context("user", inputs, describe_inputs).sections[0].text == describe_inputs(
                inputs
            )
        return is_correct

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(request_parts, range(1, 7)))
