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
    changed,
    claude,
    explain,
    explain_cache_miss,
    next_turn,
    responses,
)


def test_a_change_after_the_last_breakpoint_is_not_a_miss() -> None:
    before = claude()
    before["messages"][-1]["content"][0].pop("cache_control")
    after = changed(lambda b: b["messages"][2].update(content="Something else."), before)
    found = explain(before, after)

    assert isinstance(found, NoMiss)
    assert "nothing that was kept stands behind it" in found.remarks[0]


def test_whitespace_and_escapes_in_json_do_no_harm_and_are_mentioned() -> None:
    before, after = claude(), next_turn(claude())
    body: Any = json.dumps(after, indent=2).replace("Is it", "\\u0049s it")
    found = explain(before, body)

    assert isinstance(found, NoMiss)
    assert "spelled differently" in found.remarks[0]


def test_an_expired_entry_is_explained_with_its_ttl_and_the_gap() -> None:
    body = claude()
    found = explain_cache_miss(body, next_turn(body), gap_seconds=400)

    assert found.cause is MissCause.EXPIRED
    assert "5 min" in found.because
    assert "6.67 min" in found.because
    assert isinstance(explain(body, next_turn(body), gap_seconds=290), NoMiss)


def test_a_one_hour_entry_outlives_a_five_minute_entry() -> None:
    body = claude()
    body["system"][0]["cache_control"] = CACHE_CONTROL | {"ttl": "1h"}
    found = explain_cache_miss(body, next_turn(body), gap_seconds=400)

    assert found.cause is MissCause.EXPIRED
    assert 0 < found.read_tokens < found.kept_tokens


def test_a_change_and_an_expiry_are_both_reported() -> None:
    found = explain_cache_miss(claude(), changed(lambda b: b["tools"].reverse()), gap_seconds=400)

    assert found.cause is MissCause.TOOLS_REORDERED
    assert "ran out" in found.also[0]


def test_a_request_without_breakpoints_caches_nothing_and_finds_nothing() -> None:
    def without(body: Body) -> Body:
        return json.loads(json.dumps(body).replace('"cache_control": {"type": "ephemeral"}', '"x": 1'))  # type: ignore[no-any-return]

    bare = without(claude())
    assert explain_cache_miss(bare, next_turn(bare)).cause is MissCause.BREAKPOINT_MISSING
    found = explain_cache_miss(bare, changed(lambda b: b["tools"].reverse(), bare))
    assert (found.cause, found.lost_tokens) == (MissCause.TOOLS_REORDERED, 0)
    assert "no cache mark" in found.also[0]


def test_a_missing_or_too_distant_breakpoint_is_reported() -> None:
    body = claude()
    bare = changed(
        lambda b: [b["system"][0].pop("cache_control"), b["messages"][-1]["content"][0].pop("cache_control")]
    )
    assert explain_cache_miss(body, bare).cause is MissCause.BREAKPOINT_MISSING

    far = next_turn(body)
    far["system"][0].pop("cache_control")
    turns = [{"role": role, "content": f"Turn {n}."} for n in range(15) for role in ("assistant", "user")]
    far["messages"][-1:-1] = turns
    found = explain_cache_miss(body, far)
    assert found.cause is MissCause.BREAKPOINT_TOO_FAR
    assert "20 positions" in found.because


def test_a_last_breakpoint_before_the_entry_is_not_reported_as_too_far_after_it() -> None:
    body = claude()
    early = changed(lambda b: b["messages"][-1]["content"][0].pop("cache_control"))
    found = explain_cache_miss(body, early)

    assert found.cause is MissCause.BREAKPOINT_MISSING
    assert found.because == "no cache mark of this request stands where something was kept, or behind it"
    assert explain_cache_miss(body, early, gap_seconds=400).cause is MissCause.EXPIRED


def test_a_prefix_below_the_minimum_is_reported_with_the_numbers() -> None:
    body = claude() | {
        "tools": [],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": CACHE_CONTROL}],
    }
    body["messages"] = [{"role": "user", "content": "Hi"}]
    found = explain_cache_miss(body, next_turn(body))

    assert found.cause is MissCause.BELOW_MINIMUM
    assert "1,024" in found.because
    assert found.lost_tokens == 0


