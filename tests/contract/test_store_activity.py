"""How agents work, derived from their sessions and charges, on both databases."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace as with_changes

from foveate.compaction.forecast import ActivityStore, AgentActivity
from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category
from foveate.model import CacheUsage
from foveate.prompt_cache.placement.arrival_times import NO_GAPS
from foveate.store import Store, open_store
from tests.support.stores.ledger_records import NOON, make_call, make_charge, settle_one
from tests.support.stores.records import TRACE


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


@pytest.fixture
def activity(store: Store) -> ActivityStore:
    """The type checker verifies that the store implements the protocol."""
    return store.activity


async def record_call(
    store: Store,
    id_: str,
    at: float,
    tokens: int,
    *,
    agent: str = "ana",
    session_id: str = "s",
    category: Category = Category.MAIN,
    status: int = 200,
) -> None:
    call = with_changes(make_call(id_, agent=agent, session_id=session_id, at=at), category=category)
    usage = with_changes(make_charge(call, 1).usage, cache=CacheUsage(uncached=100, read=tokens - 100))
    charge = with_changes(make_charge(call, 1), usage=usage)
    await settle_one(store.ledger, charge, accounts=list_accounts(call))
    if category is Category.MAIN:
        trace = with_changes(
            TRACE, id=id_, agent=agent, session_id=session_id, at=at, status=status, cache_miss=None
        )
        await store.traces.save([trace])


async def test_a_new_store_knows_nothing_about_agents(activity: ActivityStore) -> None:
    assert await activity.load(ended_before=NOON) == {}


async def test_ended_sessions_growth_and_gaps_are_derived_for_each_agent(
    store: Store, activity: ActivityStore
) -> None:
    for number, tokens in enumerate((10_000, 11_000, 10_500, 12_000)):
        await record_call(store, f"a{number}", NOON + 30 * number, tokens)
    await record_call(store, "failed", NOON + 95, 12_000, status=500)
    await record_call(store, "summary", NOON + 96, 90_000, category=Category.COMPACTION)
    await record_call(store, "other", NOON + 50, 5_000, session_id="t")
    await record_call(store, "running", NOON + 9_000, 5_000, session_id="u")
    await record_call(store, "ben", NOON, 7_000, agent="ben", session_id="v")

    found = await activity.load(ended_before=NOON + 5_000)

    gaps = NO_GAPS.with_gap(30.0).with_gap(30.0).with_gap(30.0).with_gap(5.0)
    assert found == {
        "ana": AgentActivity(sessions=2, requests=5, grown_tokens=2_500, grown_requests=4, gaps=gaps),
        "ben": AgentActivity(sessions=1, requests=1),
    }


async def test_side_requests_and_compactions_are_not_growth(store: Store, activity: ActivityStore) -> None:
    for number, tokens in enumerate((50_000, 400, 51_000, 52_000, 20_000, 21_000)):
        await record_call(store, f"a{number}", NOON + number, tokens)

    found = await activity.load(ended_before=NOON)

    assert (found["ana"].grown_tokens, found["ana"].grown_requests) == (2_000, 2)
    assert found["ana"].sessions == 0
