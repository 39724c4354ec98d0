from datetime import datetime

import pytest

from foveate.memory.parsing.org import parse_org
from foveate.memory.parsing.outline import Outline, OutlineEntry, PlanningDate, PlanningKind
from foveate.memory.privacy import Gate

GATE = Gate()


def parse_outline(text: str, *, name: str = "name") -> Outline:
    parsed = parse_org(text, name=name)
    assert parsed.to_text() == text
    return parsed


def parse_entry(text: str) -> OutlineEntry:
    return parse_outline(text).entries[1]


def entry_content(text: str, number: int = 1) -> str:
    parsed = parse_outline(text)
    return parsed.text[parsed.entries[number].content : parsed.entries[number].end]


def entry_titles(text: str) -> list[str]:
    return [entry.title for entry in parse_outline(text).entries[1:]]


def is_private(text: str) -> bool:
    """Return whether nothing of a text that contains `secret` is visible."""
    return "secret" not in GATE.redact(parse_outline(text)).text


def test_a_heading_has_a_state_a_priority_a_title_and_tags() -> None:
    heading = parse_entry("** TODO [#B] Call [1/2] *Bob* :phone:@home:a#b:c%d:\n")

    assert (heading.level, heading.todo, heading.is_done, heading.priority) == (2, "TODO", False, "B")
    assert heading.title == "Call [1/2] *Bob*"
    assert heading.tags == ("phone", "@home", "a#b", "c%d")


@pytest.mark.parametrize(
    ("line", "title", "tags"),
    [
        ("* ", "", ()),
        ("* :a:b:", "", ("a", "b")),
        ("* A :a::b:", "A", ("a", "b")),
        ("* A::", "A::", ()),
        ("* A : b :", "A : b :", ()),
        ("* ratio 1:2:", "ratio 1:2:", ()),
        ("* A\t:a: \t", "A", ("a",)),
        ("* A :ключ:निजी:", "A", ("ключ", "निजी")),
        ("* See [[https://x.example][the page]] or [[file:a.org]]", "See the page or file:a.org", ()),
        ("* [#10] A", "A", ()),
        ("* TODO", "", ()),
        ("* TODOS of A", "TODOS of A", ()),
    ],
)
def test_a_heading_is_split_into_title_and_tags(line: str, title: str, tags: tuple[str, ...]) -> None:
    heading = parse_entry(line)

    assert (heading.title, heading.tags) == (title, tags)


def test_only_stars_at_the_start_of_a_line_before_a_space_are_a_heading() -> None:
    assert entry_titles("*bold*\n * A\n*\n**\n* B\n*** C\n,* D\n*\tE\n") == ["B", "C"]


@pytest.mark.parametrize(
    ("setting", "states", "done_states"),
    [
        ("", {"TODO", "DONE"}, {"DONE"}),
        (
            "#+TODO: NEXT(n!) WAIT | GONE(g@) DROPPED\n",
            {"NEXT", "WAIT", "GONE", "DROPPED"},
            {"GONE", "DROPPED"},
        ),
        ("#+seq_todo: A B C\n", {"A", "B", "C"}, {"C"}),
        ("#+TYP_TODO: A | B\n#+TODO: C | D\n", {"A", "B", "C", "D"}, {"B", "D"}),
        ("#+begin_src org\n#+TODO: A | B\n#+end_src\n", {"TODO", "DONE"}, {"DONE"}),
    ],
)
def test_states_are_defined_by_the_file(setting: str, states: set[str], done_states: set[str]) -> None:
    keywords = ("TODO", "DONE", "NEXT", "WAIT", "GONE", "DROPPED", "A", "B", "C", "D")
    entries = parse_outline(setting + "".join(f"* {state} x\n" for state in keywords)).entries[1:]

    assert {entry.todo for entry in entries if entry.todo} == states
    assert {entry.todo for entry in entries if entry.is_done} == done_states


def test_planning_and_drawers_may_have_any_order_and_are_not_content() -> None:
    text = (
        "* A\n"
        "  :PROPERTIES:\n  :ID:  some-id\n  :Effort: lots\n"
        "  :header-args:sh: :x y\n  :k+: 1\n  :K+: 2\n  :END:\n"
        "DEADLINE: <2026-11-30 Mon +1w -2d> SCHEDULED:<2026-11-20 Fri 9:05-10:00>\n"
        "CLOSED: [2026-01-02 Fri 09:30]\n"
        ":LOGBOOK:\n- State\n:END:\n"
        "\nText\n"
    )
    heading = parse_entry(text)

    assert entry_content(text) == "\nText\n"
    assert heading.properties == {"ID": "some-id", "EFFORT": "lots", "HEADER-ARGS:SH": ":x y", "K": "1 2"}
    assert heading.planning_dates == (
        PlanningDate(PlanningKind.DEADLINE, datetime(2026, 11, 30), repeater="+1w"),
        PlanningDate(PlanningKind.SCHEDULED, datetime(2026, 11, 20, 9, 5), has_time=True),
        PlanningDate(PlanningKind.CLOSED, datetime(2026, 1, 2, 9, 30), has_time=True),
    )


