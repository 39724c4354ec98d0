import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import foveate
from foveate import Memory
from foveate.errors import BadOption, BudgetExceeded
from foveate.memory.nodes import Node, shorten_ids
from foveate.memory.search.relevance import Index
from foveate.memory.views.page import content_text, planning_text, render_heading
from foveate.memory.views.view import ViewFormat
from tests.support.strategies.notes import NoteFolder, note_folders
from tests.support.strategies.sections import Odd

FORMATS: st.SearchStrategy[foveate.ViewFormatName] = st.sampled_from(("auto", "org", "markdown"))
LIMITS = st.none() | st.integers(1, 60) | st.integers(1, 800)


def load_memory(notes: NoteFolder, folder: Path) -> Memory:
    for file in notes.files:
        (folder / file.path).write_text(file.text, encoding="utf-8")
    return Memory.load(folder)


@pytest.mark.slow
@given(data=st.data(), notes=note_folders(), limit_tokens=LIMITS, view_format=FORMATS)
def test_nothing_private_is_ever_in_a_view(
    data: st.DataObject, notes: NoteFolder, limit_tokens: int | None, view_format: foveate.ViewFormatName
) -> None:
    words = sorted(notes.public | notes.private) or ["none"]
    query = data.draw(st.none() | st.lists(st.sampled_from(words), max_size=4).map(" ".join))
    focus = data.draw(st.none() | st.sampled_from(notes.ids or ("none",)))
    with TemporaryDirectory() as folder:
        memory = load_memory(notes, Path(folder))
        try:
            view = memory.render(focus, query, limit_tokens, view_format)
            output = view.text + repr(view) + repr(view.nodes) + view._repr_html_()
        except (BudgetExceeded, BadOption) as error:
            output = str(error).replace(str(focus), "what was asked for")

        assert not notes.leaked_words(output)


@pytest.mark.slow
@given(data=st.data(), notes=note_folders(), format_name=FORMATS)
def test_the_focus_is_shown_with_its_ancestors_or_it_is_an_error(
    data: st.DataObject, notes: NoteFolder, format_name: foveate.ViewFormatName
) -> None:
    view_format = ViewFormat(format_name)
    with TemporaryDirectory() as folder:
        memory = load_memory(notes, Path(folder))
        assume(memory.nodes)
        node = data.draw(st.sampled_from(memory.nodes))
        query = data.draw(st.none() | st.sampled_from(sorted(notes.public) or ["none"]))
        path = [*reversed([*node.ancestors()]), node]
        short_ids = {
            shown.id: short for shown, short in zip(memory.nodes, shorten_ids(memory.nodes), strict=True)
        }

        def heading(shown: Node) -> str:
            return render_heading(shown, view_format, shown.depth, short_id=short_ids[shown.id])

        titles = "\n".join(map(heading, path))
        body = "\n".join(filter(None, (planning_text(node), content_text(node, view_format))))
        # A date is never cut, other lines may be. After a short line the next one may be omitted.
        first = body.split("\n")[0]
        shortest = first if planning_text(node) else first[:8]
        title_tokens, path_tokens, excerpt_tokens, full_tokens = (
            foveate.count(text).tokens
            for text in (
                heading(node),
                titles,
                f"{titles}\n{shortest}\n[...truncated]",
                f"{titles}\n{body}" if body else titles,
            )
        )
        # Errors are most probable if a node just fits.
        near_limit = data.draw(st.sampled_from((title_tokens, path_tokens, excerpt_tokens, full_tokens)))
        limit_tokens = max(data.draw(st.integers(near_limit - 1, near_limit + 2) | st.integers(1, 500)), 1)
        if limit_tokens < title_tokens:
            with pytest.raises(BudgetExceeded, match="the title of the focus takes"):
                memory.render(node, query, limit_tokens, format_name)
            return
        view = memory.render(node, query, limit_tokens, format_name)
    levels = {path_node.id: path_node.level for path_node in view.nodes}
    assert node.id in levels
    assert short_ids[node.id] in view.text
    if path_tokens <= limit_tokens:
        assert all(path_node.id in levels for path_node in path)
    if body and excerpt_tokens <= limit_tokens:
        assert levels[node.id] != "title"
        assert f"\n{shortest}" in view.text
    if full_tokens <= limit_tokens:
        assert levels[node.id] == "full"
        assert body in view.text


_WORDS = (
    "anchor", "basket", "copper", "dolphin", "ember", "falcon", "garden", "harvest", "island", "jacket",
    "kettle", "lantern", "marble",
)  # fmt: skip


@st.composite
def long_notes(draw: st.DrawFn) -> str:
    """Generate an Org file with many headings."""
    headings = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20)), min_size=10, max_size=24))
    return "".join(
        f"{'*' * level} Heading {number}\n{' '.join(_WORDS[(number * size + i) % 13] for i in range(size))}\n"
        for number, (level, size) in enumerate(headings)
    )


