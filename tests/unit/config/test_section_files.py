"""Sections in files and folders."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget import Item, Keep, Priority, Section, Stability
from foveate.config import load_sections, parse_sections
from foveate.config.section_files import MAX_SECTIONS_BYTES
from foveate.errors import BadSetting, UnreadableInput
from tests.support.oracles.setting_errors import read_error
from tests.support.strategies.budgets import caps, names, shares, texts

fields = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from(Priority).map(str),
        "max_tokens": st.none() | caps,
        "share": st.none() | shares,
        "keep": st.sampled_from(Keep).map(str),
        "stability": st.sampled_from(Stability).map(str),
        "enabled": st.booleans(),
    },
)
scores = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)
contents = st.fixed_dictionaries({"text": texts}) | st.fixed_dictionaries(
    {"items": st.lists(texts | st.tuples(texts, scores), max_size=3)}
)


def parse_error(text: str, source: str = "a.yaml") -> BadSetting:
    return read_error(parse_sections, text.encode(), source)


@given(entries=st.lists(st.tuples(names, contents, fields), max_size=3, unique_by=lambda entry: entry[0]))
def test_sections_in_a_file_equal_sections_in_python(
    entries: list[tuple[str, dict[str, Any], dict[str, Any]]],
) -> None:
    expected = tuple(Section(name, **content, **rest) for name, content, rest in entries)
    listed = json.loads(json.dumps([{"name": name} | content | rest for name, content, rest in entries]))

    assert parse_sections(json.dumps(listed).encode(), "a.json") == expected
    assert parse_sections(yaml.safe_dump(listed).encode(), "a.yaml") == expected


def test_an_item_is_a_string_with_or_without_a_score() -> None:
    (section,) = parse_sections(
        b"- name: a\n  items: [one, {text: two, score: 0.5}, [three, 3], {text: four}]\n", "standard input"
    )

    assert section == Section("a", items=["one", ("two", 0.5), ("three", 3), Item("four")])


def test_the_examples_can_be_read(root: Path) -> None:
    listed = load_sections(root / "examples" / "sections.yaml")
    folder = load_sections(root / "examples" / "sections")

    assert [section.name for section in listed] == [
        "system_prompt",
        "working_memory",
        "rag_memories",
        "recent_events",
    ]
    assert [section.name for section in folder] == ["system_prompt", "working_memory", "recent_events"]


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("# mine\na: {text: x}\n", 2, "", "sections must be a list (- name: …), not a mapping"),
        ("hello\n", 1, "", "not a single value"),
        ("- name: a\n  text: x\n- just a text\n", 3, "1", "section 2: a section must be a mapping with name"),
        (
            "- name: a\n  text: x\n  prioritiy: low\n",
            3,
            "0.prioritiy",
            "section 1: a section has no key 'prioritiy'; did",
        ),
        ("- name: a\n  text: x\n  enable: no\n", 3, "0.enable", "did you mean enabled?"),
        ("- text: x\n", 1, "0.name", "section 1: name is missing"),
        ("- text: x\n  name: no\n", 2, "0.name", "name is false, not a string: put it in quotes"),
        ("- text: x\n  name: 12\n", 2, "0.name", "name is a number, not a string: put it in quotes"),
        ("- text: x\n  name: ' '\n", 2, "0.name", "a section's name must be text that can be shown"),
        ("- name: a\n", 1, "0", "set either text or items"),
        ("- name: a\n  text: x\n  items: []\n", 1, "0", "set either text or items"),
        ("- name: a\n  text:\n", 2, "0.text", 'text is missing; write "" for an empty text'),
        ("- name: a\n  text: [x]\n", 2, "0.text", "text must be a string, not ['x']"),
        ("- name: a\n  items: x\n", 2, "0.items", "items must be a list"),
        ("- name: a\n  items:\n  - x\n  - 12\n", 4, "0.items.1", "item 2 is a number, not a string: put it"),
        ("- name: a\n  items:\n  - x\n  - 12:30\n", 4, "0.items.1", "or in quotes if it is a string"),
        (
            "- name: a\n  items:\n  - on\n",
            3,
            "0.items.0",
            "item 1 is true, not a string: put it in quotes (YAML reads yes and no",
        ),
        ("- name: a\n  items:\n  - [x, high]\n", 3, "0.items.0", "a finite number, not 'high'"),
        ("- name: a\n  items:\n  - [x, .nan]\n", 3, "0.items.0", "a finite number, not nan"),
        ("- name: a\n  items:\n  - [x, 1, 2]\n", 3, "0.items.0", "item 1 must be a string, not ['x', 1, 2]"),
        (
            "- name: a\n  items:\n  - {txt: x}\n",
            3,
            "0.items.0.txt",
            "item 1 has no key 'txt'; did you mean text?",
        ),
        ("- name: a\n  items:\n  - {score: 1}\n", 3, "0.items.0", "the text of item 1 is missing"),
        ("- name: a\n  text: x\n  priority: top\n", 3, "0.priority", "one of required, high, medium, low"),
        ("- name: a\n  text: x\n\n  max_tokens: -1\n", 4, "0.max_tokens", "0 or more, not -1"),
        ("- name: a\n  text: x\n  share: 50%\n", 3, "0.share", "0 to 1, not '50%'"),
        ("- name: a\n  text: x\n  enabled: 1\n", 3, "0.enabled", "enabled must be true or false, not 1"),
        (
            "- name: a\n  text: x\n- name: a\n  text: y\n",
            3,
            "1.name",
            "section 2: section 1 has the same name 'a'",
        ),
    ],
)
def test_invalid_sections_are_reported_with_line_key_and_number(
    text: str, line: int, key: str, message: str
) -> None:
    error = parse_error(text)

    assert (error.source, error.line, error.key) == ("a.yaml", line, key)
    assert message in error.reason


def test_invalid_json_sections_are_reported_with_line_key_and_number() -> None:
    error = parse_error('[{"name": "a", "text": "x"},\n {"name": "b",\n  "txt": "y"}]', "a.json")

    assert (error.line, error.key) == (3, "1.txt")
    assert error.reason.startswith("section 2: ")


def test_an_empty_list_has_no_sections() -> None:
    assert parse_sections(b"[]", "standard input") == ()


def test_a_file_of_many_megabytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sections.yaml"
    line = "word and 😀 " * 200_000
    path.write_text(f"- name: long\n  text: {line}end\n- name: other\n  items: [{line}]\n", encoding="utf-8")

    long, other = load_sections(path)
    assert long.text == f"{line}end"
    assert other.text == line.strip()


def test_files_over_a_gigabyte_are_rejected_before_reading(tmp_path: Path) -> None:
    file = tmp_path / "sections.yaml"
    with file.open("wb") as opened:
        opened.truncate(MAX_SECTIONS_BYTES + 1)  # sparse, so that it takes no space

    for path in (file, tmp_path):
        with pytest.raises(UnreadableInput, match="is larger than 1,000,000,000 bytes") as caught:
            load_sections(path)
        assert caught.value.source == str(file)


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    (tmp_path / "notes.yaml").write_text("- {name: a, text: x}\n", encoding="utf-8")

    assert load_sections(f"{tmp_path}/notes.yaml") == (Section("a", "x"),)
    assert load_sections(str(tmp_path)) == (Section("notes", "- {name: a, text: x}"),)


def test_a_folder_yields_a_section_for_each_file_in_natural_order(tmp_path: Path) -> None:
    for name, text in {
        "10-recent_events.log": "three\r\nfour\r\n",
        "2_working_memory.md": "two 🎉\n",
        "1. system_prompt.md": "\n# one\n\n",
        "README": "no number",
        "3d-model.txt": "",
        "007.md": "only a number",
        ".hidden.md": "not this",
        "10-recent_events.log~": "nor this",
        "not~quite.bak": "a section like any other",
    }.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "drafts").mkdir()
    (tmp_path / "linked.md").symlink_to(tmp_path / "README")

    assert load_sections(tmp_path) == (
        Section("system_prompt", "\n# one\n"),
        Section("working_memory", "two 🎉"),
        Section("3d-model", ""),
        Section("007", "only a number"),
        Section("recent_events", "three\nfour"),
        Section("linked", "no number"),
        Section("not~quite", "a section like any other"),
        Section("README", "no number"),
    )


def test_two_files_of_one_section_name_are_rejected(tmp_path: Path) -> None:
    for name in ("1-notes.md", "2-notes.txt"):
        (tmp_path / name).write_text("x", encoding="utf-8")

    message = str(read_error(load_sections, tmp_path))
    assert message == f"{tmp_path}/2-notes.txt: has the same section name 'notes' as {tmp_path}/1-notes.md"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"caf\xe9", "is not UTF-8 (byte 3)"),
        (b"\x89PNG\0", "is binary, not text"),
        (b"\xef\xbb\xbfhello", "starts with a byte order mark"),
    ],
)
def test_a_binary_file_in_a_folder_is_reported(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "notes.md").write_bytes(data)

    with pytest.raises(UnreadableInput, match=r"notes\.md: ") as caught:
        load_sections(tmp_path)
    assert caught.value.reason.startswith(reason)


def test_a_folder_without_sections_is_reported(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()

    with pytest.raises(UnreadableInput, match="contains no section files"):
        load_sections(tmp_path)


def test_missing_and_special_files_are_reported_without_blocking(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="No such file"):
        load_sections(tmp_path / "nothing")
    (tmp_path / "dangling.md").symlink_to(tmp_path / "nothing")
    with pytest.raises(UnreadableInput, match=r"dangling\.md: No such file"):
        load_sections(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableInput, match="pipe: is not a file"):
        load_sections(tmp_path)


def test_a_file_name_that_is_not_utf_8_is_rejected(tmp_path: Path) -> None:
    for name in (b"bell\x07.md", b"caf\xe9.md"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        path.write_text("x", encoding="utf-8")
        with pytest.raises(BadSetting, match="can be shown on one line") as caught:
            load_sections(tmp_path)
        str(caught.value).encode()
        path.unlink()
