import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import foveate
from foveate import Memory
from foveate.errors import BadOption, BudgetExceeded
from foveate.memory.search.relevance import Index
from foveate.memory.views.node_text import content_text, planning_text, render_heading
from foveate.memory.views.view import ViewFormat
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.notes import NoteFolder, note_folders
from tests.support.strategies.sections import Odd

FORMATS = st.sampled_from(("org", "markdown"))
LIMITS = st.none() | st.integers(1, 60) | st.integers(1, 800)


def load_memory(forest: NoteFolder, folder: Path) -> Memory:
    for file in forest.files:
        (folder / file.path).write_text(file.text, encoding="utf-8")
    return Memory.load(folder)


@pytest.mark.slow
@settings(max_examples=limit_examples(80), deadline=None)
@given(data=st.data(), forest=note_folders(), limit_tokens=LIMITS, form=FORMATS)
def test_nothing_private_is_ever_in_a_view(
    data: st.DataObject, forest: NoteFolder, limit_tokens: int | None, form: str
) -> None:
    words = sorted(forest.public | forest.private) or ["none"]
    query = data.draw(st.none() | st.lists(st.sampled_from(words), max_size=4).map(" ".join))
    focus = data.draw(st.none() | st.sampled_from(forest.ids or ("none",)))
    with TemporaryDirectory() as folder:
        memory = load_memory(forest, Path(folder))
        try:
            view = memory.render(focus, query, limit_tokens, form)
            output = view.text + repr(view)
        except (BudgetExceeded, BadOption) as error:
            output = str(error).replace(str(focus), "what was asked for")

        assert not forest.leaked_words(output)


@pytest.mark.slow
@settings(max_examples=limit_examples(100), deadline=None)
@given(data=st.data(), forest=note_folders(), form=FORMATS)
def test_the_focus_is_shown_with_its_ancestors_or_it_is_an_error(
    data: st.DataObject, forest: NoteFolder, form: str
) -> None:
    shape = ViewFormat(form)
    with TemporaryDirectory() as folder:
        memory = load_memory(forest, Path(folder))
        assume(memory.nodes)
        node = data.draw(st.sampled_from(memory.nodes))
        query = data.draw(st.none() | st.sampled_from(sorted(forest.public) or ["none"]))
        path = [*reversed([*node.ancestors()]), node]
        titles = "\n".join(render_heading(each, shape, each.depth) for each in path)
        below = "\n".join(filter(None, (planning_text(node), content_text(node, shape))))
        # A date is never cut, other lines may be. After a short line the next one may be omitted.
        first = below.split("\n")[0]
        least = first if planning_text(node) else first[:8]
        alone, above, some, whole = (
            foveate.count(text).tokens
            for text in (
                render_heading(node, shape, node.depth),
                titles,
                f"{titles}\n{least}\n[...truncated]",
                f"{titles}\n{below}" if below else titles,
            )
        )
        # Errors are most probable where a node just fits.
        edge = data.draw(st.sampled_from((alone, above, some, whole)))
        limit_tokens = max(data.draw(st.integers(edge - 1, edge + 2) | st.integers(1, 500)), 1)
        if limit_tokens < alone:
            with pytest.raises(BudgetExceeded, match="the title of the focus takes"):
                memory.render(node, query, limit_tokens, form)
            return
        view = memory.render(node, query, limit_tokens, form)
    shown = {each.id: each.level for each in view.nodes}
    assert node.id in shown
    assert node.id in view.text
    if above <= limit_tokens:
        assert all(each.id in shown for each in path)
    if below and some <= limit_tokens:
        assert shown[node.id] != "title"
        assert f"\n{least}" in view.text
    if whole <= limit_tokens:
        assert shown[node.id] == "full"
        assert below in view.text


_WORDS = (
    "anchor", "basket", "copper", "dolphin", "ember", "falcon", "garden", "harvest", "island", "jacket",
    "kettle", "lantern", "marble",
)  # fmt: skip


