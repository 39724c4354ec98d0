"""The nodes of a memory as relevance needs them, kept from one question to the next.

Nodes stand in shards. What is new makes a small shard, what is gone is marked as gone, and a shard that is not
much larger than the one after it is merged with it: all in all a node is moved a few times, however the files
change. What is scored is a snapshot, which nobody changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from operator import is_
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foveate.memory.lexical import Field, Floats, Groups, Places, Postings, Vocabulary, merged, postings
from foveate.memory.nodes import Document, Node

Embed = Callable[[Sequence[str]], Floats]
# Texts are cut here before they are embedded: what a node is about stands at its beginning.
LONGEST_EMBEDDED = 4_000
# A shard this many times larger than the one after it is left alone.
_STEP = 4
# What a node stands in far above says little of it, and 100,000 nodes may be 2,000 levels deep.
_NEAREST_ANCESTORS = 6
_Number = TypeVar("_Number", bound=np.generic)
_EPOCH = datetime(1970, 1, 1)
_DAY_SECONDS = 86_400.0
_NO_ROWS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Shard:
    """Nodes, one row each."""

    texts: Postings
    titles: Postings
    vectors: Floats
    up: Places
    """How many rows above a node its parent stands; 0 for a file."""
    modified: NDArray[np.float64]

    def __len__(self) -> int:
        """How many nodes it has room for, with those that are gone."""
        return len(self.up)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Snapshot:
    """The nodes of some documents, one after the other, as they are at one time."""

    documents: tuple[Document, ...]
    vocabulary: Vocabulary
    rows: NDArray[np.intp]
    """Where a node stands among the rows of all shards, which are in an order of their own."""
    texts: Field
    titles: Field
    files: Groups
    vectors: tuple[Floats, ...]
    document_of: Places
    below: NDArray[np.intp]
    """The nodes that have parents, and these."""
    parents: NDArray[np.intp]
    siblings: NDArray[np.int64]
    """How many children the parent has, itself included."""
    age_days: Floats
    """How much older than the newest."""

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.rows)

    def similarity(self, vector: Floats) -> Floats:
        """The cosine of every node to a vector."""
        found = [
            vectors @ vector if vectors.shape[1] == len(vector) else np.zeros(len(vectors), np.float32)
            for vectors in self.vectors
        ]
        return np.concatenate(found)[self.rows] if found else np.zeros(0, np.float32)

    def place(self, node: Node) -> int | None:
        """Where a node stands among all, or None."""
        at = 0
        for document in self.documents:
            if document is node.document:
                return at + document.nodes.index(node)
            at += len(document.nodes)
        return None


class Corpus:
    """The shards, brought up to date by whoever holds the lock."""

    def __init__(self, ancestor_weight: float) -> None:
        self._ancestor_weight = ancestor_weight
        self._vocabulary = Vocabulary()
        self._shards: list[Shard] = []
        self._homes: dict[Document, tuple[Shard, int]] = {}
        self._snapshot: Snapshot | None = None

    def of(self, documents: Sequence[Document], embed: Embed) -> Snapshot:
        """The snapshot of `documents`, made from what is known of them; only new ones are looked at."""
        documents = [document for document in documents if document.nodes]
        known = self._snapshot
        if known and len(known.documents) == len(documents) and all(map(is_, known.documents, documents)):
            return known
        new = [each for each in dict.fromkeys(documents) if each not in self._homes]
        if new:
            shard = self._made(new, embed)  # may fail: nothing has been changed so far
        there = set(documents)
        self._homes = {document: home for document, home in self._homes.items() if document in there}
        if new:
            self._settle(shard, new)
        self._tidy()
        self._snapshot = self._taken(tuple(documents))
        return self._snapshot

    def _made(self, documents: Sequence[Document], embed: Embed) -> Shard:
        nodes = [node for document in documents for node in document.nodes]
        learn, ancestor_weight = self._vocabulary.learn, self._ancestor_weight
        titles = [learn(node.entry.title) for node in nodes]
        up = _up(documents)
        texts = (
            ((1.0, title), (1.0, learn(node.content)), (ancestor_weight, _above(at, titles, up)))
            for at, (node, title) in enumerate(zip(nodes, titles, strict=True))
        )
        return Shard(
            texts=postings(texts, self._vocabulary),
            titles=postings((((1.0, title),) for title in titles), self._vocabulary),
            vectors=embed([embedded_text(node) for node in nodes]),
            up=np.asarray(up, np.int32),
            modified=np.fromiter(map(_seconds, nodes), np.float64, len(nodes)),
        )

    def _settle(self, shard: Shard, documents: Iterable[Document]) -> None:
        self._shards.append(shard)
        at = 0
        for document in documents:
            self._homes[document] = shard, at
            at += len(document.nodes)

    def _tidy(self) -> None:
        """Merge from the end what is no longer much larger than what follows it, and what is mostly gone."""
        alive = dict.fromkeys(map(id, self._shards), 0)
        for document, (shard, _) in self._homes.items():
            alive[id(shard)] += len(document.nodes)
        self._shards = [shard for shard in self._shards if alive[id(shard)]]
        at = len(self._shards) - 1
        while at >= 0:
            shard = self._shards[at]
            size = alive[id(shard)]
            below = at > 0 and alive[id(self._shards[at - 1])] < _STEP * size
            if below or size * 2 < len(shard):
                pieces = self._shards[at - 1 if below else at : at + 1]
                whole = self._merged(pieces)
                alive[id(whole)] = len(whole)
                at -= below
                self._shards[at : at + len(pieces)] = [whole]
                continue
            at -= 1

    def _merged(self, shards: Sequence[Shard]) -> Shard:
        to = {id(shard): np.full(len(shard), -1, np.int32) for shard in shards}
        homes: dict[Document, int] = {}
        row = 0
        for document, (shard, first) in self._homes.items():
            if id(shard) in to:
                count = len(document.nodes)
                to[id(shard)][first : first + count] = np.arange(row, row + count, dtype=np.int32)
                homes[document] = row
                row += count
        terms = len(self._vocabulary)
        places = [to[id(shard)] for shard in shards]
        whole = Shard(
            texts=merged([(shard.texts, to[id(shard)]) for shard in shards], terms),
            titles=merged([(shard.titles, to[id(shard)]) for shard in shards], terms),
            vectors=_moved([shard.vectors for shard in shards], places, row),
            up=_moved([shard.up for shard in shards], places, row),
            modified=_moved([shard.modified for shard in shards], places, row),
        )
        self._homes |= {document: (whole, at) for document, at in homes.items()}
        return whole

    def _taken(self, documents: tuple[Document, ...]) -> Snapshot:
        sizes = [len(document.nodes) for document in documents]
        count = sum(sizes)
        shards = self._shards
        starts = list(accumulate(map(len, shards), initial=0))
        first_rows = dict(zip(map(id, shards), starts, strict=False))
        homes = (self._homes[document] for document in documents)
        firsts = [first_rows[id(shard)] + first for shard, first in homes]
        before = np.cumsum([0, *sizes])[:-1]
        rows = np.arange(count) + np.repeat(np.asarray(firsts, np.intp) - before, sizes)
        there = np.zeros(starts[-1], np.bool_)
        there[rows] = True
        kept = [there[first : first + len(shard)] for shard, first in zip(shards, starts, strict=False)]
        left = [None if piece.all() else piece for piece in kept]
        document_of = np.repeat(np.arange(len(documents), dtype=np.int32), sizes)
        document_of_row = np.zeros(len(there), np.int32)
        document_of_row[rows] = document_of
        texts = Field(list(zip((shard.texts for shard in shards), left, strict=True)))
        up = np.concatenate([_NO_ROWS, *(shard.up for shard in shards)])[rows]
        below = np.flatnonzero(up)
        parents = below - up[below]
        modified = np.concatenate([_NO_ROWS, *(shard.modified for shard in shards)])[rows]
        age = ((modified.max() if count else 0) - modified) / _DAY_SECONDS
        return Snapshot(
            documents=documents,
            vocabulary=self._vocabulary,
            rows=rows,
            texts=texts,
            titles=Field(list(zip((shard.titles for shard in shards), left, strict=True))),
            files=Groups(texts, document_of_row, len(documents)),
            vectors=tuple(shard.vectors for shard in shards),
            document_of=document_of,
            below=below,
            parents=parents,
            siblings=np.bincount(parents, minlength=count)[parents],
            age_days=age.astype(np.float32),
        )


def embedded_text(node: Node) -> str:
    """What of a node is embedded: its title and its own text."""
    return f"{node.entry.title}\n{node.content}"[:LONGEST_EMBEDDED]


def _moved(arrays: Sequence[NDArray[_Number]], places: Sequence[Places], count: int) -> NDArray[_Number]:
    """Rows of several arrays at their places in one."""
    whole = np.zeros((count, *arrays[0].shape[1:]), arrays[0].dtype)
    for array, to in zip(arrays, places, strict=True):
        stays = to >= 0
        whole[to[stays]] = array[stays]
    return whole


def _up(documents: Iterable[Document]) -> list[int]:
    found: list[int] = []
    for document in documents:
        rows = {id(node): row for row, node in enumerate(document.nodes)}
        found.extend(
            row - rows[id(node.parent)] if node.parent else 0 for row, node in enumerate(document.nodes)
        )
    return found


def _above(at: int, titles: Sequence[list[int]], up: Sequence[int]) -> list[int]:
    """The terms of the titles that a node stands in, each once."""
    found: dict[int, None] = {}
    for _ in range(_NEAREST_ANCESTORS):
        if not up[at]:
            break
        at -= up[at]
        found.update(dict.fromkeys(titles[at]))
    return list(found)


def _seconds(node: Node) -> float:
    return (node.modified.replace(tzinfo=None) - _EPOCH).total_seconds()
