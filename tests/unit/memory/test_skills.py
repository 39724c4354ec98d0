import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadOption, UnreadableInput
from foveate.memory.privacy import Gate
from foveate.memory.skills import (
    NO_SKILLS,
    Capabilities,
    Skill,
    build_capabilities,
    is_valid_name,
    read_capabilities,
    read_skill,
)
from tests.support.strategies.notes import NoteFolder, note_folders

GATE = Gate()


def make_skill(name: str, *depends: str, priority: float = 0, description: str = "") -> Skill:
    return Skill(name=name, key=f"{name}.md", priority=priority, depends=depends, description=description)


def skill_names(capabilities: Capabilities) -> list[str]:
    return [skill.name for skill in capabilities.skills]


def test_skills_are_ordered_by_priority_then_name() -> None:
    capabilities = build_capabilities(
        [
            make_skill("b"),
            make_skill("C"),
            make_skill("a"),
            make_skill("low", priority=-1),
            make_skill("high", priority=7),
        ]
    )

    assert skill_names(capabilities) == ["high", "a", "b", "C", "low"]
    assert capabilities.warnings == ()


def test_the_list_has_descriptions_and_dependencies() -> None:
    capabilities = build_capabilities(
        [make_skill("ship", "BUILD", "sign", description="Ships it."), make_skill("build")]
    )

    assert capabilities.text == "Skill build\nSkill ship: Ships it. (needs build, sign [missing])"
    assert capabilities.missing == {"sign"}
    assert capabilities.warnings == ("ship.md: ship needs the skill sign, which does not exist",)
    assert build_capabilities([]).text == NO_SKILLS


def test_names_between_spaces_are_split_unless_a_skill_has_that_name() -> None:
    capabilities = build_capabilities(
        [make_skill("a", "web search"), make_skill("b", "web a"), make_skill("web search"), make_skill("web")]
    )

    assert {skill.name: skill.depends for skill in capabilities.skills} == {
        "a": ("web search",),
        "b": ("web", "a"),
        "web": (),
        "web search": (),
    }


def test_circular_dependencies_are_reported_and_still_listed() -> None:
    capabilities = build_capabilities(
        [
            make_skill("a", "b"),
            make_skill("b", "c"),
            make_skill("c", "a"),
            make_skill("self", "self"),
            make_skill("d", "a"),
        ]
    )

    assert skill_names(capabilities) == ["a", "b", "c", "d", "self"]
    assert sorted(capabilities.warnings) == [
        "skills that need each other: a > b > c > a",
        "skills that need each other: self > self",
    ]


def test_of_two_skills_with_one_name_the_first_counts() -> None:
    capabilities = build_capabilities([make_skill("deploy"), Skill(name="Deploy", key="other.md")])

    assert skill_names(capabilities) == ["deploy"]
    assert capabilities.warnings == ("other.md: left out, because deploy.md already has the name deploy",)


@given(
    dependencies=st.dictionaries(
        st.sampled_from("abcdefgh"), st.lists(st.sampled_from("abcdefghxy"), unique=True), max_size=8
    ),
    priorities=st.lists(st.integers(-3, 3), min_size=8, max_size=8),
)
def test_every_skill_is_listed_in_order_and_every_cycle_reported(
    dependencies: dict[str, list[str]], priorities: list[int]
) -> None:
    skills = [
        make_skill(name, *depends, priority=rank)
        for (name, depends), rank in zip(dependencies.items(), priorities, strict=False)
    ]

    capabilities = build_capabilities(skills)

    assert sorted(skill_names(capabilities)) == sorted(dependencies)
    assert [skill.priority for skill in capabilities.skills] == sorted(
        (skill.priority for skill in skills), reverse=True
    )
    assert capabilities.missing == {name for depends in dependencies.values() for name in depends} - set(
        dependencies
    )
    assert any("each other" in warning for warning in capabilities.warnings) == any(
        depends_on(name, name, dependencies) for name in dependencies
    )


