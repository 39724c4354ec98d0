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
bodies_by_format = st.sampled_from(Format).flatmap(
    lambda api_format: st.tuples(st.just(api_format), BODIES[api_format])
)


def chain(body: Body | bytes, api_format: Format | None = None) -> HashChain:
    return compute_chain(formats.parse_request(body, api_format))


def claude_chain(*messages: Body, **more: object) -> HashChain:
    return chain({"model": "claude-4", "max_tokens": 9, "messages": list(messages), **more}, Format.ANTHROPIC)


def chat_chain(*messages: Body) -> HashChain:
    return chain({"model": "gpt-4o", "messages": list(messages)}, Format.CHAT)


def respell(body: Body, seed: int) -> bytes:
    """The same JSON with its keys in another order, other spaces and other escapes."""
    rng = random.Random(seed)
    return json.dumps(
        _shuffle(body, rng),
        ensure_ascii=rng.random() < 0.5,
        indent=rng.choice((None, 0, 3)),
        separators=rng.choice(((",", ":"), (" , ", " :\t"))),
    ).encode()


def _shuffle(value: Any, rng: random.Random) -> Any:
    match value:
        case dict():
            names = list(value)
            rng.shuffle(names)
            return {name: _shuffle(value[name], rng) for name in names}
        case list():
            return [_shuffle(inner, rng) for inner in value]
        case _:
            return value


def remove_breakpoints(value: Any) -> Any:
    """Remove Anthropic's breakpoints; the generated bodies have that key nowhere else."""
    match value:
        case dict():
            return {name: remove_breakpoints(inner) for name, inner in value.items() if name != "cache_control"}
        case list():
            return [remove_breakpoints(inner) for inner in value]
        case _:
            return value


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@given(bodies_by_format, st.integers(0, 4), st.booleans())
def test_the_chain_of_a_prefix_is_a_prefix_of_the_chain(
    case: tuple[Format, Body], length: int, drops_caches: bool
) -> None:
    api_format, body = case
    name = MESSAGES[api_format]
    if not isinstance(body[name], list):
        return
    whole = chain(body, api_format)
    if drops_caches:
        drop_caches()
    part = chain({**body, name: body[name][:length]}, api_format)

    assert part.hashes == whole.hashes[: len(part)]
    assert part.spellings == whole.spellings[: len(part) * HASH_BYTES]
    assert part.leading_system_messages + len(part) == len(body[name][:length])


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 200])
def test_a_long_chain_does_not_depend_on_cached_prefixes(length: int) -> None:
    messages = [{"role": ("user", "assistant")[number % 2], "content": f"{number}"} for number in range(200)]
    drop_caches()
    uncached = claude_chain(*messages[:length])
    drop_caches()
    incremental = [claude_chain(*messages[:size]) for size in range(1, length + 1)][-1]
    again = claude_chain(*messages[:length])

    assert uncached == incremental == again
    assert len(set(uncached.hashes)) == length
    assert claude_chain(*messages).hashes[:length] == uncached.hashes


@pytest.mark.parametrize(
    ("count", "times", "is_in_thread"), [(100, 5, False), (150, 500, True), (400, 1, True)]
)
async def test_a_chain_with_many_new_messages_is_computed_in_a_thread(
    count: int, times: int, is_in_thread: bool
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
    assert (turns > before) == is_in_thread
    before = turns
    again = await compute_chain_in_thread(whole)
    assert turns == before, "no message is new"
    counting.cancel()

    assert first == again == compute_chain(whole)


def test_conversations_with_another_first_message_share_no_hashes() -> None:
    messages = [{"role": "user", "content": f"{number}"} for number in range(130)]

    assert not set(claude_chain(*messages).hashes) & set(claude_chain(USER, *messages[1:]).hashes)


@given(bodies_by_format, st.integers(0, 2**32))
def test_whitespace_escapes_and_key_order_do_not_change_the_conversation(
    case: tuple[Format, Body], seed: int
) -> None:
    api_format, body = case

    assert chain(respell(body, seed), api_format).hashes == chain(body, api_format).hashes


@given(claude_requests(max_calls=3))
@settings(max_examples=limit_examples(40))
def test_breakpoints_do_not_change_the_conversation(body: Body) -> None:
    assert chain(body) == chain(remove_breakpoints(body))


@given(claude_requests(breakpoints=False, max_calls=3), st.data())
def test_a_different_text_role_or_order_changes_the_rest_of_the_chain(body: Body, data: st.DataObject) -> None:
    messages = body["messages"]
    index = data.draw(st.integers(0, len(messages) - 1))
    changes: tuple[Callable[[Body], Body], ...] = (_change_role, _change_word, _add_block)
    changed = [*messages[:index], data.draw(st.sampled_from(changes))(messages[index]), *messages[index + 1 :]]
    before, after = chain(body).hashes, chain({**body, "messages": changed}).hashes

    assert after[:index] == before[:index]
    assert not set(after[index:]) & set(before)
    moved = chain({**body, "messages": [messages[index], *messages[:index], *messages[index + 1 :]]}).hashes
    assert moved[0] == before[0] or not set(moved) & set(before)


def _change_role(message: Body) -> Body:
    return {**message, "role": "user" if message["role"] == "assistant" else "assistant"}


def _change_word(message: Body) -> Body:
    """One more letter in some string of the last block."""
    if isinstance(message["content"], str):
        return {**message, "content": message["content"] + "x"}
    *others, last = message["content"]
    name = "id" if last["type"] == "tool_use" else next(name for name in last if name != "type")
    changed = {**last, name: {"other": last[name]} if isinstance(last[name], dict) else f"{last[name]}x"}
    return {**message, "content": [*others, changed]}


def _add_block(message: Body) -> Body:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*blocks, {"type": "text", "text": "more"}]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a", [{"type": "text", "text": "a"}]),
        ([{"type": "text", "text": "a", "cache_control": SHORT}], "a"),
        (
            [{"type": "tool_result", "tool_use_id": "1", "content": "a"}],
            [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a"}]}],
        ),
    ],
)
def test_a_string_equals_the_text_block_with_the_same_meaning(first: object, second: object) -> None:
    assert (
        claude_chain({"role": "user", "content": first}).hashes
        == claude_chain({"role": "user", "content": second}).hashes
    )


