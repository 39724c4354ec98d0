"""How much each node of a memory has to do with a query, or with another node."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from foveate.memory.nodes import Document, Node
from foveate.memory.search.bm25 import Floats, score_texts, split_query_terms
from foveate.memory.search.embeddings import (
    Embedder,
    VectorCache,
    default_embedder,
    default_vector_cache,
    embed_with_cache,
)
from foveate.memory.search.shards import MAX_EMBEDDED_CHARS, IndexSnapshot, ShardedIndex, text_to_embed

# Among fewer nodes than these, half may well be near.
_MIN_NODES_FOR_MEDIAN, _MEDIAN_SAMPLE_NODES = 8, 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RelevanceWeights:
    """What the parts of relevance count; `weights.toml` says why."""

    words: float
    meaning: float
    title: float
    parent: float
    siblings: float
    document: float
    nearness: float
    recency: float
    half_life_days: float
    ancestor_words: float
    full_match: float
    least_nearness: float
    full_nearness: float


@cache
def default_weights() -> RelevanceWeights:
    """Those of `weights.toml`."""
    return RelevanceWeights(
        **tomllib.loads(files(__package__).joinpath("weights.toml").read_text("utf-8"))["relevance"]
    )


@dataclass(frozen=True, slots=True, eq=False)
class NodeScores:
    """A number for each node, the documents one after the other and their nodes in order."""

    relevance: NDArray[np.float32]
    """From 0, nothing in common, to 1."""
    similarity: NDArray[np.float32]
    """The cosine of the vectors; 0 without an embedder."""


class Index:
    """Finds what is relevant in a memory; what it knows of a document it keeps while that is asked about."""

    def __init__(
        self,
        embedder: Callable[[], Embedder] | None = default_embedder,
        *,
        vector_cache: Callable[[], VectorCache] | None = default_vector_cache,
        weights: RelevanceWeights | None = None,
    ) -> None:
        self._embedder = embedder
        self._vector_cache = vector_cache() if embedder and vector_cache else None
        self._weights = weights or default_weights()
        self._sharded_index = ShardedIndex(
            ancestor_weight=self._weights.ancestor_words, half_life_days=self._weights.half_life_days
        )
        self._lock = Lock()

    @property
    def weights(self) -> RelevanceWeights:
        """What the parts of relevance count here."""
        return self._weights

    def score_query(self, documents: Sequence[Document], query: str) -> NodeScores:
        """How relevant every node is to a query."""
        snapshot = self._take_snapshot(documents)
        return self._score(snapshot, query)

    def score_node(self, documents: Sequence[Document], node: Node) -> NodeScores:
        """How much every node has to do with a node, which need not be one of them; with itself, all."""
        snapshot = self._take_snapshot(documents)
        scores = self._score(snapshot, text_to_embed(node))
        index = snapshot.index_of(node)
        if index is not None:
            scores.relevance[index] = 1.0
        return scores

    def _take_snapshot(self, documents: Sequence[Document]) -> IndexSnapshot:
        with self._lock:
            return self._sharded_index.update(documents, self._embed)

    def _embed(self, texts: Sequence[str]) -> Floats:
        if self._embedder is None:
            return np.zeros((len(texts), 0), np.float32)
        return embed_with_cache(self._embedder(), self._vector_cache, texts)

    def _score(self, snapshot: IndexSnapshot, query: str) -> NodeScores:
        terms = split_query_terms(snapshot.vocabulary, query)
        if not terms or not len(snapshot):
            return NodeScores(np.zeros(len(snapshot), np.float32), np.zeros(len(snapshot), np.float32))
        if self._embedder is None:
            return NodeScores(
                combine_scores(snapshot, terms, None, self._weights), np.zeros(len(snapshot), np.float32)
            )
        # What is asked is not kept: only the memory's own text is.
        vector = embed_with_cache(self._embedder(), None, [query[:MAX_EMBEDDED_CHARS]])[0]
        similarity = snapshot.similarity(vector)
        return NodeScores(combine_scores(snapshot, terms, similarity, self._weights), similarity)


def combine_scores(
    snapshot: IndexSnapshot,
    terms: Sequence[Sequence[int]],
    similarity: Floats | None,
    weights: RelevanceWeights,
) -> Floats:
    """The relevance of every node, from all that says something of it."""
    full = weights.full_match
    by_row = weights.words * score_texts(snapshot.texts, terms).normalize(full)
    by_row += weights.title * score_texts(snapshot.titles, terms).normalize(full)
    own: Floats = by_row[snapshot.rows]
    whole = weights.words + weights.title
    if similarity is not None:
        own += weights.meaning * _scale_similarity(similarity, weights)
        whole += weights.meaning
    own /= whole
    best = float(own.max())
    if not best:
        return own
    files = score_texts(snapshot.files, terms).normalize(full)[snapshot.file_rows]
    # What the file that matches least has, all have: it tells nothing.
    lifted: Floats = own + np.repeat(weights.document * (files - files.min()), snapshot.sizes)
    lifted += _boost_by_family(snapshot, own, weights)
    # The best keeps what it has by itself: where everything matches badly, standing together is no merit.
    lifted *= best / float(lifted.max())
    lifted *= 1 - weights.recency + weights.recency * snapshot.recency
    return lifted


def _scale_similarity(similarity: Floats, weights: RelevanceWeights) -> Floats:
    """From 0, no nearer than half of all nodes, to 1, the nearest; less where that is not near either."""
    # A few thousand of them have the same middle as all.
    middle = (
        float(np.median(similarity[:: len(similarity) // _MEDIAN_SAMPLE_NODES + 1]))
        if len(similarity) >= _MIN_NODES_FOR_MEDIAN
        else 0.0
    )
    nearest = float(similarity.max()) - middle
    trust = (nearest - weights.least_nearness) / (weights.full_nearness - weights.least_nearness)
    if trust <= 0:
        return np.zeros_like(similarity)
    near: Floats = np.clip((similarity - middle) / nearest, 0, 1) * np.float32(min(1.0, trust))
    return near


def _boost_by_family(snapshot: IndexSnapshot, own: Floats, weights: RelevanceWeights) -> Floats:
    """What each node has from its parent, and from the mean of all that stand in that."""
    sums = np.bincount(snapshot.parents, own * snapshot.has_parent, minlength=len(own)).astype(np.float32)
    given = weights.parent * own + weights.siblings * sums * snapshot.inverse_child_counts
    lift: Floats = given[snapshot.parents] * snapshot.has_parent
    return lift
