"""Cache breakpoints: their number, blocks and order. Rules marked *always* are properties."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.model import Format
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.valid_requests import (
    LONG_MARK,
    MARK,
    MARKING_GPT,
    POINT,
    Json,
    assistant,
    call,
    chat,
    claude,
    refusal,
    response,
    result,
    takes,
    text,
    tool,
    user,
    verdict,
)

ANTHROPIC = Format.ANTHROPIC
SECRET = {"type": "redacted_thinking", "data": "x"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


def marked(count: int, mark: Json = MARK) -> Json:
    return claude(user(*(text(f"block {i}", mark) for i in range(count))))


def test_four_breakpoints_are_accepted_and_a_fifth_is_not() -> None:
    assert takes(ANTHROPIC, marked(4))
    found = refusal(ANTHROPIC, marked(5))

    assert found.message == "A maximum of 4 blocks with cache_control may be provided. Found 5."
    assert (found.status, found.kind) == (400, "invalid_request_error")


def test_breakpoints_in_tools_system_and_messages_count_together() -> None:
    spread = claude(
        user(text("x", MARK)), tools=[tool(cache_control=MARK)], system=[text("a", MARK), text("b", MARK)]
    )

    assert takes(ANTHROPIC, spread)
    spread["messages"].append(user(text("y", MARK)))
    assert "Found 5." in refusal(ANTHROPIC, spread).message


def test_the_automatic_breakpoint_is_one_of_the_four() -> None:
    assert takes(ANTHROPIC, marked(3) | {"cache_control": MARK})
    assert "Found 5." in refusal(ANTHROPIC, marked(4) | {"cache_control": MARK}).message


def test_the_automatic_breakpoint_must_match_the_ttl_of_its_block() -> None:
    assert takes(ANTHROPIC, marked(1, LONG_MARK) | {"cache_control": LONG_MARK})
    assert (
        "different ttl ('1h', not '5m')"
        in refusal(ANTHROPIC, marked(1, LONG_MARK) | {"cache_control": MARK}).message
    )
    assert (
        "different ttl ('5m', not '1h')" in refusal(ANTHROPIC, marked(1) | {"cache_control": LONG_MARK}).message
    )


def test_the_automatic_breakpoint_is_last_in_the_order_of_ttls() -> None:
    body = claude(user(text("a", MARK), "b"), cache_control=LONG_MARK)

    assert refusal(ANTHROPIC, body).message.startswith("cache_control.ttl: a ttl='1h' cache_control block")
    assert takes(ANTHROPIC, claude(user(text("a", LONG_MARK), "b"), cache_control=MARK))


def test_one_hour_breakpoints_come_before_five_minute_ones() -> None:
    assert takes(ANTHROPIC, claude(user(text("a", LONG_MARK), text("b", MARK))))
    body = claude(user(text("a", LONG_MARK)), system=[text("s", MARK)])
    found = refusal(ANTHROPIC, body).message

    assert found.startswith(
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come"
    )
    assert found.endswith("in the following order: `tools`, `system`, `messages`.")


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (text("", MARK), "messages.0.content.0.text: cache_control cannot be set for empty text blocks"),
        (
            {"type": "thinking", "thinking": "hm", "signature": "x", "cache_control": MARK},
            "messages.0.content.0.thinking.cache_control: Extra inputs are not permitted",
        ),
        (
            SECRET | {"cache_control": MARK},
            "messages.0.content.0.redacted_thinking.cache_control: Extra inputs are not permitted",
        ),
        (text("x", {"type": "eternal"}), "messages.0.content.0.text.cache_control.type: Input should be 'eph"),
        (
            text("x", MARK | {"ttl": "2h"}),
            "messages.0.content.0.text.cache_control.ttl: Input should be '5m' or '1h'",
        ),
        (text("x") | {"cache_control": "yes"}, "messages.0.content.0.text.cache_control: Input should be a"),
    ],
)
def test_an_invalid_breakpoint_is_named(block: Json, says: str) -> None:
    assert refusal(ANTHROPIC, claude(assistant(block), user("x"))).message.startswith(says)


def test_a_breakpoint_belongs_on_a_tool_result_and_not_inside_it() -> None:
    outside = claude(assistant(call()), user(result(cache_control=MARK)))
    inside = claude(assistant(call()), user(result(content=[text("x", MARK)])))

    assert takes(ANTHROPIC, outside)
    assert (
        refusal(ANTHROPIC, inside).message
        == "messages.1.content.0.tool_result.content.0.text.cache_control: Extra inputs are not permitted"
    )


@pytest.mark.parametrize(
    "body",
    [
        claude(user(IMAGE | {"cache_control": MARK})),
        claude(assistant(call(cache_control=MARK)), user(result())),
        claude(tools=[tool(cache_control=LONG_MARK)]),
        claude(user(text("x") | {"cache_control": None})),
        claude(user(text("x", {"type": "ephemeral", "ttl": "5m"}))),
    ],
)
def test_breakpoints_on_cacheable_blocks_are_accepted(body: Json) -> None:
    assert takes(ANTHROPIC, body)


def test_models_without_a_cache_accept_no_breakpoint() -> None:
    assert takes(ANTHROPIC, marked(0) | claude(model="claude-2.1"))
    assert verdict(ANTHROPIC, marked(1) | {"model": "claude-2.1"}) is not None


Places = list[tuple[str, str | None]]
KINDS = ("tool", "system", "text", "call", "image")


def built(places: Places) -> Json:
    """Return a request with a tool, system block or message for each place, with its breakpoint."""

    def mark(ttl: str | None) -> Any:
        return {} if ttl is None else {"cache_control": {"type": "ephemeral", "ttl": ttl}}

    messages = []
    for i, (kind, ttl) in enumerate(places):
        if kind == "text":
            messages.append(user(text(f"{i}") | mark(ttl)))
        elif kind == "image":
            messages.append(user(IMAGE | mark(ttl)))
        elif kind == "call":
            messages += [assistant(call(f"t{i}") | mark(ttl)), user(result(f"t{i}"))]
    return claude(
        *messages,
        user("the end"),
        tools=[tool(f"tool{i}") | mark(ttl) for i, (kind, ttl) in enumerate(places) if kind == "tool"],
        system=[text(f"{i}") | mark(ttl) for i, (kind, ttl) in enumerate(places) if kind == "system"],
    )


def in_order(places: Places) -> list[str]:
    """Return the TTLs of breakpoints in the order in which a provider reads them."""
    area = {"tool": 0, "system": 1}
    read = sorted(places, key=lambda place: area.get(place[0], 2))
    return [ttl for _, ttl in read if ttl is not None]


@settings(max_examples=limit_examples(80))
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from([None, "5m", "1h"])), max_size=9))
def test_breakpoints_are_accepted_exactly_if_at_most_four_with_long_ttls_first(places: Places) -> None:
    ttls = in_order(places)
    allowed = len(ttls) <= 4 and ttls == sorted(ttls)  # "1h" sorts before "5m"

    assert (verdict(ANTHROPIC, built(places)) is None) == allowed


def point_chat(count: int, **more: Any) -> Json:
    parts = [text(f"{i}") | {"prompt_cache_breakpoint": POINT} for i in range(count)]
    return chat({"role": "user", "content": parts}, model=MARKING_GPT) | more


def test_openai_accepts_four_breakpoints_from_gpt_5_6_on_and_no_fifth() -> None:
    assert takes(Format.CHAT, point_chat(4))
    assert "A maximum of 4" in refusal(Format.CHAT, point_chat(5)).message
    found = refusal(Format.CHAT, point_chat(1, model="gpt-5.4"))
    assert (found.code, found.param) == (
        "unknown_parameter",
        "messages[0].content[0].prompt_cache_breakpoint",
    )


def test_openai_accepts_no_breakpoint_on_model_output() -> None:
    said = {"role": "assistant", "content": [text("x") | {"prompt_cache_breakpoint": POINT}]}

    assert refusal(Format.CHAT, chat(said, model=MARKING_GPT)).code == "unknown_parameter"


def test_openai_rejects_breakpoints_of_other_providers() -> None:
    body = chat({"role": "user", "content": [text("x", MARK)]}, model=MARKING_GPT)

    assert refusal(Format.CHAT, body).message == "Unknown parameter: 'messages[0].content[0].cache_control'."


def test_only_the_responses_api_accepts_a_ttl_of_twelve_hours() -> None:
    part = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": POINT | {"ttl": "12h"}}
    item = {"role": "user", "content": [part]}
    long = {"mode": "explicit", "ttl": "12h"}

    assert takes(Format.RESPONSES, response(item, model=MARKING_GPT, prompt_cache_options=long))
    assert refusal(Format.CHAT, point_chat(1, prompt_cache_options=long)).param == "prompt_cache_options.ttl"


@pytest.mark.parametrize(
    ("more", "param"),
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
def test_invalid_cache_options_are_rejected(more: Json, param: str) -> None:
    assert refusal(Format.CHAT, point_chat(0) | chat(model=MARKING_GPT) | more).param == param
