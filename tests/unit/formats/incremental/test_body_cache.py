"""A body that continues a cached one is parsed as if it were parsed completely."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
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
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.offsets import ByteSpan
from foveate.model import Area, CacheBreakpoint, Format, Place, Request, Ttl

LONG = "x" * MIN_BODY_BYTES
ENVELOPE = {"model": "claude-opus-4-5", "max_tokens": 10, "system": "Be brief.", "tools": []}
EPHEMERAL = {"type": "ephemeral"}


def make_message(number: int, text: str = "yes") -> dict[str, Any]:
    role = "assistant" if number % 2 else "user"
    return {"role": role, "content": [{"type": "text", "text": f"{number} {text}"}]}


def make_body(messages: Sequence[object], *, order: Sequence[str] = (), has_spaces: bool = False) -> bytes:
    """Build a body with its fields in this order, including `messages`."""
    fields = {**ENVELOPE, "messages": messages}
    names = [*order, *(name for name in fields if name not in order)]
    separators = (", ", ": ") if has_spaces else (",", ":")
    return json.dumps({name: fields[name] for name in names}, separators=separators).encode()


def parse_without_cache(data: bytes) -> Request | str:
    """Parse a body without the cache."""
    BODY_CACHE.clear()
    try:
        return formats.parse_request(data, Format.ANTHROPIC)
    except MalformedRequest as error:
        return str(error)


def parse_in_order(*bodies: bytes) -> Request | str:
    """Parse the last of these bodies after the others."""
    BODY_CACHE.clear()
    result: Request | str = ""
    for data in bodies:
        try:
            result = formats.parse_request(data, Format.ANTHROPIC)
        except MalformedRequest as error:
            result = str(error)
    return result


def test_only_bytes_of_earlier_bodies_are_known() -> None:
    """Regression: a large body was parsed on the event loop if its first kilobyte was known."""
    first = make_body([make_message(0, LONG), make_message(1)])
    other = make_body([make_message(0, LONG), make_message(1, LONG)])
    BODY_CACHE.clear()
    assert formats.known_bytes(first, Format.ANTHROPIC) == 0
    formats.parse_request(first, Format.ANTHROPIC)

    assert formats.known_bytes(first, Format.ANTHROPIC) == first.rindex(b"]")
    assert formats.known_bytes(other, Format.ANTHROPIC) == len(make_body([make_message(0, LONG)])) - len("]}")
    assert formats.known_bytes(first, Format.CHAT) == 0


def test_a_continued_body_is_parsed_and_shares_its_messages() -> None:
    first = make_body([make_message(0, LONG), make_message(1)])
    BODY_CACHE.clear()
    before = formats.parse_request(first, Format.ANTHROPIC)

    longer = formats.parse_request(
        make_body([make_message(0, LONG), make_message(1), make_message(2), make_message(3)]), Format.ANTHROPIC
    )

    assert len(longer.messages) == 4
    assert longer.messages[0] is before.messages[0]
    assert isinstance(longer.message_offsets, MessageOffsets)
    assert [span.read(longer.body) for span in longer.message_offsets.spans] == list(longer.messages)


def test_moved_breakpoints_are_detected() -> None:
    with_breakpoint, moved_breakpoint = make_message(2), make_message(3)
    with_breakpoint["content"][0]["cache_control"] = moved_breakpoint["content"][0]["cache_control"] = EPHEMERAL
    first = make_body([make_message(0, LONG), make_message(1), with_breakpoint])
    second = make_body([make_message(0, LONG), make_message(1), make_message(2), moved_breakpoint])

    parsed = parse_in_order(first, second)

    assert isinstance(parsed, Request)
    assert parsed == parse_without_cache(second)


@pytest.mark.parametrize(
    "suffix",
    [
        b',"messages":[]}',  # the last of two counts
        b',"mess\\u0061ges":[{"role":"user","content":"no"}]}',
        b',"temperature":0.5}',
        b'  ,  "temperature" : 1 }\n',
        b"}",
        b"",  # truncated
        b',"temperature":}',
        b"}{}",
    ],
)
@pytest.mark.parametrize(
    "new_message", [b"", b',{"role":"user","content":"so"}', b",", b',"no message"', b',{"role":"\\ud83d"}']
)
def test_a_body_with_any_continuation_is_parsed_like_a_new_one(new_message: bytes, suffix: bytes) -> None:
    cached_body = make_body(
        [make_message(0, LONG), make_message(1)], order=("model", "max_tokens", "system", "tools")
    )
    prefix = cached_body.removesuffix(b"]}")

    assert parse_in_order(cached_body, prefix + new_message + b"]" + suffix) == parse_without_cache(
        prefix + new_message + b"]" + suffix
    )


@pytest.mark.parametrize(
    ("suffix", "key_path"),
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
def test_a_duplicate_key_in_the_new_part_is_rejected(suffix: bytes, key_path: str) -> None:
    cached_body = make_body(
        [make_message(0, LONG), make_message(1)], order=("model", "max_tokens", "system", "tools")
    )
    prefix = cached_body.removesuffix(b"]}")
    turn = b',{"role":"user","content":"so"}'
    # The fields as they would be parsed if the last of two counted, so that they are in the cache.
    same_fields = cached_body.replace(b'"max_tokens":10', b'"max_tokens":64000')

    error = parse_in_order(same_fields, cached_body, prefix + suffix)

    assert isinstance(error, str)
    assert key_path in error
    assert isinstance(parse_in_order(cached_body, prefix + suffix, prefix + turn + b"]}"), Request)
    assert isinstance(parse_in_order(prefix + suffix, prefix + suffix), str)  # nor is it cached


ENDING = b'],"system":"Be brief.","tools":[{"name":"f"}]}'


@pytest.mark.parametrize(
    "new_bytes",
    [
        b"",
        b' , {"role":"user","content":"no"} ',
        b',{"role":"user","content":"' + ENDING.replace(b'"', b'\\"') + b'"}',
        b'],"stop_sequences":["a"',  # the ending closes another list
        b'],"stop_sequences":["a"],"metadata":{},"x":[',
        b'],"system":"",  "tools":[',
        b',{"role":"user","content":[{"type":"text","text":"x"}',
        b',{"role":"user","content":"',
        b",",
        b']  ,  "y":1}',
        ENDING,
    ],
)
def test_fields_after_the_messages_that_stay_the_same_are_not_parsed_again(new_bytes: bytes) -> None:
    start = make_body([make_message(0, LONG), make_message(1)], order=("model", "messages"))
    start = start[: start.index(b'],"max_tokens"')]
    first, second = start + ENDING, start + new_bytes + ENDING

    expected = parse_without_cache(second)
    parsed = parse_in_order(first, second)

    assert parsed == expected
    if isinstance(parsed, Request) and isinstance(expected, Request):
        assert dict(get_parameters(parsed)) == dict(get_parameters(expected))


def test_a_session_with_the_same_start_is_not_confused_with_it() -> None:
    first, second = (
        make_body([make_message(0, LONG), make_message(1, "one")]),
        make_body([make_message(0, LONG), make_message(1, "other"), make_message(2)]),
    )

    assert parse_in_order(first, second) == parse_without_cache(second)


@pytest.mark.parametrize("changed_index", [1, 2, 17, 35, 39])
def test_a_change_early_in_the_history_is_detected(changed_index: int) -> None:
    messages = [make_message(0, LONG), *(make_message(number) for number in range(1, 40))]
    other = [*messages[:changed_index], make_message(changed_index, "nay"), *messages[changed_index + 1 :]]

    assert parse_in_order(make_body(messages), make_body(other)) == parse_without_cache(make_body(other))


def test_a_breakpoint_is_written_on_the_last_block_of_a_continued_request() -> None:
    data = make_body([make_message(0, LONG), make_message(1), make_message(2)])
    breakpoint_edit = CacheBreakpoint(place=Place(Area.MESSAGES, 2, 0), ttl=Ttl.FIVE_MINUTES, reason="")
    continued, fresh = (
        parse_in_order(make_body([make_message(0, LONG), make_message(1)]), data),
        parse_without_cache(data),
    )
    assert isinstance(continued, Request)
    assert isinstance(fresh, Request)
    assert continued.message_offsets is not None
    assert fresh.message_offsets is None

    assert formats.apply_edits(continued, (breakpoint_edit,)) == formats.apply_edits(fresh, (breakpoint_edit,))


def test_the_cache_is_bounded() -> None:
    cache = BodyCache(max_bytes=10 * MIN_BODY_BYTES)
    for number in range(40):
        request = parse_without_cache(make_body([make_message(0, f"{number} {LONG}"), make_message(1)]))
        assert isinstance(request, Request)
        cache.put(request)

    assert cache.held_bytes <= 10 * MIN_BODY_BYTES
    assert (
        cache.read(
            Format.ANTHROPIC, make_body([make_message(0, f"39 {LONG}"), make_message(1), make_message(2)])
        )
        is not None
    )
    assert (
        cache.read(
            Format.ANTHROPIC, make_body([make_message(0, f"0 {LONG}"), make_message(1), make_message(2)])
        )
        is None
    )


def test_spans_of_another_body_are_not_used() -> None:
    request = parse_without_cache(make_body([make_message(0, LONG), make_message(1)]))
    assert isinstance(request, Request)
    with_wrong_spans = Request(
        **{name: getattr(request, name) for name in Request.__dataclass_fields__ if name != "message_offsets"},
        message_offsets=MessageOffsets(
            BodyPrefix(request.body[: request.body.index(b"[{") + 1], "messages"),
            (ByteSpan(3, 9), ByteSpan(10, 20)),
        ),
    )
    breakpoint_edit = CacheBreakpoint(place=Place(Area.MESSAGES, 1, 0), ttl=Ttl.FIVE_MINUTES, reason="")

    assert formats.apply_edits(with_wrong_spans, (breakpoint_edit,)) == formats.apply_edits(
        request, (breakpoint_edit,)
    )


message_texts = st.sampled_from(["yes", "\\", '"messages":[', "é漢🙂", '"}]', "\ud83d", " "])


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Generate bodies of successive turns: each keeps, changes and adds some messages."""
    messages = [
        make_message(0, LONG),
        *(make_message(number, draw(message_texts)) for number in range(1, draw(st.integers(1, 8)))),
    ]
    bodies = []
    for _ in range(draw(st.integers(1, 4))):
        order = draw(st.permutations([*ENVELOPE, "messages"]))
        bodies.append(make_body(messages, order=order, has_spaces=draw(st.booleans())))
        kept_count = draw(st.integers(0, len(messages)))
        size = len(messages) + draw(st.integers(-2, 3))
        messages = messages[:kept_count] + [
            make_message(number, draw(message_texts)) for number in range(kept_count, size)
        ]
        bodies.append(make_body(messages, order=order, has_spaces=draw(st.booleans())))
    return bodies


@given(histories())
def test_every_turn_is_parsed_like_a_new_body(bodies: list[bytes]) -> None:
    BODY_CACHE.clear()
    requests = [formats.parse_request(data, Format.ANTHROPIC) for data in bodies]

    assert requests == [parse_without_cache(data) for data in bodies]
    for request in requests:
        raw_messages = (
            [span.read(request.body) for span in request.message_offsets.spans]
            if isinstance(request.message_offsets, MessageOffsets)
            else []
        )
        assert not raw_messages or all(
            len(span_bytes) == len(message)
            for span_bytes, message in zip(raw_messages, request.messages, strict=True)
        )
