"""A body that continues a cached one is parsed as if it were parsed completely."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.incremental.body_cache import (
    BODY_CACHE,
    MIN_BODY_BYTES,
    BodyCache,
    BodyPrefix,
    MessageOffsets,
)
from foveate.formats.incremental.prefix_list import PrefixList
from foveate.formats.json_text.offsets import ByteSpan
from foveate.model import Area, CacheBreakpoint, Format, Place, Request, Ttl
from tests.support.harness.example_limits import limit_examples

LONG = "x" * MIN_BODY_BYTES
FRONT = {"model": "claude-opus-4-5", "max_tokens": 10, "system": "Be brief.", "tools": []}
MARK = {"type": "ephemeral"}


def said(number: int, text: str = "yes") -> dict[str, Any]:
    role = "assistant" if number % 2 else "user"
    return {"role": role, "content": [{"type": "text", "text": f"{number} {text}"}]}


def body(messages: Sequence[object], *, order: Sequence[str] = (), spaced: bool = False) -> bytes:
    """A body with its fields in this order, including `messages`."""
    fields = {**FRONT, "messages": messages}
    names = [*order, *(name for name in fields if name not in order)]
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps({name: fields[name] for name in names}, separators=separators).encode()


def plainly(data: bytes) -> Request | str:
    """Parse a body without the cache."""
    BODY_CACHE.clear()
    try:
        return formats.parse_request(data, Format.ANTHROPIC)
    except MalformedRequest as error:
        return str(error)


def after(*bodies: bytes) -> Request | str:
    """Parse the last of these bodies after the others."""
    BODY_CACHE.clear()
    found: Request | str = ""
    for data in bodies:
        try:
            found = formats.parse_request(data, Format.ANTHROPIC)
        except MalformedRequest as error:
            found = str(error)
    return found


def test_only_bytes_seen_before_are_known_of_a_body() -> None:
    """Regression: a large body was parsed on the event loop if its first kilobyte was known."""
    first = body([said(0, LONG), said(1)])
    other = body([said(0, LONG), said(1, LONG)])
    BODY_CACHE.clear()
    assert formats.known_bytes(first, Format.ANTHROPIC) == 0
    formats.parse_request(first, Format.ANTHROPIC)

    assert formats.known_bytes(first, Format.ANTHROPIC) == first.rindex(b"]")
    assert formats.known_bytes(other, Format.ANTHROPIC) == len(body([said(0, LONG)])) - len("]}")
    assert formats.known_bytes(first, Format.CHAT) == 0


def test_a_turn_more_is_read_as_it_is_and_no_message_is_made_twice() -> None:
    first = body([said(0, LONG), said(1)])
    BODY_CACHE.clear()
    before = formats.parse_request(first, Format.ANTHROPIC)

    grown = formats.parse_request(body([said(0, LONG), said(1), said(2), said(3)]), Format.ANTHROPIC)

    assert len(grown.messages) == 4
    assert grown.messages[0] is before.messages[0]
    assert isinstance(grown.message_offsets, MessageOffsets)
    assert [span.read(grown.body) for span in grown.message_offsets.spans] == list(grown.messages)


def test_moved_breakpoints_are_detected() -> None:
    marked, moved = said(2), said(3)
    marked["content"][0]["cache_control"] = moved["content"][0]["cache_control"] = MARK
    first = body([said(0, LONG), said(1), marked])
    second = body([said(0, LONG), said(1), said(2), moved])

    found = after(first, second)

    assert isinstance(found, Request)
    assert found == plainly(second)


@pytest.mark.parametrize(
    "behind",
    [
        b',"messages":[]}',  # the last of two counts
        b',"mess\\u0061ges":[{"role":"user","content":"no"}]}',
        b',"temperature":0.5}',
        b'  ,  "temperature" : 1 }\n',
        b"}",
        b"",  # broken off
        b',"temperature":}',
        b"}{}",
    ],
)
@pytest.mark.parametrize(
    "new", [b"", b',{"role":"user","content":"so"}', b",", b',"no message"', b',{"role":"\\ud83d"}']
)
def test_whatever_stands_behind_is_read_as_it_would_be_alone(new: bytes, behind: bytes) -> None:
    whole = body([said(0, LONG), said(1)], order=("model", "max_tokens", "system", "tools"))
    begun = whole.removesuffix(b"]}")

    assert after(whole, begun + new + b"]" + behind) == plainly(begun + new + b"]" + behind)


@pytest.mark.parametrize(
    ("behind", "place"),
    [
        (b',{"role":"user","content":"a","content":"b"}]}', "`messages[2].content` occurs twice"),
        (b',{"role":"user","content":[{"type":"text","t\\u0079pe":"b"}]}]}', "`messages[2].content[0].type`"),
        (b'],"max_tokens":64000}', "`max_tokens` occurs twice"),
        (b'],"max\\u005ftokens":64000}', "`max_tokens` occurs twice"),
        (b'],"Max_Tokens":64000}', "`max_tokens` and `Max_Tokens` differ only in case"),
        (b'],"Messages":[]}', "`messages` and `Messages` differ only in case"),
        (b'],"top_p":1,"top_p":0}', "`top_p` occurs twice"),
        (b'],"messages":[]}', "`messages` occurs twice"),
    ],
)
def test_a_duplicate_key_in_what_is_new_is_refused(behind: bytes, place: str) -> None:
    whole = body([said(0, LONG), said(1)], order=("model", "max_tokens", "system", "tools"))
    begun = whole.removesuffix(b"]}")
    turn = b',{"role":"user","content":"so"}'
    # All fields as they would be read if the last of two counted, so that these were seen before.
    alike = whole.replace(b'"max_tokens":10', b'"max_tokens":64000')

    refused = after(alike, whole, begun + behind)

    assert isinstance(refused, str)
    assert place in refused
    assert isinstance(after(whole, begun + behind, begun + turn + b"]}"), Request)
    assert isinstance(after(begun + behind, begun + behind), str)  # nor is it remembered


def test_a_session_with_the_same_start_is_not_confused_with_it() -> None:
    one, other = body([said(0, LONG), said(1, "one")]), body([said(0, LONG), said(1, "other"), said(2)])

    assert after(one, other) == plainly(other)


@pytest.mark.parametrize("changed", [1, 2, 17, 35, 39])
def test_a_change_early_in_the_history_is_detected(changed: int) -> None:
    messages = [said(0, LONG), *(said(number) for number in range(1, 40))]
    other = [*messages[:changed], said(changed, "nay"), *messages[changed + 1 :]]

    assert after(body(messages), body(other)) == plainly(body(other))


def test_a_breakpoint_is_written_on_the_last_block_of_a_continued_request() -> None:
    data = body([said(0, LONG), said(1), said(2)])
    mark = CacheBreakpoint(place=Place(Area.MESSAGES, 2, 0), ttl=Ttl.FIVE_MINUTES, reason="")
    found, alone = after(body([said(0, LONG), said(1)]), data), plainly(data)
    assert isinstance(found, Request)
    assert isinstance(alone, Request)
    assert found.message_offsets is not None
    assert alone.message_offsets is None

    assert formats.apply_edits(found, (mark,)) == formats.apply_edits(alone, (mark,))


def test_what_is_remembered_has_an_end() -> None:
    grown = BodyCache(max_bytes=10 * MIN_BODY_BYTES)
    for number in range(40):
        found = plainly(body([said(0, f"{number} {LONG}"), said(1)]))
        assert isinstance(found, Request)
        grown.put(found)

    assert grown.held_bytes <= 10 * MIN_BODY_BYTES
    assert grown.read(Format.ANTHROPIC, body([said(0, f"39 {LONG}"), said(1), said(2)])) is not None
    assert grown.read(Format.ANTHROPIC, body([said(0, f"0 {LONG}"), said(1), said(2)])) is None


def test_spans_that_are_not_of_this_body_are_not_believed() -> None:
    found = plainly(body([said(0, LONG), said(1)]))
    assert isinstance(found, Request)
    wrong = Request(
        **{name: getattr(found, name) for name in Request.__dataclass_fields__ if name != "message_offsets"},
        message_offsets=MessageOffsets(
            BodyPrefix(found.body[: found.body.index(b"[{") + 1], "messages"),
            PrefixList((ByteSpan(3, 9), ByteSpan(10, 20))),
        ),
    )
    mark = CacheBreakpoint(place=Place(Area.MESSAGES, 1, 0), ttl=Ttl.FIVE_MINUTES, reason="")

    assert formats.apply_edits(wrong, (mark,)) == formats.apply_edits(found, (mark,))


TEXTS = st.sampled_from(["yes", "\\", '"messages":[', "é漢🙂", '"}]', "\ud83d", " "])


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Bodies of successive turns: each keeps, changes and adds some messages."""
    messages = [said(0, LONG), *(said(n, draw(TEXTS)) for n in range(1, draw(st.integers(1, 8))))]
    found = []
    for _ in range(draw(st.integers(1, 4))):
        order = draw(st.permutations([*FRONT, "messages"]))
        found.append(body(messages, order=order, spaced=draw(st.booleans())))
        kept = draw(st.integers(0, len(messages)))
        size = len(messages) + draw(st.integers(-2, 3))
        messages = messages[:kept] + [said(n, draw(TEXTS)) for n in range(kept, size)]
        found.append(body(messages, order=order, spaced=draw(st.booleans())))
    return found


@given(histories())
@settings(max_examples=limit_examples(60))
def test_every_turn_is_read_as_it_would_be_alone(bodies: list[bytes]) -> None:
    BODY_CACHE.clear()
    together = [formats.parse_request(data, Format.ANTHROPIC) for data in bodies]

    assert together == [plainly(data) for data in bodies]
    for request in together:
        places = (
            [span.read(request.body) for span in request.message_offsets.spans]
            if isinstance(request.message_offsets, MessageOffsets)
            else []
        )
        assert not places or all(len(a) == len(b) for a, b in zip(places, request.messages, strict=True))
