"""Options of sections from the configuration, and errors with line and key."""

import re
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from foveate.config.load import load_and_build
from foveate.config.settings import MemorySettings, SectionsSettings, Settings
from foveate.context.time_section import TimeFormat
from foveate.engine.options import DEFAULT_SECTION_TOKENS, MemoryOptions, SectionOptions
from foveate.engine.options_from_settings import options_by_agent
from foveate.errors import BadOption, BadSetting
from foveate.memory.views.view import DEFAULT_LIMIT_TOKENS

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "injected-context.md"


def load_options(folder: Path, sections: str, **environment: str) -> SectionOptions | None:
    path = folder / "foveate.yaml"
    path.write_text(f"agents:\n- id: ana\n  sections: {sections}\n")
    return load_and_build(path, lambda options: options_by_agent(options.settings, environment))("ana").sections


def test_an_agent_has_no_sections_by_default(tmp_path: Path) -> None:
    assert load_options(tmp_path, "null") is None
    assert load_options(tmp_path, "{}") == SectionOptions()


def test_paths_may_contain_variables_and_home_directories(tmp_path: Path) -> None:
    options = load_options(
        tmp_path,
        "{workspace: {root: $AGENTS/ana}, skills: ~/skills, memory: {paths: ['${AGENTS}/notes']}}",
        AGENTS="/srv/agents",
        HOME="/home/ana",
    )

    assert options is not None
    assert options.workspace is not None
    assert options.workspace.root == "/srv/agents/ana"
    assert options.skills == "/home/ana/skills"
    assert options.memory == MemoryOptions(paths=("/srv/agents/notes",))


def test_the_environment_overrides_the_file_for_the_time(tmp_path: Path) -> None:
    options = load_options(
        tmp_path, "{time: {zone: Europe/Berlin, warning_minutes: 5}}", TIME_FORMAT="natural", TIME_AWARENESS=""
    )

    assert options is not None
    assert options.time is not None
    assert (options.time.awareness, options.time.format, options.time.warning_minutes) == (
        True,
        TimeFormat.NATURAL,
        5,
    )
    assert options.zone == ZoneInfo("Europe/Berlin")


def test_the_environment_overrides_the_file_for_the_limit(tmp_path: Path) -> None:
    sections = "{limits: {total_tokens: 900, ladder: drop_low_priority}}"

    from_file, from_environment = (
        load_options(tmp_path, sections),
        load_options(tmp_path, sections, CONTEXT_MAX_TOKENS="700"),
    )

    assert from_file is not None
    assert from_environment is not None
    assert (from_file.total_tokens, from_environment.total_tokens) == (900, 700)
    assert from_environment.limits.ladder == from_file.limits.ladder
    with pytest.raises(BadSetting, match="CONTEXT_MAX_TOKENS"):
        load_options(tmp_path, sections, CONTEXT_MAX_TOKENS="many")


def test_privacy_tags_are_added_to_the_default_ones(tmp_path: Path) -> None:
    options = load_options(tmp_path, "{privacy_tags: [Draft]}")

    assert options is not None
    assert options.privacy_tags == {"private", "@personal", "draft"}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ("{workspce: {}}", "did you mean workspace?"),
        ("{workspace: {root: $NOWHERE}}", "the environment variable 'NOWHERE' is not set"),
        ("{workspace: {root: /a, scope: ../b}}", "is outside the workspace"),
        ("{memory: {paths: []}}", "paths"),
        ("{memory: {paths: [/a], limit_tokens: 0}}", "limit_tokens must be more than 0"),
        ("{time: {zone: Europe/Nowhere}}", "unknown time zone 'Europe/Nowhere'"),
        ("{limits: {total: 5}}", "total"),
        ("{limits: {output_reserve: 5}}", "max_tokens"),
        ("{limits: {sections: {context: {max_tokens: many}}}}", "max_tokens"),
        ("{channel: perhaps}", "channel must be true or false"),
        ("{privacy_tags: ['::']}", "tag"),
    ],
)
def test_an_invalid_option_is_reported_with_its_line(tmp_path: Path, sections: str, message: str) -> None:
    with pytest.raises(BadSetting, match=re.escape(message)) as raised:
        load_options(tmp_path, sections)

    assert "line 3" in str(raised.value) or ":3" in str(raised.value)


def test_an_invalid_variable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="TIME_FORMAT"):
        load_options(tmp_path, "{time: {}}", TIME_FORMAT="roman")


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("CONTEXT_LOG_LIMIT", "abc"),
        ("CONTEXT_SEMANTIC_THRESHOLD", "abc"),
        ("CONTEXT_MAX_TOKENS", "abc"),
        ("TIME_FORMAT", "abc"),
    ],
)
def test_an_invalid_variable_is_an_error_without_any_sections(variable: str, message: str) -> None:
    """Defect: the gateway started, and each request with a memory failed."""
    with pytest.raises(BadOption, match=variable):
        options_by_agent(Settings(), {variable: message})


def test_the_example_in_the_documentation_is_valid(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example
    path = tmp_path / "foveate.yaml"
    path.write_text(example[1])

    options = load_and_build(path, lambda loaded: options_by_agent(loaded.settings, {"HOME": "/home/ana"}))(
        "ana"
    ).sections

    assert options is not None
    assert options.limits.total_tokens == 8000
    assert options.memory is not None
    assert options.memory.limit_tokens == 1500


@pytest.mark.parametrize("setting", SectionsSettings.model_fields)
def test_every_setting_is_documented(setting: str) -> None:
    assert f"`{setting}`" in PAGE.read_text(encoding="utf-8") or f"`{setting}." in PAGE.read_text(
        encoding="utf-8"
    )


def test_the_documentation_states_the_defaults() -> None:
    assert f"`limits.total_tokens` ({DEFAULT_SECTION_TOKENS:,})" in PAGE.read_text(encoding="utf-8")
    assert MemorySettings(paths=["a"]).limit_tokens == DEFAULT_LIMIT_TOKENS
