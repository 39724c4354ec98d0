from datetime import datetime

import pytest

from foveate.memory.parsing.markdown import parse_markdown
from foveate.memory.parsing.outline import Outline, OutlineEntry, PlanningKind
from foveate.memory.privacy import Gate

GATE = Gate()


def parse_outline(text: str) -> Outline:
    parsed = parse_markdown(text, name="name")
    assert parsed.to_text() == text
    return parsed


def parse_entry(text: str) -> OutlineEntry:
    """Return the first heading that is not the title of its file."""
    return parse_outline(f"Text before it.\n\n{text}").entries[1]


def entry_content(text: str, number: int = 1) -> str:
    parsed = parse_outline(text)
    return parsed.text[parsed.entries[number].content : parsed.entries[number].end]


def entry_titles(text: str) -> list[str]:
    return [entry.title for entry in parse_outline(text).entries[1:]]


def test_headings_follow_commonmark() -> None:
    text = (
        "# A\n## B ##\nC\nc\n===\n D\n---\n#\n  ### E\n\n"
        "    # code\n```\n# fenced\n```\n> # quoted\n- # listed\n\n"
        "<div>\n# html\n</div>\n\n<!--\n# comment\n-->\n#F\n"
    )

    assert [(entry.level, entry.title) for entry in parse_outline(text).entries[1:]] == [
        (1, "A"), (2, "B"), (1, "C c"), (2, "D"), (1, ""), (3, "E"),
    ]  # fmt: skip


def test_a_deep_list_does_not_hide_later_headings() -> None:
    nested_list = "".join(f"{'  ' * depth}- x\n" for depth in range(60))

    assert entry_titles(f"# A\n{nested_list}\n ---\n\n# B\nC\n===\n") == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("line", "title", "tags"),
    [
        ("# A :a:b:", "A", ("a", "b")),
        ("# A #a #b/c", "A", ("a", "b/c")),
        ("# A #a, #b", "A", ("a", "b")),
        ("# A :a: #b", "A", ("a", "b")),
        ("# A #a ##", "A", ("a",)),
        ("# Fix #123", "Fix #123", ()),
        ("# C# and F#", "C# and F#", ()),
        ("# #a", "", ("a",)),
        ("# A {#id .class k=v} :a:", "A", ("a",)),
        ("# A {.class}", "A", ()),
        ("# A {b}", "A {b}", ()),
        ("# A }", "A }", ()),
        ("# See [the *page*](https://x.example 'x') and ![one](a.png)", "See the *page* and one", ()),
        ("# [[Page]] or [[Page|alias]] at <https://x.example>", "Page or alias at https://x.example", ()),
        ("# `[a](b)` **bold** [a][b] a[1](x", "`[a](b)` **bold** [a][b] a[1](x", ()),
        ("A :a:\n===", "A", ("a",)),
    ],
)
def test_a_heading_is_split_into_title_and_tags(line: str, title: str, tags: tuple[str, ...]) -> None:
    heading = parse_entry(line)

    assert (heading.title, heading.tags) == (title, tags)


@pytest.mark.parametrize(
    ("line", "todo", "priority", "title"),
    [
        ("# TODO A", "TODO", "", "A"),
        ("# DONE [#a] A", "DONE", "A", "A"),
        ("# [ ] A", "TODO", "", "A"),
        ("## [x] A", "DONE", "", "A"),
        ("# [x](y) A", "", "", "x A"),
        ("# Todo A", "", "", "Todo A"),
    ],
)
def test_a_heading_may_have_a_state(line: str, todo: str, priority: str, title: str) -> None:
    heading = parse_entry(line)

    assert (heading.todo, heading.priority, heading.title) == (todo, priority, title)
    assert heading.is_done == (todo == "DONE")


def test_an_id_is_in_braces_at_the_end() -> None:
    assert parse_entry("# A {#some-id}").properties == {"ID": "some-id"}
    assert parse_entry("# A :a: {: #some-id #other}").properties == {"ID": "some-id"}


