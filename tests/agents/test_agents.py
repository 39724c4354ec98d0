"""Real agents through the gateway, on a small task: in parallel, with sub-agents, resumed, and compacted.

`tools/agents install` installs them. They talk to a model that is a program (`tests/agents/model.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from foveate.store.repositories.sessions import SessionLabel
from tests.agents.agents import AGENTS, Agent, Place
from tests.agents.model import DELEGATED, Model, Recorded, Task, running_model
from tests.support.servers.gateway import RunningGateway, running_gateway

PROMPT = "Write the numbers into the file, one after the other, with shell commands."
Tokens = tuple[int, int, int, int]
"""Input tokens that are not read from the cache, read from it and written to it, and output tokens."""

pytestmark = [pytest.mark.agents, pytest.mark.slow, pytest.mark.process]


@dataclass
class Ground:
    """A gateway before the model, and places for agents to work in."""

    folder: Path
    model: Model
    gateway: RunningGateway
    runs: list[tuple[Agent, Place]] = field(default_factory=list)
    children: int = 0

    def place(self, agent: Agent, **task: object) -> Place:
        """A folder, a home and a key of its own for a run of an agent."""
        number = len(self.runs)
        home, folder = self.folder / f"home-{number}", self.folder / f"work-{number}"
        home.mkdir()
        folder.mkdir()
        place = Place(folder, home, f"{agent.key_start}{number:040d}", self.gateway.url)
        self.runs.append((agent, place))
        self.give(agent, place, **task)
        return place

    def give(self, agent: Agent, place: Place, **task: object) -> Task:
        """Give an agent a task."""
        given = Task(place.folder, edits_text=agent.edits_text, **task)  # type: ignore[arg-type]
        self.model.tasks[place.key] = given
        return given

    def run(self, agent: Agent, place: Place, *, resumes: bool = False) -> None:
        """Have it done, and see that it is."""
        ended = agent.run(place, PROMPT, resumes=resumes)
        task = self.model.tasks[place.key]
        wanted = task.done_lines if task.edits_text else task.lines
        told = f"{agent.name}: {ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
        assert ended.returncode == 0, told
        assert 0 < task.done_lines == wanted, told

    def booked(self) -> list[tuple[str, Tokens]]:
        """What the ledger says of each session together with its children."""

        async def read() -> tuple[Sequence[ChargeTotal], Mapping[str, SessionLabel]]:
            async with await open_store(f"sqlite:///{self.folder}/gateway.sqlite") as store:
                sums = await store.ledger.sum_charges([GroupBy.AGENT, GroupBy.SESSION])
                return sums, await store.session_tree.labels([found.group[1] for found in sums])

        sums, labels = asyncio.run(read())
        self.children = sum(label.parent_id is not None for label in labels.values())
        families: dict[tuple[str, str], list[Tokens]] = {}
        for found in sums:
            agent, session = found.group
            families.setdefault((agent, labels[session].parent_id or session), []).append(_booked(found))
        return [(agent, _added(tokens)) for (agent, _), tokens in families.items()]

    def check(self, *, sessions: int | None = None, misses: int = 0) -> None:
        """See that every run is one session, that each costs what the provider billed, and nothing was lost.

        With `sessions`, all runs have so many together. `misses` are those that the agents cause themselves.
        """
        assert self.gateway.failed_steps == []
        assert len([seen for seen in self.gateway.cache_misses if not seen.is_planned]) == misses
        refused = [each for each in self.model.recorded if each.status >= 400 and each.body is not None]
        assert [(each.path, each.reply) for each in refused] == []
        booked = self.booked()
        billed = [
            (agent.booked_as, _added(_billed(each) for each in self.model.of(place.key)))
            for agent, place in self.runs
        ]
        if sessions is None:
            assert Counter(booked) == Counter(billed)
        else:
            assert len(booked) == sessions
            assert _added(tokens for _, tokens in booked) == _added(tokens for _, tokens in billed)


def _booked(found: ChargeTotal) -> Tokens:
    return found.uncached, found.read, found.written_5m + found.written_1h, found.output_tokens


def _billed(recorded: Recorded) -> Tokens:
    usage = recorded.usage
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
    whole = usage.get("input_tokens", usage.get("prompt_tokens", 0))
    read, written = details.get("cached_tokens", 0), details.get("cache_write_tokens", 0)
    return whole - read - written, read, written, usage.get("output_tokens", usage.get("completion_tokens", 0))


def _added(tokens: Iterable[Tokens]) -> Tokens:
    uncached, read, written, output = (sum(each) for each in zip(*tokens, strict=True))
    return uncached, read, written, output


@contextmanager
def ground(folder: Path, options: AgentOptions | None = None) -> Iterator[Ground]:
    with (
        running_model() as (url, model),
        running_gateway(url, folder, options=options or AgentOptions()) as gateway,
    ):
        yield Ground(folder, model, gateway)


def installed(*agents: Agent) -> list[object]:
    """Parameters of a test: those that are not installed are skipped, with what to do."""
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


@pytest.mark.parametrize("agent", installed(*AGENTS))
def test_an_agent_twice_in_parallel_with_one_prompt_has_two_sessions(agent: Agent, tmp_path: Path) -> None:
    with ground(tmp_path) as there:
        places = [there.place(agent), there.place(agent)]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda place: there.run(agent, place), places))
        there.check()


def test_all_agents_at_once_with_one_prompt_have_a_session_each(tmp_path: Path) -> None:
    there_are = [agent for agent in AGENTS if agent.path is not None]
    if len(there_are) < 2:
        pytest.skip("fewer than two agents are installed: run tools/agents install")
    with ground(tmp_path) as there:
        runs = [(agent, there.place(agent)) for agent in there_are]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda run: there.run(*run), runs))
        there.check()


@pytest.mark.parametrize("agent", installed(*(agent for agent in AGENTS if agent.resume is not None)))
def test_an_agent_that_is_resumed_stays_one_session(agent: Agent, tmp_path: Path) -> None:
    with ground(tmp_path) as there:
        place = there.place(agent)
        there.run(agent, place)
        there.give(agent, place, lines=6)
        there.run(agent, place, resumes=True)
        there.check(misses=0 if agent.keeps_history else 1)


@pytest.mark.parametrize("agent", installed(*(agent for agent in AGENTS if agent.sub_agent)))
def test_a_sub_agent_is_a_child_of_its_session_or_a_session_of_its_own(agent: Agent, tmp_path: Path) -> None:
    with ground(tmp_path) as there:
        place = there.place(agent, sub_agent=agent.sub_agent)
        there.run(agent, place)
        assert (place.folder / DELEGATED).exists()
        there.check(sessions=None if agent.names_parent else 2)
        assert there.children == agent.names_parent


@pytest.mark.parametrize("agent", installed(*(agent for agent in AGENTS if not agent.edits_text)))
def test_an_agent_works_on_across_compactions(agent: Agent, tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True,
        window_tokens=agent.small_window_tokens,
        compaction_options=CompactionOptions(tail_keep_tokens=5_000),
    )
    with ground(tmp_path, options) as there:
        place = there.place(agent, lines=14, output_lines=350)
        there.run(agent, place)
        there.check()
        assert any(seen.is_planned for seen in there.gateway.cache_misses)
