"""Each edit in each format, and edits that are rejected."""

import json
from typing import Any

import pytest

from foveate import formats
from foveate.errors import BadEdit
from foveate.model import (
    Area,
    BreakpointStyle,
    CacheBreakpoint,
    Edit,
    Format,
    Image,
    InsertParts,
    MediaSource,
    Message,
    Opaque,
    Part,
    Place,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
    Text,
    Ttl,
)

ANTHROPIC = (
    rb'{ "model":"claude-4", "system" : "S\u00e9" ,"tools":[ {"name":"a"} , {"name":"b"}], "messages":['
    rb' {"role":"user","content":"hi"} ,{"role":"user","content":[{"type":"thinking","thinking":"t"}]}]}'
)


def breakpoint_at(*place: Any, ttl: Ttl | None = None) -> CacheBreakpoint:
    return CacheBreakpoint(place=Place(*place), reason="", ttl=ttl)


def replace_text_at(new_text: str, *place: Any) -> ReplaceText:
    return ReplaceText(place=Place(*place), text=new_text, reason="")


def insert_at(content: str | Part, *place: Any, role: str = "user") -> InsertParts:
    part = Text(content) if isinstance(content, str) else content
    return InsertParts(place=Place(*place), parts=(part,), reason="", role=role)


def replace_messages(start: int, end: int, *texts: str) -> ReplaceMessages:
    messages = tuple(Message(role="user", parts=(Text(text),)) for text in texts)
    return ReplaceMessages(start=start, end=end, messages=messages, reason="")


def reorder_tools(*numbers: int) -> ReorderTools:
    return ReorderTools(order=numbers, reason="")


def set_parameter(value: str | int | bool, *path: str) -> SetParameter:
    return SetParameter(path=path, value=value, reason="")


def apply_to(body: bytes | dict[str, Any], *edits: Edit, style: BreakpointStyle | None = None) -> bytes:
    return formats.apply_edits(formats.parse_request(body), edits, breakpoint_style=style)


@pytest.mark.parametrize(
    ("edits", "old", "new"),
    [
        (
            [breakpoint_at(Area.SYSTEM, 0, ttl=Ttl.ONE_HOUR)],
            rb'"S\u00e9"',
            rb'[{"type":"text","text":"S\u00e9","cache_control":{"type":"ephemeral","ttl":"1h"}}]',
        ),
        (
            [
                breakpoint_at(Area.MESSAGES, 0, 0, ttl=Ttl.FIVE_MINUTES),
                replace_text_at("ho", Area.MESSAGES, 0, 0),
            ],
            b'"hi"',
            b'[{"type":"text","text":"ho","cache_control":{"type":"ephemeral"}}]',
        ),
        (
            [insert_at("\u00e9", Area.SYSTEM, 1), breakpoint_at(Area.SYSTEM, 0)],
            rb'"S\u00e9"',
            rb'[{"type":"text","text":"S\u00e9","cache_control":{"type":"ephemeral"}},'
            + '{"type":"text","text":"é"}]'.encode(),
        ),
        ([reorder_tools(1, 0)], b'{"name":"a"} , {"name":"b"}', b'{"name":"b"} , {"name":"a"}'),
        ([replace_messages(0, 1)], b'{"role":"user","content":"hi"} ,', b""),
        ([replace_messages(0, 1, "x")], b'"content":"hi"', b'"content":"x"'),
        ([set_parameter("k", "metadata", "user_id")], b"}]}]}", b'}]}],"metadata":{"user_id":"k"}}'),
        ([set_parameter("gpt", "model")], b'"claude-4"', b'"gpt"'),
    ],
)
def test_an_edit_changes_only_its_own_bytes(edits: list[Edit], old: bytes, new: bytes) -> None:
    assert ANTHROPIC.count(old) == 1

    assert apply_to(ANTHROPIC, *edits) == ANTHROPIC.replace(old, new)


def test_a_breakpoint_moves_with_its_tool() -> None:
    tools = json.loads(apply_to(ANTHROPIC, reorder_tools(1, 0), breakpoint_at(Area.TOOLS, 0)))["tools"]

    assert tools == [{"name": "b"}, {"name": "a", "cache_control": {"type": "ephemeral"}}]


def test_a_string_of_responses_becomes_a_list_only_if_needed() -> None:
    body = b'{"input":"hi","instructions":"Be"}'
    block = b'{"type":"input_text","text":"hi","prompt_cache_breakpoint":{"mode":"explicit"}}'

    assert apply_to(body, replace_text_at("ho", Area.MESSAGES, 0, 0)) == body.replace(b"hi", b"ho")
    assert apply_to(body, breakpoint_at(Area.MESSAGES, 0, 0)) == body.replace(
        b'"hi"', b'[{"role":"user","content":[' + block + b"]}]"
    )


