"""All nodes of a memory in document order, with their properties as NumPy columns for speed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from foveate.memory.nodes import Node, NoteDocument, to_timestamp

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHORT_FILE_CHARS = 6000
"""A file up to this length, about a page and a half, is shown as a unit."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NodeColumns:
    """Columns for the nodes of one document; indexes count from its first node."""

    parent: "NDArray[np.int32]"
    """-1 for the document itself."""
    depth: "NDArray[np.int32]"
    end: "NDArray[np.int32]"
    """Index after the last descendant."""
    chars: "NDArray[np.int32]"
    """Length of the node's own content."""
    modified: "NDArray[np.float64]"


def build_columns(document: NoteDocument) -> NodeColumns:
    nodes = document.nodes
    indexes = {id(node): index for index, node in enumerate(nodes)}
    parent = [-1 if node.parent is None else indexes[id(node.parent)] for node in nodes]
    depth, end = [0] * len(nodes), list(range(1, len(nodes) + 1))
    for index, parent_index in enumerate(parent):
        depth[index] = depth[parent_index] + 1 if parent_index >= 0 else 0
    for index in range(len(nodes) - 1, 0, -1):
        end[parent[index]] = max(end[parent[index]], end[index])
    return NodeColumns(
        parent=np.array(parent, np.int32),
        depth=np.array(depth, np.int32),
        end=np.array(end, np.int32),
        chars=np.array([node.entry.end - node.entry.content for node in nodes], np.int32),
        modified=np.array([to_timestamp(node.modified) for node in nodes], np.float64),
    )


# Tokenizers take three digits as a token.
MIN_SHORT_ID_CHARS = 6
_SHORT_ID_STEP = 3


def shorten_ids(nodes: Sequence[Node]) -> list[str]:
    """Shorten generated ids as far as they stay unique. Ids from a property `ID` stay whole."""
    short_ids = [node.id for node in nodes]
    remaining = [index for index, node in enumerate(nodes) if node.has_generated_id]
    size = MIN_SHORT_ID_CHARS
    while remaining:
        starts = Counter(node.id[:size] for node in nodes)
        for index in remaining:
            if starts[nodes[index].id[:size]] == 1:
                short_ids[index] = nodes[index].id[:size]
        remaining = [
            index for index in remaining if starts[nodes[index].id[:size]] > 1 and size < len(nodes[index].id)
        ]
        size += _SHORT_ID_STEP
    return short_ids


@dataclass(frozen=True, eq=False)
class Forest:
    documents: tuple[NoteDocument, ...]
    _columns: dict[int, NodeColumns] = field(default_factory=dict, repr=False)

    @classmethod
    def from_documents(cls, documents: Iterable[NoteDocument], previous: "Forest | None" = None) -> "Forest":
        """Build the forest of `documents`, reusing the columns that `previous` has."""
        documents = tuple(documents)
        known_columns = (
            previous._columns if previous else {}
        )  # `previous` keeps its documents alive, so their ids are unique
        return cls(
            documents,
            {
                id(document): known_columns.get(id(document)) or build_columns(document)
                for document in documents
            },
        )

    @cached_property
    def nodes(self) -> list[Node]:
        return [node for document in self.documents for node in document.nodes]

    @cached_property
    def short_ids(self) -> list[str]:
        """The id of each node as views in Markdown show it: the shortest unique start of a generated id."""
        return shorten_ids(self.nodes)

    @cached_property
    def starts(self) -> "NDArray[np.int64]":
        """Index of each document's first node, and at the end the number of nodes."""
        return np.cumsum([0, *(len(document.nodes) for document in self.documents)])

    @cached_property
    def document_index(self) -> "NDArray[np.int64]":
        return np.repeat(np.arange(len(self.documents)), np.diff(self.starts))

    @cached_property
    def parent(self) -> "NDArray[np.int64]":
        """Index of each node's parent; -1 for a document."""
        inside = self._concatenate([columns.parent for columns in self._all_columns()])
        return np.where(inside < 0, -1, inside + self.starts[self.document_index])

    @cached_property
    def end(self) -> "NDArray[np.int64]":
        """Index after each node's last descendant."""
        return (
            self._concatenate([columns.end for columns in self._all_columns()])
            + self.starts[self.document_index]
        )

    @cached_property
    def depth(self) -> "NDArray[np.int64]":
        return self._concatenate([columns.depth for columns in self._all_columns()])

    @cached_property
    def chars(self) -> "NDArray[np.int64]":
        """Length of each node's own content."""
        return self._concatenate([columns.chars for columns in self._all_columns()])

    @cached_property
    def piece_starts(self) -> "NDArray[np.int64]":
        """Index of each piece that is shown as a unit: a short file, or a node of a longer one."""
        if not len(self.starts[:-1]):
            return np.zeros(0, np.int64)
        chars = np.array([len(document.outline.text) for document in self.documents])
        is_long = np.repeat(chars > SHORT_FILE_CHARS, np.diff(self.starts))
        is_long[self.starts[:-1][np.diff(self.starts) > 0]] = True
        return np.flatnonzero(is_long)

    @cached_property
    def modified(self) -> "NDArray[np.float64]":
        """Modification time of each node, in seconds."""
        parts = [columns.modified for columns in self._all_columns()]
        return np.concatenate(parts) if parts else np.zeros(0)

    @cached_property
    def newest_first(self) -> "NDArray[np.int64]":
        """All nodes by depth, then the newest first, then in document order."""
        return np.lexsort((-self.modified, self.depth))

    def find_index(self, node: Node) -> int | None:
        """The index of a node; None if its document is not in the forest."""
        for document, start in zip(self.documents, self.starts.tolist(), strict=False):
            if document is node.document:
                return int(start) + next(i for i, candidate in enumerate(document.nodes) if candidate is node)
        return None

    def distances(self, index: int) -> "tuple[int, NDArray[np.int64]]":
        """Start of the document of a node, and the distance in the tree of each of its nodes to that node."""
        document = self.document_index[index]
        start, end = int(self.starts[document]), int(self.starts[document + 1])
        depth = self.depth[start:end]
        distances = depth + self.depth[index]
        for ancestor in [*self.ancestors(index), index]:
            branch = slice(ancestor - start, int(self.end[ancestor]) - start)
            distances[branch] = depth[branch] + self.depth[index] - 2 * self.depth[ancestor]
        return start, distances

    def ancestors(self, index: int) -> list[int]:
        """Indexes of a node's ancestors, the document first."""
        indexes: list[int] = []
        while (index := int(self.parent[index])) >= 0:
            indexes.append(index)
        return indexes[::-1]

    def _all_columns(self) -> list[NodeColumns]:
        return [self._columns[id(document)] for document in self.documents]

    @staticmethod
    def _concatenate(parts: "Sequence[NDArray[np.int32]]") -> "NDArray[np.int64]":
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
