"""Tokens of pieces split at safe boundaries are those of the whole text."""

import struct
import sys
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
import splintr
from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.tokenizers.tokenizer import AFTER_WORDS, BEFORE_BLANKS, split_text
from foveate.tokens.tokenizers.vocabularies import BUNDLED_VOCABULARIES, bundled_vocabulary
from tests.support.strategies.texts import texts

PATTERNED = (
    "o200k_base",
    "cl100k_base",
    "llama3",
    "qwen3",
    "deepseek_v3",
    "mistral_v3",
    "glm4",
    "gpt_oss",
    "kimi",
)
GEMMAS = ("gemma2", "gemma3")
BOUNDARIES = dict.fromkeys(PATTERNED, AFTER_WORDS) | dict.fromkeys(GEMMAS, BEFORE_BLANKS)
# One for each split pattern.
KINDS = ("o200k_base", "cl100k_base", "deepseek_v3", "kimi", "gemma3")


@cache
def engine(name: str) -> splintr.AnyTokenizer:
    return splintr.Tokenizer.from_pretrained(name)


def count_tokens(engine: splintr.AnyTokenizer, many_texts: Sequence[str]) -> list[int]:
    """An independent count: every text whole, one by one."""
    _, offsets = engine.encode_batch_flat(list(many_texts))
    ends = struct.unpack(f"<{len(many_texts) + 1}Q", offsets)
    return [end - start for start, end in pairwise(ends)]


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDARIES)
def test_tokens_of_pieces_add_up_to_the_tokens_of_the_whole(name: str) -> None:
    tokenizer, boundary = engine(name), BOUNDARIES[name]

    @given(text=texts, piece_chars=st.integers(1, 6))
    def holds(text: str, piece_chars: int) -> None:
        pieces = split_text(text, piece_chars, boundary)

        assert "".join(pieces) == text
        assert sum(count_tokens(tokenizer, pieces)) == count_tokens(tokenizer, [text])[0]
        if name in PATTERNED:
            ordinary = [token for piece in pieces for token in tokenizer.encode_ordinary(piece)]
            assert ordinary == tokenizer.encode_ordinary(text)

    holds()


def test_every_bundled_vocabulary_with_safe_boundaries_is_tested() -> None:
    assert {name for name in BUNDLED_VOCABULARIES if bundled_vocabulary(name).safe_boundary is not None} == set(
        BOUNDARIES
    )
    assert all(bundled_vocabulary(name).safe_boundary is boundary for name, boundary in BOUNDARIES.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_letter_and_digit_can_precede_a_safe_boundary(name: str) -> None:
    """Python and the engine may use different versions of Unicode."""
    tokenizer, boundary = engine(name), BOUNDARIES[name]
    characters = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isalnum()]
    pairs = [(f"x {char}", after) for char, after in zip(characters, " .\n/。" * len(characters), strict=False)]
    pairs = [pair for pair in pairs if boundary.match("".join(pair), len(pair[0]) - 1)]
    before, after, whole = (
        count_tokens(tokenizer, [before for before, _ in pairs]),
        count_tokens(tokenizer, [after + after + "a" for _, after in pairs]),
        count_tokens(tokenizer, [before + after + after + "a" for before, after in pairs]),
    )

    wrong = [pairs[i] for i in range(len(pairs)) if before[i] + after[i] != whole[i]]
    assert wrong == []


def test_a_combining_mark_is_not_a_safe_boundary() -> None:
    assert unicodedata.category("\u0301") == "Mn"
    assert split_text("e\u0301." * 20, 1) == ["e\u0301." * 20]


@given(text=texts, piece_chars=st.integers(1, 50))
def test_no_piece_is_empty_and_only_the_last_may_be_short(text: str, piece_chars: int) -> None:
    pieces = split_text(text, piece_chars)

    assert all(len(piece) >= piece_chars for piece in pieces[:-1])
    assert pieces[-1] or not text
