"""The same of both databases: what is forgotten after a time, and what never is."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_changes

from foveate.fold.journal import Use
from foveate.session.totals import Per
from foveate.session.turns import Move, Session
from foveate.store import Forgotten, Store, open_store
from tests.billed import call, entry, settle_one
from tests.kept import AGENT, FOLD, FOLDED, TRACE, fold, hashed, hashes, ids, session, turns
from tests.support.examples import limit_examples

DAY = 86_400.0


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


async def keep(store: Store, kept: Session) -> None:
    """A session of two turns of its own, counted, with a fold at its tip."""
    own = [with_changes(turn, session_id=kept.id) for turn in turns(kept.id, kept.messages - 2, kept.messages)]
    await store.turns.keep([Move(session=kept, turns=own)])
    await store.turns.keep_counts(AGENT, {turn.hash: b"1" for turn in own}, "o200k")
    await store.journal.record(
        fold(f"fold of {kept.id}", session_id=kept.id, boundary=kept.tip, at=kept.seen_at), FOLDED, lease=None
    )
    await store.journal.used(
        [Use(fold_id=f"fold of {kept.id}", tip=kept.tip, messages=kept.messages, is_used=True)]
    )


async def is_whole(store: Store, kept: Session) -> bool:
    """Whether all of a session is there; anything between all and nothing fails."""
    own = hashes(kept.id, kept.messages - 2, kept.messages)
    there = {
        await store.turns.session(kept.id) is not None,
        len(await store.turns.known(AGENT, own)) == 2,
        len(await store.turns.counts(AGENT, own, "o200k")) == 2,
        ids(await store.journal.folds(AGENT, [kept.tip])) == [f"fold of {kept.id}"],
        await store.journal.folded(f"fold of {kept.id}") == list(FOLDED),
        len(await store.journal.uses([f"fold of {kept.id}"])) == 1,
    }
    gone = not await store.turns.known(AGENT, own) and not await store.turns.counts(AGENT, own, "o200k")
    assert there == {True} or (there == {False} and gone), "half a session is kept"
    return there == {True}


async def test_a_session_that_was_not_seen_for_so_long_is_forgotten_with_all_that_is_its_own(
    store: Store,
) -> None:
    old, new = session("old", 2, seen_at=1 * DAY), session("new", 2, seen_at=9 * DAY)
    await keep(store, old)
    await keep(store, new)

    assert await store.forget(keep_days=5, now=10 * DAY) == Forgotten(sessions=1, turns=2, folds=1)

    assert not await is_whole(store, old)
    assert await is_whole(store, new)
    assert await store.forget(keep_days=5, now=10 * DAY) == Forgotten()


async def test_a_parent_is_kept_as_long_as_its_child_since_the_child_stands_on_its_folds(
    store: Store,
) -> None:
    parent = session("parent", 2, seen_at=1 * DAY)
    child = session("child", 4, seen_at=2 * DAY, parent=parent)
    await keep(store, parent)
    await keep(store, child)
    await store.turns.keep([Move(session=with_changes(child, seen_at=9 * DAY), turns=[])])

    assert await store.forget(keep_days=5, now=10 * DAY) == Forgotten()
    assert ids(await store.journal.folds(AGENT, [parent.tip])) == ["fold of parent"]

    assert (await store.forget(keep_days=5, now=15 * DAY)).sessions == 2
    assert await store.journal.folds(AGENT, [parent.tip]) == []


@pytest.mark.slow
@settings(max_examples=limit_examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(family=st.lists(st.tuples(st.none() | st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_whatever_is_forgotten_a_session_in_use_stands_on_whole_ones(
    database_url: str, family: list[tuple[int | None, int]]
) -> None:
    """Each is a parent among those before it, or None, and the day on which it was last seen."""

    async def check() -> None:
        async with await open_store(database_url) as store:
            made: list[Session] = []
            for number, (parent, _) in enumerate(family):
                above = made[parent % len(made)] if parent is not None and made else None
                made.append(session(f"s{number}", 2, seen_at=0.0, parent=above))
                await keep(store, made[-1])
            days = [day for _, day in family]
            for one, day in zip(made, days, strict=True):
                await store.turns.keep([Move(session=with_changes(one, seen_at=day * DAY), turns=[])])

            forgotten = await store.forget(keep_days=5, now=10 * DAY)

            in_use = {one.id for one, day in zip(made, days, strict=True) if day >= 5}
            for one in reversed(made):
                if one.id in in_use and one.parent_id:
                    in_use.add(one.parent_id)
            assert {one.id for one in made if await is_whole(store, one)} == in_use
            assert forgotten.sessions == len(made) - len(in_use)
            await store.forget(keep_days=-1, now=10 * DAY)  # for the next example

    asyncio.run(check())


async def test_more_sessions_than_go_in_one_transaction_are_all_forgotten(store: Store) -> None:
    many = [session(f"s{number}", 2, seen_at=1.0) for number in range(150)]
    await asyncio.gather(*(store.turns.keep([Move(session=one, turns=turns(one.id, 0, 2))]) for one in many))

    assert await store.forget(keep_days=1, now=9 * DAY) == Forgotten(sessions=150, turns=300)


async def test_the_words_of_a_fold_that_was_undone_so_long_ago_are_forgotten(store: Store) -> None:
    for name in ("in force", "undone long ago", "undone now"):
        await store.journal.record(fold(name, at=9 * DAY), FOLDED, lease=None)
    await store.turns.keep([Move(session=session("s", 2, seen_at=9 * DAY), turns=turns("s", 0, 2))])
    await store.journal.undo("undone long ago", now=1 * DAY)
    await store.journal.undo("undone now", now=9 * DAY)

    await store.forget(keep_days=5, now=10 * DAY)

    assert await store.journal.folded("in force") == list(FOLDED)
    assert await store.journal.folded("undone now") == list(FOLDED)
    assert await store.journal.folded("undone long ago") == []
    told = {name: await store.journal.fold(name) for name in ("in force", "undone now", "undone long ago")}
    assert {name: one and (one.summary, one.carried) for name, one in told.items()} == {
        "in force": (FOLD.summary, FOLD.carried),
        "undone now": (FOLD.summary, FOLD.carried),
        "undone long ago": ("", ()),
    }


async def test_the_messages_of_an_undone_fold_stay_as_long_as_a_later_one_needs_them(store: Store) -> None:
    await store.turns.keep([Move(session=session("s", 2, seen_at=9 * DAY), turns=turns("s", 0, 2))])
    await store.journal.record(FOLD, FOLDED, lease=None)
    await store.journal.record(replace(fold("second"), messages=5, earlier_id=FOLD.id), (b"5",), lease=None)
    await store.journal.record(replace(fold("third"), messages=6, earlier_id="second"), (b"6",), lease=None)
    for undone in (FOLD.id, "second"):
        await store.journal.undo(undone, now=1 * DAY)

    await store.forget(keep_days=5, now=10 * DAY)
    assert await store.journal.folded("third") == [*FOLDED, b"5", b"6"]
    assert {one.summary for one in await store.journal.listed()} == {FOLD.summary}

    await store.journal.undo("third", now=2 * DAY)
    await store.forget(keep_days=5, now=10 * DAY)
    assert await store.journal.folded("third") == []


async def test_a_session_that_somebody_is_folding_is_kept(store: Store) -> None:
    await keep(store, session("s", 2, seen_at=1 * DAY))
    lease = await store.journal.lease("s", "me", ttl_seconds=300, now=10 * DAY)

    assert await store.forget(keep_days=5, now=10 * DAY + 299) == Forgotten()
    assert lease
    assert await store.journal.record(FOLD, FOLDED, lease=lease)
    await store.journal.release(lease)
    assert (await store.forget(keep_days=5, now=10 * DAY + 299)).sessions == 1


async def test_a_lease_that_has_run_out_keeps_folds_of_no_session_as_long_as_other_things(
    store: Store,
) -> None:
    """So that whoever was late with it finds no other lease of the same number."""
    await store.journal.record(fold("f", session_id="x", at=1 * DAY), FOLDED, lease=None)
    assert await store.journal.lease("x", "me", ttl_seconds=300, now=8 * DAY)

    assert await store.forget(keep_days=5, now=10 * DAY) == Forgotten()
    assert await store.forget(keep_days=5, now=14 * DAY) == Forgotten(folds=1)


async def test_a_late_one_is_still_late_when_its_session_was_forgotten_meanwhile(store: Store) -> None:
    await keep(store, session("s", 2, seen_at=1 * DAY))
    late = await store.journal.lease("s", "late", ttl_seconds=300, now=1 * DAY)
    assert late
    await store.forget(keep_days=5, now=10 * DAY)
    new = await store.journal.lease("s", "new", ttl_seconds=300, now=10 * DAY)

    assert new
    assert not await store.journal.record(FOLD, FOLDED, lease=late)
    await store.journal.release(late)
    assert await store.journal.lease("s", "third", ttl_seconds=300, now=10 * DAY) is None


@pytest.mark.parametrize("agents", [1, 3])
async def test_counts_of_turns_that_are_not_kept_are_forgotten(store: Store, agents: int) -> None:
    kept = session("kept", 2, seen_at=9 * DAY)
    await keep(store, kept)
    strays = hashes("never kept", 0, 1_500)
    for number in range(agents):
        await store.turns.keep_counts(f"{AGENT}{number}" if number else AGENT, dict.fromkeys(strays, b"1"), "a")
    await store.turns.keep_counts(AGENT, dict.fromkeys(strays[:20], b"1"), "b")

    await store.forget(keep_days=5, now=10 * DAY)

    for number in range(agents):
        assert await store.turns.counts(f"{AGENT}{number}" if number else AGENT, strays, "a") == {}
    assert await store.turns.counts(AGENT, strays, "b") == {}
    assert await is_whole(store, kept)


async def test_folds_of_sessions_that_were_never_kept_are_forgotten_by_their_own_time(store: Store) -> None:
    await store.journal.record(fold("old", session_id="x", at=1 * DAY), FOLDED, lease=None)
    await store.journal.record(fold("new", session_id="y", at=9 * DAY), FOLDED, lease=None)

    assert await store.forget(keep_days=5, now=10 * DAY) == Forgotten(folds=1)

    assert ids(await store.journal.listed()) == ["new"]
    assert await store.journal.folded("old") == []


def file_bytes(database_url: str) -> int:
    return Path(database_url.removeprefix("sqlite:///")).stat().st_size


async def test_a_vacuum_gives_room_back_and_loses_nothing(store: Store, database_url: str) -> None:
    kept = session("kept", 2, seen_at=9 * DAY)
    await keep(store, kept)
    await store.turns.keep([Move(session=session("old", 2, seen_at=1 * DAY), turns=turns("old", 0, 2))])
    await store.journal.record(
        fold("large", session_id="old", boundary=hashed("old")), [bytes(100_000)] * 20, lease=None
    )
    await store.forget(keep_days=5, now=10 * DAY)

    await store.vacuum()

    assert await is_whole(store, kept)
    if database_url.startswith("sqlite"):
        assert file_bytes(database_url) < 260_000


async def test_what_a_session_adds_up_to_goes_with_it_and_its_hours_stay(store: Store) -> None:
    old, new, parent = (session(name, 2, seen_at=day * DAY) for name, day in (("o", 1), ("n", 9), ("p", 1)))
    for kept in (old, new, parent, session("child", 4, seen_at=9 * DAY, parent=parent)):
        await keep(store, kept)
    at = {"o": 1, "n": 1, "p": 1, "billed long ago": 1, "billed now": 9}
    for name, day in at.items():
        of = call(f"call of {name}", session_id=name, at=day * DAY)
        await settle_one(store.ledger, entry(of, 1), accounts=())
    await store.traces.keep([with_changes(TRACE, id="r", session_id="traced long ago", at=1 * DAY)])
    # Pinged since it was seen.
    await settle_one(store.ledger, entry(call("late", session_id="o", at=6 * DAY), 1), accounts=())
    before = await store.totals.totals([Per.HOUR])

    async def left() -> set[str]:
        return {one.session_id for one in await store.totals.sessions(limit=99)}

    await store.forget(keep_days=5, now=10 * DAY)
    assert await left() == {"o", "n", "p", "billed now"}
    await store.forget(keep_days=5, now=12 * DAY)
    assert await left() == {"n", "p", "billed now"}
    assert await store.totals.totals([Per.HOUR]) == before
    assert sum(totals.calls for _, totals in before) == 6


async def test_what_very_many_sessions_add_up_to_is_all_forgotten(store: Store) -> None:
    await store.traces.keep([with_changes(TRACE, id=f"{n}", session_id=f"s{n}", at=1.0) for n in range(600)])

    await store.forget(keep_days=1, now=9 * DAY)

    assert await store.totals.count() == 0
