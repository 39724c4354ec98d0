import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from orgparse import loadi

from foveate.memory.parsing import parse_notes
from foveate.memory.parsing.markdown import find_headings, parse_headings
from foveate.memory.parsing.outline import Outline, PlanningDate, PlanningKind, TagScope
from foveate.memory.privacy import Gate
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.notes import (
    NoteFolder,
    each_line,
    markdown_texts,
    note_folders,
    note_texts,
    org_texts,
)

GATE = Gate()
note_paths = st.sampled_from(("a.org", "a.ORG", "a.org_archive", "a.md", "a.markdown", "a.txt", "a"))


def check_coverage(outline: Outline, text: str) -> None:
    """Check that the entries cover all of the text."""
    assert outline.to_text() == outline.text == text
    first, *others = outline.entries
    assert (first.start, first.level) == (0, 0)
    assert outline.entries[-1].end == len(text)
    assert all(before.end == after.start for before, after in pairwise(outline.entries))
    assert all(entry.start <= entry.body <= entry.content <= entry.end for entry in outline.entries)
    assert all(entry.level >= 1 for entry in others)
    assert outline.tokens
    tokens = list(outline.tokens.find(GATE.mentions))
    assert all(0 <= token.position < len(text) for token in tokens)
    blocks = [token.position for token in tokens if token.scope is TagScope.BLOCK]
    for position in blocks[:10]:
        (entry,) = [entry for entry in outline.entries if entry.start <= position < entry.end]
        start, end = outline.tokens.find_block(position, entry.content, entry.end)
        assert entry.content <= start <= position < end <= entry.end


@given(text=note_texts, path=note_paths)
def test_no_text_is_lost(text: str, path: str) -> None:
    outline = parse_notes(text, path=path)

    check_coverage(outline, text)
    event(f"{min(len(outline.entries), 5)} entries")


@pytest.mark.slow
@given(notes=note_folders())
def test_exactly_the_public_words_remain_after_redaction(notes: NoteFolder) -> None:
    redacted = [GATE.redact(parse_notes(file.text, path=file.path)) for file in notes.files]
    visible_text = "".join(outline.text for outline in redacted)

    assert not notes.leaked_words(visible_text + repr(redacted))
    assert not {word for word in notes.public if word not in visible_text}
    assert {node_id for node_id in notes.ids if node_id in notes.public} == {
        entry.properties["ID"] for outline in redacted for entry in outline.entries if "ID" in entry.properties
    }


@pytest.mark.slow
@given(text=org_texts)
def test_an_org_heading_with_a_privacy_tag_is_hidden_anywhere(text: str) -> None:
    visible_text = GATE.redact(parse_notes(text, path="a.org")).text

    assert not [line for line in each_line(visible_text) if re.match(r"\*+ (.*\s)?:private[:\s]", line)]


@given(text=markdown_texts)
def test_a_markdown_heading_with_a_privacy_tag_is_hidden_anywhere(text: str) -> None:
    visible_text = GATE.redact(parse_notes(text, path="a.md")).text

    assert not [line for line in each_line(visible_text) if re.match(r"#+ (.*\s)?:private[:\s]", line)]


_BLOCKS = (
    "# a", "## b ##", "#", "#\tt", "####### no", "#x", " # i", "   ## i", "    # code", "\t# tab", "text",
    "more", "===", "---", "--", "-", "- - -", "- item", "- # li", "  more", "    deep", "1. one", "2) two",
    "> q", "> # q", "```", "```py", "``` a`b", "~~~", "~~~~", "  ```", "    ```", "<div>", "</div>", "<!--",
    "-->", "<!-- x -->", "<b>bold</b>", "<b>", "  <div>", "<pre>", "</pre>", "<?php", "?>", "<!DOCTYPE x>",
    "<![CDATA[", "]]>", "<x-y>", "[a]: b", "[a]: b 'title", "title'", "[a]:", "", "", "", "", " ", "\t",
    "\xa0# n", "\x0c# f", "# t \x0b", "# \0", "\\# e", "|a|b|", "|-|-|", "   ---", "    ---", "+", "<script>",
    "</script>", "<img src=x>",
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=limit_examples(500))
@given(
    lines=st.lists(st.sampled_from(_BLOCKS), max_size=25),
    end=st.sampled_from(("", "\n")),
    chunk_chars=st.sampled_from((1, 10, 40, 4096)),
)
def test_markdown_headings_equal_those_of_the_library(lines: list[str], end: str, chunk_chars: int) -> None:
    text = "\n".join(lines) + end
    headings, _ = parse_headings(text)

    assert find_headings(text, chunk_chars=chunk_chars) == headings
    event(f"{min(len(headings), 5)} headings")


