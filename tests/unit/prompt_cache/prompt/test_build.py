"""Prompts built from requests: pieces that add up, identified by content and role, and their settings."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.blocks import BLOCK_CACHE
from foveate.model import Area, Request, TokenCount, Ttl
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import block_tokens_for, build_cached_prompt
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.prompt.parameters import read_cache_options
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.tokens import RequestCount, counter_for, drop_caches, with_model
from tests.support.harness.example_limits import limit_examples

MODEL = "claude-sonnet-4-5"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}


def parse_body(body: dict[str, Any], model: str | None = None) -> Request:
    return with_model(formats.parse_request(body), model)


def build_prompt(body: dict[str, Any]) -> CachedPrompt:
    request = parse_body(body)
    return build_cached_prompt(request, rules_for(request.model), block_tokens_for(request.model))


def claude_body(*messages: Any, **fields: Any) -> dict[str, Any]:
    turns = [
        message if isinstance(message, dict) else {"role": "user", "content": message} for message in messages
    ]
    return {"model": MODEL, "max_tokens": 10, "messages": turns or [{"role": "user", "content": "Hi"}]} | fields


class CallCountingCounter:
    """The real counter, which also records how many texts it counted."""

    def __init__(self, model: str = MODEL) -> None:
        self._counter = counter_for(model)
        self.texts = 0

    def text(self, text: str) -> TokenCount:
        self.texts += 1
        return self._counter.text(text)

    def count_request(self, request: Request) -> RequestCount:
        return self._counter.count_request(request)


texts = st.text(alphabet="ab c.é漢", max_size=40)
blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.just(IMAGE).map(copy.deepcopy),
    st.builds(lambda text: {"type": "tool_result", "tool_use_id": "t", "content": text}, texts),
    st.builds(lambda text: {"type": "tool_use", "id": "t", "name": "look", "input": {"at": text}}, texts),
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s" * 40}, texts),
)
contents = st.one_of(texts, st.lists(blocks, max_size=4))
turns = st.builds(
    lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "assistant"]), contents
)
tools = st.builds(
    lambda name, text: {"name": name, "description": text, "input_schema": {"type": "object"}}, texts, texts
)
bodies = st.builds(
    lambda messages, system, tools: claude_body(*messages, system=system, tools=tools),
    st.lists(turns, min_size=1, max_size=5),
    contents.filter(
        lambda content: isinstance(content, str) or all(block["type"] == "text" for block in content)
    ),
    st.lists(tools, max_size=3),
)


@given(body=bodies)
def test_the_pieces_always_add_up_to_the_whole_request(body: dict[str, Any]) -> None:
    prompt = build_prompt(body)
    total = counter_for(MODEL).count_request(parse_body(body)).total.tokens

    assert prompt.tokens == (total if prompt.pieces else 0)
    assert all(piece.tokens >= 0 for piece in prompt.pieces)


@settings(max_examples=limit_examples(40))
@given(body=bodies, data=st.data())
def test_a_breakpoint_changes_neither_digest_nor_tokens(body: dict[str, Any], data: st.DataObject) -> None:
    with_breakpoints = copy.deepcopy(body)
    blocks = [
        block
        for message in with_breakpoints["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    markable = [
        block for block in blocks if block["type"] != "thinking"
    ]  # thinking accepts no breakpoint, and may be dropped
    if markable:
        data.draw(st.sampled_from(markable))["cache_control"] = {"type": "ephemeral"}
    without_breakpoint, with_breakpoint = build_prompt(body), build_prompt(with_breakpoints)

    assert [(piece.digest, piece.tokens) for piece in without_breakpoint.pieces] == [
        (piece.digest, piece.tokens) for piece in with_breakpoint.pieces
    ]
    assert [piece.breakpoint_ttl for piece in with_breakpoint.pieces].count(Ttl.FIVE_MINUTES) == bool(markable)


def test_recorded_requests_of_every_format_add_up(shared_data: Path) -> None:
    formats = set()
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as rows:
        for line in list(rows)[::25]:
            row = json.loads(line)
            try:
                request = parse_body(row["request"], row["model"])
            except MalformedRequest:
                continue
            prompt = build_cached_prompt(request, rules_for(request.model), block_tokens_for(request.model))
            total = counter_for(request.model).count_request(request).total.tokens
            assert prompt.tokens == (total if prompt.pieces else 0)
            formats.add(request.format)
    assert len(formats) >= 4


def test_a_string_and_the_equivalent_text_block_give_the_same_piece() -> None:
    string = build_prompt(claude_body("Hello", system="Be brief."))
    block = build_prompt(
        claude_body([{"type": "text", "text": "Hello"}], system=[{"type": "text", "text": "Be brief."}])
    )

    assert [piece.digest for piece in string.pieces] == [piece.digest for piece in block.pieces]


def test_the_same_text_with_another_role_is_another_piece() -> None:
    user = build_prompt(claude_body({"role": "user", "content": "Hello"}))
    assistant = build_prompt(claude_body({"role": "assistant", "content": "Hello"}))

    assert user.pieces[0].digest != assistant.pieces[0].digest


def test_the_tokens_of_a_message_are_divided_by_the_texts_of_its_blocks() -> None:
    short_block, long_block = {"type": "text", "text": "word"}, {"type": "text", "text": "word " * 300}
    pieces = build_prompt(claude_body([short_block, long_block])).pieces

    assert pieces[0].tokens < 0.1 * pieces[1].tokens


def test_image_tokens_count_for_the_block_with_the_image() -> None:
    text = {"type": "text", "text": "What is on the first one? " * 5}
    pieces = build_prompt(claude_body([IMAGE, IMAGE, text], system="Look.")).pieces[1:]
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/lamp.png"}}
    large = build_prompt(claude_body([linked, text])).pieces

    assert abs(pieces[0].tokens - pieces[1].tokens) <= 1
    assert abs(pieces[2].tokens - build_prompt(claude_body([text])).tokens) <= 8
    assert large[0].tokens > 10 * large[1].tokens


@pytest.mark.parametrize("position", [0, 1])
def test_tokens_of_a_message_without_blocks_go_to_the_next_or_else_the_last(position: int) -> None:
    messages: list[Any] = ["Hello"]
    messages.insert(position, {"role": "user", "content": []})
    body = claude_body(*messages)

    assert build_prompt(body).tokens == counter_for(MODEL).count_request(parse_body(body)).total.tokens


def test_blocks_accept_breakpoints_by_the_rules_unless_they_are_empty() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    empty = {"type": "text", "text": ""}
    prompt = build_prompt(
        claude_body({"role": "assistant", "content": [thinking, {"type": "text", "text": "Hi"}, empty]})
    )

    assert [piece.accepts_breakpoint for piece in prompt.pieces] == [False, True, False]


def test_an_automatic_breakpoint_is_on_the_last_block_that_accepts_one() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    turn = {"role": "assistant", "content": [{"type": "text", "text": "Hi"}, thinking]}
    prompt = build_prompt(claude_body("Hello", turn, cache_control={"type": "ephemeral", "ttl": "1h"}))

    assert [piece.breakpoint_ttl for piece in prompt.pieces] == [None, Ttl.ONE_HOUR, None]


def test_thinking_of_earlier_turns_is_left_out_if_the_provider_drops_it() -> None:
    thinking = {"type": "thinking", "thinking": "Hm. " * 50, "signature": "s"}
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "green"}
    open_turn = claude_body(
        "Which lamp?",
        {"role": "assistant", "content": [thinking, call]},
        {"role": "user", "content": [result]},
    )
    next_turn = claude_body(*open_turn["messages"], {"role": "assistant", "content": "The green one."}, "Sure?")
    kinds = [[piece.kind for piece in build_prompt(body).pieces] for body in (open_turn, next_turn)]
    newer_model = build_prompt(next_turn | {"model": "claude-opus-4-6"})

    assert "thinking" in kinds[0]
    assert "thinking" not in kinds[1]
    assert "thinking" in [piece.kind for piece in newer_model.pieces]
    assert (
        build_prompt(next_turn).tokens == counter_for(MODEL).count_request(parse_body(next_turn)).total.tokens
    )


def test_cache_options_of_openai_are_read() -> None:
    body = {"model": "gpt-5.6", "input": "Hi", "prompt_cache_options": {"mode": "explicit", "ttl": "12h"}}

    assert build_prompt(body).explicit_only
    assert build_prompt(body).ttl is Ttl.TWELVE_HOURS
    assert not build_prompt(body | {"prompt_cache_options": {"ttl": "9h"}}).explicit_only
    assert read_cache_options(parse_body(body | {"prompt_cache_key": "ana"})).key == "ana"


CHANGES: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "tool_choice": (MODEL, lambda body: body.update(tool_choice={"type": "any"})),
    "parallel_tool_use": (
        MODEL,
        lambda body: body.update(tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
    ),
    "thinking": (MODEL, lambda body: body.update(thinking={"type": "enabled", "budget_tokens": 1024})),
    "effort": (MODEL, lambda body: body.update(output_config={"effort": "low"})),
    "images": (MODEL, lambda body: body["messages"][0]["content"].append(IMAGE)),
    "citations": (
        MODEL,
        lambda body: body["messages"][0]["content"].append(
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                "citations": {"enabled": True},
            }
        ),
    ),
    "web_search": (
        MODEL,
        lambda body: body["tools"].append({"type": "web_search_20250305", "name": "web_search"}),
    ),
    "speed": (MODEL, lambda body: body.update(speed="fast")),
    "schema": (
        "gpt-5",
        lambda body: body.update(
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
        ),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_parameter_changes_the_prefix_from_its_area_on(name: str) -> None:
    model, change = CHANGES[name]
    body: dict[str, Any] = claude_body([{"type": "text", "text": "Hi"}], tools=[]) | {"model": model}
    changed_body = copy.deepcopy(body)
    change(changed_body)
    settings, changed_settings = build_prompt(body).settings, build_prompt(changed_body).settings
    area = rules_for(model).invalidating_parameters[name]

    assert settings.get(area) != changed_settings.get(area)
    for earlier_area in list(Area)[: list(Area).index(area)]:
        assert settings.get(earlier_area) == changed_settings.get(earlier_area)


def test_every_parameter_in_the_rules_is_known() -> None:
    models = (MODEL, "gpt-4o", "gpt-5", "gpt-5.6", "gemini-2.5-pro", "deepseek-chat", "grok-4", "mistral-large")
    names = {name for model in models for name in rules_for(model).invalidating_parameters}

    assert names <= CHANGES.keys()


def test_a_parameter_that_invalidates_nothing_leaves_the_settings_unchanged() -> None:
    plain, with_parameters = (
        build_prompt(claude_body("Hi")),
        build_prompt(claude_body("Hi", temperature=0.3, max_tokens=77, stream=True)),
    )

    assert plain.settings == with_parameters.settings


def test_the_key_order_of_a_parameter_does_not_matter() -> None:
    first = claude_body("Hi", thinking={"type": "enabled", "budget_tokens": 1024})
    reordered = claude_body("Hi", thinking={"budget_tokens": 1024, "type": "enabled"})

    assert build_prompt(first).settings == build_prompt(reordered).settings


def test_the_word_image_in_tool_arguments_is_not_an_image() -> None:
    call = {"type": "tool_use", "id": "t", "name": "draw", "input": {"type": "image", "image": {"source": "x"}}}
    tool = {
        "name": "draw",
        "input_schema": {"type": "object", "properties": {"image": {"type": "string"}, "source": {}}},
    }
    without_call = claude_body("Hi", {"role": "assistant", "content": "ok"}, tools=[tool])
    with_call = claude_body("Hi", {"role": "assistant", "content": [call]}, tools=[tool])

    assert build_prompt(without_call).settings == build_prompt(with_call).settings


def test_a_growing_session_counts_only_the_texts_of_its_new_turn() -> None:
    counter = CallCountingCounter()
    tokens = BlockTokens(counter)
    turn = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    messages: list[Any] = []
    counted_texts = []
    for number in range(40):
        new = copy.deepcopy(turn)
        new["content"][0]["text"] += str(number)
        messages.append(new)
        request = parse_body(claude_body(*messages))
        build_cached_prompt(request, rules_for(MODEL), tokens)
        counted_texts.append(counter.texts)

    assert counted_texts[-1] - counted_texts[-2] == 1
    assert counted_texts[-1] <= 41


def test_a_block_of_many_long_texts_is_counted_at_once() -> None:
    """Regression: each of its texts was counted separately, which took three times as long."""
    counter = CallCountingCounter()
    rows = [f"{number} {'word ' * 20}" for number in range(1_000)]
    call = {"type": "tool_use", "id": "t", "name": "put", "input": {"rows": rows}}
    blocks = [{"type": "text", "text": "Now."}, call]
    build_cached_prompt(
        parse_body(claude_body("Hi", {"role": "assistant", "content": blocks})),
        rules_for(MODEL),
        BlockTokens(counter),
    )

    assert counter.texts == 2


def test_weights_of_blocks_are_dropped_with_all_caches() -> None:
    counter = CallCountingCounter()
    tokens = BlockTokens(counter)
    texts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    tool = {"name": "t", "description": "three", "input_schema": {"type": "object"}}
    request = parse_body(claude_body(texts, tools=[tool]))
    drop_caches()
    build_cached_prompt(request, rules_for(MODEL), tokens)
    before = counter.texts
    assert BLOCK_CACHE.weight
    drop_caches()
    assert not BLOCK_CACHE.weight
    build_cached_prompt(request, rules_for(MODEL), tokens)

    assert counter.texts == 2 * before > 0


def test_a_body_that_is_nested_too_deeply_is_reported() -> None:
    body = (
        '{"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": '
        + "[" * 5000
        + "]" * 5000
        + "}]}"
    )
    with pytest.raises(MalformedRequest):
        build_prompt(body)  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize("model", [MODEL, "claude-opus-5-5", "gpt-4o", "gpt-5.6", "deepseek-chat"])
def test_earlier_messages_of_a_growing_session_keep_their_tokens(model: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "green " * 90}
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {"at": "the lamp"}}
    messages: list[Any] = []
    previous_tokens: list[int] = []
    cache, rules = SimulatedCache(), rules_for(model)
    previous_total = 0
    for number in range(12):
        text = {"type": "text", "text": f"Turn {number}, " + "and a word or two " * 40}
        messages.append({"role": "user", "content": [result, text] if number else [text]})
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        request = parse_body(claude_body(*messages, system="Be brief. " * 300) | {"model": model})
        prompt = build_cached_prompt(request, rules, block_tokens_for(model))
        tokens = [piece.tokens for piece in prompt.pieces]
        usage = cache.serve(prompt, rules, at=number).usage

        assert tokens[1 : len(previous_tokens)] == previous_tokens[1:]
        assert abs(tokens[0] - (previous_tokens or tokens)[0]) <= 1  # a total may be rounded up or down
        if rules.step_tokens == 1:
            assert abs(usage.read - previous_total) <= 1
        previous_tokens, cache = tokens, cache.serve(prompt, rules, at=number).cache
        previous_total = prompt.tokens
        messages[-1] = copy.deepcopy(messages[-1])
        del messages[-1]["content"][-1]["cache_control"]
        messages.append({"role": "assistant", "content": [call]})


def test_tokens_of_changed_tools_of_the_same_size_are_divided_again() -> None:
    def count_pieces(*texts: str) -> list[int]:
        tools = [{"name": "t", "description": text, "input_schema": {"type": "object"}} for text in texts]
        return [piece.tokens for piece in build_prompt(claude_body("Hi", tools=tools)).pieces]

    short_text, long_text = "one two", "one two three four five six seven eight nine ten " * 3
    assert count_pieces("a", short_text, long_text)[1] < count_pieces("a", short_text, long_text)[2]
    assert count_pieces("a", long_text, short_text)[1] > count_pieces("a", long_text, short_text)[2]
