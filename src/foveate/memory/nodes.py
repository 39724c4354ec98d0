"""Nodes: what has come through the gate, as a forest: a tree for each file, with the file at its root.

A forest: all nodes of a memory in one row, and what is known of each in columns, which is quick.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from foveate.memory.parsing.outline import OutlineEntry, PlanningDate, PlanningKind
from foveate.memory.privacy import PublicOutline

if TYPE_CHECKING:
    from numpy.typing import NDArray


UNTITLED = "Untitled"
# Enough that 100,000 nodes do not meet by chance (1 in 200,000). Digits are the fewest tokens: three are one.
_ID_DIGITS = 15
_DIGEST_BYTES = 8
# How far a checklist is, `[2/5]` or `[40%]`, changes without the heading becoming another.
_COOKIE = re.compile(r"\[\d*(?:/\d*|%)\]")
# The first of these that an entry has says when it was changed last. Without them it is the latest of the
# others and of when it was closed; where there is none of all that, what holds for the node it stands in.
_MODIFIED_PROPERTIES = ("MODIFIED", "UPDATED", "LAST_MODIFIED", "LAST-MODIFIED", "LASTMOD")
_CREATED_PROPERTIES = ("DATE", "CREATED")
# What says how a file is to be treated, and nothing that a reader would look for.
_INTERNAL_PROPERTIES = frozenset(
    {"ID", "CUSTOM_ID", "TITLE", "TAGS", "TAG", "KEYWORDS", "FILETAGS", "TYPE", "CATEGORY", "EFFORT", "STYLE",
     "COOKIE_DATA", "ORDERED", "VISIBILITY", "LAYOUT", "DRAFT", "SLUG", "WEIGHT", "PRIVATE",
     *(kind.name for kind in PlanningKind), *_MODIFIED_PROPERTIES, *_CREATED_PROPERTIES}
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](?:\w{2,4}\.? )?(\d\d:\d\d(?::\d\d)?))?")


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Document:
    """A file of the memory, as much of it as may be seen. A file that has changed is another document.

    `key` is its path from the folder it was found in, with `/`, the same on every machine. `digest` is of all
    its bytes. `modified` is in local time without a zone, as dates in notes are.
    """

    path: str
    key: str
    modified: datetime
    digest: bytes
    outline: PublicOutline
    nodes: list["Node"] = field(default_factory=list)
    """In the order in which they stand, the file itself first; none where all of it is private."""

    def __repr__(self) -> str:
        """Its key and size; never its text, which can be megabytes."""
        return f"<Document {self.key!r:.120} {len(self.nodes)} nodes>"


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A heading with its own text, or a whole file's; what stands below it are its children."""

    id: str
    entry: OutlineEntry
    document: Document
    parent: "Node | None"
    tags: frozenset[str]
    """Its own and those of everything it stands in."""
    modified: datetime
    children: tuple["Node", ...] = ()

    @property
    def title(self) -> str:
        """What it is called; a file without a title by its name."""
        return self.entry.title or UNTITLED

    @property
    def content(self) -> str:
        """Its own text below its heading, planning and properties, without blank lines around."""
        entry = self.entry
        return self.document.outline.text[entry.content : entry.end].strip("\r\n").rstrip()

    @property
    def full_text(self) -> str:
        """All that it says below its heading: its details, then its content."""
        details = self.details
        return f"{details}\n{self.content}" if details else self.content

    @property
    def details(self) -> str:
        """Its properties, a line each, but for those that only say how it is to be treated."""
        entry = self.entry
        if not entry.properties or (entry.level == 0 and self.document.key.endswith((".org", ".org_archive"))):
            return ""  # at the top of Org files these are settings
        return "\n".join(
            f"{name}: {value}"
            for name, value in entry.properties.items()
            if name not in _INTERNAL_PROPERTIES and value.strip()
        )

    @property
    def depth(self) -> int:
        """How many nodes it stands in; 0 for a file."""
        return sum(1 for _ in self.ancestors())

    @property
    def version(self) -> str:
        """Another one after every change of its own text."""
        entry = self.entry
        return _digest_text(self.document.outline.text[entry.start : entry.end]).hex()

    @property
    def type(self) -> str:
        """What it says it is; otherwise a project, a task, a document or a note."""
        declared = self.entry.properties.get("TYPE", "").strip()
        if declared:
            return declared.casefold()
        if any(tag.casefold() == "project" for tag in self.entry.tags):
            return "project"
        if self.entry.todo:
            return "task"
        return "note" if self.parent else "document"

    @property
    def todo(self) -> str:
        """Its state, such as TODO or DONE, or nothing."""
        return self.entry.todo

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties, by name in capitals."""
        return self.entry.properties

    @property
    def deadlines(self) -> tuple[PlanningDate, ...]:
        """When it has to be done."""
        return tuple(stamp for stamp in self.entry.planning_dates if stamp.kind is PlanningKind.DEADLINE)

    def ancestors(self) -> "Iterator[Node]":
        """What it stands in, the nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def __repr__(self) -> str:
        """Its id and title; never its text, which can be megabytes."""
        return f"<Node {self.id} {self.title!r:.60}>"


