"""The overview page."""

import asyncio
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace as with_changes

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category, Charge
from foveate.engine.metrics import definitions
from foveate.engine.metrics.registry import MetricsRegistry
from foveate.gateway.observability.health import HealthStatus
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage
from foveate.session.traces import CacheMiss
from foveate.store import Store
from tests.support.clients.dashboard import NOW, Dashboard, open_dashboard
from tests.support.stores.ledger_records import make_call, settle_one
from tests.support.stores.records import TRACE

DAY = 86_400.0
UNUSUAL_NAME = '<script>alert("1")</script>/?#é👩‍👩‍👧‍👦'
CAPS = """
cost:
  caps:
    - {scope: call, dollars: 0.5}
    - {scope: session, dollars: 8, warn_at: 0.5}
    - {scope: agent, agent: bob, dollars: 1}
    - {scope: day, dollars: 100}
"""


def make_charge(
    id_: str,
    dollars: str | None,
    *,
    agent: str = "ana",
    at: float = NOW,
    category: Category = Category.MAIN,
    model: str = "claude-opus-5-5",
    read: int = 0,
    uncached: int = 100,
    savings: Savings = Savings(),  # noqa: B008 - it is frozen
) -> Charge:
    call = with_changes(
        make_call(id_, agent=agent, session_id=f"session of {agent}", at=at), category=category, model=model
    )
    return Charge(
        call=call,
        usage=Usage(cache=CacheUsage(uncached=uncached, read=read), output_tokens=7),
        dollars=None if dollars is None else Decimal(dollars),
        savings=savings,
    )


async def record_calls(
    store: Store, *charges: Charge, status: int = 200, miss: CacheMiss | None = None
) -> None:
    """Record calls, and traces of those that are requests."""
    for charge in charges:
        call = charge.call
        await settle_one(store.ledger, charge, accounts=list_accounts(call))
        if call.category is Category.MAIN:
            trace = with_changes(
                TRACE, id=call.id, agent=call.agent, session_id=call.session_id, model=call.model, at=call.at,
                status=status, cache_miss=miss,
            )  # fmt: skip
            await store.traces.save([trace])


async def fill_week(store: Store) -> None:
    """Two agents with a compaction, a cache miss, an error and a call of unknown price."""
    savings = Savings(
        comparison=ComparisonOutcome.SIMULATED,
        without=Decimal("5.65"),
        breakpoints=Decimal("0.9"),
        compaction=Decimal("0.5"),
        keep_alive=Decimal("-0.25"),
        context=Decimal(0),
        simulation_error=Decimal(0),
    )
    summary_savings = Savings(
        comparison=ComparisonOutcome.SIMULATED, without=Decimal(0), compaction=Decimal("-0.20")
    )
    await record_calls(
        store, make_charge("a1", "4.50", read=900, savings=savings), make_charge("a2", None, read=0, uncached=0)
    )
    await record_calls(
        store,
        make_charge(
            "a3",
            "0.20",
            category=Category.COMPACTION,
            model="claude-haiku-5",
            uncached=9_000,
            savings=summary_savings,
        ),
    )
    await record_calls(
        store, make_charge("b1", "2", agent="bob", at=NOW - 2 * DAY, read=10, uncached=90), status=529
    )
    miss = CacheMiss(cause="timestamp", where="system[0]", lost_tokens=12_345, lost_dollars=Decimal("0.06"))
    await record_calls(store, make_charge("b2", "1.25", agent="bob", at=NOW - 3 * DAY), miss=miss)
    await record_calls(store, make_charge("c1", "100", agent="old", at=NOW - 20 * DAY, model="gpt-5.6"))


