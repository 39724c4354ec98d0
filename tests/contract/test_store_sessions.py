"""Sessions, their turns and counts, on both databases."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from foveate.errors import BadOption
from foveate.session.store import (
    AnswerRecord,
    AnswerUpdate,
    CountUpdate,
    SessionStore,
    SessionUpdate,
    SessionWrite,
)
from foveate.store import Store, open_store
from tests.support.stores.records import AGENT, hash_word, make_session, make_turns, message_hashes


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


def as_session_store(store: Store) -> SessionStore:
    """The type checker verifies that the store implements the protocol."""
    return store.sessions


async def test_a_session_is_loaded_as_saved(store: Store) -> None:
    sessions = as_session_store(store)
    parent = make_session("s", 2)
    child = make_session("fork", 3, parent=parent)

    await sessions.save([SessionUpdate(session=parent, turns=make_turns("s", 0, 2))])
    await sessions.save([SessionUpdate(session=child, turns=make_turns("fork", 2, 3))])

    assert await sessions.get_session("s") == parent
    assert await sessions.get_session("fork") == child
    assert await sessions.get_session("nobody") is None


async def test_turns_are_found_by_agent_and_hash(store: Store) -> None:
    new = make_turns("s", 0, 3)
    await store.sessions.save([SessionUpdate(session=make_session("s", 3), turns=new)])

    hashes = [*message_hashes("s", 0, 3), hash_word("never seen")]

    assert await store.sessions.find_turns(AGENT, hashes) == {turn.hash: turn for turn in new}
    assert await store.sessions.find_turns("another agent", hashes) == {}
    assert await store.sessions.find_turns(AGENT, []) == {}


@pytest.mark.parametrize("count", [1, 2, 17, 1024, 1025, 3000])
async def test_any_number_of_turns_can_be_requested_at_once(store: Store, count: int) -> None:
    await store.sessions.save([SessionUpdate(session=make_session("s", 3000), turns=make_turns("s", 0, 3000))])

    assert set(await store.sessions.find_turns(AGENT, message_hashes("s", 0, count))) == set(
        message_hashes("s", 0, count)
    )


async def test_the_latest_state_of_a_session_is_stored(store: Store) -> None:
    for messages, seen_at in ((2, 100.0), (4, 300.0), (3, 200.0)):
        new = make_turns("s", 0, messages)
        await store.sessions.save(
            [SessionUpdate(session=make_session("s", messages, seen_at=seen_at), turns=new)]
        )

    assert await store.sessions.get_session("s") == make_session("s", 4, seen_at=300.0)
    assert len(await store.sessions.find_turns(AGENT, message_hashes("s", 0, 4))) == 4


async def test_all_fields_of_a_session_are_loaded(store: Store) -> None:
    session = replace(
        make_session("s", 2),
        caller="who",
        prompt_digest=b"\x00\xff",
        first_messages=1,
        folder="/home/zoë/\x00",
        opening="Fix the \ud83d bug",
    )
    await store.sessions.save([SessionUpdate(session=session)])

    assert await store.sessions.get_session("s") == replace(session, opening="Fix the ? bug")


async def test_a_continued_session_gets_a_caller_once_and_its_latest_setting(store: Store) -> None:
    states = [(None, None), ("me", b"x"), ("you", b"y"), (None, None)]
    for seen_at, (caller, prompt_digest) in enumerate(states, 1):
        session = replace(
            make_session("s", 2, seen_at=float(seen_at)), caller=caller, prompt_digest=prompt_digest
        )
        await store.sessions.save([SessionUpdate(session=session)])

    stored = await store.sessions.get_session("s")
    assert stored is not None
    assert (stored.caller, stored.prompt_digest) == ("me", b"y")


async def test_sessions_answers_and_counts_of_many_requests_are_saved_in_one_transaction(store: Store) -> None:
    (counted,) = message_hashes("new", 0, 1)
    writes: list[SessionWrite] = [
        SessionUpdate(session=make_session("old", 3), turns=make_turns("old", 0, 3)),
        CountUpdate(agent=AGENT, counter="o200k", counts={counted: b"7"}),
        SessionUpdate(session=make_session("new", 1), turns=make_turns("new", 0, 1)),
        AnswerUpdate(
            rows=[AnswerRecord(digest=b"m", session_id="new", tip=make_session("new", 1).tip, at=1.0)]
        ),
        CountUpdate(agent=AGENT, counter="claude", counts={counted: b"8"}),
        SessionUpdate(session=make_session("old", 5, seen_at=200.0), turns=make_turns("old", 3, 5)),
        SessionUpdate(session=make_session("new", 3, seen_at=200.0), turns=make_turns("new", 1, 3)),
    ]

    await store.sessions.save(writes)

    expected = [make_session(name, size, seen_at=200.0) for name, size in (("old", 5), ("new", 3))]
    assert [await store.sessions.get_session(id_) for id_ in ("old", "new")] == expected
    assert (
        len(
            await store.sessions.find_turns(AGENT, [*message_hashes("old", 0, 5), *message_hashes("new", 0, 3)])
        )
        == 8
    )
    assert [await store.sessions.get_counts(AGENT, [counted], name) for name in ("o200k", "claude")] == [
        {counted: b"7"},
        {counted: b"8"},
    ]
    assert [session.id for _, session in await store.sessions.find_answers([b"m", b"other"])] == ["new"]


async def test_an_answer_leads_to_all_its_sessions_in_its_latest_state(store: Store) -> None:
    for name in ("a", "b"):
        await store.sessions.save([SessionUpdate(session=make_session(name, 2))])
        for at in (1.0, 2.0):
            row = AnswerRecord(digest=b"m", session_id=name, tip=hash_word(at), at=at)
            await store.sessions.save([AnswerUpdate(rows=[row])])

    answers = await store.sessions.find_answers([b"m"])

    assert {(row.session_id, row.tip, session) for row, session in answers} == {
        (name, hash_word(2.0), make_session(name, 2)) for name in ("a", "b")
    }
    assert await store.sessions.find_answers([]) == []


async def test_sessions_are_found_by_last_hash_and_caller(store: Store) -> None:
    sessions = [
        replace(make_session(name, 2), caller=caller)
        for name, caller in (("a", "me"), ("b", "you"), ("c", None))
    ]
    await store.sessions.save([SessionUpdate(session=session) for session in sessions])
    last_hashes = [session.tip for session in sessions]

    matches = await store.sessions.find_sessions_ending_at(AGENT, "me", last_hashes)

    assert sorted(session.id for session in matches) == ["a", "c"]
    assert await store.sessions.find_sessions_ending_at("another agent", "me", last_hashes) == []
    assert await store.sessions.find_sessions_ending_at(AGENT, "me", []) == []


async def test_the_later_of_two_counts_of_a_turn_is_stored(store: Store) -> None:
    await store.sessions.save([SessionUpdate(session=make_session("s", 2), turns=make_turns("s", 0, 2))])
    first, second = message_hashes("s", 0, 2)
    updates = [{first: b"7", second: b"8"}, {first: b"9"}]

    await store.sessions.save([CountUpdate(agent=AGENT, counter="o200k", counts=counts) for counts in updates])

    assert await store.sessions.get_counts(AGENT, [first, second], "o200k") == {first: b"9", second: b"8"}


async def test_a_turn_belongs_to_the_first_session_that_had_it(store: Store) -> None:
    await store.sessions.save([SessionUpdate(session=make_session("s", 2), turns=make_turns("s", 0, 2))])
    shared = [replace(turn, session_id="new") for turn in make_turns("s", 1, 3)]

    await store.sessions.save([SessionUpdate(session=make_session("new", 3), turns=shared)])

    turns = await store.sessions.find_turns(AGENT, message_hashes("s", 0, 3))
    assert [turns[hash_].session_id for hash_ in message_hashes("s", 0, 3)] == ["s", "s", "new"]


async def test_saving_a_child_updates_when_its_parent_was_last_seen(store: Store) -> None:
    parent = make_session("s", 2, seen_at=100.0)
    await store.sessions.save([SessionUpdate(session=parent, turns=make_turns("s", 0, 2))])

    for name, seen_at, expected_seen_at in (("late", 900.0, 900.0), ("early", 500.0, 900.0)):
        child = make_session(name, 3, seen_at=seen_at, parent=parent)
        await store.sessions.save([SessionUpdate(session=child, turns=make_turns(name, 2, 3))])
        assert await store.sessions.get_session("s") == replace(parent, seen_at=expected_seen_at)


async def test_concurrent_saves_of_the_same_turns_all_succeed(store: Store) -> None:
    update = SessionUpdate(session=make_session("s", 2), turns=make_turns("s", 0, 2))

    await asyncio.gather(*(store.sessions.save([update]) for _ in range(20)))

    assert await store.sessions.get_session("s") == make_session("s", 2)


async def test_concurrent_saves_of_many_sessions_are_all_stored(store: Store) -> None:
    names = [f"session {number}" for number in range(200)]

    await asyncio.gather(
        *(
            store.sessions.save([SessionUpdate(session=make_session(name, 2), turns=make_turns(name, 0, 2))])
            for name in names
        )
    )

    assert all(await asyncio.gather(*(store.sessions.get_session(name) for name in names)))


async def test_counts_are_stored_by_counter_and_the_last_one_counts(store: Store) -> None:
    first, second, third = message_hashes("s", 0, 3)

    await store.sessions.save_counts(AGENT, {first: b"7", second: b"\x00\xff"}, "o200k")
    await store.sessions.save_counts(AGENT, {first: b"8", third: b""}, "o200k")
    await store.sessions.save_counts(AGENT, {first: b"9"}, "claude")
    await store.sessions.save_counts(AGENT, {}, "claude")

    hashes = [first, second, third]
    assert await store.sessions.get_counts(AGENT, hashes, "o200k") == {
        first: b"8",
        second: b"\x00\xff",
        third: b"",
    }
    assert await store.sessions.get_counts(AGENT, hashes, "claude") == {first: b"9"}
    assert await store.sessions.get_counts("another agent", hashes, "claude") == {}


@pytest.mark.parametrize("name", ["a\0b", "half \ud83d"])
async def test_both_databases_reject_a_name_that_one_of_them_cannot_store(store: Store, name: str) -> None:
    with pytest.raises(BadOption, match="agent"):
        await store.sessions.find_turns(name, [hash_word(1)])
    with pytest.raises(BadOption, match="session_id"):
        await store.sessions.save([SessionUpdate(session=make_session(name, 1), turns=[])])


async def test_any_other_name_is_stored_unchanged(store: Store) -> None:
    names = ["", "  ", "two\nlines", "Zoë 你好 🙂", "'; DROP TABLE turns_v1; --", "100% ?", "\u202e"]
    for name in names:
        await store.sessions.save([SessionUpdate(session=make_session(name, 1), turns=make_turns(name, 0, 1))])

    for name in names:
        assert await store.sessions.get_session(name) == make_session(name, 1)


async def test_stored_data_is_available_when_the_store_is_reopened(database_url: str) -> None:
    async with await open_store(database_url) as first:
        await first.sessions.save([SessionUpdate(session=make_session("s", 2), turns=make_turns("s", 0, 2))])

    async with await open_store(database_url) as second:
        assert await second.sessions.get_session("s") == make_session("s", 2)
