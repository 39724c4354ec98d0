"""Edits of the history that pay, in a running gateway: compaction by cost, and clearing of tool results."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from msgspec import structs

from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.config.settings import Settings
from foveate.cost.ledger import Category, Charge, GroupBy
from foveate.engine.background.compaction import SessionCompactor
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.engine.options_from_settings import options_by_agent
from foveate.sandbox.script import ScriptedCall, ScriptStep
from foveate.store import open_store
from tests.support.oracles.keep_alives import is_keep_alive_sent, keep_alive_requests
from tests.support.oracles.system_state import wait_until
from tests.support.processes.commands import spawn
from tests.support.scenarios.priced_workloads import HEADERS, MODEL, Body, Texts
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox
from tests.support.stores.records import TRACE
from tests.support.stores.templates import ensure_store

_COMPACTION = {"extractive": True, "tail_keep_tokens": 8_000}
READ_TOOL = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}}},
}
# The model always goes on. It never writes a summary, so rules do.
NEXT_CALL = ScriptStep(tools=(ScriptedCall(name="Read", input={"file_path": "src/next.py"}),))
PAUSE_SECONDS = 4_000.0


class FileReader:
    """An agent that reads one file after the other, each for the first time, as Claude Code does."""

    path = "/v1/messages"

    def __init__(self, tokens_per_file: int = 1_500, model: str = MODEL) -> None:
        self.headers = HEADERS
        self._model = model
        self._text = Texts()
        self._tokens = tokens_per_file
        self._system = self._text(2_000)
        self.parameters: Body = {}
        self.messages: list[Body] = [{"role": "user", "content": self._text(200)}]

    def request(self) -> Body:
        return {
            "model": self._model,
            "max_tokens": 64,
            "system": [{"type": "text", "text": self._system, "cache_control": {"type": "ephemeral"}}],
            "tools": [READ_TOOL],
            **self.parameters,
            "messages": [*self.messages[:-1], _with_breakpoint(self.messages[-1])],
        }

    def read_file(self, number: int) -> None:
        path, id_ = f"src/file_{number}.py", f"toolu_{len(self.messages)}"
        call = {"type": "tool_use", "id": id_, "name": "Read", "input": {"file_path": path}}
        result = {
            "type": "tool_result",
            "tool_use_id": id_,
            "content": f"file {number}\n{self._text(self._tokens)}",
        }
        self.messages += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]


class ChatFileReader(FileReader):
    """The same agent with OpenAI's Chat Completions, which caches without breakpoints."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        super().__init__(tokens_per_file=2_500, model="gpt-5.4")
        self.headers = {"authorization": f"Bearer {KEY}"}
        self.messages = [{"role": "system", "content": self._text(2_000)}, *self.messages]

    def request(self) -> Body:
        function = {key: READ_TOOL.get(key) for key in ("name", "description")} | {
            "parameters": READ_TOOL["input_schema"]
        }
        tools = [{"type": "function", "function": function}]
        return {"model": self._model, "tools": tools, "messages": self.messages}

    def read_file(self, number: int) -> None:
        id_, arguments = f"call_{number}", json.dumps({"file_path": f"src/file_{number}.py"})
        function = {"name": "Read", "arguments": arguments}
        calls = [{"id": id_, "type": "function", "function": function}]
        self.messages += [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": id_, "content": f"file {number}\n{self._text(self._tokens)}"},
        ]


def _with_breakpoint(message: Body) -> Body:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]}


def configure(compaction: Body, switches: Body | None = None) -> AgentOptions:
    """The options of an agent with these settings for all agents, and these of its own."""
    settings = Settings.model_validate(
        {
            "context_optimization": {"compaction": _COMPACTION | compaction},
            "agents": [{"id": "ana", "context_optimization": switches or {}}],
        }
    )
    return options_by_agent(settings)("ana")


def send(client: httpx.Client, agent: FileReader) -> Body:
    response = client.post(agent.path, json=agent.request())
    assert response.status_code == 200, response.text
    usage: Body = response.json()["usage"]
    return usage


def run_agent(
    gateway: RunningGateway,
    sandbox: RunningSandbox,
    requests: int,
    *,
    agent: FileReader | None = None,
    pauses: Sequence[int] = (),
) -> Iterator[int]:
    """Send requests; yield the number of input tokens of each. It is idle for long before some of them."""
    agent, finished = agent or FileReader(), len(gateway.finished)
    with httpx.Client(base_url=gateway.url, headers=agent.headers, timeout=60) as client:
        for number in range(requests):
            sandbox.clock.now += PAUSE_SECONDS if number in pauses else 20
            usage = send(client, agent)
            keys = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            yield sum(usage.get(key, 0) for key in keys)
            gateway.wait_for_compactions(finished + number + 1)
            agent.read_file(number)


