from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget import graphemes
from foveate.memory.memory import Memory
from foveate.memory.views.page import MAX_PASSAGE_CHARS, rank_passages, split_passages
from foveate.memory.views.view import DetailLevel
from tests.support.scenarios.note_folders import write_files

_pieces = st.sampled_from(
    ("a", " ", "\n", "e\u0301", "漢字", "👩‍👩‍👧", "word ", "End. ", "完。", "x" * 700, "one two " * 400)
)
texts = st.lists(_pieces, max_size=30).map("".join)


@given(text=texts)
def test_passages_cover_a_text_without_line_ends_and_none_is_long(text: str) -> None:
    passages = list(split_passages(text))

    before = 0
    for number, (start, end) in enumerate(passages):
        assert text[before:start] == ("\n" if start > before else "")
        assert 0 <= end - start <= MAX_PASSAGE_CHARS + len("👩‍👩‍👧")
        assert "\n" not in text[start:end]
        assert graphemes.boundary_at_or_before(text, start) == start, number
        before = end
    assert before == len(text)


def test_a_line_is_one_passage_unless_it_is_long() -> None:
    assert list(split_passages("one\n\ntwo")) == [(0, 3), (4, 4), (5, 8)]
    assert list(split_passages("")) == [(0, 0)]
    assert len(list(split_passages("a" * MAX_PASSAGE_CHARS))) == 1
    assert len(list(split_passages("a" * (4 * MAX_PASSAGE_CHARS + 1)))) == 5


def test_a_long_line_is_split_after_a_sentence_or_a_word() -> None:
    sentences = "It rained. " * 60
    assert {sentences[start:end][-11:] for start, end in split_passages(sentences)} == {"It rained. "}
    words = "rain " * 120
    assert {words[start:end][-5:] for start, end in split_passages(words)} == {"rain "}


def test_a_long_grapheme_cluster_is_not_split() -> None:
    text = "a" + "\u0301" * 3000

    assert list(split_passages(text)) == [(0, len(text)), (len(text), len(text))]


def test_passages_with_rare_query_words_come_first_and_blank_ones_never() -> None:
    text = "the fee\n\nthe fee of a falcon\nthe fee\nnothing"

    ranked = [text[start:end] for start, end in rank_passages(text, frozenset(("fee", "falcon")))]

    assert ranked[0] == "the fee of a falcon"
    assert sorted(ranked) == sorted(filter(None, text.split("\n")))


def test_the_matching_part_of_a_line_of_megabytes_is_shown(tmp_path: Path) -> None:
    """Regression: the whole line was tokenized four times, and no part of it was shown."""
    filler = "some words of no interest " * 40_000
    (tmp_path / "a.md").write_text(f"# A\n\n{filler}the zyxomma was seen {filler}\n", encoding="utf-8")

    view = Memory.load(tmp_path).render(query="zyxomma", limit_tokens=500)

    assert "the zyxomma was seen" in view.text
    assert view.tokens <= 500


@pytest.mark.parametrize("limit_tokens", [60, 100, 200, 400])
@pytest.mark.parametrize("sentences", [40, 80, 200])
def test_the_matching_part_of_one_long_line_fills_the_budget(
    tmp_path: Path, limit_tokens: int, sentences: int
) -> None:
    """Regression: only the title was shown, because lines below 2,000 characters were not split."""
    filler = "We had soup again. " * sentences
    others = {f"{number}.md": f"# Bread {number}\n\nFlour and water.\n" for number in range(5)}
    line = f"{filler}An airship came to the mast. {filler}"
    memory = Memory.load(write_files(tmp_path, {**others, "n.md": f"# Notes\n\n## Log\n{line}\n"}))
    view = memory.render(query="airship at the mast", limit_tokens=limit_tokens)

    nodes_by_title = {node.title: node for node in view.nodes}
    assert nodes_by_title["Log"].level is DetailLevel.EXCERPT
    assert nodes_by_title["Log"].tokens > limit_tokens // 2
    assert view.tokens > 0.7 * limit_tokens
    if limit_tokens > 100:
        assert "An airship came to the mast." in view.text
