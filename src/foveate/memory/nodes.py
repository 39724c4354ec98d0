"""Nodes: what has come through the gate, as a forest: a tree for each file, with the file at its root."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from blake3 import blake3

from foveate.memory.gate import PublicOutline
from foveate.memory.outline import OutlineEntry, PlanningDate, PlanningKind

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
