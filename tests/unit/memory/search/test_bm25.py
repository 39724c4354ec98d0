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
_texts = st.lists(st.lists(st.sampled_from(_WORDS), min_size=1, max_size=12), min_size=1, max_size=8)


def _field(texts: Sequence[Sequence[str]], vocabulary: Vocabulary) -> TextField:
    return TextField(
        [
            (
                build_postings([[(1.0, vocabulary.learn_terms(" ".join(text)))] for text in texts], vocabulary),
                None,
            )
        ]
    )


@given(_texts, st.lists(st.sampled_from(_WORDS), min_size=1, max_size=4, unique=True))
def test_scores_equal_those_of_bm25s(texts: list[list[str]], query: list[str]) -> None:
    vocabulary = Vocabulary()
    found = score_texts(_field(texts, vocabulary), [vocabulary.query_terms(" ".join(query))])
    oracle = bm25s.BM25(k1=K1, b=B, method="lucene")
    oracle.index(texts, show_progress=False)
    known = [word for word in query if any(word in text for text in texts)]
    expected = oracle.get_scores(known) if known else np.zeros(len(texts))
    np.testing.assert_allclose(found.scores, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@given(_texts, _texts, st.data())
def test_scores_depend_only_on_the_current_texts(
    first: list[list[str]], second: list[list[str]], data: st.DataObject
) -> None:
    vocabulary = Vocabulary()
    pieces = [
        build_postings([[(1.0, vocabulary.learn_terms(" ".join(text)))] for text in texts], vocabulary)
        for texts in (first, second)
    ]
    masks = [
        np.array(data.draw(st.lists(st.booleans(), min_size=len(x), max_size=len(x)))) for x in (first, second)
    ]
    left = [
        text
        for texts, mask in zip((first, second), masks, strict=True)
        for text, stays in zip(texts, mask, strict=True)
        if stays
    ]
    query = [vocabulary.query_terms("anchor falcon"), vocabulary.query_terms("copper")]
    expected = score_texts(_field(left, vocabulary), query)

    marked = score_texts(TextField(list(zip(pieces, masks, strict=True))), query)
    np.testing.assert_array_equal(marked.scores[np.concatenate(masks)], expected.scores)
    assert not marked.scores[~np.concatenate(masks)].any()

    count = 0
    places = []
    for mask in masks:
        places.append(np.where(mask, count + np.cumsum(mask) - 1, -1).astype(np.int32))
        count += int(mask.sum())
    whole = merge_postings(list(zip(pieces, places, strict=True)), len(vocabulary))
    np.testing.assert_array_equal(score_texts(TextField([(whole, None)]), query).scores, expected.scores)


@pytest.mark.slow
@given(_texts, st.lists(st.lists(st.sampled_from(_WORDS), min_size=1), min_size=1), st.integers(0, 12))
def test_earlier_queries_do_not_change_the_scores(
    texts: list[list[str]], queries: list[list[str]], most_hits: int
) -> None:
    vocabulary = Vocabulary()
    of_texts = build_postings([[(1.0, vocabulary.learn_terms(" ".join(text)))] for text in texts], vocabulary)
    field = TextField([(of_texts, None)], max_hits=most_hits)
    for query in queries:
        terms = [vocabulary.query_terms(word) for word in query]
        found, fresh = score_texts(field, terms), score_texts(TextField([(of_texts, None)]), terms)
        np.testing.assert_array_equal(found.scores, fresh.scores)
        assert found.ideal == fresh.ideal


@given(_texts)
def test_a_group_is_scored_as_if_it_were_one_text(texts: list[list[str]]) -> None:
    vocabulary = Vocabulary()
    apart = build_postings([[(1.0, vocabulary.learn_terms(" ".join(text)))] for text in texts], vocabulary)
    group_of = np.arange(len(texts), dtype=np.int32) // 2
    together = TextField([(group_postings(apart, group_of, int(group_of.max()) + 1), None)])
    joined = [list(chain(*texts[first : first + 2])) for first in range(0, len(texts), 2)]
    query = [vocabulary.query_terms("anchor basket"), vocabulary.query_terms("copper zebra")]
    np.testing.assert_array_equal(
        score_texts(together, query).scores, score_texts(_field(joined, vocabulary), query).scores
    )


def test_one_well_matched_segment_beats_a_little_of_each() -> None:
    vocabulary = Vocabulary()
    texts = [["anchor", "basket"], ["anchor", "copper"], ["ember", "falcon"]]
    field = _field(texts, vocabulary)
    found = score_texts(
        field, [vocabulary.query_terms("anchor basket"), vocabulary.query_terms("copper dolphin")]
    ).scores
    plain = score_texts(field, [vocabulary.query_terms("anchor basket copper dolphin")]).scores
    assert found[0] / found[1] > plain[0] / plain[1]


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
    known = vocabulary.learn_terms("fees")
    assert vocabulary.query_terms("fees of zebras and lions") == [*known, UNKNOWN_TERM, UNKNOWN_TERM]
    assert split_query_terms(vocabulary, "   ") == []


def test_forms_of_a_word_are_one_term() -> None:
    vocabulary = Vocabulary()
    assert vocabulary.learn_terms("account accounts") == vocabulary.learn_terms("accounts account")
    assert vocabulary.query_terms("Accounts") == vocabulary.learn_terms("account")


def test_a_poor_best_match_does_not_count_fully() -> None:
    found = MatchScores(np.array([1.0, 0.5], np.float32), ideal=10.0)
    assert found.normalize(0.5).tolist() == pytest.approx([0.2, 0.1])
    assert found.normalize(0.05).tolist() == [1.0, 0.5]
