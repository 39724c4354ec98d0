"""A prompt built incrementally equals the one built from the whole request."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from foveate import formats
from foveate.model import Area, Format, Request, TokenCount
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import build_cached_prompt
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, find_layout, prefix_keys
from foveate.prompt_cache.rules import rules_for
from foveate.tokens import RequestCount, counter_for, drop_caches
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.claude_requests import claude_requests
from tests.support.strategies.request_edits import BODIES


class WholeRequestCounter:
    """A counter that only counts whole requests."""

    def __init__(self, model: str) -> None:
        self._counter = counter_for(model)

    def text(self, text: str) -> TokenCount:
        return self._counter.text(text)

    def count_request(self, request: Request) -> RequestCount:
        return self._counter.count_request(request)


def check_incremental(request: Request, model: str) -> None:
    rules = rules_for(model)
    expected = build_cached_prompt(request, rules, BlockTokens(WholeRequestCounter(model)))
    incremental = build_cached_prompt(request, rules, BlockTokens(counter_for(model)))

    def contents(prompt: Any) -> list[Any]:
        return [structs.replace(piece, tokens=0) for piece in prompt.pieces]

    assert contents(incremental) == contents(expected)
    assert incremental.tokens == expected.tokens
    assert (incremental.settings, incremental.ttl) == (expected.settings, expected.ttl)
    assert incremental.explicit_only == expected.explicit_only
    assert incremental.duplicate_breakpoints == expected.duplicate_breakpoints
    message_indexes = {
        piece.place.index for piece in expected.pieces if piece.place and piece.area is Area.MESSAGES
    }
    # Image tokens are divided message by message, and those of an empty message go elsewhere.
    is_comparable = b"image" not in request.body and len(message_indexes) == len(request.messages)
    for piece, expected_piece in zip(incremental.pieces[1:], expected.pieces[1:], strict=True):
        assert not is_comparable or abs(piece.tokens - expected_piece.tokens) <= 2
    assert incremental.layout is None or incremental.layout == find_layout(tuple(incremental.pieces))
    assert incremental.ends is None or list(incremental.ends) == list(
        accumulate(prompt_piece.tokens for prompt_piece in incremental.pieces)
    )
    if incremental.keys is not None and formats.message_history(request).leading_system_messages == 0:
        assert list(incremental.keys) == list(prefix_keys(replace(incremental, keys=None)))


@pytest.mark.slow
@given(
    body=claude_requests(max_turns=4, max_calls=2, breakpoints=True),
    clears_caches=st.booleans(),
    data=st.data(),
)
def test_a_growing_session_gives_the_same_prompt_as_building_it_at_once(
    body: dict[str, Any], clears_caches: bool, data: st.DataObject
) -> None:
    if clears_caches:
        drop_caches()
    lengths = st.integers(1, len(body["messages"]))
    for length in data.draw(st.lists(lengths, min_size=1, max_size=4)):
        check_incremental(
            formats.parse_request({**body, "messages": body["messages"][:length]}, Format.ANTHROPIC),
            body["model"],
        )


@given(
    format_and_body=st.sampled_from(Format).flatmap(
        lambda api_format: st.tuples(st.just(api_format), BODIES[api_format])
    ),
    model=st.sampled_from(["claude-opus-4-5", "claude-sonnet-4-5", "gpt-5.6", "gpt-4o"]),
)
def test_any_request_gives_the_same_prompt_as_building_it_at_once(
    format_and_body: tuple[Format, Any], model: str
) -> None:
    check_incremental(formats.parse_request(format_and_body[1], format_and_body[0]), model)


def prompt_contents(prompt: CachedPrompt) -> object:
    return (
        list(prompt.pieces), list(prefix_keys(prompt)), list(prompt.ends or ()), prompt.layout, prompt.settings
    )  # fmt: skip


@given(body=claude_requests(max_turns=4, max_calls=2, breakpoints=True), data=st.data())
@settings(max_examples=limit_examples(40))
def test_a_request_gives_the_same_prompt_after_its_compacted_version_was_built(
    body: dict[str, Any], data: st.DataObject
) -> None:
    rules, summary = rules_for(body["model"]), {"role": "user", "content": "Summary of what was said."}
    tail = body["messages"][data.draw(st.integers(0, len(body["messages"]))) :]
    compacted = formats.parse_request({**body, "messages": [summary, *tail]}, Format.ANTHROPIC)
    request = formats.parse_request(body, Format.ANTHROPIC)
    drop_caches()
    expected = prompt_contents(build_cached_prompt(request, rules, BlockTokens(counter_for(body["model"]))))
    drop_caches()
    tokens = BlockTokens(counter_for(body["model"]))
    build_cached_prompt(compacted, rules, tokens)

    assert prompt_contents(build_cached_prompt(request, rules, tokens)) == expected


def test_a_prompt_stays_the_same_while_its_session_continues_and_is_forked() -> None:
    drop_caches()
    model, rules = "claude-opus-4-5", rules_for("claude-opus-4-5")

    def prompt(*texts: str) -> CachedPrompt:
        roles = ("user", "assistant")
        messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
        body = {"model": model, "max_tokens": 9, "system": "Be brief.", "messages": messages}
        return build_cached_prompt(
            formats.parse_request(body, Format.ANTHROPIC), rules, BlockTokens(counter_for(model))
        )

    def contents(*prompts: CachedPrompt) -> list[object]:
        return [
            (
                tuple(built_prompt.pieces),
                tuple(built_prompt.keys or ()),
                tuple(built_prompt.ends or ()),
                built_prompt.layout,
            )
            for built_prompt in prompts
        ]

    first = prompt("Hello", "Hi", "Go on")
    before = contents(first)
    longer, fork = (
        prompt("Hello", "Hi", "Go on", *continuation) for continuation in (("So", "And"), ("No", "Then"))
    )
    after = contents(longer, fork)

    assert contents(first) == before
    drop_caches()
    assert after == contents(
        prompt("Hello", "Hi", "Go on", "So", "And"), prompt("Hello", "Hi", "Go on", "No", "Then")
    )
    for built_prompt in (first, longer, fork):
        assert list(built_prompt.ends or ()) == list(accumulate(piece.tokens for piece in built_prompt.pieces))
        assert built_prompt.layout == find_layout(tuple(built_prompt.pieces))


def test_another_system_message_changes_the_prefixes() -> None:
    def keys(system: str) -> set[bytes]:
        body = {
            "model": "gpt-5.6",
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}],
        }
        prompt = build_cached_prompt(
            formats.parse_request(body, Format.CHAT), rules_for("gpt-5.6"), BlockTokens(counter_for("gpt-5.6"))
        )
        return set(prefix_keys(prompt))

    assert keys("noon") == keys("noon")
    assert not keys("noon") & keys("evening")
