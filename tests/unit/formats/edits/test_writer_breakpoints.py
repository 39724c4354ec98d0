"""Breakpoints of clients are kept, replaced where they count, and moved with their tools."""

import json
from typing import Any

import pytest

from foveate import formats
from foveate.model import (
    Area,
    BreakpointStyle,
    CacheBreakpoint,
    Edit,
    Format,
    Place,
    RemoveBreakpoint,
    ReorderTools,
    ReplaceText,
    Ttl,
)

SHORT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
POINT, LONG_POINT = {"cachePoint": {"type": "default"}}, {"cachePoint": {"type": "default", "ttl": "1h"}}
EXPLICIT = {"mode": "explicit"}


def mark(*place: Any, ttl: Ttl | None = None) -> CacheBreakpoint:
    return CacheBreakpoint(place=Place(*place), reason="", ttl=ttl)


def text(new: str, *place: Any) -> ReplaceText:
    return ReplaceText(place=Place(*place), text=new, reason="")


def first(
    api_format: Format, message: dict[str, Any], *edits: Edit, style: BreakpointStyle | None = None
) -> Any:
    """The message as it is written when it is the only one."""
    name = "input" if api_format is Format.RESPONSES else "messages"
    request = formats.parse_request({"model": "m", name: [message]}, api_format)
    return json.loads(formats.apply_edits(request, edits, breakpoint_style=style))[name][0]


def part(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


PLACE = (Area.MESSAGES, 0, 0)


def test_a_new_text_for_a_result_keeps_its_last_breakpoint() -> None:
    parts = [part("a", cache_control=SHORT), part("b", cache_control=LONG), part("c", cache_control=None)]

    written = first(Format.CHAT, {"role": "tool", "content": parts}, text("new", *PLACE))

    assert written["content"] == [part("new", cache_control=LONG)]


def test_a_new_text_for_a_responses_result_keeps_its_breakpoint() -> None:
    held = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": EXPLICIT}
    message = {"type": "function_call_output", "call_id": "1", "output": [held]}

    assert first(Format.RESPONSES, message, text("new", *PLACE))["output"] == [{**held, "text": "new"}]


def test_a_breakpoint_and_a_new_text_leave_one_breakpoint_of_each_kind() -> None:
    parts = [part("a", cache_control=LONG, prompt_cache_breakpoint=EXPLICIT)]

    written = first(Format.CHAT, {"role": "tool", "content": parts}, text("new", *PLACE), mark(*PLACE))

    assert written["content"] == [part("new", cache_control=SHORT, prompt_cache_breakpoint=EXPLICIT)]


@pytest.mark.parametrize("is_list", [True, False])
def test_a_new_text_for_a_result_keeps_its_json_form(is_list: bool) -> None:
    content = [part("a"), part("b")] if is_list else "a"
    new = [part("new")] if is_list else "new"
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}

    (written,) = first(Format.ANTHROPIC, {"role": "user", "content": [result]}, text("new", *PLACE))["content"]
    assert written == {**result, "content": new}
    assert first(Format.CHAT, {"role": "tool", "content": content}, text("new", *PLACE))["content"] == new


def test_a_result_has_its_breakpoint_on_the_last_part() -> None:
    parts = [part("a"), part("b")]

    written = first(Format.CHAT, {"role": "tool", "content": parts}, mark(*PLACE))

    assert written["content"] == [part("a"), part("b", cache_control=SHORT)]


def test_a_null_on_a_message_is_not_a_breakpoint() -> None:
    written = first(Format.CHAT, {"role": "user", "cache_control": None, "content": [part("a")]}, mark(*PLACE))

    assert written["cache_control"] is None
    assert written["content"] == [part("a", cache_control=SHORT)]


def test_a_breakpoint_is_written_on_the_block_if_both_have_one() -> None:
    message = {"role": "user", "cache_control": SHORT, "content": [part("a", cache_control=SHORT)]}

    written = first(Format.CHAT, message, mark(*PLACE, ttl=Ttl.ONE_HOUR))

    assert (written["cache_control"], written["content"][0]["cache_control"]) == (SHORT, LONG)
    (block,) = formats.request_blocks(formats.parse_request({"messages": [written]}, Format.CHAT))
    assert block.breakpoint_ttl is Ttl.ONE_HOUR


