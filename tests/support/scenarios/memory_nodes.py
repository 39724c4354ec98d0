"""Memory nodes built without a parser, passed through the privacy gate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from foveate.memory.nodes import Node, NoteDocument, build_nodes
from foveate.memory.parsing.outline import Outline, OutlineEntry, PlanningDate, PlanningKind
from foveate.memory.privacy import Gate

LONG_AGO = datetime(2020, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """Properties of a node; `level` 0 is the file, which comes first."""

    title: str = ""
    content: str = ""
    level: int = 1
    tags: tuple[str, ...] = ()
    todo: str = ""
    is_done: bool = False
    properties: Mapping[str, str] | None = None
    planning_dates: tuple[PlanningDate, ...] = ()


def build_test_nodes(
    *specs: NodeSpec, file: NodeSpec | None = None, modified: datetime = LONG_AGO
) -> list[Node]:
    """Build the nodes of a file with these headings; the file itself is the first."""
    text, entries = "", []
    for spec in (file or NodeSpec(title="notes", level=0), *specs):
        start, heading = len(text), f"{'*' * spec.level} {spec.title}\n"
        text += heading + spec.content + "\n"
        entries.append(
            OutlineEntry(
                start=start,
                body=start + len(heading),
                content=start + len(heading),
                end=len(text),
                level=spec.level,
                title=spec.title,
                tags=spec.tags,
                todo=spec.todo,
                is_done=spec.is_done,
                properties=spec.properties or {},
                planning_dates=spec.planning_dates,
            )
        )
    document = NoteDocument(
        path="/notes.org",
        key="notes.org",
        modified=modified,
        digest=b"",
        outline=Gate().redact(Outline(text, entries)),
    )
    build_nodes(document)
    return document.nodes


def deadline_at(at: datetime, *, has_time: bool = True, repeater: str = "") -> PlanningDate:
    return PlanningDate(PlanningKind.DEADLINE, at, has_time, repeater)


def closed_at(at: datetime) -> PlanningDate:
    return PlanningDate(PlanningKind.CLOSED, at, has_time=True)


def node_titles(nodes: Iterable[Node]) -> list[str]:
    return [node.title for node in nodes]
