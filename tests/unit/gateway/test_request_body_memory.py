"""Memory for request bodies stays within its limit, is released completely, and nobody waits forever."""

import asyncio
import gzip
from collections.abc import Sequence
from threading import Event
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.gateway.request_body import SMALL_BODY_BYTES, BodyMemory, NoRoom, decompress_in_thread

MAX_BODY = 8 * SMALL_BODY_BYTES
LIMIT = 4 * MAX_BODY
RESERVED = LIMIT // 8
LONG_SECONDS = 60.0


def make_memory(limit_bytes: int = LIMIT) -> BodyMemory:
    memory = BodyMemory()
    memory.resize(limit_bytes, max_body_bytes=MAX_BODY)
    return memory


async def run_waiting_tasks() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class Body(NamedTuple):
    """A request: its announced size, its growth, the rounds it is served for, and whether it is abandoned."""

    announced: int
    growth: int
    rounds: int
    is_cancelled: bool


BODIES = st.lists(
    st.builds(
        Body,
        announced=st.integers(0, MAX_BODY) | st.integers(0, SMALL_BODY_BYTES),
        growth=st.just(0) | st.integers(0, MAX_BODY),
        rounds=st.integers(0, 5),
        is_cancelled=st.booleans(),
    ),
    max_size=40,
)


@given(BODIES)
def test_bodies_together_stay_within_the_limit_and_each_request_ends(bodies: Sequence[Body]) -> None:
    async def scenario() -> None:
        memory = make_memory()
        held_bytes = 0

        async def serve(body: Body) -> None:
            nonlocal held_bytes
            try:
                reservation = await memory.admit(body.announced, wait_seconds=LONG_SECONDS)
            except NoRoom:
                return
            held_bytes += reservation.size_bytes
            try:
                for _ in range(body.rounds):
                    await asyncio.sleep(0)
                before = reservation.size_bytes
                reservation.grow(body.growth)
                held_bytes += reservation.size_bytes - before
                # A waiting request gets its memory before its task continues.
                assert held_bytes <= memory.used_bytes <= LIMIT
                await asyncio.sleep(0)
            except NoRoom:
                assert memory.used_bytes + body.growth > LIMIT - RESERVED
            finally:
                held_bytes -= reservation.size_bytes
                reservation.release()

        tasks = [asyncio.create_task(serve(body)) for body in bodies]
        await asyncio.sleep(0)
        for body, task in zip(bodies, tasks, strict=True):
            if body.is_cancelled:
                task.cancel()
        # No request times out: each is admitted as others end.
        async with asyncio.timeout(LONG_SECONDS / 2):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [error for error in results if error and not isinstance(error, asyncio.CancelledError)] == []
        assert memory.used_bytes == 0

    asyncio.run(scenario())


async def test_a_body_waits_for_memory_and_is_rejected_if_none_is_released_in_time() -> None:
    memory = make_memory()
    reservations = [await memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS) for _ in range(3)]

    with pytest.raises(NoRoom):
        await memory.admit(MAX_BODY, wait_seconds=0.001)
    waiting = asyncio.create_task(memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS))
    await run_waiting_tasks()
    assert not waiting.done()

    reservations[0].release()
    assert (await waiting).size_bytes == MAX_BODY


async def test_small_bodies_do_not_wait_for_large_ones() -> None:
    memory = make_memory()
    for _ in range(3):
        await memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS)
    waiting = asyncio.create_task(memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS))
    await run_waiting_tasks()

    small = [
        await memory.admit(SMALL_BODY_BYTES, wait_seconds=0.001) for _ in range(RESERVED // SMALL_BODY_BYTES)
    ]

    assert not waiting.done()
    with pytest.raises(NoRoom):
        await memory.admit(SMALL_BODY_BYTES, wait_seconds=0.001)
    small[0].release()
    reservation = await memory.admit(SMALL_BODY_BYTES, wait_seconds=0.001)
    assert reservation.size_bytes == SMALL_BODY_BYTES
    waiting.cancel()


async def test_a_stream_of_small_bodies_does_not_keep_a_large_one_waiting() -> None:
    memory = make_memory()
    small = [
        asyncio.create_task(memory.admit(SMALL_BODY_BYTES, wait_seconds=LONG_SECONDS))
        for _ in range(LIMIT // SMALL_BODY_BYTES)
    ]
    await run_waiting_tasks()
    large = asyncio.create_task(memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS))
    await run_waiting_tasks()

    while not large.done():  # for each that ends, another one starts
        (await small.pop(0)).release()
        small.append(asyncio.create_task(memory.admit(SMALL_BODY_BYTES, wait_seconds=LONG_SECONDS)))
        await run_waiting_tasks()

    assert (await large).size_bytes == MAX_BODY
    for task in small:
        task.cancel()


async def test_a_body_larger_than_announced_gets_memory_at_once_or_is_rejected() -> None:
    memory = make_memory()
    body = await memory.admit(SMALL_BODY_BYTES, wait_seconds=LONG_SECONDS)
    body.grow(MAX_BODY - SMALL_BODY_BYTES)
    others = [await memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS) for _ in range(2)]

    with pytest.raises(NoRoom):
        body.grow(MAX_BODY)

    assert memory.used_bytes == 3 * MAX_BODY
    for item in (body, *others):
        item.release()
    assert memory.used_bytes == 0


async def test_a_body_that_is_decompressed_after_its_request_ended_holds_no_memory() -> None:
    """Regression: its thread went on after the client disconnected, and what it reserved was never released."""
    memory = make_memory()
    body = await memory.admit(SMALL_BODY_BYTES, wait_seconds=LONG_SECONDS)
    has_begun, is_released, has_ended = Event(), Event(), Event()

    def grow(size_bytes: int) -> None:
        has_begun.set()
        is_released.wait()
        try:
            body.grow(size_bytes)
        finally:
            has_ended.set()

    compressed = gzip.compress(bytes(MAX_BODY))
    task = asyncio.create_task(decompress_in_thread(compressed, ("gzip",), limit_bytes=MAX_BODY, grow=grow))
    await asyncio.to_thread(has_begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    body.release()
    is_released.set()
    await asyncio.to_thread(has_ended.wait)

    assert memory.used_bytes == 0


async def test_the_largest_body_always_fits_whatever_limit_is_set() -> None:
    memory = make_memory(limit_bytes=1)

    body = await memory.admit(MAX_BODY, wait_seconds=0.001)
    body.grow(MAX_BODY)  # with the decompressed copy


async def test_too_many_waiting_requests_are_rejected_at_once() -> None:
    memory = make_memory()
    for _ in range(3):
        await memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS)
    waiting = [asyncio.create_task(memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS)) for _ in range(256)]
    await run_waiting_tasks()

    with pytest.raises(NoRoom):
        await memory.admit(MAX_BODY, wait_seconds=LONG_SECONDS)
    for task in waiting:
        task.cancel()
