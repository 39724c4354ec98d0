"""Breakpoints of clients are kept, replaced if they take effect, and moved with their tools."""

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
CACHE_POINT, LONG_CACHE_POINT = (
    {"cachePoint": {"type": "default"}},
    {"cachePoint": {"type": "default", "ttl": "1h"}},
)
EXPLICIT = {"mode": "explicit"}


def breakpoint_at(*place: Any, ttl: Ttl | None = None) -> CacheBreakpoint:
    return CacheBreakpoint(place=Place(*place), reason="", ttl=ttl)


def replace_text_at(new_text: str, *place: Any) -> ReplaceText:
    return ReplaceText(place=Place(*place), text=new_text, reason="")


def apply_to_message(
    api_format: Format, message: dict[str, Any], *edits: Edit, style: BreakpointStyle | None = None
) -> Any:
    """Write the message as the only one of a request, and return it."""
    name = "input" if api_format is Format.RESPONSES else "messages"
    request = formats.parse_request({"model": "m", name: [message]}, api_format)
    return json.loads(formats.apply_edits(request, edits, breakpoint_style=style))[name][0]


def text_block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


PLACE = (Area.MESSAGES, 0, 0)


def test_a_new_text_for_a_result_keeps_its_last_breakpoint() -> None:
    parts = [
        text_block("a", cache_control=SHORT),
        text_block("b", cache_control=LONG),
        text_block("c", cache_control=None),
    ]

    edited = apply_to_message(Format.CHAT, {"role": "tool", "content": parts}, replace_text_at("new", *PLACE))

    assert edited["content"] == [text_block("new", cache_control=LONG)]


def test_a_new_text_for_a_responses_result_keeps_its_breakpoint() -> None:
    block = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": EXPLICIT}
    message = {"type": "function_call_output", "call_id": "1", "output": [block]}

    assert apply_to_message(Format.RESPONSES, message, replace_text_at("new", *PLACE))["output"] == [
        {**block, "text": "new"}
    ]


def test_a_breakpoint_and_a_new_text_leave_one_breakpoint_of_each_kind() -> None:
    parts = [text_block("a", cache_control=LONG, prompt_cache_breakpoint=EXPLICIT)]

    edited = apply_to_message(
        Format.CHAT, {"role": "tool", "content": parts}, replace_text_at("new", *PLACE), breakpoint_at(*PLACE)
    )

    assert edited["content"] == [text_block("new", cache_control=SHORT, prompt_cache_breakpoint=EXPLICIT)]


@pytest.mark.parametrize("is_list", [True, False])
def test_a_new_text_for_a_result_keeps_its_json_form(is_list: bool) -> None:
    content = [text_block("a"), text_block("b")] if is_list else "a"
    new = [text_block("new")] if is_list else "new"
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}

    (edited,) = apply_to_message(
        Format.ANTHROPIC, {"role": "user", "content": [result]}, replace_text_at("new", *PLACE)
    )["content"]
    assert edited == {**result, "content": new}
    assert (
        apply_to_message(Format.CHAT, {"role": "tool", "content": content}, replace_text_at("new", *PLACE))[
            "content"
        ]
        == new
    )


def test_a_result_has_its_breakpoint_on_the_last_part() -> None:
    parts = [text_block("a"), text_block("b")]

    edited = apply_to_message(Format.CHAT, {"role": "tool", "content": parts}, breakpoint_at(*PLACE))

    assert edited["content"] == [text_block("a"), text_block("b", cache_control=SHORT)]


def test_a_null_on_a_message_is_not_a_breakpoint() -> None:
    edited = apply_to_message(
        Format.CHAT,
        {"role": "user", "cache_control": None, "content": [text_block("a")]},
        breakpoint_at(*PLACE),
    )

    assert edited["cache_control"] is None
    assert edited["content"] == [text_block("a", cache_control=SHORT)]


def test_a_breakpoint_is_written_on_the_block_if_both_have_one() -> None:
    message = {"role": "user", "cache_control": SHORT, "content": [text_block("a", cache_control=SHORT)]}

    edited = apply_to_message(Format.CHAT, message, breakpoint_at(*PLACE, ttl=Ttl.ONE_HOUR))

    assert (edited["cache_control"], edited["content"][0]["cache_control"]) == (SHORT, LONG)
    (block,) = formats.request_blocks(formats.parse_request({"messages": [edited]}, Format.CHAT))
    assert block.breakpoint_ttl is Ttl.ONE_HOUR


