"""Texts of `foveate run`: the lines to add, and advice for runs without calls."""

import pytest

from foveate.agents.catalog import AGENTS, Agent
from foveate.agents.launch import plan_launch
from foveate.agents.run_summary import RunSummary
from foveate.cli.run.command import advise, lines_to_add

URL = "http://127.0.0.1:8090"


@pytest.mark.parametrize(
    "agent", [agent for agent in AGENTS if agent.needs_lines], ids=lambda agent: agent.word
)
def test_a_command_is_to_be_run_and_lines_are_to_be_added(agent: Agent) -> None:
    plan = plan_launch(agent, [agent.command], URL, {}, gateway_url=URL)

    heading = next(lines_to_add(plan, agent))

    assert heading.endswith("Run this once:" if agent.word == "cline" else "Add these lines to it:")


def test_a_run_without_calls_says_what_is_known_about_its_requests() -> None:
    none, failed = RunSummary(), RunSummary(failed_requests=1)

    assert "show how Codex is set up" in advise(none, title="Codex", log_line="")
    assert "does the program read ANTHROPIC_BASE_URL" in advise(none, title=None, log_line="")
    assert advise(failed, title=None, log_line="").startswith("`foveate doctor`")
    assert "log has: 502 unreachable. `foveate doctor`" in advise(none, title=None, log_line="502 unreachable")
