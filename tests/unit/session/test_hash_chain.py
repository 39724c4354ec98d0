"""A conversation is identified by its hash chain, whatever its spelling and breakpoints."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.model import Format
from foveate.session.hash_chain import HASH_BYTES, HashChain, compute_chain, compute_chain_in_thread
from foveate.tokens import drop_caches
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.claude_requests import claude_requests
from tests.support.strategies.request_edits import BODIES

Body = dict[str, Any]

MESSAGES = {
    Format.ANTHROPIC: "messages",
    Format.CHAT: "messages",
    Format.RESPONSES: "input",
    Format.GEMINI: "contents",
    Format.BEDROCK: "messages",
}
SHORT = {"type": "ephemeral"}
spoken_bodies = st.sampled_from(Format).flatmap(lambda spoken: st.tuples(st.just(spoken), BODIES[spoken]))


def chain(body: Body | bytes, api_format: Format | None = None) -> HashChain:
    return compute_chain(formats.parse_request(body, api_format))


def said(*messages: Body, **more: object) -> HashChain:
    return chain({"model": "claude-4", "max_tokens": 9, "messages": list(messages), **more}, Format.ANTHROPIC)


def chatted(*messages: Body) -> HashChain:
    return chain({"model": "gpt-4o", "messages": list(messages)}, Format.CHAT)


def respelled(body: Body, seed: int) -> bytes:
    """The same JSON with its keys in another order, other spaces and other escapes."""
    dice = random.Random(seed)
    return json.dumps(
        _shuffled(body, dice),
        ensure_ascii=dice.random() < 0.5,
        indent=dice.choice((None, 0, 3)),
        separators=dice.choice(((",", ":"), (" , ", " :\t"))),
    ).encode()


def _shuffled(found: Any, dice: random.Random) -> Any:
    match found:
        case dict():
            names = list(found)
            dice.shuffle(names)
            return {name: _shuffled(found[name], dice) for name in names}
        case list():
            return [_shuffled(inner, dice) for inner in found]
        case _:
            return found


def unmarked(found: Any) -> Any:
    """Without Anthropic's breakpoints; `claude_bodies` has that name nowhere else."""
    match found:
        case dict():
            return {name: unmarked(inner) for name, inner in found.items() if name != "cache_control"}
        case list():
            return [unmarked(inner) for inner in found]
        case _:
            return found


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@given(spoken_bodies, st.integers(0, 4), st.booleans())
@settings(max_examples=limit_examples(60))
def test_the_chain_of_a_beginning_is_the_beginning_of_the_chain(
    given: tuple[Format, Body], length: int, fresh: bool
) -> None:
    api_format, body = given
    name = MESSAGES[api_format]
    if not isinstance(body[name], list):
        return
    whole = chain(body, api_format)
    if fresh:
        drop_caches()
    part = chain({**body, name: body[name][:length]}, api_format)

    assert part.hashes == whole.hashes[: len(part)]
    assert part.spellings == whole.spellings[: len(part) * HASH_BYTES]
    assert part.leading_system_messages + len(part) == len(body[name][:length])


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 200])
def test_a_long_chain_is_the_same_whether_it_was_seen_whole_in_part_or_never(length: int) -> None:
    messages = [{"role": ("user", "assistant")[number % 2], "content": f"{number}"} for number in range(200)]
    drop_caches()
    never = said(*messages[:length])
    drop_caches()
    grown = [said(*messages[:size]) for size in range(1, length + 1)][-1]
    again = said(*messages[:length])

    assert never == grown == again
    assert len(set(never.hashes)) == length
    assert said(*messages).hashes[:length] == never.hashes


