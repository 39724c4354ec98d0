"""Traces with their charges, in pages, on both databases."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.session.traces import CacheMiss, TraceStore
from foveate.store import Store, open_store
from foveate.store.retention import delete_old_traces
from tests.support.stores.ledger_records import CALL, CHARGE, settle_one
from tests.support.stores.records import TRACE

DAY = 86_400.0


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


@pytest.fixture
def traces(store: Store) -> TraceStore:
    """The type checker verifies that the store implements the protocol."""
    return store.traces


async def test_a_trace_is_loaded_as_saved_with_its_charge(store: Store) -> None:
    await store.traces.save([TRACE, replace(TRACE, id="uncharged", cache_miss=None, tokens=None)])
    await store.traces.save([replace(TRACE, status=529)])
    await settle_one(store.ledger, CHARGE, accounts=list_accounts(CALL))

    traced = await store.traces.get(TRACE.id)
    assert traced is not None
    assert traced.trace == TRACE
    assert traced.charge is not None
    assert (traced.charge.cache, traced.charge.dollars) == (CHARGE.usage.cache, CHARGE.dollars)
    assert traced.charge.savings == CHARGE.savings
    uncharged = await store.traces.get("uncharged")
    assert uncharged is not None
    assert uncharged.charge is None
    assert await store.traces.get("call") is None


async def test_a_cache_miss_found_later_is_added_to_its_request(traces: TraceStore) -> None:
    cache_miss = CacheMiss(cause="a tool changed", where="tools[2]", lost_tokens=9)
    await traces.save([replace(TRACE, cache_miss=None)])
    await traces.save([], [(TRACE.id, cache_miss), ("never", cache_miss)])

    traced = await traces.get(TRACE.id)
    assert traced is not None
    assert traced.trace.cache_miss == cache_miss


async def test_traces_are_paged_newest_first_and_filtered(traces: TraceStore) -> None:
    times = [3.0, 1.0, 2.0, 2.0, 5.0]
    await traces.save([replace(TRACE, id=f"r{at}", at=seconds) for at, seconds in enumerate(times)])
    await traces.save([replace(TRACE, id="other", session_id="t", agent="bo", at=4.0)])

    async def ids(limit: int = 9, **conditions: Any) -> list[str]:
        return [traced.trace.id for traced in await traces.list_traces(limit=limit, **conditions)]

    assert await ids() == ["r4", "other", "r0", "r3", "r2", "r1"]
    assert await ids(limit=2) == ["r4", "other"]
    assert await ids(before=(2.0, "r3")) == ["r2", "r1"]
    assert await ids(since=2.0, until=4.0) == ["r0", "r3", "r2"]
    assert await ids(agent="bo") == await ids(session_id="t") == ["other"]
    assert await ids(session_id="never") == []


async def test_sessions_are_listed_by_their_last_request(traces: TraceStore) -> None:
    await traces.save([replace(TRACE, id=f"s{at}", at=float(at)) for at in range(3)])
    await traces.save([replace(TRACE, id="t", session_id="t", agent="bo", at=9.0)])

    sessions = await traces.list_sessions(limit=9)
    assert [
        (session.session_id, session.requests, session.first_at, session.last_at) for session in sessions
    ] == [
        ("t", 1, 9.0, 9.0),
        ("s", 3, 0.0, 2.0),
    ]
    assert [session.session_id for session in await traces.list_sessions(limit=1)] == ["t"]
    assert [session.session_id for session in await traces.list_sessions(limit=9, agent="ana")] == ["s"]


async def test_ids_are_found_by_prefix(traces: TraceStore) -> None:
    await traces.save(
        [replace(TRACE, id=id_, session_id=session_id) for id_, session_id in (("ab1", "s1"), ("b%", "ab3"))]
    )

    assert await traces.find_ids("ab", limit=9) == (["ab3"], ["ab1"])
    assert await traces.find_ids("%", limit=9) == ([], [])


async def test_unusual_names_and_long_reasons_lose_no_trace(traces: TraceStore) -> None:
    edit = replace(TRACE.edits[0], reason="\0\ud83d" + "x" * 9_999)
    await traces.save([replace(TRACE, session_id="\0", model="m" * 9_999, edits=(edit,))])

    traced = await traces.get(TRACE.id)
    assert traced is not None
    assert len(traced.trace.edits[0].reason) < 500


async def test_old_traces_are_deleted(store: Store) -> None:
    await store.traces.save([replace(TRACE, id=f"{day}", at=day * DAY) for day in (1, 9)])

    await store.prune(keep_days=5, now=10 * DAY)

    assert [traced.trace.id for traced in await store.traces.list_traces(limit=9)] == ["9"]


async def test_the_newest_of_very_many_traces_stay(store: Store) -> None:
    await store.traces.save([replace(TRACE, id=f"{at}", at=float(at)) for at in range(9)])

    await delete_old_traces(store._database, before=0.0, max_traces=4)

    assert [traced.trace.id for traced in await store.traces.list_traces(limit=9)] == ["8", "7", "6", "5"]


async def test_the_latest_cache_misses_are_found_by_time_and_by_agent(store: Store) -> None:
    cache_miss = CacheMiss(cause="expired", where="", lost_tokens=5, lost_dollars=None)
    agents = ("bob", "ana") * 3
    records = [
        replace(TRACE, id=f"r{at}", at=float(at), agent=miss, cache_miss=None) for at, miss in enumerate(agents)
    ]
    await store.traces.save(records, [(f"r{at}", cache_miss) for at in (1, 2, 4, 5)])

    misses = await store.find_latest_cache_misses(limit=3)
    assert [miss.request_id for miss in misses] == ["r5", "r4", "r2"]
    assert (misses[0].at, misses[0].agent, misses[0].session_id) == (5.0, "ana", "s")
    assert (misses[0].model, misses[0].cache_miss) == (TRACE.model, cache_miss)
    misses_of_bob = await store.find_latest_cache_misses(limit=9, since=2.5, agent="bob")
    assert [miss.request_id for miss in misses_of_bob] == ["r4"]
    assert await store.find_latest_cache_misses(limit=9, agent="nobody\0") == []
