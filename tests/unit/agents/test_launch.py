"""Plans: what `foveate run` sets for each agent."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from foveate.agents.catalog import AGENTS, agent_words, find_agent
from foveate.agents.installation import ConfiguredUrl
from foveate.agents.launch import LaunchPlan, plan_launch
from foveate.errors import BadOption

GATEWAY = "http://127.0.0.1:8090"
URL = f"{GATEWAY}/run/0123456789abcdef/x"


def plan(
    command: str, *arguments: str, environment: Mapping[str, str] | None = None, **settings: Any
) -> LaunchPlan:
    agent = find_agent(command)
    return plan_launch(
        agent,
        (command if agent is None else agent.command, *arguments),
        URL,
        environment or {},
        gateway_url=GATEWAY,
        **settings,
    )


def setting(
    key: str, url: str, source: str = "/home/ana/settings", *, overrides: bool = False
) -> ConfiguredUrl:
    return ConfiguredUrl(source=source, key=key, url=url, overrides_run=overrides)


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("claude", {"ANTHROPIC_BASE_URL": URL}),
        ("gemini", {"GOOGLE_GEMINI_BASE_URL": URL}),
        ("qwen", {"OPENAI_BASE_URL": f"{URL}/v1"}),
        (
            "aider",
            {
                "AIDER_OPENAI_API_BASE": f"{URL}/v1",
                "OPENAI_API_BASE": f"{URL}/v1",
                "ANTHROPIC_BASE_URL": URL,
                "ANTHROPIC_API_BASE": URL,
            },
        ),
        ("goose", {"ANTHROPIC_HOST": f"{URL}/", "OPENAI_HOST": f"{URL}/"}),
        (
            "crush",
            {"ANTHROPIC_API_ENDPOINT": URL, "OPENAI_API_ENDPOINT": f"{URL}/v1", "GEMINI_API_ENDPOINT": URL},
        ),
    ],
)
def test_variables_point_an_agent_at_the_gateway(command: str, environment: dict[str, str]) -> None:
    result = plan(command, "-p", "hi")

    assert result.environment == environment
    assert result.arguments == (command, "-p", "hi")
    assert (result.notes, result.lines) == ((), "")


def test_options_come_before_the_arguments_of_the_user() -> None:
    assert plan("codex", "exec", "hi").arguments == ("codex", "-c", f'openai_base_url="{URL}/v1"', "exec", "hi")
    openhands = plan("openhands", "-t", "hi")
    assert openhands.arguments == ("openhands", "--override-with-envs", "-t", "hi")
    assert openhands.environment == {"LLM_BASE_URL": URL}


def test_pi_loads_an_extension_that_reads_the_address_from_a_variable() -> None:
    result = plan("pi", "hi")

    program, option, path, prompt = result.arguments
    assert (program, option, prompt) == ("pi", "-e", "hi")
    assert "process.env.FOVEATE_RUN_URL" in Path(path).read_text(encoding="utf-8")
    assert result.environment == {"FOVEATE_RUN_URL": URL}


def test_missing_settings_are_notes() -> None:
    assert plan("gemini", missing_settings=["add a login"]).notes == ("add a login",)


def test_the_configuration_of_opencode_is_merged_with_that_of_the_user() -> None:
    mine = {"theme": "dark", "provider": {"anthropic": {"options": {"timeout": 5, "baseURL": "x"}}}}

    result = plan("opencode", environment={"OPENCODE_CONFIG_CONTENT": json.dumps(mine)})

    merged = json.loads(result.environment["OPENCODE_CONFIG_CONTENT"])
    assert merged["theme"] == "dark"
    assert merged["provider"]["anthropic"]["options"] == {"timeout": 5, "baseURL": f"{URL}/v1"}
    assert merged["provider"]["openai"]["options"] == {"baseURL": f"{URL}/v1"}


@pytest.mark.parametrize("value", ["{", "[]", "7"])
def test_a_variable_that_is_no_json_object_is_an_error(value: str) -> None:
    with pytest.raises(
        BadOption, match="OPENCODE_CONFIG_CONTENT is set to something that is not a JSON object"
    ):
        plan("opencode", environment={"OPENCODE_CONFIG_CONTENT": value})


def test_copilot_is_never_given_a_key_unasked() -> None:
    with pytest.raises(BadOption, match="set COPILOT_PROVIDER_API_KEY"):
        plan("copilot", environment={"ANTHROPIC_API_KEY": "sk-ant-1"})

    result = plan("copilot", environment={"COPILOT_PROVIDER_API_KEY": "sk-ant-1"})
    assert result.environment == {"COPILOT_PROVIDER_BASE_URL": f"{URL}/v1"}


@pytest.mark.parametrize("command", ["cline", "continue", "droid"])
def test_an_agent_with_settings_only_in_a_file_needs_lines_there(command: str) -> None:
    result = plan(command)

    agent = find_agent(command)
    assert agent is not None
    assert f"{GATEWAY}/run/0000000000000000/{agent.name}" in result.lines
    assert result.lines_file == agent.lines_file
    assert result.environment == {}
    assert plan(command, configured=[setting("apiBase", f"{GATEWAY}/v1")]).lines == ""
    assert plan(command, configured=[setting("apiBase", "https://api.anthropic.com")]).lines != ""


def test_settings_of_claude_code_that_take_precedence_are_overridden_by_an_option() -> None:
    other = setting("env.ANTHROPIC_BASE_URL", "https://proxy.example", overrides=True)

    result = plan("claude", "-p", "hi", configured=[other])

    assert result.arguments == (
        "claude",
        "--settings",
        f'{{"env": {{"ANTHROPIC_BASE_URL": "{URL}"}}}}',
        "-p",
        "hi",
    )
    (replaced,) = result.notes
    assert replaced.startswith(
        "env.ANTHROPIC_BASE_URL in /home/ana/settings was https://proxy.example; this run"
    )
    own = plan("claude", "--settings", "mine.json", configured=[other])
    assert own.arguments == ("claude", "--settings", "mine.json")
    (kept,) = own.notes
    assert "uses instead of the address of this run" in kept


def test_the_selected_provider_of_codex_is_this_run_if_it_is_the_gateway() -> None:
    key = "model_providers.foveate.base_url"

    ours = plan("codex", configured=[setting(key, "http://localhost:8090/v1", overrides=True)])
    other = plan("codex", configured=[setting(key, "https://openrouter.ai/api/v1", overrides=True)])

    assert ours.arguments[-2:] == ("-c", f'{key}="{URL}/v1"')
    assert ours.notes == ()
    assert key not in " ".join(other.arguments)
    assert "uses instead of the address of this run" in other.notes[0]


def test_several_settings_are_overridden_once() -> None:
    files = [setting("env.ANTHROPIC_BASE_URL", "https://a", name, overrides=True) for name in ("a", "b")]

    assert plan("claude", configured=files).arguments.count("--settings") == 1


def test_an_address_of_the_user_that_is_replaced_is_named() -> None:
    found = [setting("ANTHROPIC_BASE_URL", "https://proxy.example", "the environment")]

    (note,) = plan("claude", configured=found).notes

    assert note.startswith("ANTHROPIC_BASE_URL was https://proxy.example; this run replaces it.")
    found = [setting("ANTHROPIC_BASE_URL", GATEWAY, "the environment")]
    assert plan("claude", configured=found).notes == ()


@pytest.mark.parametrize("command", ["opencode", "python"])
def test_an_address_is_named_wherever_a_run_replaces_it(command: str) -> None:
    """Defect: only those of known agents in the environment were. Others lost their server without a word."""
    found = [setting("baseURL", "https://vllm.example")]

    (note,) = plan(command, configured=found).notes

    assert "was https://vllm.example; this run replaces it" in note


def test_a_login_past_the_gateway_is_named() -> None:
    (note,) = plan("claude", direct_access=["CLAUDE_CODE_USE_BEDROCK is set"]).notes

    assert note == "CLAUDE_CODE_USE_BEDROCK is set: Claude Code does not use the gateway for its calls"


def test_any_command_gets_the_usual_variables_and_no_arguments() -> None:
    result = plan("python", "my_agent.py", "--flag")

    assert result.arguments == ("python", "my_agent.py", "--flag")
    assert result.environment == {
        "ANTHROPIC_BASE_URL": URL,
        "OPENAI_BASE_URL": f"{URL}/v1",
        "OPENAI_API_BASE": f"{URL}/v1",
        "GOOGLE_GEMINI_BASE_URL": URL,
    }


@pytest.mark.parametrize(
    ("environment", "no_proxy"),
    [
        ({}, None),
        ({"https_proxy": "http://proxy:3128"}, "127.0.0.1"),
        ({"HTTP_PROXY": "http://proxy:3128", "no_proxy": "a, b"}, "a,b,127.0.0.1"),
        ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "localhost,127.0.0.1"}, None),
        ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "*"}, None),
    ],
)
def test_a_proxy_is_not_asked_for_the_gateway(environment: dict[str, str], no_proxy: str | None) -> None:
    result = plan("claude", environment=environment)

    assert result.environment.get("NO_PROXY") == result.environment.get("no_proxy") == no_proxy


def test_every_agent_can_be_found_and_has_one_way_to_the_gateway() -> None:
    assert len(agent_words()) == len(set(agent_words())) == len(AGENTS) == 14
    for agent in AGENTS:
        ways = (agent.variables, agent.json_variables, agent.arguments, agent.lines)
        assert any(ways), agent.command
        assert bool(agent.lines) != any(ways[:3]), agent.command
        assert find_agent(agent.command) is find_agent(agent.name) is agent
    assert all(find_agent(word) is not None for word in agent_words())
    assert find_agent("python") is None