def test_text_inserted_into_plain_instructions_is_separated_by_a_blank_line() -> None:
    body = rb'{"input":[],"instructions":"B\u0065"}'

    assert apply_to(body, insert_at("A", Area.SYSTEM, 0), insert_at("C", Area.SYSTEM, 1)) == body.replace(
        rb"B\u0065", rb"A\n\nB\u0065\n\nC"
    )


def test_a_breakpoint_of_chat_has_the_requested_style() -> None:
    body = b'{"model":"gpt","messages":[{"role":"tool","tool_call_id":"1","content":"r"}]}'
    place = Area.MESSAGES, 0, 0

    for style, value in (
        (BreakpointStyle.CACHE_CONTROL, {"type": "ephemeral"}),
        (BreakpointStyle.PROMPT_CACHE_BREAKPOINT, {"mode": "explicit"}),
    ):
        content = json.loads(apply_to(body, breakpoint_at(*place), style=style))["messages"][0]["content"]
        assert content == [{"type": "text", "text": "r", style.value: value}]


def test_a_clients_breakpoint_on_a_message_is_replaced_in_place() -> None:
    body = b'{"messages":[{"role":"user","content":"a","cache_control":{"type":"ephemeral"}}]}'

    assert apply_to(body, breakpoint_at(Area.MESSAGES, 0, 0, ttl=Ttl.ONE_HOUR)) == body.replace(
        b'"ephemeral"', b'"ephemeral","ttl":"1h"'
    )


def test_geminis_wrapped_request_can_be_edited() -> None:
    body = b'{"generateContentRequest":{"contents":{"parts":{"text":"a"}}}}'

    assert json.loads(apply_to(body, insert_at("s", Area.SYSTEM, 0), insert_at("b", Area.MESSAGES, 1))) == {
        "generateContentRequest": {
            "contents": [{"parts": {"text": "a"}}, {"role": "user", "parts": [{"text": "b"}]}],
            "systemInstruction": {"parts": [{"text": "s"}]},
        }
    }