def test_a_link_definition_across_a_chunk_boundary_adds_no_heading() -> None:
    text = " # a\n[b]: c 'd\n===\ne\nf\nd'\n\n# g\n"
    headings, _ = parse_headings(text)

    assert [heading.title for heading in headings] == ["a", "g"]
    for chunk_chars in range(1, 40):
        assert find_headings(text, chunk_chars=chunk_chars) == headings


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    with tarfile.open(archive) as opened:
        for member in opened:
            if file := opened.extractfile(member) if member.isfile() else None:
                yield member.name, file.read()


@pytest.mark.slow
def test_real_org_files_are_parsed_completely_and_like_orgparse(shared_data: Path) -> None:
    count = 0
    for name, data in members(shared_data / "knowledge" / "worg.tar.gz"):
        if not name.endswith(".org"):
            continue
        text = data.decode()
        outline = parse_notes(text, path=name)
        check_coverage(outline, text)
        nodes = list(loadi(text.split("\n"), name))[1:]
        assert len(nodes) == len(outline.entries) - 1
        for node, entry in zip(nodes, outline.entries[1:], strict=True):
            count += 1
            assert (node.level, node.todo or "", node.priority or "") == (
                entry.level,
                entry.todo,
                entry.priority,
            )
            # orgparse does not support # in a tag, and leaves such tags in the title.
            if not any("#" in tag for tag in entry.tags):
                assert (node.heading, node.shallow_tags) == (entry.title, set(entry.tags))
            orgparse_dates = {"scheduled": node.scheduled, "deadline": node.deadline, "closed": node.closed}
            assert {kind: date.start for kind, date in orgparse_dates.items() if date} == {
                planning_date.kind: planning_date.at if planning_date.has_time else planning_date.at.date()
                for planning_date in entry.planning_dates
            }
    assert count == 6669


@pytest.mark.slow
def test_real_markdown_files_are_parsed_completely_and_like_the_library(shared_data: Path) -> None:
    count, any_titled = 0, False
    for name, data in members(shared_data / "knowledge" / "tau2_banking.tar.gz"):
        if name.endswith(".md"):
            text = data.decode()
        elif "/documents/" in name:
            text = json.loads(data)["content"]
        else:
            continue
        outline = parse_notes(text, path=name)
        check_coverage(outline, text)
        headings, _ = parse_headings(text)
        # A single first-level heading is the title of its file.
        is_titled = len(outline.entries) == len(headings)
        any_titled |= is_titled
        assert [entry.start for entry in outline.entries[1:]] == [
            heading.start for heading in headings[is_titled:]
        ]
        count += len(headings)
    assert count > 2000
    assert any_titled