@pytest.mark.parametrize(("count", "times", "is_beside"), [(100, 5, False), (150, 500, True), (400, 1, True)])
async def test_a_chain_of_which_much_is_new_is_made_beside_the_event_loop(
    count: int, times: int, is_beside: bool
) -> None:
    """Regression: thousands of short new messages blocked the event loop."""
    messages = [{"role": "user", "content": f"{number} " * times} for number in range(count)]
    whole = formats.parse_request(
        {"model": "claude-4", "max_tokens": 9, "messages": messages}, Format.ANTHROPIC
    )
    drop_caches()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    await asyncio.sleep(0)
    before = turns
    first = await compute_chain_in_thread(whole)
    assert (turns > before) == is_beside
    before = turns
    again = await compute_chain_in_thread(whole)
    assert turns == before, "nothing of it is new"
    counting.cancel()

    assert first == again == compute_chain(whole)


def test_long_conversations_with_another_first_message_share_nothing() -> None:
    messages = [{"role": "user", "content": f"{number}"} for number in range(130)]

    assert not set(said(*messages).hashes) & set(said(USER, *messages[1:]).hashes)


@given(spoken_bodies, st.integers(0, 2**32))
@settings(max_examples=limit_examples(80))
def test_whitespace_escapes_and_key_order_do_not_change_the_conversation(
    given: tuple[Format, Body], seed: int
) -> None:
    api_format, body = given

    assert chain(respelled(body, seed), api_format).hashes == chain(body, api_format).hashes


@given(claude_requests(max_calls=3))
@settings(max_examples=limit_examples(40))
def test_breakpoints_do_not_change_the_conversation(body: Body) -> None:
    assert chain(body) == chain(unmarked(body))


@given(claude_requests(breakpoints=False, max_calls=3), st.data())
@settings(max_examples=limit_examples(60))
def test_a_different_text_role_or_order_changes_the_rest_of_the_chain(body: Body, data: st.DataObject) -> None:
    messages = body["messages"]
    at = data.draw(st.integers(0, len(messages) - 1))
    changes: tuple[Callable[[Body], Body], ...] = (_other_role, _other_word, _one_more_block)
    other = [*messages[:at], data.draw(st.sampled_from(changes))(messages[at]), *messages[at + 1 :]]
    before, after = chain(body).hashes, chain({**body, "messages": other}).hashes

    assert after[:at] == before[:at]
    assert not set(after[at:]) & set(before)
    moved = chain({**body, "messages": [messages[at], *messages[:at], *messages[at + 1 :]]}).hashes
    assert moved[0] == before[0] or not set(moved) & set(before)


def _other_role(message: Body) -> Body:
    return {**message, "role": "user" if message["role"] == "assistant" else "assistant"}


def _other_word(message: Body) -> Body:
    """One more letter in some string of the last block."""
    if isinstance(message["content"], str):
        return {**message, "content": message["content"] + "x"}
    *others, last = message["content"]
    name = "id" if last["type"] == "tool_use" else next(name for name in last if name != "type")
    changed = {**last, name: {"other": last[name]} if isinstance(last[name], dict) else f"{last[name]}x"}
    return {**message, "content": [*others, changed]}


def _one_more_block(message: Body) -> Body:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*blocks, {"type": "text", "text": "more"}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", [{"type": "text", "text": "a"}]),
        ([{"type": "text", "text": "a", "cache_control": SHORT}], "a"),
        (
            [{"type": "tool_result", "tool_use_id": "1", "content": "a"}],
            [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a"}]}],
        ),
    ],
)
def test_a_string_is_the_block_that_means_the_same(one: object, other: object) -> None:
    assert said({"role": "user", "content": one}).hashes == said({"role": "user", "content": other}).hashes


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ab", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        ("", []),
        ("1", [{"type": "text", "text": 1}]),
        ([{"type": "tool_use", "input": {"n": 1}}], [{"type": "tool_use", "input": {"n": "1"}}]),
        ([{"type": "tool_use", "input": {"n": [1, 2]}}], [{"type": "tool_use", "input": {"n": [2, 1]}}]),
        (
            [{"type": "tool_use", "input": {"cache_control": 1}}],
            [{"type": "tool_use", "input": {"cache_control": 2}}],
        ),
    ],
)
def test_messages_with_a_different_meaning_differ(one: object, other: object) -> None:
    assert said({"role": "user", "content": one}).hashes != said({"role": "user", "content": other}).hashes


