"""The same of both databases: sessions, their turns, and what was counted of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from foveate.errors import BadOption
from foveate.session.turns import CountRows, Move, Turn, Turns
from foveate.store import Store, open_store
from tests.kept import AGENT, hashed, hashes, session, turns


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


def as_turns(store: Store) -> Turns:
    """The store is what the room asks for; mypy sees to it."""
    return store.turns


async def test_a_session_comes_back_as_it_was_kept(store: Store) -> None:
    kept = as_turns(store)
    parent = session("s", 2)
    child = session("fork", 3, parent=parent)

    assert await kept.keep(parent, turns("s", 0, 2), after=None)
    assert await kept.keep(child, turns("fork", 2, 3), after=None)

    assert await kept.session("s") == parent
    assert await kept.session("fork") == child
    assert await kept.session("nobody") is None


async def test_turns_are_known_by_agent_and_hash(store: Store) -> None:
    new = turns("s", 0, 3)
    await store.turns.keep(session("s", 3), new, after=None)

    asked = [*hashes("s", 0, 3), hashed("never seen")]

    assert await store.turns.known(AGENT, asked) == {turn.hash: turn for turn in new}
    assert await store.turns.known("another agent", asked) == {}
    assert await store.turns.known(AGENT, []) == {}


@pytest.mark.parametrize("many", [1, 2, 17, 1024, 1025, 3000])
async def test_any_number_of_turns_can_be_asked_for_at_once(store: Store, many: int) -> None:
    await store.turns.keep(session("s", 3000), turns("s", 0, 3000), after=None)

    assert set(await store.turns.known(AGENT, hashes("s", 0, many))) == set(hashes("s", 0, many))


async def test_a_session_goes_on_from_its_tip(store: Store) -> None:
    await store.turns.keep(session("s", 2), turns("s", 0, 2), after=None)
    longer = session("s", 4, seen_at=300.0)

    assert await store.turns.keep(longer, turns("s", 2, 4), after=session("s", 2).tip)

    assert await store.turns.session("s") == longer
    assert len(await store.turns.known(AGENT, hashes("s", 0, 4))) == 4


async def test_a_session_that_is_seen_again_without_a_new_turn_is_kept_as_seen(store: Store) -> None:
    await store.turns.keep(session("s", 2), turns("s", 0, 2), after=None)
    again = session("s", 2, seen_at=900.0)

    assert await store.turns.keep(again, [], after=again.tip)

    assert await store.turns.session("s") == again


async def test_sessions_and_counts_of_many_requests_are_kept_in_one(store: Store) -> None:
    await store.turns.keep(session("old", 2), turns("old", 0, 2), after=None)
    (counted,) = hashes("new", 0, 1)
    kept: list[Move | CountRows] = [
        Move(session=session("old", 3), turns=turns("old", 2, 3), after=session("old", 2).tip),
        CountRows(agent=AGENT, counter="o200k", counts={counted: b"7"}),
        Move(session=session("new", 1), turns=turns("new", 0, 1), after=None),
        CountRows(agent=AGENT, counter="claude", counts={counted: b"8"}),
        # Both go on from what is kept with them.
        Move(session=session("old", 5), turns=turns("old", 3, 5), after=session("old", 3).tip),
        Move(session=session("new", 3), turns=turns("new", 1, 3), after=session("new", 1).tip),
    ]

    assert await store.turns.keep_all(kept)

    assert [await store.turns.session(id_) for id_ in ("old", "new")] == [session("old", 5), session("new", 3)]
    assert len(await store.turns.known(AGENT, [*hashes("old", 0, 5), *hashes("new", 0, 3)])) == 8
    assert [await store.turns.counts(AGENT, [counted], name) for name in ("o200k", "claude")] == [
        {counted: b"7"},
        {counted: b"8"},
    ]


async def test_a_turn_that_two_requests_have_counted_is_kept_as_the_later_says(store: Store) -> None:
    await store.turns.keep(session("s", 2), turns("s", 0, 2), after=None)
    first, second = hashes("s", 0, 2)
    told = [{first: b"7", second: b"8"}, {first: b"9"}]

    assert await store.turns.keep_all([CountRows(agent=AGENT, counter="o200k", counts=one) for one in told])

    assert await store.turns.counts(AGENT, [first, second], "o200k") == {first: b"9", second: b"8"}


@pytest.mark.parametrize(
    "late",
    [
        Move(session=session("s", 2), turns=[], after=None),  # it is there
        Move(session=session("s", 3), turns=turns("s", 2, 3), after=hashed("another")),
        Move(session=session("s", 3), turns=turns("s", 1, 3), after=session("s", 2).tip),  # a turn is
    ],
)
async def test_where_one_of_many_cannot_be_kept_none_is(store: Store, late: Move) -> None:
    await store.turns.keep(session("s", 2), turns("s", 0, 2), after=None)
    (counted,) = hashes("new", 0, 1)
    counts = CountRows(agent=AGENT, counter="o200k", counts={counted: b"7"})

    new = Move(session=session("new", 1), turns=turns("new", 0, 1), after=None)
    assert not await store.turns.keep_all([new, counts, late])

    assert await store.turns.session("new") is None
    assert await store.turns.session("s") == session("s", 2)
    assert await store.turns.known(AGENT, [counted, *hashes("s", 2, 3)]) == {}
    assert await store.turns.counts(AGENT, [counted], "o200k") == {}


async def test_whoever_kept_first_wins_and_of_the_other_nothing_is_kept(store: Store) -> None:
    await store.turns.keep(session("s", 2), turns("s", 0, 2), after=None)
    first, late = session("s", 3), replace(session("s", 3), tip=hashed("another"), seen_at=500.0)
    assert await store.turns.keep(first, turns("s", 2, 3), after=session("s", 2).tip)

    for after in (None, session("s", 2).tip):
        other = Turn(hash=late.tip, position=2, session_id="s")
        assert not await store.turns.keep(late, [other], after=after)

    assert await store.turns.session("s") == first
    assert await store.turns.known(AGENT, [late.tip]) == {}


async def test_a_turn_that_is_there_already_keeps_the_others_and_the_session_out(store: Store) -> None:
    await store.turns.keep(session("s", 2), turns("s", 0, 2), after=None)
    mixed = [replace(turn, session_id="new") for turn in turns("s", 1, 3)]

    assert not await store.turns.keep(session("new", 3), mixed, after=None)

    assert await store.turns.session("new") is None
    assert set(await store.turns.known(AGENT, hashes("s", 0, 3))) == set(hashes("s", 0, 2))


async def test_a_fork_of_a_session_that_is_gone_is_not_kept(store: Store) -> None:
    child = session("fork", 3, parent=session("never kept", 2))

    assert not await store.turns.keep(child, turns("fork", 2, 3), after=None)
    assert await store.turns.session("fork") is None


async def test_a_parent_is_seen_in_its_child(store: Store) -> None:
    parent = session("s", 2, seen_at=100.0)
    await store.turns.keep(parent, turns("s", 0, 2), after=None)

    for name, seen_at, then in (("late", 900.0, 900.0), ("early", 500.0, 900.0)):
        child = session(name, 3, seen_at=seen_at, parent=parent)
        assert await store.turns.keep(child, turns(name, 2, 3), after=None)
        assert await store.turns.session("s") == replace(parent, seen_at=then)


async def test_a_session_can_come_to_stand_on_another_one_that_is_there(store: Store) -> None:
    alone, parent = session("s", 2), session("parent", 2)
    for one in (alone, parent):
        await store.turns.keep(one, turns(one.id, 0, 2), after=None)
    moved = replace(session("s", 3, parent=parent), seen_at=900.0)
    nowhere = session("s", 3, parent=session("never kept", 2))

    assert not await store.turns.keep(nowhere, turns("s", 2, 3), after=alone.tip)
    assert await store.turns.session("s") == alone
    assert await store.turns.keep(moved, turns("s", 2, 3), after=alone.tip)
    assert await store.turns.session("s") == moved
    assert await store.turns.session("parent") == replace(parent, seen_at=900.0)


async def test_of_many_who_keep_the_same_at_once_one_wins(store: Store) -> None:
    tries = [store.turns.keep(session("s", 2), turns("s", 0, 2), after=None) for _ in range(20)]

    assert sum(await asyncio.gather(*tries)) == 1


async def test_many_sessions_at_once_are_all_kept(store: Store) -> None:
    names = [f"session {number}" for number in range(200)]

    kept = await asyncio.gather(
        *(store.turns.keep(session(name, 2), turns(name, 0, 2), after=None) for name in names)
    )

    assert all(kept)
    assert all(await asyncio.gather(*(store.turns.session(name) for name in names)))


async def test_what_was_counted_is_kept_by_counter_and_what_was_last_stays(store: Store) -> None:
    first, second, third = hashes("s", 0, 3)

    await store.turns.keep_counts(AGENT, {first: b"7", second: b"\x00\xff"}, "o200k")
    await store.turns.keep_counts(AGENT, {first: b"8", third: b""}, "o200k")
    await store.turns.keep_counts(AGENT, {first: b"9"}, "claude")
    await store.turns.keep_counts(AGENT, {}, "claude")

    asked = [first, second, third]
    assert await store.turns.counts(AGENT, asked, "o200k") == {first: b"8", second: b"\x00\xff", third: b""}
    assert await store.turns.counts(AGENT, asked, "claude") == {first: b"9"}
    assert await store.turns.counts("another agent", asked, "claude") == {}


@pytest.mark.parametrize("name", ["a\0b", "half \ud83d"])
async def test_a_name_that_not_both_databases_can_hold_is_refused_by_either(store: Store, name: str) -> None:
    with pytest.raises(BadOption, match="agent"):
        await store.turns.known(name, [hashed(1)])
    with pytest.raises(BadOption, match="session_id"):
        await store.turns.keep(session(name, 1), [], after=None)


async def test_any_other_name_is_kept_as_it_is(store: Store) -> None:
    names = ["", "  ", "two\nlines", "Zoë 你好 🙂", "'; DROP TABLE turns_v1; --", "100% ?", "\u202e"]
    for name in names:
        assert await store.turns.keep(session(name, 1), turns(name, 0, 1), after=None)

    for name in names:
        assert await store.turns.session(name) == session(name, 1)


async def test_what_was_kept_is_there_when_the_store_is_opened_again(database_url: str) -> None:
    async with await open_store(database_url) as first:
        await first.turns.keep(session("s", 2), turns("s", 0, 2), after=None)

    async with await open_store(database_url) as second:
        assert await second.turns.session("s") == session("s", 2)
