"""The list of sessions."""

import re
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.session.traces import Trace
from foveate.web.pages.sessions import SESSIONS_PER_PAGE
from tests.support.clients.dashboard import NOW, Dashboard, open_dashboard, page_to_text
from tests.support.stores.ledger_records import CALL, CHARGE, settle_one
from tests.support.stores.records import COMPACTION, FAILED_COMPACTION, TRACE

MALICIOUS_NAME = "<script>alert('x')</script>/?#&% 🦊 مرحبا"


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Dashboard]:
    async with open_dashboard(tmp_path) as opened:
        yield opened


def make_trace(session_id: str, **fields: object) -> Trace:
    return replace(TRACE, id=f"of {session_id}", session_id=session_id, **{"at": NOW - 60, **fields})


async def record_charge(
    dashboard: Dashboard, session_id: str, dollars: str | None, *, at: float = NOW - 60, agent: str = "ana"
) -> None:
    call = replace(CALL, id=f"of {session_id}", session_id=session_id, at=at, agent=agent)
    charge = replace(CHARGE, call=call, dollars=None if dollars is None else Decimal(dollars))
    await settle_one(dashboard.store.ledger, charge, accounts=list_accounts(call))


def listed_sessions(page: str) -> list[str]:
    """Return the sessions of a page, from their links."""
    return re.findall(r'<a class="code" href="/-/sessions/([^"]*)"', page)


async def test_an_empty_store_explains_the_list(dashboard: Dashboard) -> None:
    text = await dashboard.text("/-/sessions")

    assert "No requests yet" in text
    assert "No sessions match" in await dashboard.text("/-/sessions?agent=nobody")


async def test_a_row_shows_requests_and_costs(dashboard: Dashboard) -> None:
    await dashboard.store.traces.save(
        [make_trace("s"), replace(make_trace("s"), id="b", status=529, cache_miss=None)]
    )
    await record_charge(dashboard, "s", "0.05")
    await dashboard.store.compactions.record(COMPACTION, (), lease=None)
    await dashboard.store.compactions.record(FAILED_COMPACTION, (), lease=None)
    text = await dashboard.text("/-/sessions")

    assert "1 session." in text
    for expected in ("ana", "claude-opus-5-5", "1 min ago", "2 1 failed", "17.3% of 200k", "98.1%", "$0.05"):
        assert expected in text
    row = text[text.index("Compactions s ") :]
    assert row.endswith("$0.1530 1 1 1 failed"), "saved; cache misses; compactions"


async def test_unknown_values_are_not_zero(dashboard: Dashboard) -> None:
    await dashboard.store.traces.save(
        [make_trace("uncounted", tokens=None, at=NOW - 2), make_trace("unwindowed", window_tokens=None)]
    )
    await record_charge(dashboard, "uncounted", None)
    text = await dashboard.text("/-/sessions")

    assert "unknown" in text
    assert "34.6k tokens, window size unknown" in text or "34.7k tokens, window size unknown" in text
    assert "unknown" in text[text.index("uncounted") : text.index("unwindowed")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["new", "mid", "old"]),
        ("order=dearest", ["old", "mid", "new"]),
        ("since=hour", ["new"]),
        ("since=day", ["new", "mid"]),
        ("agent=bo", ["mid"]),
        ("id=ol", ["old"]),
        ("id=%25", []),
        ("agent=bo&id=n", []),
    ],
)
async def test_filters_are_applied_by_the_database(
    dashboard: Dashboard, query: str, expected: list[str]
) -> None:
    rows = [("new", 10, "ana", "0.1"), ("mid", 7_200, "bo", "0.2"), ("old", 200_000, "ana", "3")]
    await dashboard.store.traces.save(
        [make_trace(id_, at=NOW - ago, agent=agent) for id_, ago, agent, _ in rows]
    )
    for id_, ago, agent, dollars in rows:
        await record_charge(dashboard, id_, dollars, at=NOW - ago, agent=agent)

    assert listed_sessions(await dashboard.page(f"/-/sessions?{query}")) == expected


