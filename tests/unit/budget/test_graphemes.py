"""Positions between graphemes."""

from itertools import pairwise, product

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget.graphemes import (
    boundary_at_or_after,
    boundary_at_or_before,
    next_boundary,
    previous_boundary,
)
from tests.support.strategies.texts import any_texts

# At least one character of each kind in the rules, and combinations of them.
STRETCHES = (
    *"ab \r\n\t漢かé가각",
    *(
        "\r\n",
        "e\u0301",
        "\u0301",
        "\u0308",
        "\u200d",
        "\u200c",
        "\u200b",
        "\ufe0f",
        "\u20e3",
        "\x00",
        "\ufeff",
    ),
    *("👨", "❤", "©", "👍🏽", "👨‍👩‍👧", "👩🏽‍🚀", "🏴‍☠️", "\U0001f3fd", "🇩", "🇩🇪", "🇩🇪🇫"),
    *("क", "ष", "\u094d", "\u093c", "\u093f", "\u0903", "क्षि", "क्\u200dष", "क्\u200cष", "ক্ষ", "ක්\u200dෂ", "က္က"),
    *("ไทย", "\u0e33", "กำ", "\u1112", "\u1161", "\u11ab", "ㅎ"),
    *("\u0600", "\u06dd", "\u0d4e", "\U000110bd"),
    *("\ud83d", "\ude00", "\ud83d\ude00"),
)
short_texts = st.one_of(st.lists(st.sampled_from(STRETCHES), max_size=12).map("".join), any_texts)
# Some are longer than the window that is searched first.
_rows = st.builds(
    lambda stretch, times: stretch * times, st.sampled_from(STRETCHES), st.sampled_from((1, 2, 3, 150, 300))
)
long_texts = st.lists(_rows, min_size=1, max_size=12).map("".join)

CLUSTER = regex.compile(r"\X")
# Clusters that `\X` of some releases splits.
CONJUNCT = regex.compile(r"\p{InCB=Linker}\p{InCB=Extend}*(?=\p{InCB=Consonant})")
SURROGATES = regex.compile(r"[\uD800-\uDBFF](?=[\uDC00-\uDFFF])")


def boundaries(text: str) -> list[int]:
    """Boundaries found by an independent scan of the whole text."""
    ends = {0} | {cluster.end() for cluster in CLUSTER.finditer(text)}
    joined = {part.end() for part in (*CONJUNCT.finditer(text), *SURROGATES.finditer(text))}
    return sorted(ends - joined)


def clusters(text: str) -> list[str]:
    """Split `text` at every boundary that some position is rounded down to."""
    cuts = sorted({boundary_at_or_before(text, at) for at in range(len(text) + 1)})
    return [text[start:end] for start, end in pairwise(cuts)]


def check_nearest_boundaries(text: str, at: int, expected: list[int]) -> None:
    assert boundary_at_or_before(text, at) == max(place for place in expected if place <= at)
    assert boundary_at_or_after(text, at) == min(place for place in expected if place >= at)


@given(text=short_texts)
def test_the_nearest_boundaries_are_those_of_a_scan_of_the_whole_text(text: str) -> None:
    expected = boundaries(text)
    for at in range(len(text) + 1):
        check_nearest_boundaries(text, at, expected)


@given(text=long_texts, data=st.data())
def test_the_nearest_boundaries_are_found_in_long_runs_too(text: str, data: st.DataObject) -> None:
    check_nearest_boundaries(text, data.draw(st.integers(0, len(text))), boundaries(text))


def test_any_two_kinds_of_characters_are_split_like_in_a_full_scan() -> None:
    for text in map("".join, product(STRETCHES, repeat=2)):
        expected = boundaries(text)
        for at in range(len(text) + 1):
            check_nearest_boundaries(text, at, expected)


@given(text=st.one_of(short_texts, long_texts), data=st.data())
def test_steps_go_from_one_boundary_to_the_next(text: str, data: st.DataObject) -> None:
    expected = boundaries(text)
    index = data.draw(st.integers(0, len(expected) - 1))

    assert next_boundary(text, expected[index]) == expected[min(index + 1, len(expected) - 1)]
    assert previous_boundary(text, expected[index]) == expected[max(index - 1, 0)]


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param("👨‍👩‍👧‍👦", id="family"),
        pytest.param("👍🏽", id="skin tone"),
        pytest.param("❤️‍🔥", id="emoji with a variation selector"),
        pytest.param("1️⃣", id="keycap"),
        pytest.param("e\u0301\u0323", id="accents"),
        pytest.param("क्षि", id="Devanagari conjunct"),
        pytest.param("ক্ষ", id="Bengali conjunct"),
        pytest.param("ക്\u200dഷ", id="Malayalam conjunct with a joiner"),
        pytest.param("กำ", id="Thai vowel"),
        pytest.param("\u1112\u1161\u11ab", id="Hangul syllable in three letters"),
        pytest.param("가\u11a8", id="Hangul syllable with a final letter of its own"),
        pytest.param("각\u11a8", id="Hangul syllable with one final letter more"),
        pytest.param("\u0600١", id="sign before a number"),
        pytest.param("🇩🇪", id="flag"),
        pytest.param("\r\n", id="CR LF"),
        pytest.param("\ud83d\ude00", id="lone surrogates that are a pair"),
        pytest.param("e" + "\u0301" * 1000, id="a thousand accents"),
    ],
)
def test_a_grapheme_is_never_split(cluster: str) -> None:
    text, start, end = f"漢{cluster}漢", 1, 1 + len(cluster)

    assert {boundary_at_or_before(text, at) for at in range(start, end)} == {start}
    assert {boundary_at_or_after(text, at) for at in range(start + 1, end + 1)} == {end}


def test_an_unpaired_regional_indicator_stands_alone() -> None:
    assert clusters("🇩🇪🇫🇷") == ["🇩🇪", "🇫🇷"]
    assert clusters("🇩🇪🇫") == ["🇩🇪", "🇫"]


@pytest.mark.parametrize("length", [2, 3, 255, 256, 257, 1024, 1025, 1026, 2047, 2048, 2049, 3000, 5001])
def test_regional_indicators_are_paired_from_the_start_of_their_run(length: int) -> None:
    text = "漢" + "🇩" * length + "漢"

    for letters in {0, 1, length // 2, length - 1}:
        assert boundary_at_or_before(text, 1 + letters) == 1 + letters - letters % 2
        assert boundary_at_or_after(text, 1 + letters) == 1 + min(letters + letters % 2, length)


def test_a_combining_mark_after_a_line_break_stands_alone() -> None:
    assert clusters("a\n\u0301b") == ["a", "\n", "\u0301", "b"]


def test_line_breaks_are_split_except_cr_lf() -> None:
    assert clusters("\r\r\n\n\r漢\r\n") == ["\r", "\r\n", "\n", "\r", "漢", "\r\n"]


@pytest.mark.parametrize("text", ["", "a", "\r\n", "👨‍👩‍👧"])
def test_both_ends_are_boundaries(text: str) -> None:
    for find in (boundary_at_or_before, boundary_at_or_after, previous_boundary):
        assert (find(text, -1), find(text, 0)) == (0, 0)
    for find in (boundary_at_or_before, boundary_at_or_after, next_boundary):
        assert (find(text, len(text)), find(text, len(text) + 1)) == (len(text), len(text))
