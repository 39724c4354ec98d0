from pathlib import Path

import pytest

import foveate.memory.parsing
from foveate.memory.parsing import parse_notes
from foveate.memory.parsing.outline import TagScope
from foveate.memory.parsing.tag_tokens import CodeRanges, TextBlocks, normalize_text


def find_scopes(text: str, path: str) -> set[TagScope]:
    """Return the scopes of the tokens that are the tag `topic`."""
    tokens = parse_notes(text, path=path).tokens
    assert tokens
    return {
        token.scope
        for token in tokens.find(lambda mentioned: "topic" in mentioned)
        if token.text.strip(" :#") == "topic"
    }


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("#+FILETAGS: topic\n", TagScope.FILE),
        ("#+KEYWORDS: topic\n", TagScope.FILE),
        ("* A topic:\n", TagScope.HEADING),
        ("* A :topic\n", TagScope.HEADING),
        ("* A\n:VISIBILITY: topic\n", TagScope.HEADING),
        ("* A\n:topic:\n", TagScope.HEADING),
        ("* A\nx #topic\n", TagScope.BLOCK),
        ("* A\n- x :topic:\n", TagScope.BLOCK),
        ("* A\n#+begin_src org\n* B :topic:\n#+end_src\n", TagScope.HEADING),
    ],
)
def test_any_tag_in_org_has_a_scope(text: str, scope: TagScope) -> None:
    assert scope in find_scopes(text, "a.org")


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("---\nlabels: topic\n---\n", TagScope.FILE),
        ("---\ntopic: true\n---\n", TagScope.FILE),
        ("#topic and more\n", TagScope.FILE),
        ("<h1>A #topic</h1>\n", TagScope.FILE),
        ("# A\nx\n\nTags: topic\n", TagScope.FILE),
        ("# A\nTags: topic\n", TagScope.HEADING),
        ("# A #topic x\n", TagScope.HEADING),
        ("# A {.topic}\n", TagScope.HEADING),
        ("# A\n> ## B :topic:\n", TagScope.HEADING),
        ("# A\nx #topic\n", TagScope.BLOCK),
    ],
)
def test_any_tag_in_markdown_has_a_scope(text: str, scope: TagScope) -> None:
    assert scope in find_scopes(text, "a.md")


@pytest.mark.parametrize("path", ["a.org", "a.md"])
def test_a_word_in_prose_or_code_is_not_a_token(path: str) -> None:
    assert find_scopes("* A\n\nA topic, [[topic]] and ` #topic `.\n", path) == set()


@pytest.mark.parametrize("path", ["a.org", "a.md"])
def test_lines_that_do_not_mention_a_tag_are_skipped(path: str) -> None:
    tokens = parse_notes("* A :topic:\n- x #topic\n# B #topic\n\nTags: topic\n", path=path).tokens

    assert tokens
    assert list(tokens.find(lambda _: True))
    assert list(tokens.find(lambda _: False)) == []


def test_a_block_is_a_paragraph_an_item_or_a_row() -> None:
    text = "a\nb\n\n- c\n  d\n- e\n| f |\n| g |\n"
    blocks = TextBlocks(text, CodeRanges())

    def block(word: str) -> str:
        start, end = blocks.find_range(text.rfind("\n", 0, text.index(word)) + 1, 0, len(text))
        return text[start:end]

    assert [block(word) for word in "bdf"] == ["a\nb\n", "- c\n  d\n", "| f |\n"]


def test_texts_that_look_the_same_are_normalized_to_the_same() -> None:
    assert normalize_text("ＴＡＧ") == normalize_text("t\u00adag") == "tag"


def test_parsers_do_not_depend_on_privacy() -> None:
    (folder,) = foveate.memory.parsing.__path__
    sources = [path.read_text(encoding="utf-8") for path in Path(folder).glob("*.py")]

    assert len(sources) > 5
    assert not [source for source in sources if "memory.privacy" in source]
