"""The same of both databases: sessions, their turns, and what was counted of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from foveate.errors import BadOption
from foveate.session.turns import Answer, Answers, CountRows, Move, Stored, Turns
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

    await kept.keep([Move(session=parent, turns=turns("s", 0, 2))])
    await kept.keep([Move(session=child, turns=turns("fork", 2, 3))])

    assert await kept.session("s") == parent
    assert await kept.session("fork") == child
    assert await kept.session("nobody") is None


async def test_turns_are_known_by_agent_and_hash(store: Store) -> None:
    new = turns("s", 0, 3)
    await store.turns.keep([Move(session=session("s", 3), turns=new)])

    asked = [*hashes("s", 0, 3), hashed("never seen")]

    assert await store.turns.known(AGENT, asked) == {turn.hash: turn for turn in new}
    assert await store.turns.known("another agent", asked) == {}
    assert await store.turns.known(AGENT, []) == {}


@pytest.mark.parametrize("many", [1, 2, 17, 1024, 1025, 3000])
async def test_any_number_of_turns_can_be_asked_for_at_once(store: Store, many: int) -> None:
    await store.turns.keep([Move(session=session("s", 3000), turns=turns("s", 0, 3000))])

    assert set(await store.turns.known(AGENT, hashes("s", 0, many))) == set(hashes("s", 0, many))


async def test_a_session_is_stored_as_it_was_seen_last(store: Store) -> None:
    for messages, seen_at in ((2, 100.0), (4, 300.0), (3, 200.0)):
        new = turns("s", 0, messages)
        await store.turns.keep([Move(session=session("s", messages, seen_at=seen_at), turns=new)])

    assert await store.turns.session("s") == session("s", 4, seen_at=300.0)
    assert len(await store.turns.known(AGENT, hashes("s", 0, 4))) == 4


async def test_all_that_is_known_of_a_session_comes_back(store: Store) -> None:
    told = replace(
        session("s", 2),
        caller="who",
        setting=b"\x00\xff",
        first_messages=1,
        folder="/home/zoë/\x00",
        opening="Fix the \ud83d bug",
    )
    await store.turns.keep([Move(session=told)])

    assert await store.turns.session("s") == replace(told, opening="Fix the ? bug")


async def test_a_session_that_goes_on_gets_a_caller_once_and_its_latest_setting(store: Store) -> None:
    states = [(None, None), ("me", b"x"), ("you", b"y"), (None, None)]
    for seen_at, (caller, setting) in enumerate(states, 1):
        going_on = replace(session("s", 2, seen_at=float(seen_at)), caller=caller, setting=setting)
        await store.turns.keep([Move(session=going_on)])

    found = await store.turns.session("s")
    assert found is not None
    assert (found.caller, found.setting) == ("me", b"y")


async def test_sessions_answers_and_counts_of_many_requests_are_kept_in_one(store: Store) -> None:
    (counted,) = hashes("new", 0, 1)
    kept: list[Stored] = [
        Move(session=session("old", 3), turns=turns("old", 0, 3)),
        CountRows(agent=AGENT, counter="o200k", counts={counted: b"7"}),
        Move(session=session("new", 1), turns=turns("new", 0, 1)),
        Answers(rows=[Answer(mark=b"m", session_id="new", tip=session("new", 1).tip, at=1.0)]),
        CountRows(agent=AGENT, counter="claude", counts={counted: b"8"}),
        Move(session=session("old", 5, seen_at=200.0), turns=turns("old", 3, 5)),
        Move(session=session("new", 3, seen_at=200.0), turns=turns("new", 1, 3)),
    ]

    await store.turns.keep(kept)

    then = [session(name, size, seen_at=200.0) for name, size in (("old", 5), ("new", 3))]
    assert [await store.turns.session(id_) for id_ in ("old", "new")] == then
    assert len(await store.turns.known(AGENT, [*hashes("old", 0, 5), *hashes("new", 0, 3)])) == 8
    assert [await store.turns.counts(AGENT, [counted], name) for name in ("o200k", "claude")] == [
        {counted: b"7"},
        {counted: b"8"},
    ]
    assert [one.id for _, one in await store.turns.answered([b"m", b"other"])] == ["new"]


async def test_an_answer_leads_to_all_sessions_that_got_it_and_stays_as_it_was_last(store: Store) -> None:
    for name in ("a", "b"):
        await store.turns.keep([Move(session=session(name, 2))])
        for at in (1.0, 2.0):
            row = Answer(mark=b"m", session_id=name, tip=hashed(at), at=at)
            await store.turns.keep([Answers(rows=[row])])

    found = await store.turns.answered([b"m"])

    assert {(row.session_id, row.tip, one) for row, one in found} == {
        (name, hashed(2.0), session(name, 2)) for name in ("a", "b")
    }
    assert await store.turns.answered([]) == []


async def test_sessions_are_found_by_their_ends_and_their_callers(store: Store) -> None:
    own = [
        replace(session(name, 2), caller=caller) for name, caller in (("a", "me"), ("b", "you"), ("c", None))
    ]
    await store.turns.keep([Move(session=one) for one in own])
    await store.turns.keep([Answers(rows=[Answer(mark=b"m", session_id="a", tip=own[0].tip, at=1.0)])])
    tips = [one.tip for one in own]

    found = await store.turns.ending_at(AGENT, "me", tips)

    assert sorted((one.id, is_answered) for one, is_answered in found) == [("a", True), ("c", False)]
    assert await store.turns.ending_at("another agent", "me", tips) == []
    assert await store.turns.ending_at(AGENT, "me", []) == []


async def test_a_turn_that_two_requests_have_counted_is_kept_as_the_later_says(store: Store) -> None:
    await store.turns.keep([Move(session=session("s", 2), turns=turns("s", 0, 2))])
    first, second = hashes("s", 0, 2)
    told = [{first: b"7", second: b"8"}, {first: b"9"}]

    await store.turns.keep([CountRows(agent=AGENT, counter="o200k", counts=one) for one in told])

    assert await store.turns.counts(AGENT, [first, second], "o200k") == {first: b"9", second: b"8"}


async def test_a_turn_stays_with_the_session_that_had_it_first(store: Store) -> None:
    await store.turns.keep([Move(session=session("s", 2), turns=turns("s", 0, 2))])
    shared = [replace(turn, session_id="new") for turn in turns("s", 1, 3)]

    await store.turns.keep([Move(session=session("new", 3), turns=shared)])

    known = await store.turns.known(AGENT, hashes("s", 0, 3))
    assert [known[one].session_id for one in hashes("s", 0, 3)] == ["s", "s", "new"]


async def test_a_parent_is_seen_in_its_child(store: Store) -> None:
    parent = session("s", 2, seen_at=100.0)
    await store.turns.keep([Move(session=parent, turns=turns("s", 0, 2))])

    for name, seen_at, then in (("late", 900.0, 900.0), ("early", 500.0, 900.0)):
        child = session(name, 3, seen_at=seen_at, parent=parent)
        await store.turns.keep([Move(session=child, turns=turns(name, 2, 3))])
        assert await store.turns.session("s") == replace(parent, seen_at=then)


async def test_many_who_keep_the_same_at_once_all_succeed(store: Store) -> None:
    move = Move(session=session("s", 2), turns=turns("s", 0, 2))

    await asyncio.gather(*(store.turns.keep([move]) for _ in range(20)))

    assert await store.turns.session("s") == session("s", 2)


async def test_many_sessions_at_once_are_all_kept(store: Store) -> None:
    names = [f"session {number}" for number in range(200)]

    await asyncio.gather(
        *(store.turns.keep([Move(session=session(name, 2), turns=turns(name, 0, 2))]) for name in names)
    )

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
        await store.turns.keep([Move(session=session(name, 1), turns=[])])


async def test_any_other_name_is_kept_as_it_is(store: Store) -> None:
    names = ["", "  ", "two\nlines", "Zoë 你好 🙂", "'; DROP TABLE turns_v1; --", "100% ?", "\u202e"]
    for name in names:
        await store.turns.keep([Move(session=session(name, 1), turns=turns(name, 0, 1))])

    for name in names:
        assert await store.turns.session(name) == session(name, 1)


async def test_what_was_kept_is_there_when_the_store_is_opened_again(database_url: str) -> None:
    async with await open_store(database_url) as first:
        await first.turns.keep([Move(session=session("s", 2), turns=turns("s", 0, 2))])

    async with await open_store(database_url) as second:
        assert await second.turns.session("s") == session("s", 2)
