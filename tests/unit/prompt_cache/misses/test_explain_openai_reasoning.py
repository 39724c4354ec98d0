"""OpenAI's cache for conversations with developer messages and reasoning items, mostly before GPT-5.6."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.model import CacheUsage, Format, Request
from foveate.prompt_cache.misses.causes import MissCause
from foveate.prompt_cache.misses.explain import ExplainedMiss, NoMiss, explain_miss
from foveate.prompt_cache.misses.snapshot import take_snapshot
from foveate.prompt_cache.prompt.build import block_tokens_for, build_cached_prompt
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prefix_keys
from foveate.prompt_cache.rules import CachingMode, rules_for
from foveate.prompt_cache.simulator import SimulatedCache

Item = dict[str, Any]

TOOLS = [
    {
        "type": "function",
        "name": f"tool_{number}",
        "description": "Reads a file, and says what is in it. " * 20,
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for number in range(8)
]
DEVELOPER: Item = {"role": "developer", "content": "You are a careful engineer. " * 300}
USER: Item = {"role": "user", "content": "Find the slow parser. " * 20}


def reasoning_step(number: int) -> list[Item]:
    call = f"call_{number}"
    return [
        {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"gAAA{number}" * 200},
        {"type": "function_call", "call_id": call, "name": "tool_1", "arguments": f'{{"path": "{number}"}}'},
        {"type": "function_call_output", "call_id": call, "output": f"def part_{number}(): return 1\n" * 20},
    ]


def parse_items(model: str, items: list[Item]) -> Request:
    body = {"model": model, "tools": TOOLS, "input": items, "reasoning": {"effort": "medium"}}
    return formats.parse_request(json.dumps(body).encode(), Format.RESPONSES)


def build_prompt(model: str, items: list[Item]) -> CachedPrompt:
    return build_cached_prompt(parse_items(model, items), rules_for(model, "openai"), block_tokens_for(model))


def explain(model: str, before: list[Item], after: list[Item]) -> ExplainedMiss | NoMiss:
    rules, tokens = rules_for(model, "openai"), block_tokens_for(model)
    first, second = (take_snapshot(parse_items(model, items), rules, tokens) for items in (before, after))
    return explain_miss(first, second, rules, gap_seconds=10.0)


@pytest.mark.parametrize("model", ["gpt-5.2", "gpt-5.5", "o3", "gpt-6-sol"])
def test_the_prefix_is_read_when_the_first_reasoning_item_is_added(model: str) -> None:
    """Regression: 1,536 of 5,071 tokens were expected to be read, and the reason was a missing breakpoint."""
    before, after = [DEVELOPER, USER], [DEVELOPER, USER, *reasoning_step(0)]
    rules = rules_for(model, "openai")
    cache = SimulatedCache().serve(build_prompt(model, before), rules, at=0.0).cache

    read_tokens = cache.serve(build_prompt(model, after), rules, at=10.0).usage.read

    prompt_tokens = build_prompt(model, before).tokens
    assert prompt_tokens - rules.step_tokens < read_tokens <= prompt_tokens
    assert isinstance(explain(model, before, after), NoMiss)


@pytest.mark.parametrize(
    ("model", "is_dropped"), [("gpt-5.2", True), ("o4-mini", True), ("gpt-5.4", False), ("gpt-6-sol", False)]
)
def test_reasoning_of_earlier_turns_is_dropped_after_a_new_user_turn(model: str, is_dropped: bool) -> None:
    before = [DEVELOPER, USER, *reasoning_step(0), *reasoning_step(1)]
    after = [*before, {"role": "assistant", "content": "That one."}, {"role": "user", "content": "And now?"}]
    rules = rules_for(model, "openai")
    cache = SimulatedCache().serve(build_prompt(model, before), rules, at=0.0).cache

    read_tokens = cache.serve(build_prompt(model, after), rules, at=10.0).usage.read

    expected_tokens = build_prompt(model, [DEVELOPER, USER] if is_dropped else before).tokens
    assert expected_tokens - rules.step_tokens < read_tokens <= expected_tokens
    explanation = explain(model, before, after)
    assert isinstance(explanation, ExplainedMiss if is_dropped else NoMiss)
    if isinstance(explanation, ExplainedMiss):
        assert explanation.cause is MissCause.THINKING_REMOVED
        assert explanation.because == "the thinking at messages[2] was removed"
        assert any("removes the thinking of earlier turns" in remark for remark in explanation.also)


item_lists = st.lists(
    st.sampled_from(
        [
            [{"role": "developer", "content": "Say which."}],
            [USER],
            [{"role": "assistant", "content": "I look."}],
            *(reasoning_step(number) for number in range(3)),
        ]
    ),
    max_size=8,
).map(lambda groups: [item for group in groups for item in group])


@given(item_list=item_lists, model=st.sampled_from(["gpt-5.2", "gpt-5.5", "gpt-4.1", "gpt-6-sol"]))
def test_a_prompt_has_the_same_prefixes_however_it_is_built(item_list: list[Item], model: str) -> None:
    """Always: a prompt with reasoning is built from the whole request, and has the same prefixes before it."""
    without_reasoning = [DEVELOPER, *(item for item in item_list if item.get("type") != "reasoning")]
    with_reasoning = [*without_reasoning, *reasoning_step(7)]

    shorter_keys, longer_keys = (
        prefix_keys(build_prompt(model, without_reasoning)),
        prefix_keys(build_prompt(model, with_reasoning)),
    )

    assert list(longer_keys[: len(shorter_keys)]) == list(shorter_keys)


MECHANISMS = ("mark", "breakpoint", "positions")


@given(
    before=item_lists,
    after=item_lists,
    model=st.sampled_from(
        [
            "gpt-5.2",
            "gpt-4o",
            "o3",
            "gpt-4",
            "deepseek-chat",
            "grok-4.6",
            "mistral-large-latest",
            "who-knows-it",
        ]
    ),
    mode=st.sampled_from([None, "implicit", "explicit"]),
    gap_seconds=st.sampled_from([1.0, 4_000.0]),
    keys=st.tuples(st.sampled_from(["", "a"]), st.sampled_from(["", "b"])),
    share=st.none() | st.floats(0, 1),
)
def test_an_explanation_mentions_only_mechanisms_of_the_model(
    before: list[Item],
    after: list[Item],
    model: str,
    mode: str | None,
    gap_seconds: float,
    keys: tuple[str, str],
    share: float | None,
) -> None:
    """Always: a missing breakpoint is not the explanation if the provider caches automatically, or not at
    all.
    """
    rules, tokens = rules_for(model), block_tokens_for(model)
    assert rules.caching in (CachingMode.AUTOMATIC, CachingMode.NONE)
    snapshots = []
    for new_items, key in zip((before, [*before, *after]), keys, strict=True):
        options = {"prompt_cache_options": {"mode": mode}} if mode else {}
        body = {
            "model": model,
            "tools": TOOLS,
            "input": [DEVELOPER, USER, *new_items],
            "prompt_cache_key": key,
            **options,
        }
        parsed = formats.parse_request(json.dumps(body).encode(), Format.RESPONSES)
        snapshots.append(take_snapshot(parsed, rules, tokens))
    usage = None
    if share is not None:
        total = snapshots[1].prompt.tokens
        usage = CacheUsage(read=int(total * share), uncached=total - int(total * share))

    previous, current = snapshots
    explanation = explain_miss(previous, current, rules, gap_seconds=gap_seconds, usage=usage)

    if isinstance(explanation, ExplainedMiss):
        text = " ".join((explanation.because, *explanation.also))
        assert not any(word in text for word in MECHANISMS)
        assert explanation.cause not in (MissCause.BREAKPOINT_MISSING, MissCause.BREAKPOINT_TOO_FAR)
        assert rules.key_parameter or "prompt_cache_key" not in text
