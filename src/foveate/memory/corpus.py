"""The nodes of a memory as relevance needs them, kept from one question to the next.

Nodes stand in shards. What is new makes a small shard, what is gone is marked as gone, and a shard that is not
much larger than the one after it is merged with it, up to a size that takes little room to make: all in all a
node is moved a few times, however the files change. What is scored is a snapshot, which nobody changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import is_
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foveate.memory.lexical import Field, Floats, Places, Postings, Vocabulary, grouped, merged, postings
from foveate.memory.nodes import Document, Node, seconds

Embed = Callable[[Sequence[str]], Floats]
# Texts are cut here before they are embedded: what a node is about stands at its beginning.
LONGEST_EMBEDDED = 4_000
# A shard this many times larger than the one after it is left alone.
_STEP = 4
# No more nodes are put in a shard at a time, but for those of one file: what it takes to make one is several
# times what it takes to have it, and a process does not give all of that back.
MOST_ROWS = 65_536
# What a node stands in far above says little of it, and 100,000 nodes may be 2,000 levels deep.
_NEAREST_ANCESTORS = 6
_Number = TypeVar("_Number", bound=np.generic)
_DAY_SECONDS = 86_400.0
_NO_ROWS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Shard:
    """Nodes, one row each."""

    texts: Postings
    titles: Postings
    files: Postings
    """Those of all texts of a document, one row for each document."""
    vectors: Floats
    up: Places
    """How many rows above a node its parent stands; 0 for a file."""
    modified: NDArray[np.float64]

    def __len__(self) -> int:
        """How many nodes it has room for, with those that are gone."""
        return len(self.up)


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """Where a document stands: its nodes in a shard from a row on, and itself among the files of that."""

    shard: Shard
    row: int
    file: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Snapshot:
    """The nodes of some documents, one after the other, as they are at one time."""

    documents: tuple[Document, ...]
    vocabulary: Vocabulary
    rows: NDArray[np.intp]
    """Where a node stands among the rows of all shards, which are in an order of their own."""
    file_rows: NDArray[np.intp]
    """And where a document stands among their files."""
    sizes: NDArray[np.intp]
    """How many nodes each document has."""
    texts: Field
    titles: Field
    files: Field
    vectors: tuple[Floats, ...]
    parents: NDArray[np.intp]
    """Of each node; a file is its own."""
    below: Floats
    """1 for a node that stands in another, 0 for a file."""
    per_child: Floats
    """1 divided by the number of children; 0 for none."""
    youth: Floats
    """1 for the newest, half of it after the half-life."""

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.rows)

    def similarity(self, vector: Floats) -> Floats:
        """The cosine of every node to a vector."""
        # Not `@`: its threads wait for each other, which on a busy machine takes ten times as long.
        found = [
            np.einsum("ij,j->i", vectors, vector)
            if vectors.shape[1] == len(vector)
            else np.zeros(len(vectors), np.float32)
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

    def __init__(self, *, ancestor_weight: float, half_life_days: float, most_rows: int = MOST_ROWS) -> None:
        self._ancestor_weight = ancestor_weight
        self._half_life_days = half_life_days
        self._most_rows = most_rows
        self._vocabulary = Vocabulary()
        self._shards: list[Shard] = []
        self._homes: dict[Document, Home] = {}
        self._asked: Sequence[Document] = ()
        self._snapshot: Snapshot | None = None

    def of(self, documents: Sequence[Document], embed: Embed) -> Snapshot:
        """The snapshot of `documents`, made from what is known of them; only new ones are looked at."""
        known = self._snapshot
        if known and len(self._asked) == len(documents) and all(map(is_, self._asked, documents)):
            return known
        there = {document: None for document in documents if document.nodes}
        new = _apart((document for document in there if document not in self._homes), self._most_rows)
        made = [(self._made(some, embed), some) for some in new]  # may fail: nothing has been changed so far
        self._homes = {document: home for document, home in self._homes.items() if document in there}
        for shard, some in made:
            self._shards.append(shard)
            self._settle(shard, some)
        self._tidy()
        self._asked = tuple(documents)
        self._snapshot = self._taken(tuple(document for document in documents if document.nodes))
        return self._snapshot

    def _made(self, documents: Sequence[Document], embed: Embed) -> Shard:
        nodes = [node for document in documents for node in document.nodes]
        learn, ancestor_weight = self._vocabulary.learn, self._ancestor_weight
        titles = [learn(node.entry.title) for node in nodes]
        up = _up(documents)
        texts = (
            ((1.0, title), (1.0, learn(node.said)), (ancestor_weight, _above(at, titles, up)))
            for at, (node, title) in enumerate(zip(nodes, titles, strict=True))
        )
        modified = {when: seconds(when) for when in {node.modified for node in nodes}}
        of_texts = postings(texts, self._vocabulary)
        sizes = [len(document.nodes) for document in documents]
        return Shard(
            texts=of_texts,
            titles=postings((((1.0, title),) for title in titles), self._vocabulary),
            files=grouped(of_texts, np.repeat(np.arange(len(sizes), dtype=np.int32), sizes), len(sizes)),
            vectors=embed([embedded_text(node) for node in nodes]),
            up=np.asarray(up, np.int32),
            modified=np.fromiter((modified[node.modified] for node in nodes), np.float64, len(nodes)),
        )

    def _settle(self, shard: Shard, documents: Iterable[Document]) -> None:
        at = 0
        for number, document in enumerate(documents):
            self._homes[document] = Home(shard, at, number)
            at += len(document.nodes)

    def _tidy(self) -> None:
        """Merge from the end what is not much larger than what follows it; what is mostly gone, by itself."""
        alive = dict.fromkeys(map(id, self._shards), 0)
        for document, home in self._homes.items():
            alive[id(home.shard)] += len(document.nodes)
        self._shards = [shard for shard in self._shards if alive[id(shard)]]
        at = len(self._shards) - 1
        while at >= 0:
            shard = self._shards[at]
            size = alive[id(shard)]
            before = alive[id(self._shards[at - 1])] if at else 0
            below = 0 < before < _STEP * size and before + size <= self._most_rows
            if below or size * 2 < len(shard):
                pieces = self._shards[at - 1 if below else at : at + 1]
                whole = self._merged(pieces)
                alive[id(whole)] = len(whole)
                at -= below
                self._shards[at : at + len(pieces)] = [whole]
                continue
            at -= 1

    def _merged(self, shards: Sequence[Shard]) -> Shard:
        rows = {id(shard): np.full(len(shard), -1, np.int32) for shard in shards}
        files = {id(shard): np.full(len(shard.files.lengths), -1, np.int32) for shard in shards}
        stay = [(document, home) for document, home in self._homes.items() if id(home.shard) in rows]
        row = 0
        for number, (document, home) in enumerate(stay):
            count = len(document.nodes)
            rows[id(home.shard)][home.row : home.row + count] = np.arange(row, row + count, dtype=np.int32)
            files[id(home.shard)][home.file] = number
            row += count
        terms = len(self._vocabulary)
        to = list(rows.values())
        whole = Shard(
            texts=merged([(shard.texts, rows[id(shard)]) for shard in shards], terms),
            titles=merged([(shard.titles, rows[id(shard)]) for shard in shards], terms),
            files=merged([(shard.files, files[id(shard)]) for shard in shards], terms),
            vectors=_moved([shard.vectors for shard in shards], to, row),
            up=_moved([shard.up for shard in shards], to, row),
            modified=_moved([shard.modified for shard in shards], to, row),
        )
        self._settle(whole, [document for document, _ in stay])
        return whole

    def _taken(self, documents: tuple[Document, ...]) -> Snapshot:
        shards = self._shards
        homes = [self._homes[document] for document in documents]
        sizes = np.fromiter((len(document.nodes) for document in documents), np.intp, len(documents))
        count = int(sizes.sum())
        row_starts = dict(zip(map(id, shards), accumulate(map(len, shards), initial=0), strict=False))
        file_starts = accumulate((len(shard.files.lengths) for shard in shards), initial=0)
        first_files = dict(zip(map(id, shards), file_starts, strict=False))
        firsts = np.asarray([row_starts[id(home.shard)] + home.row for home in homes], np.intp)
        rows = np.arange(count) + np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes)
        file_rows = np.asarray([first_files[id(home.shard)] + home.file for home in homes], np.intp)
        up = np.concatenate([_NO_ROWS, *(shard.up for shard in shards)])[rows]
        parents = np.arange(count) - up
        children = np.bincount(parents, up > 0, minlength=count)
        modified = np.concatenate([_NO_ROWS, *(shard.modified for shard in shards)])[rows]
        age_days = ((modified.max() if count else 0) - modified) / _DAY_SECONDS
        return Snapshot(
            documents=documents,
            vocabulary=self._vocabulary,
            rows=rows,
            file_rows=file_rows,
            sizes=sizes,
            texts=_field([shard.texts for shard in shards], rows),
            titles=_field([shard.titles for shard in shards], rows),
            files=_field([shard.files for shard in shards], file_rows),
            vectors=tuple(shard.vectors for shard in shards),
            parents=parents,
            below=(up > 0).astype(np.float32),
            per_child=np.divide(1, children, out=np.zeros(count), where=children > 0).astype(np.float32),
            youth=np.exp2(age_days / -self._half_life_days).astype(np.float32),
        )


def _field(pieces: Sequence[Postings], rows: NDArray[np.intp]) -> Field:
    """The field of those texts that stand at `rows` of all."""
    starts = np.cumsum([0, *(len(piece.lengths) for piece in pieces)])
    there = np.zeros(starts[-1], np.bool_)
    there[rows] = True
    kept = np.split(there, starts[1:-1]) if pieces else []
    return Field([(piece, None if left.all() else left) for piece, left in zip(pieces, kept, strict=True)])


def embedded_text(node: Node) -> str:
    """What of a node is embedded: its title and its own text."""
    return f"{node.entry.title}\n{node.said}"[:LONGEST_EMBEDDED]


def _apart(documents: Iterable[Document], most_rows: int) -> list[list[Document]]:
    """Documents, as many together as one shard should have."""
    found: list[list[Document]] = []
    room = 0
    for document in documents:
        if len(document.nodes) > room:
            found.append([])
            room = most_rows
        found[-1].append(document)
        room -= len(document.nodes)
    return found


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
