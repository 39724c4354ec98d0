"""Finding the session or request that a user names, on both databases."""

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


def to_header_text(name: str) -> str:
    """A name as it arrives in a header."""
    return name.encode().decode("latin-1")


async def test_a_session_is_found_by_the_name_that_its_client_gives_it(store: Store) -> None:
    run_id, fox_id = (
        derive_named_session_id("ana", "run-1"),
        derive_named_session_id("ana", to_header_text("🦊")),
    )
    await store.traces.save(
        [
            replace(TRACE, id="req_1", agent="ana", session_id=run_id),
            replace(TRACE, id="req_2", agent="ana", session_id=run_id, at=TRACE.at + 1),
            replace(TRACE, id="req_3", agent="ana", session_id=fox_id),
            replace(TRACE, id="req_4", agent="bo", session_id="b" * 32),
        ]
    )
    run_history, fox_history = await find_traces(store, "run-1", None), await find_traces(store, "🦊", None)

    assert isinstance(run_history, SessionHistory)
    assert isinstance(fox_history, SessionHistory)
    assert [request.trace.id for request in run_history.requests] == ["req_1", "req_2"]
    assert fox_history.session_id == fox_id
    with pytest.raises(BadOption, match="no session or request in the store"):
        await find_traces(store, "run", None)


async def test_a_session_name_shared_by_several_agents_is_not_guessed(store: Store) -> None:
    for agent in ("ana", "bo"):
        await store.traces.save(
            [replace(TRACE, id=f"req_{agent}", agent=agent, session_id=derive_named_session_id(agent, "main"))]
        )

    with pytest.raises(
        BadOption, match=f"{derive_named_session_id('ana', 'main')[:8]} of ana, .* of bo; give the id of one"
    ):
        await find_traces(store, "main", None)


async def test_sessions_with_one_name_of_different_callers_are_listed(store: Store) -> None:
    first, second = (derive_named_session_id("ana", "main", scope) for scope in ("key 1", "key 2"))
    await store.traces.save([replace(TRACE, id="req_1", agent="ana", session_id=first)])
    history = await find_traces(store, "main", None)
    await store.traces.save([replace(TRACE, id="req_2", agent="ana", session_id=second)])

    assert isinstance(history, SessionHistory)
    assert history.session_id == first
    with pytest.raises(BadOption, match="several sessions are named 'main'") as raised:
        await find_traces(store, "main", None)
    assert first[:8] in str(raised.value)
    assert second[:8] in str(raised.value)


async def test_background_calls_are_shown_with_their_cost(store: Store) -> None:
    await store.traces.save([TRACE])
    for category in (Category.MAIN, Category.COMPACTION):
        call = replace(CALL, id=f"call-{category}", category=category, session_id=TRACE.session_id)
        await settle_one(store.ledger, replace(CHARGE, call=call), accounts=list_accounts(call))
    history = await find_traces(store, TRACE.session_id, None)

    assert isinstance(history, SessionHistory)
    assert [(calls.category, calls.calls, calls.dollars) for calls in history.background_calls] == [
        ("compaction", 1, CHARGE.dollars)
    ]
