"""What always holds of edits, for any request, any spelling and any set of them."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate import wire
from foveate.values import Format, Mark, MarkStyle, ReplaceText, Ttl
from tests.edited_trees import Edited
from tests.json_tree import compare, scan
from tests.requests_to_edit import cases, handed_in
from tests.support.examples import limit_examples

in_every_format = pytest.mark.parametrize("spoken", list(Format))


@in_every_format
@given(st.data())
@settings(max_examples=limit_examples(20))
def test_no_edits_give_the_very_same_bytes(spoken: Format, data: st.DataObject) -> None:
    body = data.draw(handed_in(spoken))

    assert wire.write(wire.read(body, spoken), []) == body


@pytest.mark.slow
@in_every_format
@given(st.data())
@settings(max_examples=limit_examples(100))
def test_edits_are_written_and_every_other_byte_stays(spoken: Format, data: st.DataObject) -> None:
    """The oracle applies them to a tree of its own, and knows which bytes must be as they were."""
    case = data.draw(cases(spoken))
    written = wire.write(case.request, case.edits, marks=case.style)

    json.loads(written)
    node = scan(written)
    expected = Edited(spoken, case.body, case.style).apply(case.edits)
    compare(expected, node)
    assert written[: node.start] == case.body[: expected.start]
    assert written[node.end :] == case.body[expected.end :]


@pytest.mark.slow
@in_every_format
@given(st.data())
@settings(max_examples=limit_examples(40))
def test_marks_are_read_back_as_they_were_written(spoken: Format, data: st.DataObject) -> None:
    """And those that were there stay, whatever becomes of the texts that bear them."""
    case = data.draw(cases(spoken))
    marks = {edit.place: edit.ttl or Ttl.FIVE_MINUTES for edit in case.edits if isinstance(edit, Mark)}
    texts = {edit.place for edit in case.edits if isinstance(edit, ReplaceText)}
    edits = [edit for edit in case.edits if isinstance(edit, Mark | ReplaceText)]
    written = wire.write(case.request, edits, marks=case.style)

    found = wire.blocks(wire.read(written, spoken))
    for old, new in zip(wire.blocks(case.request), found, strict=True):
        if old.place in texts:
            assert (new.place, new.kind, new.role) == (old.place, old.kind, old.role)
        else:
            assert replace(new, mark=old.mark) == old
        if old.place not in marks:
            assert new.mark == old.mark
        elif case.style is MarkStyle.BREAKPOINT:  # says nothing of time: the request does, for all of them
            assert new.mark in (old.mark or Ttl.THIRTY_MINUTES, Ttl.THIRTY_MINUTES)
        else:
            assert new.mark == marks[old.place]


@in_every_format
@given(st.data())
@settings(max_examples=limit_examples(30))
def test_no_more_marks_are_written_than_were_asked_for(spoken: Format, data: st.DataObject) -> None:
    """Counted by their names alone, whatever these mean where they stand."""
    case = data.draw(cases(spoken))
    marks = [edit for edit in case.edits if isinstance(edit, Mark)]
    written = wire.write(case.request, marks, marks=case.style)

    before, after = (_counted(json.loads(body)) for body in (case.body, written))
    if case.style:
        assert len(marks) <= after[case.style] <= before[case.style] + len(marks)


def _counted(value: Any) -> Counter[str]:
    """How often each name stands in it with a value."""
    if isinstance(value, dict):
        own = Counter(name for name, inner in value.items() if inner is not None)
        return sum(map(_counted, value.values()), own)
    return sum(map(_counted, value), Counter()) if isinstance(value, list) else Counter()
