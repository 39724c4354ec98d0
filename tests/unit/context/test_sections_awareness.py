"""The awareness section lists the active projects, or states that there are none."""

from datetime import datetime

from foveate.budget import Keep, Stability
from foveate.context import MissingContent
from foveate.context.sections import render_awareness
from tests.support.scenarios.memory_nodes import NodeSpec, build_test_nodes, deadline_at


def test_each_active_project_is_listed_with_state_deadline_and_id() -> None:
    nodes = build_test_nodes(
        NodeSpec(
            title="Garden",
            tags=("project",),
            todo="NEXT",
            properties={"ID": "garden-1"},
            planning_dates=(
                deadline_at(datetime(2026, 11, 20, 17, 0)),
                deadline_at(datetime(2026, 12, 1), has_time=False, repeater="+1m"),
            ),
        ),
        NodeSpec(title="Roses", level=2, todo="TODO"),
        NodeSpec(title="Two\nlines", tags=("project",)),
        NodeSpec(title="Shed", tags=("project",), todo="DONE", is_done=True),
        NodeSpec(title="Diary", tags=("project", "private")),
    )

    rendered = render_awareness(nodes)

    assert rendered.sections[0].text == (
        "Project [NEXT]: Garden (deadline 2026-11-20T17:00; deadline 2026-12-01 +1m; id garden-1)\n"
        f"Project: Two lines (id {nodes[3].id})"
    )
    assert rendered.warnings == ()


def test_the_section_consists_of_whole_entries() -> None:
    section = render_awareness(build_test_nodes(NodeSpec(title="A", tags=("project",)))).sections[0]

    assert (section.name, section.keep, section.stability) == ("awareness", Keep.HEAD, Stability.TURN)
    assert section.items is not None


def test_without_projects_the_section_has_a_placeholder_and_a_warning() -> None:
    rendered = render_awareness(build_test_nodes(NodeSpec(title="Roses")))

    assert rendered.sections[0].text == "No active projects found."
    assert rendered.warnings == (MissingContent("awareness", "the memory has no active projects"),)


def test_an_unavailable_memory_is_a_placeholder_with_its_warning() -> None:
    missing = MissingContent("awareness", "notes.org: no such file")

    assert render_awareness(missing).sections[0].text == "[Awareness not available]"
    assert render_awareness(missing).warnings == (missing,)
