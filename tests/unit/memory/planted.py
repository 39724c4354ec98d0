"""Nodes for tests of what looks at them: made without a parser, and through the gate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from foveate.memory.gate import Gate
from foveate.memory.nodes import Document, Node, grow
from foveate.memory.outline import Entry, Outline, Stamp, StampKind

LONG_AGO = datetime(2020, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sown:
    """What a node is to be; `level` 0 is the file, which comes first."""

    title: str = ""
    content: str = ""
    level: int = 1
    tags: tuple[str, ...] = ()
    todo: str = ""
    is_done: bool = False
    properties: Mapping[str, str] | None = None
    stamps: tuple[Stamp, ...] = ()


def planted(*sown: Sown, file: Sown | None = None, modified: datetime = LONG_AGO) -> list[Node]:
    """A file with these headings, as nodes; the file itself is the first of them."""
    text, entries = "", []
    for each in (file or Sown(title="notes", level=0), *sown):
        start, heading = len(text), f"{'*' * each.level} {each.title}\n"
        text += heading + each.content + "\n"
        entries.append(
            Entry(
                start=start,
                body=start + len(heading),
                content=start + len(heading),
                end=len(text),
                level=each.level,
                title=each.title,
                tags=each.tags,
                todo=each.todo,
                is_done=each.is_done,
                properties=each.properties or {},
                stamps=each.stamps,
            )
        )
    document = Document(
        path="/notes.org",
        key="notes.org",
        modified=modified,
        digest=b"",
        outline=Gate().admitted(Outline(text, entries)),
    )
    grow(document)
    return document.nodes


def deadline(at: datetime, *, has_time: bool = True, repeater: str = "") -> Stamp:
    return Stamp(StampKind.DEADLINE, at, has_time, repeater)


def closed(at: datetime) -> Stamp:
    return Stamp(StampKind.CLOSED, at, has_time=True)


def titles(nodes: Iterable[Node]) -> list[str]:
    return [node.title for node in nodes]
