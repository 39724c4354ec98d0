"""Score the relevance of each node for a query or another node."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from foveate.memory.nodes import Node, NoteDocument
from foveate.memory.search.bm25 import Floats, score_texts, split_query_terms
from foveate.memory.search.embeddings import (
    Embedder,
    VectorCache,
    default_embedder,
    default_vector_cache,
    embed_with_cache,
)
from foveate.memory.search.shards import MAX_EMBEDDED_CHARS, IndexSnapshot, ShardedIndex, text_to_embed

# With fewer nodes, half of them may well be similar.
_MIN_NODES_FOR_MEDIAN, _MEDIAN_SAMPLE_NODES = 8, 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RelevanceWeights:
    """Weights of the parts of relevance; explained in `weights.toml`."""

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
    min_nearness: float
    full_nearness: float


@cache
def default_weights() -> RelevanceWeights:
    return RelevanceWeights(
        **tomllib.loads(files("foveate.memory.search").joinpath("weights.toml").read_text("utf-8"))["relevance"]
    )


@dataclass(frozen=True, slots=True, eq=False)
class NodeScores:
    """Scores of all nodes, in document order."""

    relevance: NDArray[np.float32]
    """From 0, nothing in common, to 1."""
    similarity: NDArray[np.float32]
    """The cosine of the vectors; 0 without an embedder."""


class Index:
    """Scores nodes, and keeps the index of documents between queries."""

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
        return self._weights

    def score_query(self, documents: Sequence[NoteDocument], query: str) -> NodeScores:
        snapshot = self._take_snapshot(documents)
        return self._score(snapshot, query)

    def score_node(self, documents: Sequence[NoteDocument], node: Node) -> NodeScores:
        """Score all nodes by their relation to one node, which need not be among them."""
        snapshot = self._take_snapshot(documents)
        scores = self._score(snapshot, text_to_embed(node))
        index = snapshot.find_index(node)
        if index is not None:
            scores.relevance[index] = 1.0
        return scores

    def _take_snapshot(self, documents: Sequence[NoteDocument]) -> IndexSnapshot:
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
        # Only texts of the memory are cached, not queries.
        vector = embed_with_cache(self._embedder(), None, [query[:MAX_EMBEDDED_CHARS]])[0]
        similarity = snapshot.similarity(vector)
        return NodeScores(combine_scores(snapshot, terms, similarity, self._weights), similarity)


def combine_scores(
    snapshot: IndexSnapshot,
    terms: Sequence[Sequence[int]],
    similarity: Floats | None,
    weights: RelevanceWeights,
) -> Floats:
    full = weights.full_match
    by_row = weights.words * score_texts(snapshot.texts, terms).normalize(full)
    by_row += weights.title * score_texts(snapshot.titles, terms).normalize(full)
    own_scores: Floats = by_row[snapshot.rows]
    total_weight = weights.words + weights.title
    if similarity is not None:
        own_scores += weights.meaning * _scale_similarity(similarity, weights)
        total_weight += weights.meaning
    own_scores /= total_weight
    best = float(own_scores.max())
    if not best:
        return own_scores
    files = score_texts(snapshot.files, terms).normalize(full)[snapshot.file_rows]
    # What every file has does not distinguish any.
    scores: Floats = own_scores + np.repeat(weights.document * (files - files.min()), snapshot.sizes)
    scores += _boost_by_family(snapshot, own_scores, weights)
    # The best node keeps its own score: if all match badly, their neighbors must not raise them.
    scores *= best / float(scores.max())
    scores *= 1 - weights.recency + weights.recency * snapshot.recency
    return scores


def _scale_similarity(similarity: Floats, weights: RelevanceWeights) -> Floats:
    """Scale similarity from 0, the median, to 1, the most similar; less if that is not very similar either."""
    # A sample of some thousands has the same median.
    middle = (
        float(np.median(similarity[:: len(similarity) // _MEDIAN_SAMPLE_NODES + 1]))
        if len(similarity) >= _MIN_NODES_FOR_MEDIAN
        else 0.0
    )
    nearest = float(similarity.max()) - middle
    trust = (nearest - weights.min_nearness) / (weights.full_nearness - weights.min_nearness)
    if trust <= 0:
        return np.zeros_like(similarity)
    scaled: Floats = np.clip((similarity - middle) / nearest, 0, 1) * np.float32(min(1.0, trust))
    return scaled


def _boost_by_family(snapshot: IndexSnapshot, own_scores: Floats, weights: RelevanceWeights) -> Floats:
    """Score that each node gets from its parent, and from the mean of its siblings."""
    sums = np.bincount(snapshot.parents, own_scores * snapshot.has_parent, minlength=len(own_scores)).astype(
        np.float32
    )
    inherited: Floats = weights.parent * own_scores
    inherited += weights.siblings * sums * snapshot.inverse_child_counts
    boost: Floats = inherited[snapshot.parents] * snapshot.has_parent
    return boost
