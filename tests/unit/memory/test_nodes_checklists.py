"""Checklist items of Markdown notes as tasks."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from foveate import Memory
from foveate.context.time_section import find_due_deadlines
from tests.support.scenarios.note_folders import write_files

HOME = """# Home

- [ ] Buy tiles DEADLINE: <2026-11-20 Fri>
- [x] Call Ana
* [X] Sell car CLOSED: [2026-11-03 Tue]
1. [ ] Paint
   - [ ] Paint

```
- [ ] an example
```

## Garden

- [ ] Garden

### Buy tiles

Forty of them. Not [ ] a box, and - [ ] neither.

## Garden
"""


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory.load(
        write_files(tmp_path, {"home.md": HOME, "work.org": "* Work\n- [ ] Org item\n* TODO Plan\n"})
    )


def titles(memory: Memory, todo: str) -> list[str]:
    return [node.title for node in memory.query(todo=todo)]


def test_items_are_found_by_their_state(memory: Memory) -> None:
    assert titles(memory, "open") == ["Buy tiles", "Paint", "Paint", "Garden", "Plan"]
    assert titles(memory, "TODO") == titles(memory, "open")
    assert titles(memory, "done") == ["Call Ana", "Sell car"]


def test_items_are_tasks_below_their_heading(memory: Memory) -> None:
    item = memory.query(todo="open", text="garden")[-1]

    assert (item.type, item.todo, item.content, item.depth) == ("task", "TODO", "", 2)
    assert item.parent is not None
    assert item.parent.title == "Garden"
    assert item in memory.query(type="task", todo="any") or item.id in {
        node.id for node in memory.query(type="task")
    }


def test_other_queries_find_the_node_whose_text_contains_the_item(memory: Memory) -> None:
    assert [node.title for node in memory.query(text="paint")] == ["Home"]


def test_ids_of_notes_do_not_depend_on_items(memory: Memory) -> None:
    """These ids are those of versions without checklists."""
    assert [node.id for node in memory.nodes if node.document.key == "home.md"] == [
        "845101911832957",
        "769442119624010",
        "895819853452411",
        "503055771576972",
    ]


def test_every_item_has_an_id_of_its_own(memory: Memory) -> None:
    items = [node for node in memory.query(todo="any") if node not in memory.nodes]

    assert len({*(node.id for node in memory.nodes), *(item.id for item in items)}) == len(memory.nodes) + len(
        items
    )
    assert [item.id for item in items] == [
        node.id for node in memory.query(todo="any") if node not in memory.nodes
    ]


def test_a_focus_on_an_item_shows_the_heading_that_contains_it(memory: Memory) -> None:
    item = memory.query(todo="done")[0]

    assert memory.node(item.id).title == "Call Ana"
    assert memory.render(item, limit_tokens=200) == memory.render("Home", limit_tokens=200)
    assert memory.render("Call Ana", limit_tokens=200) == memory.render("Home", limit_tokens=200)


def test_finished_items_are_recent_tasks(memory: Memory) -> None:
    tasks = memory.recent_tasks()

    assert [task.title for task in tasks] == ["Call Ana", "Sell car"]
    assert tasks[1].modified == datetime(2026, 11, 3)


def test_deadlines_of_open_items_are_due(memory: Memory) -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)

    due = find_due_deadlines(memory.nodes, now=now, warning_minutes=60)

    assert [deadline.title for deadline in due.overdue] == ["Buy tiles"]


@pytest.mark.parametrize(
    "text",
    [
        "# Home :private:\n\n- [ ] Secret\n",
        "# Home\n\n## Hidden #private\n\n- [ ] Secret\n",
        "---\ntags: [private]\n---\n- [ ] Secret\n",
        "# Home\n\n- [ ] Secret #private\n",
    ],
)
def test_private_items_are_not_found(tmp_path: Path, text: str) -> None:
    memory = Memory.load(write_files(tmp_path, {"a.md": text}))

    assert "Secret" not in repr(memory.query(todo="any")) + repr(memory.query(type="task"))