@pytest.mark.parametrize(("own", "counts"), [(LONG, Ttl.ONE_HOUR), (None, Ttl.FIVE_MINUTES)])
def test_a_blocks_breakpoint_takes_precedence_over_its_messages(own: Any, counts: Ttl) -> None:
    message = {"role": "user", "cache_control": SHORT, "content": [part("a", cache_control=own)]}

    (block,) = formats.request_blocks(formats.parse_request({"messages": [message]}, Format.CHAT))

    assert block.breakpoint_ttl is counts


@pytest.mark.parametrize("blank", [b"", b" "])
@pytest.mark.parametrize("name", [b"cache_control", b"cache\\u005fcontrol"])
def test_a_blocks_breakpoint_is_replaced_however_it_is_spelled(name: bytes, blank: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":[{"%s":{}%s,"type":"text","text":"a"}]}]}' % (name, blank)

    written = formats.apply_edits(
        formats.parse_request(body, Format.ANTHROPIC), (mark(*PLACE, ttl=Ttl.ONE_HOUR),)
    )

    assert written == body.replace(b"{}", b'{"type":"ephemeral","ttl":"1h"}')


@pytest.mark.parametrize("block", ["{}", "{ }", '{"a":"cache_control" }', '{"a":1\n}', '{"a":1},{"b":2}'])
def test_a_breakpoint_follows_the_last_member_of_its_block(block: str) -> None:
    body = b'{"messages":[{"role":"user","content":[%s]}]}' % block.encode()
    *others, last = json.loads(f"[{block}]")
    edits = (mark(Area.MESSAGES, 0, len(others)),)

    written = json.loads(formats.apply_edits(formats.parse_request(body, Format.ANTHROPIC), edits))

    assert written["messages"][0]["content"] == [*others, {**last, "cache_control": SHORT}]


def bedrock(*entries: dict[str, Any]) -> bytes:
    tools = b" , ".join(json.dumps(entry).encode() for entry in entries)
    return b'{"messages":[],"toolConfig":{"tools":[ ' + tools + b" ]}}"


def tool(name: str) -> dict[str, Any]:
    return {"toolSpec": {"name": name}}


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([], [POINT, tool("b"), tool("a"), LONG_POINT, tool("c"), POINT]),
        ([mark(Area.TOOLS, 0)], [POINT, tool("b"), tool("a"), POINT, tool("c"), POINT]),
        ([mark(Area.TOOLS, 1)], [POINT, tool("b"), POINT, tool("a"), LONG_POINT, tool("c"), POINT]),
    ],
)
def test_cache_points_move_with_their_tools(edits: list[Edit], expected: list[Any]) -> None:
    body = bedrock(POINT, tool("a"), LONG_POINT, tool("b"), tool("c"), POINT)
    order = ReorderTools(order=(1, 0, 2), reason="")

    written = formats.apply_edits(formats.parse_request(body), [order, *edits])

    assert json.loads(written) == json.loads(bedrock(*expected))


def test_bedrocks_tools_put_back_are_as_they_came() -> None:
    body = bedrock(POINT, tool("a"), LONG_POINT, tool("b"), tool("c"), POINT)
    request = formats.parse_request(body)

    for numbers in ((1, 0, 2), (2, 1, 0), (0, 2, 1)):
        order = ReorderTools(order=numbers, reason="")
        assert (
            formats.apply_edits(formats.parse_request(formats.apply_edits(request, [order])), [order]) == body
        )


def test_a_removed_breakpoint_is_null_and_every_other_byte_stays() -> None:
    body = (
        b'{"model":"m","system":[{"type":"text","text":"a","cache_control": {"type":"ephemeral"}}],'
        b' "messages":[]}'
    )
    request = formats.parse_request(body, Format.ANTHROPIC)
    removed = RemoveBreakpoint(place=Place(Area.SYSTEM, 0), reason="test")

    assert formats.apply_edits(request, [removed]) == body.replace(b'{"type":"ephemeral"}', b"null")
    assert (
        formats.request_blocks(
            formats.parse_request(formats.apply_edits(request, [removed]), Format.ANTHROPIC)
        )[0].breakpoint_ttl
        is None
    )