async def test_pages_link_forward_and_back_and_keep_the_filter(dashboard: Dashboard) -> None:
    count = 2 * SESSIONS_PER_PAGE + 5
    await dashboard.store.traces.save([make_trace(f"s{at:03}", at=NOW - at) for at in range(count)])
    first = await dashboard.page("/-/sessions?agent=ana")
    (second_link,) = re.findall(r'href="(\?[^"]*)" rel="next"', first)
    second = await dashboard.page(f"/-/sessions{second_link.replace('&amp;', '&')}")
    (third_link,) = re.findall(r'href="(\?[^"]*)" rel="next"', second)
    third = await dashboard.page(f"/-/sessions{third_link.replace('&amp;', '&')}")
    (back_link,) = re.findall(r'href="(\?[^"]*)" rel="prev"', third)

    assert "105 sessions found, 50 on this page" in page_to_text(first)
    assert "agent=ana" in second_link
    assert 'rel="prev"' not in first
    assert listed_sessions(first) + listed_sessions(second) + listed_sessions(third) == [
        f"s{at:03}" for at in range(count)
    ]
    assert 'rel="next"' not in third
    second_again = await dashboard.page(f"/-/sessions{back_link.replace('&amp;', '&')}")
    assert listed_sessions(second_again) == listed_sessions(second)
    assert 'rel="prev"' in second_again
    assert 'rel="next"' in second_again
    assert "First page" in page_to_text(second_again)


@pytest.mark.parametrize("order", ["newest", "dearest"])
async def test_the_next_page_is_stable_while_sessions_change(dashboard: Dashboard, order: str) -> None:
    for at in range(SESSIONS_PER_PAGE + 2):
        await record_charge(dashboard, f"s{at:03}", str(SESSIONS_PER_PAGE + 2 - at), at=NOW - at)
    first = await dashboard.page(f"/-/sessions?order={order}")
    (next_link,) = re.findall(r'href="(\?[^"]*)" rel="next"', first)
    new_call = replace(CALL, id="again", session_id=f"s{SESSIONS_PER_PAGE - 1:03}", at=NOW + 1)
    await settle_one(
        dashboard.store.ledger, replace(CHARGE, call=new_call, dollars=Decimal(1_000)), accounts=()
    )
    second = await dashboard.page(f"/-/sessions{next_link.replace('&amp;', '&')}")

    assert listed_sessions(second) == [f"s{SESSIONS_PER_PAGE:03}", f"s{SESSIONS_PER_PAGE + 1:03}"]


async def test_names_are_escaped_and_link_to_their_sessions(dashboard: Dashboard) -> None:
    long = "n" * 240
    await dashboard.store.traces.save(
        [
            make_trace(MALICIOUS_NAME, agent=MALICIOUS_NAME, model=MALICIOUS_NAME),
            make_trace(long, agent=long, model="m" * 500),
        ]
    )
    page = await dashboard.page("/-/sessions")

    assert "<script>alert" not in page
    assert set(listed_sessions(page)) == {quote(MALICIOUS_NAME, safe=""), long}
    for name in (MALICIOUS_NAME, long):
        assert (await dashboard.client.get(f"/-/sessions/{quote(name, safe='')}")).status_code == 200
    filtered = await dashboard.page(f"/-/sessions?agent={quote(MALICIOUS_NAME, safe='')}")
    assert listed_sessions(filtered) == [quote(MALICIOUS_NAME, safe="")]
    assert "<script>alert" not in filtered


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("order=sideways", "order must be one of dearest, newest, not 'sideways'"),
        ("since=yesterday", "since must be one of all, day, hour, week, not 'yesterday'"),
        ("after=nobody", "after: 'nobody' is not a position in the list; start from the first page"),
        ("before=nan~s", "before: 'nan~s' is not a position in the list; start from the first page"),
        ("after=1e999999~s", "after: '1e999999~s' is not a position in the list"),
        ("before=1~", "before: '1~' is not a position in the list"),
        ("order=dearest&after=5000000~s", "after: '5000000~s' is not a position in the list"),
        ("after=1~%00", "cannot be stored"),
        ("id=%00", "cannot be stored"),
    ],
)
async def test_invalid_queries_are_reported(dashboard: Dashboard, query: str, problem: str) -> None:
    assert problem in await dashboard.text(f"/-/sessions?{query}", status=400)
