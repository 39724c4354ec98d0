"""Files that change, vanish or cannot be read: the request is sent with the other sections, and the problem is
reported.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from foveate import LadderName
from foveate.budget.budget import Budget, SectionRule
from foveate.budget.sections import Priority
from foveate.context.sections import context_inputs
from foveate.context.time_section import TimeOptions
from foveate.context.workspace_cache import WorkspaceCacheOptions
from foveate.engine.options import AgentOptions, EmbeddingOptions, MemoryOptions, SectionOptions
from foveate.engine.sections.sources import (
    AGENT_BUDGET_FILE,
    REFRESH_SECONDS,
    SOURCE_TIMEOUT_SECONDS,
    LoadedMemory,
    SectionSources,
)
from foveate.errors import BudgetExceeded
from foveate.http.proxies import ProxyRules
from foveate.memory.privacy import DEFAULT_PRIVACY_TAGS
from foveate.model import Format
from foveate.tokens import counter_for
from tests.support.scenarios.injected_sections import SectionInjection, garden_sections, only_sections
from tests.support.servers.embeddings import embedding_server

HELLO: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "messages": [{"role": "user", "content": "When does bed 7 get water?"}],
}
QUICK = WorkspaceCacheOptions(watch_debounce_ms=10)


def send(injection: SectionInjection, sections: SectionOptions) -> str:
    return injection.apply(HELLO, Format.ANTHROPIC, AgentOptions(sections=sections)).request.body.decode()


def wait_until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_changed_workspace_is_in_the_next_request_and_counted(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    sections = only_sections(replace(garden, workspace_cache=QUICK), workspace=garden.workspace)
    injection = SectionInjection()
    first = send(injection, sections)
    second = send(injection, sections)
    root = str(tmp_path / "workspace")
    time.sleep(0.2)  # until it is watched

    (tmp_path / "workspace" / "USER.md").write_text("# Bob\n\nHas tulips.\n")
    wait_until(lambda: "Has tulips." in send(injection, sections))

    counts = injection.sources.workspace_counts()[root]
    injection.sources.close()
    assert first == second
    assert "Has roses." in first
    assert counts.hits >= 1
    assert counts.misses >= 2
    assert counts.invalidations >= 1


def test_a_vanished_workspace_file_keeps_its_content_and_is_reported(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    sections = only_sections(replace(garden, workspace_cache=QUICK), workspace=garden.workspace)
    injection = SectionInjection()
    first = send(injection, sections)
    time.sleep(0.2)

    (tmp_path / "workspace" / "USER.md").unlink()
    wait_until(lambda: bool(send(injection, sections) and injection.problems))

    assert send(injection, sections) == first
    injection.sources.close()
    assert injection.problems[0].step == "sections/workspace"
    assert "is missing" in injection.problems[0].reason


def test_an_unreadable_memory_is_left_out_and_reported(tmp_path: Path) -> None:
    sections = replace(garden_sections(tmp_path), memory=MemoryOptions(paths=(str(tmp_path / "nowhere"),)))
    injection = SectionInjection()

    body = send(injection, sections)

    injection.sources.close()
    assert "## Memory" not in body
    assert "Time: " in body
    assert {problem.step for problem in injection.problems} == {"sections/memory"}
    assert "nowhere" in injection.problems[0].reason


def test_a_memory_that_comes_back_is_shown_again_with_its_changes(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path / "garden")
    notes = tmp_path / "late"
    sections = only_sections(garden, memory=MemoryOptions(paths=(str(notes),)))
    clock = [0.0]
    injection = SectionInjection(sources=SectionSources(clock=lambda: clock[0]))
    assert "Bed 7" not in send(injection, sections)

    notes.mkdir()
    (notes / "a.md").write_text("# Bed 7\n\nGets water on Monday.\n")
    clock[0] += REFRESH_SECONDS
    assert "Gets water on Monday." in send(injection, sections)

    (notes / "a.md").write_text("# Bed 7\n\nGets water on Sunday.\n")
    clock[0] += REFRESH_SECONDS
    assert "Gets water on Sunday." in send(injection, sections)


def test_a_vanished_folder_of_skills_keeps_its_skills(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    sections = only_sections(garden, skills=garden.skills)
    clock = [0.0]
    injection = SectionInjection(sources=SectionSources(clock=lambda: clock[0]))
    first = send(injection, sections)

    (tmp_path / "skills").rename(tmp_path / "away")
    clock[0] += REFRESH_SECONDS
    second = send(injection, sections)

    assert "Skill water: waters a bed" in first
    assert second == first
    assert injection.problems[0].step == "sections/skills"


def test_a_skill_that_becomes_private_is_not_sent_even_if_another_file_cannot_be_read(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    sections = only_sections(garden, skills=garden.skills)
    (tmp_path / "skills" / "drafts").mkdir()  # a warning: it has no SKILL.md
    clock = [0.0]
    injection = SectionInjection(sources=SectionSources(clock=lambda: clock[0]))
    first = send(injection, sections)

    private = "---\nname: water\ntags: [private]\ndescription: waters a bed\n---\nHow to.\n"
    (tmp_path / "skills" / "water.md").write_text(private)
    clock[0] += REFRESH_SECONDS
    second = send(injection, sections)

    assert "waters a bed" in first
    assert "waters a bed" not in second


def test_a_file_is_read_once_for_concurrent_requests(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    injection = SectionInjection()
    assert garden.memory is not None
    memory = garden.memory

    async def load_concurrently() -> int:
        memories = await asyncio.gather(
            *(injection.sources.memory(memory, garden.privacy_tags) for _ in range(20))
        )
        await asyncio.gather(*(injection.sources.workspace(garden) for _ in range(20)))
        return len({id(value) for value in memories})

    assert asyncio.run(load_concurrently()) == 1
    counts = injection.sources.workspace_counts()[str(tmp_path / "workspace")]
    injection.sources.close()
    assert counts.misses == 1


def test_a_hanging_server_of_embeddings_blocks_no_other_work(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Bed 7\n\nGets water.\n# Bed 8\n\nGets sun.\n")
    may_respond = Event()
    may_respond.set()

    def embed(text: str) -> list[float]:
        may_respond.wait(60)
        return [1.0, float(len(text))]

    async def query(sources: SectionSources, loaded: LoadedMemory, text: str) -> None:
        assert loaded.memory is not None
        inputs = context_inputs(
            loaded.memory, agent="ana", query=text, limit_tokens=100, format="auto", model="gpt-4o"
        )
        deadline = asyncio.get_running_loop().time() + 0.05
        with pytest.raises(TimeoutError):
            await sources.memory_section("user", loaded, inputs, counter_for("gpt-4o"), deadline)

    async def send_many(options: MemoryOptions) -> int:
        sources = SectionSources()
        loaded = await sources.memory(options, DEFAULT_PRIVACY_TAGS)
        may_respond.clear()
        try:
            await asyncio.gather(*(query(sources, loaded, f"bed {number}") for number in range(40)))
            async with asyncio.timeout(30):
                return await asyncio.to_thread(lambda: 7)
        finally:
            may_respond.set()
            sources.close()

    with embedding_server(embed) as server:
        options = MemoryOptions(
            paths=(str(tmp_path),), embeddings=EmbeddingOptions(url=server.url, model="small")
        )
        assert asyncio.run(send_many(options)) == 7


def test_projects_and_deadlines_are_sent_without_the_server_of_embeddings(tmp_path: Path) -> None:
    """Regression: all notes were read again every second, and nothing of them was sent."""
    garden = garden_sections(tmp_path)
    (tmp_path / "notes" / "pond.org").write_text("* TODO Dig a pond :project:\nBy the shed.\n")
    nowhere = EmbeddingOptions(url="http://127.0.0.1:9", model="small")
    assert garden.memory is not None
    memory = replace(garden.memory, embeddings=nowhere)
    sections = only_sections(garden, memory=memory, time=TimeOptions(), zone=UTC)
    clock = [0.0]
    injection = SectionInjection(sources=SectionSources(clock=lambda: clock[0]))

    bodies = []
    loaded = []
    for _ in range(2):
        bodies.append(send(injection, sections))
        loaded.append(asyncio.run(injection.sources.memory(memory, sections.privacy_tags)).memory)
        clock[0] += REFRESH_SECONDS

    assert loaded[0] is loaded[1] is not None
    assert all("Dig a pond" in body and "Prune" in body for body in bodies)
    assert not any("Bed 7 gets water" in body for body in bodies)
    assert {problem.step for problem in injection.problems} == {"sections/memory"}


class HangingSources(SectionSources):
    """Files on a disk that hangs while `is_hanging` is set."""

    is_hanging = False

    async def load_once(self, key: Any, load: Any, deadline: float | None) -> Any:
        return await super().load_once(key, (lambda: asyncio.sleep(30)) if self.is_hanging else load, deadline)


def test_requests_do_not_wait_for_a_hanging_disk_and_use_the_last_workspace(tmp_path: Path) -> None:
    uncached = WorkspaceCacheOptions(enabled=False)
    sections = replace(garden_sections(tmp_path), budget=False, workspace_cache=uncached)
    clock = [0.0]
    sources = HangingSources(clock=lambda: clock[0])
    first = send(SectionInjection(sources=sources), sections)

    sources.is_hanging = True
    clock[0] += REFRESH_SECONDS
    stalled = SectionInjection(sources=sources, timeout_seconds=0.05)
    second = send(stalled, sections)

    sources.close()
    assert "## Memory" in first
    assert "You are Ana" in second
    assert "## Memory" not in second
    assert [problem.step.removeprefix("sections/") for problem in stalled.problems] == [
        *("limits", "workspace", "skills", "memory", "time")
    ]
    assert "took too long" in stalled.problems[0].reason


class HangingMemory(SectionSources):
    """A memory whose load never ends."""

    async def _load_memory(self, key: object, cached: LoadedMemory | None) -> LoadedMemory:
        await asyncio.sleep(30)
        raise AssertionError


def test_a_load_that_others_gave_up_on_is_not_waited_for(tmp_path: Path) -> None:
    memory = garden_sections(tmp_path).memory
    assert memory is not None
    clock = [0.0]
    sources = HangingMemory(clock=lambda: clock[0])

    async def time_second_load() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sources.memory(memory, frozenset()), 0.05)
        clock[0] += SOURCE_TIMEOUT_SECONDS + 1
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await sources.memory(memory, frozenset())
        return time.monotonic() - started

    assert asyncio.run(time_second_load()) < 5


async def test_a_server_of_embeddings_is_reached_through_the_proxy(tmp_path: Path) -> None:
    memory = garden_sections(tmp_path).memory
    assert memory is not None
    embeddings = EmbeddingOptions(url="https://embeddings.test", model="small")
    sources = SectionSources(proxies=ProxyRules(https="http://127.0.0.1:1"))

    loaded = await sources.memory(replace(memory, embeddings=embeddings), frozenset())

    assert "the proxy http://127.0.0.1:1 is unreachable" in loaded.problem


def test_an_agent_limits_its_own_sections_within_what_is_allowed(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    sections = replace(
        only_sections(garden, workspace=garden.workspace, time=garden.time), limits=Budget(5_000)
    )
    budget_file = tmp_path / "workspace" / AGENT_BUDGET_FILE
    clock = [0.0]
    injection = SectionInjection(sources=SectionSources(clock=lambda: clock[0]))

    def send_with_budget(text: str) -> str:
        budget_file.write_text(text)
        clock[0] += REFRESH_SECONDS
        return send(injection, sections)

    complete = send(injection, sections)
    without_time = send_with_budget("sections: {time: {enabled: false}}\n")
    over_limit = send_with_budget("total_tokens: 9000\n")
    invalid = send_with_budget("total_tokens: many\n")

    injection.sources.close()
    assert "Time: " in complete
    assert "Time: " not in without_time
    assert over_limit == invalid == complete
    assert {problem.step for problem in injection.problems} == {"sections/limits"}
    assert "exceeds the allowed limit" in injection.problems[0].reason


def test_a_section_that_does_not_fit_is_reported_with_its_tokens(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    sections = replace(garden, limits=Budget(total_tokens=120, ladder="drop_low_priority"))

    context = SectionInjection().apply(HELLO, Format.ANTHROPIC, AgentOptions(sections=sections))

    problems = " ".join(problem.reason for problem in context.problems)
    assert "context: left out, " in problems
    assert b"You are Ana" in context.request.body


def test_without_room_only_required_sections_are_injected(tmp_path: Path) -> None:
    context = SectionInjection().apply(
        HELLO, Format.ANTHROPIC, AgentOptions(sections=garden_sections(tmp_path), window_tokens=30)
    )

    assert b"You are Ana" in context.request.body
    assert b"Has roses" not in context.request.body
    assert "workspace/USER.md" in context.problems[0].reason


@pytest.mark.parametrize("ladder", ["truncate_low_priority", "drop_low_priority", "progressive"])
def test_required_sections_that_exceed_the_limits_are_an_error_that_names_them(
    tmp_path: Path, ladder: LadderName
) -> None:
    sections = replace(garden_sections(tmp_path), limits=Budget(total_tokens=10, ladder=ladder))

    with pytest.raises(BudgetExceeded, match=r"IDENTITY\.md \(required\)"):
        SectionInjection().apply(HELLO, Format.ANTHROPIC, AgentOptions(sections=sections))


def test_a_required_memory_precedes_an_optional_workspace_file(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    assert garden.workspace is not None
    (Path(garden.workspace.root) / "MEMORY.md").write_text("A line of memory.\n" * 2_000)
    rules = {
        "context": SectionRule(priority=Priority.REQUIRED),
        "workspace/MEMORY.md": SectionRule(priority=Priority.LOW),
    }
    sections = replace(garden, limits=Budget(total_tokens=1_500, sections=rules))

    context = SectionInjection().apply(HELLO, Format.ANTHROPIC, AgentOptions(sections=sections))

    assert b"## Memory" in context.request.body
    assert 20 < context.request.body.count(b"A line of memory.") < 300


def test_a_budget_section_with_a_priority_is_kept_before_lower_ones(tmp_path: Path) -> None:
    rules = {"budget": SectionRule(priority=Priority.REQUIRED)}
    limited = replace(garden_sections(tmp_path), limits=Budget(total_tokens=300))

    without_rule = SectionInjection().apply(HELLO, Format.ANTHROPIC, AgentOptions(sections=limited))
    with_rule = replace(limited, limits=Budget(total_tokens=300, sections=rules))
    context = SectionInjection().apply(HELLO, Format.ANTHROPIC, AgentOptions(sections=with_rule))

    assert b"## Context Budget" not in without_rule.request.body
    assert b"## Context Budget" in context.request.body


def test_an_uncounted_request_has_its_sections(tmp_path: Path) -> None:
    def remove_count(context: Any) -> None:
        context.count.total = context.count.raw = None

    context = SectionInjection().apply(
        HELLO, Format.ANTHROPIC, AgentOptions(sections=garden_sections(tmp_path)), count=remove_count
    )

    assert b"You are Ana" in context.request.body
    assert context.count.total is None
