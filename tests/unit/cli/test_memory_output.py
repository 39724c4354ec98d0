"""Nodes and views as text and as JSON objects."""

from pathlib import Path

import pytest

from foveate import count
from foveate.cli.memory import node_lines, node_object, outline_lines, outline_object, view_object, view_summary
from foveate.cli.shared.console import Display
from foveate.memory.nodes import Node
from foveate.memory.note_library import Library
from foveate.memory.privacy import Gate
from foveate.memory.views.view import DetailLevel, View, ViewNode
from foveate.model import TokenCount

PLAIN = Display()
PIPE = Display(is_terminal=False)
NOTES = """\
#+FILETAGS: :home:
* TODO [#B] Paint the door :project:
SCHEDULED: <2026-11-20 Fri 09:30> DEADLINE: <2026-11-27 Fri>
:PROPERTIES:
:ID: door
:END:
Green.
** DONE Buy paint
** Sand it down
"""


@pytest.fixture
def nodes(tmp_path: Path) -> list[Node]:
    return read_nodes(tmp_path, NOTES)


def read_nodes(folder: Path, text: str) -> list[Node]:
    (folder / "house.org").write_text(text, encoding="utf-8")
    library = Library([folder], Gate())
    library.refresh()
    return [node for document in library.documents for node in document.nodes]


def make_view(count: TokenCount, limit_tokens: int | None = 100, levels: tuple[DetailLevel, ...] = ()) -> View:
    result = tuple(ViewNode(str(number), "A title", level, 0.5, 7) for number, level in enumerate(levels))
    return View(text="…", count=count, limit_tokens=limit_tokens, nodes=result)


@pytest.mark.parametrize(
    ("view", "summary"),
    [
        (
            make_view(
                TokenCount(1990, True, 1990),
                2000,
                (DetailLevel.FULL, DetailLevel.TITLE, DetailLevel.TITLE, DetailLevel.EXCERPT),
            ),
            "1,990 of 2,000 tokens, gpt-4o, exact; 1,234 nodes: 1 full, 1 excerpt, 2 title, 1,230 not shown",
        ),
        (
            make_view(TokenCount(90, False, 99), 100, (DetailLevel.TITLE,)),
            "~90 of 100 tokens, gpt-4o, estimated, upper bound 99; 1,234 nodes: 1 title, 1,233 not shown",
        ),
        (make_view(TokenCount(0, True, 0), None), "0 tokens, gpt-4o, exact; 1,234 nodes: 1,234 not shown"),
    ],
    ids=["exact", "estimated", "no limit"],
)
def test_a_summary_has_the_length_and_the_shown_nodes(view: View, summary: str) -> None:
    assert view_summary(view, model="gpt-4o", nodes=1234) == summary


def test_a_view_object_has_its_numbers_first() -> None:
    result = view_object(make_view(TokenCount(90, False, 99), None, (DetailLevel.FULL,)), model="m", focus="0")

    assert result == {
        "tokens": 90,
        "limit_tokens": None,
        "text": "…",
        "nodes": [{"id": "0", "title": "A title", "level": "full", "score": 0.5, "tokens": 7}],
        "count": {"tokens": 90, "exact": False, "upper": 99},
        "model": "m",
        "focus": "0",
    }
    assert list(result)[:4] == ["tokens", "limit_tokens", "text", "nodes"]


def test_nodes_have_a_line_each_with_aligned_ids_and_states(nodes: list[Node]) -> None:
    file, to_paint, bought, to_sand = nodes

    assert node_lines([to_paint, bought, to_sand], PLAIN) == [
        f"{'door':15}  TODO  Paint the door  :home:project:  house.org",
        f"{bought.id}  DONE  Buy paint       :home:project:  house.org",
        f"{to_sand.id}        Sand it down    :home:project:  house.org",
    ]
    assert node_lines([file], PLAIN) == [f"{file.id}  house  :home:  house.org"]
    assert node_lines([], PLAIN) == []


