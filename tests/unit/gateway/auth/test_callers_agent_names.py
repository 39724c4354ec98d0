"""Agents are recognised by their user-agent."""

import pytest

from foveate.gateway.auth.callers import HashedKeys, NoKeys, generate_key, hash_key, identify_agent, name_agent
from foveate.gateway.request import parse_request


def identify(user_agent: str, keys: HashedKeys | NoKeys | None = None, **headers: str) -> str:
    all_headers = {
        "user-agent": user_agent,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    scope = {
        "method": "POST",
        "path": "/v1/messages",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
    }
    return identify_agent(parse_request(scope), keys or NoKeys(), [("house-*", "house")])


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("claude-cli/2.1.197 (external, cli)", "claude-code"),
        ("codex_exec/0.166.0 (Debian 13; x86_64) xterm", "codex"),
        ("codex_cli_rs/0.166.0", "codex"),
        ("opencode/1.18.2 ai-sdk/provider-utils/3.0", "opencode"),
        ("GeminiCLI/0.61.0/gemini-3-pro (linux; x64)", "gemini-cli"),
        ("QwenCode/0.15.0 (linux; x64)", "qwen-code"),
        ("Anthropic/Python 2.8.0", "default"),
        ("OpenAI/JS 6.1.0", "default"),
        ("codexample/1", "default"),
        ("", "default"),
        ("house-agent/3 codex", "house"),
    ],
)
def test_a_client_without_a_key_is_named_by_its_user_agent(user_agent: str, name: str) -> None:
    assert identify(user_agent) == name


def test_a_header_names_the_agent_whatever_its_user_agent_is() -> None:
    assert identify("claude-cli/2", x_foveate_agent="ana") == "ana"


def test_a_user_agent_does_not_name_an_agent_that_has_keys() -> None:
    keys = HashedKeys({hash_key(generate_key()): "codex"})

    assert identify("codex_exec/0.166.0", keys) == "default"


def test_a_very_long_user_agent_is_truncated() -> None:
    assert name_agent("x" * 100_000 + "claude-cli") is None