@pytest.mark.slow
@given(
    text=long_notes(),
    number=st.none() | st.integers(0, 9),
    query=st.none() | st.lists(st.sampled_from(_WORDS), min_size=1, max_size=4).map(" ".join),
    share=st.floats(0.2, 0.9),
)
def test_a_partial_view_is_deterministic(
    text: str, number: int | None, query: str | None, share: float
) -> None:
    """The nearest or best comes first, and ties are resolved in the same way."""
    focus = None if number is None else f"Heading {number}"
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.org").write_text(text, encoding="utf-8")
        memory, reloaded = Memory.load(folder), Memory.load(folder, index=Index())
        limit_tokens = max(int(memory.render(focus, query, 10_000).tokens * share), 60)
        views = [memory.render(focus, query, limit_tokens) for _ in range(4)]
        views.append(reloaded.render(focus, query, limit_tokens))

        assert all(view == views[0] for view in views)


_NOTES = "".join(
    f"* Branch {branch}\n" + "".join(f"** Leaf {branch}{leaf}\nWords {leaf} of it.\n" for leaf in range(6))
    for branch in "abcdef"
)
_RENDERED = """
import sys
from foveate import Memory
memory = Memory.load(sys.argv[1])
for limit_tokens in (60, 150, 250, 400):
    for focus, query in (("Leaf c3", None), (None, "words 2 of leaf d"), ("Leaf a1", "words 4")):
        print(memory.render(focus, query, limit_tokens).text)
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_view_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "a.org").write_text(_NOTES, encoding="utf-8")
    (tmp_path / "b.org").write_text(_NOTES.replace("Leaf", "Twig"), encoding="utf-8")
    output = {
        subprocess.run(
            (sys.executable, "-c", _RENDERED, tmp_path),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(output) == 1
    assert b"Leaf c3" in output.pop()


@pytest.mark.slow
@given(data=st.data(), notes=note_folders(), limit_tokens=st.integers(1, 500), view_format=FORMATS)
def test_a_view_is_deterministic_and_within_its_limit(
    data: st.DataObject, notes: NoteFolder, limit_tokens: int, view_format: foveate.ViewFormatName
) -> None:
    counter = data.draw(st.sampled_from(("gpt-4o", "claude-sonnet-4-5", "odd")))
    query = data.draw(st.none() | st.sampled_from(sorted(notes.public) or ["none"]))
    with TemporaryDirectory() as folder:
        memory, reloaded = load_memory(notes, Path(folder)), Memory.load(folder, index=Index())
        focus = data.draw(st.none() | st.sampled_from(memory.nodes)) if memory.nodes else None
        model = Odd() if counter == "odd" else counter
        try:
            view = memory.render(focus, query, limit_tokens, view_format, model=model)
        except BudgetExceeded:
            return
        expected = Odd().text(view.text) if counter == "odd" else foveate.count(view.text, counter)

        assert view.count == expected
        assert view.count.upper <= limit_tokens
        assert reloaded.render(focus and focus.id, query, limit_tokens, view_format, model=model) == view
        order = [node.id for node in memory.nodes]
        positions = [order.index(node.id) for node in view.nodes]
        assert positions == sorted(positions)


def nested_headings(levels: int) -> str:
    """Build an Org file with nested headings, all with text."""
    return "".join(f"{'*' * level} Level {level}\ntext {level}\n" for level in range(1, levels + 1))


@pytest.mark.slow
@pytest.mark.parametrize("levels", [2, 7, 60])
@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4-5"])
def test_a_view_of_a_deep_focus_is_within_every_limit(tmp_path: Path, levels: int, model: str) -> None:
    """Regression: the block of the focus was extended and could not be removed again."""
    (tmp_path / "deep.org").write_text(nested_headings(levels), encoding="utf-8")
    (tmp_path / "flat.org").write_text(
        "".join(f"* Note {number}\nsome words\n" for number in range(30)), encoding="utf-8"
    )
    memory = Memory.load(tmp_path)
    node = memory.node(f"Level {levels}")
    path = [*reversed([*node.ancestors()]), node]
    titles = foveate.count(
        "\n".join(render_heading(path_node, ViewFormat.ORG, path_node.depth) for path_node in path), model
    )

    for limit_tokens in range(40, 1200, 13):
        for query in (None, "text of level 2"):
            view = memory.render(node, query, limit_tokens, model=model)
            shown_ids = {path_node.id for path_node in view.nodes}

            assert view.count.upper <= limit_tokens
            assert node.id in shown_ids
            if titles.upper <= limit_tokens:
                assert shown_ids.issuperset(path_node.id for path_node in path)
