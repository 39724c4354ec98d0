"""Nodes of the public notes: a tree for each file, with the file as its root."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from blake3 import blake3

from foveate.memory.parsing.outline import OutlineEntry, PlanningDate, PlanningKind
from foveate.memory.privacy import PublicOutline

UNTITLED = "Untitled"
# 100,000 nodes collide with a probability of 1 in 200,000. Digits take the fewest tokens: three per token.
_ID_DIGITS = 15
_DIGEST_BYTES = 8
# The progress of a checklist, `[2/5]` or `[40%]`, is not part of a heading's identity.
_COOKIE = re.compile(r"\[\d*(?:/\d*|%)\]")
# The first of these properties is the modification time. Otherwise it is the latest of the creation properties
# and the closing time, and without these the parent's modification time.
_MODIFIED_PROPERTIES = ("MODIFIED", "UPDATED", "LAST_MODIFIED", "LAST-MODIFIED", "LASTMOD")
_CREATED_PROPERTIES = ("DATE", "CREATED")
# Properties about the handling of a file, which are not content.
_INTERNAL_PROPERTIES = frozenset(
    {"ID", "CUSTOM_ID", "TITLE", "TAGS", "TAG", "KEYWORDS", "FILETAGS", "TYPE", "CATEGORY", "EFFORT", "STYLE",
     "COOKIE_DATA", "ORDERED", "VISIBILITY", "LAYOUT", "DRAFT", "SLUG", "WEIGHT", "PRIVATE",
     *(kind.name for kind in PlanningKind), *_MODIFIED_PROPERTIES, *_CREATED_PROPERTIES}
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](?:\w{2,4}\.? )?(\d\d:\d\d(?::\d\d)?))?")


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class NoteDocument:
    """The public part of a file. A changed file becomes another document.

    `key` is the path from the folder, with `/`, the same on every machine. `digest` is of all bytes. `modified`
    is naive local time, like dates in notes.
    """

    path: str
    key: str
    modified: datetime
    digest: bytes
    outline: PublicOutline
    nodes: list["Node"] = field(default_factory=list)
    """In document order, the file itself first; empty if all of it is private."""

    def __repr__(self) -> str:
        return f"<NoteDocument {self.key!r:.120} {len(self.nodes)} nodes>"


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A heading with its own text, or a whole file; what is below it are its children."""

    id: str
    entry: OutlineEntry
    document: NoteDocument
    parent: "Node | None"
    tags: frozenset[str]
    """Its own and those of its ancestors."""
    modified: datetime
    children: tuple["Node", ...] = ()

    @property
    def has_generated_id(self) -> bool:
        """Return whether the id does not come from a property `ID`."""
        return self.id != _explicit_id(self.entry)

    @property
    def title(self) -> str:
        """The title, or the file name."""
        return self.entry.title or UNTITLED

    @property
    def content(self) -> str:
        """The text below heading, planning and properties, without surrounding blank lines."""
        entry = self.entry
        return self.document.outline.text[entry.content : entry.end].strip("\r\n").rstrip()

    @property
    def full_text(self) -> str:
        details = self.details
        return f"{details}\n{self.content}" if details else self.content

    @property
    def details(self) -> str:
        """The properties, one per line, without internal ones."""
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
        """The number of ancestors; 0 for a file."""
        return sum(1 for _ in self.ancestors())

    @property
    def version(self) -> str:
        """Changes with the node's own text."""
        entry = self.entry
        return _digest_text(self.document.outline.text[entry.start : entry.end]).hex()

    @property
    def type(self) -> str:
        """The property `TYPE`, or else project, task, document or note."""
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
        """The state, such as TODO or DONE; empty if there is none."""
        return self.entry.todo

    @property
    def properties(self) -> Mapping[str, str]:
        """Property values by name in capitals."""
        return self.entry.properties

    @property
    def deadlines(self) -> tuple[PlanningDate, ...]:
        return tuple(stamp for stamp in self.entry.planning_dates if stamp.kind is PlanningKind.DEADLINE)

    def ancestors(self) -> "Iterator[Node]":
        """The ancestors, the nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def __repr__(self) -> str:
        return f"<Node {self.id} {self.title!r:.60}>"


@dataclass(frozen=True, slots=True)
class RejectedId:
    """An id that a node could not have because another node has it."""

    id: str
    node: Node
    is_generated: bool
    """The id does not come from a property `ID`."""


def claimed_ids(outline: PublicOutline) -> Iterator[str]:
    """The ids in properties `ID`."""
    for entry in outline.entries:
        if explicit := _explicit_id(entry):
            yield explicit


def build_nodes(document: NoteDocument, owners: Mapping[str, str] | None = None) -> list[RejectedId]:
    """Create the nodes of a document from its outline, and return the ids that they could not have.

    An id is the property `ID`, or else generated from the titles of the node and its ancestors up to the
    nearest `ID`. So other nodes can be added and removed, and texts and states can change, without changing it.

    `owners` maps each `ID` in the memory to the key of the document that owns it. Other nodes that claim it,
    and those below them, get generated ids.
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
        identity = parent.id if parent else "", title
        number = same_titled[identity] = same_titled.get(identity, 0) + 1
        generated, taken_ids = generate_id(*identity, number), []
        while generated in owners:
            # Somebody who wrote a generated id into a property `ID` means that node, wherever it is now.
            taken_ids.append(generated)
            generated = generate_id(
                f"not {generated}", title, number
            )  # no node below the other one can have this id
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
            rejected += [RejectedId(taken_id, node, is_generated=True) for taken_id in taken_ids]
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
    """The title without its checklist progress."""
    return (_COOKIE.sub("", title) if "[" in title else title).strip()


def make_child_node(parent: Node, entry: OutlineEntry, node_id: str) -> Node:
    """Create a node that is not among the children of its parent."""
    return Node(
        id=node_id,
        entry=entry,
        document=parent.document,
        parent=parent,
        tags=parent.tags,
        modified=_find_modified_time(entry) or parent.modified,
    )


def generate_id(parent_id: str, title: str, number: int) -> str:
    # The length prefix separates the parent's id from the title.
    digest = _digest_text(f"{len(parent_id)}:{parent_id}{number}:{title}")
    return f"{int.from_bytes(digest) % 10**_ID_DIGITS:0{_ID_DIGITS}}"


def _merge_tags(
    inherited: frozenset[str], own_tags: tuple[str, ...], shared_sets: dict[frozenset[str], frozenset[str]]
) -> frozenset[str]:
    """Union of the tags, sharing one set between all nodes with the same tags."""
    if not own_tags:
        return inherited
    tags = inherited.union(own_tags)
    return shared_sets.setdefault(tags, tags)


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
    """Parse a date in properties or front matter: ISO, or Org's with brackets and a weekday."""
    match = _DATE.search(text)
    if not match:
        return None
    try:
        return datetime.fromisoformat(f"{match[1]} {match[2] or '00:00'}")
    except ValueError:
        return None


def _digest_text(text: str) -> bytes:
    return blake3(text.encode("utf-8", "surrogatepass")).digest(length=_DIGEST_BYTES)


def to_timestamp(when: datetime) -> float:
    # `timestamp()` fails in the year 1.
    return (when.replace(tzinfo=None) - _EPOCH).total_seconds()
