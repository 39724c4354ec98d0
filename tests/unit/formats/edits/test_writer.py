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


def mark(*place: Any, ttl: Ttl | None = None) -> CacheBreakpoint:
    return CacheBreakpoint(place=Place(*place), reason="", ttl=ttl)


def text(new: str, *place: Any) -> ReplaceText:
    return ReplaceText(place=Place(*place), text=new, reason="")


def insert(new: str | Part, *place: Any, role: str = "user") -> InsertParts:
    part = Text(new) if isinstance(new, str) else new
    return InsertParts(place=Place(*place), parts=(part,), reason="", role=role)


def replace(start: int, end: int, *new: str) -> ReplaceMessages:
    messages = tuple(Message(role="user", parts=(Text(one),)) for one in new)
    return ReplaceMessages(start=start, end=end, messages=messages, reason="")


def order(*numbers: int) -> ReorderTools:
    return ReorderTools(order=numbers, reason="")


def setting(value: str | int | bool, *path: str) -> SetParameter:
    return SetParameter(path=path, value=value, reason="")


def written(body: bytes | dict[str, Any], *edits: Edit, style: BreakpointStyle | None = None) -> bytes:
    return formats.apply_edits(formats.parse_request(body), edits, breakpoint_style=style)


@pytest.mark.parametrize(
    ("edits", "old", "new"),
    [
        (
            [mark(Area.SYSTEM, 0, ttl=Ttl.ONE_HOUR)],
            rb'"S\u00e9"',
            rb'[{"type":"text","text":"S\u00e9","cache_control":{"type":"ephemeral","ttl":"1h"}}]',
        ),
        (
            [mark(Area.MESSAGES, 0, 0, ttl=Ttl.FIVE_MINUTES), text("ho", Area.MESSAGES, 0, 0)],
            b'"hi"',
            b'[{"type":"text","text":"ho","cache_control":{"type":"ephemeral"}}]',
        ),
        (
            [insert("\u00e9", Area.SYSTEM, 1), mark(Area.SYSTEM, 0)],
            rb'"S\u00e9"',
            rb'[{"type":"text","text":"S\u00e9","cache_control":{"type":"ephemeral"}},'
            + '{"type":"text","text":"é"}]'.encode(),
        ),
        ([order(1, 0)], b'{"name":"a"} , {"name":"b"}', b'{"name":"b"} , {"name":"a"}'),
        ([replace(0, 1)], b'{"role":"user","content":"hi"} ,', b""),
        ([replace(0, 1, "x")], b'"content":"hi"', b'"content":"x"'),
        ([setting("k", "metadata", "user_id")], b"}]}]}", b'}]}],"metadata":{"user_id":"k"}}'),
        ([setting("gpt", "model")], b'"claude-4"', b'"gpt"'),
    ],
)
def test_an_edit_changes_only_its_own_bytes(edits: list[Edit], old: bytes, new: bytes) -> None:
    assert ANTHROPIC.count(old) == 1

    assert written(ANTHROPIC, *edits) == ANTHROPIC.replace(old, new)


def test_a_breakpoint_moves_with_its_tool() -> None:
    tools = json.loads(written(ANTHROPIC, order(1, 0), mark(Area.TOOLS, 0)))["tools"]

    assert tools == [{"name": "b"}, {"name": "a", "cache_control": {"type": "ephemeral"}}]


def test_a_string_of_responses_becomes_a_list_only_where_it_must() -> None:
    body = b'{"input":"hi","instructions":"Be"}'
    block = b'{"type":"input_text","text":"hi","prompt_cache_breakpoint":{"mode":"explicit"}}'

    assert written(body, text("ho", Area.MESSAGES, 0, 0)) == body.replace(b"hi", b"ho")
    assert written(body, mark(Area.MESSAGES, 0, 0)) == body.replace(
        b'"hi"', b'[{"role":"user","content":[' + block + b"]}]"
    )


