"""All nodes of a memory in document order, with their properties as columns.

Columns are arrays of Python's own, which NumPy can read without a copy: only searching needs NumPy.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal

from foveate.memory.nodes import Node, NoteDocument, to_timestamp

SHORT_FILE_CHARS = 6000
"""A file up to this length, about a page and a half, is shown as a unit."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NodeColumns:
    """Columns for the nodes of one document; indexes count from its first node."""

    parent: "array[int]"
    """-1 for the document itself."""
    depth: "array[int]"
    end: "array[int]"
    """Index after the last descendant."""
    chars: "array[int]"
    """Length of the node's own content."""
    modified: "array[float]"


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
        parent=array("i", parent),
        depth=array("i", depth),
        end=array("i", end),
        chars=array("i", [node.entry.end - node.entry.content for node in nodes]),
        modified=array("d", [to_timestamp(node.modified) for node in nodes]),
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
    def starts(self) -> "array[int]":
        """Index of each document's first node, and at the end the number of nodes."""
        return array("q", accumulate((len(document.nodes) for document in self.documents), initial=0))

    @cached_property
    def document_index(self) -> "array[int]":
        indexes = array("q")
        for number, document in enumerate(self.documents):
            indexes.extend([number] * len(document.nodes))
        return indexes

    @cached_property
    def parent(self) -> "array[int]":
        """Index of each node's parent; -1 for a document."""
        indexes = array("q")
        for start, columns in self._all_columns():
            if columns.parent:
                indexes.append(-1)  # the document itself
                indexes.extend(map(start.__add__, columns.parent[1:]))
        return indexes

    @cached_property
    def end(self) -> "array[int]":
        """Index after each node's last descendant."""
        indexes = array("q")
        for start, columns in self._all_columns():
            indexes.extend(map(start.__add__, columns.end))
        return indexes

    @cached_property
    def depth(self) -> "array[int]":
        return _concatenate("i", (columns.depth for _, columns in self._all_columns()))

    @cached_property
    def chars(self) -> "array[int]":
        """Length of each node's own content."""
        return _concatenate("i", (columns.chars for _, columns in self._all_columns()))

    @cached_property
    def piece_starts(self) -> "array[int]":
        """Index of each piece that is shown as a unit: a short file, or a node of a longer one."""
        indexes = array("q")
        for document, (start, end) in zip(self.documents, pairwise(self.starts), strict=True):
            is_long = len(document.outline.text) > SHORT_FILE_CHARS
            indexes.extend(range(start, end if is_long else min(start + 1, end)))
        return indexes

    @cached_property
    def modified(self) -> "array[float]":
        """Modification time of each node, in seconds."""
        return _concatenate("d", (columns.modified for _, columns in self._all_columns()))

    @cached_property
    def newest_first(self) -> "array[int]":
        """All nodes by depth, then the newest first, then in document order."""
        return self.sort_newest_first(0, len(self.modified))

    def sort_newest_first(self, first: int, last: int) -> "array[int]":
        """The nodes from `first` up to `last` in the same order."""
        order = sorted(range(first, last), key=self.modified.__getitem__, reverse=True)
        return array("q", sorted(order, key=self.depth.__getitem__))

    def find_index(self, node: Node) -> int | None:
        """The index of a node; None if its document is not in the forest."""
        for document, start in zip(self.documents, self.starts, strict=False):
            if document is node.document:
                return start + next(i for i, candidate in enumerate(document.nodes) if candidate is node)
        return None

    def distances(self, index: int) -> tuple[int, list[int]]:
        """Start of the document of a node, and the distance in the tree of each of its nodes to that node."""
        document = self.document_index[index]
        start, end = self.starts[document], self.starts[document + 1]
        depth, own_depth = self.depth[start:end], self.depth[index]
        distances = [other + own_depth for other in depth]
        for ancestor in [*self.ancestors(index), index]:
            branch, saved = slice(ancestor - start, self.end[ancestor] - start), 2 * self.depth[ancestor]
            distances[branch] = [other + own_depth - saved for other in depth[branch]]
        return start, distances

    def ancestors(self, index: int) -> list[int]:
        """Indexes of a node's ancestors, the document first."""
        indexes: list[int] = []
        while (index := self.parent[index]) >= 0:
            indexes.append(index)
        return indexes[::-1]

    def _all_columns(self) -> Iterable[tuple[int, NodeColumns]]:
        """The columns of each document, with the index of its first node."""
        return zip(self.starts, (self._columns[id(document)] for document in self.documents), strict=False)


def _concatenate(type_code: Literal["i", "d"], columns: "Iterable[array[Any]]") -> "array[Any]":
    joined: array[Any] = array(type_code)
    for column in columns:
        joined.extend(column)
    return joined
