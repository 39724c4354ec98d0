"""What a library holds at one moment, and what it holds after files have come, changed and gone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from blake3 import blake3

from foveate.memory.gate import PublicOutline
from foveate.memory.nodes import Document, Node, Refused, claims, grow
from foveate.memory.owners import Owners
from foveate.memory.walking import FileState, Problem, shown

_VERSION_BYTES = 16


@dataclass(frozen=True, slots=True)
class Changes:
    """The paths of the documents that are new or were read again, and of those that are gone."""

    read: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Content:
    """What was read in a file; another object only where something of it is different."""

    key: str
    modified_ns: int = 0
    digest: bytes = b""
    outline: PublicOutline | None = None
    newer: bytes = b""
    """A digest of what the file says by now, where that is only half of something."""
    fault: str = ""
    """Why what it says by now cannot be read."""
    has_private: bool = False
    """Something in it may not be seen."""


@dataclass(frozen=True, slots=True)
class File:
    """A file when it was last looked at; without a state it is read again whatever the system says of it."""

    state: FileState | None
    content: Content


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Grown:
    """A document, and the ids that its nodes did not get."""

    document: Document
    refused: list[Refused]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Holdings:
    """All that is known at one moment. It is replaced and never changed, so whoever reads it needs no lock."""

    files: Mapping[str, File] = field(default_factory=dict)
    found: tuple[Problem, ...] = ()
    """What was wrong with files and folders before anything was read in them."""
    grown: Mapping[str, Grown] = field(default_factory=dict)
    owners: Owners = field(default_factory=Owners)
    nodes: dict[str, Node] = field(default_factory=dict)
    documents: tuple[Document, ...] = ()
    problems: tuple[Problem, ...] = ()
    version: str = ""
    has_private: bool = False
    """Something in the files may not be seen; not where, nor how much."""


def after(before: Holdings, files: Mapping[str, File], found: tuple[Problem, ...]) -> tuple[Holdings, Changes]:
    """What is held when these are the files, all of them by path, and what is different then.

    Documents stay the same objects unless something in them is different; that can be an id which another
    document has laid claim to, or no longer does.
    """
    old = {path: file.content for path, file in before.files.items()}
    new = {path: file.content for path, file in files.items()}
    changed = [path for path, content in new.items() if content is not old.get(path)]
    if before.version and not changed and old.keys() == new.keys() and found == before.found:
        return replace(before, files=files), Changes()
    left = [path for path in old if path not in new or new[path] is not old[path]]
    owners = before.owners.copy()
    touched = {each for path in left for each in _claims(old[path])}
    for path in left:
        owners.release(old[path].key, _claims(old[path]))
    for path in changed:
        touched.update(_claims(new[path]))
        owners.claim(new[path].key, _claims(new[path]))
    moved = {each for each in touched if owners.by_id.get(each) != before.owners.by_id.get(each)}
    stale = {path for path in changed if not _would_grow_the_same(old.get(path), new[path])}
    stale.update(_affected(before, moved))
    grown = {
        path: before.grown[path] if path not in stale else _grown(path, content, content.outline, owners)
        for path, content in new.items()
        if content.outline and content.outline.entries
    }
    nodes = _indexed(before, grown)
    holdings = Holdings(
        files=files,
        found=found,
        grown=grown,
        owners=owners,
        nodes=nodes,
        documents=tuple(sorted((each.document for each in grown.values()), key=lambda each: each.key)),
        problems=tuple(sorted([*found, *_problems(new, grown, nodes)], key=lambda each: each.path)),
        version=_version(new.values()),
        has_private=any(content.has_private for content in new.values()),
    )
    changes = Changes(
        read=tuple(path for path in changed if path in grown and path in stale),
        removed=tuple(path for path in before.grown if path not in grown),
    )
    return holdings, changes


def _claims(content: Content) -> Iterator[str]:
    return claims(content.outline) if content.outline else iter(())


def _would_grow_the_same(old: Content | None, new: Content) -> bool:
    return (
        old is not None
        and old.outline is new.outline
        and (old.key, old.modified_ns) == (new.key, new.modified_ns)
    )


def _affected(before: Holdings, moved: set[str]) -> Iterator[str]:
    """The documents whose nodes may go by other ids, now that these belong to others."""
    for each in moved:
        if each in before.nodes:
            yield before.nodes[each].document.path
    for path, grown in before.grown.items():
        if any(refused.id in moved for refused in grown.refused):
            yield path


def _grown(path: str, content: Content, outline: PublicOutline, owners: Owners) -> Grown:
    document = Document(
        path=path,
        key=content.key,
        modified=_local(content.modified_ns),
        digest=content.digest,
        outline=outline,
    )
    return Grown(document, grow(document, owners.by_id))


def _indexed(before: Holdings, grown: Mapping[str, Grown]) -> dict[str, Node]:
    """All nodes by id. Only those of documents that are different are gone through."""
    new = {
        node.id: node
        for path, each in grown.items()
        if before.grown.get(path) is not each
        for node in each.document.nodes
    }
    # Not `dict(…)`, which puts in one after the other once there was one that is gone.
    nodes = before.nodes.copy()
    for path, old in before.grown.items():
        if grown.get(path) is not old:
            for node in old.document.nodes:
                if node.id not in new:
                    nodes.pop(node.id, None)
    nodes.update(new)
    return nodes


def _problems(
    contents: Mapping[str, Content], grown: Mapping[str, Grown], nodes: Mapping[str, Node]
) -> Iterator[Problem]:
    for path, content in contents.items():
        if content.fault:
            yield Problem(shown(path), content.fault)
        for reason in content.outline.problems if content.outline else ():
            yield Problem(shown(path), reason)
        for refused in grown[path].refused if path in grown else ():
            if not refused.is_made:
                yield Problem(shown(path), _conflict(refused, nodes[refused.id]))


def _conflict(refused: Refused, other: Node) -> str:
    where = "here too" if other.document is refused.node.document else f"in {shown(other.document.path)}"
    return (
        f"{_called(refused.node)} has the id {shown(refused.id):.80} of {_called(other)} {where}, "
        f"so it goes by {refused.node.id}: give one of them another"
    )


def _called(node: Node) -> str:
    return f"{shown(node.title)!r:.60}"


def _version(contents: Iterable[Content]) -> str:
    hasher = blake3()
    for each in sorted(contents, key=lambda content: content.key):
        said = (each.key, each.modified_ns, each.digest, each.newer, each.fault)
        hasher.update(repr(said).encode())
    return hasher.hexdigest(length=_VERSION_BYTES)


def _local(time_ns: int) -> datetime:
    """A time of the file system as dates in notes are; times can be set that no calendar has."""
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000)
    except (ValueError, OverflowError, OSError):
        return datetime.max if time_ns > 0 else datetime.min
