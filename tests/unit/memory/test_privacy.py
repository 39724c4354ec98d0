from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadOption
from foveate.memory.parsing.outline import Outline, OutlineEntry, PlanningDate, PlanningKind, TagScope, TagToken
from foveate.memory.privacy import DEFAULT_PRIVACY_TAGS, Gate, PublicOutline
from tests.support.scenarios.memory_nodes import LONG_AGO


def build_outline(
    entries: Iterable[tuple[int, str, tuple[str, ...]]], problems: tuple[str, ...] = ()
) -> Outline:
    """Build an outline of entries, each with a level, a word as its text, and tags."""
    outline_entries, text = [], ""
    for level, word, tags in entries:
        start = len(text)
        text += f"{word}:heading\n{word}:planning\n{word}:content\n"
        outline_entries.append(
            OutlineEntry(
                start=start,
                body=start + len(word) + 9,
                content=start + 2 * len(word) + 19,
                end=len(text),
                level=level,
                title=word,
                tags=tags,
                properties={"KEY": word},
                planning_dates=(PlanningDate(PlanningKind.CLOSED, LONG_AGO),),
            )
        )
    return Outline(text, outline_entries, problems)


def entry_titles(outline: Outline) -> list[str]:
    return [entry.title for entry in outline.entries]


private_tags = st.sampled_from(["private", "Private", ":PRIVATE:", "@personal", "#private", " private "])
public_tags = st.sampled_from(["work", "privately", "personal", "not-private", "private2", ""])


@st.composite
def outlines(draw: st.DrawFn) -> tuple[Outline, set[str], set[str]]:
    """Generate an outline with its public and private words."""
    levels = [0, *draw(st.lists(st.integers(1, 7), max_size=14))]
    own_tags = [draw(st.lists(st.one_of(public_tags, public_tags, private_tags), max_size=2)) for _ in levels]
    entries = [
        (level, f"word{index:02}", tuple(tags))
        for index, (level, tags) in enumerate(zip(levels, own_tags, strict=True))
    ]
    private = set()
    for index, (level, word, _) in enumerate(entries):
        ancestors, min_level = [index], level
        for previous in range(index - 1, -1, -1):
            if levels[previous] < min_level:
                ancestors.append(previous)
                min_level = levels[previous]
        hidden = ("private", "@personal")
        if any(tag.strip(" :#").lower() in hidden for ancestor in ancestors for tag in own_tags[ancestor]):
            private.add(word)
    return build_outline(entries, ("line 1: odd",)), {word for _, word, _ in entries} - private, private


@pytest.mark.slow
@given(generated=outlines())
def test_exactly_the_public_text_remains(generated: tuple[Outline, set[str], set[str]]) -> None:
    outline, public, private = generated
    redacted = Gate().redact(outline)

    assert set(entry_titles(redacted)) == public
    assert redacted.to_text() == redacted.text
    assert not [word for word in private if word in repr(redacted)]
    assert redacted.problems == (() if private else outline.problems)


@pytest.mark.slow
@given(generated=outlines())
def test_positions_refer_to_the_public_text(generated: tuple[Outline, set[str], set[str]]) -> None:
    redacted = Gate().redact(generated[0])
    text = redacted.text

    for entry in redacted.entries:
        assert text[entry.start : entry.body] == f"{entry.title}:heading\n"
        assert text[entry.body : entry.content] == f"{entry.title}:planning\n"
        assert text[entry.content : entry.end] == f"{entry.title}:content\n"
    assert all(previous.end == current.start for previous, current in pairwise(redacted.entries))


@pytest.mark.slow
@given(generated=outlines())
def test_redacting_again_changes_nothing(generated: tuple[Outline, set[str], set[str]]) -> None:
    redacted = Gate().redact(generated[0])

    assert Gate().redact(redacted) == redacted
    assert isinstance(redacted, PublicOutline)


def test_a_private_file_leaves_nothing() -> None:
    redacted = Gate().redact(
        build_outline([(0, "file", ("private",)), (1, "one", ()), (3, "two", ())], ("odd",))
    )

    assert redacted == PublicOutline("", [], ())


@dataclass(frozen=True)
class FakeTokens:
    """Tokens of an outline; blocks are single words."""

    tokens: tuple[TagToken, ...] = ()

    def find(self, mentions: Callable[[str], bool]) -> Iterator[TagToken]:
        if not self.tokens:
            raise RuntimeError("the parser has a bug")
        return (token for token in self.tokens if mentions(token.text))

    def find_block(self, position: int, start: int, end: int) -> tuple[int, int]:
        assert start <= position < end
        return position, position + 6


def redact_with_tokens(*tokens: TagToken) -> PublicOutline:
    # The title of the file mentions a privacy tag, so the tokens are checked.
    outline = build_outline([(0, "private", ()), (1, "word02", ()), (2, "word03", ())], ("odd",))
    return Gate().redact(msgspec.structs.replace(outline, tokens=FakeTokens(tokens)))


