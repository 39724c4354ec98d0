"""Edits of configuration files: the settings change, and nothing else does."""

import re
from importlib.resources import files

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from foveate.advice.candidate_settings import SettingPath, SettingValue
from foveate.advice.edit_config import edit_config
from foveate.config.document import parse_document
from foveate.errors import BadSetting, UnreadableInput

THRESHOLD: SettingPath = ("context_optimization", "compaction", "compact_at_pct")
ENABLED: SettingPath = ("context_optimization", "compaction", "enabled")
BREAKPOINTS: SettingPath = ("context_optimization", "prompt_cache", "client_breakpoints")
PINGS: SettingPath = ("context_optimization", "prompt_cache", "pings", "enabled")
CHANGES: dict[SettingPath, SettingValue] = {ENABLED: True, THRESHOLD: 0.5, BREAKPOINTS: "replace", PINGS: True}


def edit(text: str, changes: dict[SettingPath, SettingValue] = CHANGES, name: str = "foveate.yaml") -> str:
    return edit_config(text.encode(), name, changes).decode()


def set_values(data: object, changes: dict[SettingPath, SettingValue]) -> object:
    """The data with these changes, computed independently of the edit."""
    result = yaml.safe_load(yaml.safe_dump(data)) or {}
    for path, value in changes.items():
        section = result
        for key in path[:-1]:
            if not isinstance(section.get(key), dict):
                section[key] = {}
            section = section[key]
        section[path[-1]] = value
    return result


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "server:\n  port: 9\n",
        "server: {port: 9}\n",
        "server:\n  port: 9",  # without a line break at the end
        "server:\r\n  port: 9\r\n",
        "context_optimization:\n",
        "context_optimization: null\n",
        "context_optimization: {}\n",
        "context_optimization:   # later\nserver: {port: 9}\n",
        "context_optimization:\n  compaction:\n  prompt_cache:\n    ttl: 1h\n",
        "context_optimization:\n    compaction:\n        enabled: false  # risky\n    # end\nroutes: []\n",
        "context_optimization: {compaction: {enabled: false}, prompt_cache: {pings: {enabled: false}}}\n",
        "context_optimization:\n  prompt_cache: {ttl: 1h}\n# end\n",
        "context_optimization:\n  prompt_cache:\n    long_ttl_providers:\n      - anthropic\n    # end\n",
        "context_optimization:\n  prompt_cache:\n    long_ttl_providers: [\n      anthropic]\n",
        "context_optimization:\n  compaction:\n    summarizer_model: |-\n      small\n\nserver: {port: 9}\n",
        '{"server": {"port": 9}}',
        '{"context_optimization": {"compaction": {"enabled": false}}}',
        "{}",
    ],
)
def test_settings_are_added_and_the_rest_stays(text: str) -> None:
    edited = edit(text)

    assert yaml.safe_load(edited) == set_values(yaml.safe_load(text), CHANGES)
    for comment in re.findall(r"#.*", text):
        assert comment.rstrip("\r") in edited
    assert ("\r\n" in edited) == ("\r\n" in text)


def test_a_value_is_replaced_in_its_place() -> None:
    text = "context_optimization:\n  compaction:\n    enabled: false  # a reason\n    compact_at_pct: 0.75\n"

    assert edit(text, {ENABLED: True}) == text.replace("false", "true")


def test_a_file_of_json_stays_json() -> None:
    text = '{\n  "context_optimization": {"compaction": {"enabled": false}}\n}\n'

    edited = edit(text, name="foveate.json")

    assert parse_document(edited.encode(), "foveate.json").data == set_values(yaml.safe_load(text), CHANGES)


def test_the_example_keeps_every_other_line() -> None:
    text = (files("foveate.config") / "example.yaml").read_text(encoding="utf-8")

    edited = edit(text)

    before, after = text.splitlines(), edited.splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.strip() for _, new in changed] == [
        "client_breakpoints: replace",
        "enabled: true",
        "enabled: true",
        "compact_at_pct: 0.5",
    ]


@given(
    indent=st.sampled_from((1, 2, 4)),
    keys=st.lists(st.sampled_from(("compaction", "prompt_cache", "token_counter")), unique=True),
    comments=st.lists(st.sampled_from(("", "# note", "  # deep", "        # deeper")), max_size=6),
)
def test_an_edit_always_sets_exactly_the_changes(indent: int, keys: list[str], comments: list[str]) -> None:
    lines = ["context_optimization:"]
    for number, key in enumerate(keys):
        lines += comments[number : number + 2]
        lines += [f"{' ' * indent}{key}:", f"{' ' * 2 * indent}enabled: false # {key}"]
    lines += [*comments, "server:", f"{' ' * indent}port: 9"]
    text = "\n".join(lines) + "\n"

    edited = edit(text)

    assert yaml.safe_load(edited) == set_values(yaml.safe_load(text), CHANGES)
    assert [line for line in text.splitlines() if "#" in line and "enabled" not in line] == [
        line for line in edited.splitlines() if "#" in line and "enabled" not in line
    ]


def test_a_shared_value_is_not_edited() -> None:
    text = (
        "context_optimization:\n  compaction: &same {enabled: false}\n  token_counter: {enabled: true}\n"
        "  workspace_cache: *same\n"
    )

    with pytest.raises(BadSetting, match=r"cannot be edited: set .*compaction\.enabled.* by hand"):
        edit(text, {ENABLED: True})


def test_an_invalid_configuration_is_not_edited() -> None:
    with pytest.raises(BadSetting, match="unknown setting"):
        edit("server: {prot: 9}\n")
    with pytest.raises(UnreadableInput):
        edit_config(b"\xff\xfe", "foveate.yaml", CHANGES)
