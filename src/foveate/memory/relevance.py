"""How much each node of a memory has to do with a query, or with another node."""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from foveate.memory.corpus import Corpus, Snapshot, embedded_text
from foveate.memory.embedding import Embedder, default_embedder
from foveate.memory.lexical import Floats, Match, asked, match
from foveate.memory.nodes import Document, Node
from foveate.memory.words import segments

_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What the parts of relevance count; `weights.toml` says why."""

    lexical: float
    embedding: float
    title: float
    recency: float
    recency_half_life_days: float
    ancestor: float
    full_match: float
    full_similarity: float
    lift: float


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
        weights: Weights | None = None,
    ) -> None:
        self._embedder = embedder
        self._weights = weights or default_weights()
        self._corpus = Corpus(self._weights.ancestor)
        self._lock = Lock()

    def to_query(self, documents: Sequence[Document], query: str) -> Scores:
        """How relevant every node is to a query."""
        snapshot = self._snapshot(documents)
        return self._scored(snapshot, query, self._embedded([query, *segments(query)]))

    def to_node(self, documents: Sequence[Document], node: Node) -> Scores:
        """How much every node has to do with a node, which need not be one of them."""
        snapshot = self._snapshot(documents)
        text = embedded_text(node)
        return self._scored(snapshot, text, self._embedded([text]))

    def _snapshot(self, documents: Sequence[Document]) -> Snapshot:
        with self._lock:
            return self._corpus.of(documents, self._embedded)

    def _embedded(self, texts: Sequence[str]) -> Floats:
        if self._embedder is None:
            return np.zeros((len(texts), 0), np.float32)
        return self._embedder().embed(texts)

    def _scored(self, snapshot: Snapshot, query: str, vectors: Floats) -> Scores:
        terms = asked(snapshot.vocabulary, query)
        similarities = snapshot.similarities(vectors)
        if not terms or not len(snapshot):
            return Scores(np.zeros(len(snapshot), np.float32), np.zeros(len(snapshot), np.float32))
        weights = self._weights
        parts = [
            (weights.lexical, _of_full(match(snapshot.texts, terms), weights.full_match)),
            (weights.title, _of_full(match(snapshot.titles, terms), weights.full_match)),
        ]
        if vectors.shape[1]:
            parts.append((weights.embedding, _near(similarities, weights.full_similarity)))
        whole = sum(weight for weight, _ in parts)
        joined = sum(
            (np.float32(weight / whole) * part for weight, part in parts), np.zeros(len(snapshot), np.float32)
        )
        return Scores(joined, similarities[0])


def _of_full(found: Match, full: float) -> Floats:
    """The scores as shares of the best, or of a part of the ideal where the best is poor."""
    best = max(float(found.scores.max(initial=0.0)), full * found.ideal)
    return found.scores / np.float32(best) if best else found.scores


def _near(similarities: Floats, full: float) -> Floats:
    """From 0, no nearer than half of all, to 1."""
    nearest = similarities[0]
    middle = float(np.median(nearest))
    near: Floats = np.clip((nearest - middle) / max(float(nearest.max()) - middle, full), 0, 1)
    return near


def tree_distances(focus: Node, nodes: Iterable[Node]) -> NDArray[np.int32]:
    """How many steps from parent to child or back lie between a node and each of others.

    Files are children of the memory. Parents come before their children, as in documents.
    """
    above = {id(node): steps for steps, node in enumerate((focus, *focus.ancestors()))}
    known: dict[int, int] = {}
    for node in nodes:
        steps = above.get(id(node))
        if steps is None:
            parent = id(node.parent) if node.parent else 0
            steps = known.get(parent, above.get(parent, len(above))) + 1
        known[id(node)] = steps
    return np.fromiter(known.values(), np.int32, len(known))
