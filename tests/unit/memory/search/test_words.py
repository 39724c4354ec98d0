from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.memory.search.words import MAX_QUERY_CHARS, split_segments, split_words, stem


def test_words_are_in_lower_case_and_in_order() -> None:
    assert split_words("The Fees, of 2026: x_y") == ["the", "fees", "of", "2026", "x", "y"]


def test_combining_marks_stay_with_their_letters() -> None:
    assert split_words("हिन्दी Ünïcode CAFÉ") == ["हिन्दी", "ünïcode", "café"]


def test_variants_of_letters_match() -> None:
    assert split_words("ﬁle Ａ１") == split_words("file a1")


@pytest.mark.parametrize(
    ("text", "query"),
    [("黒い猫がいる", "猫"), ("データベースの設定", "設定"), ("학교에서", "학교"), ("ภาษาไทย", "ไทย")],
)
def test_a_word_is_found_in_a_script_without_spaces(text: str, query: str) -> None:
    assert set(split_words(query)) <= set(split_words(text))


def test_inflected_words_have_one_stem() -> None:
    assert stem("accounts") == stem("account")
    assert stem("exporting") == stem("exported")


def test_very_long_words_are_cut() -> None:
    assert [len(word) for word in split_words("x" * 1_000_000)] == [64]


@given(st.text(st.characters()))
def test_splitting_a_word_again_changes_nothing(text: str) -> None:
    for word in split_words(text):
        assert word.strip()
        assert word in split_words(word)


def test_short_sentences_join_their_neighbors() -> None:
    sentence = "This is a sentence of more than eight words in all."
    assert split_segments(f"Hi! {sentence} {sentence}") == [f"Hi! {sentence}", sentence]
    assert split_segments(f"{sentence}\n\n{sentence} Thanks.") == [sentence, f"{sentence} Thanks."]


def test_an_empty_query_has_no_segments() -> None:
    assert split_segments("") == split_segments(" \n\t ") == []


@given(st.text(st.sampled_from("ab .!?\n。"), max_size=300))
def test_segments_contain_every_word(query: str) -> None:
    assert split_words(" ".join(split_segments(query))) == split_words(query)


def test_a_long_query_keeps_its_start_and_end() -> None:
    query = "first thing. " + "so on and so on and so on and on. " * 40_000 + "the last thing"
    start_seconds = process_time()
    segments = split_segments(query)
    assert process_time() - start_seconds < 10
    assert segments[0].startswith("first thing")
    assert segments[-1].endswith("the last thing")
    assert len(segments) <= 48
    assert sum(map(len, segments)) <= MAX_QUERY_CHARS + len(segments)
