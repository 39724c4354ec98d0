from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.memory.search.words import MAX_QUERY_CHARS, split_segments, split_words, stem


def test_words_are_in_small_letters_and_in_their_order() -> None:
    assert split_words("The Fees, of 2026: x_y") == ["the", "fees", "of", "2026", "x", "y"]


def test_marks_stay_with_the_letters_that_they_belong_to() -> None:
    assert split_words("हिन्दी Ünïcode CAFÉ") == ["हिन्दी", "ünïcode", "café"]


def test_letters_that_look_different_and_are_the_same_match() -> None:
    assert split_words("ﬁle Ａ１") == split_words("file a1")


@pytest.mark.parametrize(
    ("text", "asked"),
    [("黒い猫がいる", "猫"), ("データベースの設定", "設定"), ("학교에서", "학교"), ("ภาษาไทย", "ไทย")],
)
def test_a_word_is_found_in_a_script_without_blanks(text: str, asked: str) -> None:
    assert set(split_words(asked)) <= set(split_words(text))


def test_endings_do_not_matter() -> None:
    assert stem("accounts") == stem("account")
    assert stem("exporting") == stem("exported")


def test_data_that_looks_like_one_word_is_cut() -> None:
    assert [len(word) for word in split_words("x" * 1_000_000)] == [64]


@given(st.text(st.characters()))
def test_any_text_has_words_that_are_words_again(text: str) -> None:
    for word in split_words(text):
        assert word.strip()
        assert word in split_words(word)


def test_short_sentences_go_with_their_neighbours() -> None:
    long = "This is a sentence of more than eight words in all."
    assert split_segments(f"Hi! {long} {long}") == [f"Hi! {long}", long]
    assert split_segments(f"{long}\n\n{long} Thanks.") == [long, f"{long} Thanks."]


def test_a_query_without_anything_has_no_segments() -> None:
    assert split_segments("") == split_segments(" \n\t ") == []


@given(st.text(st.sampled_from("ab .!?\n。"), max_size=300))
def test_segments_lose_no_word(query: str) -> None:
    assert split_words(" ".join(split_segments(query))) == split_words(query)


def test_a_long_query_keeps_its_start_and_its_end_and_is_read_at_once() -> None:
    query = "first thing. " + "so on and so on and so on and on. " * 40_000 + "the last thing"
    before = process_time()
    found = split_segments(query)
    assert process_time() - before < 1
    assert found[0].startswith("first thing")
    assert found[-1].endswith("the last thing")
    assert len(found) <= 48
    assert sum(map(len, found)) <= MAX_QUERY_CHARS + len(found)
