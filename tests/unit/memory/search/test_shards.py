from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.memory.nodes import Document
from foveate.memory.search.bm25 import Floats, split_query_terms
from foveate.memory.search.relevance import combine_scores, default_weights
from foveate.memory.search.shards import MAX_SHARD_ROWS, IndexSnapshot, ShardedIndex
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.memory_nodes import LONG_AGO, NodeSpec, build_test_nodes

_QUERY = "anchor falcons. The basket was of copper and ember, and of nothing else. Falcons"


def _sharded_index(most_rows: int = MAX_SHARD_ROWS) -> ShardedIndex:
    weights = default_weights()
    return ShardedIndex(
        ancestor_weight=weights.ancestor_words, half_life_days=weights.half_life_days, max_rows=most_rows
    )


def _embed(texts: Sequence[str]) -> Floats:
    return np.array([[len(text), text.count("a"), 1] for text in texts], np.float32).reshape(-1, 3)


def _file(*sown: NodeSpec, days: int = 0) -> Document:
    file = NodeSpec(title="notes", level=0)
    return build_test_nodes(*sown, file=file, modified=LONG_AGO + timedelta(days=days))[0].document


def _relevance(snapshot: IndexSnapshot) -> Floats:
    terms = split_query_terms(snapshot.vocabulary, _QUERY)
    similarity = snapshot.similarity(np.array([0.1, 0.2, 0.3], np.float32))
    return combine_scores(snapshot, terms, similarity, default_weights())


_words = st.lists(st.sampled_from(["anchor", "basket", "copper", "the", "ember", "falcons"]), max_size=5).map(
    " ".join
)
_sown = st.builds(NodeSpec, title=_words, content=_words, level=st.integers(1, 3))
_files = st.builds(lambda sown, days: _file(*sown, days=days), st.lists(_sown, max_size=6), st.integers(0, 90))


@pytest.mark.slow
@given(st.lists(_files, min_size=1, max_size=8), st.integers(1, 12), st.data())
@settings(max_examples=limit_examples(60))
def test_scores_do_not_depend_on_the_shard_size(
    pool: list[Document], most_rows: int, data: st.DataObject
) -> None:
    corpus = _sharded_index(most_rows)
    for _ in range(4):
        files = data.draw(st.lists(st.sampled_from(pool), unique_by=id, min_size=1))
        found, expected = corpus.update(files, _embed), _sharded_index().update(files, _embed)
        np.testing.assert_array_equal(_relevance(found), _relevance(expected))


def test_only_a_single_file_may_exceed_the_shard_size() -> None:
    files = [_file(*(NodeSpec(title=f"n{number}") for number in range(size))) for size in (3, 5, 20, 1, 1)]
    snapshot = _sharded_index(10).update(files, _embed)
    assert [len(vectors) for vectors in snapshot.vectors] == [10, 21, 4]


@pytest.mark.slow
def test_there_are_few_shards_however_often_files_change() -> None:
    corpus = _sharded_index(64)
    files = [_file(NodeSpec(title=f"n{number}")) for number in range(100)]
    most = 0
    for number in range(400):
        files[number * 7 % 100] = _file(NodeSpec(title=f"changed {number}"))
        most = max(most, len(corpus.update(files, _embed).vectors))
    # Four full shards, and of the others each a quarter of the one before.
    assert most <= 4 + 4 * 3


def test_new_documents_are_indexed_once_and_removed_ones_forgotten() -> None:
    looked: list[str] = []

    def embed(texts: Sequence[str]) -> Floats:
        looked.extend(texts)
        return _embed(texts)

    corpus = _sharded_index(4)
    files = [_file(NodeSpec(title=f"n{number}")) for number in range(9)]
    corpus.update(files, embed)
    assert len(looked) == 18
    assert len(corpus.update(files[3:], embed)) == 12
    assert len(looked) == 18
    corpus.update(files, embed)
    assert looked[18:] == ["notes\n", "n0\n", "notes\n", "n1\n", "notes\n", "n2\n"]
