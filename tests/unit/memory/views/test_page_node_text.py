from pathlib import Path

import pytest

from foveate import Memory
from foveate.memory.nodes import Node
from foveate.memory.views.page import content_text, planning_text, render_heading
from foveate.memory.views.view import ViewFormat
from tests.support.scenarios.note_folders import write_files

ORG, MARKDOWN = ViewFormat.ORG, ViewFormat.MARKDOWN
WITH_ID = ":PROPERTIES:\n:ID: one\n:END:\n"


def load_nodes(folder: Path, text: str, name: str = "a.org") -> list[Node]:
    return Memory.load(write_files(folder, {name: text})).nodes


def test_a_heading_has_state_priority_title_id_and_own_tags(tmp_path: Path) -> None:
    _, node = load_nodes(tmp_path, f"#+FILETAGS: :file:\n* TODO [#A] One :a:b:\n{WITH_ID}")

    assert render_heading(node, ORG, 1) == "** TODO [#A] One <<one>> :a:b:"
    assert render_heading(node, MARKDOWN, 1) == "## TODO [#A] One :a:b: {#one}"


def test_a_heading_can_be_shown_without_its_id(tmp_path: Path) -> None:
    _, node = load_nodes(tmp_path, f"* One :a:\n{WITH_ID}")

    assert render_heading(node, ORG, 1, shows_id=False) == "** One :a:"
    assert render_heading(node, MARKDOWN, 1, shows_id=False) == "## One :a:"


@pytest.mark.parametrize("shows_id", [True, False])
def test_a_score_is_shown_with_the_id_in_two_decimals(tmp_path: Path, shows_id: bool) -> None:
    _, node = load_nodes(tmp_path, f"* One :a:\n{WITH_ID}")

    assert render_heading(node, ORG, 1, 0.756, shows_id=shows_id) == (
        "** One :a:\n:PROPERTIES:\n:ID: one\n:SEMANTIC_SCORE: 0.76\n:END:"
    )
    assert render_heading(node, MARKDOWN, 1, 1.0, shows_id=shows_id) == "## One :a: {#one score=1.00}"


@pytest.mark.parametrize(("text", "line"), [("* \n", "** Untitled"), ("* TODO\n", "** TODO Untitled")])
def test_a_node_without_a_title_is_untitled(tmp_path: Path, text: str, line: str) -> None:
    _, node = load_nodes(tmp_path, text)

    assert render_heading(node, ORG, 1, shows_id=False) == line


def test_a_title_is_one_line(tmp_path: Path) -> None:
    _, node = load_nodes(tmp_path, "x\n\nA\tlong\n  title\n===\n", "a.md")

    assert render_heading(node, ORG, 1, shows_id=False) == "** A long title"


def test_org_headings_have_any_depth_and_markdown_six_levels(tmp_path: Path) -> None:
    (file, *_) = load_nodes(tmp_path, "x\n")

    assert [render_heading(file, ORG, depth).index(" ") for depth in (0, 5, 6, 39)] == [1, 6, 7, 40]
    assert [render_heading(file, MARKDOWN, depth).index(" ") for depth in (0, 5, 6, 39)] == [1, 6, 6, 6]


def test_planning_is_shown_without_drawers_and_not_as_content(tmp_path: Path) -> None:
    _, node = load_nodes(tmp_path, f"* One\n  DEADLINE: <2026-11-20 Fri>\n{WITH_ID}\nText\n")

    assert planning_text(node) == "DEADLINE: <2026-11-20 Fri>"
    assert content_text(node, ORG) == "Text"


@pytest.mark.parametrize("line", ["Deadline: 2026-11-20", "**Deadline:** 2026-11-20", "deadline: <2026-11-20>"])
def test_markdown_planning_is_shown_in_any_spelling(tmp_path: Path, line: str) -> None:
    """Regression: planning that was not in capitals was neither planning nor content."""
    file, node = load_nodes(tmp_path, f"# A\n{line}\nText\n## B\n#tag\n\n{line}\n\nText\n", "a.md")

    assert (planning_text(file), content_text(file, ORG)) == (line, "Text")
    assert (planning_text(node), content_text(node, ORG)) == (line, "Text")


@pytest.mark.parametrize("title", ["", "# A\n"])
def test_planning_in_front_matter_is_shown(tmp_path: Path, title: str) -> None:
    (file,) = load_nodes(tmp_path, f"---\nkey: value\ndeadline: 2026-11-20\n---\n{title}Text\n", "a.md")

    assert planning_text(file) == "deadline: 2026-11-20"


def test_a_line_that_only_mentions_a_date_is_not_planning(tmp_path: Path) -> None:
    _, node = load_nodes(tmp_path, "* One\n:PROPERTIES:\n:DEADLINE: 2026-11-20\n:END:\nDEADLINE: soon\n")

    assert planning_text(node) == ""
    assert content_text(node, ORG) == "DEADLINE: soon"


def test_no_content_line_looks_like_an_org_heading(tmp_path: Path) -> None:
    (file,) = load_nodes(
        tmp_path, "Text\n\n* item\n** no item\n*bold*\n\n```\n* fenced\n```\n * item\n", "a.md"
    )

    assert content_text(file, ORG) == "Text\n\n * item\n ** no item\n*bold*\n\n```\n * fenced\n```\n * item"
    assert content_text(file, MARKDOWN) == file.content


def test_no_content_line_looks_like_a_markdown_heading(tmp_path: Path) -> None:
    text = "# comment\n#+begin_src\n## two\n#\n#hashtag\n#######\n#+end_src\n"
    _, node = load_nodes(tmp_path, f"* One\n{text}")

    assert (
        content_text(node, MARKDOWN) == "\\# comment\n#+begin_src\n\\## two\n\\#\n#hashtag\n#######\n#+end_src"
    )
    assert content_text(node, ORG) == text.rstrip()


@pytest.mark.parametrize("fence", ["```", "~~~~", "  ```"])
def test_content_in_a_markdown_fence_is_not_escaped(tmp_path: Path, fence: str) -> None:
    text = f"{fence} sh\n# comment\n{fence}\n# after\n{fence}\n# to the end"
    _, node = load_nodes(tmp_path, f"* One\n{text}\n")

    assert content_text(node, MARKDOWN) == text.replace("# after", "\\# after")
