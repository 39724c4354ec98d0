"""Properties of edits, for any request, spelling and set of edits."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate import formats
from foveate.model import BreakpointStyle, CacheBreakpoint, Format, ReplaceText, Ttl
from tests.support.harness.example_limits import limit_examples
from tests.support.oracles.edited_tree import EditedTree
from tests.support.oracles.json_tree import compare, scan
from tests.support.strategies.request_edits import edit_cases, request_bodies

for_each_format = pytest.mark.parametrize("api_format", list(Format))


@for_each_format
@given(st.data())
@settings(max_examples=limit_examples(20))
def test_no_edits_leave_the_bytes_unchanged(api_format: Format, data: st.DataObject) -> None:
    body = data.draw(request_bodies(api_format))

    assert formats.apply_edits(formats.parse_request(body, api_format), []) == body


@pytest.mark.slow
@for_each_format
@given(st.data())
def test_edits_are_written_and_every_other_byte_stays(api_format: Format, data: st.DataObject) -> None:
    """The oracle applies them to its own tree, and knows which bytes must not change."""
    case = data.draw(edit_cases(api_format))
    edited = formats.apply_edits(case.request, case.edits, breakpoint_style=case.style)

    json.loads(edited)
    node = scan(edited)
    expected = EditedTree(api_format, case.body, case.style).apply(case.edits)
    compare(expected, node)
    assert edited[: node.start] == case.body[: expected.start]
    assert edited[node.end :] == case.body[expected.end :]


@pytest.mark.slow
@for_each_format
@given(st.data())
@settings(max_examples=limit_examples(40))
def test_breakpoints_are_read_back_as_written(api_format: Format, data: st.DataObject) -> None:
    """Existing breakpoints stay, even if the texts of their blocks are replaced."""
    case = data.draw(edit_cases(api_format))
    expected_ttls = {
        edit.place: edit.ttl or Ttl.FIVE_MINUTES for edit in case.edits if isinstance(edit, CacheBreakpoint)
    }
    texts = {edit.place for edit in case.edits if isinstance(edit, ReplaceText)}
    edits = [edit for edit in case.edits if isinstance(edit, CacheBreakpoint | ReplaceText)]
    edited = formats.apply_edits(case.request, edits, breakpoint_style=case.style)

    blocks = formats.request_blocks(formats.parse_request(edited, api_format))
    for old, new in zip(formats.request_blocks(case.request), blocks, strict=True):
        if old.place in texts:
            assert (new.place, new.kind, new.role) == (old.place, old.kind, old.role)
        else:
            assert replace(new, breakpoint_ttl=old.breakpoint_ttl) == old
        if old.place not in expected_ttls:
            assert new.breakpoint_ttl == old.breakpoint_ttl
        elif (
            case.style is BreakpointStyle.PROMPT_CACHE_BREAKPOINT
        ):  # has no TTL of its own: the request has one for all of them
            assert new.breakpoint_ttl in (old.breakpoint_ttl or Ttl.THIRTY_MINUTES, Ttl.THIRTY_MINUTES)
        else:
            assert new.breakpoint_ttl == expected_ttls[old.place]


@for_each_format
@given(st.data())
@settings(max_examples=limit_examples(30))
def test_no_more_breakpoints_are_written_than_requested(api_format: Format, data: st.DataObject) -> None:
    """Breakpoints are counted by name, wherever they occur."""
    case = data.draw(edit_cases(api_format))
    breakpoints = [edit for edit in case.edits if isinstance(edit, CacheBreakpoint)]
    edited = formats.apply_edits(case.request, breakpoints, breakpoint_style=case.style)

    before, after = (_count_names(json.loads(body)) for body in (case.body, edited))
    if case.style:
        assert len(breakpoints) <= after[case.style] <= before[case.style] + len(breakpoints)


def _count_names(value: Any) -> Counter[str]:
    """Count the names whose value is not null."""
    if isinstance(value, dict):
        names = Counter(name for name, child in value.items() if child is not None)
        return sum(map(_count_names, value.values()), names)
    return sum(map(_count_names, value), Counter()) if isinstance(value, list) else Counter()