@pytest.fixture
def young_sessions_may_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sessions show what long ones do."""
    monkeypatch.setattr("foveate.compaction.edit_timing._MAX_LOSS_REQUESTS", 1)


def read_edits(folder: Path) -> Sequence[Compaction]:
    async def read() -> Sequence[Compaction]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return (await store.compactions.list_compactions(limit=100))[::-1]

    return asyncio.run(read())


def read_cost(folder: Path) -> float:
    async def read() -> float:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            totals = await store.ledger.sum_charges([GroupBy.CATEGORY])
            return float(sum(total.dollars for total in totals))

    return asyncio.run(read())


def read_charges(folder: Path) -> Sequence[Charge]:
    async def read() -> Sequence[Charge]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return [charge async for charge in store.ledger.list_charges(since=0)]

    return asyncio.run(read())


@pytest.mark.process
@pytest.mark.parametrize("clearing", ["cold", "cost"])
@pytest.mark.parametrize("agent_class", [FileReader, ChatFileReader])
def test_results_in_a_warm_cache_stay_without_breakpoints_of_the_gateway_and_without_compaction(
    tmp_path: Path, agent_class: type[FileReader], clearing: str
) -> None:
    options = configure({"clearing": clearing}, {"prompt_cache": agent_class is ChatFileReader})
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        sizes = list(run_agent(gateway, sandbox, 13, agent=agent_class()))
        assert gateway.failed_steps == []

    assert sizes == sorted(sizes)
    assert sizes[-1] > 3 * sizes[0]
    assert read_edits(tmp_path) == []


@pytest.mark.process
def test_a_cache_from_before_clearing_was_turned_on_counts_as_warm(tmp_path: Path) -> None:
    chosen = [configure({"clearing": clearing}, {"prompt_cache": False}) for clearing in ("cold", "off")]
    agent = FileReader(tokens_per_file=2_500)
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=lambda: chosen[-1]) as gateway,
    ):
        list(run_agent(gateway, sandbox, 12, agent=agent))
        chosen.pop()
        list(run_agent(gateway, sandbox, 3, agent=agent))

    assert read_edits(tmp_path) == []


@pytest.mark.slow
@pytest.mark.process
def test_a_long_session_is_compacted_because_it_pays_and_costs_less(tmp_path: Path) -> None:
    costs = {}
    for trigger in ("window", "cost"):
        folder = tmp_path / trigger
        folder.mkdir()
        options = configure({"enabled": True, "trigger": trigger})
        with (
            running_sandbox(NEXT_CALL, repeat=True) as sandbox,
            running_gateway(sandbox.url, folder, clock=sandbox.clock, options=options) as gateway,
        ):
            list(run_agent(gateway, sandbox, 60))
            assert gateway.failed_steps == []
        costs[trigger] = read_cost(folder)
    assert read_edits(tmp_path / "window") == []
    edits = read_edits(tmp_path / "cost")
    made = [edit for edit in edits if edit.outcome is CompactionOutcome.OK]

    assert made
    for edit in made:
        assert edit.decision is not None
        assert edit.decision.moment == "response"
        assert edit.decision.gain_dollars > edit.decision.cost_dollars > 0
        assert edit.decision.expected_requests > 1
    assert costs["cost"] < 0.9 * costs["window"]

    url = f"sqlite:///{tmp_path}/cost/gateway.sqlite"
    shown = json.loads(spawn("compactions", "show", made[0].id, "--store", url, "--json").out)
    assert shown["decision"]["gain_dollars"] == made[0].decision.gain_dollars if made[0].decision else False
    assert float(shown["realized"]["dollars"]) > float(made[0].cost or 0)
    text = spawn("compactions", "show", made[0].id, "--store", url).out
    assert "because it was expected to save $" in text
    assert "So far it has saved $" in text


@pytest.mark.usefixtures("young_sessions_may_lose")
def test_a_summary_of_a_prompt_whose_cache_has_expired_is_not_written_to_the_cache(tmp_path: Path) -> None:
    """Defect: the client's breakpoints were sent too, so a prompt that is never sent again was written."""
    options = configure({"enabled": True, "trigger": "cost"})
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        list(run_agent(gateway, sandbox, 21, pauses=(20,)))
    (edit,) = read_edits(tmp_path)
    (summary,) = [charge for charge in read_charges(tmp_path) if charge.call.category is Category.COMPACTION]

    assert edit.decision is not None
    assert edit.decision.moment == "arrival"
    assert summary.usage.cache.written_5m == 0
    assert summary.usage.cache.input_tokens > 10_000


