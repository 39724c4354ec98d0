"""Real agents through the gateway, on a small task: in parallel, with sub-agents, resumed, and compacted.

`tools/agents install` installs them. They call a scripted model (`tests/agents/model.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from foveate.store.repositories.sessions import SessionLabel
from tests.agents.agents import AGENTS, Agent, Workplace
from tests.agents.model import DELEGATED, Model, RecordedRequest, Task, running_model
from tests.support.servers.gateway import RunningGateway, running_gateway

PROMPT = "Write the numbers into the file, one after the other, with shell commands."
Tokens = tuple[int, int, int, int]
"""Input tokens that are not read from the cache, read from it and written to it, and output tokens."""

pytestmark = [pytest.mark.agents, pytest.mark.slow, pytest.mark.process]


@dataclass
class AgentRuns:
    """A gateway in front of the model, and runs of agents through it."""

    folder: Path
    model: Model
    gateway: RunningGateway
    runs: list[tuple[Agent, Workplace]] = field(default_factory=list)
    children: int = 0

    def add_run(self, agent: Agent, **task: object) -> Workplace:
        """Prepare a run of an agent with its own folder, home and key."""
        number = len(self.runs)
        home, folder = self.folder / f"home-{number}", self.folder / f"work-{number}"
        home.mkdir()
        folder.mkdir()
        workplace = Workplace(folder, home, f"{agent.key_start}{number:040d}", self.gateway.url)
        self.runs.append((agent, workplace))
        self.assign_task(agent, workplace, **task)
        return workplace

    def assign_task(self, agent: Agent, workplace: Workplace, **task: Any) -> Task:
        new_task = Task(workplace.folder, edits_text=agent.edits_text, **task)
        self.model.tasks[workplace.key] = new_task
        return new_task

    def run(self, agent: Agent, workplace: Workplace, *, resumes: bool = False) -> None:
        """Run an agent, and check that its task is done."""
        result = agent.run(workplace, PROMPT, resumes=resumes)
        task = self.model.tasks[workplace.key]
        expected = task.done_lines if task.edits_text else task.lines
        output = f"{agent.name}: {result.stdout[-2000:]}\n{result.stderr[-2000:]}"
        assert result.returncode == 0, output
        assert 0 < task.done_lines == expected, output

    def read_ledger(self) -> list[tuple[str, Tokens]]:
        """Tokens in the ledger for each session together with its children."""

        async def read() -> tuple[Sequence[ChargeTotal], Mapping[str, SessionLabel]]:
            async with await open_store(f"sqlite:///{self.folder}/gateway.sqlite") as store:
                sums = await store.ledger.sum_charges([GroupBy.AGENT, GroupBy.SESSION])
                return sums, await store.session_tree.labels([total.group[1] for total in sums])

        sums, labels = asyncio.run(read())
        self.children = sum(label.parent_id is not None for label in labels.values())
        families: dict[tuple[str, str], list[Tokens]] = {}
        for total in sums:
            agent, session = total.group
            families.setdefault((agent, labels[session].parent_id or session), []).append(
                _recorded_tokens(total)
            )
        return [(agent, _sum_tokens(tokens)) for (agent, _), tokens in families.items()]

    def check(self, *, sessions: int | None = None, misses: int = 0) -> None:
        """Check that every run is one session with the usage that the provider reported, and nothing is lost.

        With `sessions`, all runs together have that many. `misses` are cache misses that the agents cause.
        """
        assert self.gateway.failed_steps == []
        assert len([miss for miss in self.gateway.cache_misses if not miss.is_planned]) == misses
        rejected = [
            request for request in self.model.recorded if request.status >= 400 and request.body is not None
        ]
        assert [(request.path, request.reply) for request in rejected] == []
        recorded = self.read_ledger()
        reported = [
            (
                agent.ledger_name,
                _sum_tokens(
                    _reported_tokens(request) for request in self.model.requests_with_key(workplace.key)
                ),
            )
            for agent, workplace in self.runs
        ]
        if sessions is None:
            assert Counter(recorded) == Counter(reported)
        else:
            assert len(recorded) == sessions
            assert _sum_tokens(tokens for _, tokens in recorded) == _sum_tokens(
                tokens for _, tokens in reported
            )


def _recorded_tokens(total: ChargeTotal) -> Tokens:
    return total.uncached, total.read, total.written_5m + total.written_1h, total.output_tokens


def _reported_tokens(request: RecordedRequest) -> Tokens:
    usage = request.usage
    if usage is None:
        return 0, 0, 0, 0
    if "usageMetadata" in usage or "promptTokenCount" in usage:
        read = usage.get("cachedContentTokenCount", 0)
        output = usage.get("candidatesTokenCount", 0) + usage.get("thoughtsTokenCount", 0)
        return usage["promptTokenCount"] - read, read, 0, output
    if "cache_read_input_tokens" in usage:
        read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        return usage["input_tokens"], read, written, usage["output_tokens"]
    details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or {}
    total = usage.get("input_tokens", usage.get("prompt_tokens", 0))
    read, written = details.get("cached_tokens", 0), details.get("cache_write_tokens", 0)
    return total - read - written, read, written, usage.get("output_tokens", usage.get("completion_tokens", 0))


def _sum_tokens(tokens: Iterable[Tokens]) -> Tokens:
    uncached, read, written, output = (sum(values) for values in zip(*tokens, strict=True))
    return uncached, read, written, output


@contextmanager
def open_runs(folder: Path, options: AgentOptions | None = None) -> Iterator[AgentRuns]:
    with (
        running_model() as (url, model),
        running_gateway(url, folder, options=options or AgentOptions()) as gateway,
    ):
        yield AgentRuns(folder, model, gateway)


def agent_parameters(*agents: Agent) -> list[object]:
    """Parameters of a test: agents that are not installed are skipped, with advice."""
    return [
        pytest.param(
            agent,
            id=agent.name,
            marks=pytest.mark.skipif(
                agent.path is None, reason=f"{agent.name} is not installed: run tools/agents install"
            ),
        )
        for agent in agents
    ]


@pytest.mark.parametrize("agent", agent_parameters(*AGENTS))
def test_two_parallel_runs_of_an_agent_with_the_same_prompt_are_two_sessions(
    agent: Agent, tmp_path: Path
) -> None:
    with open_runs(tmp_path) as runs:
        workplaces = [runs.add_run(agent), runs.add_run(agent)]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda workplace: runs.run(agent, workplace), workplaces))
        runs.check()


def test_parallel_runs_of_all_agents_with_the_same_prompt_have_a_session_each(tmp_path: Path) -> None:
    installed = [agent for agent in AGENTS if agent.path is not None]
    if len(installed) < 2:
        pytest.skip("fewer than two agents are installed: run tools/agents install")
    with open_runs(tmp_path) as runs:
        planned_runs = [(agent, runs.add_run(agent)) for agent in installed]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda run: runs.run(*run), planned_runs))
        runs.check()


@pytest.mark.parametrize("agent", agent_parameters(*(agent for agent in AGENTS if agent.resume is not None)))
def test_a_resumed_agent_stays_in_one_session(agent: Agent, tmp_path: Path) -> None:
    with open_runs(tmp_path) as runs:
        workplace = runs.add_run(agent)
        runs.run(agent, workplace)
        runs.assign_task(agent, workplace, lines=6)
        runs.run(agent, workplace, resumes=True)
        runs.check(misses=0 if agent.keeps_history else 1)


@pytest.mark.parametrize("agent", agent_parameters(*(agent for agent in AGENTS if agent.sub_agent)))
def test_a_sub_agent_is_a_child_of_its_session_or_a_session_of_its_own(agent: Agent, tmp_path: Path) -> None:
    with open_runs(tmp_path) as runs:
        workplace = runs.add_run(agent, sub_agent=agent.sub_agent)
        runs.run(agent, workplace)
        assert (workplace.folder / DELEGATED).exists()
        runs.check(sessions=None if agent.names_parent else 2)
        assert runs.children == agent.names_parent


@pytest.mark.parametrize("agent", agent_parameters(*(agent for agent in AGENTS if not agent.edits_text)))
def test_an_agent_continues_after_compactions(agent: Agent, tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True,
        window_tokens=agent.small_window_tokens,
        compaction_options=CompactionOptions(tail_keep_tokens=5_000),
    )
    with open_runs(tmp_path, options) as runs:
        workplace = runs.add_run(agent, lines=14, output_lines=350)
        runs.run(agent, workplace)
        runs.check()
        assert any(miss.is_planned for miss in runs.gateway.cache_misses)
