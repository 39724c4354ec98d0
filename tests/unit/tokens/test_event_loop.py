"""COUNT-8, 10: a long text is counted while the event loop goes on, and in time that grows with its length."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import pytest

import foveate
from foveate.tokens import CounterOptions, Counting
from foveate.tokens.counter import RequestCount
from foveate.tokens.endpoints import Endpoints
from tests.conftest import ROOT
from tests.fakes import Behaviour, llama_like

TICK_SECONDS = 0.001
# On the loop, each of these counts would be one gap of 30 to 300 ms and more; a busy machine adds some.
LONGEST_GAP_SECONDS = 0.1
PROSE = "The fovea is the small pit in the retina where vision is sharpest; all else is periphery. "
MEGABYTE = 1024 * 1024
LONG_TEXTS = {
    "prose": (PROSE * (MEGABYTE // len(PROSE) + 1))[:MEGABYTE],
    "one character": "a" * MEGABYTE,
}


class Heartbeat:
    """Ticks beside what it stands around, and keeps the gaps between ticks."""

    def __init__(self) -> None:
        self.gaps_seconds: list[float] = []

    @property
    def is_steady(self) -> bool:
        """Whether there were many ticks and no long gap: counts on the loop would be one, and most of it."""
        longest = max(self.gaps_seconds, default=1.0)
        is_short = longest < min(LONGEST_GAP_SECONDS, sum(self.gaps_seconds) / 4)
        return is_short and len(self.gaps_seconds) >= 10

    async def __aenter__(self) -> "Heartbeat":
        self._beating = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)

    async def _beat(self) -> None:
        last = perf_counter()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = perf_counter()
            self.gaps_seconds.append(now - last)
            last = now


async def beaten(work: Callable[[int], Awaitable[RequestCount]]) -> tuple[list[RequestCount], Heartbeat]:
    """Five counts beside a heartbeat, up to ten times: the machine may be busy, but not always."""
    for attempt in range(10):
        async with Heartbeat() as heart:
            counts = [await work(5 * attempt + i) for i in range(5)]
        if heart.is_steady:
            break
    return counts, heart


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4-5", "gemini-2.5-pro", "a-model-of-next-year"])
@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
async def test_the_loop_goes_on_while_a_megabyte_is_counted(text: str, model: str) -> None:
    async with Counting(CounterOptions()) as cascade:
        await cascade.text("load the vocabulary", model)
        # Each is another text, so that none is remembered.
        counts, heart = await beaten(lambda i: cascade.text(f"{text}{i}", model))

    assert all(count.total.tokens > 50_000 for count in counts)
    assert heart.is_steady, heart.gaps_seconds


@pytest.mark.slow
@pytest.mark.process
async def test_the_loop_goes_on_while_a_server_counts_a_megabyte() -> None:
    """This once had no heartbeat, and could not fail. The server is elsewhere, or its work would be a gap."""
    text = LONG_TEXTS["prose"]
    with served_elsewhere(llama_like) as url:
        options = CounterOptions(endpoint_url=url, use_endpoint=True, timeout_ms=30_000)
        async with Counting(options, Endpoints()) as cascade:
            await cascade.text("what it speaks", "gpt-4o")
            counts, heart = await beaten(lambda i: cascade.text(f"{text} {i}", "gpt-4o"))

    assert {count.backend for count in counts} == {"endpoint"}
    assert {count.total.tokens for count in counts} == {len(text.split()) + 1}
    assert heart.is_steady, heart.gaps_seconds


@contextmanager
def served_elsewhere(behave: Behaviour) -> Iterator[str]:
    """The address of a server that runs in another process."""
    script = f"import asyncio, sys; from tests.fakes import {behave.__name__}, raw_server\n" + SERVING.format(
        behave.__name__
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


SERVING = """
async def serve():
    async with raw_server({0}) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(serve())
"""


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
async def test_off_the_loop_a_text_is_as_long_as_on_it(text: str) -> None:
    async with Counting(CounterOptions()) as cascade:
        count = await cascade.text(text, "gpt-4o")

    assert count.total == foveate.count(text)