@pytest.mark.parametrize("repeater", ["+1w", "++2m", ".+3d", "+1m/2m"])
def test_a_repeater_is_kept_as_written(repeater: str) -> None:
    assert (
        parse_entry(f"* A\nSCHEDULED: <2026-11-20 Fri 17:00 {repeater} --2d>").planning_dates[0].repeater
        == repeater
    )


@pytest.mark.parametrize(
    ("planning", "expected"),
    [
        ("<2026-02-31 Tue>", ()),
        ("<0000-01-01>", ()),
        ("<%%(diary-float t 4 2)>", ()),
        ("<2026-02-28 Sat 24:00>", (datetime(2026, 2, 28),)),
        ("<2026-02-28 Sat 12:75>", (datetime(2026, 2, 28),)),
    ],
)
def test_an_invalid_date_is_reported_and_the_rest_is_kept(
    planning: str, expected: tuple[datetime, ...]
) -> None:
    parsed = parse_outline(f"* A\nText\n* B\nDEADLINE: {planning} CLOSED: [2026-01-02 Fri]\nText\n")
    stamps = parsed.entries[2].planning_dates

    assert tuple(stamp.at for stamp in stamps) == (*expected, datetime(2026, 1, 2))
    assert len(parsed.problems) == 1
    assert parsed.problems[0].startswith("line 4: DEADLINE")


@pytest.mark.parametrize(
    "lines",
    [
        "DEADLINE: tomorrow\n",
        "I think DEADLINE: <2026-11-20 Fri> is late\n",
        "DEADLINE: <2026-11-20 Fri> but ask Bob\n",
        ":PROPERTIES:\n:ID: x\nText\n:END:\n",
        ":PROPERTIES:\n:ID: x\n",
        ":LOGBOOK:\nText\n",
        "\n:PROPERTIES:\n:ID: x\n:END:\n",
        "CLOCK: [2026-01-02 Fri 10:00]\n",
    ],
)
def test_lines_that_are_not_fully_parsed_stay_in_the_content(lines: str) -> None:
    assert entry_content(f"* A\n{lines}") == lines


def test_dates_next_to_text_and_unclosed_properties_are_still_parsed() -> None:
    assert parse_entry("* A\nDEADLINE: <2026-11-20 Fri> but ask Bob\n").planning_dates[0].at == datetime(
        2026, 11, 20
    )
    assert parse_entry("* A\n:PROPERTIES:\n:ID: x\n").properties == {"ID": "x"}
    assert parse_outline("* A\n:PROPERTIES:\n:ID: x\n").problems


def test_a_file_has_a_title_tags_and_settings() -> None:
    text = (
        "# -*- mode: org -*-\n:PROPERTIES:\n:ID: file-id\n:END:\n#+title: The [[x][file]]\n#+AUTHOR: Ann\n\n"
        "#+FILETAGS: :a:b: c\n#+TITLE: and more\n\n#+NAME: table\n| x |\n* A\n#+FILETAGS: d\n"
    )
    file = parse_outline(text).entries[0]

    assert (file.level, file.start, file.title) == (0, 0, "The file and more")
    assert file.tags == ("a", "b", "c", "d")
    assert file.properties == {"ID": "file-id", "AUTHOR": "Ann"}
    assert entry_content(text, 0) == "\n#+NAME: table\n| x |\n"


def test_the_default_title_of_a_file_is_its_name() -> None:
    assert parse_outline("* A\n", name="journal").entries[0].title == "journal"