_LONG = 100_000
_ADVERSARIAL_TEXTS = {
    "blanks in a heading": "* a" + " " * _LONG + "b :x:",
    "colons": "* " + ":" * _LONG,
    "unclosed tags": "* " + "a:" * (_LONG // 2),
    "privacy tags in one heading": "# " + ":private#" * (_LONG // 9),
    "links": "* " + "[[" * (_LONG // 2),
    "stars": "*" * _LONG,
    "blanks in a line": "* a\nx" + " " * _LONG + "y",
    "planning that does not end": "* a\n" + "SCHEDULED: <2020-01-01 " * (_LONG // 23),
    "planning on one line": "# a\n" + "SCHEDULED: <2020-01-01> " * (_LONG // 24),
    "planning on many lines": "# a\n" + "SCHEDULED: 2020-01-01\n" * (_LONG // 22),
    "drawers that do not end": "* a\n" + ":PROPERTIES:\n" * (_LONG // 13),
    "properties": "* a\n:PROPERTIES:\n" + ":A+: b\n" * (_LONG // 8) + ":END:\n",
    "private properties": "* a\n" + ":TAGS: private\n" * (_LONG // 15),
    "unclosed properties": "* private\n" + ":a" * (_LONG // 2) + "x\n",
    "settings": "#+KEYWORDS: privately\n" * (_LONG // 22),
    "private items": "- [ ] a #private\n" * (_LONG // 17),
    "private paragraphs": "a #private\n" * (_LONG // 11) + "\n\n" + "b\n" * (_LONG // 4) + "c #private\n",
    "backticks and links": "private #" + "` `` [[ a:// b=' =c " * (_LONG // 20),
    "an item of tags": "- " + "#privately " * (_LONG // 11) + "\n- " + "#private:" * (_LONG // 9),
    "HTML headings": "<h1>:private\n" * (_LONG // 13),
    "unclosed HTML headings": "private <h1" * (_LONG // 11),
    "lists of tags": "Tags:\n- privately\n\n" * (_LONG // 19),
    "a very long list of tags": "private\nTags:\n" + "- Tags:\n \n" * (_LONG // 10),
    "lines of tags": "Tags: private\n:private:\n" * (_LONG // 24),
    "punctuation before tags": "private\n"
    + "- > [ ] * %% <!-- " * (_LONG // 18)
    + "\n"
    + ": : " * (_LONG // 4),
    "tag markers": "private\n" + "@a :b #c " * (_LONG // 9) + "d\n# " + "@a " * (_LONG // 3),
    "fences and tags": "```\n:private:\n```\n" * (_LONG // 18),
    "punctuation before stars": "private\n"
    + ", \x0c" * (_LONG // 3)
    + "x\n"
    + " ,* :private\n" * (_LONG // 13),
    "settings with no colon": "private\n#+" + "a" * _LONG + "\n" + "#+FILETAGS a\n" * (_LONG // 13),
    "nested JSON": '{"tags": ' + "[" * 60_000,
    "open JSON": "{" * 60_000 + "private",
    "blocks that do not end": "#+begin_src\n* x :private:\n" * (_LONG // 27),
    "deep headings": "\n".join("*" * level + " x" for level in range(1, 2001)),
    "blank lines": " \n" * (_LONG // 2),
    "hashtags": "# " + "#a :b: " * (_LONG // 7),
    "lines of hashtags": "#a\n" * (_LONG // 3),
    "attributes": "# " + "{#a} " * (_LONG // 5),
    "fences": " ```\n# x\n" * (_LONG // 9),
    "html": "<x-y>\n\ntext\n" * (_LONG // 12),
    "a very long HTML tag": "<a" + " b" * (_LONG // 2),
    "comments": "<!-- x\n" * (_LONG // 7),
    "quotes": ">" * _LONG,
    "quotes in quotes": ("> " * 100 + "# x :private:\n") * (_LONG // 214),
    "lists in lists": "".join(" " * 2 * depth + "- # a\n" for depth in range(400)),
    "brackets": "# " + "[a](b " * (_LONG // 6),
    "backticks": ("# [" + " ".join("`" * size for size in range(1, 30)) + "\n") * (_LONG // 470),
    "front matter": "---\n" + "a: b\n" * 12_000 + "---\n",
    "nested front matter": "---\na: " + "[" * 60_000 + "\n---\n",
    "nested toml": "+++\na = " + "{a=" * 20_000 + "\n+++\n",
    "long front matter": "---\nprivate : no\n" + "a: b\n" * (_LONG // 5) + "---\n",
    "comments before front matter": "<!-- x -->\n" * (_LONG // 11) + "---\nprivate: no\n",
    "repeated front matter lines": "\n----\n" * (_LONG // 6) + "private: no\n",
    "a comment in front matter": "---\na: #x" + " " * 60_000 + "\n---\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _ADVERSARIAL_TEXTS)
@pytest.mark.parametrize("path", ["a.org", "a.md"])
def test_parsing_takes_linear_time(name: str, path: str) -> None:
    text = _ADVERSARIAL_TEXTS[name]
    start_seconds = time.process_time()

    outline = parse_notes(text, path=path)
    check_coverage(outline, text)
    GATE.redact(outline)

    # Quadratic time would take a minute, so the limit is generous for slow machines.
    assert time.process_time() - start_seconds < 15


def test_two_thousand_levels_are_two_thousand_entries() -> None:
    outline = parse_notes(_ADVERSARIAL_TEXTS["deep headings"], path="a.org")

    assert [entry.level for entry in outline.entries] == list(range(2001))


def test_the_suffix_selects_the_parser_and_the_stem_is_the_title() -> None:
    text = "* Star\n# Hash\n"

    for path, title in (
        ("/x/My notes.org", "Star"),
        ("a.ORG", "Star"),
        ("a.org_archive", "Star"),
        ("a.md", "Hash"),
    ):
        assert parse_notes(text, path=path).entries[1].title == title
    assert parse_notes(text, path="README").entries[1].title == "Hash"
    assert parse_notes(text, path="/x/My notes.org").entries[0].title == "My notes"


def test_problems_have_line_numbers_and_are_limited() -> None:
    problems = parse_notes(
        "x\r\n\r* A\nDEADLINE: <2026-02-31>\n" + "* A\nCLOSED: [x]\n" * 1000, path="a.org"
    ).problems

    assert problems[0] == "line 4: DEADLINE has a date that does not exist: 2026-02-31"
    assert problems[-1] == "and 981 more"
    assert len(problems) == 21


def test_a_planning_date_is_in_the_writers_local_time() -> None:
    (stamp,) = parse_notes("# A\nDEADLINE: 2026-11-20T17:00:00+09:00\n", path="a.md").entries[0].planning_dates

    assert isinstance(stamp, PlanningDate)
    assert (stamp.kind, stamp.at.isoformat(), stamp.at.tzinfo) == (
        PlanningKind.DEADLINE,
        "2026-11-20T17:00:00",
        None,
    )


@pytest.mark.process
def test_parser_libraries_are_imported_only_if_needed() -> None:
    script = (
        "import sys; from foveate.memory.privacy import Gate\n"
        "from foveate.memory.parsing import parse_notes\n"
        "print([m for m in ('orgparse', 'markdown_it', 'yaml') if m in sys.modules])\n"
        "parse_notes('* A', path='a.org')\n"
        "print([m for m in ('orgparse', 'markdown_it', 'yaml') if m in sys.modules])\n"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert completed.stdout.splitlines() == ["[]", "['orgparse']"]
