"""Trimming of message lists."""

import copy
import json
import time
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foveate
from foveate import formats
from foveate.budget.trim import Trimmed, find_droppable, trim_messages
from foveate.budget.turn_structure import (
    MessageKind,
    classify_message,
    has_calls_for_all_results,
    is_system_message,
)
from foveate.errors import BadOption, BudgetExceeded, MalformedRequest
from foveate.model import Format, Message, ToolCall, ToolResult
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.tool_conversations import any_requests

MODELS = ("gpt-4o", "claude-sonnet-4-5", "gemini-2.5-flash", "nobody/knows-this")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FIELDS = {Format.RESPONSES: "input", Format.GEMINI: "contents"}


def get_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = body.get("messages") or body.get("input") or body["contents"]
    return messages


@st.composite
def gemini_requests(draw: st.DrawFn) -> dict[str, Any]:
    """Gemini has no ids: results answer calls by name."""
    texts = st.sampled_from(("Read it.", "東京", "x = 1\n" * 40))
    contents: list[dict[str, Any]] = []
    turns = draw(st.integers(1, 3))
    for turn in range(turns):
        contents.append({"role": "user", "parts": [{"text": draw(texts)}]})
        for _ in range(draw(st.integers(0, 3))):
            names = [f"tool_{number}" for number in range(draw(st.integers(1, 3)))]
            calls = [{"functionCall": {"name": name, "args": {}}} for name in names]
            results = [
                {"functionResponse": {"name": name, "response": {"text": draw(texts)}}} for name in names
            ]
            contents += [{"role": "model", "parts": calls}, {"role": "user", "parts": results}]
        if turn < turns - 1 or draw(st.booleans()):
            contents.append({"role": "model", "parts": [{"text": draw(texts)}]})
    return {"contents": contents}


requests = st.one_of(any_requests(), gemini_requests())
limits = st.integers(0, 900)


def parse_all(api_format: Format, messages: list[dict[str, Any]]) -> list[Message]:
    return [formats.parse_message(api_format, json.dumps(message).encode()) for message in messages]


def try_to_trim(
    messages: list[dict[str, Any]], limit: int, model: str, api_format: Format
) -> Trimmed[dict[str, Any]] | None:
    try:
        return foveate.trim(messages, limit_tokens=limit, model=model, api_format=api_format.value)
    except BudgetExceeded as error:
        if not error.tokens > limit == error.limit_tokens:
            raise AssertionError("what must stay would have fitted") from error
        return None


def call_ids(messages: list[Message], kind: type[ToolCall] | type[ToolResult]) -> list[str]:
    return [part.id or part.name for message in messages for part in message.parts if isinstance(part, kind)]


@settings(max_examples=limit_examples(150))
@given(body=requests, limit=limits, model=st.sampled_from(MODELS))
def test_the_result_never_exceeds_the_limit_and_has_the_count_of_the_request(
    body: dict[str, Any], limit: int, model: str
) -> None:
    api_format = formats.parse_request(body).format
    trimmed = try_to_trim(get_messages(body), limit, model, api_format)
    if trimmed is None:
        return
    field = FIELDS.get(api_format, "messages")
    again = formats.parse_request({field: trimmed.messages}, api_format, model=model)
    assert trimmed.count.upper <= limit
    assert trimmed.tokens <= limit
    assert trimmed.count == foveate.tokens.counter_for(model).count_request(again).total


@settings(max_examples=limit_examples(150))
@given(body=requests, limit=limits)
def test_no_call_is_separated_from_its_result_and_nothing_required_is_dropped(
    body: dict[str, Any], limit: int
) -> None:
    api_format = formats.parse_request(body).format
    messages = get_messages(body)
    before = copy.deepcopy(messages)
    try:
        trimmed = foveate.trim(messages, limit_tokens=limit, model="gpt-4o")
    except BudgetExceeded:
        return
    assert messages == before
    assert merge(trimmed, messages)
    kept, dropped = parse_all(api_format, trimmed.messages), parse_all(api_format, trimmed.dropped)
    assert has_calls_for_all_results(kept)
    assert has_calls_for_all_results(dropped)
    # Only the last step may have calls that are still open.
    assert sorted(call_ids(dropped, ToolCall)) == sorted(call_ids(dropped, ToolResult))
    parsed = parse_all(api_format, messages)
    assert sum(map(is_system_message, kept)) == sum(map(is_system_message, parsed))
    questions = [
        position for position, message in enumerate(parsed) if classify_message(message) is MessageKind.QUESTION
    ]
    assert any(message is messages[questions[-1]] for message in trimmed.messages)
    turns = [message for message in kept if not is_system_message(message)]
    assert classify_message(turns[0]) is MessageKind.QUESTION