@st.composite
def long_notes(draw: st.DrawFn) -> str:
    """An Org file with many headings to choose from."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20)), min_size=10, max_size=24))
    return "".join(
        f"{'*' * level} Heading {number}\n{' '.join(_WORDS[(number * size + at) % 13] for at in range(size))}\n"
        for number, (level, size) in enumerate(shapes)
    )


@pytest.mark.slow
@settings(max_examples=limit_examples(100), deadline=None)
@given(
    text=long_notes(),
    number=st.none() | st.integers(0, 9),
    query=st.none() | st.lists(st.sampled_from(_WORDS), min_size=1, max_size=4).map(" ".join),
    part=st.floats(0.2, 0.9),
)
def test_a_partial_view_is_deterministic(text: str, number: int | None, query: str | None, part: float) -> None:
    """The nearest or best comes first, and ties are resolved in the same way."""
    focus = None if number is None else f"Heading {number}"
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.org").write_text(text, encoding="utf-8")
        memory, again = Memory.load(folder), Memory.load(folder, index=Index())
        limit_tokens = max(int(memory.render(focus, query, 10_000).tokens * part), 60)
        views = [memory.render(focus, query, limit_tokens) for _ in range(4)]
        views.append(again.render(focus, query, limit_tokens))

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
@settings(max_examples=limit_examples(100), deadline=None)
@given(data=st.data(), forest=note_folders(), limit_tokens=st.integers(1, 500), form=FORMATS)
def test_a_view_is_deterministic_and_within_its_limit(
    data: st.DataObject, forest: NoteFolder, limit_tokens: int, form: str
) -> None:
    counter = data.draw(st.sampled_from(("gpt-4o", "claude-sonnet-4-5", "odd")))
    query = data.draw(st.none() | st.sampled_from(sorted(forest.public) or ["none"]))
    with TemporaryDirectory() as folder:
        memory, again = load_memory(forest, Path(folder)), Memory.load(folder, index=Index())
        focus = data.draw(st.none() | st.sampled_from(memory.nodes)) if memory.nodes else None
        model = Odd() if counter == "odd" else counter
        try:
            view = memory.render(focus, query, limit_tokens, form, model=model)
        except BudgetExceeded:
            return
        whole = Odd().text(view.text) if counter == "odd" else foveate.count(view.text, counter)

        assert view.count == whole
        assert view.count.upper <= limit_tokens
        assert again.render(focus and focus.id, query, limit_tokens, form, model=model) == view
        order = [node.id for node in memory.nodes]
        places = [order.index(node.id) for node in view.nodes]
        assert places == sorted(places)


def nested(levels: int) -> str:
    """An Org file with nested headings, all with text."""
    return "".join(f"{'*' * level} Level {level}\ntext {level}\n" for level in range(1, levels + 1))


@pytest.mark.slow
@pytest.mark.parametrize("levels", [2, 7, 60])
@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4-5"])
def test_a_view_of_a_deep_focus_is_within_every_limit(tmp_path: Path, levels: int, model: str) -> None:
    """Regression: the block of the focus was extended and could not be removed again."""
    (tmp_path / "deep.org").write_text(nested(levels), encoding="utf-8")
    (tmp_path / "flat.org").write_text(
        "".join(f"* Note {n}\nsome words\n" for n in range(30)), encoding="utf-8"
    )
    memory = Memory.load(tmp_path)
    node = memory.node(f"Level {levels}")
    path = [*reversed([*node.ancestors()]), node]
    titles = foveate.count("\n".join(render_heading(each, ViewFormat.ORG, each.depth) for each in path), model)

    for limit_tokens in range(40, 1200, 13):
        for query in (None, "text of level 2"):
            view = memory.render(node, query, limit_tokens, model=model)
            shown = {each.id for each in view.nodes}

            assert view.count.upper <= limit_tokens
            assert node.id in shown
            if titles.upper <= limit_tokens:
                assert shown.issuperset(each.id for each in path)
