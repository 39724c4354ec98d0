"""Awareness: a section that lists the active projects of a memory."""

from collections.abc import Iterable

from foveate.budget.sections import Keep, Priority, Section, Stability
from foveate.memory.nodes import Node
from foveate.memory.outline import Stamp
from foveate.memory.queries import active_projects
from foveate.prompt.rendering import NO_AWARENESS, NO_PROJECTS, Built, Missing

NAME = "awareness"


def awareness(nodes: Iterable[Node] | Missing) -> Built:
    """The section awareness: each active project with its state, deadlines and id; or why there are none.

    They stand in the order of the memory, so that a change of one leaves those before it as they were.
    """
    if isinstance(nodes, Missing):
        return _built([NO_AWARENESS], nodes)
    projects = [_told(node) for node in active_projects(nodes)]
    if not projects:
        return _built([NO_PROJECTS], Missing(NAME, "the memory has no active projects"))
    return _built(projects)


def _built(lines: list[str], *warnings: Missing) -> Built:
    section = Section(NAME, items=lines, priority=Priority.HIGH, keep=Keep.HEAD, stability=Stability.TURN)
    return Built(sections=(section,), warnings=warnings, fresh=True)


def _told(node: Node) -> str:
    state = f" [{node.todo}]" if node.todo else ""
    known = [*(f"deadline {_when(stamp)}" for stamp in node.deadlines), f"id {_line(node.id)}"]
    return f"Project{state}: {_line(node.title)} ({'; '.join(known)})"


def _when(stamp: Stamp) -> str:
    day = stamp.at.isoformat(timespec="minutes") if stamp.has_time else stamp.at.date().isoformat()
    return f"{day} {stamp.repeater}".rstrip()


def _line(text: str) -> str:
    return " ".join(text.split())
