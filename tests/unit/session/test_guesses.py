"""A session is taken for the one that goes on before the store is asked, and that is confirmed behind."""

import asyncio
from collections.abc import Sequence

import pytest

from foveate.errors import StoreUnavailable
from foveate.session.chain import Chain
from foveate.session.news import News, moved
from foveate.session.sessions import Found, Guess, Tips, confirm, find, guess, look_up, named_id
from foveate.session.turns import Session, Turn
from tests.unit.session.in_memory import InMemory, words

AGENT = "ana"


class Gateway:
    """One process, over a store that others may share."""

    def __init__(self, store: InMemory) -> None:
        self.store = store
        self.tips = Tips()

    async def sent(self, chain: Chain, now: float = 1.0) -> tuple[Found, Guess | None]:
        """As what a request is sent, and what is to be confirmed of it."""
        guessed = guess(AGENT, chain, self.tips, now=now)
        if guessed is not None:
            return guessed.found, guessed
        return await find(AGENT, chain, self.store, now=now, tips=self.tips), None

    async def kept(self, chain: Chain, guessed: Guess | None) -> Found | None:
        return None if guessed is None else await confirm(guessed, chain, self.store, self.tips)

    async def answered(self, chain: Chain, now: float = 1.0) -> Found:
        found, guessed = await self.sent(chain, now)
        return await self.kept(chain, guessed) or found


async def test_a_session_that_goes_on_asks_nobody_before_it_is_sent() -> None:
    store = InMemory()
    gateway = Gateway(store)
    first = await gateway.answered(words("q"))
    store.asked.clear()
    found, guessed = await gateway.sent(words("q", "a", "more"))

    assert guessed is not None
    assert store.asked == []
    assert found.session.id == first.session.id
    assert found.known == 1
    assert (await gateway.kept(words("q", "a", "more"), guessed)) == found


async def test_two_branches_at_once_are_a_session_and_its_fork_from_their_first_request_on() -> None:
    """Defect: both were sent as the parent, and one of them was another session from its second request on."""
    gateway = Gateway(InMemory())
    first = await gateway.answered(words("q"))
    one, other = words("q", "a", "one"), words("q", "a", "other")
    one_sent, one_guessed = await gateway.sent(one)
    other_sent, other_guessed = await gateway.sent(other)
    # The fork is answered first; it is kept once what it stands on is.
    other_kept = asyncio.ensure_future(gateway.kept(other, other_guessed))
    await asyncio.sleep(0)
    await gateway.kept(one, one_guessed)
    await other_kept

    assert one_sent.session.id == first.session.id
    assert (other_sent.is_fork, other_sent.session.parent_id) == (True, first.session.id)
    for before, *said in (one_sent, "one"), (other_sent, "other"):
        later = await gateway.answered(words("q", "a", *said, "b", "c"))
        assert later.session.id == before.session.id


async def test_a_branch_goes_on_as_it_began_before_the_other_is_answered() -> None:
    gateway = Gateway(InMemory())
    await gateway.answered(words("q"))
    one = words("q", "a", "one")
    _, one_guessed = await gateway.sent(one)
    fork, _ = await gateway.sent(words("q", "a", "other"))
    again, _ = await gateway.sent(words("q", "a", "other", "b", "more"))

    assert again.session.id == fork.session.id
    await gateway.kept(one, one_guessed)


async def test_where_another_process_was_quicker_the_store_decides() -> None:
    store = InMemory()
    here, there = Gateway(store), Gateway(store)
    first = await here.answered(words("q"))
    await there.answered(words("q", "a", "there"))
    found = await here.answered(words("q", "a", "here"))

    assert found.is_fork
    assert found.session.parent_id == first.session.id
    assert (await there.answered(words("q", "a", "here", "b", "more"))).session.id == found.session.id


async def test_what_is_said_again_is_no_fork() -> None:
    gateway = Gateway(InMemory())
    first = await gateway.answered(words("q"))
    chain = words("q", "a", "more")
    _, guessed = await gateway.sent(chain)
    again = await gateway.answered(chain)
    await gateway.kept(chain, guessed)

    assert not again.is_fork
    assert again.session.id == first.session.id