def test_a_model_without_a_cache_is_reported() -> None:
    body = SESSIONS["openai-chat"]() | {"model": "gpt-4"}

    assert explain_cache_miss(body, next_turn(body)).cause is MissCause.NOT_CACHED


def test_a_request_that_ends_before_the_entry_is_reported() -> None:
    body = claude()
    shorter = copy.deepcopy(body)
    del shorter["messages"][-2:]
    shorter["messages"][-1]["content"][-1]["cache_control"] = CACHE_CONTROL
    found = explain_cache_miss(body, shorter)

    assert found.cause is MissCause.CUT_BACK
    assert found.lost_tokens < found.kept_tokens


def test_a_changed_cache_key_is_reported_if_nothing_else_changed() -> None:
    body = responses() | {"prompt_cache_key": "ana"}
    found = explain_cache_miss(body, next_turn(body) | {"prompt_cache_key": "ben"})

    assert found.cause is MissCause.CACHE_KEY
    assert "from ana to ben" in found.because
    assert (found.read_tokens, found.lost_tokens) == (0, found.kept_tokens)
    assert found.lost_tokens > 0
    assert "the bill would tell" in found.also[0]
    read = CacheUsage(read=found.kept_tokens)
    assert isinstance(explain(body, next_turn(body) | {"prompt_cache_key": "ben"}, usage=read), NoMiss)


def test_reported_usage_overrides_the_simulation() -> None:
    body = claude()
    kept = explain(body, next_turn(body)).kept_tokens
    reordered = changed(lambda b: b["tools"].reverse())

    assert isinstance(explain(body, reordered, usage=CacheUsage(read=kept)), NoMiss)
    missed = explain_cache_miss(body, next_turn(body), usage=CacheUsage(read=0, written_5m=kept))
    assert (missed.cause, missed.lost_tokens) == (MissCause.UNEXPLAINED, kept)
    partly = explain_cache_miss(body, reordered, usage=CacheUsage(read=100))
    assert partly.lost_tokens == partly.kept_tokens - 100


def test_a_loss_is_reported_in_tokens_and_in_dollars_if_the_price_is_known() -> None:
    found = explain_cache_miss(
        claude(), changed(lambda b: b["tools"].reverse()), price_per_token=Decimal("0.000003")
    )

    assert found.read_tokens == 0
    assert found.lost_uncached_tokens == round(
        found.lost_tokens * Decimal("1.15")
    )  # written for 1.25 instead of read for 0.1
    assert found.lost_dollars == found.lost_tokens * Decimal("1.15") * Decimal("0.000003")
    assert explain_cache_miss(claude(), changed(lambda b: b["tools"].reverse())).lost_dollars is None


def test_an_entry_with_the_long_ttl_costs_more_to_write_again() -> None:
    body = json.loads(json.dumps(claude()).replace('"ephemeral"', '"ephemeral", "ttl": "1h"'))
    after = json.loads(json.dumps(next_turn(claude())).replace('"ephemeral"', '"ephemeral", "ttl": "1h"'))
    after["tools"].reverse()
    found = explain_cache_miss(body, after)

    assert found.lost_uncached_tokens == round(found.lost_tokens * Decimal("1.9"))


def test_a_provider_that_drops_earlier_thinking_ends_the_prefix_there() -> None:
    body = claude() | {"model": "claude-sonnet-4-5"}
    del body["messages"][5:]
    body["messages"][4]["content"] = [body["messages"][4]["content"][0] | {"cache_control": CACHE_CONTROL}]
    found = explain_cache_miss(body, next_turn(body))

    assert found.cause is MissCause.THINKING_REMOVED
    assert "never shown the reasoning of earlier turns" in found.also[0]
    assert found.read_tokens > 1000  # up to the breakpoint on the system prompt
    kept = body | {"model": "claude-sonnet-4-6"}
    assert isinstance(explain(kept, next_turn(kept)), NoMiss)
