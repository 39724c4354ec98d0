from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadOption
from foveate.memory.parsing.outline import Outline, OutlineEntry, PlanningDate, PlanningKind
from foveate.memory.privacy import DEFAULT_PRIVACY_TAGS, Gate, PublicOutline
from tests.support.scenarios.memory_nodes import LONG_AGO


def outline(entries: Iterable[tuple[int, str, tuple[str, ...]]], problems: tuple[str, ...] = ()) -> Outline:
    """An outline of entries, each with a level, a word as its text, and tags."""
    found, text = [], ""
    for level, word, tags in entries:
        start = len(text)
        text += f"{word}:heading\n{word}:planning\n{word}:content\n"
        found.append(
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
    return Outline(text, found, problems)


def words(outline: Outline) -> list[str]:
    return [entry.title for entry in outline.entries]


private_tags = st.sampled_from(["private", "Private", ":PRIVATE:", "@personal", "#private", " private "])
public_tags = st.sampled_from(["work", "privately", "personal", "not-private", "private2", ""])


@st.composite
def outlines(draw: st.DrawFn) -> tuple[Outline, set[str], set[str]]:
    """An outline with its public and private words."""
    levels = [0, *draw(st.lists(st.integers(1, 7), max_size=14))]
    own = [draw(st.lists(st.one_of(public_tags, public_tags, private_tags), max_size=2)) for _ in levels]
    entries = [
        (level, f"word{at:02}", tuple(tags)) for at, (level, tags) in enumerate(zip(levels, own, strict=True))
    ]
    private = set()
    for at, (level, word, _) in enumerate(entries):
        above, lowest = [at], level
        for earlier in range(at - 1, -1, -1):
            if levels[earlier] < lowest:
                above.append(earlier)
                lowest = levels[earlier]
        hidden = ("private", "@personal")
        if any(tag.strip(" :#").lower() in hidden for ancestor in above for tag in own[ancestor]):
            private.add(word)
    return outline(entries, ("line 1: odd",)), {word for _, word, _ in entries} - private, private


@pytest.mark.slow
@given(generated=outlines())
def test_exactly_the_public_text_remains(generated: tuple[Outline, set[str], set[str]]) -> None:
    read, public, private = generated
    admitted = Gate().redact(read)

    assert set(words(admitted)) == public
    assert admitted.to_text() == admitted.text
    assert not [word for word in private if word in repr(admitted)]
    assert admitted.problems == (() if private else read.problems)


@pytest.mark.slow
@given(generated=outlines())
def test_positions_refer_to_the_public_text(generated: tuple[Outline, set[str], set[str]]) -> None:
    admitted = Gate().redact(generated[0])
    text = admitted.text

    for entry in admitted.entries:
        assert text[entry.start : entry.body] == f"{entry.title}:heading\n"
        assert text[entry.body : entry.content] == f"{entry.title}:planning\n"
        assert text[entry.content : entry.end] == f"{entry.title}:content\n"
    assert all(previous.end == following.start for previous, following in pairwise(admitted.entries))


@pytest.mark.slow
@given(generated=outlines())
def test_redacting_again_changes_nothing(generated: tuple[Outline, set[str], set[str]]) -> None:
    once = Gate().redact(generated[0])

    assert Gate().redact(once) == once
    assert isinstance(once, PublicOutline)


def test_a_private_file_leaves_nothing() -> None:
    admitted = Gate().redact(outline([(0, "file", ("private",)), (1, "one", ()), (3, "two", ())], ("odd",)))

    assert admitted == PublicOutline("", [], ())


def test_entries_after_a_private_subtree_are_public() -> None:
    read = outline(
        [(0, "file", ()), (2, "hidden", ("private",)), (40, "below", ()), (2, "next", ()), (3, "child", ())]
    )

    assert words(Gate().redact(read)) == ["file", "next", "child"]


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


@pytest.mark.parametrize("unseen", ["\u200b", "\u00ad", "\u2060", "\ufeff", "\u200e", "\U000e0020"])
def test_invisible_characters_in_a_tag_are_ignored(unseen: str) -> None:
    for tag in ("pri%svate", "%sprivate", "private%s", "%s:private:", "#%sPrivate%s/x"):
        assert Gate().is_private(tag.replace("%s", unseen))
    assert Gate.with_tags([f"se{unseen}cret"]).is_private("secret")


@pytest.mark.parametrize("tags", [["\u200b"], [":\u00ad:"]])
def test_a_tag_of_invisible_characters_is_rejected(tags: list[str]) -> None:
    with pytest.raises(BadOption):
        Gate.with_tags(tags)


def test_tags_of_a_gate_are_normalized() -> None:
    assert Gate(frozenset({":Secret:"})).is_private("secret")
    assert Gate.with_tags([":one:two:", "#Three"]).tags == {*DEFAULT_PRIVACY_TAGS, "one", "two", "three"}


@given(configured=st.sets(st.sampled_from("abcd"), min_size=1), added=st.sets(st.sampled_from("abcdef")))
def test_tags_of_a_call_only_add_to_the_configured_ones(configured: set[str], added: set[str]) -> None:
    gate = Gate.with_tags(added, base=configured)

    assert all(map(gate.is_private, configured | added))
    assert gate.tags == configured | added


@pytest.mark.parametrize("tags", ["private", [""], [":"], ["one", " # "]])
def test_an_invalid_list_of_tags_is_rejected(tags: Iterable[str]) -> None:
    with pytest.raises(BadOption) as refusal:
        Gate.with_tags(tags)

    assert refusal.value.path == ("private",)
