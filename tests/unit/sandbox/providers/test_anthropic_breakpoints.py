"""Cache breakpoints: their number, blocks and order. Rules marked *always* are properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.model import Format
from tests.support.scenarios.valid_requests import (
    BREAKPOINT,
    BREAKPOINT_GPT,
    LONG_BREAKPOINT,
    OPENAI_BREAKPOINT,
    Json,
    accepts,
    assistant,
    call,
    chat,
    claude,
    rejection,
    response,
    result,
    text,
    tool,
    user,
    validate,
)

ANTHROPIC = Format.ANTHROPIC
REDACTED_THINKING = {"type": "redacted_thinking", "data": "x"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


def claude_with_breakpoints(count: int, cache_control: Json = BREAKPOINT) -> Json:
    return claude(user(*(text(f"block {i}", cache_control) for i in range(count))))


def test_four_breakpoints_are_accepted_and_a_fifth_is_not() -> None:
    assert accepts(ANTHROPIC, claude_with_breakpoints(4))
    error = rejection(ANTHROPIC, claude_with_breakpoints(5))

    assert error.message == "A maximum of 4 blocks with cache_control may be provided. Found 5."
    assert (error.status, error.kind) == (400, "invalid_request_error")


def test_breakpoints_in_tools_system_and_messages_count_together() -> None:
    body = claude(
        user(text("x", BREAKPOINT)),
        tools=[tool(cache_control=BREAKPOINT)],
        system=[text("a", BREAKPOINT), text("b", BREAKPOINT)],
    )

    assert accepts(ANTHROPIC, body)
    body["messages"].append(user(text("y", BREAKPOINT)))
    assert "Found 5." in rejection(ANTHROPIC, body).message


def test_the_automatic_breakpoint_is_one_of_the_four() -> None:
    assert accepts(ANTHROPIC, claude_with_breakpoints(3) | {"cache_control": BREAKPOINT})
    assert (
        "Found 5." in rejection(ANTHROPIC, claude_with_breakpoints(4) | {"cache_control": BREAKPOINT}).message
    )


def test_the_automatic_breakpoint_must_match_the_ttl_of_its_block() -> None:
    assert accepts(ANTHROPIC, claude_with_breakpoints(1, LONG_BREAKPOINT) | {"cache_control": LONG_BREAKPOINT})
    assert (
        "different ttl ('1h', not '5m')"
        in rejection(
            ANTHROPIC, claude_with_breakpoints(1, LONG_BREAKPOINT) | {"cache_control": BREAKPOINT}
        ).message
    )
    assert (
        "different ttl ('5m', not '1h')"
        in rejection(ANTHROPIC, claude_with_breakpoints(1) | {"cache_control": LONG_BREAKPOINT}).message
    )


def test_the_automatic_breakpoint_is_last_in_the_order_of_ttls() -> None:
    body = claude(user(text("a", BREAKPOINT), "b"), cache_control=LONG_BREAKPOINT)

    assert rejection(ANTHROPIC, body).message.startswith("cache_control.ttl: a ttl='1h' cache_control block")
    assert accepts(ANTHROPIC, claude(user(text("a", LONG_BREAKPOINT), "b"), cache_control=BREAKPOINT))


def test_one_hour_breakpoints_come_before_five_minute_ones() -> None:
    assert accepts(ANTHROPIC, claude(user(text("a", LONG_BREAKPOINT), text("b", BREAKPOINT))))
    body = claude(user(text("a", LONG_BREAKPOINT)), system=[text("s", BREAKPOINT)])
    message = rejection(ANTHROPIC, body).message

    assert message.startswith(
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come"
    )
    assert message.endswith("in the following order: `tools`, `system`, `messages`.")


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (text("", BREAKPOINT), "messages.0.content.0.text: cache_control cannot be set for empty text blocks"),
        (
            {"type": "thinking", "thinking": "hm", "signature": "x", "cache_control": BREAKPOINT},
            "messages.0.content.0.thinking.cache_control: Extra inputs are not permitted",
        ),
        (
            REDACTED_THINKING | {"cache_control": BREAKPOINT},
            "messages.0.content.0.redacted_thinking.cache_control: Extra inputs are not permitted",
        ),
        (text("x", {"type": "eternal"}), "messages.0.content.0.text.cache_control.type: Input should be 'eph"),
        (
            text("x", BREAKPOINT | {"ttl": "2h"}),
            "messages.0.content.0.text.cache_control.ttl: Input should be '5m' or '1h'",
        ),
        (text("x") | {"cache_control": "yes"}, "messages.0.content.0.text.cache_control: Input should be a"),
    ],
)
def test_an_invalid_breakpoint_is_named(block: Json, message: str) -> None:
    assert rejection(ANTHROPIC, claude(assistant(block), user("x"))).message.startswith(message)


def test_a_breakpoint_belongs_on_a_tool_result_and_not_inside_it() -> None:
    outside = claude(assistant(call()), user(result(cache_control=BREAKPOINT)))
    inside = claude(assistant(call()), user(result(content=[text("x", BREAKPOINT)])))

    assert accepts(ANTHROPIC, outside)
    assert (
        rejection(ANTHROPIC, inside).message
        == "messages.1.content.0.tool_result.content.0.text.cache_control: Extra inputs are not permitted"
    )


@pytest.mark.parametrize(
    "body",
    [
        claude(user(IMAGE | {"cache_control": BREAKPOINT})),
        claude(assistant(call(cache_control=BREAKPOINT)), user(result())),
        claude(tools=[tool(cache_control=LONG_BREAKPOINT)]),
        claude(user(text("x") | {"cache_control": None})),
        claude(user(text("x", {"type": "ephemeral", "ttl": "5m"}))),
    ],
)
def test_breakpoints_on_cacheable_blocks_are_accepted(body: Json) -> None:
    assert accepts(ANTHROPIC, body)


def test_models_without_a_cache_accept_no_breakpoint() -> None:
    assert accepts(ANTHROPIC, claude_with_breakpoints(0) | claude(model="claude-2.1"))
    assert validate(ANTHROPIC, claude_with_breakpoints(1) | {"model": "claude-2.1"}) is not None


BreakpointPlaces = list[tuple[str, str | None]]
BLOCK_KINDS = ("tool", "system", "text", "call", "image")


def build_request(places: BreakpointPlaces) -> Json:
    """Return a request with a tool, system block or message for each place, with its breakpoint."""

    def cache_control(ttl: str | None) -> Any:
        return {} if ttl is None else {"cache_control": {"type": "ephemeral", "ttl": ttl}}

    messages = []
    for i, (kind, ttl) in enumerate(places):
        if kind == "text":
            messages.append(user(text(f"{i}") | cache_control(ttl)))
        elif kind == "image":
            messages.append(user(IMAGE | cache_control(ttl)))
        elif kind == "call":
            messages += [assistant(call(f"t{i}") | cache_control(ttl)), user(result(f"t{i}"))]
    return claude(
        *messages,
        user("the end"),
        tools=[tool(f"tool{i}") | cache_control(ttl) for i, (kind, ttl) in enumerate(places) if kind == "tool"],
        system=[text(f"{i}") | cache_control(ttl) for i, (kind, ttl) in enumerate(places) if kind == "system"],
    )


def ttls_in_order(places: BreakpointPlaces) -> list[str]:
    """Return the TTLs of breakpoints in the order in which a provider reads them."""
    area = {"tool": 0, "system": 1}
    in_order = sorted(places, key=lambda place: area.get(place[0], 2))
    return [ttl for _, ttl in in_order if ttl is not None]


@given(st.lists(st.tuples(st.sampled_from(BLOCK_KINDS), st.sampled_from([None, "5m", "1h"])), max_size=9))
def test_breakpoints_are_accepted_exactly_if_at_most_four_with_long_ttls_first(
    places: BreakpointPlaces,
) -> None:
    ttls = ttls_in_order(places)
    is_valid = len(ttls) <= 4 and ttls == sorted(ttls)  # "1h" sorts before "5m"

    assert (validate(ANTHROPIC, build_request(places)) is None) == is_valid


def chat_with_breakpoints(count: int, **fields: Any) -> Json:
    parts = [text(f"{i}") | {"prompt_cache_breakpoint": OPENAI_BREAKPOINT} for i in range(count)]
    return chat({"role": "user", "content": parts}, model=BREAKPOINT_GPT) | fields


def test_openai_accepts_four_breakpoints_from_gpt_5_6_on_and_no_fifth() -> None:
    assert accepts(Format.CHAT, chat_with_breakpoints(4))
    assert "A maximum of 4" in rejection(Format.CHAT, chat_with_breakpoints(5)).message
    error = rejection(Format.CHAT, chat_with_breakpoints(1, model="gpt-5.4"))
    assert (error.code, error.param) == (
        "unknown_parameter",
        "messages[0].content[0].prompt_cache_breakpoint",
    )


def test_openai_accepts_no_breakpoint_on_model_output() -> None:
    error = {"role": "assistant", "content": [text("x") | {"prompt_cache_breakpoint": OPENAI_BREAKPOINT}]}

    assert rejection(Format.CHAT, chat(error, model=BREAKPOINT_GPT)).code == "unknown_parameter"


def test_openai_rejects_breakpoints_of_other_providers() -> None:
    body = chat({"role": "user", "content": [text("x", BREAKPOINT)]}, model=BREAKPOINT_GPT)

    assert rejection(Format.CHAT, body).message == "Unknown parameter: 'messages[0].content[0].cache_control'."


def test_only_the_responses_api_accepts_a_ttl_of_twelve_hours() -> None:
    part = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": OPENAI_BREAKPOINT | {"ttl": "12h"}}
    item = {"role": "user", "content": [part]}
    options = {"mode": "explicit", "ttl": "12h"}

    assert accepts(Format.RESPONSES, response(item, model=BREAKPOINT_GPT, prompt_cache_options=options))
    assert (
        rejection(Format.CHAT, chat_with_breakpoints(1, prompt_cache_options=options)).param
        == "prompt_cache_options.ttl"
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "gpt-4o", "prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
        ({"prompt_cache_options": {"mode": "none"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": "explicit"}, "prompt_cache_options"),
        (
            {"prompt_cache_options": {"ttl": "30m"}, "prompt_cache_retention": "24h"},
            "prompt_cache_retention",
        ),
    ],
)
def test_invalid_cache_options_are_rejected(fields: Json, param: str) -> None:
    assert rejection(Format.CHAT, chat_with_breakpoints(0) | chat(model=BREAKPOINT_GPT) | fields).param == param
