"""Accents are composed as Unicode says, in time that grows with the text."""

import sys
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.tokens.composing import BEGINNING, composed
from foveate.tokens.vocabulary import bundled
from tests.unit.tokens.texts import any_texts, texts

MARKS = "\u0301\u0327\u0338\u0323\u3099\u093c\u0345"
LETTERS = "aeiouüÅ漢かㅎ가각\u1100\u1161\u11a8\u09c7\u09be\u0b47\u0b57\u0f71\u0f72\u2126\u212b\uf900 \n<"

runs = st.tuples(st.sampled_from(LETTERS), st.text(MARKS, max_size=64)).map("".join)
accented = st.lists(st.one_of(runs, st.text(LETTERS), texts), max_size=20).map("".join)


@given(text=st.one_of(accented, any_texts))
def test_ordinary_text_is_composed_as_unicode_says(text: str) -> None:
    assert composed(text) == unicodedata.normalize("NFC", text)


@settings(max_examples=30)
@given(text=st.tuples(accented, st.integers(1, 300)).map(lambda drawn: drawn[0] * drawn[1]))
def test_a_long_text_is_composed_as_if_it_were_never_cut(text: str) -> None:
    if not any(len(run) > 64 for run in _runs_of_marks(text)):
        assert composed(text) == unicodedata.normalize("NFC", text)


def _runs_of_marks(text: str) -> list[str]:
    classes = "".join("m" if unicodedata.combining(char) else " " for char in text)
    return classes.split()


@pytest.mark.slow
def test_no_character_at_which_a_text_is_cut_is_made_one_with_what_stands_before() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    later = {char for one in every for char in unicodedata.normalize("NFD", one)[1:]}

    assert [
        char for char in every if BEGINNING.match(char) and (unicodedata.combining(char) or char in later)
    ] == []


def test_a_long_run_of_marks_takes_no_more_time_than_its_length() -> None:
    """64,000 marks once took 1.5 s, and the square of that for more, with nobody else getting a turn."""
    text = "a" + "\u0301\u0327" * 500_000
    began = time.process_time()

    assert composed(text) == text
    assert time.process_time() - began < 1


def test_what_stands_around_a_long_run_of_marks_is_composed() -> None:
    assert composed("e\u0301" + "x" + "\u0301" * 65 + "e\u0301") == "é" + "x" + "\u0301" * 65 + "é"


def test_qwen_counts_a_long_run_of_marks() -> None:
    assert bundled("qwen3").count("a" + "\u0301\u0327" * 32_000) > 64_000
