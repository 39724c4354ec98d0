"""Score the relevance of each node for a query or another node, by an index that is updated incrementally.

New nodes form a small shard, and removed ones are masked. A shard that is not much larger than the next one is
merged with it, up to a size that is cheap to build, so that each node is moved only a few times. Queries use an
immutable snapshot.
"""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate
from operator import is_
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foveate.memory.nodes import Node, NoteDocument, to_timestamp
from foveate.memory.search.bm25 import (
    Floats,
    Postings,
    TextField,
    TextNumbers,
    Vocabulary,
    build_postings,
    group_postings,
    merge_postings,
    score_texts,
    split_query_terms,
)
from foveate.memory.search.embeddings import (
    Embedder,
    VectorCache,
    default_embedder,
    default_vector_cache,
    embed_with_cache,
)

Embed = Callable[[Sequence[str]], Floats]
# What a node is about is at its start.
_MAX_EMBEDDED_CHARS = 4_000
# A shard that is this many times larger than the next one is not merged.
_MERGE_RATIO = 4
# A larger shard is made only for a single file: building one takes several times its memory, which the process
# does not release completely.
MAX_SHARD_ROWS = 65_536
# Distant ancestors say little about a node, and 100,000 nodes may be 2,000 levels deep.
_MAX_ANCESTORS = 6
_Number = TypeVar("_Number", bound=np.generic)
_DAY_SECONDS = 86_400.0
_NO_ROWS = np.zeros(0, np.int32)
# With fewer nodes, half of them may well be similar.
_MIN_NODES_FOR_MEDIAN, _MEDIAN_SAMPLE_NODES = 8, 5_000


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Shard:
    """One row per node."""

    texts: Postings
    titles: Postings
    files: Postings
    """All texts of a document together, one row per document."""
    vectors: Floats
    parent_offsets: TextNumbers
    """Number of rows from a node up to its parent; 0 for a file."""
    modified: NDArray[np.float64]

    def __len__(self) -> int:
        """The number of rows, including removed nodes."""
        return len(self.parent_offsets)


@dataclass(frozen=True, slots=True, eq=False)
class ShardLocation:
    """The shard of a document, with the first row of its nodes and its own row among files."""

    shard: Shard
    row: int
    file: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IndexSnapshot:
    """The nodes of some documents at one moment, in document order."""

    documents: tuple[NoteDocument, ...]
    vocabulary: Vocabulary
    rows: NDArray[np.intp]
    """The row of each node among all shards."""
    file_rows: NDArray[np.intp]
    """The row of each document among the files of all shards."""
    sizes: NDArray[np.intp]
    """The number of nodes of each document."""
    texts: TextField
    titles: TextField
    files: TextField
    vectors: tuple[Floats, ...]
    parents: NDArray[np.intp]
    """The row of each node's parent; a file is its own parent."""
    has_parent: Floats
    """1 for a node with a parent, 0 for a file."""
    inverse_child_counts: Floats
    """1 divided by the number of children; 0 without children."""
    recency: Floats
    """1 for the newest node, half after the half-life."""

    def __len__(self) -> int:
        return len(self.rows)

    def similarity(self, vector: Floats) -> Floats:
        """The cosine between each node and a vector."""
        # Not `@`: its threads wait for each other, which takes ten times as long on a busy machine.
        parts = [
            np.einsum("ij,j->i", vectors, vector)
            if vectors.shape[1] == len(vector)
            else np.zeros(len(vectors), np.float32)
            for vectors in self.vectors
        ]
        return np.concatenate(parts)[self.rows] if parts else np.zeros(0, np.float32)

    def find_index(self, node: Node) -> int | None:
        start = 0
        for document in self.documents:
            if document is node.document:
                return start + document.nodes.index(node)
            start += len(document.nodes)
        return None


