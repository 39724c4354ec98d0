"""The nodes of a memory as relevance needs them, kept from one question to the next.

Nodes stand in shards. What is new makes a small shard, what is gone is marked as gone, and a shard that is not
much larger than the one after it is merged with it: all in all a node is moved a few times, however the files
change. What is scored is a snapshot, which nobody changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import is_
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foveate.memory.lexical import Field, Floats, Places, Postings, Vocabulary, merged, postings
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
    texts: Field
    titles: Field
    vectors: tuple[tuple[Floats, Places], ...]
    up: Places
    document_of: Places
    modified: NDArray[np.float64]

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.up)

    def similarity(self, vector: Floats) -> Floats:
        """The cosine of every node to a vector."""
        found = np.zeros(len(self), np.float32)
        for kept, to in self.vectors:
            stays = to >= 0
            found[to[stays]] = (kept @ vector)[stays]
        return found

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
        known = self._snapshot
        if known and len(known.documents) == len(documents) and all(map(is_, known.documents, documents)):
            return known
        new = [document for document in dict.fromkeys(documents) if document not in self._homes]
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
        learn = self._vocabulary.learn
        titles = [learn(node.entry.title) for node in nodes]
        up = _up(documents)
        texts = [
            ((1.0, title), (1.0, learn(node.content)), (self._ancestor_weight, _above(at, titles, up)))
            for at, (node, title) in enumerate(zip(nodes, titles, strict=True))
        ]
        return Shard(
            texts=postings(texts, len(self._vocabulary)),
            titles=postings((((1.0, title),) for title in titles), len(self._vocabulary)),
            vectors=embed([embedded_text(node) for node in nodes]),
            up=up,
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
        to = {id(shard): np.full(len(shard), -1, np.int32) for shard in self._shards}
        at = 0
        for document in documents:
            count = len(document.nodes)
            if count:
                shard, first = self._homes[document]
                to[id(shard)][first : first + count] = np.arange(at, at + count, dtype=np.int32)
                at += count
        shards = self._shards
        places = [to[id(shard)] for shard in shards]
        return Snapshot(
            documents=documents,
            vocabulary=self._vocabulary,
            texts=Field.of([(shard.texts, to[id(shard)]) for shard in shards], at),
            titles=Field.of([(shard.titles, to[id(shard)]) for shard in shards], at),
            vectors=tuple((shard.vectors, to[id(shard)]) for shard in shards),
            document_of=np.repeat(
                np.arange(len(documents), dtype=np.int32), [len(document.nodes) for document in documents]
            ),
            up=_moved([shard.up for shard in shards] or [np.zeros(0, np.int32)], places, at),
            modified=_moved([shard.modified for shard in shards] or [np.zeros(0)], places, at),
        )


def embedded_text(node: Node) -> str:
    """What of a node is embedded: its title and its own text."""
    return f"{node.entry.title}\n{node.content}"[:LONGEST_EMBEDDED]


def _moved(arrays: Sequence[NDArray[_Number]], places: Sequence[Places], count: int) -> NDArray[_Number]:
    """Rows of several arrays at their places in one."""
    whole = np.zeros((count, *arrays[0].shape[1:]), arrays[0].dtype)
    for array, to in zip(arrays, places, strict=False):
        stays = to >= 0
        whole[to[stays]] = array[stays]
    return whole


def _up(documents: Iterable[Document]) -> Places:
    found: list[int] = []
    for document in documents:
        rows = {id(node): row for row, node in enumerate(document.nodes)}
        found.extend(
            row - rows[id(node.parent)] if node.parent else 0 for row, node in enumerate(document.nodes)
        )
    return np.asarray(found, np.int32)


def _above(at: int, titles: Sequence[list[int]], up: Places) -> list[int]:
    """The terms of the titles that a node stands in, each once."""
    found: dict[int, None] = {}
    for _ in range(_NEAREST_ANCESTORS):
        if not up[at]:
            break
        at -= int(up[at])
        found.update(dict.fromkeys(titles[at]))
    return list(found)


def _seconds(node: Node) -> float:
    return (node.modified.replace(tzinfo=None) - _EPOCH).total_seconds()
