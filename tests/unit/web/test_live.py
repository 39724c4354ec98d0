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
START = b"retry: 2000\n\n"
ALL, ONE = WatchTarget(), WatchTarget("one")


@dataclass
class FakeData:
    """The data of a page, changed by a test."""

    said: str = "1"
    failure: Exception | None = None
    is_stuck: bool = False
    asked: int = 0
    changes: int = 0
    problem: FoveateError | None = None
    page: bool = True
    is_over: bool = False

    async def found(self, target: WatchTarget) -> str:
        self.asked += 1
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return f"{self.said} of {target}"

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
def fake_data() -> FakeData:
    return FakeData()


async def first_event(events: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(5):
        return await anext(events)


async def assert_silent(events: AsyncIterator[bytes], *, polls: int = 5) -> None:
    """Return whether no event arrives for a while; the subscriber has gone after that."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(polls * EVERY_SECONDS):
            await anext(events)


async def test_a_change_is_sent_once_with_the_current_digest(fake_data: FakeData) -> None:
    live = fake_data.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first_event(events) == START

    fake_data.said = "2"

    assert (
        await first_event(events)
        == f"id: {await live.compute_digest(ALL)}\nevent: changed\ndata: -\n\n".encode()
    )
    await assert_silent(events)


async def test_a_change_between_the_page_and_the_connection_is_sent(fake_data: FakeData) -> None:
    live = fake_data.live()
    visible = await live.compute_digest(ONE)
    fake_data.said = "2"

    events = live.events(ONE, visible)

    assert await first_event(events) == START
    assert b"changed" in await first_event(events)


async def test_a_page_without_a_digest_is_taken_to_be_current(fake_data: FakeData) -> None:
    events = fake_data.live().events(ALL)
    assert await first_event(events) == START

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
    name: str, value: object, fake_data: FakeData
) -> None:
    live = fake_data.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first_event(events) == START

    setattr(fake_data, name, value)

    assert b"changed" in await first_event(events)


async def test_a_failing_store_counts_as_unavailable_and_ends_nothing(
    fake_data: FakeData, caplog: pytest.LogCaptureFixture
) -> None:
    live = fake_data.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first_event(events) == START

    fake_data.failure = ZeroDivisionError()
    assert b"changed" in await first_event(events)
    fake_data.failure = None

    assert b"changed" in await first_event(events)
    assert "nobody can be told of changes" in caplog.text


async def test_a_slow_reader_gets_many_changes_as_one(fake_data: FakeData) -> None:
    live = fake_data.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first_event(events) == START
    for number in range(5):
        fake_data.said = f"change {number}"
        await asyncio.sleep(2 * EVERY_SECONDS)

    assert b"changed" in await first_event(events)

    await assert_silent(events)


async def test_the_store_is_polled_once_for_all_subscribers_of_a_target(fake_data: FakeData) -> None:
    live = fake_data.live()
    visible = await live.compute_digest(ALL)
    many = [live.events(ALL, visible) for _ in range(20)]
    for events in many:
        assert await first_event(events) == START
    assert live.subscriber_count == 20
    fake_data.asked, fake_data.said = 0, "2"

    record = await asyncio.gather(*map(first_event, many))

    assert all(b"changed" in event for event in record)
    assert fake_data.asked < 5


async def test_polling_stops_without_subscribers(fake_data: FakeData) -> None:
    live = fake_data.live()
    events = live.events(ONE)
    await first_event(events)
    await assert_silent(events)  # a closed connection cancels its generator

    assert live.subscriber_count == 0
    await asyncio.sleep(3 * EVERY_SECONDS)
    request = fake_data.asked
    await asyncio.sleep(3 * EVERY_SECONDS)
    assert fake_data.asked == request


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("name", ["is_over", "page"])
async def test_a_shutdown_ends_the_stream_even_if_the_store_hangs(
    name: str, stuck: bool, fake_data: FakeData
) -> None:
    events = fake_data.live().events(ALL)
    assert await first_event(events) == START
    fake_data.is_stuck = stuck

    setattr(fake_data, name, not getattr(fake_data, name))

    with pytest.raises(StopAsyncIteration):
        await first_event(events)


async def test_an_idle_connection_is_kept_alive(fake_data: FakeData) -> None:
    events = fake_data.live().events(ALL)
    assert await first_event(events) == START

    assert await first_event(events) == b": still here\n\n"


async def test_subscribers_beyond_the_limit_are_told_to_retry_later(
    fake_data: FakeData,
) -> None:
    live = fake_data.live()
    many = [live.events(ALL) for _ in range(MAX_SUBSCRIBERS + 3)]

    beginnings = await asyncio.gather(*(first_event(events) for events in many))

    assert beginnings == [START] * MAX_SUBSCRIBERS + [b"retry: 60000\n\n"] * 3
    assert live.subscriber_count == MAX_SUBSCRIBERS
    fake_data.is_over = True
    assert [[text async for text in events] for events in many] == [[]] * len(many)
