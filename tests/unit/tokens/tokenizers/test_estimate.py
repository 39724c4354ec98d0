"""Estimates are close to the count, and never zero for a text."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.tokenizers.estimate import (
    TEXT_FEATURES,
    CharacterClassEstimator,
    CharacterCountEstimator,
    build_estimator,
    count_text_features,
)
from foveate.tokens.tokenizers.tokenizer import TextLength
from foveate.tokens.tokenizers.vocabularies import BUNDLED_VOCABULARIES, bundled_vocabulary
from tests.support.strategies.texts import any_texts

PROSE = """
The estimate is for the day on which there is no tokenizer: a wheel that was not built for this machine, a model
whose vocabulary nobody published. It should be near enough that a budget made with it is kept, and honest about
how far off it can be. It is never the first choice, and it never pretends to be exact.
"""
CODE = '''
def climb(ladder: Ladder, prompt: Prompt, *, limit_tokens: int) -> Prompt:
    """The first prompt on `ladder` that fits in `limit_tokens`."""
    for rung in ladder.rungs:
        if (count := prompt.count()).upper <= limit_tokens:
            return prompt
        prompt = rung.apply(prompt, excess=count.upper - limit_tokens)
    raise BudgetExceeded(sections={s.name: s.tokens for s in prompt.sections})
'''
JSON = (
    '{"type": "object", "properties": {"city": {"type": "string", "description": "Which city"}}, "n": 20261115}'
)
CHINESE = (
    "我们先计算每一段文字需要多少个词元，然后再决定保留哪些内容。预算不够的时候，旧的对话会被压缩成一行摘要。"
)


def length(estimator: CharacterClassEstimator | CharacterCountEstimator, text: str) -> TextLength:
    (text_length,) = estimator.measure_many([text])
    return text_length


@pytest.mark.parametrize("name", BUNDLED_VOCABULARIES)
def test_every_bundled_vocabulary_has_an_estimate(name: str) -> None:
    assert isinstance(build_estimator(name), CharacterClassEstimator)


def test_an_unknown_vocabulary_gets_the_last_resort() -> None:
    estimator = build_estimator("unheard of")

    assert isinstance(estimator, CharacterCountEstimator)
    assert length(estimator, "12345678").tokens == 2
    assert length(estimator, "1").tokens == 1
    assert length(estimator, "").tokens == 0


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base", "llama3", "gemma3"])
@pytest.mark.parametrize(("text", "tolerance"), [(PROSE, 0.15), (CODE, 0.2), (JSON, 0.35), (CHINESE, 0.35)])
def test_the_estimate_is_close_to_the_count(name: str, text: str, tolerance: float) -> None:
    estimate, tokens = length(build_estimator(name), text), bundled_vocabulary(name).count(text)

    assert estimate.tokens == pytest.approx(tokens, rel=tolerance)
    assert estimate.tokens + estimate.margin_tokens >= tokens


@pytest.mark.parametrize("name", BUNDLED_VOCABULARIES)
@pytest.mark.parametrize(
    "unit", ["?", "\n", " ", "a", "A", "1", "_", "\t", "é", "я", "漢", "ก", "😀", "\x00", "\r\n", ". "]
)
def test_a_run_of_one_character_is_not_estimated_as_zero(name: str, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    tokens = length(build_estimator(name), text).tokens

    assert tokens >= len(text) / 128


@pytest.mark.parametrize("name", ["o200k_base", "gemma3"])
@given(text=any_texts)
def test_every_text_has_a_length(name: str, text: str) -> None:
    text_length = length(build_estimator(name), text)

    assert (text_length.tokens >= 1) if text else (text_length == TextLength(0.0, 0.0))
    assert text_length.margin_tokens >= 0


@given(text=any_texts)
def test_features_are_counted(text: str) -> None:
    features = count_text_features(text)

    assert len(features) == len(TEXT_FEATURES)
    assert all(0 <= number <= len(text) for number in features)


def test_the_estimate_takes_linear_time() -> None:
    estimator = build_estimator("o200k_base")
    rng = random.Random(1)
    text = "".join(rng.choice("abcXYZ 0123.,;{}\n漢é😀") for _ in range(100_000))
    started = time.process_time()
    estimator.measure_many([text * 10])

    assert time.process_time() - started < 10


@given(texts=st.lists(any_texts, max_size=5))
def test_many_texts_are_estimated_like_each_alone(texts: list[str]) -> None:
    estimator = build_estimator("o200k_base")

    assert estimator.measure_many(texts) == [length(estimator, text) for text in texts]
