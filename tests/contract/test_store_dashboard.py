"""Dashboard queries on both databases."""

from collections.abc import AsyncIterator
from dataclasses import replace as with_
from decimal import Decimal

import pytest
from msgspec.structs import replace

from foveate.compaction.store import CompactionOutcome
from foveate.session.rollups import SessionOrder
from foveate.session.store import SessionUpdate
from foveate.store import Store, open_store
from tests.support.stores.ledger_records import make_call, make_charge, settle_one
from tests.support.stores.records import (
    COMPACTED_MESSAGES,
    COMPACTION,
    FAILED_COMPACTION,
    TRACE,
    make_session,
    make_turns,
)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


async def test_window_samples_of_the_last_requests_are_in_order(store: Store) -> None:
    await store.traces.save(
        [
            replace(
                TRACE,
                id=f"r{number}",
                at=float(number),
                tokens=number,
                broke=TRACE.broke if number == 2 else None,
            )
            for number in range(5)
        ]
        + [replace(TRACE, id="other", session_id="t")]
    )
    found = await store.dashboard.window_samples("s", limit=3)

    assert [(one.id, one.tokens, one.is_cache_miss) for one in found] == [
        ("r2", 2, True),
        ("r3", 3, False),
        ("r4", 4, False),
    ]
    assert (found[0].window_tokens, found[0].compaction_id) == (TRACE.window_tokens, TRACE.fold_id)
    assert await store.dashboard.window_samples("nobody's", limit=3) == []
    assert await store.dashboard.count_requests("s") == 5
    assert await store.dashboard.count_requests("s", before=(3.0, "r3")) == 3


async def test_window_contents_are_read_without_edits(store: Store) -> None:
    await store.traces.save([TRACE, replace(TRACE, id="b", broke=None, sections=())])
    found = await store.dashboard.window_contents([TRACE.id, "b", "never"])

    assert set(found) == {TRACE.id, "b"}
    assert tuple(found[TRACE.id].sections) == TRACE.sections
    assert (found[TRACE.id].exact, found[TRACE.id].reserved_tokens) == (True, TRACE.reserved_tokens)
    assert found[TRACE.id].broke == TRACE.broke
    assert found["b"].broke is None
    assert await store.dashboard.window_contents([]) == {}


async def test_compactions_are_counted_for_many_sessions_at_once(store: Store) -> None:
    await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=None)
    await store.compactions.record(with_(COMPACTION, id="again"), (), lease=None)
    await store.compactions.record(
        with_(COMPACTION, id="unpriced", cost=None, outcome=CompactionOutcome.LOCK_HELD), (), lease=None
    )
    await store.compactions.record(FAILED_COMPACTION, (), lease=None)
    await store.compactions.record(
        with_(COMPACTION, id="cut", outcome=CompactionOutcome.TOOL_RESULT_TRUNCATED), (), lease=None
    )
    found = await store.dashboard.count_compactions(["s", "nobody's"])

    assert {id_: (one.succeeded, one.failed) for id_, one in found.items()} == {"s": (2, 1)}
    assert COMPACTION.cost is not None
    assert found["s"].dollars == 4 * COMPACTION.cost
    assert await store.dashboard.count_compactions([]) == {}


async def test_compacted_messages_are_read_at_both_ends_or_by_page(store: Store) -> None:
    messages = [b'{"number": %d}' % number for number in range(20)]
    first = with_(COMPACTION, id="first", messages=12)
    second = with_(COMPACTION, id="second", messages=20, earlier_id="first")
    await store.compactions.record(first, messages[:12], lease=None)
    await store.compactions.record(second, messages[12:], lease=None)
    found = await store.dashboard.compacted_ends(["first", "second", "never"], each=2)

    assert [turn.position for turn in found["first"].messages] == [0, 1, 10, 11]
    assert [turn.message for turn in found["second"].messages] == [messages[at] for at in (12, 13, 18, 19)]
    assert (found["first"].total, found["second"].total, found["never"].total) == (12, 8, 0)
    assert (
        found["first"].first_compaction_id,
        found["second"].first_compaction_id,
        found["never"].first_compaction_id,
    ) == (
        "first",
        "first",
        None,
    )
    assert (found["first"].is_superseded, found["second"].is_superseded) == (True, False)
    page = await store.dashboard.compacted_page("second", skip=3, limit=2)
    assert [turn.position for turn in page.messages] == [15, 16]
    assert await store.compactions.undo("second", now=1.0)
    assert not (await store.dashboard.compacted_ends(["first"], each=2))["first"].is_superseded