async def test_who_goes_on_before_the_last_turn_is_kept_is_of_the_same_session_and_asks_nobody() -> None:
    """An agent whose tools are quick sends its next request before what it said last is in the store."""
    store = InMemory()
    gateway = Gateway(store)
    first = await gateway.answered(words("q"))
    store.asked.clear()
    chains = [words("q", *"abcdef"[: 2 * turn]) for turn in (1, 2, 3)]
    sent = [await gateway.sent(chain) for chain in chains]

    assert store.asked == []
    assert [found.session.id for found, _ in sent] == [first.session.id] * 3
    assert [found.known for found, _ in sent] == [1, 3, 5]
    # What came last is told to be kept first, and waits for what it stands on.
    keeping = [
        asyncio.ensure_future(gateway.kept(chain, guessed))
        for chain, (_, guessed) in reversed(list(zip(chains, sent, strict=True)))
    ]
    assert [found.session.id for found in await asyncio.gather(*keeping) if found] == [first.session.id] * 3
    later, guessed = await gateway.sent(words("q", *"abcdefgh"))
    assert (later.session.id, later.known, guessed is not None) == (first.session.id, 7, True)


async def test_who_goes_on_from_what_is_not_kept_after_all_is_found_by_the_store() -> None:
    store = InMemory()
    here, there = Gateway(store), Gateway(store)
    first = await here.answered(words("q"))
    chain, longer = words("q", "a", "here"), words("q", "a", "here", "b", "more")
    _, guessed = await here.sent(chain)
    _, later_guessed = await here.sent(longer)
    await there.answered(words("q", "a", "there"))
    found, later = await here.kept(chain, guessed), await here.kept(longer, later_guessed)

    assert found is not None
    assert later is not None
    assert found.is_fork
    assert found.session.parent_id == first.session.id
    assert later.session.id == found.session.id
    assert (await there.answered(words("q", "a", "here", "b", "more", "c", "d"))).session.id == found.session.id


class Quick:
    """Requests of an agent, each sent before the one before it is kept, as news for who keeps them together."""

    def __init__(self) -> None:
        self.store = InMemory()
        self.gateway = Gateway(self.store)
        self.session_id = ""

    async def news(self) -> list[News]:
        self.session_id = (await self.gateway.answered(words("q"))).session.id
        told: list[News] = []
        for turn in (1, 2, 3):
            chain = words("q", *"abcdef"[: 2 * turn])
            _, guessed = await self.gateway.sent(chain)
            assert guessed is not None
            told.append(moved(guessed, chain, self.store, self.gateway.tips))
        return told

    async def goes_on(self) -> bool:
        """Whether the next request is of the same session, and all that was said before is kept."""
        found, _ = await self.gateway.sent(words("q", *"abcdefgh"))
        await asyncio.sleep(0)
        return (found.session.id, found.known) == (self.session_id, 7) and len(self.store.turns) == 7


async def test_what_goes_on_can_be_kept_in_one_with_what_it_goes_on_from() -> None:
    quick = Quick()
    told = await quick.news()
    rows = [one.rows() for one in told]
    assert await quick.store.keep_all([row for row in rows if row is not None])
    for one in told:
        one.kept(True)

    assert None not in rows
    assert await quick.goes_on()


async def test_what_goes_on_is_kept_alone_where_the_one_before_it_is_not_over_or_could_not_be_kept() -> None:
    quick = Quick()
    first, second, third = await quick.news()

    assert (second.rows(), third.rows()) == (None, None)
    assert first.rows() is not None
    first.kept(False)
    assert second.rows() is None

    await asyncio.gather(third.alone(), second.alone(), first.alone())
    assert await quick.goes_on()


class ReadOnly(InMemory):
    """A store whose writer never comes to its turn."""

    async def keep(self, session: Session, turns: Sequence[Turn], *, after: bytes | None) -> bool:
        raise AssertionError(
            f"a request waited for a write of {session.id} with {len(turns)} turns, after {after!r}"
        )


