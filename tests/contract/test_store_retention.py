"""Deletion of old data, and data that is never deleted, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_changes

from foveate.compaction.store import ApplicationChange, CompactionOutcome
from foveate.session.rollups import TotalsGroup
from foveate.session.store import Session, SessionUpdate
from foveate.store import PruneResult, Store, open_store
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.ledger_records import make_call, make_charge, settle_one
from tests.support.stores.records import (
    AGENT,
    COMPACTED_MESSAGES,
    COMPACTION,
    TRACE,
    compaction_ids,
    hash_word,
    make_compaction,
    make_session,
    make_turns,
    message_hashes,
)

DAY = 86_400.0


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


async def store_session(store: Store, session: Session) -> None:
    """Store a session with two counted turns and a compaction at its end."""
    turns = [
        with_changes(turn, session_id=session.id)
        for turn in make_turns(session.id, session.messages - 2, session.messages)
    ]
    await store.sessions.save([SessionUpdate(session=session, turns=turns)])
    await store.sessions.save_counts(AGENT, {turn.hash: b"1" for turn in turns}, "o200k")
    await store.compactions.record(
        make_compaction(
            f"fold of {session.id}",
            session_id=session.id,
            boundary=session.tip,
            at=session.seen_at,
        ),
        COMPACTED_MESSAGES,
        lease=None,
    )
    await store.compactions.record_application_changes(
        [
            ApplicationChange(
                compaction_id=f"fold of {session.id}",
                last_hash=session.tip,
                messages=session.messages,
                is_applied=True,
            )
        ]
    )


async def is_stored(store: Store, session: Session) -> bool:
    """Check that a session is stored completely or not at all, and return which."""
    hashes = message_hashes(session.id, session.messages - 2, session.messages)
    present = {
        await store.sessions.get_session(session.id) is not None,
        len(await store.sessions.find_turns(AGENT, hashes)) == 2,
        len(await store.sessions.get_counts(AGENT, hashes, "o200k")) == 2,
        compaction_ids(await store.compactions.find_compactions(AGENT, [session.tip]))
        == [f"fold of {session.id}"],
        await store.compactions.load_messages(f"fold of {session.id}") == list(COMPACTED_MESSAGES),
        len(await store.compactions.list_application_changes([f"fold of {session.id}"])) == 1,
    }
    absent = not await store.sessions.find_turns(AGENT, hashes) and not await store.sessions.get_counts(
        AGENT, hashes, "o200k"
    )
    assert present == {True} or (present == {False} and absent), "half a session is kept"
    return present == {True}


async def test_a_stale_session_is_deleted_with_everything_it_owns(
    store: Store,
) -> None:
    old, new = make_session("old", 2, seen_at=1 * DAY), make_session("new", 2, seen_at=9 * DAY)
    await store_session(store, old)
    await store_session(store, new)

    assert await store.prune(keep_days=5, now=10 * DAY) == PruneResult(sessions=1, turns=2, folds=1)

    assert not await is_stored(store, old)
    assert await is_stored(store, new)
    assert await store.prune(keep_days=5, now=10 * DAY) == PruneResult()


async def test_a_parent_is_kept_while_its_child_depends_on_its_compactions(
    store: Store,
) -> None:
    parent = make_session("parent", 2, seen_at=1 * DAY)
    child = make_session("child", 4, seen_at=2 * DAY, parent=parent)
    await store_session(store, parent)
    await store_session(store, child)
    await store.sessions.save([SessionUpdate(session=with_changes(child, seen_at=9 * DAY), turns=[])])

    assert await store.prune(keep_days=5, now=10 * DAY) == PruneResult()
    assert compaction_ids(await store.compactions.find_compactions(AGENT, [parent.tip])) == ["fold of parent"]

    assert (await store.prune(keep_days=5, now=15 * DAY)).sessions == 2
    assert await store.compactions.find_compactions(AGENT, [parent.tip]) == []


@pytest.mark.parametrize("outcome", [outcome for outcome in CompactionOutcome if outcome.changes_requests])
async def test_an_edit_is_kept_while_the_message_at_its_boundary_belongs_to_a_session_in_use(
    store: Store, outcome: CompactionOutcome
) -> None:
    old, new = make_session("old", 2, seen_at=1 * DAY), make_session("new", 2, seen_at=9 * DAY)
    await store_session(store, old)
    await store_session(store, new)
    edit = make_compaction("edit", session_id=old.id, boundary=new.tip, at=old.seen_at)
    await store.compactions.record(replace(edit, outcome=outcome), COMPACTED_MESSAGES, lease=None)

    assert await store.prune(keep_days=5, now=10 * DAY) == PruneResult(sessions=1, turns=2, folds=1)

    assert "edit" in compaction_ids(await store.compactions.find_compactions(AGENT, [new.tip]))


@pytest.mark.slow
@settings(max_examples=limit_examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(family=st.lists(st.tuples(st.none() | st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_pruning_never_breaks_what_a_session_in_use_depends_on(
    database_url: str, family: list[tuple[int | None, int]]
) -> None:
    """Each session has a parent among those before it, or None, and the day on which it was last seen."""

    async def check() -> None:
        async with await open_store(database_url) as store:
            sessions: list[Session] = []
            for number, (parent, _) in enumerate(family):
                parent_session = sessions[parent % len(sessions)] if parent is not None and sessions else None
                sessions.append(make_session(f"s{number}", 2, seen_at=0.0, parent=parent_session))
                await store_session(store, sessions[-1])
            days = [day for _, day in family]
            for session, day in zip(sessions, days, strict=True):
                await store.sessions.save(
                    [SessionUpdate(session=with_changes(session, seen_at=day * DAY), turns=[])]
                )

            pruned = await store.prune(keep_days=5, now=10 * DAY)

            in_use = {session.id for session, day in zip(sessions, days, strict=True) if day >= 5}
            for session in reversed(sessions):
                if session.id in in_use and session.parent_id:
                    in_use.add(session.parent_id)
            assert {session.id for session in sessions if await is_stored(store, session)} == in_use
            assert pruned.sessions == len(sessions) - len(in_use)
            await store.prune(keep_days=-1, now=10 * DAY)  # for the next example

    asyncio.run(check())


async def test_more_stale_sessions_than_one_batch_are_all_deleted(store: Store) -> None:
    sessions = [make_session(f"s{number}", 2, seen_at=1.0) for number in range(150)]
    await asyncio.gather(
        *(
            store.sessions.save([SessionUpdate(session=session, turns=make_turns(session.id, 0, 2))])
            for session in sessions
        )
    )

    assert await store.prune(keep_days=1, now=9 * DAY) == PruneResult(sessions=150, turns=300)


async def test_the_content_of_a_compaction_undone_long_ago_is_deleted(store: Store) -> None:
    for name in ("in force", "undone long ago", "undone now"):
        await store.compactions.record(make_compaction(name, at=9 * DAY), COMPACTED_MESSAGES, lease=None)
    await store.sessions.save(
        [SessionUpdate(session=make_session("s", 2, seen_at=9 * DAY), turns=make_turns("s", 0, 2))]
    )
    await store.compactions.undo("undone long ago", now=1 * DAY)
    await store.compactions.undo("undone now", now=9 * DAY)

    await store.prune(keep_days=5, now=10 * DAY)

    assert await store.compactions.load_messages("in force") == list(COMPACTED_MESSAGES)
    assert await store.compactions.load_messages("undone now") == list(COMPACTED_MESSAGES)
    assert await store.compactions.load_messages("undone long ago") == []
    compactions = {
        name: await store.compactions.get_compaction(name)
        for name in ("in force", "undone now", "undone long ago")
    }
    assert {
        name: compaction and (compaction.summary, compaction.carried)
        for name, compaction in compactions.items()
    } == {
        "in force": (COMPACTION.summary, COMPACTION.carried),
        "undone now": (COMPACTION.summary, COMPACTION.carried),
        "undone long ago": ("", ()),
    }


async def test_the_messages_of_an_undone_compaction_stay_while_a_later_one_needs_them(store: Store) -> None:
    await store.sessions.save(
        [SessionUpdate(session=make_session("s", 2, seen_at=9 * DAY), turns=make_turns("s", 0, 2))]
    )
    await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=None)
    await store.compactions.record(
        replace(make_compaction("second"), messages=5, earlier_id=COMPACTION.id), (b"5",), lease=None
    )
    await store.compactions.record(
        replace(make_compaction("third"), messages=6, earlier_id="second"), (b"6",), lease=None
    )
    for compaction_id in (COMPACTION.id, "second"):
        await store.compactions.undo(compaction_id, now=1 * DAY)

    await store.prune(keep_days=5, now=10 * DAY)
    assert await store.compactions.load_messages("third") == [*COMPACTED_MESSAGES, b"5", b"6"]
    assert {compaction.summary for compaction in await store.compactions.list_compactions()} == {
        COMPACTION.summary
    }

    await store.compactions.undo("third", now=2 * DAY)
    await store.prune(keep_days=5, now=10 * DAY)
    assert await store.compactions.load_messages("third") == []


async def test_a_session_that_is_being_compacted_is_kept(store: Store) -> None:
    await store_session(store, make_session("s", 2, seen_at=1 * DAY))
    lease = await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=10 * DAY)

    assert await store.prune(keep_days=5, now=10 * DAY + 299) == PruneResult()
    assert lease
    assert await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
    await store.compactions.release_lease(lease)
    assert (await store.prune(keep_days=5, now=10 * DAY + 299)).sessions == 1


async def test_an_expired_lease_keeps_compactions_without_a_session_for_the_retention_period(
    store: Store,
) -> None:
    """So that a late holder finds no other lease with the same fence."""
    await store.compactions.record(
        make_compaction("f", session_id="x", at=1 * DAY), COMPACTED_MESSAGES, lease=None
    )
    assert await store.compactions.acquire_lease("x", "me", ttl_seconds=300, now=8 * DAY)

    assert await store.prune(keep_days=5, now=10 * DAY) == PruneResult()
    assert await store.prune(keep_days=5, now=14 * DAY) == PruneResult(folds=1)


async def test_a_lost_lease_stays_lost_if_its_session_is_deleted_meanwhile(store: Store) -> None:
    await store_session(store, make_session("s", 2, seen_at=1 * DAY))
    old = await store.compactions.acquire_lease("s", "late", ttl_seconds=300, now=1 * DAY)
    assert old
    await store.prune(keep_days=5, now=10 * DAY)
    new = await store.compactions.acquire_lease("s", "new", ttl_seconds=300, now=10 * DAY)

    assert new
    assert not await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=old)
    await store.compactions.release_lease(old)
    assert await store.compactions.acquire_lease("s", "third", ttl_seconds=300, now=10 * DAY) is None


@pytest.mark.parametrize("agents", [1, 3])
async def test_counts_of_turns_that_are_not_stored_are_deleted(store: Store, agents: int) -> None:
    session = make_session("kept", 2, seen_at=9 * DAY)
    await store_session(store, session)
    strays = message_hashes("never kept", 0, 1_500)
    for number in range(agents):
        await store.sessions.save_counts(
            f"{AGENT}{number}" if number else AGENT, dict.fromkeys(strays, b"1"), "a"
        )
    await store.sessions.save_counts(AGENT, dict.fromkeys(strays[:20], b"1"), "b")

    await store.prune(keep_days=5, now=10 * DAY)

    for number in range(agents):
        assert await store.sessions.get_counts(f"{AGENT}{number}" if number else AGENT, strays, "a") == {}
    assert await store.sessions.get_counts(AGENT, strays, "b") == {}
    assert await is_stored(store, session)


async def test_compactions_of_sessions_that_were_never_stored_are_deleted_by_their_own_age(
    store: Store,
) -> None:
    await store.compactions.record(
        make_compaction("old", session_id="x", at=1 * DAY), COMPACTED_MESSAGES, lease=None
    )
    await store.compactions.record(
        make_compaction("new", session_id="y", at=9 * DAY), COMPACTED_MESSAGES, lease=None
    )

    assert await store.prune(keep_days=5, now=10 * DAY) == PruneResult(folds=1)

    assert compaction_ids(await store.compactions.list_compactions()) == ["new"]
    assert await store.compactions.load_messages("old") == []


def file_bytes(database_url: str) -> int:
    return Path(database_url.removeprefix("sqlite:///")).stat().st_size


async def test_a_vacuum_reclaims_space_and_loses_nothing(store: Store, database_url: str) -> None:
    session = make_session("kept", 2, seen_at=9 * DAY)
    await store_session(store, session)
    await store.sessions.save(
        [SessionUpdate(session=make_session("old", 2, seen_at=1 * DAY), turns=make_turns("old", 0, 2))]
    )
    await store.compactions.record(
        make_compaction("large", session_id="old", boundary=hash_word("old")), [bytes(100_000)] * 20, lease=None
    )
    await store.prune(keep_days=5, now=10 * DAY)

    await store.vacuum()

    assert await is_stored(store, session)
    if database_url.startswith("sqlite"):
        assert file_bytes(database_url) < 260_000


async def test_session_totals_are_deleted_with_the_session_and_hourly_totals_stay(store: Store) -> None:
    old, new, parent = (
        make_session(name, 2, seen_at=day * DAY) for name, day in (("o", 1), ("n", 9), ("p", 1))
    )
    for session in (old, new, parent, make_session("child", 4, seen_at=9 * DAY, parent=parent)):
        await store_session(store, session)
    days = {"o": 1, "n": 1, "p": 1, "charged long ago": 1, "charged now": 9}
    for name, day in days.items():
        call = make_call(f"call of {name}", session_id=name, at=day * DAY)
        await settle_one(store.ledger, make_charge(call, 1), accounts=())
    await store.traces.save([with_changes(TRACE, id="r", session_id="traced long ago", at=1 * DAY)])
    # Kept alive since it was last seen.
    await settle_one(store.ledger, make_charge(make_call("late", session_id="o", at=6 * DAY), 1), accounts=())
    before = await store.totals.sum_totals([TotalsGroup.HOUR])

    async def list_session_ids() -> set[str]:
        return {session.session_id for session in await store.totals.list_sessions(limit=99)}

    await store.prune(keep_days=5, now=10 * DAY)
    assert await list_session_ids() == {"o", "n", "p", "charged now"}
    await store.prune(keep_days=5, now=12 * DAY)
    assert await list_session_ids() == {"n", "p", "charged now"}
    assert await store.totals.sum_totals([TotalsGroup.HOUR]) == before
    assert sum(totals.calls for _, totals in before) == 6


async def test_totals_of_very_many_sessions_are_all_deleted(store: Store) -> None:
    await store.traces.save([with_changes(TRACE, id=f"{n}", session_id=f"s{n}", at=1.0) for n in range(600)])

    await store.prune(keep_days=1, now=9 * DAY)

    assert await store.totals.count_sessions() == 0
