"""An edit of any odd request is written, or rejected with a clear error."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import BadEdit, MalformedRequest
from foveate.model import (
    Area,
    BreakpointStyle,
    CacheBreakpoint,
    Edit,
    Format,
    InsertParts,
    Message,
    Place,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
    Text,
)
from tests.support.oracles.json_tree import spell_oddly
from tests.support.strategies.request_edits import BODIES

json_values: st.SearchStrategy[Any] = st.sampled_from(
    (None, True, 1, "", "x", [], {}, [1], ["x"], [[]], [None], {"a": 1}, {"type": []})
)
places = st.builds(Place, st.sampled_from(Area), st.integers(-1, 3), st.none() | st.integers(-1, 3))
paths = st.lists(
    st.sampled_from(("a", "tools", "toolConfig", "system", "messages", "metadata")), max_size=3
).map(tuple)
edit_strategies: st.SearchStrategy[Edit] = st.one_of(
    st.builds(CacheBreakpoint, place=places, reason=st.just("")),
    st.builds(ReplaceText, place=places, text=st.just("t"), reason=st.just("")),
    st.builds(InsertParts, place=places, parts=st.just((Text("p"),)), reason=st.just("")),
    st.builds(
        ReplaceMessages,
        start=st.integers(-1, 3),
        end=st.integers(-1, 3),
        messages=st.sampled_from(((), (Message(role="user", parts=(Text("m"),)),))),
        reason=st.just(""),
    ),
    st.builds(ReorderTools, order=st.permutations(range(3)).map(tuple), reason=st.just("")),
    st.builds(SetParameter, path=paths, value=st.just(1), reason=st.just("")),
)


def replace_randomly(value: Any, draw: st.DrawFn) -> Any:
    """Return `value` with a random replacement somewhere inside."""
    if not value or not isinstance(value, (dict, list)) or draw(st.integers(0, 3)) == 0:
        return draw(json_values)
    if isinstance(value, list):
        index = draw(st.integers(0, len(value) - 1))
        return [*value[:index], replace_randomly(value[index], draw), *value[index + 1 :]]
    name = draw(st.sampled_from(sorted(value)))
    return {**value, name: replace_randomly(value[name], draw)}


@st.composite
def malformed_bodies(draw: st.DrawFn) -> tuple[Format, bytes]:
    api_format = draw(st.sampled_from(Format))
    body = draw(BODIES[api_format])
    name = draw(st.sampled_from(sorted(body)))
    return api_format, spell_oddly(
        {**body, name: replace_randomly(body[name], draw)}, draw(st.integers(0, 2**32))
    )


@given(malformed_bodies(), st.lists(edit_strategies, max_size=3), st.none() | st.sampled_from(BreakpointStyle))
def test_an_edit_is_written_or_rejected(
    format_and_body: tuple[Format, bytes], edit_list: list[Edit], style: BreakpointStyle | None
) -> None:
    try:
        request = formats.parse_request(format_and_body[1], format_and_body[0])
        formats.request_blocks(request)
        edited = formats.apply_edits(request, edit_list, breakpoint_style=style)
    except (BadEdit, MalformedRequest):
        return
    assert isinstance(json.loads(edited), dict)
    assert (edited == request.body) or edit_list
