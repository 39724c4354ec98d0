"""Agents on the search path, and addresses that keep their requests from the gateway."""

from pathlib import Path

import pytest

from foveate.agents.installation import InstalledAgent, find_installed

GATEWAY = "http://127.0.0.1:8090"


def installed(folder: Path, **environment: str) -> list[InstalledAgent]:
    programs = folder / "programs"
    programs.mkdir()
    for name in ("claude", "qwen", "cat"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (programs / "codex").write_text("not executable")
    values = {"PATH": str(programs), "HOME": str(folder), **environment}
    return list(find_installed(values, folder, GATEWAY))


def test_known_agents_on_the_search_path_are_found(tmp_path: Path) -> None:
    found = installed(tmp_path)

    assert [(agent.agent.command, agent.path) for agent in found] == [
        ("claude", str(tmp_path / "programs/claude")),
        ("qwen", str(tmp_path / "programs/qwen")),
    ]
    assert [(agent.pointed, agent.bypasses) for agent in found] == [((), ()), ((), ())]


@pytest.mark.parametrize(("url", "is_pointed"), [(f"{GATEWAY}/v1", True), ("https://proxy.example", False)])
def test_an_address_is_the_gateways_or_bypasses_it(url: str, is_pointed: bool, tmp_path: Path) -> None:
    (qwen,) = (agent for agent in installed(tmp_path, OPENAI_BASE_URL=url) if agent.agent.command == "qwen")

    assert [setting.url for setting in qwen.pointed] == ([url] if is_pointed else [])
    assert [setting.url for setting in qwen.bypasses] == ([] if is_pointed else [url])