class ShardedIndex:
    """Maintains the shards. Callers hold a lock."""

    def __init__(
        self, *, ancestor_weight: float, half_life_days: float, max_rows: int = MAX_SHARD_ROWS
    ) -> None:
        self._ancestor_weight = ancestor_weight
        self._half_life_days = half_life_days
        self._max_rows = max_rows
        self._vocabulary = Vocabulary()
        self._shards: list[Shard] = []
        self._locations: dict[NoteDocument, ShardLocation] = {}
        self._documents: Sequence[NoteDocument] = ()
        self._snapshot: IndexSnapshot | None = None

    def update(self, documents: Sequence[NoteDocument], embed: Embed) -> IndexSnapshot:
        current = self._snapshot
        if current and len(self._documents) == len(documents) and all(map(is_, self._documents, documents)):
            return current
        non_empty = {document: None for document in documents if document.nodes}
        new = _split_by_size(
            (document for document in non_empty if document not in self._locations), self._max_rows
        )
        shards = [
            (self._build_shard(batch, embed), batch) for batch in new
        ]  # may fail; nothing has been changed so far
        self._locations = {
            document: home for document, home in self._locations.items() if document in non_empty
        }
        for shard, batch in shards:
            self._shards.append(shard)
            self._assign_locations(shard, batch)
        self._merge_small_shards()
        self._documents = tuple(documents)
        self._snapshot = self._take_snapshot(tuple(document for document in documents if document.nodes))
        return self._snapshot

    def _build_shard(self, documents: Sequence[NoteDocument], embed: Embed) -> Shard:
        nodes = [node for document in documents for node in document.nodes]
        learn, ancestor_weight = self._vocabulary.learn_terms, self._ancestor_weight
        titles = [learn(node.entry.title) for node in nodes]
        parent_offsets = _find_parent_offsets(documents)
        texts = (
            (
                (1.0, title),
                (1.0, learn(node.full_text)),
                (ancestor_weight, _ancestor_terms(row, titles, parent_offsets)),
            )
            for row, (node, title) in enumerate(zip(nodes, titles, strict=True))
        )
        modified = {when: to_timestamp(when) for when in {node.modified for node in nodes}}
        text_postings = build_postings(texts, self._vocabulary)
        sizes = [len(document.nodes) for document in documents]
        return Shard(
            texts=text_postings,
            titles=build_postings((((1.0, title),) for title in titles), self._vocabulary),
            files=group_postings(
                text_postings, np.repeat(np.arange(len(sizes), dtype=np.int32), sizes), len(sizes)
            ),
            vectors=embed([_text_to_embed(node) for node in nodes]),
            parent_offsets=np.asarray(parent_offsets, np.int32),
            modified=np.fromiter((modified[node.modified] for node in nodes), np.float64, len(nodes)),
        )

    def _assign_locations(self, shard: Shard, documents: Iterable[NoteDocument]) -> None:
        row = 0
        for number, document in enumerate(documents):
            self._locations[document] = ShardLocation(shard, row, number)
            row += len(document.nodes)

    def _merge_small_shards(self) -> None:
        """Merge shards that are not much larger than the next one, and rebuild mostly removed ones."""
        alive = dict.fromkeys(map(id, self._shards), 0)
        for document, location in self._locations.items():
            alive[id(location.shard)] += len(document.nodes)
        self._shards = [shard for shard in self._shards if alive[id(shard)]]
        number = len(self._shards) - 1
        while number >= 0:
            shard = self._shards[number]
            size = alive[id(shard)]
            before = alive[id(self._shards[number - 1])] if number else 0
            merges_previous = 0 < before < _MERGE_RATIO * size and before + size <= self._max_rows
            if merges_previous or size * 2 < len(shard):
                merged_shards = self._shards[number - 1 if merges_previous else number : number + 1]
                merged = self._merge(merged_shards)
                alive[id(merged)] = len(merged)
                number -= merges_previous
                self._shards[number : number + len(merged_shards)] = [merged]
                continue
            number -= 1

    def _merge(self, shards: Sequence[Shard]) -> Shard:
        rows = {id(shard): np.full(len(shard), -1, np.int32) for shard in shards}
        files = {id(shard): np.full(len(shard.files.lengths), -1, np.int32) for shard in shards}
        remaining = [
            (document, location) for document, location in self._locations.items() if id(location.shard) in rows
        ]
        row = 0
        for number, (document, location) in enumerate(remaining):
            count = len(document.nodes)
            rows[id(location.shard)][location.row : location.row + count] = np.arange(
                row, row + count, dtype=np.int32
            )
            files[id(location.shard)][location.file] = number
            row += count
        terms = len(self._vocabulary)
        to = list(rows.values())
        merged_shard = Shard(
            texts=merge_postings([(shard.texts, rows[id(shard)]) for shard in shards], terms),
            titles=merge_postings([(shard.titles, rows[id(shard)]) for shard in shards], terms),
            files=merge_postings([(shard.files, files[id(shard)]) for shard in shards], terms),
            vectors=_move_rows([shard.vectors for shard in shards], to, row),
            parent_offsets=_move_rows([shard.parent_offsets for shard in shards], to, row),
            modified=_move_rows([shard.modified for shard in shards], to, row),
        )
        self._assign_locations(merged_shard, [document for document, _ in remaining])
        return merged_shard

    def _take_snapshot(self, documents: tuple[NoteDocument, ...]) -> IndexSnapshot:
        shards = self._shards
        locations = [self._locations[document] for document in documents]
        sizes = np.fromiter((len(document.nodes) for document in documents), np.intp, len(documents))
        count = int(sizes.sum())
        row_starts = dict(zip(map(id, shards), accumulate(map(len, shards), initial=0), strict=False))
        file_starts = accumulate((len(shard.files.lengths) for shard in shards), initial=0)
        first_files = dict(zip(map(id, shards), file_starts, strict=False))
        firsts = np.asarray([row_starts[id(location.shard)] + location.row for location in locations], np.intp)
        rows = np.arange(count) + np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes)
        file_rows = np.asarray(
            [first_files[id(location.shard)] + location.file for location in locations], np.intp
        )
        parent_offsets = np.concatenate([_NO_ROWS, *(shard.parent_offsets for shard in shards)])[rows]
        parents = np.arange(count) - parent_offsets
        children = np.bincount(parents, parent_offsets > 0, minlength=count)
        modified = np.concatenate([_NO_ROWS, *(shard.modified for shard in shards)])[rows]
        age_days = ((modified.max() if count else 0) - modified) / _DAY_SECONDS
        return IndexSnapshot(
            documents=documents,
            vocabulary=self._vocabulary,
            rows=rows,
            file_rows=file_rows,
            sizes=sizes,
            texts=_build_field([shard.texts for shard in shards], rows),
            titles=_build_field([shard.titles for shard in shards], rows),
            files=_build_field([shard.files for shard in shards], file_rows),
            vectors=tuple(shard.vectors for shard in shards),
            parents=parents,
            has_parent=(parent_offsets > 0).astype(np.float32),
            inverse_child_counts=np.divide(1, children, out=np.zeros(count), where=children > 0).astype(
                np.float32
            ),
            recency=np.exp2(age_days / -self._half_life_days).astype(np.float32),
        )