@pytest.mark.parametrize(
    ("first", "second"),
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
def test_messages_with_a_different_meaning_differ(first: object, second: object) -> None:
    assert (
        claude_chain({"role": "user", "content": first}).hashes
        != claude_chain({"role": "user", "content": second}).hashes
    )


def test_moving_text_across_messages_changes_the_hashes() -> None:
    separate = claude_chain({"role": "user", "content": "a"}, {"role": "user", "content": "b"})
    joined = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert claude_chain({"role": "user", "content": joined}).hashes[-1] != separate.hashes[-1]


def test_the_system_prompt_and_tools_do_not_change_the_conversation() -> None:
    bare = claude_chain(USER, ANSWER)

    assert claude_chain(USER, ANSWER, system="It is noon", tools=[{"name": "f"}], temperature=0.5) == bare


def test_leading_system_messages_do_not_change_the_conversation_and_later_ones_do() -> None:
    noon, evening = ({"role": "system", "content": f"It is {time}"} for time in ("noon", "evening"))
    rules = {"role": "developer", "content": "Be brief"}
    bare = chat_chain(USER, ANSWER)

    for head in ([noon], [evening], [rules, noon]):
        with_head = chat_chain(*head, USER, ANSWER)
        assert (with_head.hashes, with_head.spellings) == (bare.hashes, bare.spellings)
        assert with_head.leading_system_messages == len(head)
    assert chat_chain(USER, noon, ANSWER).hashes[1:] != chat_chain(USER, evening, ANSWER).hashes[1:]
    assert chat_chain(USER, noon).leading_system_messages == 0


def test_a_request_with_only_system_messages_has_an_empty_chain() -> None:
    assert chat_chain({"role": "system", "content": "Be brief"}) == HashChain(
        leading_system_messages=1, hashes=(), spellings=b""
    )
    assert len(claude_chain()) == 0


def test_other_fields_of_a_chat_message_are_part_of_it_in_any_order() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "ab"]
    first = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "r", "name": "n"}
    reordered = dict(reversed(first.items()))

    assert chat_chain(USER, reordered).hashes == chat_chain(USER, first).hashes
    assert chat_chain(USER, {**first, "tool_calls": calls[::-1]}).hashes != chat_chain(USER, first).hashes
    assert chat_chain(USER, {**first, "reasoning_content": "s"}).hashes != chat_chain(USER, first).hashes


def test_the_order_of_keys_changes_the_spelling() -> None:
    def call(**arguments: int) -> HashChain:
        return claude_chain(
            {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": arguments}]}
        )

    assert call(a=1, b=2).hashes == call(b=2, a=1).hashes
    assert call(a=1, b=2).spelling(0) != call(b=2, a=1).spelling(0)


def test_the_same_text_in_another_format_is_another_conversation() -> None:
    body = {"model": "m", "messages": [USER]}

    assert chain(body, Format.ANTHROPIC).hashes != chain(body, Format.CHAT).hashes


def test_a_message_without_blocks_still_has_its_role() -> None:
    empty_messages: list[Body] = [{"role": role, "content": []} for role in ("user", "assistant")]

    assert len(claude_chain(USER, empty_messages[1], USER)) == 3
    assert claude_chain(empty_messages[0]).hashes != claude_chain(empty_messages[1]).hashes


def test_hashes_are_stable_across_versions() -> None:
    """If this fails, stored sessions and compactions are no longer found: change the seed, then this."""
    assert [digest.hex() for digest in claude_chain(USER, ANSWER).hashes] == [
        "157da048dbd490a9012c9962e3a1b563",
        "5ec76cea03cab132ebdd6d6d758ee891",
    ]


def test_a_message_that_is_nested_too_deeply_is_rejected() -> None:
    deep = b'{"role":"user","content":' + b"[" * 5000 + b"]" * 5000 + b"}"

    with pytest.raises(MalformedRequest, match="too deeply"):
        chain(b'{"model":"claude-4","max_tokens":1,"messages":[' + deep + b"]}", Format.ANTHROPIC)