def test_what_is_inserted_into_plain_instructions_stands_behind_a_blank_line() -> None:
    body = rb'{"input":[],"instructions":"B\u0065"}'

    assert written(body, insert("A", Area.SYSTEM, 0), insert("C", Area.SYSTEM, 1)) == body.replace(
        rb"B\u0065", rb"A\n\nB\u0065\n\nC"
    )


def test_a_breakpoint_of_chat_has_the_requested_style() -> None:
    body = b'{"model":"gpt","messages":[{"role":"tool","tool_call_id":"1","content":"r"}]}'
    place = Area.MESSAGES, 0, 0

    for style, value in (
        (BreakpointStyle.CACHE_CONTROL, {"type": "ephemeral"}),
        (BreakpointStyle.PROMPT_CACHE_BREAKPOINT, {"mode": "explicit"}),
    ):
        content = json.loads(written(body, mark(*place), style=style))["messages"][0]["content"]
        assert content == [{"type": "text", "text": "r", style.value: value}]


def test_a_clients_breakpoint_on_a_message_is_replaced_there() -> None:
    body = b'{"messages":[{"role":"user","content":"a","cache_control":{"type":"ephemeral"}}]}'

    assert written(body, mark(Area.MESSAGES, 0, 0, ttl=Ttl.ONE_HOUR)) == body.replace(
        b'"ephemeral"', b'"ephemeral","ttl":"1h"'
    )


def test_geminis_wrapped_request_is_edited_inside() -> None:
    body = b'{"generateContentRequest":{"contents":{"parts":{"text":"a"}}}}'

    assert json.loads(written(body, insert("s", Area.SYSTEM, 0), insert("b", Area.MESSAGES, 1))) == {
        "generateContentRequest": {
            "contents": [{"parts": {"text": "a"}}, {"role": "user", "parts": [{"text": "b"}]}],
            "systemInstruction": {"parts": [{"text": "s"}]},
        }
    }


