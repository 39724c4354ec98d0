from collections.abc import Sequence
from itertools import chain

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.memory.search.bm25 import (
    K1,
    UNKNOWN_TERM,
    B,
    MatchScores,
    TextField,
    Vocabulary,
    build_postings,
    group_postings,
    merge_postings,
    score_texts,
    split_query_terms,
)

_WORDS = ["anchor", "basket", "copper", "dolphin", "ember", "falcon"]
_text_lists = st.lists(st.lists(st.sampled_from(_WORDS), min_size=1, max_size=12), min_size=1, max_size=8)


def _text_field(texts: Sequence[Sequence[str]], vocabulary: Vocabulary) -> TextField:
    return TextField(
        [
            (
                build_postings([[(1.0, vocabulary.learn_terms(" ".join(text)))] for text in texts], vocabulary),
                None,
            )
        ]
    )


@given(_text_lists, st.lists(st.sampled_from(_WORDS), min_size=1, max_size=4, unique=True))
def test_scores_equal_those_of_bm25s(texts: list[list[str]], query: list[str]) -> None:
    vocabulary = Vocabulary()
    actual = score_texts(_text_field(texts, vocabulary), [vocabulary.query_terms(" ".join(query))])
    reference = bm25s.BM25(k1=K1, b=B, method="lucene")
    reference.index(texts, show_progress=False)
    indexed_words = [word for word in query if any(word in text for text in texts)]
    expected = reference.get_scores(indexed_words) if indexed_words else np.zeros(len(texts))
    np.testing.assert_allclose(actual.scores, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@given(_text_lists, _text_lists, st.data())
def test_scores_depend_only_on_the_current_texts(
    first: list[list[str]], second: list[list[str]], data: st.DataObject
) -> None:
    vocabulary = Vocabulary()
    postings = [
        build_postings([[(1.0, vocabulary.learn_terms(" ".join(text)))] for text in texts], vocabulary)
        for texts in (first, second)
    ]
    masks = [
        np.array(data.draw(st.lists(st.booleans(), min_size=len(original), max_size=len(original))))
        for original in (first, second)
    ]
    remaining_texts = [
        text
        for texts, mask in zip((first, second), masks, strict=True)
        for text, is_kept in zip(texts, mask, strict=True)
        if is_kept
    ]
    query = [vocabulary.query_terms("anchor falcon"), vocabulary.query_terms("copper")]
    expected = score_texts(_text_field(remaining_texts, vocabulary), query)

    masked = score_texts(TextField(list(zip(postings, masks, strict=True))), query)
    np.testing.assert_array_equal(masked.scores[np.concatenate(masks)], expected.scores)
    assert not masked.scores[~np.concatenate(masks)].any()

    count = 0
    positions = []
    for mask in masks:
        positions.append(np.where(mask, count + np.cumsum(mask) - 1, -1).astype(np.int32))
        count += int(mask.sum())
    merged = merge_postings(list(zip(postings, positions, strict=True)), len(vocabulary))
    np.testing.assert_array_equal(score_texts(TextField([(merged, None)]), query).scores, expected.scores)


@pytest.mark.slow
@given(_text_lists, st.lists(st.lists(st.sampled_from(_WORDS), min_size=1), min_size=1), st.integers(0, 12))
def test_earlier_queries_do_not_change_the_scores(
    texts: list[list[str]], queries: list[list[str]], max_hits: int
) -> None:
    vocabulary = Vocabulary()
    postings = build_postings([[(1.0, vocabulary.learn_terms(" ".join(text)))] for text in texts], vocabulary)
    field = TextField([(postings, None)], max_hits=max_hits)
    for query in queries:
        terms = [vocabulary.query_terms(word) for word in query]
        reused, fresh = score_texts(field, terms), score_texts(TextField([(postings, None)]), terms)
        np.testing.assert_array_equal(reused.scores, fresh.scores)
        assert reused.ideal == fresh.ideal


@given(_text_lists)
def test_a_group_is_scored_as_if_it_were_one_text(texts: list[list[str]]) -> None:
    vocabulary = Vocabulary()
    postings = build_postings([[(1.0, vocabulary.learn_terms(" ".join(text)))] for text in texts], vocabulary)
    group_numbers = np.arange(len(texts), dtype=np.int32) // 2
    grouped = TextField([(group_postings(postings, group_numbers, int(group_numbers.max()) + 1), None)])
    joined_texts = [list(chain(*texts[first : first + 2])) for first in range(0, len(texts), 2)]
    query = [vocabulary.query_terms("anchor basket"), vocabulary.query_terms("copper zebra")]
    np.testing.assert_array_equal(
        score_texts(grouped, query).scores, score_texts(_text_field(joined_texts, vocabulary), query).scores
    )


def test_one_well_matched_segment_beats_a_little_of_each() -> None:
    vocabulary = Vocabulary()
    texts = [["anchor", "basket"], ["anchor", "copper"], ["ember", "falcon"]]
    field = _text_field(texts, vocabulary)
    segmented = score_texts(
        field, [vocabulary.query_terms("anchor basket"), vocabulary.query_terms("copper dolphin")]
    ).scores
    unsegmented = score_texts(field, [vocabulary.query_terms("anchor basket copper dolphin")]).scores
    assert segmented[0] / segmented[1] > unsegmented[0] / unsegmented[1]


def test_a_part_with_less_weight_counts_less() -> None:
    vocabulary = Vocabulary()
    anchor, basket = vocabulary.learn_terms("anchor"), vocabulary.learn_terms("basket")
    field = TextField(
        [(build_postings([[(1.0, anchor), (0.5, basket)], [(0.5, anchor), (1.0, basket)]], vocabulary), None)]
    )
    scores = score_texts(field, [anchor]).scores
    assert scores[0] > scores[1] > 0


def test_stop_words_count_only_if_a_query_has_no_others() -> None:
    vocabulary = Vocabulary()
    fees = vocabulary.learn_terms("fees")
    assert vocabulary.query_terms("what are the fees") == fees
    assert vocabulary.query_terms("The Who") == [
        vocabulary.learn_terms("the")[0],
        vocabulary.learn_terms("who")[0],
    ]


def test_an_unknown_word_has_its_own_term() -> None:
    vocabulary = Vocabulary()
    fee_terms = vocabulary.learn_terms("fees")
    assert vocabulary.query_terms("fees of zebras and lions") == [*fee_terms, UNKNOWN_TERM, UNKNOWN_TERM]
    assert split_query_terms(vocabulary, "   ") == []


def test_forms_of_a_word_are_one_term() -> None:
    vocabulary = Vocabulary()
    assert vocabulary.learn_terms("account accounts") == vocabulary.learn_terms("accounts account")
    assert vocabulary.query_terms("Accounts") == vocabulary.learn_terms("account")


def test_a_poor_best_match_does_not_count_fully() -> None:
    match_scores = MatchScores(np.array([1.0, 0.5], np.float32), ideal=10.0)
    assert match_scores.normalize(0.5).tolist() == pytest.approx([0.2, 0.1])
    assert match_scores.normalize(0.05).tolist() == [1.0, 0.5]