def _build_field(pieces: Sequence[Postings], rows: NDArray[np.intp]) -> TextField:
    starts = np.cumsum([0, *(len(piece.lengths) for piece in pieces)])
    mask = np.zeros(starts[-1], np.bool_)
    mask[rows] = True
    masks = np.split(mask, starts[1:-1]) if pieces else []
    return TextField(
        [
            (piece, None if piece_mask.all() else piece_mask)
            for piece, piece_mask in zip(pieces, masks, strict=True)
        ]
    )


def _text_to_embed(node: Node) -> str:
    return f"{node.entry.title}\n{node.full_text}"[:_MAX_EMBEDDED_CHARS]


def _split_by_size(documents: Iterable[NoteDocument], max_rows: int) -> list[list[NoteDocument]]:
    groups: list[list[NoteDocument]] = []
    room = 0
    for document in documents:
        if len(document.nodes) > room:
            groups.append([])
            room = max_rows
        groups[-1].append(document)
        room -= len(document.nodes)
    return groups


def _move_rows(
    arrays: Sequence[NDArray[_Number]], new_rows: Sequence[TextNumbers], count: int
) -> NDArray[_Number]:
    moved = np.zeros((count, *arrays[0].shape[1:]), arrays[0].dtype)
    for array, to in zip(arrays, new_rows, strict=True):
        is_kept = to >= 0
        moved[to[is_kept]] = array[is_kept]
    return moved


def _find_parent_offsets(documents: Iterable[NoteDocument]) -> list[int]:
    offsets: list[int] = []
    for document in documents:
        rows = {id(node): row for row, node in enumerate(document.nodes)}
        offsets.extend(
            row - rows[id(node.parent)] if node.parent else 0 for row, node in enumerate(document.nodes)
        )
    return offsets


def _ancestor_terms(index: int, titles: Sequence[list[int]], parent_offsets: Sequence[int]) -> list[int]:
    terms: dict[int, None] = {}
    for _ in range(_MAX_ANCESTORS):
        if not parent_offsets[index]:
            break
        index -= parent_offsets[index]
        terms.update(dict.fromkeys(titles[index]))
    return list(terms)


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
        scores = self._score(snapshot, _text_to_embed(node))
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
        vector = embed_with_cache(self._embedder(), None, [query[:_MAX_EMBEDDED_CHARS]])[0]
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