def depends_on(start: str, end: str, dependencies: dict[str, list[str]]) -> bool:
    reached: set[str] = set()
    pending = list(dependencies.get(start, ()))
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += dependencies.get(name, ())
    return end in reached


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    created = tmp_path / "skills"
    created.mkdir()
    return created


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_skill_is_a_markdown_file_an_org_file_or_a_folder(folder: Path) -> None:
    write_file(
        folder / "build.md", "---\nname: build\ndescription: Builds it.\npriority: 2\n---\n# Build\nRun make.\n"
    )
    write_file(
        folder / "ship.org",
        "#+TITLE: Shipping\n* Ship it\n:PROPERTIES:\n:DESCRIPTION: Ships it.\n:DEPENDS: build sign\n:END:\n",
    )
    write_file(
        folder / "sign" / "SKILL.md",
        "---\ndescription: Signs it.\npriority: high\ndependencies: [build]\n---\n",
    )
    write_file(folder / "sign" / "notes.md", "not a skill of its own")
    write_file(folder / "README.md", "What this folder is.")
    write_file(folder / "key.txt", "no skill")
    write_file(folder / ".hidden.md", "no skill")

    capabilities = read_capabilities(folder, GATE)

    assert capabilities.text.split("\n") == [
        "Skill build: Builds it.",
        "Skill sign: Signs it. (needs build)",
        "Skill ship: Ships it. (needs build, sign)",
    ]
    assert [skill.key for skill in capabilities.skills] == ["build.md", "sign/SKILL.md", "ship.org"]
    assert capabilities.warnings == ()


@pytest.mark.parametrize(
    ("value", "priority"),
    [("3", 3), ("-0.5", -0.5), ("A", 1), ("'[#B]'", 0), ("c", -1), ("High", 1), ("low", -1), ("", 0)],
)
def test_a_priority_is_a_number_a_letter_or_a_word(folder: Path, value: str, priority: float) -> None:
    write_file(folder / "a.md", f"---\nname: a\npriority: {value}\n---\n")

    capabilities = read_capabilities(folder, GATE)

    assert [skill.priority for skill in capabilities.skills] == [priority]
    assert capabilities.warnings == ()


def test_missing_properties_are_taken_from_the_first_heading(folder: Path) -> None:
    write_file(
        folder / "a.org",
        "#+DESCRIPTION: Ships it.\n* Ship it\n:PROPERTIES:\n:NAME: ship\n:DESCRIPTION: no\n:END:\n* Other\n",
    )

    assert read_capabilities(folder, GATE).text == "Skill ship: Ships it."


def test_the_priority_of_an_org_heading_counts(folder: Path) -> None:
    write_file(folder / "a.org", "* [#A] Ship it\n")

    assert read_capabilities(folder, GATE).skills[0].priority == 1


@pytest.mark.parametrize("value", ["urgent", "nan", "inf", "1e999"])
def test_an_invalid_priority_counts_as_zero_and_is_reported(folder: Path, value: str) -> None:
    write_file(folder / "a.md", f"---\npriority: {value}\n---\n")

    capabilities = read_capabilities(folder, GATE)

    assert capabilities.skills[0].priority == 0
    assert capabilities.warnings == (
        f"a.md: a priority is a number, a letter, high, medium or low, not '{value}'",
    )


def test_a_name_that_could_be_a_path_is_rejected(folder: Path) -> None:
    write_file(folder / "a.md", "---\nname: ../b\n---\n")

    capabilities = read_capabilities(folder, GATE)

    assert skill_names(capabilities) == ["a"]
    assert capabilities.warnings == ("a.md: '../b' is not a valid name for a skill; a is used instead",)


def test_private_skills_are_hidden_without_a_trace(folder: Path) -> None:
    write_file(folder / "diary.md", "---\nname: secret\ntags: [private]\npriority: urgent\n---\nHush.\n")
    write_file(folder / "org.org", "#+FILETAGS: :@Personal:\nHush.\n")
    write_file(folder / "open.md", "# Open\nSeen.\n## Below :private:\nHush.\n## After\nSeen too.\n")

    assert read_capabilities(folder, GATE) == Capabilities(skills=(make_skill("open"),))
    assert read_skill(folder, "open", GATE) == "# Open\nSeen.\n## After\nSeen too.\n"
    with pytest.raises(BadOption, match=r"^no skill is named 'secret'; the skills are: open$"):
        read_skill(folder, "secret", GATE)


@pytest.mark.slow
@given(notes=note_folders())
def test_nothing_private_is_listed_or_read(notes: NoteFolder) -> None:
    with TemporaryDirectory() as folder:
        for file in notes.files:
            write_file(Path(folder) / file.path, file.text)

        capabilities = read_capabilities(folder, GATE)
        texts = [read_skill(folder, name, GATE) for name in skill_names(capabilities)]

    assert notes.leaked_words("\n".join([capabilities.text, *capabilities.warnings, *texts])) == set()