def test_a_lone_surrogate_is_unchanged() -> None:
    """Providers accept a lone surrogate, so it must be forwarded unchanged."""
    body = (
        rb'{"model":"claude-4","messages":[{"role":"user","content":"\ud83d"},{"role":"user","content":"a"}]}'
    )

    assert rb'"text":"\ud83d","cache_control"' in apply_to(body, breakpoint_at(Area.MESSAGES, 0, 0))
    assert apply_to(body, replace_text_at("b", Area.MESSAGES, 1, 0)) == body.replace(b'"a"', b'"b"')


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (
            [replace_text_at("x", Area.MESSAGES, 0, 0), replace_text_at("y", Area.MESSAGES, 0, 0)],
            "messages.0.0: two texts",
        ),
        (
            [breakpoint_at(Area.SYSTEM, 0), breakpoint_at(Area.SYSTEM, 0, ttl=Ttl.ONE_HOUR)],
            "system.0: two different cache breakpoints",
        ),
        (
            [replace_messages(0, 2), replace_text_at("x", Area.MESSAGES, 1, 0)],
            "messages.1: is both edited and replaced",
        ),
        (
            [replace_messages(0, 2), insert_at("x", Area.MESSAGES, 1)],
            "messages.1: an insertion lies within replaced messages",
        ),
        ([replace_messages(0, 2), replace_messages(1, 2, "x")], "messages.1: two edits replace"),
        ([replace_messages(1, 0)], "messages.1: 1 to 0 is not a range"),
        ([replace_messages(0, 10**12)], "not a range of 2 messages"),
        ([breakpoint_at(Area.MESSAGES, 0, 1)], "messages.0.1: there is no such block"),
        ([breakpoint_at(Area.MESSAGES, -1, 0)], "messages.-1: there is no such message"),
        ([breakpoint_at(Area.MESSAGES, 0)], "messages.0: is a message, but the edit needs one of its blocks"),
        ([breakpoint_at(Area.TOOLS, 2)], "tools.2: there is no such"),
        ([breakpoint_at(Area.SYSTEM, 0, 0)], "system.0.0: has no blocks"),
        ([insert_at("x", Area.MESSAGES, 3)], "messages.3: nothing can be inserted there"),
        ([insert_at("x", Area.SYSTEM, 2)], "system.2: nothing can be inserted there"),
        ([insert_at("x", Area.TOOLS, 0)], "tools can only be reordered"),
        ([insert_at(Image(source=MediaSource.URL), Area.SYSTEM, 0)], "only texts and unchanged blocks"),
        ([insert_at(Opaque("odd", b"{"), Area.SYSTEM, 0)], "`odd` block is not JSON"),
        ([InsertParts(place=Place(Area.SYSTEM, 0), parts=(), reason="")], "there is nothing to insert"),
        ([replace_text_at("x", Area.MESSAGES, 1, 0)], "`thinking` block has no text"),
        ([reorder_tools(0, 0)], "the order must list each of the 2 tools"),
        ([reorder_tools(0, 1), reorder_tools(1, 0)], "two orders"),
        ([set_parameter(1, "a"), set_parameter(2, "a")], "a: two values"),
        ([set_parameter(1, "a"), set_parameter(True, "a")], "a: two values"),
        ([set_parameter(1, "a"), set_parameter(2, "a", "b")], "both a value and an object"),
        ([set_parameter(1, "model", "x")], "model: is not an object"),
        ([set_parameter("x", "system")], "system: is part of the conversation, not a parameter"),
        ([set_parameter(1)], "has no name"),
    ],
)
def test_impossible_edits_are_rejected(edits: list[Edit], reason: str) -> None:
    for edit_list in (edits, [*edits, set_parameter(1, "other")]):
        with pytest.raises(BadEdit) as raised:
            apply_to(ANTHROPIC, *edit_list)
        assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("body", "edits", "reason"),
    [
        (
            {"contents": [{"parts": [{"text": "a"}]}]},
            [breakpoint_at(Area.MESSAGES, 0, 0)],
            "has no cache breakpoints",
        ),
        ({"messages": [{"role": "user", "content": "a"}]}, [insert_at("s", Area.SYSTEM, 0)], "role `system`"),
        (
            {"input": "a", "instructions": "b"},
            [breakpoint_at(Area.SYSTEM, 0)],
            "cannot have a cache breakpoint",
        ),
        (
            {"input": [{"type": "reasoning"}]},
            [breakpoint_at(Area.MESSAGES, 0, 0)],
            "`reasoning` can have neither",
        ),
        (
            {"messages": [{"role": "tool", "content": []}]},
            [breakpoint_at(Area.MESSAGES, 0, 0)],
            "contains no",
        ),
        ({"messages": [{"role": "tool", "content": "a"}]}, [insert_at("b", Area.MESSAGES, 0, 0)], "no blocks"),
        ({"tools": [{}], "functions": [{}], "messages": []}, [reorder_tools(1, 0)], "another list"),
        (
            {"messages": [{"role": "user", "content": [{"toolResult": 1}]}]},
            [replace_text_at("b", Area.MESSAGES, 0, 0)],
            "contains no",
        ),
        ({"messages": [], "system": 5}, [insert_at("b", Area.SYSTEM, 0)], "is not a list"),
        (
            {"messages": [{"role": "tool", "content": ["a"]}]},
            [breakpoint_at(Area.MESSAGES, 0, 0)],
            "can have a cache breakpoint",
        ),
    ],
)
def test_edits_that_a_format_does_not_support_are_rejected(
    body: dict[str, Any], edits: list[Edit], reason: str
) -> None:
    with pytest.raises(BadEdit) as raised:
        apply_to(body, *edits)
    assert reason in str(raised.value)


def test_a_breakpoint_style_that_a_format_does_not_have_is_rejected() -> None:
    with pytest.raises(BadEdit) as raised:
        apply_to(ANTHROPIC, breakpoint_at(Area.SYSTEM, 0), style=BreakpointStyle.CACHE_POINT)
    assert "cachePoint" in str(raised.value)


def test_identical_edits_do_not_conflict() -> None:
    edit_list: list[Edit] = [
        breakpoint_at(Area.SYSTEM, 0),
        replace_text_at("x", Area.MESSAGES, 0, 0),
        replace_messages(1, 2),
    ]
    edit_list += [reorder_tools(1, 0), set_parameter(1, "a")]

    assert apply_to(ANTHROPIC, *edit_list, *edit_list) == apply_to(ANTHROPIC, *edit_list)


def test_an_empty_request_can_be_filled() -> None:
    request = formats.parse_request(b"{ }", Format.ANTHROPIC)
    edits: list[Edit] = [
        insert_at("m", Area.MESSAGES, 0),
        insert_at("s", Area.SYSTEM, 0),
        set_parameter(5, "max_tokens"),
    ]

    assert json.loads(formats.apply_edits(request, edits)) == {
        "messages": [{"role": "user", "content": "m"}],
        "system": [{"type": "text", "text": "s"}],
        "max_tokens": 5,
    }