def test_tool_results_are_cleared_once_the_cache_has_expired(tmp_path: Path) -> None:
    options = configure({"clearing": "cold"})
    bodies: list[Body] = []
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        sizes = []
        for size in run_agent(gateway, sandbox, 34, pauses=(30,)):
            sizes.append(size)
            bodies.append(json.loads(sandbox.requests[-1].body))
        assert gateway.failed_steps == []
    (edit,) = read_edits(tmp_path)

    assert edit.outcome is CompactionOutcome.RESULTS_CLEARED
    assert edit.decision is not None
    assert edit.decision.moment == "arrival"
    assert sizes[29] - sizes[30] > 0.8 * edit.freed_tokens > 10_000
    placeholders = [block.text for block in edit.cleared]
    assert placeholders[0].startswith("[cleared: ")
    assert "Read src/file_0.py" in placeholders[0]
    for body in bodies[30:]:  # the same bytes in every later request
        sent = [
            block["content"]
            for message in body["messages"]
            for block in message["content"]
            if isinstance(block, dict) and block["type"] == "tool_result"
        ]
        texts = [content if isinstance(content, str) else content[0]["text"] for content in sent]
        assert [text for text in texts if text.startswith("[cleared: ")] == placeholders
    assert not any("[cleared: " in json.dumps(body) for body in bodies[:30])


@pytest.mark.usefixtures("young_sessions_may_lose")
def test_results_are_cleared_as_soon_as_a_request_exceeds_a_price_step(tmp_path: Path) -> None:
    agent = FileReader(tokens_per_file=1_000, model="claude-haiku-5-5")
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(
            sandbox.url, tmp_path, clock=sandbox.clock, options=configure({"clearing": "cost"})
        ) as gateway,
    ):
        sizes = list(run_agent(gateway, sandbox, 34, agent=agent))
        assert gateway.failed_steps == []

    assert 90_000 < max(sizes) <= 100_000
    assert sizes[-1] < 60_000


@pytest.mark.process
def test_clearing_can_be_undone(tmp_path: Path) -> None:
    options = configure({"clearing": "cold"})
    agent, url = FileReader(), f"sqlite:///{tmp_path}/gateway.sqlite"
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        sizes = list(run_agent(gateway, sandbox, 32, agent=agent, pauses=(30,)))
        (edit,) = read_edits(tmp_path)
        undone = spawn("compactions", "undo", edit.id, "--store", url)
        sizes += list(run_agent(gateway, sandbox, 1, agent=agent))

    assert undone.code == 0, undone.err
    assert "Clearing" in undone.out
    assert sizes[32] - sizes[31] > 0.8 * edit.freed_tokens


@pytest.mark.process
def test_thinking_after_cleared_results_does_not_prevent_their_return(tmp_path: Path) -> None:
    """Defect: the provider rejected thinking that is bound to the placeholders before it."""
    agent, url = FileReader(model="claude-opus-5-5"), f"sqlite:///{tmp_path}/gateway.sqlite"
    with (
        running_sandbox(structs.replace(NEXT_CALL, thinking="Which file is next?"), repeat=True) as sandbox,
        running_gateway(
            sandbox.url, tmp_path, clock=sandbox.clock, options=configure({"clearing": "cold"})
        ) as gateway,
    ):
        list(run_agent(gateway, sandbox, 31, agent=agent, pauses=(30,)))
        (edit,) = read_edits(tmp_path)
        agent.parameters = {"thinking": {"type": "adaptive"}}
        with httpx.Client(base_url=gateway.url, headers=HEADERS, timeout=60) as client:
            for number in range(6):
                if number == 3:
                    assert spawn("compactions", "undo", edit.id, "--store", url).code == 0
                response = client.post("/v1/messages", json=agent.request())
                assert response.status_code == 200, response.text
                content = response.json()["content"]
                result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": f"file {number}"}
                agent.messages += [
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": [result]},
                ]
                last_sent = sandbox.requests[-1].body

    assert content[0]["type"] == "thinking"
    assert b"[cleared: " not in last_sent
    assert last_sent.count(b"Which file is next?") == 2  # of five; three were produced after the placeholders