def merge(trimmed: Trimmed[Any], messages: list[dict[str, Any]]) -> bool:
    """Every message is kept or dropped, as the same object and in order."""
    positions = {id(message): position for position, message in enumerate(messages)}
    kept = [positions[id(message)] for message in trimmed.messages]
    dropped = [positions[id(message)] for message in trimmed.dropped]
    return (
        kept == sorted(kept)
        and dropped == sorted(dropped)
        and sorted(kept + dropped) == [*range(len(messages))]
    )


@settings(max_examples=limit_examples(60))
@given(body=requests)
def test_nothing_is_dropped_needlessly(body: dict[str, Any]) -> None:
    """With one group more, the limit would be exceeded."""
    messages = get_messages(body)
    api_format = formats.parse_request(body).format
    groups = find_droppable(parse_all(api_format, messages))
    whole = foveate.trim(messages, limit_tokens=10**9, model="gpt-4o")
    assert not whole.dropped
    if groups:
        trimmed = foveate.trim(messages, limit_tokens=whole.count.upper - 1, model="gpt-4o")
        assert trimmed.dropped == [messages[position] for position in groups[0]]


TOOL_LOOP = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Old question. " * 50},
    {"role": "assistant", "content": "Old answer. " * 50},
    {"role": "user", "content": "What is in a.txt and b.txt?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": name, "type": "function", "function": {"name": "read", "arguments": "{}"}} for name in "ab"
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "first"},
    {"role": "tool", "tool_call_id": "b", "content": "second"},
]


def test_an_exchange_with_tools_that_the_model_has_not_answered_is_kept() -> None:
    trimmed = foveate.trim(TOOL_LOOP, limit_tokens=100, model="gpt-4o")

    assert trimmed.messages == [TOOL_LOOP[0], *TOOL_LOOP[3:]]
    assert trimmed.dropped == TOOL_LOOP[1:3]
    with pytest.raises(BudgetExceeded):
        foveate.trim(TOOL_LOOP, limit_tokens=20, model="gpt-4o")


def test_earlier_steps_of_the_last_turn_are_dropped_before_the_last_step() -> None:
    step = [
        {
            "role": "assistant",
            "tool_calls": [{"id": "z", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "z", "content": "long " * 200},
    ]
    messages = [*TOOL_LOOP[:4], *step, *TOOL_LOOP[4:]]

    trimmed = foveate.trim(messages, limit_tokens=100, model="gpt-4o")

    assert trimmed.messages == [TOOL_LOOP[0], *TOOL_LOOP[3:]]


def test_a_finished_answer_is_dropped_last() -> None:
    messages = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "long " * 200}]

    trimmed = foveate.trim(messages, limit_tokens=20, model="gpt-4o")

    assert trimmed.messages == messages[:1]


def test_what_must_stay_and_does_not_fit_is_an_error_with_its_sizes() -> None:
    with pytest.raises(foveate.BudgetExceeded, match="raise limit_tokens or shorten them") as raised:
        foveate.trim([{"role": "user", "content": "word " * 100}], limit_tokens=50, model="gpt-4o")

    assert raised.value.limit_tokens == 50
    assert raised.value.tokens > 100
    assert [size.name for size in raised.value.sections] == ["system", "messages"]


def test_an_empty_list_stays_empty() -> None:
    assert foveate.trim([], limit_tokens=0, model="gpt-4o") == Trimmed([], [], foveate.TokenCount(0, True, 0))


def test_messages_with_images_are_counted() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": "A pixel."},
        {"role": "user", "content": "Sure?"},
    ]

    whole = foveate.trim(messages, limit_tokens=10_000, model="gpt-4o")
    trimmed = foveate.trim(messages, limit_tokens=50, model="gpt-4o")

    assert whole.tokens > 85
    assert trimmed.messages == messages[2:]


