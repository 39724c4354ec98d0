"""Explanations if the requests are (nearly) the same: breakpoints, times, sizes, usage and the cost of a
miss.
"""

import copy
import json
from decimal import Decimal
from typing import Any

from foveate.model import CacheUsage
from foveate.prompt_cache.misses.causes import MissCause
from foveate.prompt_cache.misses.explain import NoMiss
from tests.support.scenarios.cached_sessions import (
    CACHE_CONTROL,
    SESSIONS,
    Body,
    change_next_turn,
    claude,
    explain,
    explain_cache_miss,
    next_turn,
    responses,
)


def test_a_change_after_the_last_breakpoint_is_not_a_miss() -> None:
    before = claude()
    before["messages"][-1]["content"][0].pop("cache_control")
    after = change_next_turn(lambda b: b["messages"][2].update(content="Something else."), before)
    explanation = explain(before, after)

    assert isinstance(explanation, NoMiss)
    assert "this is after the end of the cached prefix" in explanation.remarks[0]


def test_whitespace_and_escapes_in_json_are_not_a_miss_and_are_mentioned() -> None:
    before, after = claude(), next_turn(claude())
    body: Any = json.dumps(after, indent=2).replace("Is it", "\\u0049s it")
    explanation = explain(before, body)

    assert isinstance(explanation, NoMiss)
    assert "written differently" in explanation.remarks[0]


def test_an_expired_entry_is_explained_with_its_ttl_and_the_gap() -> None:
    body = claude()
    explanation = explain_cache_miss(body, next_turn(body), gap_seconds=400)

    assert explanation.cause is MissCause.EXPIRED
    assert "5 min" in explanation.because
    assert "6.67 min" in explanation.because
    assert isinstance(explain(body, next_turn(body), gap_seconds=290), NoMiss)


def test_a_one_hour_entry_outlives_a_five_minute_entry() -> None:
    body = claude()
    body["system"][0]["cache_control"] = CACHE_CONTROL | {"ttl": "1h"}
    explanation = explain_cache_miss(body, next_turn(body), gap_seconds=400)

    assert explanation.cause is MissCause.EXPIRED
    assert 0 < explanation.read_tokens < explanation.kept_tokens


def test_a_change_and_an_expiry_are_both_reported() -> None:
    explanation = explain_cache_miss(
        claude(), change_next_turn(lambda b: b["tools"].reverse()), gap_seconds=400
    )

    assert explanation.cause is MissCause.TOOLS_REORDERED
    assert "expired" in explanation.also[0]


def test_a_request_without_breakpoints_caches_nothing_and_finds_nothing() -> None:
    def remove_breakpoints(body: Body) -> Body:
        changed: Body = json.loads(json.dumps(body).replace('"cache_control": {"type": "ephemeral"}', '"x": 1'))
        return changed

    body = remove_breakpoints(claude())
    assert explain_cache_miss(body, next_turn(body)).cause is MissCause.BREAKPOINT_MISSING
    explanation = explain_cache_miss(body, change_next_turn(lambda b: b["tools"].reverse(), body))
    assert (explanation.cause, explanation.lost_tokens) == (MissCause.TOOLS_REORDERED, 0)
    assert "no cache breakpoint" in explanation.also[0]


def test_a_missing_or_too_distant_breakpoint_is_reported() -> None:
    body = claude()
    without_breakpoints = change_next_turn(
        lambda b: [b["system"][0].pop("cache_control"), b["messages"][-1]["content"][0].pop("cache_control")]
    )
    assert explain_cache_miss(body, without_breakpoints).cause is MissCause.BREAKPOINT_MISSING

    distant = next_turn(body)
    distant["system"][0].pop("cache_control")
    turns = [
        {"role": role, "content": f"Turn {number}."} for number in range(15) for role in ("assistant", "user")
    ]
    distant["messages"][-1:-1] = turns
    explanation = explain_cache_miss(body, distant)
    assert explanation.cause is MissCause.BREAKPOINT_TOO_FAR
    assert "20 positions" in explanation.because


def test_a_last_breakpoint_before_the_entry_is_not_reported_as_too_far_after_it() -> None:
    body = claude()
    earlier_breakpoint = change_next_turn(lambda b: b["messages"][-1]["content"][0].pop("cache_control"))
    explanation = explain_cache_miss(body, earlier_breakpoint)

    assert explanation.cause is MissCause.BREAKPOINT_MISSING
    assert (
        explanation.because == "this request has no cache breakpoint at or after the end of the cached prefix"
    )
    assert explain_cache_miss(body, earlier_breakpoint, gap_seconds=400).cause is MissCause.EXPIRED


