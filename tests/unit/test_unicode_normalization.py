"""Unicode normalization in linear time."""

import sys
import unicodedata
from typing import Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary
from foveate.unicode_normalization import STARTER, NormalForm, normalize_unicode
from tests.support.harness.example_limits import limit_examples
from tests.support.oracles.time_growth import superlinear_ratio
from tests.support.strategies.texts import any_texts, texts

MARKS = "\u0301\u0327\u0338\u0323\u3099\u093c\u0345"
LETTERS = (
    "aeiouüÅ漢かㅎ가각\u1100\u1161\u11a8\u09c7\u09be\u0b47\u0b57\u0f71\u0f72\u2126\u212b\uf900 \n<"
    "ﬁｶﾞｶ\uff9fﾡￂﾤ①½ａ\u0f73\u0f81"
)
FORMS = get_args(NormalForm)

runs = st.tuples(st.sampled_from(LETTERS), st.text(MARKS, max_size=64)).map("".join)
accented = st.lists(st.one_of(runs, st.text(LETTERS), texts), max_size=20).map("".join)


@given(text=st.one_of(accented, any_texts), form=st.sampled_from(FORMS))
def test_ordinary_text_is_normalized_like_unicodedata(text: str, form: NormalForm) -> None:
    if not _has_long_run(text):
        assert normalize_unicode(text, form) == unicodedata.normalize(form, text)


@settings(max_examples=limit_examples(30))
@given(
    form=st.sampled_from(FORMS),
    text=st.tuples(accented, st.integers(1, 300)).map(lambda drawn: drawn[0] * drawn[1]),
)
def test_a_long_text_is_normalized_like_a_whole(form: NormalForm, text: str) -> None:
    if not _has_long_run(text):
        assert normalize_unicode(text, form) == unicodedata.normalize(form, text)


def _has_long_run(text: str) -> bool:
    decomposed = (unicodedata.normalize("NFKD", char)[:1] for char in text)
    classes = "".join("m" if unicodedata.combining(first) else " " for first in decomposed)
    return any(len(run) > 64 for run in classes.split())


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_no_starter_composes_with_the_previous_character(form: NormalForm) -> None:
    decomposed: Literal["NFD", "NFKD"] = "NFD" if form == "NFC" else "NFKD"
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    # Characters after the first in a decomposition.
    later = {later_char for char in characters for later_char in unicodedata.normalize("NFD", char)[1:]}
    firsts = {char: unicodedata.normalize(decomposed, char)[0] for char in characters if STARTER.match(char)}

    assert [char for char, first in firsts.items() if unicodedata.combining(first) or first in later] == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "unit", ["\u0301\u0327", "\u0f73", "\u0f75\u0301", "\u0f81\u0327", "\uff9e\u0301\u0327"]
)
def test_a_long_run_of_combining_marks_takes_linear_time(unit: str, form: NormalForm) -> None:
    """Regression: 64,000 marks took 1.5 s, in quadratic time, with the GIL held."""
    ratio = superlinear_ratio(
        lambda text: normalize_unicode(text, form), lambda size: "a" + unit * size, max_size=2**15
    )

    assert ratio is None
    assert normalize_unicode("a" + unit * 70, form) == "a" + unit * 70


def test_text_around_a_long_run_of_combining_marks_is_normalized() -> None:
    assert normalize_unicode("e\u0301" + "x" + "\u0301" * 65 + "e\u0301") == "é" + "x" + "\u0301" * 65 + "é"


def test_qwen_counts_a_long_run_of_combining_marks() -> None:
    assert bundled_vocabulary("qwen3").count("a" + "\u0301\u0327" * 32_000) > 64_000