def test_objects_of_an_sdk_are_kept_as_they_are() -> None:
    answer = SimpleNamespace(model_dump=lambda **_: {"role": "assistant", "content": "Yes."})
    messages = [{"role": "user", "content": "Is it?"}, answer, {"role": "user", "content": "Why?"}]

    trimmed = foveate.trim(messages, limit_tokens=1000, model="gpt-4o")

    assert trimmed.messages[1] is answer


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(True, "not True"), (-1, "not -1"), (1.5, "not 1.5"), (None, "not None"), ("9", "not '9'")],
)
def test_an_invalid_limit_is_rejected(limit: Any, expected: str) -> None:
    with pytest.raises(BadOption, match=f"limit_tokens must be a number of tokens, 0 or more, {expected}"):
        foveate.trim([{"role": "user", "content": "a"}], limit_tokens=limit, model="gpt-4o")


def test_an_unknown_format_is_rejected_with_the_known_ones() -> None:
    wrong: Any = "openai"
    with pytest.raises(BadOption, match=r"api_format must be one of anthropic, openai-chat, .*, not 'openai'"):
        foveate.trim([{"role": "user", "content": "a"}], limit_tokens=9, model="gpt-4o", api_format=wrong)


@pytest.mark.parametrize("messages", ["text", b"text", {"role": "user"}, None, 5])
def test_anything_but_a_list_is_rejected(messages: Any) -> None:
    with pytest.raises(BadOption, match="messages must be a list of messages, not"):
        foveate.trim(messages, limit_tokens=9, model="gpt-4o")


@pytest.mark.parametrize("message", ["text", '{"role": "user"}', 5, None, [], object(), b"\xff"])
def test_a_message_that_is_not_an_object_is_rejected(message: Any) -> None:
    with pytest.raises(MalformedRequest):
        foveate.trim([message], limit_tokens=9, model="gpt-4o")


DECISIVE = {
    Format.ANTHROPIC: {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}],
    },
    Format.CHAT: {"role": "tool", "tool_call_id": "a", "content": "b"},
    Format.RESPONSES: {"type": "function_call_output", "call_id": "a", "output": "b"},
    Format.GEMINI: {"role": "user", "parts": [{"text": "b"}]},
    Format.BEDROCK: {"role": "user", "content": [{"text": "b"}]},
}


@pytest.mark.parametrize(("api_format", "model"), list(product(DECISIVE, ("gpt-4o", "claude-sonnet-4-5"))))
def test_one_message_anywhere_shows_the_format(api_format: Format, model: str) -> None:
    plain = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 30
    raws = [json.dumps(message).encode() for message in [*plain, DECISIVE[api_format], *plain]]

    assert formats.detect_message_format(raws, model) is api_format


def test_messages_of_several_formats_are_those_of_the_model() -> None:
    raws = [b'{"role":"user","content":"a"}']

    assert formats.detect_message_format(raws, "claude-sonnet-4-5") is Format.ANTHROPIC
    assert formats.detect_message_format(raws, "gpt-4o") is Format.CHAT
    assert formats.detect_message_format([b'{"role":"system","content":"a"}', *raws], "claude-x") is Format.CHAT


def test_two_thousand_messages_are_trimmed_at_once() -> None:
    messages = [
        {"role": role, "content": f"{role} {number} " + "some words of text " * 10}
        for number in range(1000)
        for role in ("user", "assistant")
    ]
    trim_messages(messages[:2], limit_tokens=1000, model="gpt-4o")

    start = time.process_time()
    trimmed = trim_messages(messages, limit_tokens=10_000, model="gpt-4o")

    assert time.process_time() - start < 20
    assert 9_000 < trimmed.count.upper <= 10_000


def test_the_repr_has_the_sizes() -> None:
    trimmed = foveate.trim(TOOL_LOOP, limit_tokens=100, model="gpt-4o")

    assert (
        repr(trimmed)
        == f"<Trimmed: 5 messages, {'' if trimmed.count.exact else '~'}{trimmed.tokens} tokens; 2 dropped>"
    )
