"""A forest: all nodes of a memory in one row, and what is known of each in columns, which is quick."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from foveate.memory.nodes import Document, Node, to_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray


SHORT_FILE_CHARS = 6000
"""A file that is no longer, about a page and a half, is one thing to a reader."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NodeColumns:
    """What is known of the nodes of a document; places are counted from its first node."""

    parent: "NDArray[np.int32]"
    """-1 for the document itself."""
    depth: "NDArray[np.int32]"
    end: "NDArray[np.int32]"
    """Where what stands below a node ends."""
    chars: "NDArray[np.int32]"
    """Of its own content."""
    modified: "NDArray[np.float64]"


def build_columns(document: Document) -> NodeColumns:
    """What is known of the nodes of `document`."""
    nodes = document.nodes
    indexes = {id(node): index for index, node in enumerate(nodes)}
    parent = [-1 if node.parent is None else indexes[id(node.parent)] for node in nodes]
    depth, end = [0] * len(nodes), list(range(1, len(nodes) + 1))
    for index, above in enumerate(parent):
        depth[index] = depth[above] + 1 if above >= 0 else 0
    for index in range(len(nodes) - 1, 0, -1):
        end[parent[index]] = max(end[parent[index]], end[index])
    return NodeColumns(
        parent=np.array(parent, np.int32),
        depth=np.array(depth, np.int32),
        end=np.array(end, np.int32),
        chars=np.array([node.entry.end - node.entry.content for node in nodes], np.int32),
        modified=np.array([to_seconds(node.modified) for node in nodes], np.float64),
    )


@dataclass(frozen=True, eq=False)
class Forest:
    """The nodes of all documents, one after the other."""

    documents: tuple[Document, ...]
    _columns: dict[int, NodeColumns] = field(default_factory=dict, repr=False)

    @classmethod
    def from_documents(cls, documents: Iterable[Document], previous: "Forest | None" = None) -> "Forest":
        """The forest of `documents`; what `before` knows of those that were in it is not looked at again."""
        documents = tuple(documents)
        known = (
            previous._columns if previous else {}
        )  # documents of `before` are alive, so their ids are theirs
        return cls(documents, {id(each): known.get(id(each)) or build_columns(each) for each in documents})

    @cached_property
    def nodes(self) -> list[Node]:
        """Every node, in document order."""
        return [node for document in self.documents for node in document.nodes]

    @cached_property
    def starts(self) -> "NDArray[np.int64]":
        """Where each document begins, and at the end where the last one ends."""
        return np.cumsum([0, *(len(document.nodes) for document in self.documents)])

    @cached_property
    def document_index(self) -> "NDArray[np.int64]":
        """In which document each node stands."""
        return np.repeat(np.arange(len(self.documents)), np.diff(self.starts))

    @cached_property
    def parent(self) -> "NDArray[np.int64]":
        """In what each node stands; -1 for a document."""
        inside = self._concatenate([each.parent for each in self._all_columns()])
        return np.where(inside < 0, -1, inside + self.starts[self.document_index])

    @cached_property
    def end(self) -> "NDArray[np.int64]":
        """Where what stands below each node ends."""
        return self._concatenate([each.end for each in self._all_columns()]) + self.starts[self.document_index]

    @cached_property
    def depth(self) -> "NDArray[np.int64]":
        """How many nodes each stands in."""
        return self._concatenate([each.depth for each in self._all_columns()])

    @cached_property
    def chars(self) -> "NDArray[np.int64]":
        """How long the content of each is."""
        return self._concatenate([each.chars for each in self._all_columns()])

    @cached_property
    def piece_starts(self) -> "NDArray[np.int64]":
        """Where each piece begins that is read as one thing: a short file, or a node of a longer one."""
        if not len(self.starts[:-1]):
            return np.zeros(0, np.int64)
        chars = np.array([len(document.outline.text) for document in self.documents])
        is_long = np.repeat(chars > SHORT_FILE_CHARS, np.diff(self.starts))
        is_long[self.starts[:-1][np.diff(self.starts) > 0]] = True
        return np.flatnonzero(is_long)

    @cached_property
    def modified(self) -> "NDArray[np.float64]":
        """When each was changed, in seconds."""
        parts = [each.modified for each in self._all_columns()]
        return np.concatenate(parts) if parts else np.zeros(0)

    @cached_property
    def newest_first(self) -> "NDArray[np.int64]":
        """All nodes: the least deep first, of equals the newest, of those the first."""
        return np.lexsort((-self.modified, self.depth))

    def index_of(self, node: Node) -> int | None:
        """Where a node stands in the row; None where its document is not one of these."""
        for document, start in zip(self.documents, self.starts.tolist(), strict=False):
            if document is node.document:
                return int(start) + next(i for i, each in enumerate(document.nodes) if each is node)
        return None

    def distances(self, index: int) -> "tuple[int, NDArray[np.int64]]":
        """Where the document of a node begins, and how far in the tree each of its nodes is from that node."""
        document = self.document_index[index]
        start, end = int(self.starts[document]), int(self.starts[document + 1])
        depth = self.depth[start:end]
        found = depth + self.depth[index]
        for above in [*self.ancestors(index), index]:
            branch = slice(above - start, int(self.end[above]) - start)
            found[branch] = depth[branch] + self.depth[index] - 2 * self.depth[above]
        return start, found

    def ancestors(self, index: int) -> list[int]:
        """In what a node stands, the document first."""
        found: list[int] = []
        while (index := int(self.parent[index])) >= 0:
            found.append(index)
        return found[::-1]

    def _all_columns(self) -> list[NodeColumns]:
        return [self._columns[id(document)] for document in self.documents]

    @staticmethod
    def _concatenate(parts: "Sequence[NDArray[np.int32]]") -> "NDArray[np.int64]":
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
