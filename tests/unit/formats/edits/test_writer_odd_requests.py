"""An edit of any odd request is written, or rejected with a clear error."""

import json
from typing import Any

from hypothesis import given, settings
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
from tests.support.harness.example_limits import limit_examples
from tests.support.oracles.json_tree import spell_oddly
from tests.support.strategies.request_edits import BODIES

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    (None, True, 1, "", "x", [], {}, [1], ["x"], [[]], [None], {"a": 1}, {"type": []})
)
places = st.builds(Place, st.sampled_from(Area), st.integers(-1, 3), st.none() | st.integers(-1, 3))
paths = st.lists(
    st.sampled_from(("a", "tools", "toolConfig", "system", "messages", "metadata")), max_size=3
).map(tuple)
edits: st.SearchStrategy[Edit] = st.one_of(
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


def spoilt(value: Any, draw: st.DrawFn) -> Any:
    """`value` with a random replacement somewhere inside."""
    if not value or not isinstance(value, dict | list) or draw(st.integers(0, 3)) == 0:
        return draw(JUNK)
    if isinstance(value, list):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], spoilt(value[at], draw), *value[at + 1 :]]
    name = draw(st.sampled_from(sorted(value)))
    return {**value, name: spoilt(value[name], draw)}


@st.composite
def spoilt_bodies(draw: st.DrawFn) -> tuple[Format, bytes]:
    api_format = draw(st.sampled_from(Format))
    body = draw(BODIES[api_format])
    name = draw(st.sampled_from(sorted(body)))
    return api_format, spell_oddly({**body, name: spoilt(body[name], draw)}, draw(st.integers(0, 2**32)))


@given(spoilt_bodies(), st.lists(edits, max_size=3), st.none() | st.sampled_from(BreakpointStyle))
@settings(max_examples=limit_examples(120))
def test_an_edit_is_written_or_refused(
    body: tuple[Format, bytes], wanted: list[Edit], style: BreakpointStyle | None
) -> None:
    try:
        request = formats.parse_request(body[1], body[0])
        formats.request_blocks(request)
        written = formats.apply_edits(request, wanted, breakpoint_style=style)
    except (BadEdit, MalformedRequest):
        return
    assert isinstance(json.loads(written), dict)
    assert (written == request.body) or wanted