def token(position: int, scope: TagScope, level: int = 0, *, text: str = "private") -> TagToken:
    return TagToken(position, text, False, scope, level)


def test_a_token_hides_its_file_heading_or_block() -> None:
    start = redact_with_tokens(token(0, TagScope.FILE, text="public")).entries[1]

    assert redact_with_tokens(token(60, TagScope.FILE)) == PublicOutline("", [])
    assert entry_titles(redact_with_tokens(token(start.start, TagScope.HEADING))) == ["private"]
    by_block = redact_with_tokens(token(start.content, TagScope.BLOCK))
    assert entry_titles(by_block) == ["private", "word02", "word03"]
    assert by_block.text[by_block.entries[1].content : by_block.entries[1].end] == ":content\n"
    assert by_block.problems == ()


def test_a_line_that_may_be_a_heading_hides_what_would_be_below_it() -> None:
    content = redact_with_tokens(token(0, TagScope.FILE, text="public")).entries[1].content

    for level, titles in ((1, ["private", "word02"]), (2, ["private", "word02", "word03"])):
        redacted = redact_with_tokens(token(content + 6, TagScope.HEADING, level))
        assert entry_titles(redacted) == titles
        assert redacted.text[redacted.entries[1].content : redacted.entries[1].end] == "word02"


@pytest.mark.parametrize(
    "tokens",
    [
        (),
        (token(0, cast("Any", "paragraph")),),
        (token(10_000, TagScope.HEADING),),
        (token(0, TagScope.BLOCK),),
    ],
    ids=["an error", "an unknown scope", "a heading outside of the text", "a block outside of the content"],
)
def test_a_file_that_cannot_be_checked_is_private(tokens: tuple[TagToken, ...]) -> None:
    assert redact_with_tokens(*tokens) == PublicOutline("", [])


def test_entries_after_a_private_subtree_are_public() -> None:
    outline = build_outline(
        [(0, "file", ()), (2, "hidden", ("private",)), (40, "below", ()), (2, "next", ()), (3, "child", ())]
    )

    assert entry_titles(Gate().redact(outline)) == ["file", "next", "child"]


@pytest.mark.parametrize(
    "tag",
    ["private", ":private:", "PRIVATE", "Private", "#private", " private\n", "@Personal", "#Private/health/x"],
)
def test_a_privacy_tag_matches_in_any_spelling(tag: str) -> None:
    assert Gate().is_private(tag)


@pytest.mark.parametrize(
    "tag", ["", "privat", "privately", "personal", "un-private", "private work", "work/private"]
)
def test_tags_match_completely(tag: str) -> None:
    assert not Gate().is_private(tag)


def test_composed_and_decomposed_accents_match() -> None:
    composed, decomposed = "priv\u00e9", "prive\u0301"

    assert Gate.with_tags([composed]).is_private(decomposed)
    assert Gate.with_tags([decomposed]).is_private(composed)


@pytest.mark.parametrize("invisible", ["\u200b", "\u00ad", "\u2060", "\ufeff", "\u200e", "\U000e0020"])
def test_invisible_characters_in_a_tag_are_ignored(invisible: str) -> None:
    for tag in ("pri%svate", "%sprivate", "private%s", "%s:private:", "#%sPrivate%s/x"):
        assert Gate().is_private(tag.replace("%s", invisible))
    assert Gate.with_tags([f"se{invisible}cret"]).is_private("secret")


@pytest.mark.parametrize("tags", [["\u200b"], [":\u00ad:"]])
def test_a_tag_of_invisible_characters_is_rejected(tags: list[str]) -> None:
    with pytest.raises(BadOption):
        Gate.with_tags(tags)


def test_tags_of_a_gate_are_normalized() -> None:
    assert Gate(frozenset({":Secret:"})).is_private("secret")
    assert Gate.with_tags([":one:two:", "#Three"]).tags == {*DEFAULT_PRIVACY_TAGS, "one", "two", "three"}


@given(configured=st.sets(st.sampled_from("abcd"), min_size=1), extra=st.sets(st.sampled_from("abcdef")))
def test_tags_of_a_call_only_add_to_the_configured_ones(configured: set[str], extra: set[str]) -> None:
    gate = Gate.with_tags(extra, base=configured)

    assert all(map(gate.is_private, configured | extra))
    assert gate.tags == configured | extra


@pytest.mark.parametrize("tags", ["private", [""], [":"], ["one", " # "]])
def test_an_invalid_list_of_tags_is_rejected(tags: Iterable[str]) -> None:
    with pytest.raises(BadOption) as raised:
        Gate.with_tags(tags)

    assert raised.value.path == ("private",)