@pytest.mark.parametrize(
    "line",
    [
        "DEADLINE: 2026-11-20 17:00",
        "DEADLINE: <2026-11-20 Fri 17:00 -2d>",
        "**Deadline:** 2026-11-20T17:00:00+02:00",
        "  Deadline: [2026-11-20 17:00]",
    ],
)
def test_planning_below_a_heading_may_have_brackets(line: str) -> None:
    text = f"# A\n\n{line}\n\nText\n"

    for (stamp,) in (parse_entry(text).planning_dates, parse_outline(text).entries[0].planning_dates):
        assert (stamp.kind, stamp.at, stamp.has_time) == (
            PlanningKind.DEADLINE,
            datetime(2026, 11, 20, 17),
            True,
        )
    assert entry_content(text, 0) == entry_content(f"x\n\n{text}") == "\nText\n"


def test_several_dates_and_invalid_ones_are_parsed_as_in_org() -> None:
    parsed = parse_outline("x\n\n# A\nSCHEDULED: 2026-11-20 +1w DEADLINE: 2026-02-31\nCLOSED: 2026-01-02\n")

    assert [stamp.kind for stamp in parsed.entries[1].planning_dates] == [
        PlanningKind.SCHEDULED,
        PlanningKind.CLOSED,
    ]
    assert parsed.entries[1].planning_dates[0].repeater == "+1w"
    assert parsed.problems == ("line 4: DEADLINE has a date that does not exist: 2026-02-31",)


@pytest.mark.parametrize("lines", ["DEADLINE: soon\n", "Deadline: 2026-11-20, ask Bob\n", "Text #a\n", "#1\n"])
def test_lines_that_are_not_fully_parsed_stay_in_the_content(lines: str) -> None:
    assert entry_content(f"# A\n{lines}", 0) == entry_content(f"x\n# A\n{lines}") == lines


def test_a_line_of_tags_applies_to_the_heading_above_or_to_the_file() -> None:
    text = "#a #b\n\nText\n# A\n\n#c #d/e\n#f\nText\n#g\n"
    file, heading = parse_outline(text).entries

    assert (file.tags, heading.tags) == (("a", "b"), ("c", "d/e", "f"))
    assert (entry_content(text, 0), entry_content(text)) == ("\nText\n", "Text\n#g\n")


@pytest.mark.parametrize(
    "text",
    [
        "# A\n\nText\n## B\nb\n### C\n## D\n",
        "\n \n\n# A\n## B\n### C\n## D\n",
        "A\n===\n## B\n### C\n## D\n",
        "---\nname: x\n---\n\n# A\n## B\n### C\n## D\n",
        "#tag\nDEADLINE: 2026-11-20\n\n# A\n## B\n### C\n## D\n",
        "# A\n```\n# fenced\n```\n## B\n### C\n## D\n",
    ],
)
def test_a_single_first_level_heading_is_the_title_of_its_file(text: str) -> None:
    assert [(entry.level, entry.title) for entry in parse_outline(text).entries] == [
        (0, "A"), (2, "B"), (3, "C"), (2, "D"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("---\ntitle: name\n---\n# A\n", [0, 1]),
        ("Text\n\n# A\n", [0, 1]),
        ("<!-- x -->\n# A\n", [0, 1]),
        ("Text #a\n\n# A\n", [0, 1]),
        ("DEADLINE: 2026-11-20, ask Bob\n\n# A\n", [0, 1]),
        ("# A\n# B\n", [0, 1, 1]),
        ("# A\n## B\nC\n===\n", [0, 1, 2, 1]),
        ("## A\n", [0, 2]),
        ("## A\n# B\n", [0, 2, 1]),
        ("---\na: [\n---\n# A\n", [0, 1]),
        ("", [0]),
        ("Text\n", [0]),
    ],
)
def test_otherwise_the_title_is_from_front_matter_or_file_name(text: str, levels: list[int]) -> None:
    parsed = parse_outline(text)

    assert parsed.entries[0].title == "name"
    assert [entry.level for entry in parsed.entries] == levels


def test_a_file_takes_all_properties_of_its_title_heading() -> None:
    text = (
        "---\ntags: [a, b]\nkey: value\nscheduled: 2026-11-18\n---\n#c\n\n"
        "# TODO [#B] A :b:d: {#some-id}\n#e\nDEADLINE: 2026-11-20\n\nText\n"
    )
    (file,) = parse_outline(text).entries

    assert (file.title, file.todo, file.priority, file.is_done) == ("A", "TODO", "B", False)
    assert file.tags == ("a", "b", "c", "d", "e")
    assert (file.properties["ID"], file.properties["KEY"]) == ("some-id", "value")
    assert [stamp.kind for stamp in file.planning_dates] == [PlanningKind.SCHEDULED, PlanningKind.DEADLINE]
    assert (file.start, file.end, entry_content(text, 0)) == (0, len(text), "\nText\n")


