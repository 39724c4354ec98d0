"""Sessions keep what they depend on, whichever session stored it first, on both databases."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from foveate.model import Format
from foveate.session.client_names import derive_named_session_id
from foveate.session.matching import ObservedConversation, SessionMatch, SessionMatcher
from foveate.session.store import SessionUpdate
from foveate.store import PruneResult, Store, open_store
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.memory_session_store import words
from tests.support.stores.records import AGENT, COMPACTED_MESSAGES, COMPACTION, compaction_ids, make_compaction

DAY = 86_400.0


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


async def store_conversation(store: Store, letters: str, *, day: float, name: str | None) -> SessionMatch:
    conversation = ObservedConversation(
        agent=AGENT,
        caller="caller",
        format=Format.ANTHROPIC,
        chain=words(*letters),
        messages=[make_message(at) for at in range(len(letters))],
        compute_prompt_digest=lambda: b"",
        named_session_id=derive_named_session_id(AGENT, name) if name is not None else None,
    )
    match = await SessionMatcher(store.sessions).find(conversation, now=day * DAY)
    await store.sessions.save([SessionUpdate(session=match.session, turns=match.turns)])
    return match


def make_message(at: int) -> bytes:
    return json.dumps({"role": ("user", "assistant")[at % 2], "content": "word"}).encode()


async def record_compaction(
    store: Store, match: SessionMatch, letters: str, *, day: float, earlier: str | None = None
) -> str:
    """Record a compaction of all messages in a session, and return its id."""
    compaction = replace(
        COMPACTION,
        id=f"{match.session.id} {letters}",
        session_id=match.session.id,
        boundary=words(*letters).hashes[-1],
        messages=len(letters),
        compacted_at=day * DAY,
        earlier_id=earlier,
    )
    assert await store.compactions.record(
        compaction, [b"message"] * (len(letters) - (4 if earlier else 0)), lease=None
    )
    return compaction.id


async def count_known_turns(store: Store, letters: str) -> int:
    return len(await store.sessions.find_turns(AGENT, words(*letters).hashes))


async def test_a_conversation_continued_in_another_session_keeps_its_start_and_its_compactions(
    store: Store,
) -> None:
    first = await store_conversation(store, "abcd", day=1, name="first")
    compaction_id = await record_compaction(store, first, "abcd", day=1)
    await store_conversation(store, "abcdef", day=2, name="second")
    await store_conversation(store, "abcdefgh", day=30, name="second")

    assert await store.prune(keep_days=10, now=31 * DAY) == PruneResult()

    assert compaction_ids(await store.compactions.find_compactions(AGENT, words(*"abcd").hashes)) == [
        compaction_id
    ]
    assert await count_known_turns(store, "abcdefgh") == 8
    assert await store.prune(keep_days=10, now=41 * DAY) == PruneResult(sessions=2, turns=8, folds=1)


async def test_a_session_with_turns_of_several_others_keeps_them_all(store: Store) -> None:
    for letters, name in (("ab", "one"), ("xy", "two"), ("pq", "three")):
        await store_conversation(store, letters, day=1, name=name)
    await store_conversation(store, "m", day=1, name="mine")
    for letters in ("abc", "xyz", "pq"):  # the last of them verbatim
        await store_conversation(store, letters, day=2, name="mine")
    await store_conversation(store, "mn", day=30, name="mine")

    assert await store.prune(keep_days=10, now=31 * DAY) == PruneResult()

    for letters in ("abc", "xyz", "pq", "mn"):
        assert await count_known_turns(store, letters) == len(letters)
    assert (await store.prune(keep_days=10, now=41 * DAY)).sessions == 4


async def test_two_sessions_that_depend_on_each_other_are_deleted_together(store: Store) -> None:
    await store_conversation(store, "ab", day=1, name="one")
    await store_conversation(store, "abcd", day=1, name="two")
    await store_conversation(store, "abcdef", day=20, name="one")

    assert await store.prune(keep_days=10, now=25 * DAY) == PruneResult()
    assert await store.prune(keep_days=10, now=31 * DAY) == PruneResult(sessions=2, turns=6)


async def test_a_compaction_stays_while_others_continue_from_its_boundary(store: Store) -> None:
    await store_conversation(store, "abcd", day=1, name=None)
    fork = await store_conversation(store, "abcx", day=1, name=None)
    compaction_id = await record_compaction(store, fork, "abc", day=1)
    own_id = await record_compaction(store, fork, "abcx", day=1)
    await store_conversation(store, "abcde", day=30, name=None)

    assert await store.prune(keep_days=10, now=31 * DAY) == PruneResult(sessions=1, turns=1, folds=1)

    assert compaction_ids(await store.compactions.find_compactions(AGENT, words(*"abc").hashes)) == [
        compaction_id
    ]
    assert len(await store.compactions.load_messages(compaction_id)) == 3
    assert await store.compactions.get_compaction(own_id) is None
    assert await store.prune(keep_days=10, now=41 * DAY) == PruneResult(sessions=1, turns=5, folds=1)


async def test_a_compaction_keeps_the_earlier_ones_it_builds_on_in_any_session(store: Store) -> None:
    """Even if none of their turns are stored."""
    await store.compactions.record(
        make_compaction("first", session_id="x", at=1 * DAY), COMPACTED_MESSAGES, lease=None
    )
    later = replace(make_compaction("later", session_id="y", at=20 * DAY), messages=6, earlier_id="first")
    await store.compactions.record(later, (b"5", b"6"), lease=None)

    assert await store.prune(keep_days=10, now=25 * DAY) == PruneResult()
    assert await store.compactions.load_messages("later") == [*COMPACTED_MESSAGES, b"5", b"6"]
    assert await store.prune(keep_days=10, now=31 * DAY) == PruneResult(folds=2)


NAMES = st.none() | st.sampled_from(["one", "two", "three"])
WORDS = st.text("ab", min_size=1, max_size=5)
REQUESTS = st.lists(st.tuples(NAMES, WORDS, st.booleans()), max_size=9)


@pytest.mark.slow
@settings(max_examples=limit_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=REQUESTS)
@example(requests=[("one", "a", True), ("two", "ab", True), ("three", "b", False), ("two", "b", False)])
def test_a_session_in_use_always_keeps_all_its_turns(
    database_url: str, requests: list[tuple[str | None, str, bool]]
) -> None:
    """One request a day, with or without a session name, some of which compact all their messages."""

    async def check() -> None:
        async with await open_store(database_url) as store:
            last_day: dict[str, int] = {}
            stored: list[tuple[str, str, str | None]] = []
            for day, (name, letters, is_compacted) in enumerate(requests):
                match = await store_conversation(store, letters, day=day, name=name)
                last_day[match.session.id] = day
                compaction_id = (
                    await record_compaction(store, match, letters, day=day) if is_compacted else None
                )
                stored.append((match.session.id, letters, compaction_id))

            await store.prune(keep_days=3, now=len(requests) * DAY)

            for session_id, letters, compaction_id in stored:
                if last_day[session_id] >= len(requests) - 3:
                    assert await count_known_turns(store, letters) == len(letters)
                    assert await store.sessions.get_session(session_id)
                    assert compaction_id is None or await store.compactions.get_compaction(compaction_id)
            await store.prune(keep_days=1, now=100 * DAY)
            sizes = await store.sizes()
            assert (sizes.sessions, sizes.turns, sizes.folds, sizes.folded) == (0, 0, 0, 0)

    asyncio.run(check())
