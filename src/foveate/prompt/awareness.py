"""Awareness: a section that lists the active projects of a memory."""

from collections.abc import Iterable

from foveate.budget.sections import Keep, Priority, Section, Stability
from foveate.memory.nodes import Node
from foveate.memory.outline import PlanningDate
from foveate.memory.queries import active_projects
from foveate.prompt.rendering import NO_AWARENESS, NO_PROJECTS, MissingPart, RenderedSections

AWARENESS_SECTION_NAME = "awareness"


def render_awareness(nodes: Iterable[Node] | MissingPart) -> RenderedSections:
    """The section awareness: each active project with its state, deadlines and id; or why there are none.

    They stand in the order of the memory, so that a change of one leaves those before it as they were.
    """
    if isinstance(nodes, MissingPart):
        return _build_awareness([NO_AWARENESS], nodes)
    projects = [_project_line(node) for node in active_projects(nodes)]
    if not projects:
        return _build_awareness(
            [NO_PROJECTS], MissingPart(AWARENESS_SECTION_NAME, "the memory has no active projects")
        )
    return _build_awareness(projects)


def _build_awareness(lines: list[str], *warnings: MissingPart) -> RenderedSections:
    section = Section(
        AWARENESS_SECTION_NAME, items=lines, priority=Priority.HIGH, keep=Keep.HEAD, stability=Stability.TURN
    )
    return RenderedSections(sections=(section,), warnings=warnings, fresh=True)


def _project_line(node: Node) -> str:
    state = f" [{node.todo}]" if node.todo else ""
    details = [*(f"deadline {_stamp_text(stamp)}" for stamp in node.deadlines), f"id {_on_one_line(node.id)}"]
    return f"Project{state}: {_on_one_line(node.title)} ({'; '.join(details)})"


def _stamp_text(stamp: PlanningDate) -> str:
    day = stamp.at.isoformat(timespec="minutes") if stamp.has_time else stamp.at.date().isoformat()
    return f"{day} {stamp.repeater}".rstrip()


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