def test_a_node_object_has_times_only_for_stamps_with_a_time(nodes: list[Node]) -> None:
    to_paint = node_object(nodes[1])

    assert (to_paint["scheduled"], to_paint["deadline"]) == ("2026-11-20T09:30", "2026-11-27")
    assert (to_paint["type"], to_paint["todo"], to_paint["is_done"], to_paint["priority"]) == (
        "project",
        "TODO",
        False,
        "B",
    )
    assert (to_paint["parent"], to_paint["tags"]) == (nodes[0].id, ["home", "project"])
    bought = node_object(nodes[2])
    assert (bought["scheduled"], bought["deadline"], bought["is_done"]) == (None, None, True)
    assert node_object(nodes[0])["parent"] is None


def test_an_outline_is_indented_and_has_the_size_of_each_file(nodes: list[Node]) -> None:
    assert list(outline_lines(nodes, None, PLAIN)) == [
        f"house  <<{nodes[0].id}>>  :home:  house.org  4 nodes, {count(NOTES).tokens} tokens",
        "  TODO [#B] Paint the door  <<door>>  :project:",
        f"    DONE Buy paint  <<{nodes[2].id}>>",
        f"    Sand it down  <<{nodes[3].id}>>",
    ]


@pytest.mark.parametrize(("depth", "lines"), [(0, 1), (1, 2), (2, 4), (9, 4), (None, 4)])
def test_an_outline_ends_at_its_depth(nodes: list[Node], depth: int | None, lines: int) -> None:
    outline = outline_object(nodes, depth)["nodes"]

    assert isinstance(outline, list)
    assert len(list(outline_lines(nodes, depth, PLAIN))) == len(outline) == lines
    assert [node["depth"] for node in outline] == [0, 1, 2, 2][:lines]


def test_private_text_is_not_counted(tmp_path: Path) -> None:
    public = next(outline_lines(read_nodes(tmp_path, "* Open\n"), None, PLAIN))
    with_private = next(
        outline_lines(read_nodes(tmp_path, "* Open\n* Closed :private:\nMuch text.\n"), None, PLAIN)
    )

    assert public == with_private


def test_a_long_title_is_shortened_and_its_whitespace_collapsed(tmp_path: Path) -> None:
    nodes = read_nodes(tmp_path, f"* {'x' * 121}\n* a \t b\n")

    first, second = node_lines(nodes[1:], PIPE)
    assert f"  {'x' * 60}…{'x' * 59}  house.org" in first
    assert f"  a b{' ' * 117}  house.org" in second
    assert not any("x" * 61 in line for line in outline_lines(nodes, None, PIPE))


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_nodes_fit_the_width_of_a_terminal(tmp_path: Path, columns: int) -> None:
    nodes = read_nodes(tmp_path, f"* TODO {'a long title ' * 8} :home:\n* a\n")
    lines = node_lines(nodes, Display(columns=columns))

    assert max(map(len, lines)) <= columns
    assert " ".join(lines).count("title") == 8
    assert all(any(line.startswith(node.id) for line in lines) for node in nodes)


def test_colours_are_added_after_escaping(tmp_path: Path) -> None:
    _, node = read_nodes(tmp_path, "* Odd\x1b[31m\n:PROPERTIES:\n:ID: i\x1bd\n:END:\n")
    coloured = node_lines([node], Display(colours=True))[0]

    assert coloured == "\x1b[2mi\\x1bd\x1b[0m  Odd\\x1b[31m  \x1b[2mhouse.org\x1b[0m"
    assert node_lines([node], Display(encoding="ascii"))[0] == "i\\x1bd  Odd\\x1b[31m  house.org"


@pytest.mark.slow
def test_thousands_of_nested_headings_are_listed_without_recursion(tmp_path: Path) -> None:
    nodes = read_nodes(tmp_path, "".join(f"{'*' * level} {level}\n" for level in range(1, 3001)))

    assert sum(1 for _ in outline_lines(nodes, None, PLAIN)) == 3001
    assert next(outline_lines(nodes, 0, PLAIN)).startswith("house")
