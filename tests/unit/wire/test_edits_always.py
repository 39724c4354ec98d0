"""What always holds of edits, for any request, any spelling and any set of them."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings

from foveate import wire
from foveate.values import Mark, MarkStyle, Request, Ttl
from tests.edited_trees import Edited
from tests.json_tree import compare, scan
from tests.requests_to_edit import Case, cases, requests


@given(requests())
@settings(max_examples=50)
def test_no_edits_give_the_very_same_bytes(request: Request) -> None:
    assert wire.write(request, []) is request.body


@given(cases())
@settings(max_examples=150)
def test_edits_are_written_and_every_other_byte_stays(case: Case) -> None:
    """The oracle applies them to a tree of its own, and knows which bytes must be as they were."""
    written = wire.write(case.request, case.edits, marks=case.style)

    expected = Edited(case.request.format, case.request.body, case.style).apply(case.edits)
    compare(expected, scan(written))


@given(cases())
@settings(max_examples=80)
def test_marks_are_read_back_as_they_were_written(case: Case) -> None:
    asked = {edit.place: edit.ttl or Ttl.FIVE_MINUTES for edit in case.edits if isinstance(edit, Mark)}
    marks = [edit for edit in case.edits if isinstance(edit, Mark)]
    written = wire.write(case.request, marks, marks=case.style)

    found = wire.blocks(wire.read(written, case.request.format))
    for old, new in zip(wire.blocks(case.request), found, strict=True):
        assert replace(new, mark=old.mark) == old
        if old.place not in asked:
            assert new.mark == old.mark
        elif case.style is MarkStyle.BREAKPOINT:  # says nothing of time: the request does, for all of them
            assert new.mark in (old.mark, Ttl.THIRTY_MINUTES)
        else:
            assert new.mark == asked[old.place]


@given(cases())
@settings(max_examples=80)
def test_no_more_marks_are_written_than_were_asked_for(case: Case) -> None:
    """Counted by their names alone, whatever these mean where they stand."""
    marks = [edit for edit in case.edits if isinstance(edit, Mark)]
    written = wire.write(case.request, marks, marks=case.style)

    before, after = (_counted(json.loads(body)) for body in (case.request.body, written))
    if case.style:
        assert len(marks) <= after[case.style] <= before[case.style] + len(marks)


def _counted(value: Any) -> Counter[str]:
    """How often each name stands in it with a value."""
    if isinstance(value, dict):
        own = Counter(name for name, inner in value.items() if inner is not None)
        return sum(map(_counted, value.values()), own)
    return sum(map(_counted, value), Counter()) if isinstance(value, list) else Counter()
