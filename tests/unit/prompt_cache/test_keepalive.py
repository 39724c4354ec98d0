"""Keep-alives are sent only as long as they are expected to pay."""

import pytest
from msgspec.structs import replace

from foveate.model import Ttl
from foveate.prompt_cache.keepalive import MARGIN_SECONDS, KeepAlive, build_keepalive_prompt, plan_keepalive
from foveate.prompt_cache.placement.arrival_times import (
    NO_GAPS,
    ArrivalForecast,
    estimate_returns,
    forecast_next_request,
)
from foveate.prompt_cache.placement.breakpoints import apply_breakpoints, place_breakpoints, readable_entries
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from tests.support.scenarios.cache_prompts import MODEL, opening, piece, prompt, turns

RULES = rules_for(MODEL)
SHORT, LONG = Ttl.FIVE_MINUTES, Ttl.ONE_HOUR
WEIGHTS = estimate_returns(forecast_next_request(), RULES)
RESPONSE = piece("answer", 200, index=9)


def sent(row: CachedPrompt) -> tuple[CachedPrompt, SimulatedCache]:
    whole = apply_breakpoints(row, place_breakpoints(row, RULES, SimulatedCache(), WEIGHTS, now=0.0))
    return whole, SimulatedCache().serve(whole, RULES, at=0.0).cache


def returning(*gaps: float) -> ArrivalForecast:
    histogram = NO_GAPS
    for gap in gaps:
        histogram = histogram.with_gap(gap)
    return forecast_next_request(histogram)


def test_a_large_prompt_with_a_short_ttl_is_extended_before_it_expires() -> None:
    row, cache = sent(prompt(*opening(), *turns(50_000)))
    keepalive = plan_keepalive(
        row, RULES, cache, forecast_next_request(), response_tokens=200, last_at=0.0, now=0.0
    )
    assert keepalive is not None
    assert keepalive.includes_response
    assert keepalive.at == SHORT.seconds - MARGIN_SECONDS
    keepalive_prompt = build_keepalive_prompt(
        row, keepalive, RESPONSE, RULES, readable_entries(row, cache, keepalive.at)
    )
    served = cache.serve(keepalive_prompt, RULES, at=keepalive.at)
    assert (served.usage.read, served.usage.written_1h, served.usage.uncached) == (row.tokens, 200, 0)
    continued = prompt(
        *(opening()), *turns(50_000), RESPONSE, piece("more", 500, index=10, breakpoint_ttl=SHORT)
    )
    late = served.cache.serve(continued, RULES, at=keepalive.at + 3000)
    assert late.usage.read == row.tokens + 200


def test_no_keepalive_is_sent_if_no_return_is_expected() -> None:
    row, cache = sent(prompt(*opening(), *turns(50_000)))
    gone = returning(*[float("inf")] * 200)
    assert plan_keepalive(row, RULES, cache, gone, response_tokens=200, last_at=0.0, now=0.0) is None


def test_a_response_as_long_as_the_prompt_is_not_written_again() -> None:
    row, cache = sent(prompt(*opening(), *turns(2_000)))
    keepalive = plan_keepalive(
        row, RULES, cache, forecast_next_request(), response_tokens=60_000, last_at=0.0, now=0.0
    )
    assert keepalive is None or not keepalive.includes_response


def test_an_entry_with_the_long_ttl_is_refreshed_if_the_session_has_returned_so_late_before() -> None:
    long_lived = prompt(*opening(), *turns(50_000))
    whole = apply_breakpoints(
        long_lived, place_breakpoints(long_lived, RULES, SimulatedCache(), WEIGHTS, now=0.0)
    )
    pieces = tuple(replace(each, breakpoint_ttl=LONG) if each.breakpoint_ttl else each for each in whole.pieces)
    whole = CachedPrompt(model=MODEL, pieces=pieces)
    cache = SimulatedCache().serve(whole, RULES, at=0.0).cache
    assert (
        plan_keepalive(whole, RULES, cache, forecast_next_request(), response_tokens=9, last_at=0.0, now=0.0)
        is None
    )
    keepalive = plan_keepalive(
        whole, RULES, cache, returning(20, 5000, 20, 5000), response_tokens=9, last_at=0.0, now=0.0
    )
    assert keepalive is not None
    assert keepalive.at == LONG.seconds - MARGIN_SECONDS
    served = cache.serve(
        build_keepalive_prompt(whole, keepalive, RESPONSE, RULES, readable_entries(whole, cache, keepalive.at)),
        RULES,
        at=keepalive.at,
    )
    assert served.usage.read == served.usage.input_tokens == whole.tokens
    assert readable_entries(whole, served.cache, keepalive.at + LONG.seconds - 1)


def test_the_number_of_keepalives_is_limited() -> None:
    row, cache = sent(prompt(*opening(), *turns(50_000)))

    def keepalive_after(sent: int) -> KeepAlive | None:
        return plan_keepalive(
            row,
            RULES,
            cache,
            forecast_next_request(),
            response_tokens=200,
            last_at=0.0,
            now=0.0,
            sent=sent,
            max_keepalives=3,
        )

    assert keepalive_after(2) is not None
    assert keepalive_after(3) is None


def test_expired_entries_get_no_keepalive() -> None:
    row, cache = sent(prompt(*opening(), *turns(50_000)))
    assert (
        plan_keepalive(row, RULES, cache, forecast_next_request(), response_tokens=200, last_at=0.0, now=301.0)
        is None
    )


def test_a_keepalive_never_exceeds_the_breakpoint_limit() -> None:
    """A session leaves a long-TTL entry with every turn; only the last of them are refreshed."""
    said, cache, now = [*opening(), *turns(20_000)], SimulatedCache(), 0.0
    for turn in range(12):
        row = prompt(*said)
        whole = apply_breakpoints(row, place_breakpoints(row, RULES, cache, WEIGHTS, now=now))
        cache = cache.serve(whole, RULES, at=now).cache
        live = readable_entries(whole, cache, now)
        keepalive = KeepAlive(
            at=now + 290, pieces=max(live) + 1, includes_response=turn % 2 == 0, saved_tokens=1.0
        )
        keepalive_prompt = build_keepalive_prompt(whole, keepalive, RESPONSE, RULES, live)
        lives = [each.breakpoint_ttl for each in keepalive_prompt.pieces if each.breakpoint_ttl]
        assert 1 <= len(lives) <= 4
        assert lives == sorted(lives, key=lambda ttl: ttl is not LONG)
        assert cache.serve(keepalive_prompt, RULES, at=now + 1).usage.read == sum(each.tokens for each in said)
        said = [*said, *turns(300, 4_000, start=2 * turn + 1)]
        now += 200.0


@pytest.mark.parametrize("model", ["gpt-4o", "deepseek-chat", "gpt-5.6", "claude-2.1", "nobody-knows-it"])
def test_automatic_caches_get_no_keepalive(model: str) -> None:
    rules = rules_for(model)
    row = prompt(*opening(), *turns(50_000), model=model)
    cache = SimulatedCache().serve(row, rules, at=0.0).cache
    assert (
        plan_keepalive(row, rules, cache, forecast_next_request(), response_tokens=200, last_at=0.0, now=0.0)
        is None
    )


def test_an_overdue_keepalive_is_due_now() -> None:
    row, cache = sent(prompt(*opening(), *turns(50_000)))
    keepalive = plan_keepalive(
        row, RULES, cache, forecast_next_request(), response_tokens=200, last_at=0.0, now=296.0
    )
    assert keepalive is not None
    assert keepalive.at == 296.0