@pytest.mark.parametrize(
    ("front_matter", "id_"), [("id: front", "front"), ("id:", "heading"), ("id: ' '", "heading")]
)
def test_an_id_in_the_front_matter_overrides_the_titles(front_matter: str, id_: str) -> None:
    assert parse_outline(f"---\n{front_matter}\n---\n# A {{#heading}}\n").entries[0].properties["ID"] == id_


def test_a_title_of_nothing_but_tags_leaves_the_file_name() -> None:
    (file,) = parse_outline("# #a\n").entries

    assert (file.title, file.tags) == ("name", ("a",))


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("byte_order_mark", ["", "\ufeff"])
@pytest.mark.parametrize("front_matter", [(), ("---", "a: b", "---", "")])
def test_line_ends_and_a_byte_order_mark_do_not_affect_the_title(
    line_end: str, byte_order_mark: str, front_matter: tuple[str, ...]
) -> None:
    text = byte_order_mark + line_end.join(
        (*front_matter, "# A :a:", "DEADLINE: 2026-11-20", "Text", "## B", "b", "")
    )
    file, child = parse_outline(text).entries

    assert (file.title, file.tags, len(file.planning_dates), child.title) == ("A", ("a",), 1, "B")
    assert (entry_content(text, 0), entry_content(text)) == (f"Text{line_end}", f"b{line_end}")


@pytest.mark.parametrize(
    "text",
    [
        "# A :private:\n## B\nText\n",
        "---\nname: x\n---\n#a\n\n# A\n#private\n## B\nText\n",
        "> # A :private:\n\n## B\nText\n",
    ],
)
def test_a_private_title_hides_the_file(text: str) -> None:
    assert list(GATE.redact(parse_outline(text)).entries) == []


def test_a_private_entry_below_the_title_hides_only_itself() -> None:
    redacted = GATE.redact(parse_outline("# A\nText\n## B :private:\n### C\n## D\n"))

    assert ([entry.title for entry in redacted.entries], redacted.text) == (["A", "D"], "# A\nText\n## D\n")


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("byte_order_mark", ["", "\ufeff"])
def test_only_lf_cr_and_crlf_end_a_line(line_end: str, byte_order_mark: str) -> None:
    lines = (
        "---",
        "title: T",
        "---",
        "#x",
        "# A :a:",
        "DEADLINE: 2026-11-20",
        "",
        "b\u2028# c\x0c# d",
        "-",
        "e",
        "",
    )
    text = byte_order_mark + line_end.join(lines)
    parsed = parse_outline(text)

    assert [(entry.level, entry.title) for entry in parsed.entries] == [
        (0, "T"), (1, "A"), (2, "b\u2028# c\x0c# d"),
    ]  # fmt: skip
    assert parsed.entries[0].tags == ("x",)
    assert len(parsed.entries[1].planning_dates) == 1
    assert entry_content(text, 2) == f"e{line_end}"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_heading_that_repeats_the_front_matter_title_is_not_a_node(line_end: str) -> None:
    text = "---\ntitle: Tea time\ntags: a\n---\n\n# Tea  time :b:\n#c\nText\n## Green\n".replace("\n", line_end)
    file, child = parse_outline(text).entries

    assert (" ".join(file.title.split()), file.tags, child.title) == ("Tea time", ("a", "b", "c"), "Green")
    assert entry_content(text, 0) == f"Text{line_end}"
    assert [entry.level for entry in parse_outline("---\ntitle: Tea\n---\n# Tea\n# Tea\n").entries] == [0, 1, 1]


def test_a_suspected_heading_ends_at_the_next_real_one() -> None:
    text = "first\n\n    A :private:\n===\n=\nB"
    redacted = GATE.redact(parse_outline(text))

    assert redacted.text == "first\n\n===\n=\nB"
    assert [entry.title for entry in redacted.entries] == ["name", "==="]


def test_a_private_suspected_heading_is_a_sibling_of_the_title() -> None:
    for line, titles in (("- # B :private:", ["name", "A"]), ("- ## B :private:", ["A"]), ("- # B :b:", ["A"])):
        redacted = GATE.redact(parse_outline(f"# A\nText\n{line}\n"))

        assert [entry.title for entry in redacted.entries] == titles