@pytest.mark.usefixtures("young_sessions_may_lose")
def test_a_session_that_returns_to_a_cold_cache_is_compacted_before_its_request_is_sent(
    tmp_path: Path,
) -> None:
    options = configure({"enabled": True, "trigger": "cost"})
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        sizes = list(run_agent(gateway, sandbox, 28, pauses=(25,)))
        assert gateway.failed_steps == []
    edits = [edit for edit in read_edits(tmp_path) if edit.decision and edit.decision.moment == "arrival"]

    assert [edit.outcome for edit in edits] == [CompactionOutcome.OK]
    assert sizes[25] < 0.5 * sizes[24]


@pytest.mark.usefixtures("young_sessions_may_lose")
def test_an_idle_session_is_compacted_before_its_cache_expires(
    tmp_path: Path,
) -> None:
    options = configure({"enabled": True, "trigger": "cost"})
    agent = FileReader()
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        list(run_agent(gateway, sandbox, 24, agent=agent))
        assert read_edits(tmp_path) == []
        sandbox.clock.now += 291
        deadline = time.monotonic() + 60
        while not read_edits(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (edit,) = read_edits(tmp_path)
        (size,) = run_agent(gateway, sandbox, 1, agent=agent)

    assert edit.decision is not None
    assert edit.decision.moment == "expiry"
    assert size < 40_000


@pytest.mark.usefixtures("young_sessions_may_lose")
def test_a_session_that_was_kept_alive_is_decided_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: after a keep-alive that was worth more, its cache expired without another decision."""
    options = replace(
        configure({"enabled": True, "trigger": "cost"}), keep_alive=KeepAliveOptions(enabled=True)
    )
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        monkeypatch.setattr(
            SessionCompactor, "keep_alive_pays_more", lambda *_: not keep_alive_requests(sandbox)
        )
        list(run_agent(gateway, sandbox, 24))
        assert read_edits(tmp_path) == []
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        assert read_edits(tmp_path) == []
        sandbox.clock.now += 281
        wait_until(lambda: read_edits(tmp_path), bool)
    (edit,) = read_edits(tmp_path)

    assert edit.decision is not None
    assert edit.decision.moment == "expiry"


async def store_short_sessions(folder: Path, *, ended_at: float) -> None:
    """Thirty sessions of two requests each."""
    ensure_store(folder / "gateway.sqlite")
    async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
        for number in range(60):
            trace = structs.replace(
                TRACE,
                id=f"request {number}",
                agent="default",
                session_id=f"session {number // 2}",
                at=ended_at,
                status=200,
                cache_miss=None,
            )
            await store.traces.save([trace])


@pytest.mark.usefixtures("young_sessions_may_lose")
def test_a_restarted_gateway_knows_how_long_an_agents_sessions_are(tmp_path: Path) -> None:
    options = configure({"clearing": "cold"})
    expected_requests = {}
    for history in ("none", "short"):
        folder = tmp_path / history
        folder.mkdir()
        with running_sandbox(NEXT_CALL, repeat=True) as sandbox:
            if history == "short":
                asyncio.run(store_short_sessions(folder, ended_at=sandbox.clock.now - 10_000))
            with running_gateway(sandbox.url, folder, clock=sandbox.clock, options=options) as gateway:
                list(run_agent(gateway, sandbox, 31, pauses=(30,)))
        (edit,) = read_edits(folder)
        assert edit.decision is not None
        expected_requests[history] = edit.decision.expected_requests

    assert expected_requests["short"] < 0.9 * expected_requests["none"]


def test_nothing_is_cleared_if_the_provider_is_asked_to_clear(tmp_path: Path) -> None:
    options = configure({"clearing": "cost"})
    agent = FileReader()
    agent.parameters = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    with (
        running_sandbox(NEXT_CALL, repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        list(run_agent(gateway, sandbox, 32, agent=agent, pauses=(30,)))

    assert read_edits(tmp_path) == []


def test_trigger_and_clearing_can_be_set_for_one_agent() -> None:
    options = configure({}, {"compaction": True, "compaction_trigger": "cost", "clearing": "cold"})

    assert options.compacts_by_cost
    assert options.clearing == "cold"
    off = configure(
        {"trigger": "cost", "clearing": "cost"}, {"compaction_trigger": "window", "clearing": "off"}
    )
    assert not off.compacts_by_cost
    assert not off.clears
    assert not configure({"clearing": False}).clears  # an unquoted `off` in YAML
