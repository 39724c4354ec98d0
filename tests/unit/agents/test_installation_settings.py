"""Base URLs in files of agents and in the environment."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.agents.catalog import AGENTS, Agent, find_agent
from foveate.agents.installation import (
    find_configured_urls,
    find_direct_access,
    find_missing_settings,
    is_same_server,
    locate,
    read_document,
)

PROXY = "https://proxy.example"


def get_agent(command: str) -> Agent:
    agent = find_agent(command)
    assert agent is not None
    return agent


def find(command: str, home: Path, work: Path | None = None, **environment: str) -> list[tuple[str, str]]:
    urls = find_configured_urls(get_agent(command), {"HOME": str(home), **environment}, work or home / "work")
    return [(url.key, url.url) for url in urls]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "path", "text", "key"),
    [
        ("claude", ".claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "@@"}}', "env.ANTHROPIC_BASE_URL"),
        ("codex", ".codex/config.toml", 'openai_base_url = "@@"', "openai_base_url"),
        (
            "opencode",
            ".config/opencode/opencode.json",
            '{"provider": {"openai": {"options": {"baseURL": "@@"}}}}',
            "provider.openai.options.baseURL",
        ),
        (
            "opencode",
            ".config/opencode/opencode.jsonc",
            '{// "a"\n"url": "http://x", /* {, */ "provider": {"x": {"options": {"baseURL": "@@",} /**/,}}}',
            "provider.x.options.baseURL",
        ),
        ("pi", ".pi/agent/models.json", '{"providers": {"x": {"baseUrl": "@@"}}}', "providers.x.baseUrl"),
        ("aider", ".aider.conf.yml", "openai-api-base: @@", "openai-api-base"),
        ("gemini", ".gemini/.env", "# x\nexport GOOGLE_GEMINI_BASE_URL='@@'", "GOOGLE_GEMINI_BASE_URL"),
        ("qwen", ".qwen/settings.json", '{"security": {"auth": {"baseUrl": "@@"}}}', "security.auth.baseUrl"),
        ("openhands", ".openhands/agent_settings.json", '{"llm": {"base_url": "@@"}}', "llm.base_url"),
        (
            "cline",
            ".cline/data/settings/providers.json",
            '{"providers": {"openai-native": {"settings": {"baseUrl": "@@"}}}}',
            "providers.openai-native.settings.baseUrl",
        ),
        ("cline", ".cline/data/globalState.json", '{"openAiBaseUrl": "@@"}', "openAiBaseUrl"),
        ("continue", ".continue/config.yaml", "models:\n  - {name: x, apiBase: @@}", "models.0.apiBase"),
        (
            "droid",
            ".factory/settings.json",
            '{"customModels": [{"baseUrl": "@@"}]}',
            "customModels.0.baseUrl",
        ),
        (
            "crush",
            ".config/crush/crush.json",
            '{"providers": {"x": {"base_url": "@@"}}}',
            "providers.x.base_url",
        ),
        ("goose", ".config/goose/config.yaml", "OPENAI_HOST: @@", "OPENAI_HOST"),
    ],
)
def test_the_base_url_in_the_file_of_an_agent_is_found(
    command: str, path: str, text: str, key: str, tmp_path: Path
) -> None:
    write(tmp_path / path, text.replace("@@", PROXY))

    assert find(command, tmp_path) == [(key, PROXY)]


def test_of_the_providers_of_codex_only_the_selected_one_counts(tmp_path: Path) -> None:
    providers = f'[model_providers.a]\nbase_url = "{PROXY}"\n[model_providers.b]\nbase_url = "http://b"\n'
    write(tmp_path / ".codex/config.toml", f'model_provider = "b"\n{providers}')
    assert find("codex", tmp_path) == [("model_providers.b.base_url", "http://b")]

    write(tmp_path / ".codex/config.toml", providers)
    assert find("codex", tmp_path) == []


def test_variables_and_files_of_the_project_are_found(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work / ".claude/settings.local.json", json.dumps({"env": {"ANTHROPIC_BASE_URL": "http://b"}}))

    found = find("claude", tmp_path, work, ANTHROPIC_BASE_URL=PROXY)

    assert found == [("ANTHROPIC_BASE_URL", PROXY), ("env.ANTHROPIC_BASE_URL", "http://b")]


def test_passwords_in_addresses_are_left_out(tmp_path: Path) -> None:
    (found,) = find("claude", tmp_path, ANTHROPIC_BASE_URL="https://ana:secret@proxy.example")

    assert found == ("ANTHROPIC_BASE_URL", "https://ana@proxy.example")


def test_a_variable_replaces_the_folder_of_a_file(tmp_path: Path) -> None:
    write(tmp_path / "mine/config.toml", f'openai_base_url = "{PROXY}"')

    assert find("codex", tmp_path, CODEX_HOME=str(tmp_path / "mine")) == [("openai_base_url", PROXY)]


_JSON = st.recursive(
    st.none() | st.integers() | st.text('ab"\\/*,]}\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a/*"'), inner),
    max_leaves=8,
)


@given(value=_JSON, indent=st.sampled_from([None, 2]))
def test_json_without_comments_is_read_as_it_is(
    value: object, indent: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.json"
    path.write_text(json.dumps(value, indent=indent), encoding="utf-8")

    assert read_document(path) == value


@given(text=st.text(max_size=200))
@pytest.mark.parametrize("name", ["a.toml", "a.yaml", "a.json", ".env"])
def test_a_broken_file_has_no_base_url(name: str, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(text, encoding="utf-8", errors="replace")

    read_document(path)  # never raises


@pytest.mark.parametrize(
    "text",
    [b"\xff", b"[" * 100_000, b'{"a": 1, "env": []}', b'{"env": {"ANTHROPIC_BASE_URL": 7}}', b"x" * 2_000_000],
)
def test_odd_files_are_ignored(text: bytes, tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/settings.json").write_bytes(text)

    assert find("claude", tmp_path) == []


def test_a_folder_instead_of_a_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".claude/settings.json").mkdir(parents=True)

    assert find("claude", tmp_path) == []


def test_all_paths_are_in_the_home_or_the_working_folder() -> None:
    for agent in AGENTS:
        for path in (path for file in agent.settings_files for path in file.paths):
            located = locate(path, {"HOME": "/home/ana"}, Path("/work"))
            assert str(located).startswith(("/home/ana/", "/work/")), path


@pytest.mark.parametrize(
    ("url", "is_same"),
    [
        ("http://127.0.0.1:8090", True),
        ("http://localhost:8090/v1", True),
        ("http://[::1]:8090/run/0123456789abcdef/pi", True),
        ("http://127.0.0.1:8091", False),
        ("https://127.0.0.1", False),
        ("https://api.anthropic.com", False),
        ("http://127.0.0.1:many", False),
        ("", False),
    ],
)
def test_servers_are_compared_by_host_and_port(url: str, is_same: bool) -> None:
    assert is_same_server(url, "http://127.0.0.1:8090") is is_same


def test_logins_and_variables_that_lead_past_the_gateway_are_found(tmp_path: Path) -> None:
    path = tmp_path / ".gemini/settings.json"
    write(path, '{"security": {"auth": {"selectedType": "oauth-personal"}}}')
    environment = {"HOME": str(tmp_path), "GOOGLE_GENAI_USE_VERTEXAI": "true", "CLAUDE_CODE_USE_BEDROCK": "0"}

    def find_reasons(command: str) -> list[str]:
        return list(find_direct_access(get_agent(command), environment, tmp_path))

    assert find_reasons("gemini") == [
        "GOOGLE_GENAI_USE_VERTEXAI is set",
        f"security.auth.selectedType in {path} is oauth-personal",
    ]
    assert find_reasons("claude") == []
    settings = tmp_path / ".claude/settings.json"
    write(settings, '{"env": {"CLAUDE_CODE_USE_BEDROCK": "1", "CLAUDE_CODE_USE_VERTEX": "0"}}')
    assert find_reasons("claude") == [f"env.CLAUDE_CODE_USE_BEDROCK in {settings} is 1"]
    write(path, '{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    assert find_reasons("gemini") == ["GOOGLE_GENAI_USE_VERTEXAI is set"]


def test_a_setting_that_an_agent_needs_for_a_gateway_is_missed(tmp_path: Path) -> None:
    def find_missing(command: str) -> list[str]:
        return list(find_missing_settings(get_agent(command), {"HOME": str(tmp_path)}, tmp_path / "work"))

    assert ["selectedType" in advice for advice in find_missing("gemini")] == [True]
    assert find_missing("claude") == []
    write(tmp_path / ".gemini/settings.json", '{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    assert find_missing("gemini") == []
