"""Open pages are notified of each change once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from foveate.config.settings import ServerSettings, Settings
from foveate.engine.options import AgentOptions
from foveate.errors import BadOption, FoveateError, StoreUnavailable
from foveate.web.data import ConfigSnapshot
from foveate.web.live import MAX_SUBSCRIBERS, ChangeFeed, WatchTarget

EVERY_SECONDS = 0.01
BEGINNING = b"retry: 2000\n\n"
ALL, ONE = WatchTarget(), WatchTarget("one")


@dataclass
class Inside:
    """The data of a page, changed by a test."""

    said: str = "1"
    failure: Exception | None = None
    is_stuck: bool = False
    asked: int = 0
    changes: int = 0
    problem: FoveateError | None = None
    page: bool = True
    is_over: bool = False

    async def found(self, watched: WatchTarget) -> str:
        self.asked += 1
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return f"{self.said} of {watched}"

    def configured(self) -> ConfigSnapshot:
        return ConfigSnapshot(
            path=None,
            since=0.0,
            changes=self.changes,
            problem=self.problem,
            settings=Settings(server=ServerSettings(page=self.page)),
            options=lambda _: AgentOptions(),
            caps=(),
        )

    def live(self) -> ChangeFeed:
        return ChangeFeed(
            self.found, self.configured, is_shutting_down=lambda: self.is_over, poll_seconds=EVERY_SECONDS
        )


@pytest.fixture
def inside() -> Inside:
    return Inside()


async def first(events: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(5):
        return await anext(events)


async def silent(events: AsyncIterator[bytes], *, beats: int = 5) -> None:
    """Return whether no event arrives for a while; the subscriber has gone after that."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(beats * EVERY_SECONDS):
            await anext(events)


async def test_a_change_is_sent_once_with_the_current_digest(inside: Inside) -> None:
    live = inside.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first(events) == BEGINNING

    inside.said = "2"

    assert await first(events) == f"id: {await live.compute_digest(ALL)}\nevent: changed\ndata: -\n\n".encode()
    await silent(events)


async def test_a_change_between_the_page_and_the_connection_is_sent(inside: Inside) -> None:
    live = inside.live()
    shown = await live.compute_digest(ONE)
    inside.said = "2"

    events = live.events(ONE, shown)

    assert await first(events) == BEGINNING
    assert b"changed" in await first(events)


async def test_a_page_without_a_digest_is_taken_to_be_current(inside: Inside) -> None:
    events = inside.live().events(ALL)
    assert await first(events) == BEGINNING

    await silent(events)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("changes", 1),
        ("problem", BadOption("this is wrong")),
        ("failure", StoreUnavailable("a file", "it is away")),
    ],
)
async def test_a_changed_configuration_and_an_unavailable_store_are_sent_too(
    name: str, value: object, inside: Inside
) -> None:
    live = inside.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first(events) == BEGINNING

    setattr(inside, name, value)

    assert b"changed" in await first(events)


async def test_a_failing_store_counts_as_unavailable_and_ends_nothing(
    inside: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    live = inside.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first(events) == BEGINNING

    inside.failure = ZeroDivisionError()
    assert b"changed" in await first(events)
    inside.failure = None

    assert b"changed" in await first(events)
    assert "nobody can be told of changes" in caplog.text


async def test_a_slow_reader_gets_many_changes_as_one(inside: Inside) -> None:
    live = inside.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first(events) == BEGINNING
    for number in range(5):
        inside.said = f"change {number}"
        await asyncio.sleep(2 * EVERY_SECONDS)

    assert b"changed" in await first(events)

    await silent(events)


async def test_the_store_is_polled_once_for_all_subscribers_of_a_target(inside: Inside) -> None:
    live = inside.live()
    shown = await live.compute_digest(ALL)
    many = [live.events(ALL, shown) for _ in range(20)]
    for events in many:
        assert await first(events) == BEGINNING
    assert live.subscriber_count == 20
    inside.asked, inside.said = 0, "2"

    told = await asyncio.gather(*map(first, many))

    assert all(b"changed" in event for event in told)
    assert inside.asked < 5


async def test_polling_stops_without_subscribers(inside: Inside) -> None:
    live = inside.live()
    events = live.events(ONE)
    await first(events)
    await silent(events)  # a closed connection cancels its generator

    assert live.subscriber_count == 0
    await asyncio.sleep(3 * EVERY_SECONDS)
    asked = inside.asked
    await asyncio.sleep(3 * EVERY_SECONDS)
    assert inside.asked == asked


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("name", ["is_over", "page"])
async def test_a_shutdown_ends_the_stream_even_if_the_store_hangs(
    name: str, stuck: bool, inside: Inside
) -> None:
    events = inside.live().events(ALL)
    assert await first(events) == BEGINNING
    inside.is_stuck = stuck

    setattr(inside, name, not getattr(inside, name))

    with pytest.raises(StopAsyncIteration):
        await first(events)


async def test_an_idle_connection_is_kept_alive(inside: Inside) -> None:
    events = inside.live().events(ALL)
    assert await first(events) == BEGINNING

    assert await first(events) == b": still here\n\n"


async def test_subscribers_beyond_the_limit_are_told_to_retry_later(
    inside: Inside,
) -> None:
    live = inside.live()
    many = [live.events(ALL) for _ in range(MAX_SUBSCRIBERS + 3)]

    beginnings = await asyncio.gather(*(first(events) for events in many))

    assert beginnings == [BEGINNING] * MAX_SUBSCRIBERS + [b"retry: 60000\n\n"] * 3
    assert live.subscriber_count == MAX_SUBSCRIBERS
    inside.is_over = True
    assert [[said async for said in events] for events in many] == [[]] * len(many)
