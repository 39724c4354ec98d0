"""Claude's estimates compared with recorded usage."""

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate import formats
from foveate.model import Format
from foveate.tokens import RequestCount, counter_for, with_model
from foveate.tokens.model_names import normalize_claude_name
from foveate.tokens.tokenizers.claude import (
    TOKEN_CLASSES,
    classify_token,
    claude_family,
    load_class_table,
)
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary

CITY = {
    "additionalProperties": False,
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "type": "object",
}
WEATHER = {"name": "get_weather", "description": "", "input_schema": CITY}


def count_body(body: dict[str, Any], model: str = "claude-sonnet-4-5") -> RequestCount:
    request = with_model(formats.parse_request({"max_tokens": 9, **body}, Format.ANTHROPIC), model)
    return counter_for(request.model).count_request(request)


def user_request(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def test_claude_counts_are_estimates() -> None:
    count = count_body(user_request("What is the capital of France?"))

    assert not count.total.exact
    assert count.backend == "estimate"
    assert count.total.upper > count.total.tokens


def test_tools_add_a_system_prompt() -> None:
    body = user_request("What's the weather in Amsterdam?", tools=[WEATHER], tool_choice={"type": "auto"})

    count = count_body(body, "claude-sonnet-4-20250514")

    assert count.total.tokens == pytest.approx(377, rel=0.02)  # the recorded usage


def test_thinking_counts_match_recorded_usage() -> None:
    body = user_request("What is 1+1? Reply in one word.", thinking={"type": "enabled", "budget_tokens": 1024})

    assert count_body(body).total.tokens == pytest.approx(48, abs=2)


def test_a_forced_tool_has_a_longer_prompt() -> None:
    auto = count_body(user_request("Hi", tools=[WEATHER], tool_choice={"type": "auto"})).total.tokens
    forced = count_body(user_request("Hi", tools=[WEATHER], tool_choice={"type": "any"})).total.tokens

    assert forced - auto == 92


def test_newer_models_use_more_tokens_for_a_text() -> None:
    text = "The quick brown fox considers whether the lazy dog deserves another paragraph. " * 20

    older = foveate.count(text, "claude-sonnet-4-6").tokens
    later = foveate.count(text, "claude-opus-4-7").tokens

    assert 1.15 < later / older < 1.8


def test_an_unknown_claude_model_has_a_wider_bound() -> None:
    text = "Something of a sentence, to be counted for a model that is not out yet. " * 20

    known_count = foveate.count(text, "claude-opus-5")
    unknown = foveate.count(text, "claude-opus-7")

    assert unknown.tokens == known_count.tokens
    assert unknown.upper > known_count.upper


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("claude-2.1", "claude-2"),
        ("anthropic.claude-v2", "claude-2"),
        ("claude-3-5-haiku-20241022", "claude-3"),
        ("claude-sonnet-4-20250514", "claude-3"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-3"),
        ("anthropic/claude-4.6-sonnet-20260217", "claude-3"),
        ("claude-opus-4-7", "claude-4.7"),
        ("claude-opus-4-8", "claude-4.7"),
        ("claude-sonnet-5", "claude-4.7"),
        ("claude-fable-5", "claude-4.7"),
        ("claude-haiku-5-5", "claude-4.7"),
        ("claude-opus-4-10", "claude-4.7"),
        ("claude", "claude-4.7"),
    ],
)
def test_each_model_has_the_tokenizer_of_its_family(model: str, family: str) -> None:
    assert claude_family(model) == family


def test_names_are_normalized() -> None:
    assert (
        normalize_claude_name("anthropic/claude-4.5-sonnet-20250929") == "anthropic/claude-sonnet-4-5-20250929"
    )


def test_thinking_of_finished_turns_is_not_counted() -> None:
    thinking = {"type": "thinking", "thinking": "Let me see, this is long. " * 30, "signature": "x" * 200}
    answer = {"role": "assistant", "content": [thinking, {"type": "text", "text": "Yes."}]}
    first, again = {"role": "user", "content": "Is it?"}, {"role": "user", "content": "Sure?"}

    running = count_body({"messages": [first, answer]}).total.tokens
    finished = count_body({"messages": [first, answer, again]}).total.tokens

    assert finished < running - 100


def test_server_tools_are_unexplained() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}

    assert count_body(user_request("What is new?", tools=[search])).unexplained == ("server tool web_search",)


def test_a_file_by_reference_is_unexplained() -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}
    body = {"messages": [{"role": "user", "content": [picture]}]}

    assert count_body(body).unexplained == ("image (url)",)


def test_an_image_is_counted_by_its_squares() -> None:
    header = "iVBORw0KGgoAAAANSUhEUgAABAAAAAQACAYAAAB"  # a PNG of 1024 by 1024
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": header}}

    count = count_body({"messages": [{"role": "user", "content": [picture]}]})

    assert {part.name: part.tokens for part in count.parts}["images"] == 37 * 37 + 3


def test_a_deferred_tool_costs_nothing_until_it_is_loaded() -> None:
    deferred = {**WEATHER, "description": "Tells the weather. " * 20, "defer_loading": True}
    loaded = {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t",
                "content": [{"type": "tool_reference", "tool_name": "get_weather"}],
            }
        ],
    }
    call = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "find", "input": {}}],
    }

    def tools(*messages: dict[str, Any]) -> int:
        body = {"messages": [{"role": "user", "content": "Hi"}, *messages], "tools": [deferred]}
        return next(part.tokens for part in count_body(body).parts if part.name == "tools")

    assert tools() == 496
    assert tools(call, loaded) > 496 + 80


def test_the_class_table_matches_the_bytes_of_every_token() -> None:
    table = load_class_table()
    vocabulary = bundled_vocabulary("o200k_base")
    for text in (" word", "The", "THE", "123", "7", "\n\n", "    ", "...", " 你好", "é", "👍"):
        for ids in vocabulary.encode(text):
            assert all(table[number] < len(TOKEN_CLASSES) for number in ids)
    assert classify_token(500, b" the") == "word_common"
    assert classify_token(150_000, b" ornithology") == "word_rare"
    assert classify_token(10, b"\xf0\x9f") == "symbols"
    assert classify_token(10, "é".encode()) == "accented"
    assert classify_token(10, "你".encode()) == "cjk"
    assert classify_token(10, "п".encode()) == "other_script"


@given(st.text(max_size=400), st.sampled_from(["claude-2.1", "claude-sonnet-4-5", "claude-opus-5", "claude-9"]))
def test_every_estimate_is_below_its_upper_bound(text: str, model: str) -> None:
    count = foveate.count(text, model)

    assert count.upper >= count.tokens >= (1 if text else 0)


def test_counts_match_recorded_usage(shared_data: Path) -> None:
    """The goals: median error 4%, p95 12%, and a bound that holds in 99%."""
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    errors, covered = [], []
    for row in rows:
        if row["provider"] != "anthropic":
            continue
        count = count_body(row["request"], row["model"])
        used_tokens = sum(row["usage"].get(name) or 0 for name in names)
        if used_tokens and not count.unexplained:
            errors.append(abs(count.total.tokens - used_tokens) / used_tokens)
            covered.append(count.total.upper >= used_tokens)

    assert len(errors) > 200
    assert statistics.median(errors) <= 0.04
    assert sorted(errors)[int(0.95 * len(errors))] <= 0.12
    assert statistics.fmean(covered) >= 0.99