@dataclass(frozen=True, slots=True)
class RejectedId:
    """An id that a node would have, but for another that has it already."""

    id: str
    node: Node
    is_generated: bool
    """It was not given as a property `ID`."""


def claimed_ids(outline: PublicOutline) -> Iterator[str]:
    """The ids that entries give themselves, in the property `ID`."""
    for entry in outline.entries:
        if own := _explicit_id(entry):
            yield own


def build_nodes(document: Document, owners: Mapping[str, str] | None = None) -> list[RejectedId]:
    """Make the nodes of a document from its outline; none where it says nothing.

    An id is the property `ID`, otherwise made from the titles that lead to the node, from the nearest `ID` on:
    other nodes may come and go, and texts and states change, without touching it.

    `owners` has for every `ID` in the memory the key of the document whose node goes by it, the first where
    several have it. The others get a made id, and so does what is below them, and are told of in the answer.
    """
    if owners is None:
        owners = dict.fromkeys(claimed_ids(document.outline), document.key)
    rejected: list[RejectedId] = []
    path: list[tuple[Node, list[Node]]] = []
    same_titled: dict[tuple[str, str], int] = {}
    used: set[str] = set()
    tag_sets: dict[frozenset[str], frozenset[str]] = {}
    for entry in document.outline.entries:
        while path and path[-1][0].entry.level >= entry.level:
            _set_children(*path.pop())
        parent = path[-1][0] if path else None
        title = _stable_title(entry.title) if parent else document.key
        place = parent.id if parent else "", title
        number = same_titled[place] = same_titled.get(place, 0) + 1
        generated, taken = _generate_id(*place, number), []
        while generated in owners:
            # Whoever writes down a made id as an `ID` means that node, wherever it has been moved to.
            taken.append(generated)
            generated = _generate_id(
                f"not {generated}", title, number
            )  # which no node below the other one can have
        node = Node(
            id=generated,
            entry=entry,
            document=document,
            parent=parent,
            tags=_merge_tags(parent.tags if parent else frozenset(), entry.tags, tag_sets),
            modified=_find_modified_time(entry) or (parent.modified if parent else document.modified),
        )
        explicit = _explicit_id(entry)
        if explicit and owners.get(explicit) == document.key and explicit not in used:
            used.add(explicit)
            node.id = explicit
        else:
            rejected += [RejectedId(explicit, node, is_generated=False)] if explicit else []
            rejected += [RejectedId(missed, node, is_generated=True) for missed in taken]
        if path:
            path[-1][1].append(node)
        document.nodes.append(node)
        path.append((node, []))
    while path:
        _set_children(*path.pop())
    return rejected


def _set_children(node: Node, children: list[Node]) -> None:
    if children:
        node.children = tuple(children)


def _explicit_id(entry: OutlineEntry) -> str:
    return entry.properties.get("ID", "").strip() if entry.properties else ""


def _stable_title(title: str) -> str:
    """A title without what changes in it while it stays the same."""
    return (_COOKIE.sub("", title) if "[" in title else title).strip()


def _generate_id(above: str, title: str, number: int) -> str:
    # With its length before it, so that what is above cannot run into the title.
    digest = _digest_text(f"{len(above)}:{above}{number}:{title}")
    return f"{int.from_bytes(digest) % 10**_ID_DIGITS:0{_ID_DIGITS}}"


def _merge_tags(
    inherited: frozenset[str], own: tuple[str, ...], known: dict[frozenset[str], frozenset[str]]
) -> frozenset[str]:
    """Both kinds of tags, one set for all nodes that have the same ones."""
    if not own:
        return inherited
    tags = inherited.union(own)
    return known.setdefault(tags, tags)


def _find_modified_time(entry: OutlineEntry) -> datetime | None:
    if not entry.properties and not entry.planning_dates:
        return None
    values = (entry.properties.get(name, "") for name in _MODIFIED_PROPERTIES)
    if when := next(filter(None, map(_parse_date, values)), None):
        return when
    created = filter(None, (_parse_date(entry.properties.get(name, "")) for name in _CREATED_PROPERTIES))
    closed = (stamp.at for stamp in entry.planning_dates if stamp.kind is PlanningKind.CLOSED)
    return max([*created, *closed], default=None)


def _parse_date(text: str) -> datetime | None:
    """A date as it is written in properties and front matter: ISO, or Org's with brackets and a weekday."""
    found = _DATE.search(text)
    if not found:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]} {found[2] or '00:00'}")
    except ValueError:
        return None


def _digest_text(text: str) -> bytes:
    return blake3(text.encode("utf-8", "surrogatepass")).digest(length=_DIGEST_BYTES)


def to_seconds(when: datetime) -> float:
    """A time as notes have it, without a zone, as a number that can be compared and subtracted."""
    # Not `timestamp()`, which fails in the year 1.
    return (when.replace(tzinfo=None) - _EPOCH).total_seconds()


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
