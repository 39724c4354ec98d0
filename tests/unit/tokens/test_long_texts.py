"""Long texts are counted in pieces; nobody can tell from the count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.pieces import broken, cut
from foveate.tokens.vocabulary import bundled

VOCABULARIES = ("o200k_base", "cl100k_base", "llama3", "mistral_v3")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "</think>", "[INST]", "<｜end▁of▁sentence｜>", "<s>")

stretches = st.one_of(
    st.text(max_size=40),
    st.sampled_from(SPECIAL),
    st.sampled_from(("a", " ", "\n", "!", "7", "中", "é", "word ", "x = y\n", "東京。", "<|", "|>")).flatmap(
        lambda unit: st.integers(1, 4000).map(lambda times: unit * times)
    ),
)
texts = st.lists(stretches, max_size=12).map("".join)


@given(text=texts, piece_chars=st.integers(1, 5000))
def test_pieces_put_together_are_the_text(text: str, piece_chars: int) -> None:
    assert "".join(cut(text, piece_chars)) == text
    assert "".join(broken(text, SPECIAL)) == text


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(text=texts.map(lambda text: text + "\n" + "what follows is long " * 500))
def test_a_long_text_counts_as_if_it_were_never_cut(vocabulary: str, text: str) -> None:
    tokenizer = bundled(vocabulary)
    whole = tokenizer._engine.encode_ordinary(text)

    assert tokenizer.count(text) == len(whole) - len(tokenizer._engine.encode_ordinary(""))


def test_no_piece_spells_a_special_token_that_has_a_seam() -> None:
    text = "some words <|endoftext|> and <|im_start|>more" * 3

    assert all(token not in piece for piece in broken(text, SPECIAL) for token in SPECIAL)


def test_where_there_is_no_seam_nothing_is_cut() -> None:
    assert cut("a" * 100_000) == ["a" * 100_000]


def test_words_after_a_stretch_without_a_seam_are_cut_again() -> None:
    text = "a" * 100_000 + " word" * 100_000

    assert max(map(len, cut(text)[1:])) < 40_000
