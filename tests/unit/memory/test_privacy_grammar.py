from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import Memory, ViewFormatName
from foveate.memory.parsing.markdown import parse_markdown
from foveate.memory.parsing.org import parse_org
from foveate.memory.privacy import Gate
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.privacy_notes import Note, prose_notes, tagged_notes

GATE = Gate()


def public_text(note: Note) -> str:
    parse = parse_org if note.suffix == ".org" else parse_markdown
    return GATE.redact(parse(note.text, name="name")).text


@settings(max_examples=limit_examples(400))
@given(tagged_notes())
def test_a_tag_in_any_documented_position_hides_its_target_and_no_other_heading(note: Note) -> None:
    text = public_text(note)

    assert [word for word in sorted(note.hidden) if word in text] == []
    assert [word for word in sorted(note.shown) if word not in text] == []


@settings(max_examples=limit_examples(200))
@given(prose_notes())
def test_prose_about_privacy_hides_nothing(note: Note) -> None:
    assert public_text(note) == note.text


FORMATS: st.SearchStrategy[ViewFormatName] = st.sampled_from(("auto", "org", "markdown"))


@pytest.mark.slow
@given(notes=st.lists(tagged_notes(), min_size=1, max_size=3), view_format=FORMATS)
def test_hidden_text_is_never_rendered_listed_or_found(notes: list[Note], view_format: ViewFormatName) -> None:
    with TemporaryDirectory() as folder:
        words = set[str]()
        for number, note in enumerate(notes):
            prefix = f"n{number}word"  # each note has its own words
            words |= {word.replace("word", prefix) for word in note.hidden}
            path = Path(folder) / f"note{number}{note.suffix}"
            path.write_text(note.text.replace("word", prefix), encoding="utf-8", newline="")
        memory = Memory.load(folder)
        views = [
            memory.render(None, query, limit, view_format)
            for query in (None, *sorted(words)[:2])
            for limit in (None, 300)
        ]
        node_facts = [
            (node.id, node.title, node.tags)
            for node in (*memory.nodes, *memory.query(todo="any"), *memory.recent_tasks())
        ]

        output = (
            repr(views)
            + repr([view.nodes for view in views])
            + "".join(view.text for view in views)
            + repr(node_facts)
            + repr(memory.problems)
        )
        assert [word for word in sorted(words) if word in output] == []
        assert memory.has_private