def test_a_closed_literal_block_has_no_headings_and_an_open_one_has() -> None:
    assert entry_titles("* A\n#+begin_src org\n* B\n#+END_SRC\n* C\n") == ["A", "C"]
    assert entry_titles("* A\n#+begin_example\n* B\n#+end_src\n* C\n") == ["A", "B", "C"]
    assert entry_titles("#+begin_src\n* A\n#+begin_src\n* B\n#+end_src\n") == ["A"]
    assert entry_titles("#+begin_quote\n* A\n#+end_quote\n") == ["A"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("byte_order_mark", ["", "\ufeff"])
def test_only_lf_cr_and_crlf_end_a_line(line_end: str, byte_order_mark: str) -> None:
    text = byte_order_mark + line_end.join(
        ("* A :a:", ":PROPERTIES:", ":ID: x", ":END:", "b\u2028* c\x0c* d\x85* e", "** F", "")
    )
    parsed = parse_outline(text)

    assert [(entry.level, entry.title) for entry in parsed.entries] == [(0, "name"), (1, "A"), (2, "F")]
    assert (parsed.entries[1].tags, parsed.entries[1].properties) == (("a",), {"ID": "x"})


@pytest.mark.parametrize(
    "text",
    [
        "* A :private:\nsecret",
        "* A :PRIVATE:\n** B\nsecret",
        "* A :x:@Personal:\nsecret",
        "* A :x::private:\nsecret",
        "* A :private:a-b:\nsecret",
        "* A:private:\nsecret",
        "* A :private\nsecret",
        "* A :pri\u00advate:\nsecret",
        "* A :x:private\u200b:\nsecret",
        "* A #\u200bprivate\nsecret",
        "#+FILETAGS: :pri\u200bvate:\nsecret",
        "* A private:\nsecret",
        "* A :private: [1/2]\nsecret",
        "* A (:private)\nsecret",
        "* A #private\nsecret",
        "* A :private/bank:\nsecret",
        "*\tA :private:\nsecret",
        "*\u00a0A :private:\nsecret",
        "\ufeff* A :private:\nsecret",
        "x\r* A :private:\rsecret",
        "#+begin_src org\n* A :private:\n#+end_src\nsecret",
        "#+begin_src org\n* A\n** B :private:\nsecret\n#+end_src\nsecret",
        "#+begin_example\n* A :private:\nsecret",
        "secret\n* A\nsecret\n#+FILETAGS: private\nsecret",
        "secret\n#+filetags: work Private\n",
        "secret\n  #+FILETAGS: :work:private:\n",
        "secret\n#+FILETAGS: work,private\n",
        "secret\n#+FILETAGS:private",
        "secret\n#+FILETAGS: (private)\n",
        "\ufeff#+FILETAGS: :private:\nsecret",
        "secret\n#+begin_src org\n#+FILETAGS: private\n",
        "secret\n#+begin_src org\n#+FILETAGS: private\n#+end_src\n",
        "#+begin_src org\n,* A :private:\nsecret\n#+end_src\n",
        "#+begin_src org\n,#+FILETAGS: private\n#+end_src\nsecret",
        "* x\n ** A :private:\nsecret",
        "* x\n\x0c** A :private:\nsecret",
        "\ufeff\ufeff* A :private:\nsecret",
        "\ufeff\ufeff#+FILETAGS: :private:\nsecret",
        "#+FILETAGS work private\nsecret",
        "#+ FILETAGS: work private\nsecret",
        "#+FILETAGS+: work private\nsecret",
        "#+TITLE: A :private:\nsecret\n* B\nsecret",
        "* A ：private：\nsecret",
        "* A : private :\nsecret",
        "* Doctor @personal\nsecret",
        "* A\n- [ ] secret @personal\n",
        "* A\n@personal\nsecret",
        "#private\nsecret\n* A\nsecret",
        "*A :private:\nsecret",
        "* x\n**A :work:private: \nsecret",
        "* A :ｐｒｉｖａｔｅ:\nsecret",
        "* https://x.example/a:private:\nsecret",
        "* A\n- LATER secret :private: and more\n",
        "* A\nsecret #private\nsecret\n",
        "* A\nSCHEDULED: <2026-11-20 Fri> :private:\nsecret",
        "* A\nDEADLINE: <2026-11-20 Fri> CLOSED: [2026-11-20] :work:private:\nsecret",
        "* A\n# :private:\nsecret",
        "* A\nx\n| a | b |\n| secret | :private: |\n",
        "* A\nx\n| secret | x :private: |\n",
    ],
)
def test_text_that_may_be_meant_as_private_is_hidden(text: str) -> None:
    assert is_private(text)


@pytest.mark.parametrize(
    "text",
    [
        "* A private talk\nsecret",
        "* A\nSCHEDULED: <2026-11-20 Fri> private talk\nsecret",
        "* A\n# a comment on private things\nsecret",
        "* Privacy: private or not\nsecret",
        "* https://x.example/private\nsecret",
        "* A :privateer:\nsecret",
        "* A :private-key:\nsecret",
        "* A :semi_private:\nsecret",
        "* A\n#+begin_src org\n#+FILETAGS: work\n#+end_src\nsecret :private:",
        "* A :private:\nx\n* B\nsecret",
        "* A\n * x :private: and a secret\n",
        "* A\n@personal\n* B\nsecret",
        "* Write to me@personal.example\nsecret",
        "#+TITLE: On private: a secret\nsecret",
        "* https://x.example/page#private\nsecret",
        "* See [[#private]] and [[file:a.org::#private][it]]\nsecret",
        "* The flag =:private:= or ~#private~\nsecret",
        "*A* is bold :private:\nsecret",
        "* A\n#+begin_src css\n#private { secret }\n- a #private\n#+end_src\n",
        "* A\nx #private\n\nsecret",
    ],
)
def test_text_that_only_contains_the_word_is_not_hidden(text: str) -> None:
    assert not is_private(text)


@pytest.mark.parametrize(
    "text",
    [
        "#+KEYWORDS: work, private\nsecret",
        "secret\n* A\n#+ROAM_TAGS: private\n",
        "#+hugo_tags: private work\nsecret",
        "#+HUGO_CATEGORIES: Private\nsecret",
        "#+PROPERTY: filetags :private:\nsecret",
        "#+PROPERTY: tags+ private\nsecret",
        "#+TAGS: private\nsecret",
        "#+TAGS: :work:private:\nsecret",
        "#+PRIVATE: t\nsecret",
        "#+begin_src org\n#+KEYWORDS: private\n#+end_src\nsecret",
        ":PROPERTIES:\n:FILETAGS: private\n:END:\nsecret\n* A\nsecret",
        "* A\n:PROPERTIES:\n:TAGS: :work:private:\n:END:\nsecret\n** B\nsecret",
        "* A\n:PROPERTIES:\n:ROAM_TAGS: private\n:END:\nsecret",
        "* A\n:PROPERTIES:\n:ARCHIVE_ITAGS: work private\n:END:\nsecret",
        "* A\n:PROPERTIES:\n:TAGS: work\n:TAGS+: private\n:END:\nsecret",
        "* A\n:PROPERTIES:\n:TAGS: work\n:TAGS: private\n:END:\nsecret",
        "* A\n\n:PROPERTIES:\nodd\n:tags: private\nsecret",
        "* A\n:PROPERTIES:\r\n:Private: t\r\n:END:\r\nsecret",
        "* A\n:PROPERTIES:\n:VISIBILITY: private\n:END:\nsecret",
        "* A\n:private:\nsecret\n:END:\n",
        "* A\n:work:private:\nsecret",
        "- [ ] secret :private:\n",
        "* A\n  1. secret #private #x\n     secret\n",
        "* A\n- TODO secret #private <2026-01-02 Fri>\n** B\n",
    ],
)
def test_tags_outside_headings_that_may_be_meant_as_private_hide(text: str) -> None:
    assert is_private(text)


@pytest.mark.parametrize(
    "text",
    [
        "#+TAGS: work(w) private(p)\nsecret",
        "#+TAGS: { work private }\nsecret",
        "#+EXCLUDE_TAGS: private\nsecret",
        "#+EXCLUDE_TAGS: :private:\nsecret",
        "#+TAGS: @work @personal\nsecret",
        "* A\n:PROPERTIES:\n:TAGS_ALL: @work @personal\n:END:\nsecret",
        "#+TITLE: Private\nsecret",
        "#+NAME: private\nsecret",
        "#+PROPERTY: header-args :var x=private\nsecret",
        "* A\n:PROPERTIES:\n:CUSTOM_ID: private\n:PRIVATE: nil\n:TAGS_ALL: private work\n:END:\nsecret",
        "* A\n- private: secret\n- a :private: part of a secret\n- see [[#private]]\n",
        "* A\n:PROPERTIES:\n:TAGS: private\n:END:\n* B\nsecret",
        "* A\n- x :private:\n** B\nsecret",
        "* A\nsecret :private:\n",
    ],
)
def test_names_and_tag_definitions_hide_nothing(text: str) -> None:
    assert not is_private(text)


def test_a_private_item_hides_only_what_is_below_it() -> None:
    redacted = GATE.redact(parse_outline("* A\nfirst\n- one\n- two :private:\n  more\n- three\n** B\nlast\n"))

    assert redacted.text == "* A\nfirst\n- one\n- three\n** B\nlast\n"


def test_privacy_tags_are_defined_by_the_gate() -> None:
    gate = Gate.with_tags(["Top-Secret"])

    assert "x" not in gate.redact(parse_org("* A :top-secret:\nx")).text
    assert "x" in GATE.redact(parse_org("* A :top-secret:\nx")).text
