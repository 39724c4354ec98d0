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


def parse_file(text: str) -> OutlineEntry:
    return parse_outline(text).entries[0]


def is_private(front: str) -> bool:
    return "secret" not in GATE.redact(parse_outline(f"{front}\nsecret\n\n# A\nsecret\n")).text


def test_yaml_gives_title_id_tags_dates_and_properties() -> None:
    text = (
        "---\n# comment\ntitle: >\n  The\n  file\nid: some-id\ntags: [a, '#b', \"c d\"]\nkeywords: e, f\n"
        "deadline: 2026-11-20 17:00\nscheduled: '<2026-11-19 Thu>'\nclosed:\n"
        "date: 2026-02-31\npublished: no\nlist:\n- 1\n- x: [é]\nmap: {a: {b: 1}}\n---\nText\n"
    )
    entry = parse_file(text)

    assert (entry.title, entry.tags) == ("The file", ("a", "b", "c d", "e", "f"))
    assert [(stamp.kind, stamp.at) for stamp in entry.planning_dates] == [
        (PlanningKind.DEADLINE, datetime(2026, 11, 20, 17)),
        (PlanningKind.SCHEDULED, datetime(2026, 11, 19)),
    ]
    assert entry.properties["ID"] == "some-id"
    assert entry.properties["DATE"] == "2026-02-31"
    assert entry.properties["PUBLISHED"] == "no"
    assert entry.properties["LIST"] == '1, {"x": ["é"]}'
    assert entry.properties["MAP"] == '{"a": {"b": "1"}}'
    assert text[entry.content :] == "Text\n"


def test_toml_gives_the_same_as_yaml() -> None:
    source = 'title = "T"\ntags = ["a"]\ndeadline = 2026-11-20T17:00:00\ndraft = true\nday = 2026-01-02'
    entry = parse_file(f"+++\n{source}\nn = 1.5\n[x]\ny = 1\n+++\n")

    assert (entry.title, entry.tags) == ("T", ("a",))
    assert entry.planning_dates[0].at == datetime(2026, 11, 20, 17)
    assert entry.properties["DAY"] == "2026-01-02"
    assert (entry.properties["DRAFT"], entry.properties["N"], entry.properties["X"]) == (
        "true",
        "1.5",
        '{"y": "1"}',
    )


def test_json_gives_the_same_as_yaml() -> None:
    source = '"title": "T",\n"tags": ["a", "#b"], "deadline": "2026-11-20 17:00", "n": 1.50, "no": null'
    text = f"{{\n{source}}}\n\nText\n"
    entry = parse_file(text)

    assert (entry.title, entry.tags) == ("T", ("a", "b"))
    assert entry.planning_dates[0].at == datetime(2026, 11, 20, 17)
    assert (entry.properties["N"], entry.properties["NO"]) == ("1.50", "")
    assert text[entry.content :] == "\nText\n"


def test_invalid_json_and_text_that_starts_with_a_brace_stay_in_the_content() -> None:
    for text in ('{"a": }\nText\n', '{"a": 1} Text\n', "{a}\nText\n", '{"a": ' + "[" * 100 + "]" * 100 + "}\n"):
        assert parse_file(text).content == 0
    assert parse_outline('{"a": }\n').problems[0].startswith("line 1: the front matter is broken: ")


@pytest.mark.parametrize(
    "tags",
    [
        "tags: #a @b",
        "tags: [#a, @b]",
        "tags:\n- #a\n- @b",
        "tags: a, @b",
        "tag: a\nTags: '@b'",
        "tags: 'a;#@b'",
    ],
)
def test_tags_are_parsed_in_common_spellings(tags: str) -> None:
    parsed = parse_outline(f"---\ntitle: T\n{tags}\n---\n")

    assert parsed.entries[0].tags == ("a", "@b")
    assert (parsed.entries[0].title, parsed.problems) == ("T", ())


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nText\n\n---\n# A\n",
        "---\n# A\n---\n",
        "--- x\ntitle: T\n---\n",
        "---\n- a\n---\n# A\n",
        "---",
        "---\n",
        "---\n\n",
        "+++\n",
        "x\n---\ntitle: T\n---\n",
        "---\ntitle: T\n" + "a: b\n" * 20_000 + "---\n",
    ],
)
def test_a_line_at_the_top_is_not_always_front_matter(text: str) -> None:
    entry = parse_file(text)

    assert (entry.title, entry.content) == ("name", 0)


@pytest.mark.parametrize(
    "front_matter",
    [
        "title: T\nbad: [",
        "title: T\nbad: *alias",
        "a: &a [*a]",
        "a: " + "[" * 5000,
        "\ttitle: T",
        "title: \0",
        "title: \ud800",
        "title: a: b",
        "- a\nb: c",
    ],
)
def test_invalid_front_matter_is_reported_and_stays_in_the_content(front_matter: str) -> None:
    parsed = parse_outline(f"---\n{front_matter}\n---\n# A\n")

    assert parsed.problems[0].startswith("line 1: the front matter is broken: ")
    assert parsed.entries[0].content == 0
    assert [entry.title for entry in parsed.entries] == ["name", "A"]


