"""COUNT-8, 10: a long text is counted while the event loop goes on, and in time that grows with its length."""

import asyncio
from time import perf_counter

import pytest

import foveate
from foveate.tokens import CounterOptions, Counting
from tests.fakes import llama_like, raw_server

TICK_SECONDS = 0.001
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


@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4-5", "a-model-of-next-year"])
@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
async def test_the_loop_goes_on_while_a_megabyte_is_counted(text: str, model: str) -> None:
    async with Counting(CounterOptions()) as cascade:
        await cascade.text("load the vocabulary", model)
        async with Heartbeat() as heart:
            # Each is another text, so that none is remembered.
            counts = [await cascade.text(f"{text}{i}", model) for i in range(5)]

    assert all(count.total.tokens > 50_000 for count in counts)
    assert len(heart.gaps_seconds) >= 10
    # Generous, since the machine may be busy: five counts on the loop itself would be one gap.
    assert max(heart.gaps_seconds) < sum(heart.gaps_seconds) / 2


async def test_the_loop_goes_on_while_a_server_counts_a_megabyte() -> None:
    async with raw_server(llama_like) as server:
        options = CounterOptions(endpoint_url=server.url, use_endpoint=True, timeout_ms=30_000)
        async with Counting(options) as cascade:
            count = await cascade.text(LONG_TEXTS["prose"], "gpt-4o")

    assert count.backend == "endpoint"
    assert count.total.tokens == len(LONG_TEXTS["prose"].split())


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
async def test_off_the_loop_a_text_is_as_long_as_on_it(text: str) -> None:
    async with Counting(CounterOptions()) as cascade:
        count = await cascade.text(text, "gpt-4o")

    assert count.total == foveate.count(text)
