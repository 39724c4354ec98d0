"""The pages of agents."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Call, Category, Charge
from foveate.engine.sections.sources import SectionSources
from foveate.model import CacheUsage, Usage
from foveate.store import Store
from foveate.web.page import Viewer
from tests.support.clients.dashboard import BUSY, NOW, open_dashboard
from tests.support.stores.ledger_records import settle_one
from tests.support.stores.records import TRACE

PATH = "/-/agents"
DAY = 86_400.0
UNUSUAL_NAME = "<script>alert(1)</script>/?#é 🦊{{7*7}}"


async def record_call(
    store: Store, agent: str, dollars: str | None, *, at: float = NOW, model: str = "claude-opus-4-5"
) -> None:
    """Record a call of an agent with three quarters of its prompt read from the cache."""
    call = Call(
        id=f"{agent} {at} {dollars} {model}",
        agent=agent,
        session_id="s",
        provider="anthropic",
        model=model,
        category=Category.MAIN,
        at=at,
    )
    usage = Usage(cache=CacheUsage(uncached=25, read=75), output_tokens=5)
    charge = Charge(call=call, usage=usage, dollars=None if dollars is None else Decimal(dollars))
    await settle_one(store.ledger, charge, accounts=list_accounts(call))


async def test_configured_and_active_agents_are_listed_by_cost(
    tmp_path: Path,
) -> None:
    async with open_dashboard(tmp_path, "agents: [{id: ana}, {id: ben, window_tokens: 9000}]") as dashboard:
        await record_call(dashboard.store, "ben", "0.5")
        await record_call(dashboard.store, "carl", "2", at=NOW - 2 * DAY)
        await record_call(dashboard.store, "old", "9", at=NOW - 20 * DAY)
        text = await dashboard.text(PATH)

        assert "4 agents" in text
        order = [text.index(name) for name in ("carl not in", "ben on off auto – 9k", "ana on", "old not in")]
        assert order == sorted(order)
        assert "75% healthy" in text
        assert "2 agents" in await dashboard.text(f"{PATH}?which=configured")
        assert "2 agents" in await dashboard.text(f"{PATH}?which=asked")
        assert "1 agent;" in await dashboard.text(f"{PATH}?find=CAR")
        assert "No agents match" in await dashboard.text(f"{PATH}?find=nobody")


async def test_without_agents_the_page_explains_how_to_name_one(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        text = await dashboard.text(PATH)

        assert "No agent has sent a request yet" in text
        assert "Features of all agents" in text
        assert "Compaction off histories are sent unchanged all agents" in text


async def test_two_hundred_agents_are_listed_in_pages(tmp_path: Path) -> None:
    agents = ", ".join(f"{{id: agent-{number:03}}}" for number in range(200))
    async with open_dashboard(tmp_path, f"agents: [{agents}]") as dashboard:
        first, last = await dashboard.page(PATH), await dashboard.page(f"{PATH}?page=99")

        assert "agent-000" in first
        assert "agent-050" not in first
        assert 'href="?page=2"' in first
        assert "agent-199" in last
        assert "200 agents, page 4 of 4" in last
        assert len(first) < 100_000


async def test_an_agents_page_shows_its_features_and_their_origin(tmp_path: Path) -> None:
    config = (
        "context_optimization:\n"
        "  prompt_cache: {ttl: 1h, pings: {enabled: true}}\n"
        "  compaction: {summarizer_model: small, compact_at_pct: 0.5}\n"
        "agents:\n"
        "  - {id: ana, on_overflow: pass, context_optimization: {compaction: true, token_counter: true}}\n"
        "  - {id: ben, context_optimization: {prompt_cache: false, compaction: true, token_counter: false}}\n"
    )
    async with open_dashboard(tmp_path, config) as dashboard:
        ana, ben = await dashboard.text(f"{PATH}/ana"), await dashboard.text(f"{PATH}/ben")

        assert "TTL: always 1h (1 hour only on anthropic, vertex) all agents" in ana
        assert "Keep-alive on at most 3 requests in a row, for 64 sessions at once" in ana
        assert "Compaction on starts at 50% of the context window" in ana
        assert "summaries by small this agent" in ana
        assert "Overflow pass sends requests that do not fit; the provider decides this agent" in ana
        assert "Prompt cache off adds no cache breakpoints this agent" in ben
        assert "Keep-alive off" in ben
        assert "Compaction off inactive, because tokens are not counted this agent" in ben
        assert "Token counter off tokens are not counted" in ben


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("compaction: {enabled: false}", "sent unchanged, because compaction is off"),
        ("compaction: {enabled: true}", "shortened if longer than 30% of the context window"),
        (
            "compaction: {enabled: true}, token_counter: {enabled: false}",
            "sent unchanged, because tokens are not counted",
        ),
    ],
)
async def test_the_state_of_tool_result_truncation_is_shown_correctly(
    tmp_path: Path, config: str, text: str
) -> None:
    """Regression: the page said that they are cut although compaction was off."""
    async with open_dashboard(
        tmp_path, f"agents: [{{id: ana}}]\ncontext_optimization: {{{config}}}"
    ) as dashboard:
        assert text in await dashboard.text(f"{PATH}/ana")


async def test_an_agents_page_shows_its_spending_and_its_models_windows(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        await record_call(dashboard.store, "ana", "0.5")
        await record_call(dashboard.store, "ana", None, model="nobody-knows")
        await record_call(dashboard.store, "ana", "2", at=NOW - 2 * DAY)
        text = await dashboard.text(f"{PATH}/ana")

        assert "Today $0.50 + 1 unpriced" in text
        assert "Last 7 days $2.50 + 1 unpriced" in text
        assert "claude-opus-4-5 200,000" in text
        assert "nobody-knows unknown unknown for this model" in text
        assert "Not in the configuration: the settings for all agents apply" in text
        assert "Spending caps None." in text


async def test_an_agents_caps_are_shown_with_what_is_left(tmp_path: Path) -> None:
    config = (
        "cost: {caps: [{scope: agent, agent: ana, dollars: 4}, {scope: agent, agent: ben, dollars: 3}, "
        "{scope: day, dollars: 20}, {scope: call, dollars: 1}, {scope: agent, dollars: 1}]}\n"
    )
    async with open_dashboard(tmp_path, config) as dashboard:
        await record_call(dashboard.store, "ana", "1")
        await record_call(dashboard.store, "ben", "2")
        text = await dashboard.text(f"{PATH}/ana")

        assert "agent ana $4.00 $3.00 25% 25% used" in text
        assert "agent ana $1.00 $0.00" in text
        assert "$20.00 $17.00" in text
        assert "applies to each call separately" in text
        assert "ben" not in text


async def test_the_workspace_is_shown_with_its_files_and_own_limits(tmp_path: Path) -> None:
    home = tmp_path / "home of ana"
    home.mkdir()
    (home / "IDENTITY.md").write_text("You are Ana.")
    (home / "SOUL.md").write_text("#+private\n")
    (home / "notes.txt").write_text("no file of a bundle")
    (home / "budget.yaml").write_text("total_tokens: 500\n")
    limits = "{total_tokens: 900, ladder: progressive, sections: {context: {max_tokens: 300, priority: high}}}"
    config = (
        f"agents: [{{id: ana, sections: {{workspace: {{root: {json.dumps(str(home))}}}, limits: {limits}}}}}]"
    )
    async with open_dashboard(tmp_path, config) as dashboard:
        text = await dashboard.text(f"{PATH}/ana")

        assert f"Folder {home}" in text
        assert "IDENTITY.md IDENTITY.md 12 4" in text
        assert "notes.txt" not in text
        assert "500 tokens; the agent sets stricter limits in budget.yaml" in text
        assert "keep the last 5 lines of logs, log, *_logs, *_log; then drop mandates" in text
        assert "context on high 300" in text

        (home / "budget.yaml").write_text("total_tokens: many\n")
        dashboard.clock.seconds += 2
        assert "budget.yaml:1" in await dashboard.text(f"{PATH}/ana")


async def test_a_missing_workspace_is_reported(tmp_path: Path) -> None:
    config = (
        f"agents: [{{id: ana, sections: {{workspace: {{root: '{tmp_path}/gone'}}, skills: '{tmp_path}/no'}}}}]"
    )
    async with open_dashboard(tmp_path, config) as dashboard:
        text = await dashboard.text(f"{PATH}/ana")

        assert f"{tmp_path}/gone: " in text
        assert "0 files, 0 characters" in text


async def test_logs_are_listed_with_the_other_sections(tmp_path: Path) -> None:
    config = f"agents: [{{id: ana, sections: {{logs: ['{tmp_path}/a.log', '{tmp_path}/b.log']}}}}, {{id: ben}}]"
    async with open_dashboard(tmp_path, config) as dashboard:
        text = await dashboard.text(f"{PATH}/ana")

        assert f"Logs on the last 20 lines of {tmp_path}/a.log, {tmp_path}/b.log" in text
        assert "Logs off not injected" in await dashboard.text(f"{PATH}/ben")


@pytest.mark.parametrize("is_missing", [False, True])
async def test_the_key_of_an_agent_does_not_show_where_its_files_are(tmp_path: Path, is_missing: bool) -> None:
    folder = tmp_path / "home of ana"
    folder.mkdir()
    names = {name: folder / name for name in ("desk", "skills", "notes", "a.log")}
    if not is_missing:
        for name in ("desk", "skills", "notes"):
            names[name].mkdir()
        (names["desk"] / "budget.yaml").write_text("total_tokens: many\n")
        (names["notes"] / "a.md").write_bytes(b"# \xff\xff\n")
    sections = (
        f"{{workspace: {{root: '{names['desk']}'}}, skills: '{names['skills']}', "
        f"memory: {{paths: ['{names['notes']}']}}, logs: ['{names['a.log']}']}}"
    )
    config = f"agents: [{{id: ana, sections: {sections}}}]"
    failure = ("sections/memory", f"{names['notes']}: is on a disk that is gone")
    trace = replace(TRACE, agent="ana", session_id="s1", at=NOW, problems=(failure,))
    pages = f"{PATH}/ana", "/-/memory", "/-/sessions/s1"

    async with open_dashboard(tmp_path, config, viewer=Viewer("ana")) as dashboard:
        await dashboard.store.traces.save([trace])
        own_texts = [await dashboard.text(path) for path in pages]
    async with open_dashboard(tmp_path, config) as dashboard:
        admin_texts = [await dashboard.text(path) for path in pages]

    assert not any("home of ana" in text for text in own_texts)
    assert all("home of ana" in text for text in admin_texts)
    assert "Logs on the last 20 lines of a.log" in own_texts[0]
    assert "notes: is on a disk that is gone" in own_texts[2]


@pytest.mark.parametrize("name", [UNUSUAL_NAME, "ü" * 250, "a/b", "\u202eleft"])
async def test_any_name_of_an_agent_has_a_page_and_is_shown_as_text(tmp_path: Path, name: str) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        await record_call(dashboard.store, name, "1")
        list_page = await dashboard.page(PATH)
        path = f"{PATH}/{quote(name, safe='')}"
        assert f'href="{path}"' in list_page

        agent_page = await dashboard.page(path)
        assert "<script>alert" not in agent_page + list_page
        assert f'href="/-/sessions?agent={quote(name, safe="")}"' in agent_page


async def test_an_unknown_agent_has_no_page(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        assert "The agent '<b>x</b>' has never sent a request" in await dashboard.text(f"{PATH}/<b>x</b>", 404)


class _HangingSources(SectionSources):
    """Files on a hanging disk."""

    async def load_once(self, key: Any, load: Any, deadline: float | None) -> Any:
        raise TimeoutError


async def test_a_hanging_disk_does_not_block_the_page(tmp_path: Path) -> None:
    sections = f"{{workspace: {{root: '{tmp_path}'}}, memory: {{paths: ['{tmp_path}']}}}}"
    config = f"agents: [{{id: ana, sections: {sections}}}]"
    async with open_dashboard(tmp_path, config, make_sources=_HangingSources) as dashboard:
        agent, memory = await dashboard.client.get(f"{PATH}/ana"), await dashboard.client.get("/-/memory")

        assert f"{tmp_path}: reading the files {BUSY}" in agent.text
        assert "Injected sections" in agent.text
        assert f"Reading the notes {BUSY}. Try again in a moment." in memory.text