@pytest.fixture(scope="module")
def filled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store of a week, which tests only read."""
    folder = tmp_path_factory.mktemp("week")

    async def fill() -> None:
        async with open_dashboard(folder, CAPS) as opened:
            await fill_week(opened.store)

    asyncio.run(fill())
    return folder


@pytest.fixture
async def dashboard(filled_folder: Path) -> AsyncIterator[Dashboard]:
    async with open_dashboard(filled_folder, CAPS) as opened:
        yield opened


def extract_part(page: str, name: str) -> str:
    """Return the text of a part of a page."""
    match = re.search(rf'<section data-part="{name}".*?</section>', page, re.DOTALL)
    assert match is not None, name
    return " ".join(re.sub(r"<[^>]*>", " ", match[0]).split())


async def test_the_tiles_show_costs_savings_hit_ratio_and_requests_of_a_week(dashboard: Dashboard) -> None:
    tiles = extract_part(await dashboard.page("/"), "tiles")

    assert "Today $4.70 2 requests; without 1 call of unknown price" in tiles
    assert "Last 7 days $7.95 without 1 call of unknown price" in tiles
    assert "Saved $0.95 $5.65 without Foveate" in tiles
    savings = extract_part(await dashboard.page("/"), "savings")
    for expected in (
        "Without Foveate $5.650 simulated cost of 2 calls (of 5), exactly as the clients sent them",
        "Breakpoints −$0.900",
        "Compaction and trimming −$0.300",
        "Keep-alive +$0.250",
        "With Foveate $4.700",
        "Simulation error $0.000",
    ):
        assert expected in savings
    assert "Lost to cache misses $0.06 1 cache miss, 12.3k tokens paid again" in tiles
    assert "Cache hit ratio 75.8% healthy" in tiles  # 910 of 1,200, without the summary
    assert "Requests 4 1 failed , 25%" in tiles


async def test_today_is_shown_by_hour_and_a_month_includes_older_calls(dashboard: Dashboard) -> None:
    today, month = await dashboard.page("/?span=today"), await dashboard.page("/?span=30d")

    assert "Spending by hour and agent" in today
    assert "Last" not in extract_part(today, "tiles")
    assert "bob" not in extract_part(today, "agents")
    assert "Last 30 days $107.95" in extract_part(month, "tiles")
    assert "old" in extract_part(month, "agents")
    assert '<a href="?span=30d&amp;by=agent" aria-current="true">30 days</a>' in month
    assert '<a href="?span=today&amp;by=agent">Today</a>' in month


async def test_one_agent_is_shown_alone_with_costs_by_model(dashboard: Dashboard) -> None:
    page = await dashboard.page("/?agent=ana")

    assert "Spending by day and model" in page
    assert "claude-haiku-5" in extract_part(page, "models")
    assert "bob" not in extract_part(page, "agents")
    assert "Last 7 days $4.70" in extract_part(page, "tiles")
    assert '<option value="ana" selected>' in page
    assert "agent=ana" in page.split("30 days</a>")[0]


async def test_agents_are_sorted_by_cost_and_link_to_their_sessions(dashboard: Dashboard) -> None:
    page = await dashboard.page("/")
    agents = extract_part(page, "agents")

    assert agents.index("ana") < agents.index("bob")
    assert "ana 2 0 90% healthy $4.700 + 1 unpriced $5.650 $0.9500 $0.0000" in agents
    assert "bob 2 1 5% flagged $3.250 not compared $0.0600" in agents
    assert 'href="/-/sessions?agent=bob"' in page


async def test_costs_are_shown_by_category(dashboard: Dashboard) -> None:
    text = extract_part(await dashboard.page("/"), "categories")

    assert "main requests of the agents 4 1.2k 28 $7.750 + 1 unpriced" in text
    assert "compaction summaries of long histories 1 9k 7 $0.200" in text


async def test_cache_misses_are_explained_and_link_to_their_session(dashboard: Dashboard) -> None:
    page = await dashboard.page("/")

    assert "a timestamp changed, at system[0] 12.3k tokens $0.0600 bob" in extract_part(page, "misses")
    assert 'href="/-/sessions/session%20of%20bob"' in page
    assert "No cache misses today." in extract_part(await dashboard.page("/?span=today"), "misses")
    assert "No cache misses in the last 7 days." in extract_part(await dashboard.page("/?agent=ana"), "misses")


async def test_caps_are_shown_with_their_usage(dashboard: Dashboard) -> None:
    caps = extract_part(await dashboard.page("/"), "caps")

    assert "each call $0.50 applies to each call separately" in caps
    assert "session session of … of ana $8.00 $4.700 with 1 unpriced $0.00 59% used, warns from 50% on" in caps
    assert "agent bob $1.00 $3.250 $0.00 over by $2.25" in caps
    assert "day 2026-11-06 $100.00 $4.700 with 1 unpriced $0.00 5% used" in caps
    assert "session of bob" not in caps  # it had no recent call


async def test_charts_have_a_label_for_each_day_and_one_colour_per_agent(dashboard: Dashboard) -> None:
    page = await dashboard.page("/")

    titles = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert titles == [
        "Spending by day and agent",
        "Savings and losses by day",
        "Cache hit ratio by day and agent",
        "Requests and errors by day",
    ]
    assert "$7.95 in the last 7 days, highest at 6 Nov with $4.70; ana spent $4.70" in page
    assert "target: 70%" in page
    assert "flagged below: 30%" in page
    assert "4 requests in the last 7 days, of which 1 failed" in page


async def test_added_latency_is_shown_since_the_start_and_by_step(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    registry.histogram(definitions.ADDED_SECONDS).observe(0.0011)
    registry.histogram(definitions.STEP_SECONDS, "cache").observe(0.0003)
    registry.histogram(definitions.STEP_SECONDS, "fold").observe(0.003)
    registry.scalar(definitions.REJECTIONS, "ana", "cap_exceeded").value += 2
    for agent in ("ana", "bob"):
        registry.scalar(definitions.REJECTIONS, agent, "upstream_unreachable").value += 3
    async with open_dashboard(tmp_path, samples=registry.samples()) as dashboard:
        await record_calls(dashboard.store, make_charge("a", "1"))
        page, ana_page = await dashboard.page("/"), await dashboard.page("/?agent=ana")

    assert "Added latency 1.5 ms median; p99 2.0 ms; 1 request since the gateway started" in extract_part(
        page, "tiles"
    )
    expected = (
        "none failed 8 error responses by the gateway since it started: 6 upstream unreachable, 2 cap exceeded"
    )
    assert expected in extract_part(page, "tiles")
    assert "since it started: 3 upstream unreachable, 2 cap exceeded" in extract_part(ana_page, "tiles")
    steps = extract_part(page, "latency")
    assert "Since the gateway started" in steps
    assert steps.index("compaction 1 ") < steps.index("prompt cache 1 ")


async def test_requests_rejected_by_the_gateway_are_counted_by_reason(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    registry.scalar(definitions.REJECTIONS, "ana", "upstream_unreachable").value += 1
    async with open_dashboard(tmp_path, samples=registry.samples()) as dashboard:
        text = await dashboard.text("/")

    assert "No request has reached a provider yet. The gateway returned 1 error response" in text
    assert "1 upstream unreachable" in text
    assert "No requests yet" not in text


async def test_an_empty_store_shows_how_to_point_a_client_at_the_gateway(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        page = await dashboard.page("/")

    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8090\n" in page
    assert "export OPENAI_BASE_URL=http://127.0.0.1:8090/v1\n" in page
    assert "<canvas" not in page


async def test_health_problems_are_shown_on_top(tmp_path: Path) -> None:
    status = HealthStatus(version="1", store="store.sqlite", failures={"fold": 2}, charges_lost=1)
    async with open_dashboard(tmp_path, health_status=status) as dashboard:
        text_without_calls = extract_part(await dashboard.page("/"), "problems")
        await record_calls(dashboard.store, make_charge("a", "1"))
        text = extract_part(await dashboard.page("/"), "problems")

    assert text == text_without_calls
    assert "Steps failed in the last five minutes: compaction 2 times" in text
    assert "The gateway sent the requests without these steps." in text
    assert "1 charge was lost" in text


@pytest.mark.parametrize("query", ["span=year", "by=moon"])
async def test_an_invalid_query_is_reported(dashboard: Dashboard, query: str) -> None:
    text = await dashboard.text(f"/?{query}", 400)

    assert "one of" in text


async def test_an_unknown_agent_has_no_requests(dashboard: Dashboard) -> None:
    text = await dashboard.text("/?agent=nobody")

    assert "No requests in the last 7 days from nobody." in text


async def test_names_of_any_content_and_length_are_escaped(tmp_path: Path) -> None:
    long_name = UNUSUAL_NAME * 30
    async with open_dashboard(tmp_path, CAPS) as dashboard:
        miss = CacheMiss(cause=UNUSUAL_NAME, where=UNUSUAL_NAME, lost_tokens=1)
        await record_calls(
            dashboard.store,
            make_charge("a", "1", agent=UNUSUAL_NAME, model=UNUSUAL_NAME),
            make_charge("b", "1", agent=long_name),
            miss=miss,
        )
        page = await dashboard.page("/")
        response = await dashboard.client.get("/", params={"agent": UNUSUAL_NAME, "by": "agent"})

    assert "<script>alert" not in page + response.text
    assert response.status_code == 200
    assert "Last 7 days $1.00" in extract_part(response.text, "tiles")


async def test_many_agents_share_the_rest_of_a_chart_and_of_the_table(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        await record_calls(
            dashboard.store, *(make_charge(f"c{at}", f"{at + 1}", agent=f"agent {at}") for at in range(60))
        )
        page = await dashboard.page("/")

    assert "others" in extract_part(page, "chart-money")
    assert "agent 59" in extract_part(page, "chart-money")
    assert "agent 40" not in extract_part(page, "chart-money")
    assert "10 more agents with lower spending." in extract_part(page, "agents")
    assert len(page) < 100_000
