"""Findings about coding agents."""

from pathlib import Path

from foveate.doctor.findings import Finding, Level
from foveate.doctor.local_checks import check_agents

GATEWAY = "http://127.0.0.1:8090"


def check(folder: Path, command: str, **environment: str) -> list[Finding]:
    program = folder / "programs" / command
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    values = {"PATH": str(program.parent), "HOME": str(folder), **environment}
    return check_agents(values, folder / "work", GATEWAY)


def test_an_agent_that_is_not_installed_is_no_finding(tmp_path: Path) -> None:
    assert check(tmp_path, "cat") == []


def test_another_address_in_a_file_is_a_warning_with_file_key_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text('openai_base_url = "https://proxy.example/v1"')

    (finding,) = check(tmp_path, "codex")

    assert (finding.level, finding.name) == (Level.WARNING, "codex")
    assert finding.message == (
        f"{path} sets openai_base_url to https://proxy.example/v1, so its requests bypass the gateway"
    )
    assert finding.advice.startswith(
        f"set it to {GATEWAY}/v1, or start the agent with: foveate run codex. If requests must still go to its"
    )


def test_an_address_that_a_run_cannot_replace_must_be_removed_first(tmp_path: Path) -> None:
    path = tmp_path / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text('model_provider = "a"\n[model_providers.a]\nbase_url = "https://proxy.example/api"')

    (finding,) = check(tmp_path, "codex")

    assert finding.advice.startswith(
        f"set it to {GATEWAY}, or remove it and start the agent with: foveate run codex."
    )


def test_an_agent_with_settings_only_in_a_file_is_shown_the_lines(tmp_path: Path) -> None:
    path = tmp_path / ".continue/config.yaml"
    path.parent.mkdir()
    path.write_text("models:\n  - {name: x, apiBase: https://api.anthropic.com/v1/}")

    (finding,) = check(tmp_path, "cn")

    assert finding.advice == "`foveate run --print continue` shows what to set instead"


def test_another_address_in_the_environment_is_a_warning(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, "claude", ANTHROPIC_BASE_URL="https://proxy.example")

    assert finding.level is Level.WARNING
    assert finding.message.startswith("the environment sets ANTHROPIC_BASE_URL to https://proxy.example")


def test_another_provider_is_a_warning(tmp_path: Path) -> None:
    findings = check(tmp_path, "claude", CLAUDE_CODE_USE_VERTEX="1")

    assert findings[0].level is Level.WARNING
    assert "CLAUDE_CODE_USE_VERTEX is set" in findings[0].message


def test_an_agent_that_uses_the_gateway_or_its_provider_is_fine(tmp_path: Path) -> None:
    (pointed,) = check(tmp_path, "claude", ANTHROPIC_BASE_URL="http://localhost:8090")
    (tmp_path / "other").mkdir()
    (direct,) = check(tmp_path / "other", "claude")

    assert (pointed.level, pointed.message) == (
        Level.OK,
        "ANTHROPIC_BASE_URL in the environment is the gateway",
    )
    assert (direct.level, direct.name) == (Level.OK, "claude")
    assert "start it with: foveate run claude" in direct.message
