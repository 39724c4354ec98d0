"""What browsers are told that stay on a page: that something has changed, once, and that it is over."""

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
    """What is looked into, as a test moves it."""

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
    """Nothing is told for a while; whoever listens has gone after that."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(beats * EVERY_SECONDS):
            await anext(events)


async def test_a_change_is_told_once_and_with_the_pulse_of_what_is_there_now(inside: Inside) -> None:
    live = inside.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first(events) == BEGINNING

    inside.said = "2"

    assert await first(events) == f"id: {await live.compute_digest(ALL)}\nevent: changed\ndata: -\n\n".encode()
    await silent(events)


async def test_what_changed_between_the_page_and_the_connection_is_told(inside: Inside) -> None:
    live = inside.live()
    shown = await live.compute_digest(ONE)
    inside.said = "2"

    events = live.events(ONE, shown)

    assert await first(events) == BEGINNING
    assert b"changed" in await first(events)


async def test_a_page_that_says_nothing_of_itself_is_taken_to_be_the_newest(inside: Inside) -> None:
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
async def test_a_change_of_the_configuration_and_a_store_that_goes_are_told_too(
    name: str, value: object, inside: Inside
) -> None:
    live = inside.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first(events) == BEGINNING

    setattr(inside, name, value)

    assert b"changed" in await first(events)


async def test_a_fault_of_the_store_is_told_as_if_it_were_away_and_ends_nothing(
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


async def test_many_changes_are_one_for_who_reads_slowly(inside: Inside) -> None:
    live = inside.live()
    events = live.events(ALL, await live.compute_digest(ALL))
    assert await first(events) == BEGINNING
    for number in range(5):
        inside.said = f"change {number}"
        await asyncio.sleep(2 * EVERY_SECONDS)

    assert b"changed" in await first(events)

    await silent(events)


async def test_the_store_is_asked_once_for_all_that_look_at_the_same(inside: Inside) -> None:
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


async def test_who_has_gone_is_no_longer_told_and_the_store_no_longer_asked(inside: Inside) -> None:
    live = inside.live()
    events = live.events(ONE)
    await first(events)
    await silent(events)  # a connection that is cut cancels whoever waits for it

    assert live.subscriber_count == 0
    await asyncio.sleep(3 * EVERY_SECONDS)
    asked = inside.asked
    await asyncio.sleep(3 * EVERY_SECONDS)
    assert inside.asked == asked


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("name", ["is_over", "page"])
async def test_the_end_of_the_gateway_or_of_the_page_ends_it_though_the_store_be_stuck(
    name: str, stuck: bool, inside: Inside
) -> None:
    events = inside.live().events(ALL)
    assert await first(events) == BEGINNING
    inside.is_stuck = stuck

    setattr(inside, name, not getattr(inside, name))

    with pytest.raises(StopAsyncIteration):
        await first(events)


async def test_a_connection_on_which_nothing_happens_is_kept_alive(inside: Inside) -> None:
    events = inside.live().events(ALL)
    assert await first(events) == BEGINNING

    assert await first(events) == b": still here\n\n"


async def test_of_more_than_can_be_told_that_come_at_one_moment_some_are_to_come_again_later(
    inside: Inside,
) -> None:
    live = inside.live()
    many = [live.events(ALL) for _ in range(MAX_SUBSCRIBERS + 3)]

    beginnings = await asyncio.gather(*(first(events) for events in many))

    assert beginnings == [BEGINNING] * MAX_SUBSCRIBERS + [b"retry: 60000\n\n"] * 3
    assert live.subscriber_count == MAX_SUBSCRIBERS
    inside.is_over = True
    assert [[said async for said in events] for events in many] == [[]] * len(many)
