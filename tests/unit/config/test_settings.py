"""Settings: defaults as specified, and errors that name file, line and key."""

from pathlib import Path

import pytest

from foveate.config.load import load_settings, parse_settings
from foveate.config.settings import Settings
from foveate.errors import BadSetting, UnreadableInput

COMPACTION = "context_optimization:\n  compaction:"
ANA = "agents:\n- id: ana"


def test_the_four_mechanisms_have_the_defaults_of_the_specification() -> None:
    mechanisms = Settings().context_optimization.model_dump()

    assert (
        mechanisms["prompt_cache"].items()
        >= {
            "enabled": True,
            "long_ttl_providers": ["anthropic", "vertex"],
        }.items()
    )
    assert (
        mechanisms["compaction"].items()
        >= {
            "enabled": False,
            "compact_at_pct": 0.75,
            "tail_keep_tokens": 20_000,
            "tool_result_max_pct": 0.30,
            "summarizer_model": "",
            "lock_ttl_seconds": 300,
        }.items()
    )
    assert mechanisms["token_counter"] == {
        "enabled": True,
        "backend": "auto",
        "cache_capacity": 1024,
        "use_endpoint": False,
        "timeout_ms": 2000,
    }
    assert mechanisms["workspace_cache"] == {"enabled": True, "watch_debounce_ms": 500, "max_age_seconds": 0}


def test_omitted_settings_have_their_defaults() -> None:
    settings = parse_settings(b"context_optimization: {compaction: {enabled: true}}\n", "f.yaml")

    assert settings.context_optimization.compaction.enabled
    assert settings.context_optimization.compaction.compact_at_pct == 0.75
    assert settings.server == Settings().server


def test_only_switches_can_be_set_for_an_agent() -> None:
    text = b"agents:\n- id: ana\n  context_optimization: {compaction: true, prompt_cache: false}\n"

    (ana,) = parse_settings(text, "f.yaml").agents

    assert ana.context_optimization.compaction is True
    assert ana.context_optimization.prompt_cache is False
    assert ana.context_optimization.token_counter is None


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (f"{COMPACTION}\n    enabld: true", 3, "unknown setting 'enabld'; did you mean enabled"),
        ("context_optimization:\n  compactoin: {}", 2, "did you mean compaction"),
        ("contxt_optimization: {}", 1, "did you mean context_optimization"),
        ("agents:\n- id: a\n- id: b\n  kyes: []", 4, "unknown setting 'kyes'; did you mean keys"),
        ("upstreams:\n  mine:\n    base_ulr: x", 3, "did you mean base_url"),
        ("xyzzy: 1", 1, "unknown setting 'xyzzy'; the settings here are context_optimization, agents"),
        ("upstreams:\n  mine:\n    api_key: x", 3, "'api_key'; the settings here are base_url, api, provider"),
        ("store:\n  url: mysql", 2, "url must be sqlite:///path or postgresql://user@host/name, not 'mysql'"),
        (f"{COMPACTION}\n    compact_at_pct: 1.5", 3, "compact_at_pct must be at most 1, not 1.5"),
        (f"{COMPACTION}\n    compact_at_pct: 0", 3, "compact_at_pct must be more than 0"),
        (f"{COMPACTION}\n    tail_keep_tokens: 1.5", 3, "tail_keep_tokens must be a whole number"),
        (f"{COMPACTION}\n    tail_keep_tokens: '20000'", 3, "must be a whole number, not '20000'"),
        (f"{COMPACTION}\n    enabled: 1", 3, "enabled must be true or false, not 1"),
        ("context_optimization:\n  compaction: true", 2, "compaction must be a mapping"),
        ("context_optimization:\n  token_counter:\n    backend: magic", 3, "backend must be one of 'auto'"),
        (f"{ANA}\n  context_optimization: {{compaction: {{enabled: true}}}}", 3, "must be true or false"),
        ("agents:\n- {}", 2, "id is required"),
        ("agents:\n- id: ''", 2, "id must not be empty"),
        ("agents:\n- id: ana\n- id: ana", 3, "two agents with the id 'ana'"),
        ("agents: {id: ana}", 1, "agents must be a list"),
        ("agents:\n- id: ana\n  keys: [fov-secret]", 3, "hash of a key"),
        ("upstreams:\n  mine: {base_url: 'localhost:8000'}", 2, "must be a URL such as https://host/v1"),
        ("server:\n  port: 99999", 2, "port must be at most 65535"),
        ("server:\n  timeouts:\n    idle_seconds: -1", 3, "idle_seconds must be more than 0"),
        ("upstreams:\n  mine:\n    allow: [chat]", 3, "allow must be answers, counting, embeddings"),
        ('agents:\n- id: "a\\tb"', 2, "id must not contain control characters"),
        ("store: null", 1, "store must be a mapping (key: value), not null"),
        ("- a", 1, "the configuration must be a mapping"),
        ("a: [", 2, "invalid YAML"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_key(text: str, line: int, message: str) -> None:
    with pytest.raises(BadSetting) as failure:
        parse_settings(text.encode(), "foveate.yaml")

    assert str(failure.value).startswith(f"foveate.yaml:{line}: ")
    assert message in str(failure.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agents: [{id: ana, keys: [SECRET]}]", "hash of a key"),
        ("upstreams: {openai: {key_variable: sk-SECRET}}", "name of an environment variable"),
        ("upstreams: {openai: {base_url: 'htps://ana:SECRET@host'}}", "must be a URL such as https://host/v1"),
        ("server: {proxy: 'ana:SECRET@host:3128'}", "must be a URL such as http://user:password@host:port"),
        ("upstreams: [{name: openai, api_key: SECRET}]", "upstreams must be a mapping (key: value), not a"),
        ("upstreams: {openai: {base_url: {SECRET: 1}}}", "base_url must be a string, not a mapping"),
        ("store: {url: 'mysql://ana:SECRET@host/name'}", "url must be sqlite:///path or postgresql://user@host/name"),
    ],
)  # fmt: skip
def test_errors_do_not_show_secret_keys(text: str, message: str) -> None:
    """Regression: a key in place of its variable's name was shown in the error and in the log."""
    with pytest.raises(BadSetting) as failure:
        parse_settings(text.encode(), "foveate.yaml")

    assert message in str(failure.value)
    assert "SECRET" not in str(failure.value)


@pytest.mark.parametrize("text", [b"# all by default\n", b"---\n\n  # nothing\n"])
def test_a_file_with_only_comments_yields_the_defaults(text: bytes) -> None:
    assert parse_settings(text, "foveate.yaml") == Settings()


def test_a_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xff\xfea\x00")

    with pytest.raises(UnreadableInput, match="UTF-16"):
        load_settings(tmp_path / "f.yaml")
    (tmp_path / "e.yaml").write_bytes(b"\n")
    with pytest.raises(UnreadableInput, match="is empty"):
        load_settings(tmp_path / "e.yaml")
    with pytest.raises(UnreadableInput, match="No such file"):
        load_settings(tmp_path / "g.yaml")
