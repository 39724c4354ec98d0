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
                cache_miss=TRACE.cache_miss if number == 2 else None,
            )
            for number in range(5)
        ]
        + [replace(TRACE, id="other", session_id="t")]
    )
    samples = await store.dashboard.window_samples("s", limit=3)

    assert [(sample.id, sample.tokens, sample.is_cache_miss) for sample in samples] == [
        ("r2", 2, True),
        ("r3", 3, False),
        ("r4", 4, False),
    ]
    assert (samples[0].window_tokens, samples[0].compaction_id) == (TRACE.window_tokens, TRACE.compaction_id)
    assert await store.dashboard.window_samples("nobody's", limit=3) == []
    assert await store.dashboard.count_requests("s") == 5
    assert await store.dashboard.count_requests("s", before=(3.0, "r3")) == 3


async def test_window_contents_are_read_without_edits(store: Store) -> None:
    await store.traces.save([TRACE, replace(TRACE, id="b", cache_miss=None, sections=())])
    contents = await store.dashboard.window_contents([TRACE.id, "b", "never"])

    assert set(contents) == {TRACE.id, "b"}
    assert tuple(contents[TRACE.id].sections) == TRACE.sections
    assert (contents[TRACE.id].exact, contents[TRACE.id].reserved_tokens) == (True, TRACE.reserved_tokens)
    assert contents[TRACE.id].cache_miss == TRACE.cache_miss
    assert contents["b"].cache_miss is None
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
    counts = await store.dashboard.count_compactions(["s", "nobody's"])

    assert {id_: (count.succeeded, count.failed) for id_, count in counts.items()} == {"s": (2, 1)}
    assert COMPACTION.cost is not None
    assert counts["s"].dollars == 4 * COMPACTION.cost
    assert await store.dashboard.count_compactions([]) == {}


async def test_compacted_messages_are_read_at_both_ends_or_by_page(store: Store) -> None:
    messages = [b'{"number": %d}' % number for number in range(20)]
    first = with_(COMPACTION, id="first", messages=12)
    second = with_(COMPACTION, id="second", messages=20, earlier_id="first")
    await store.compactions.record(first, messages[:12], lease=None)
    await store.compactions.record(second, messages[12:], lease=None)
    ends = await store.dashboard.compacted_ends(["first", "second", "never"], per_end=2)

    assert [message.position for message in ends["first"].messages] == [0, 1, 10, 11]
    assert [message.message for message in ends["second"].messages] == [messages[at] for at in (12, 13, 18, 19)]
    assert (ends["first"].total, ends["second"].total, ends["never"].total) == (12, 8, 0)
    assert (
        ends["first"].first_compaction_id,
        ends["second"].first_compaction_id,
        ends["never"].first_compaction_id,
    ) == (
        "first",
        "first",
        None,
    )
    assert (ends["first"].is_superseded, ends["second"].is_superseded) == (True, False)
    page = await store.dashboard.compacted_page("second", skip=3, limit=2)
    assert [message.position for message in page.messages] == [15, 16]
    assert await store.compactions.undo("second", now=1.0)
    assert not (await store.dashboard.compacted_ends(["first"], per_end=2))["first"].is_superseded


async def test_a_very_long_message_is_only_read_in_part(store: Store) -> None:
    long_message = b"\xff" + b"x" * 1_000_000
    await store.compactions.record(with_(COMPACTION, messages=2), [long_message, b"\0short"], lease=None)
    first, second = (await store.dashboard.compacted_ends([COMPACTION.id], per_end=3))[COMPACTION.id].messages

    assert (first.size_bytes, first.is_complete, first.message[:2]) == (len(long_message), False, b"\xffx")
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
    await store.sessions.save([SessionUpdate(session=session) for session in sessions])
    for name, _ in family + circle:
        await settle_one(store.ledger, make_charge(make_call(name, session_id=name), "0.25"), accounts=())

    costs = await store.session_tree.descendants(["root", "sub", "other", "one"])

    assert {name: (session.sessions, session.dollars) for name, session in costs.items()} == {
        "root": (2, Decimal("0.50")),
        "sub": (1, Decimal("0.25")),
        "one": (1, Decimal("0.25")),
    }


async def test_a_session_title_has_its_agent_its_folder_or_first_words_and_its_time(store: Store) -> None:
    sessions = [
        replace(make_session("in", 1), folder="/home/ana/garden", opening="Plant the beans"),
        replace(make_session("said", 1), opening="Plant the beans", parent_id="in"),
        make_session("plain", 1),
    ]
    await store.sessions.save([SessionUpdate(session=item) for item in sessions])

    labels = await store.session_tree.labels(["in", "said", "plain", "nobody"])

    assert {name: item.title for name, item in labels.items()} == {
        "in": "ana in garden, 1 Jan 00:01",
        "said": "ana: Plant the beans, 1 Jan 00:01",
        "plain": "ana, 1 Jan 00:01",
    }
    assert labels["said"].parent_id == "in"


@pytest.mark.parametrize("order", list(SessionOrder))
async def test_sessions_are_paged_through_in_both_directions(store: Store, order: SessionOrder) -> None:
    await store.traces.save(
        [replace(TRACE, id=f"r{number}", session_id=f"s{number}", at=float(number % 4)) for number in range(10)]
    )
    all_sessions = await store.totals.list_sessions(limit=100, order=order)
    ids = [session.session_id for session in all_sessions]
    next_page = await store.totals.list_sessions(limit=3, order=order, after=all_sessions[3])
    previous_page = await store.totals.list_sessions(limit=3, order=order, before=all_sessions[4])

    assert len(set(ids)) == 10
    assert [session.session_id for session in next_page] == ids[4:7]
    assert [session.session_id for session in previous_page] == ids[1:4]
    assert await store.totals.list_sessions(limit=3, order=order, before=all_sessions[0]) == []
