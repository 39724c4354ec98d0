"""Long texts are counted in pieces with the same result."""

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.tokenizers.claude import count_token_classes
from foveate.tokens.tokenizers.tokenizer import split_inside_words, split_text
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary

VOCABULARIES = ("o200k_base", "cl100k_base", "llama3", "mistral_v3", "mistral_v1")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "</think>", "[INST]", "<｜end▁of▁sentence｜>", "<s>")

stretches = st.one_of(
    st.text(max_size=40),
    st.sampled_from(SPECIAL),
    st.sampled_from(("a", " ", "\n", "!", "7", "中", "é", "word ", "x = y\n", "東京。", "<|", "|>")).flatmap(
        lambda unit: st.integers(1, 4000).map(lambda times: unit * times)
    ),
)
texts = st.lists(stretches, max_size=12).map("".join)


@pytest.mark.slow
@given(text=texts, piece_chars=st.integers(1, 5000))
def test_pieces_join_to_the_text(text: str, piece_chars: int) -> None:
    assert "".join(split_text(text, piece_chars)) == text
    assert "".join(split_inside_words(text, SPECIAL)) == text


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(text=texts.map(lambda text: text + "\n" + "what follows is long " * 500))
def test_a_long_text_counts_like_an_unsplit_text(vocabulary: str, text: str) -> None:
    tokenizer = bundled_vocabulary(vocabulary)
    whole = tokenizer._engine.encode_ordinary(text)

    assert tokenizer.count(text) == len(whole) - len(tokenizer._engine.encode_ordinary(""))


def test_no_piece_contains_a_special_token_with_a_safe_boundary() -> None:
    text = "some words <|endoftext|> and <|im_start|>more" * 3

    assert all(token not in piece for piece in split_inside_words(text, SPECIAL) for token in SPECIAL)


def test_text_without_a_safe_boundary_is_not_split() -> None:
    assert split_text("a" * 100_000) == ["a" * 100_000]


def test_words_after_text_without_a_boundary_are_split_again() -> None:
    text = "a" * 100_000 + " word" * 100_000

    assert max(map(len, split_text(text)[1:])) < 40_000


def max_blocked_seconds(work: Callable[[], object]) -> float:
    """Return the longest time that another thread waited during the work; the best of three."""
    return min(_max_gap_seconds(work) for _ in range(3))


def _max_gap_seconds(work: Callable[[], object]) -> float:
    done = threading.Event()
    gaps = []

    def record_gaps() -> None:
        last = time.perf_counter(), time.process_time()
        while not done.wait(0.001):
            now = time.perf_counter(), time.process_time()
            # CPU time, so that other processes on the machine do not count as a gap.
            gaps.append(min(now[0] - last[0], now[1] - last[1]))
            last = now

    thread = threading.Thread(target=record_gaps)
    thread.start()
    work()
    done.set()
    thread.join()
    return max(gaps, default=0.0)


LETTERS = "abcdefgh" * 125_000
BLOCKING_TEXTS = {
    "Gemma, a spelled token in a megabyte without blanks": ("gemma3", f"{LETTERS}<bos>{LETTERS}"),
    "Gemma, nothing but spelled tokens": ("gemma3", "<bos>" * 200_000),
    "Gemma, line ends": ("gemma3", "\n" * 1_000_000),
    "Mistral, a spelled token": ("mistral_v1", f"{LETTERS}</s>{LETTERS}"),
    "o200k, a spelled token": ("o200k_base", f"{LETTERS}<|endoftext|>{LETTERS}"),
    "Qwen, combining marks": ("qwen3", "a" + "\u0301\u0327" * 100_000),
}


@pytest.mark.slow
@pytest.mark.parametrize(("vocabulary", "text"), BLOCKING_TEXTS.values(), ids=BLOCKING_TEXTS)
def test_no_text_blocks_other_threads(vocabulary: str, text: str) -> None:
    """Regression: these held the GIL for 0.3 to 1.5 s."""
    tokenizer = bundled_vocabulary(vocabulary)

    assert max_blocked_seconds(lambda: tokenizer.count(text)) < 0.1


@pytest.mark.parametrize("text", ["a" * 1_000_000, "a" * 1_000_000 + "<|endoftext|>"], ids=["plain", "spelled"])
def test_ids_are_returned_in_chunks(text: str) -> None:
    """Regression: one huge piece was one huge list."""
    tokenizer = bundled_vocabulary("o200k_base")

    assert max(map(len, tokenizer.encode(text))) <= 16 * 1024
    assert sum(map(len, tokenizer.encode(text))) == tokenizer.count(text)
    assert sum(count_token_classes(tokenizer.encode(text))) == tokenizer.count(text)


def test_ids_of_a_long_text_with_a_lone_surrogate_are_returned_once() -> None:
    """Regression: the ids before it were returned twice."""
    tokenizer = bundled_vocabulary("o200k_base")
    text = "some words and " * 5000 + "\ud83d and more"

    assert sum(map(len, tokenizer.encode(text))) == tokenizer.count(text)