def test_a_skill_is_read_by_name_in_any_case(folder: Path) -> None:
    text = "---\nname: Ship-It\n---\n# Ship\r\nüber\n"
    write_file(folder / "a.md", "# Other\n")
    (folder / "b.md").write_bytes(text.encode())

    assert read_skill(folder, "Ship-It", GATE) == text
    assert read_skill(folder, "SHIP-IT", GATE) == text


def test_a_skill_outside_the_folder_is_never_read(folder: Path) -> None:
    write_file(folder / "good.md", "# Good\n")
    write_file(folder.parent / "secret.md", "# Secret\n")
    write_file(folder.parent / "elsewhere" / "SKILL.md", "# Secret\n")
    write_file(folder.parent / "skills-too" / "near.md", "# Secret\n")
    (folder / "link.md").symlink_to("../secret.md")
    (folder / "near.md").symlink_to("../skills-too/near.md")
    (folder / "linked").symlink_to("../elsewhere")
    (folder / "half").mkdir()
    (folder / "half" / "SKILL.md").symlink_to("../../secret.md")
    (folder / "alias.md").symlink_to("good.md")

    capabilities = read_capabilities(folder, GATE)

    assert skill_names(capabilities) == ["alias", "good"]
    assert capabilities.warnings == tuple(
        f"{key}: points outside the skills folder and is not read"
        for key in ("half/SKILL.md", "link.md", "linked", "near.md")
    )
    for name in (
        *("../secret", "../secret.md", str(folder.parent / "secret"), "good.md/../../secret.md"),
        *(
            "link",
            "linked",
            "half",
            "near",
            "good\0",
            "..",
            ".",
            "",
            "good.md",
            "elsewhere/SKILL",
            "..\\secret",
        ),
    ):
        with pytest.raises(BadOption) as raised:
            read_skill(folder, name, GATE)
        assert raised.value.path == ("skill",)
        assert "\0" not in str(raised.value)


def test_unreadable_skills_are_reported_and_others_still_listed(folder: Path) -> None:
    write_file(folder / "good.md", "# Good\n")
    (folder / "latin.md").write_bytes(b"caf\xe9")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "gone.md").symlink_to("nowhere.md")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe.md")
    with (folder / "huge.md").open("wb") as file:
        file.truncate(20_000_000)
    write_file(folder / "two\nlines.md", "# Two\n")

    capabilities = read_capabilities(folder, GATE)

    assert skill_names(capabilities) == ["good"]
    assert capabilities.warnings == (
        "empty: a folder without a SKILL.md is not a skill",
        "gone.md: No such file or directory",
        "huge.md: is larger than the limit of 10,000,000 bytes for a skill",
        "latin.md: not UTF-8 at byte 3",
        "loop.md: is a link that points to itself",
        "pipe.md: is not a file",
        "'two\\nlines.md': this is not a valid name for a skill; rename the file",
    )


def test_a_missing_folder_has_no_skills_and_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "gone"

    assert read_capabilities(folder, GATE).warnings == (f"{folder}: No such file or directory",)
    assert read_capabilities("a\0b", GATE).warnings == ("'a\\x00b': is not a valid file name",)
    with pytest.raises(UnreadableInput, match="No such file or directory"):
        read_skill(folder, "a", GATE)


@given(name=st.text() | st.sampled_from(["..", "a/b", "a\\b", ".a", " a", "a\n"]))
def test_no_name_leads_to_a_path(name: str) -> None:
    if is_valid_name(name):
        assert Path(name).name == name
        assert not {"\0", "\n", "/", "\\"} & set(name)


def test_an_org_file_has_priority_and_dependencies_as_settings(tmp_path: Path) -> None:
    """Regression: only the description was read from the settings of an Org file."""
    (tmp_path / "ship.org").write_text("#+DESCRIPTION: ships it\n#+PRIORITY: 7\n#+DEPENDS: build\n* How\nSo.\n")
    (tmp_path / "build.org").write_text("#+DESCRIPTION: builds it\n* How\nSo.\n")

    capabilities = read_capabilities(tmp_path, GATE)

    skill = capabilities.skills[0]
    assert (skill.name, skill.description, skill.priority, skill.depends) == (
        "ship",
        "ships it",
        7.0,
        ("build",),
    )