def test_invalid_toml_is_reported_too() -> None:
    assert parse_outline("+++\ntitle = T\n+++\n").problems
    assert parse_outline(f"+++\na = {'[' * 9000}\n+++\n").problems


def test_invalid_front_matter_with_headings_is_text() -> None:
    assert [entry.title for entry in parse_outline("---\na: b: c\n\n# A\n\n---\n").entries] == ["name", "A"]


@pytest.mark.parametrize(
    "front",
    [
        "---\ntags: private\n---",
        "---\ntags: [a, Private]\n---",
        "---\nTags:\n  - '@personal'\n---",
        "---\ntags: #private\n---",
        "---\ntags: [#private]\n---",
        "---\ntags: a, #private\n---",
        "---\ntags: [@personal, a]\n---",
        "---\ntags:\n- #private\n---",
        "---\ntags: private/bank\n---",
        "---\ntags: a\ntags: private\n---",
        "---\nprivate: true\n---",
        "---\nprivate: 1\n---",
        "---\nPrivate:\n---",
        "---\nvisibility: private\n---",
        "---\ncategories: [a, private]\n---",
        "---\nx: {y: [private]}\n---",
        "---\ntitle: T\n# :private:\n---",
        "---\ntags:private\n---",
        "---\ntags private\n---",
        "---\n- private\n---",
        "---\nbad: [\ntags: private\n---",
        "---\ntags: private\nbad: [\n...",
        "---\ntitle: T\ntags: private\n",
        "---\ntitle: T\n\ntags: private\n--\n",
        "---\r\ntags: private\r\n---\r\n",
        "---\rtags: private\r---\r",
        "\ufeff---\ntags: private\n---",
        "+++\ntags = ['private']\n+++",
        "+++\nprivate = true\n+++",
        "+++\ntags = [private]\n+++",
        '{ "tags": ["private"] }',
        '{\n  "title": "T",\n  "private": true\n}\n',
        '\ufeff{"x": {"visibility": "Private"}}',
        '{"tags": ["a"], "tags": ["private"]}',
        '{"tags": ["private"], "bad": }',
        '{"tags": ["private"]} and more',
        '{"tags": ["private"]',
        "+++\n[extra]\nvisibility = 'private'\n+++",
        "---\ncategories: private, health\n---",
        "---\nlabels: work private\n---",
        "---\nlabels: [work, '(private)']\n---",
        "---\ntags: private equity\n---",
        "---\ntags: [ｐｒｉｖａｔｅ]\n---",
        "\n \n---\nprivate: true\n---",
        "<!-- made\nby x -->\n---\nvisibility: private\n---",
        " ---\nprivate: true\n ---",
        "----\nprivate: true\n----",
        "---\u00a0\nprivate: true\n---",
        "\ufeff\ufeff---\nprivate: true\n---",
        "\n+++\nprivate = true\n+++",
        "\n---\ntitle: T\nvisibility: private\n",
        "---\nabout: " + "x " * 40_000 + "\ntags: private\n---",
        '{"about": "' + "x " * 40_000 + '", "tags": ["private"]}',
    ],
)
def test_front_matter_that_may_be_meant_as_private_hides_the_file(front: str) -> None:
    assert is_private(front)


@pytest.mark.parametrize(
    "front",
    [
        "---\ntitle: Private\n---",
        "---\nprivate: false\n---",
        "---\nprivate: no\n---",
        "---\nabout: a private talk\n---",
        "---\nurl: https://x.example/private\n---",
        "---\nbad: [\ntags: privateer\n---",
        "---\ntags: [privateer, not-private]\n---",
        "---\ntags: [private equity, private subnet]\n---",
        "---\nkeywords:\n- Private Equity\n- work\n---",
        "---\ncategories: [private equity]\n---",
        "---\nkeywords: private equity, subnets\n---",
        "---\n\nText\n",
        '{"title": "Private", "private": false}',
        "\n---\ntitle: Private\nabout: a private talk\n---",
        "\n---\nThe private beach\n---",
        "{{ private }}",
    ],
)
def test_front_matter_that_only_contains_the_word_hides_nothing(front: str) -> None:
    assert not is_private(front)


def test_a_privacy_tag_of_several_words_counts_in_lists_of_tags() -> None:
    gate = Gate.with_tags(["eyes only"])

    for tags in ("[Eyes Only]", "eyes only", "[a, eyes only"):
        assert not gate.redact(parse_markdown(f"---\ntags: {tags}\n---\nx")).text
