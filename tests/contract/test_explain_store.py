"""The same of both databases: which session or request is meant by what somebody types."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from foveate.cli.explain.traces import SessionHistory, find_traces
from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category
from foveate.errors import BadOption
from foveate.session.client_names import derive_named_session_id
from foveate.store import Store, open_store
from tests.support.stores.ledger_records import CALL, CHARGE, settle_one
from tests.support.stores.records import TRACE


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


def sent(name: str) -> str:
    """A name in the letters that a header has."""
    return name.encode().decode("latin-1")


async def test_a_session_is_found_by_the_name_that_its_client_gives_it(store: Store) -> None:
    run, fox = derive_named_session_id("ana", "run-1"), derive_named_session_id("ana", sent("🦊"))
    await store.traces.save(
        [
            replace(TRACE, id="req_1", agent="ana", session_id=run),
            replace(TRACE, id="req_2", agent="ana", session_id=run, at=TRACE.at + 1),
            replace(TRACE, id="req_3", agent="ana", session_id=fox),
            replace(TRACE, id="req_4", agent="bo", session_id="b" * 32),
        ]
    )
    found, odd = await find_traces(store, "run-1", None), await find_traces(store, "🦊", None)

    assert isinstance(found, SessionHistory)
    assert isinstance(odd, SessionHistory)
    assert [one.trace.id for one in found.requests] == ["req_1", "req_2"]
    assert odd.session_id == fox
    with pytest.raises(BadOption, match="nothing is known"):
        await find_traces(store, "run", None)


async def test_a_session_name_shared_by_several_agents_is_not_guessed(store: Store) -> None:
    for agent in ("ana", "bo"):
        await store.traces.save(
            [replace(TRACE, id=f"req_{agent}", agent=agent, session_id=derive_named_session_id(agent, "main"))]
        )

    with pytest.raises(
        BadOption, match=f"{derive_named_session_id('ana', 'main')[:8]} of ana, .* of bo; say the id of one"
    ):
        await find_traces(store, "main", None)


async def test_sessions_with_one_name_of_different_callers_are_listed(store: Store) -> None:
    first, second = (derive_named_session_id("ana", "main", scope) for scope in ("key 1", "key 2"))
    await store.traces.save([replace(TRACE, id="req_1", agent="ana", session_id=first)])
    alone = await find_traces(store, "main", None)
    await store.traces.save([replace(TRACE, id="req_2", agent="ana", session_id=second)])

    assert isinstance(alone, SessionHistory)
    assert alone.session_id == first
    with pytest.raises(BadOption, match="several sessions are called 'main'") as listed:
        await find_traces(store, "main", None)
    assert first[:8] in str(listed.value)
    assert second[:8] in str(listed.value)


async def test_calls_beside_the_requests_are_shown_with_their_cost(store: Store) -> None:
    await store.traces.save([TRACE])
    for category in (Category.MAIN, Category.COMPACTION):
        call = replace(CALL, id=f"call-{category}", category=category, session_id=TRACE.session_id)
        await settle_one(store.ledger, replace(CHARGE, call=call), accounts=list_accounts(call))
    told = await find_traces(store, TRACE.session_id, None)

    assert isinstance(told, SessionHistory)
    assert [(one.category, one.calls, one.dollars) for one in told.background_calls] == [
        ("compaction", 1, CHARGE.dollars)
    ]
