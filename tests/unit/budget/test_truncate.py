"""Truncation keeps the largest piece that fits, and cuts only at allowed positions."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import foveate
from foveate.budget import Budget, Section
from foveate.budget.graphemes import next_boundary
from foveate.budget.truncate import LESS_RELEVANT_TRUNCATED, LONG_LINE_CHARS, OLDER_TRUNCATED, TRUNCATED
from tests.support.strategies.sections import CJK, CODE, FAMILY, PROSE, texts
from tests.support.strategies.texts import texts as mixed_texts

MARKERS = {"head": TRUNCATED, "newest": OLDER_TRUNCATED, "relevant": LESS_RELEVANT_TRUNCATED}


def truncate(section: Section, limit_tokens: int, model: str = "gpt-4o") -> str:
    """The section in a prompt of its own."""
    prompt = foveate.assemble([section], Budget(total_tokens=limit_tokens), model)
    assert prompt.count.upper <= limit_tokens
    return prompt.text


def fits(text: str, limit_tokens: int) -> bool:
    return foveate.count(text).upper <= limit_tokens


def graphemes(text: str) -> list[str]:
    """Split a text into graphemes. test_graphemes.py tests the boundaries."""
    ends = [0]
    while ends[-1] < len(text):
        ends.append(next_boundary(text, ends[-1]))
    return [text[start:end] for start, end in pairwise(ends)]


one_liners = st.builds(lambda text: " ".join(f"{text} Some more words.".split())[:200], mixed_texts)
shares = st.floats(0.2, 0.99)


def limit_for(text: str, share: float) -> int:
    """A share of the tokens of a text, with room for a marker."""
    return max(round(share * foveate.count(text).tokens), 8)


@pytest.mark.slow
@given(line=one_liners, share=shares)
def test_the_largest_head_of_a_single_line_is_kept(line: str, share: float) -> None:
    limit_tokens = limit_for(line, share)
    assume(not fits(line, limit_tokens))
    heads = ["".join(graphemes(line)[:size]).rstrip() for size in range(1, len(graphemes(line)))]
    expected = max((head for head in heads if fits(f"{head}\n{TRUNCATED}", limit_tokens)), key=len, default="")

    text = truncate(Section("line", line), limit_tokens)

    assert text == (f"{expected}\n{TRUNCATED}" if expected else "")


@pytest.mark.slow
@given(line=one_liners, share=shares)
def test_the_largest_tail_of_a_single_line_is_kept(line: str, share: float) -> None:
    limit_tokens = limit_for(line, share)
    assume(not fits(line, limit_tokens))
    tails = ["".join(graphemes(line)[size:]) for size in range(1, len(graphemes(line)))]
    expected = max(
        (tail for tail in tails if fits(f"{tail}\n{OLDER_TRUNCATED}", limit_tokens)), key=len, default=""
    )

    text = truncate(Section("line", line, keep="newest"), limit_tokens)

    assert text == (f"{expected}\n{OLDER_TRUNCATED}" if expected else "")


lines = st.lists(
    st.text("ab .,é漢", min_size=1, max_size=30).map(str.strip).filter(bool), min_size=2, max_size=30
)


@pytest.mark.slow
@given(lines=lines, limit_tokens=st.integers(8, 80))
def test_whole_lines_are_kept(lines: list[str], limit_tokens: int) -> None:
    whole = "\n".join(lines)
    assume(not fits(whole, limit_tokens))
    heads = ["\n".join([*lines[:size], TRUNCATED]) for size in range(1, len(lines))]
    tails = ["\n".join([*lines[-size:], OLDER_TRUNCATED]) for size in range(1, len(lines))]

    kept: dict[foveate.KeepName, list[str]] = {"head": heads, "newest": tails}
    for keep, pieces in kept.items():
        best = max((piece for piece in pieces if fits(piece, limit_tokens)), key=len, default=None)
        if best is not None:
            assert truncate(Section("lines", whole, keep=keep), limit_tokens) == best


@pytest.mark.parametrize("end", ["  ", "\r", " {\t", "\u3000"])
def test_trailing_whitespace_takes_no_room(end: str) -> None:
    lines = [f"- item {number} of the list" + end for number in range(40)]
    pieces = ["\n".join(lines[:size]).rstrip() + f"\n{TRUNCATED}" for size in range(1, 40)]

    for limit_tokens in range(30, 300, 7):
        best = max((piece for piece in pieces if fits(piece, limit_tokens)), key=len)
        assert truncate(Section("lines", "\n".join(lines)), limit_tokens) == best


@given(
    scored=st.lists(
        st.tuples(st.text("ab .é漢\n", max_size=30).map("{}x".format), st.integers(0, 5)),
        min_size=2,
        max_size=20,
    ),
    share=shares,
)
def test_the_most_relevant_items_are_kept_in_their_order(scored: list[tuple[str, int]], share: float) -> None:
    whole = "\n".join(text for text, _ in scored)
    limit_tokens = limit_for(whole, share)
    assume(not fits(whole, limit_tokens))
    ranking = sorted(range(len(scored)), key=lambda number: -scored[number][1])
    pieces = [
        "\n".join([*(scored[number][0] for number in sorted(ranking[:size])), LESS_RELEVANT_TRUNCATED])
        for size in range(1, len(scored))
    ]
    best = max((piece for piece in pieces if fits(piece, limit_tokens)), key=len, default=None)

    text = truncate(Section("found", items=scored, keep="relevant"), limit_tokens)

    if best is not None:
        assert text == best
    elif text:
        assert scored[ranking[0]][0].startswith(text.removesuffix(f"\n{LESS_RELEVANT_TRUNCATED}"))


@pytest.mark.parametrize("keep", ["head", "newest", "ends"])
def test_items_of_several_lines_stay_whole(keep: foveate.KeepName) -> None:
    items = [f"entry {number}\nwith a second line" for number in range(50)]

    for limit_tokens in range(40, 80, 3):
        text = truncate(Section("entries", items=items, keep=keep), limit_tokens)
        lines = [line for line in text.splitlines() if not line.startswith("[...")]

        assert [line.startswith("entry") for line in lines] == [True, False] * (len(lines) // 2)
        assert lines


def test_items_with_a_final_newline_stay_whole() -> None:
    items = [f"{name}1 one\n{name}2 two three four\n" for name in "abc"]

    assert truncate(Section("log", items=items), 20).startswith("c1 one\nc2 two")


def test_blank_items_never_replace_others() -> None:
    section = Section("found", items=["", "  ", ("x y z " * 30, 0.5), "", ("least", 0.1)], keep="relevant")

    assert truncate(section, 15).startswith("x y z x y z")
    assert truncate(Section("found", items=[""] * 500, keep="relevant"), 3) == ""
    assert truncate(Section("found", items=[*[""] * 500, "words"], keep="relevant"), 12).startswith(
        "words\n[..."
    )


def test_blank_lines_around_a_text_are_cut_first() -> None:
    assert truncate(Section("text", "\n \n  hello " + "world " * 50), 12).startswith("  hello world")
    assert truncate(Section("text", "\n" * 500 + "hello" + "\n" * 500), 12) == f"hello\n{TRUNCATED}"


def test_a_kept_piece_is_never_blank() -> None:
    words = "word " * 300
    ranked = Section("found", items=[(f"\n\n{words}", 9), ("x", 1)], keep="relevant")
    log = Section("logs", "old\n" * 50 + f"\n\n\n{words}")
    rungs: list[Mapping[str, object]] = [{"last_lines": 3, "of": "logs"}, {"truncate": "lowest"}]

    assert truncate(ranked, 100).strip().startswith("word word")
    assert foveate.assemble([log], Budget(100, 0, rungs)).text.strip().startswith("word word")


def test_items_without_a_score_rank_last_in_their_order() -> None:
    items: list[str | tuple[str, float]] = [
        "first of none " * 5,
        ("scored low " * 5, -1.0),
        "second of none " * 5,
        ("scored high " * 5, 9.0),
    ]
    section = Section("found", items=items, keep="relevant")
    whole = foveate.count(section.text).tokens

    assert "second of none" not in truncate(section, whole - 1)
    assert "first of none" not in truncate(section, whole // 2 + 12)
    assert "scored low" not in truncate(section, whole // 2 - 6)
    assert "scored high" in truncate(section, whole // 2 - 6)


@pytest.mark.slow
@given(
    text=texts.map("Some words. {}".format),
    share=shares,
    keep=st.sampled_from(("head", "newest", "relevant", "ends")),
)
def test_no_cut_falls_inside_a_grapheme(text: str, share: float, keep: foveate.KeepName) -> None:
    limit_tokens = limit_for(text, share)
    assume(not fits(text, limit_tokens))
    truncated = truncate(Section("text", text, keep=keep), limit_tokens)
    assume(truncated)
    if keep == "ends":
        head, _, tail = truncated.partition(TRUNCATED)
        head, tail = head.removesuffix("\n"), tail.removeprefix("\n")
    else:
        piece = truncated.removesuffix(f"\n{MARKERS[keep]}")
        head, tail = ("", piece) if keep == "newest" else (piece, "")

    whole, first, last = map(graphemes, (text.rstrip(), head, tail))

    assert text.startswith(head)
    assert text.rstrip().endswith(tail)
    assert first == whole[: len(first)]
    assert last == whole[len(whole) - len(last) :]


@pytest.mark.parametrize("cluster", [FAMILY, "e\u0301\u0323", "क्षि", "🇩🇪", "👍🏽", "\r\n" + "a", "각", "நி"])
def test_a_grapheme_at_the_cut_stays_whole(cluster: str) -> None:
    for limit_tokens in range(8, 30):
        text = truncate(Section("text", "a" + cluster * 50), limit_tokens)
        piece = text.removesuffix(f"\n{TRUNCATED}")

        assert not text or piece.removeprefix("a").replace(cluster, "") in ("", cluster.strip())


MEGABYTE = {
    "prose": PROSE * 15_000,
    "json": '{"key":[1,2,{"deep":null}]},' * 36_000,
    "one letter": "x" * 1_000_000,
    "kanji": "漢字仮名交文" * 160_000,
    "kanji with stops": (CJK.replace("\n", "")) * 34_000,
    "emoji": FAMILY * 90_000,
    "digits": "0123456789" * 100_000,
    "full stops": ". " * 500_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEGABYTE)
@pytest.mark.parametrize("keep", ["head", "newest", "ends"])
def test_one_line_of_a_megabyte_is_cut_close_to_the_limit(kind: str, keep: foveate.KeepName) -> None:
    prompt = foveate.assemble([Section("line", MEGABYTE[kind], keep=keep)], Budget(total_tokens=20_000))

    assert 0.99 * 20_000 <= prompt.tokens <= 20_000
    assert prompt.tokens == foveate.count(prompt.text).tokens


def test_a_very_long_line_is_cut_inside() -> None:
    text = "Title\n" + PROSE * 100
    assert len(PROSE * 100) > LONG_LINE_CHARS

    truncated = truncate(Section("text", text), 200)

    assert truncated.startswith("Title\nThe quick brown fox")
    assert foveate.count(truncated).tokens >= 198


def test_head_and_tail_get_about_half_of_the_room_each() -> None:
    whole = "\n".join(f"line {number} of many" for number in range(1000))

    head, tail = truncate(Section("text", whole, keep="ends"), 400).split(f"\n{TRUNCATED}\n")

    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert abs(foveate.count(head).tokens - foveate.count(tail).tokens) <= 12


def test_a_section_that_must_stay_whole_is_whole_or_dropped() -> None:
    size = foveate.count(CODE * 3).tokens

    assert truncate(Section("code", CODE * 3, keep="whole"), size) == CODE * 3
    assert truncate(Section("code", CODE * 3, keep="whole"), size - 1) == ""


def test_by_default_a_text_keeps_its_head_and_items_the_newest() -> None:
    assert truncate(Section("text", PROSE * 9), 20).startswith("The quick")
    assert truncate(Section("items", items=["old"] * 50 + ["new"]), 20).splitlines()[-2:] == [
        "new",
        OLDER_TRUNCATED,
    ]
