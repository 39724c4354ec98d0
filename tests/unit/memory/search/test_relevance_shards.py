from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.memory.nodes import NoteDocument
from foveate.memory.search.bm25 import Floats, split_query_terms
from foveate.memory.search.relevance import (
    MAX_SHARD_ROWS,
    IndexSnapshot,
    ShardedIndex,
    combine_scores,
    default_weights,
)
from tests.support.scenarios.memory_nodes import LONG_AGO, NodeSpec, build_test_nodes

_QUERY = "anchor falcons. The basket was of copper and ember, and of nothing else. Falcons"


def _sharded_index(max_rows: int = MAX_SHARD_ROWS) -> ShardedIndex:
    weights = default_weights()
    return ShardedIndex(
        ancestor_weight=weights.ancestor_words, half_life_days=weights.half_life_days, max_rows=max_rows
    )


def _embed(texts: Sequence[str]) -> Floats:
    return np.array([[len(text), text.count("a"), 1] for text in texts], np.float32).reshape(-1, 3)


def _build_document(*specs: NodeSpec, days: int = 0) -> NoteDocument:
    file = NodeSpec(title="notes", level=0)
    return build_test_nodes(*specs, file=file, modified=LONG_AGO + timedelta(days=days))[0].document


def _score_query(snapshot: IndexSnapshot) -> Floats:
    terms = split_query_terms(snapshot.vocabulary, _QUERY)
    similarity = snapshot.similarity(np.array([0.1, 0.2, 0.3], np.float32))
    return combine_scores(snapshot, terms, similarity, default_weights())


_words = st.lists(st.sampled_from(["anchor", "basket", "copper", "the", "ember", "falcons"]), max_size=5).map(
    " ".join
)
_node_specs = st.builds(NodeSpec, title=_words, content=_words, level=st.integers(1, 3))
_documents = st.builds(
    lambda specs, days: _build_document(*specs, days=days),
    st.lists(_node_specs, max_size=6),
    st.integers(0, 90),
)


@pytest.mark.slow
@given(st.lists(_documents, min_size=1, max_size=8), st.integers(1, 12), st.data())
def test_scores_do_not_depend_on_the_shard_size(
    documents: list[NoteDocument], max_rows: int, data: st.DataObject
) -> None:
    index = _sharded_index(max_rows)
    for _ in range(4):
        files = data.draw(st.lists(st.sampled_from(documents), unique_by=id, min_size=1))
        updated, expected = index.update(files, _embed), _sharded_index().update(files, _embed)
        np.testing.assert_array_equal(_score_query(updated), _score_query(expected))


def test_only_a_single_file_may_exceed_the_shard_size() -> None:
    files = [
        _build_document(*(NodeSpec(title=f"n{number}") for number in range(size))) for size in (3, 5, 20, 1, 1)
    ]
    snapshot = _sharded_index(10).update(files, _embed)
    assert [len(vectors) for vectors in snapshot.vectors] == [10, 21, 4]


@pytest.mark.slow
def test_there_are_few_shards_however_often_files_change() -> None:
    index = _sharded_index(64)
    files = [_build_document(NodeSpec(title=f"n{number}")) for number in range(100)]
    max_shards = 0
    for number in range(400):
        files[number * 7 % 100] = _build_document(NodeSpec(title=f"changed {number}"))
        max_shards = max(max_shards, len(index.update(files, _embed).vectors))
    # Four full shards; each of the others is a quarter of the previous one.
    assert max_shards <= 4 + 4 * 3


def test_new_documents_are_indexed_once_and_removed_ones_forgotten() -> None:
    embedded: list[str] = []

    def embed(texts: Sequence[str]) -> Floats:
        embedded.extend(texts)
        return _embed(texts)

    index = _sharded_index(4)
    files = [_build_document(NodeSpec(title=f"n{number}")) for number in range(9)]
    index.update(files, embed)
    assert len(embedded) == 18
    assert len(index.update(files[3:], embed)) == 12
    assert len(embedded) == 18
    index.update(files, embed)
    assert embedded[18:] == ["notes\n", "n0\n", "notes\n", "n1\n", "notes\n", "n2\n"]
