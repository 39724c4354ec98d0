"""Effective settings and their sources."""

from collections.abc import Mapping

import pytest

from foveate.config.document import parse_document
from foveate.config.effective_settings import EffectiveSetting, SettingSource, list_effective_settings
from foveate.config.load import (
    Configuration,
    LocalModel,
    ServeFlags,
    apply_overrides,
    build_from_bytes,
    find_problems,
)


def effective_settings(
    text: str,
    flags: ServeFlags = ServeFlags(),  # noqa: B008 - frozen
    **environment: str,
) -> Mapping[str, EffectiveSetting]:
    """Return the effective settings of a file by key."""

    def build(configuration: Configuration) -> Configuration:
        return apply_overrides(configuration, environment, flags)

    settings = build_from_bytes(text.encode(), "foveate.yaml", build).settings
    return {
        setting.key: setting
        for setting in list_effective_settings(
            settings, parse_document(text.encode(), "foveate.yaml"), environment, {}
        )
    }


def test_each_setting_has_its_line_and_default() -> None:
    settings = effective_settings("server:\n  port: 9000\nagents:\n  - id: ana\n    window_tokens: 5000\n")

    assert settings["server.port"] == EffectiveSetting(
        key="server.port", value=9000, source=SettingSource.FILE, line=2, default=8090
    )
    assert settings["agents.0.window_tokens"].line == 5
    assert settings["agents.0.id"].default is None
    assert settings["server.host"].source is SettingSource.DEFAULT
    assert not settings["server.host"].differs
    assert settings["server.port"].differs


def test_a_default_written_in_the_file_comes_from_the_file_and_does_not_differ() -> None:
    port = effective_settings("server: {port: 8090}")["server.port"]

    assert port.source is SettingSource.FILE
    assert not port.differs


def test_flags_override_the_file_and_are_named_as_the_source() -> None:
    local = LocalModel(base_url="http://127.0.0.1:1", model="smollm2-135m")
    text = "server: {port: 9000, host: 0.0.0.0}\nroutes: [{models: 'claude-*', upstream: anthropic}]\n"
    settings = effective_settings(text, ServeFlags(port=1, certificate="c.pem", key="k.pem", local=local))

    assert settings["server.port"].source is SettingSource.COMMAND
    assert settings["server.port"].line is None
    assert settings["server.tls.key"].source is SettingSource.COMMAND
    assert settings["server.host"].line == 1
    assert settings["upstreams.local.base_url"].source is SettingSource.COMMAND
    assert settings["routes.0.models"].source is SettingSource.FILE
    assert settings["routes.1.models"].source is SettingSource.COMMAND


def test_passwords_and_keys_in_urls_are_not_shown() -> None:
    text = (
        "store: {url: 'postgresql://ana:hush@db/x?password=hush2'}\n"
        "upstreams: {own: {base_url: 'http://ana:hush@host/v1?api_key=hush3&a=b', api: openai}}\n"
    )
    settings = effective_settings(text)

    assert settings["store.url"].value == "postgresql://ana@db/x?password=…"
    assert settings["upstreams.own.base_url"].value == "http://ana@host/v1?api_key=…&a=b"


def test_a_store_url_from_the_environment_names_it_as_the_source() -> None:
    store = effective_settings("store: {url: 'sqlite:///a'}", FOVEATE_STORE="sqlite:///b")["store.url"]

    assert (store.source, store.variable, store.line) == (SettingSource.ENVIRONMENT, "FOVEATE_STORE", None)


def test_values_within_an_alias_have_the_line_of_the_alias() -> None:
    text = "agents:\n  - id: a\n    sections: &s\n      channel: true\n  - id: b\n    sections: *s\n"

    assert effective_settings(text)["agents.1.sections.channel"].line == 6


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_errors_name_the_lines_of_their_values(ending: str) -> None:
    text = b'{"a": [1,\n {"b": 2}],\n\n "c": {"d": null,\n "e": "x"}}'
    document = parse_document(text, f"it.{ending}")
    lines = document.lines()

    assert len(lines) == 8
    assert {key_path: document.error("wrong", key_path).line for key_path in lines} == lines


def test_a_key_in_place_of_its_hash_is_never_shown() -> None:
    (problem,) = find_problems(b"agents: [{id: ana, keys: [fov-hush]}]", "foveate.yaml")

    assert "hush" not in str(problem)
    assert "foveate config key" in str(problem)


def test_environment_overrides_of_an_agents_sections_are_shown() -> None:
    text = "agents: [{id: ana, sections: {time: {format: iso}, limits: {ladder: progressive}}}]"
    plain = effective_settings(text)
    settings = effective_settings(text, TIME_FORMAT="natural", TIME_AWARENESS="", CONTEXT_MAX_TOKENS="900")

    time_format, limits = settings["agents.0.sections.time.format"], settings["agents.0.sections.limits"]
    assert (time_format.value, time_format.variable) == ("natural", "TIME_FORMAT")
    assert limits.value == {"ladder": "progressive", "total_tokens": 900}
    assert limits.origin(None) == "CONTEXT_MAX_TOKENS"
    assert settings["agents.0.sections.time.enabled"] == plain["agents.0.sections.time.enabled"]
    assert plain["agents.0.sections.time.format"].line == 1


@pytest.mark.parametrize(
    ("value", "expected"), [("", '""'), ("a", "a"), (None, "-"), ([1, "ü"], '[1, "ü"]'), (True, "true")]
)
def test_null_and_an_empty_string_are_displayed_differently(value: object, expected: str) -> None:
    assert EffectiveSetting(key="a", value=value, source=SettingSource.DEFAULT).value_text == expected
