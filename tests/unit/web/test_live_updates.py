"""Open pages are notified of each change once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from foveate.config.settings import ServerSettings, Settings
from foveate.engine.options import AgentOptions
from foveate.errors import BadOption, FoveateError, StoreUnavailable
from foveate.web.live_updates import MAX_SUBSCRIBERS, ChangeFeed, WatchTarget
from foveate.web.page import ConfigSnapshot

POLL_SECONDS = 0.01
START = b"retry: 2000\n\n"
ALL, ONE = WatchTarget(), WatchTarget("one")


@dataclass
class PageData:
    """The data of a page, changed by a test."""

    content: str = "1"
    failure: Exception | None = None
    is_stuck: bool = False
    reads: int = 0
    changes: int = 0
    problem: FoveateError | None = None
    page: bool = True
    is_shutting_down: bool = False

    async def read(self, target: WatchTarget) -> str:
        self.reads += 1
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return f"{self.content} of {target}"

    def get_config(self) -> ConfigSnapshot:
        return ConfigSnapshot(
            path=None,
            since=0.0,
            changes=self.changes,
            problem=self.problem,
            settings=Settings(server=ServerSettings(page=self.page)),
            options=lambda _: AgentOptions(),
            caps=(),
        )

    def make_feed(self) -> ChangeFeed:
        return ChangeFeed(
            self.read,
            self.get_config,
            is_shutting_down=lambda: self.is_shutting_down,
            poll_seconds=POLL_SECONDS,
        )


@pytest.fixture
def page_data() -> PageData:
    return PageData()


async def next_event(events: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(5):
        return await anext(events)


async def assert_silent(events: AsyncIterator[bytes], *, polls: int = 5) -> None:
    """Expect no event for a while; that ends the subscription."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(polls * POLL_SECONDS):
            await anext(events)


async def test_a_change_is_sent_once_with_the_current_digest(page_data: PageData) -> None:
    feed = page_data.make_feed()
    events = feed.events(ALL, await feed.compute_digest(ALL))
    assert await next_event(events) == START

    page_data.content = "2"

    assert (
        await next_event(events)
        == f"id: {await feed.compute_digest(ALL)}\nevent: changed\ndata: -\n\n".encode()
    )
    await assert_silent(events)


async def test_a_change_between_the_page_and_the_connection_is_sent(page_data: PageData) -> None:
    feed = page_data.make_feed()
    digest = await feed.compute_digest(ONE)
    page_data.content = "2"

    events = feed.events(ONE, digest)

    assert await next_event(events) == START
    assert b"changed" in await next_event(events)


async def test_a_page_without_a_digest_is_taken_to_be_current(page_data: PageData) -> None:
    events = page_data.make_feed().events(ALL)
    assert await next_event(events) == START

    await assert_silent(events)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("changes", 1),
        ("problem", BadOption("this is wrong")),
        ("failure", StoreUnavailable("a file", "it is away")),
    ],
)
async def test_a_changed_configuration_and_an_unavailable_store_are_sent_too(
    name: str, value: object, page_data: PageData
) -> None:
    feed = page_data.make_feed()
    events = feed.events(ALL, await feed.compute_digest(ALL))
    assert await next_event(events) == START

    setattr(page_data, name, value)

    assert b"changed" in await next_event(events)


async def test_a_failing_store_counts_as_unavailable_and_ends_nothing(
    page_data: PageData, caplog: pytest.LogCaptureFixture
) -> None:
    feed = page_data.make_feed()
    events = feed.events(ALL, await feed.compute_digest(ALL))
    assert await next_event(events) == START

    page_data.failure = ZeroDivisionError()
    assert b"changed" in await next_event(events)
    page_data.failure = None

    assert b"changed" in await next_event(events)
    assert "live updates of the dashboard failed" in caplog.text


async def test_a_slow_reader_gets_many_changes_as_one(page_data: PageData) -> None:
    feed = page_data.make_feed()
    events = feed.events(ALL, await feed.compute_digest(ALL))
    assert await next_event(events) == START
    for number in range(5):
        page_data.content = f"change {number}"
        await asyncio.sleep(2 * POLL_SECONDS)

    assert b"changed" in await next_event(events)

    await assert_silent(events)


async def test_the_store_is_polled_once_for_all_subscribers_of_a_target(page_data: PageData) -> None:
    feed = page_data.make_feed()
    digest = await feed.compute_digest(ALL)
    streams = [feed.events(ALL, digest) for _ in range(20)]
    for events in streams:
        assert await next_event(events) == START
    assert feed.subscriber_count == 20
    page_data.reads, page_data.content = 0, "2"

    results = await asyncio.gather(*map(next_event, streams))

    assert all(b"changed" in event for event in results)
    assert page_data.reads < 5


async def test_polling_stops_without_subscribers(page_data: PageData) -> None:
    feed = page_data.make_feed()
    events = feed.events(ONE)
    await next_event(events)
    await assert_silent(events)  # a closed connection cancels its generator

    assert feed.subscriber_count == 0
    await asyncio.sleep(3 * POLL_SECONDS)
    reads = page_data.reads
    await asyncio.sleep(3 * POLL_SECONDS)
    assert page_data.reads == reads


@pytest.mark.parametrize("is_stuck", [False, True])
@pytest.mark.parametrize("name", ["is_shutting_down", "page"])
async def test_a_shutdown_ends_the_stream_even_if_the_store_hangs(
    name: str, is_stuck: bool, page_data: PageData
) -> None:
    events = page_data.make_feed().events(ALL)
    assert await next_event(events) == START
    page_data.is_stuck = is_stuck

    setattr(page_data, name, not getattr(page_data, name))

    with pytest.raises(StopAsyncIteration):
        await next_event(events)


async def test_an_idle_connection_is_kept_alive(page_data: PageData) -> None:
    events = page_data.make_feed().events(ALL)
    assert await next_event(events) == START

    assert await next_event(events) == b": keep-alive\n\n"


async def test_subscribers_beyond_the_limit_are_told_to_retry_later(
    page_data: PageData,
) -> None:
    feed = page_data.make_feed()
    streams = [feed.events(ALL) for _ in range(MAX_SUBSCRIBERS + 3)]

    first_events = await asyncio.gather(*(next_event(events) for events in streams))

    assert first_events == [START] * MAX_SUBSCRIBERS + [b"retry: 60000\n\n"] * 3
    assert feed.subscriber_count == MAX_SUBSCRIBERS
    page_data.is_shutting_down = True
    assert [[text async for text in events] for events in streams] == [[]] * len(streams)