async def test_a_new_session_goes_on_before_its_first_turn_is_stored_and_asks_nobody() -> None:
    """Defect: the second request waited for the writer, which served other processes for seconds."""
    store, tips = ReadOnly(), Tips()
    first = guess(AGENT, words("q"), tips, now=1.0)
    second = guess(AGENT, words("q", "a", "b"), tips, now=2.0)
    third = guess(AGENT, words("q", "a", "b", "c", "d"), tips, now=3.0)

    assert first is not None
    assert second is not None
    assert third is not None
    assert {one.found.session.id for one in (first, second, third)} == {first.found.session.id}
    assert [one.found.known for one in (first, second, third)] == [0, 1, 3]
    assert store.asked == []


async def test_a_session_that_another_process_has_not_stored_yet_is_found_without_a_write() -> None:
    here, there = Tips(), Tips()
    first = guess(AGENT, words("q"), there, now=1.0)
    found = await look_up(AGENT, words("q", "a", "b"), ReadOnly(), here, now=2.0)
    named = await look_up(AGENT, words("q", "a", "b"), ReadOnly(), here, now=2.0, header_id="mine")

    assert first is not None
    assert found.found.session.id == first.found.session.id
    assert (found.found.known, found.is_news) == (0, True)
    assert named.found.session.id == named_id(AGENT, "mine")


@pytest.mark.parametrize("header_id", [None, "mine"])
async def test_what_is_looked_up_is_stored_afterwards_as_if_it_had_been_found_at_once(
    header_id: str | None,
) -> None:
    store, once = InMemory(), InMemory()
    tips = Tips()
    chains = [words("q"), words("q", "a", "b"), words("q", "other", "b"), words("q", "a", "b", "c", "d")]
    for number, chain in enumerate(chains):
        looked_up = await look_up(AGENT, chain, store, tips, now=float(number), header_id=header_id)
        found = await find(AGENT, chain, once, now=float(number), header_id=header_id)
        assert looked_up.found == found
        if looked_up.is_news:
            assert await confirm(looked_up, chain, store, tips) == found

    assert (store.sessions, store.turns) == (once.sessions, once.turns)


async def test_who_follows_a_write_that_failed_does_not_wait_for_it() -> None:
    """Defect: it waited ten minutes for a turn that a locked store had refused."""

    class Away(InMemory):
        async def keep(self, session: Session, turns: Sequence[Turn], *, after: bytes | None) -> bool:
            if not turns or (turns[0].position == 0 and len(turns) == 1):
                raise StoreUnavailable("store", "is locked")
            return await super().keep(session, turns, after=after)

    store, tips = Away(), Tips()
    chains = [words("q"), words("q", "a", "b")]
    first, second = [guess(AGENT, chain, tips, now=1.0) for chain in chains]
    assert first is not None
    assert second is not None
    following = asyncio.ensure_future(confirm(second, chains[1], store, tips))
    with pytest.raises(StoreUnavailable):
        await confirm(first, chains[0], store, tips)
    found = await asyncio.wait_for(following, 30)

    assert found.session.id == first.found.session.id
    assert len(store.turns) == 3


async def test_who_follows_a_turn_that_was_dropped_with_others_does_not_wait_for_it() -> None:
    quick = Quick()
    first, second, third = await quick.news()
    first.rows()
    first.dropped()

    assert second.rows() is None
    await asyncio.wait_for(asyncio.gather(second.alone(), third.alone()), 30)
    assert await quick.goes_on()


async def test_a_session_that_moves_on_while_it_is_looked_up_is_not_taken_for_a_fork() -> None:
    """Defect: the turns were read before another process stored one more, and the session after it."""

    class Moving(InMemory):
        is_moved = False

        async def session(self, session_id: str) -> Session | None:
            if not self.is_moved:
                self.is_moved = True
                await find(AGENT, words("q", "a", "b"), self, now=2.0)
            return await super().session(session_id)

    store = Moving()
    store.is_moved = True
    first = await find(AGENT, words("q"), store, now=1.0)
    store.is_moved = False
    found = await look_up(AGENT, words("q", "a", "b", "c", "d"), store, Tips(), now=3.0)

    assert (found.found.session.id, found.found.is_fork, found.found.known) == (first.session.id, False, 3)