def test_a_lone_surrogate_stays_what_it_is() -> None:
    """Providers accept a lone surrogate, so it must be forwarded unchanged."""
    body = (
        rb'{"model":"claude-4","messages":[{"role":"user","content":"\ud83d"},{"role":"user","content":"a"}]}'
    )

    assert rb'"text":"\ud83d","cache_control"' in written(body, mark(Area.MESSAGES, 0, 0))
    assert written(body, text("b", Area.MESSAGES, 1, 0)) == body.replace(b'"a"', b'"b"')


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ([text("x", Area.MESSAGES, 0, 0), text("y", Area.MESSAGES, 0, 0)], "messages.0.0: two texts"),
        ([mark(Area.SYSTEM, 0), mark(Area.SYSTEM, 0, ttl=Ttl.ONE_HOUR)], "system.0: two marks"),
        ([replace(0, 2), text("x", Area.MESSAGES, 1, 0)], "messages.1: is edited and replaced"),
        ([replace(0, 2), insert("x", Area.MESSAGES, 1)], "messages.1: something is inserted into a span"),
        ([replace(0, 2), replace(1, 2, "x")], "messages.1: two edits replace"),
        ([replace(1, 0)], "messages.1: 1 to 0 is no span"),
        ([replace(0, 10**12)], "no span of 2 messages"),
        ([mark(Area.MESSAGES, 0, 1)], "messages.0.1: there is no such block"),
        ([mark(Area.MESSAGES, -1, 0)], "messages.-1: there is no such message"),
        ([mark(Area.MESSAGES, 0)], "messages.0: names a message"),
        ([mark(Area.TOOLS, 2)], "tools.2: there is no such"),
        ([mark(Area.SYSTEM, 0, 0)], "system.0.0: has no blocks"),
        ([insert("x", Area.MESSAGES, 3)], "messages.3: nothing can stand there"),
        ([insert("x", Area.SYSTEM, 2)], "system.2: nothing can stand there"),
        ([insert("x", Area.TOOLS, 0)], "tools are only marked"),
        ([insert(Image(source=MediaSource.URL), Area.SYSTEM, 0)], "only texts and blocks"),
        ([insert(Opaque("odd", b"{"), Area.SYSTEM, 0)], "`odd` is not JSON"),
        ([InsertParts(place=Place(Area.SYSTEM, 0), parts=(), reason="")], "nothing is given"),
        ([text("x", Area.MESSAGES, 1, 0)], "`thinking` has no text"),
        ([order(0, 0)], "the order does not name each of 2 tools"),
        ([order(0, 1), order(1, 0)], "two orders"),
        ([setting(1, "a"), setting(2, "a")], "a: two values"),
        ([setting(1, "a"), setting(True, "a")], "a: two values"),
        ([setting(1, "a"), setting(2, "a", "b")], "at once"),
        ([setting(1, "model", "x")], "model: is no object"),
        ([setting("x", "system")], "system: is no parameter"),
        ([setting(1)], "without a name"),
    ],
)
def test_edits_that_cannot_be_are_refused(edits: list[Edit], said: str) -> None:
    for given in (edits, [*edits, setting(1, "other")]):
        with pytest.raises(BadEdit) as refused:
            written(ANTHROPIC, *given)
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("body", "edits", "said"),
    [
        ({"contents": [{"parts": [{"text": "a"}]}]}, [mark(Area.MESSAGES, 0, 0)], "has no cache marks"),
        ({"messages": [{"role": "user", "content": "a"}]}, [insert("s", Area.SYSTEM, 0)], "role `system`"),
        ({"input": "a", "instructions": "b"}, [mark(Area.SYSTEM, 0)], "bears no mark"),
        ({"input": [{"type": "reasoning"}]}, [mark(Area.MESSAGES, 0, 0)], "`reasoning` can be neither"),
        ({"messages": [{"role": "tool", "content": []}]}, [mark(Area.MESSAGES, 0, 0)], "holds nothing"),
        ({"messages": [{"role": "tool", "content": "a"}]}, [insert("b", Area.MESSAGES, 0, 0)], "no blocks"),
        ({"tools": [{}], "functions": [{}], "messages": []}, [order(1, 0)], "another list"),
        (
            {"messages": [{"role": "user", "content": [{"toolResult": 1}]}]},
            [text("b", Area.MESSAGES, 0, 0)],
            "holds nothing",
        ),
        ({"messages": [], "system": 5}, [insert("b", Area.SYSTEM, 0)], "something else where a list"),
        ({"messages": [{"role": "tool", "content": ["a"]}]}, [mark(Area.MESSAGES, 0, 0)], "could bear a mark"),
    ],
)
def test_what_a_format_cannot_say_is_refused(body: dict[str, Any], edits: list[Edit], said: str) -> None:
    with pytest.raises(BadEdit) as refused:
        written(body, *edits)
    assert said in str(refused.value)


def test_a_breakpoint_style_that_a_format_does_not_have_is_rejected() -> None:
    with pytest.raises(BadEdit) as refused:
        written(ANTHROPIC, mark(Area.SYSTEM, 0), style=BreakpointStyle.CACHE_POINT)
    assert "cachePoint" in str(refused.value)


def test_edits_that_say_the_same_do_not_contradict() -> None:
    once: list[Edit] = [mark(Area.SYSTEM, 0), text("x", Area.MESSAGES, 0, 0), replace(1, 2)]
    once += [order(1, 0), setting(1, "a")]

    assert written(ANTHROPIC, *once, *once) == written(ANTHROPIC, *once)


def test_an_empty_request_can_be_filled() -> None:
    request = formats.parse_request(b"{ }", Format.ANTHROPIC)
    edits: list[Edit] = [insert("m", Area.MESSAGES, 0), insert("s", Area.SYSTEM, 0), setting(5, "max_tokens")]

    assert json.loads(formats.apply_edits(request, edits)) == {
        "messages": [{"role": "user", "content": "m"}],
        "system": [{"type": "text", "text": "s"}],
        "max_tokens": 5,
    }