@pytest.mark.parametrize(("block_breakpoint", "expected"), [(LONG, Ttl.ONE_HOUR), (None, Ttl.FIVE_MINUTES)])
def test_a_blocks_breakpoint_takes_precedence_over_its_messages(block_breakpoint: Any, expected: Ttl) -> None:
    message = {
        "role": "user",
        "cache_control": SHORT,
        "content": [text_block("a", cache_control=block_breakpoint)],
    }

    (block,) = formats.request_blocks(formats.parse_request({"messages": [message]}, Format.CHAT))

    assert block.breakpoint_ttl is expected


@pytest.mark.parametrize("blank", [b"", b" "])
@pytest.mark.parametrize("name", [b"cache_control", b"cache\\u005fcontrol"])
def test_a_blocks_breakpoint_is_replaced_however_it_is_spelled(name: bytes, blank: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":[{"%s":{}%s,"type":"text","text":"a"}]}]}' % (name, blank)

    edited = formats.apply_edits(
        formats.parse_request(body, Format.ANTHROPIC), (breakpoint_at(*PLACE, ttl=Ttl.ONE_HOUR),)
    )

    assert edited == body.replace(b"{}", b'{"type":"ephemeral","ttl":"1h"}')


@pytest.mark.parametrize("block", ["{}", "{ }", '{"a":"cache_control" }', '{"a":1\n}', '{"a":1},{"b":2}'])
def test_a_breakpoint_follows_the_last_member_of_its_block(block: str) -> None:
    body = b'{"messages":[{"role":"user","content":[%s]}]}' % block.encode()
    *others, last = json.loads(f"[{block}]")
    edits = (breakpoint_at(Area.MESSAGES, 0, len(others)),)

    edited = json.loads(formats.apply_edits(formats.parse_request(body, Format.ANTHROPIC), edits))

    assert edited["messages"][0]["content"] == [*others, {**last, "cache_control": SHORT}]


def bedrock(*entries: dict[str, Any]) -> bytes:
    tools = b" , ".join(json.dumps(entry).encode() for entry in entries)
    return b'{"messages":[],"toolConfig":{"tools":[ ' + tools + b" ]}}"


def tool(name: str) -> dict[str, Any]:
    return {"toolSpec": {"name": name}}


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([], [CACHE_POINT, tool("b"), tool("a"), LONG_CACHE_POINT, tool("c"), CACHE_POINT]),
        (
            [breakpoint_at(Area.TOOLS, 0)],
            [CACHE_POINT, tool("b"), tool("a"), CACHE_POINT, tool("c"), CACHE_POINT],
        ),
        (
            [breakpoint_at(Area.TOOLS, 1)],
            [CACHE_POINT, tool("b"), CACHE_POINT, tool("a"), LONG_CACHE_POINT, tool("c"), CACHE_POINT],
        ),
    ],
)
def test_cache_points_move_with_their_tools(edits: list[Edit], expected: list[Any]) -> None:
    body = bedrock(CACHE_POINT, tool("a"), LONG_CACHE_POINT, tool("b"), tool("c"), CACHE_POINT)
    order = ReorderTools(order=(1, 0, 2), reason="")

    edited = formats.apply_edits(formats.parse_request(body), [order, *edits])

    assert json.loads(edited) == json.loads(bedrock(*expected))


def test_bedrocks_tools_in_their_original_order_are_unchanged() -> None:
    body = bedrock(CACHE_POINT, tool("a"), LONG_CACHE_POINT, tool("b"), tool("c"), CACHE_POINT)
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
    edit = RemoveBreakpoint(place=Place(Area.SYSTEM, 0), reason="test")

    assert formats.apply_edits(request, [edit]) == body.replace(b'{"type":"ephemeral"}', b"null")
    assert (
        formats.request_blocks(formats.parse_request(formats.apply_edits(request, [edit]), Format.ANTHROPIC))[
            0
        ].breakpoint_ttl
        is None
    )