async def test_a_very_long_message_is_only_read_in_part(store: Store) -> None:
    long = b"\xff" + b"x" * 1_000_000
    await store.compactions.record(with_(COMPACTION, messages=2), [long, b"\0short"], lease=None)
    first, second = (await store.dashboard.compacted_ends([COMPACTION.id], each=3))[COMPACTION.id].messages

    assert (first.size_bytes, first.is_complete, first.message[:2]) == (len(long), False, b"\xffx")
    assert len(first.message) < 10_000
    assert (second.message, second.is_complete) == (b"\0short", True)


async def test_children_are_found_by_their_parent_session(store: Store) -> None:
    parent = make_session("parent", 3)
    await store.sessions.save([SessionUpdate(session=parent, turns=make_turns("parent", 0, 3))])
    for name in ("b", "a", "refused"):
        await store.sessions.save(
            [SessionUpdate(session=make_session(name, 4, parent=parent), turns=make_turns(name, 3, 4))]
        )
    await store.traces.save([replace(TRACE, id=name, session_id=name) for name in ("a", "b")])

    assert await store.session_tree.children("parent", limit=5) == ["a", "b"]
    assert await store.session_tree.children("parent", limit=1) == ["a"]
    assert await store.session_tree.children("a", limit=5) == []


async def test_costs_of_descendants_are_summed_for_each_session(store: Store) -> None:
    family = [("root", None), ("sub", "root"), ("deeper", "sub"), ("other", None)]
    circle = [("one", "two"), ("two", "one")]
    sessions = [replace(make_session(name, 1), parent_id=parent) for name, parent in family + circle]
    await store.sessions.save([SessionUpdate(session=one) for one in sessions])
    for name, _ in family + circle:
        await settle_one(store.ledger, make_charge(make_call(name, session_id=name), "0.25"), accounts=())

    found = await store.session_tree.descendants(["root", "sub", "other", "one"])

    assert {name: (one.sessions, one.dollars) for name, one in found.items()} == {
        "root": (2, Decimal("0.50")),
        "sub": (1, Decimal("0.25")),
        "one": (1, Decimal("0.25")),
    }


async def test_a_session_title_has_its_agent_its_folder_or_first_words_and_its_time(store: Store) -> None:
    told = [
        replace(make_session("in", 1), folder="/home/ana/garden", opening="Plant the beans"),
        replace(make_session("said", 1), opening="Plant the beans", parent_id="in"),
        make_session("plain", 1),
    ]
    await store.sessions.save([SessionUpdate(session=one) for one in told])

    found = await store.session_tree.labels(["in", "said", "plain", "nobody"])

    assert {name: one.title for name, one in found.items()} == {
        "in": "ana in garden, 1 Jan 00:01",
        "said": "ana: Plant the beans, 1 Jan 00:01",
        "plain": "ana, 1 Jan 00:01",
    }
    assert found["said"].parent_id == "in"


@pytest.mark.parametrize("order", list(SessionOrder))
async def test_sessions_are_paged_through_in_both_directions(store: Store, order: SessionOrder) -> None:
    await store.traces.save(
        [replace(TRACE, id=f"r{number}", session_id=f"s{number}", at=float(number % 4)) for number in range(10)]
    )
    every = await store.totals.list_sessions(limit=100, order=order)
    ids = [one.session_id for one in every]
    onward = await store.totals.list_sessions(limit=3, order=order, after=every[3])
    back = await store.totals.list_sessions(limit=3, order=order, before=every[4])

    assert len(set(ids)) == 10
    assert [one.session_id for one in onward] == ids[4:7]
    assert [one.session_id for one in back] == ids[1:4]
    assert await store.totals.list_sessions(limit=3, order=order, before=every[0]) == []
