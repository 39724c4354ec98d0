"""How much each node of a memory has to do with a query, or with another node."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from foveate.memory.corpus import LONGEST_EMBEDDED, Corpus, Snapshot, embedded_text
from foveate.memory.embedding import Embedder, default_embedder
from foveate.memory.lexical import Floats, asked, match
from foveate.memory.nodes import Document, Node
from foveate.memory.vectors import Vectors, default_vectors, embedded

# Among fewer nodes than these, half may well be near.
_FEW, _MANY = 8, 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
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
def default_weights() -> Weights:
    """Those of `weights.toml`."""
    return Weights(**tomllib.loads(files(__package__).joinpath("weights.toml").read_text("utf-8"))["relevance"])


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
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
        vectors: Callable[[], Vectors] | None = default_vectors,
        weights: Weights | None = None,
    ) -> None:
        self._embedder = embedder
        self._vectors = vectors() if embedder and vectors else None
        self._weights = weights or default_weights()
        self._corpus = Corpus(
            ancestor_weight=self._weights.ancestor_words, half_life_days=self._weights.half_life_days
        )
        self._lock = Lock()

    @property
    def weights(self) -> Weights:
        """What the parts of relevance count here."""
        return self._weights

    def to_query(self, documents: Sequence[Document], query: str) -> Scores:
        """How relevant every node is to a query."""
        snapshot = self._snapshot(documents)
        return self._scores(snapshot, query)

    def to_node(self, documents: Sequence[Document], node: Node) -> Scores:
        """How much every node has to do with a node, which need not be one of them; with itself, all."""
        snapshot = self._snapshot(documents)
        scores = self._scores(snapshot, embedded_text(node))
        at = snapshot.place(node)
        if at is not None:
            scores.relevance[at] = 1.0
        return scores

    def _snapshot(self, documents: Sequence[Document]) -> Snapshot:
        with self._lock:
            return self._corpus.of(documents, self._embedded)

    def _embedded(self, texts: Sequence[str]) -> Floats:
        if self._embedder is None:
            return np.zeros((len(texts), 0), np.float32)
        return embedded(self._embedder(), self._vectors, texts)

    def _scores(self, snapshot: Snapshot, query: str) -> Scores:
        terms = asked(snapshot.vocabulary, query)
        if not terms or not len(snapshot):
            return Scores(np.zeros(len(snapshot), np.float32), np.zeros(len(snapshot), np.float32))
        if self._embedder is None:
            return Scores(joined(snapshot, terms, None, self._weights), np.zeros(len(snapshot), np.float32))
        # What is asked is not kept: only the memory's own text is.
        vector = embedded(self._embedder(), None, [query[:LONGEST_EMBEDDED]])[0]
        similarity = snapshot.similarity(vector)
        return Scores(joined(snapshot, terms, similarity, self._weights), similarity)


def joined(
    snapshot: Snapshot, terms: Sequence[Sequence[int]], similarity: Floats | None, weights: Weights
) -> Floats:
    """The relevance of every node, from all that says something of it."""
    full = weights.full_match
    by_row = weights.words * match(snapshot.texts, terms).shares(full)
    by_row += weights.title * match(snapshot.titles, terms).shares(full)
    own: Floats = by_row[snapshot.rows]
    whole = weights.words + weights.title
    if similarity is not None:
        own += weights.meaning * _nearness(similarity, weights)
        whole += weights.meaning
    own /= whole
    best = float(own.max())
    if not best:
        return own
    files = match(snapshot.files, terms).shares(full)[snapshot.file_rows]
    # What the file that matches least has, all have: it tells nothing.
    lifted: Floats = own + np.repeat(weights.document * (files - files.min()), snapshot.sizes)
    lifted += _lift(snapshot, own, weights)
    # The best keeps what it has by itself: where everything matches badly, standing together is no merit.
    lifted *= best / float(lifted.max())
    lifted *= 1 - weights.recency + weights.recency * snapshot.youth
    return lifted


def _nearness(similarity: Floats, weights: Weights) -> Floats:
    """From 0, no nearer than half of all nodes, to 1, the nearest; less where that is not near either."""
    # A few thousand of them have the same middle as all.
    middle = float(np.median(similarity[:: len(similarity) // _MANY + 1])) if len(similarity) >= _FEW else 0.0
    nearest = float(similarity.max()) - middle
    trust = (nearest - weights.least_nearness) / (weights.full_nearness - weights.least_nearness)
    if trust <= 0:
        return np.zeros_like(similarity)
    near: Floats = np.clip((similarity - middle) / nearest, 0, 1) * np.float32(min(1.0, trust))
    return near


def _lift(snapshot: Snapshot, own: Floats, weights: Weights) -> Floats:
    """What each node has from its parent, and from the mean of all that stand in that."""
    sums = np.bincount(snapshot.parents, own * snapshot.below, minlength=len(own)).astype(np.float32)
    given = weights.parent * own + weights.siblings * sums * snapshot.per_child
    lift: Floats = given[snapshot.parents] * snapshot.below
    return lift