def test_a_prefix_below_the_minimum_is_reported_with_the_numbers() -> None:
    body = claude() | {
        "tools": [],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": CACHE_CONTROL}],
    }
    body["messages"] = [{"role": "user", "content": "Hi"}]
    explanation = explain_cache_miss(body, next_turn(body))

    assert explanation.cause is MissCause.BELOW_MINIMUM
    assert "1,024" in explanation.because
    assert explanation.lost_tokens == 0


def test_a_model_without_a_cache_is_reported() -> None:
    body = SESSIONS["openai-chat"]() | {"model": "gpt-4"}

    assert explain_cache_miss(body, next_turn(body)).cause is MissCause.NOT_CACHED


def test_a_request_that_ends_before_the_entry_is_reported() -> None:
    body = claude()
    shorter = copy.deepcopy(body)
    del shorter["messages"][-2:]
    shorter["messages"][-1]["content"][-1]["cache_control"] = CACHE_CONTROL
    explanation = explain_cache_miss(body, shorter)

    assert explanation.cause is MissCause.CUT_BACK
    assert explanation.lost_tokens < explanation.kept_tokens


def test_a_changed_cache_key_is_reported_if_nothing_else_changed() -> None:
    body = responses() | {"prompt_cache_key": "ana"}
    explanation = explain_cache_miss(body, next_turn(body) | {"prompt_cache_key": "ben"})

    assert explanation.cause is MissCause.CACHE_KEY
    assert "from ana to ben" in explanation.because
    assert (explanation.read_tokens, explanation.lost_tokens) == (0, explanation.kept_tokens)
    assert explanation.lost_tokens > 0
    assert "the reported usage would show it" in explanation.also[0]
    usage = CacheUsage(read=explanation.kept_tokens)
    assert isinstance(explain(body, next_turn(body) | {"prompt_cache_key": "ben"}, usage=usage), NoMiss)


def test_reported_usage_overrides_the_simulation() -> None:
    body = claude()
    kept_tokens = explain(body, next_turn(body)).kept_tokens
    reordered = change_next_turn(lambda b: b["tools"].reverse())

    assert isinstance(explain(body, reordered, usage=CacheUsage(read=kept_tokens)), NoMiss)
    unexplained = explain_cache_miss(body, next_turn(body), usage=CacheUsage(read=0, written_5m=kept_tokens))
    assert (unexplained.cause, unexplained.lost_tokens) == (MissCause.UNEXPLAINED, kept_tokens)
    partial_miss = explain_cache_miss(body, reordered, usage=CacheUsage(read=100))
    assert partial_miss.lost_tokens == partial_miss.kept_tokens - 100


def test_a_loss_is_reported_in_tokens_and_in_dollars_if_the_price_is_known() -> None:
    explanation = explain_cache_miss(
        claude(), change_next_turn(lambda b: b["tools"].reverse()), price_per_token=Decimal("0.000003")
    )

    assert explanation.read_tokens == 0
    assert explanation.lost_uncached_tokens == round(
        explanation.lost_tokens * Decimal("1.15")
    )  # written for 1.25 instead of read for 0.1
    assert explanation.lost_dollars == explanation.lost_tokens * Decimal("1.15") * Decimal("0.000003")
    assert explain_cache_miss(claude(), change_next_turn(lambda b: b["tools"].reverse())).lost_dollars is None


def test_an_entry_with_the_long_ttl_costs_more_to_write_again() -> None:
    body = json.loads(json.dumps(claude()).replace('"ephemeral"', '"ephemeral", "ttl": "1h"'))
    after = json.loads(json.dumps(next_turn(claude())).replace('"ephemeral"', '"ephemeral", "ttl": "1h"'))
    after["tools"].reverse()
    explanation = explain_cache_miss(body, after)

    assert explanation.lost_uncached_tokens == round(explanation.lost_tokens * Decimal("1.9"))


def test_a_provider_that_drops_earlier_thinking_ends_the_prefix_before_it() -> None:
    body = claude() | {"model": "claude-sonnet-4-5"}
    del body["messages"][5:]
    body["messages"][4]["content"] = [body["messages"][4]["content"][0] | {"cache_control": CACHE_CONTROL}]
    explanation = explain_cache_miss(body, next_turn(body))

    assert explanation.cause is MissCause.THINKING_REMOVED
    assert "removes the thinking of earlier turns" in explanation.also[0]
    assert explanation.read_tokens > 1000  # up to the breakpoint on the system prompt
    newer_model = body | {"model": "claude-sonnet-4-6"}
    assert isinstance(explain(newer_model, next_turn(newer_model)), NoMiss)
