"""A forest: all nodes of a memory in one row, and what is known of each in columns, which is quick."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from foveate.memory.nodes import Document, Node, seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray


SHORT_CHARS = 6000
"""A file that is no longer, about a page and a half, is one thing to a reader."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Columns:
    """What is known of the nodes of a document; places are counted from its first node."""

    parent: "NDArray[np.int32]"
    """-1 for the document itself."""
    depth: "NDArray[np.int32]"
    end: "NDArray[np.int32]"
    """Where what stands below a node ends."""
    chars: "NDArray[np.int32]"
    """Of its own content."""
    modified: "NDArray[np.float64]"


def columns(document: Document) -> Columns:
    """What is known of the nodes of `document`."""
    nodes = document.nodes
    places = {id(node): place for place, node in enumerate(nodes)}
    parent = [-1 if node.parent is None else places[id(node.parent)] for node in nodes]
    depth, end = [0] * len(nodes), list(range(1, len(nodes) + 1))
    for place, above in enumerate(parent):
        depth[place] = depth[above] + 1 if above >= 0 else 0
    for place in range(len(nodes) - 1, 0, -1):
        end[parent[place]] = max(end[parent[place]], end[place])
    return Columns(
        parent=np.array(parent, np.int32),
        depth=np.array(depth, np.int32),
        end=np.array(end, np.int32),
        chars=np.array([node.entry.end - node.entry.content for node in nodes], np.int32),
        modified=np.array([seconds(node.modified) for node in nodes], np.float64),
    )


@dataclass(frozen=True, eq=False)
class Forest:
    """The nodes of all documents, one after the other."""

    documents: tuple[Document, ...]
    _columns: dict[int, Columns] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, documents: Iterable[Document], before: "Forest | None" = None) -> "Forest":
        """The forest of `documents`; what `before` knows of those that were in it is not looked at again."""
        documents = tuple(documents)
        known = before._columns if before else {}  # documents of `before` are alive, so their ids are theirs
        return cls(documents, {id(each): known.get(id(each)) or columns(each) for each in documents})

    @cached_property
    def nodes(self) -> list[Node]:
        """Every node, in document order."""
        return [node for document in self.documents for node in document.nodes]

    @cached_property
    def starts(self) -> "NDArray[np.int64]":
        """Where each document begins, and at the end where the last one ends."""
        return np.cumsum([0, *(len(document.nodes) for document in self.documents)])

    @cached_property
    def document_of(self) -> "NDArray[np.int64]":
        """In which document each node stands."""
        return np.repeat(np.arange(len(self.documents)), np.diff(self.starts))

    @cached_property
    def parent(self) -> "NDArray[np.int64]":
        """In what each node stands; -1 for a document."""
        inside = self._joined([each.parent for each in self._each()])
        return np.where(inside < 0, -1, inside + self.starts[self.document_of])

    @cached_property
    def end(self) -> "NDArray[np.int64]":
        """Where what stands below each node ends."""
        return self._joined([each.end for each in self._each()]) + self.starts[self.document_of]

    @cached_property
    def depth(self) -> "NDArray[np.int64]":
        """How many nodes each stands in."""
        return self._joined([each.depth for each in self._each()])

    @cached_property
    def chars(self) -> "NDArray[np.int64]":
        """How long the content of each is."""
        return self._joined([each.chars for each in self._each()])

    @cached_property
    def pieces(self) -> "NDArray[np.int64]":
        """Where each piece begins that is read as one thing: a short file, or a node of a longer one."""
        if not len(self.starts[:-1]):
            return np.zeros(0, np.int64)
        chars = np.array([len(document.outline.text) for document in self.documents])
        is_long = np.repeat(chars > SHORT_CHARS, np.diff(self.starts))
        is_long[self.starts[:-1][np.diff(self.starts) > 0]] = True
        return np.flatnonzero(is_long)

    @cached_property
    def modified(self) -> "NDArray[np.float64]":
        """When each was changed, in seconds."""
        parts = [each.modified for each in self._each()]
        return np.concatenate(parts) if parts else np.zeros(0)

    @cached_property
    def newest_first(self) -> "NDArray[np.int64]":
        """All nodes: the least deep first, of equals the newest, of those the first."""
        return np.lexsort((-self.modified, self.depth))

    def place(self, node: Node) -> int | None:
        """Where a node stands in the row; None where its document is not one of these."""
        for document, start in zip(self.documents, self.starts.tolist(), strict=False):
            if document is node.document:
                return int(start) + next(i for i, each in enumerate(document.nodes) if each is node)
        return None

    def distances(self, place: int) -> "tuple[int, NDArray[np.int64]]":
        """Where the document of a node begins, and how far in the tree each of its nodes is from that node."""
        document = self.document_of[place]
        start, end = int(self.starts[document]), int(self.starts[document + 1])
        depth = self.depth[start:end]
        found = depth + self.depth[place]
        for above in [*self.path(place), place]:
            branch = slice(above - start, int(self.end[above]) - start)
            found[branch] = depth[branch] + self.depth[place] - 2 * self.depth[above]
        return start, found

    def path(self, place: int) -> list[int]:
        """In what a node stands, the document first."""
        found: list[int] = []
        while (place := int(self.parent[place])) >= 0:
            found.append(place)
        return found[::-1]

    def _each(self) -> list[Columns]:
        return [self._columns[id(document)] for document in self.documents]

    @staticmethod
    def _joined(parts: "Sequence[NDArray[np.int32]]") -> "NDArray[np.int64]":
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