def test_words_cannot_be_moved_over_the_seam_of_two_messages() -> None:
    one = said({"role": "user", "content": "a"}, {"role": "user", "content": "b"})
    joined = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert said({"role": "user", "content": joined}).hashes[-1] != one.hashes[-1]


def test_the_system_prompt_and_tools_are_no_part_of_the_conversation() -> None:
    bare = said(USER, ANSWER)

    assert said(USER, ANSWER, system="It is noon", tools=[{"name": "f"}], temperature=0.5) == bare


def test_system_messages_at_the_head_are_no_part_of_it_and_later_ones_are() -> None:
    noon, evening = ({"role": "system", "content": f"It is {time}"} for time in ("noon", "evening"))
    rules = {"role": "developer", "content": "Be brief"}
    bare = chatted(USER, ANSWER)

    for head in ([noon], [evening], [rules, noon]):
        found = chatted(*head, USER, ANSWER)
        assert (found.hashes, found.spellings) == (bare.hashes, bare.spellings)
        assert found.leading_system_messages == len(head)
    assert chatted(USER, noon, ANSWER).hashes[1:] != chatted(USER, evening, ANSWER).hashes[1:]
    assert chatted(USER, noon).leading_system_messages == 0


def test_a_request_with_system_messages_alone_has_no_chain() -> None:
    assert chatted({"role": "system", "content": "Be brief"}) == HashChain(
        leading_system_messages=1, hashes=(), spellings=b""
    )
    assert len(said()) == 0


def test_what_stands_beside_the_content_of_a_chat_message_is_part_of_it_in_any_order() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "ab"]
    first = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "r", "name": "n"}
    turned = dict(reversed(first.items()))

    assert chatted(USER, turned).hashes == chatted(USER, first).hashes
    assert chatted(USER, {**first, "tool_calls": calls[::-1]}).hashes != chatted(USER, first).hashes
    assert chatted(USER, {**first, "reasoning_content": "s"}).hashes != chatted(USER, first).hashes


def test_the_order_of_keys_changes_the_spelling() -> None:
    def call(**arguments: int) -> HashChain:
        return said({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": arguments}]})

    assert call(a=1, b=2).hashes == call(b=2, a=1).hashes
    assert call(a=1, b=2).spelling(0) != call(b=2, a=1).spelling(0)


def test_the_same_text_in_another_format_is_another_conversation() -> None:
    body = {"model": "m", "messages": [USER]}

    assert chain(body, Format.ANTHROPIC).hashes != chain(body, Format.CHAT).hashes


def test_a_message_without_any_block_is_still_a_message_of_somebody() -> None:
    nothing: list[Body] = [{"role": role, "content": []} for role in ("user", "assistant")]

    assert len(said(USER, nothing[1], USER)) == 3
    assert said(nothing[0]).hashes != said(nothing[1]).hashes


def test_hashes_stay_what_they_are_from_version_to_version() -> None:
    """If this fails, stored sessions and compactions are no longer found: change the seed, then this."""
    assert [one.hex() for one in said(USER, ANSWER).hashes] == [
        "157da048dbd490a9012c9962e3a1b563",
        "5ec76cea03cab132ebdd6d6d758ee891",
    ]


def test_a_message_that_is_nested_too_deeply_is_refused() -> None:
    deep = b'{"role":"user","content":' + b"[" * 5000 + b"]" * 5000 + b"}"

    with pytest.raises(MalformedRequest, match="too deeply"):
        chain(b'{"model":"claude-4","max_tokens":1,"messages":[' + deep + b"]}", Format.ANTHROPIC)
