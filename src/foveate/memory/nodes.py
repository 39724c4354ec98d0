"""Nodes: what has come through the gate, as a forest: a tree for each file, with the file at its root."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from blake3 import blake3

from foveate.memory.gate import PublicOutline
from foveate.memory.outline import Entry, Stamp, StampKind

UNTITLED = "Untitled"
# Enough that 100,000 nodes do not meet by chance (1 in 10^8), and few tokens where ids are shown.
_ID_BYTES = 7
# How far a checklist is, `[2/5]` or `[40%]`, changes without the heading becoming another.
_COOKIE = re.compile(r"\[\d*(?:/\d*|%)\]")
# The first of these that an entry has says when it was changed last; where none does, its parent.
_MODIFIED = ("MODIFIED", "UPDATED", "LAST_MODIFIED", "DATE", "CREATED")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Document:
    """A file of the memory, as much of it as may be seen.

    `key` is its path from the folder it was found in, with `/`, the same on every machine. `digest` is of all
    its bytes.
    """

    path: str
    key: str
    modified: datetime
    digest: bytes
    outline: PublicOutline
    nodes: list["Node"] = field(default_factory=list)
    """In the order in which they stand, the file itself first; none where all of it is private."""


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A heading with its own text, or a whole file's; what stands below it are its children."""

    id: str
    entry: Entry
    document: Document
    parent: "Node | None"
    tags: frozenset[str]
    """Its own and those of everything it stands in."""
    modified: datetime
    children: list["Node"] = field(default_factory=list)

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
    def depth(self) -> int:
        """How many nodes it stands in; 0 for a file."""
        return sum(1 for _ in self.ancestors())

    @property
    def version(self) -> str:
        """Another one after every change of its own text."""
        entry = self.entry
        return _digest(self.document.outline.text[entry.start : entry.end]).hex()

    @property
    def type(self) -> str:
        """What it says it is; otherwise a project, a task, a document or a note."""
        said = self.entry.properties.get("TYPE", "").strip()
        if said:
            return said.casefold()
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
    def deadlines(self) -> tuple[Stamp, ...]:
        """When it has to be done."""
        return tuple(stamp for stamp in self.entry.stamps if stamp.kind is StampKind.DEADLINE)

    def ancestors(self) -> "Iterator[Node]":
        """What it stands in, the nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def __repr__(self) -> str:
        """Its id and title; never its text, which can be megabytes."""
        return f"<Node {self.id} {self.title!r:.60}>"


def grow(document: Document) -> None:
    """Make the nodes of a document from its outline; none where it says nothing.

    An id is the property `ID`, otherwise made from the titles that lead to the node: other nodes may come and
    go, and texts and states change, without touching it.
    """
    stems = [(-1, b"")]
    path: list[Node] = []
    seen: dict[tuple[bytes, str], int] = {}
    shared: dict[frozenset[str], frozenset[str]] = {}
    for entry in document.outline.entries:
        while path and path[-1].entry.level >= entry.level:
            path.pop()
            stems.pop()
        parent = path[-1] if path else None
        title = _COOKIE.sub("", entry.title).strip() if parent else document.key
        place = stems[-1][1], title
        seen[place] = seen.get(place, 0) + 1
        stem = _digest(b"%b\0%b\0%d" % (place[0], _encoded(title), seen[place]))
        own = entry.properties.get("ID", "").strip()
        tags = frozenset(entry.tags) if parent is None else parent.tags.union(entry.tags)
        node = Node(
            id=own or stem.hex(),
            entry=entry,
            document=document,
            parent=parent,
            tags=shared.setdefault(tags, tags),
            modified=_modified(entry) or (parent.modified if parent else document.modified),
        )
        if parent:
            parent.children.append(node)
        document.nodes.append(node)
        path.append(node)
        stems.append((entry.level, _encoded(own) if own else stem))


def _modified(entry: Entry) -> datetime | None:
    for name in _MODIFIED if entry.properties else ():
        said = entry.properties.get(name)
        if said and (when := _when(said)):
            return when
    closed = [stamp.at for stamp in entry.stamps if stamp.kind is StampKind.CLOSED]
    return max(closed, default=None)


def _when(text: str) -> datetime | None:
    """A date as it is written in properties and front matter: ISO, or Org's with brackets and a weekday."""
    found = re.search(r"(\d{4}-\d\d-\d\d)(?:[T ](?:\w{2,4}\.? )?(\d\d:\d\d(?::\d\d)?))?", text)
    if not found:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]} {found[2] or '00:00'}")
    except ValueError:
        return None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digest(data: str | bytes) -> bytes:
    return blake3(_encoded(data) if isinstance(data, str) else data).digest(length=_ID_BYTES)


def in_order(documents: Sequence[Document]) -> Iterator[Node]:
    """Every node, document by document."""
    for document in documents:
        yield from document.nodes
