"""Long texts that no pattern splits are encoded in steps with the same tokens."""

from functools import cache
from random import Random

import pytest
import splintr
from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.tokenizers.bpe import encode_in_steps
from foveate.tokens.tokenizers.vocabularies import _LEAD_TEXTS, BUNDLED_VOCABULARIES, bundled_vocabulary
from tests.support.strategies.texts import texts

SPECIAL = ("<bos>", "<s>", "</s>", "<start_of_turn>", "<|endoftext|>", "▁", "▁▁<bos>")
stretches = st.one_of(
    texts,
    st.sampled_from(SPECIAL),
    st.sampled_from(("a", "ab", " ", "\n", "\t", "\n ", "<bos>", "中", "é", "=", "0", "𓀀", "▁", " //")).flatmap(
        lambda unit: st.integers(1, 200).map(lambda times: unit * times)
    ),
)
long_texts = st.lists(stretches, min_size=1, max_size=12).map("".join)


@cache
def engine(name: str) -> splintr.AnyTokenizer:
    return splintr.Tokenizer.from_pretrained(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", _LEAD_TEXTS)
def test_steps_have_the_tokens_of_the_whole_text(name: str) -> None:
    tokenizer, lead = engine(name), _LEAD_TEXTS[name]

    @given(text=long_texts, step_chars=st.sampled_from((16, 30, 60, 150, 400)))
    def holds(text: str, step_chars: int) -> None:
        steps = encode_in_steps(tokenizer, text, lead_text=lead, step_chars=step_chars)
        assert [token for step in steps for token in step] == tokenizer.encode_ordinary(text)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("name", _LEAD_TEXTS)
@pytest.mark.parametrize("unit", ["<bos>", "a", "abcdefgh", "\n", " ", "漢", "▁", "𓀀", "<s>"])
def test_a_long_text_has_several_steps(name: str, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    steps = list(encode_in_steps(engine(name), text, lead_text=_LEAD_TEXTS[name]))

    assert len(steps) >= 12
    assert [token for step in steps for token in step] == engine(name).encode_ordinary(text)


@cache
def long_word(letters: str) -> str:
    return "".join(Random(letters).choices(letters, k=140_000))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED_VOCABULARIES)
@pytest.mark.parametrize(
    "letters", ["x", "abcdefghij", "aBcDeF", "漢字我们的是", "0123456789abcdef", "a_é", "!?", " "]
)
def test_a_very_long_word_has_the_tokens_that_the_engine_finds(name: str, letters: str) -> None:
    """Regression: a word of 30 MB took 2.3 GB, which the engine's threads did not free."""
    text = long_word(letters)
    whole = engine(name).encode_ordinary(text)

    assert bundled_vocabulary(name).count(text) == len(whole) - len(engine(name).encode_ordinary(""))
    assert [token for step in bundled_vocabulary(name).encode(text) for token in step] == whole


@pytest.mark.slow
def test_every_bundled_vocabulary_without_a_pattern_is_tested() -> None:
    assert {name for name in BUNDLED_VOCABULARIES if engine(name).family != "BPE"} == set(_LEAD_TEXTS)
    assert all(bundled_vocabulary(name)._frame_tokens == 0 for name in _LEAD_TEXTS)
