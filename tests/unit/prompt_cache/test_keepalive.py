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


def send_prompt(cached_prompt: CachedPrompt) -> tuple[CachedPrompt, SimulatedCache]:
    with_breakpoints = apply_breakpoints(
        cached_prompt, place_breakpoints(cached_prompt, RULES, SimulatedCache(), WEIGHTS, now=0.0)
    )
    return with_breakpoints, SimulatedCache().serve(with_breakpoints, RULES, at=0.0).cache


def forecast_for(*gaps: float) -> ArrivalForecast:
    histogram = NO_GAPS
    for gap in gaps:
        histogram = histogram.with_gap(gap)
    return forecast_next_request(histogram)


def test_a_large_prompt_with_a_short_ttl_is_extended_before_it_expires() -> None:
    cached_prompt, cache = send_prompt(prompt(*opening(), *turns(50_000)))
    keepalive = plan_keepalive(
        cached_prompt, RULES, cache, forecast_next_request(), response_tokens=200, last_at=0.0, now=0.0
    )
    assert keepalive is not None
    assert keepalive.includes_response
    assert keepalive.at == SHORT.seconds - MARGIN_SECONDS
    keepalive_prompt = build_keepalive_prompt(
        cached_prompt, keepalive, RESPONSE, RULES, readable_entries(cached_prompt, cache, keepalive.at)
    )
    served = cache.serve(keepalive_prompt, RULES, at=keepalive.at)
    assert (served.usage.read, served.usage.written_1h, served.usage.uncached) == (cached_prompt.tokens, 200, 0)
    continued = prompt(
        *(opening()), *turns(50_000), RESPONSE, piece("more", 500, index=10, breakpoint_ttl=SHORT)
    )
    next_turn = served.cache.serve(continued, RULES, at=keepalive.at + 3000)
    assert next_turn.usage.read == cached_prompt.tokens + 200


def test_no_keepalive_is_sent_if_no_return_is_expected() -> None:
    cached_prompt, cache = send_prompt(prompt(*opening(), *turns(50_000)))
    forecast = forecast_for(*[float("inf")] * 200)
    assert (
        plan_keepalive(cached_prompt, RULES, cache, forecast, response_tokens=200, last_at=0.0, now=0.0) is None
    )


def test_a_response_as_long_as_the_prompt_is_not_written_again() -> None:
    cached_prompt, cache = send_prompt(prompt(*opening(), *turns(2_000)))
    keepalive = plan_keepalive(
        cached_prompt, RULES, cache, forecast_next_request(), response_tokens=60_000, last_at=0.0, now=0.0
    )
    assert keepalive is None or not keepalive.includes_response


def test_an_entry_with_the_long_ttl_is_refreshed_if_the_session_has_returned_so_late_before() -> None:
    cached_prompt = prompt(*opening(), *turns(50_000))
    sent_prompt = apply_breakpoints(
        cached_prompt, place_breakpoints(cached_prompt, RULES, SimulatedCache(), WEIGHTS, now=0.0)
    )
    pieces = tuple(
        replace(prompt_piece, breakpoint_ttl=LONG) if prompt_piece.breakpoint_ttl else prompt_piece
        for prompt_piece in sent_prompt.pieces
    )
    sent_prompt = CachedPrompt(model=MODEL, pieces=pieces)
    cache = SimulatedCache().serve(sent_prompt, RULES, at=0.0).cache
    assert (
        plan_keepalive(
            sent_prompt, RULES, cache, forecast_next_request(), response_tokens=9, last_at=0.0, now=0.0
        )
        is None
    )
    keepalive = plan_keepalive(
        sent_prompt, RULES, cache, forecast_for(20, 5000, 20, 5000), response_tokens=9, last_at=0.0, now=0.0
    )
    assert keepalive is not None
    assert keepalive.at == LONG.seconds - MARGIN_SECONDS
    served = cache.serve(
        build_keepalive_prompt(
            sent_prompt, keepalive, RESPONSE, RULES, readable_entries(sent_prompt, cache, keepalive.at)
        ),
        RULES,
        at=keepalive.at,
    )
    assert served.usage.read == served.usage.input_tokens == sent_prompt.tokens
    assert readable_entries(sent_prompt, served.cache, keepalive.at + LONG.seconds - 1)


def test_the_number_of_keepalives_is_limited() -> None:
    cached_prompt, cache = send_prompt(prompt(*opening(), *turns(50_000)))

    def plan_after(sent_count: int) -> KeepAlive | None:
        return plan_keepalive(
            cached_prompt,
            RULES,
            cache,
            forecast_next_request(),
            response_tokens=200,
            last_at=0.0,
            now=0.0,
            sent_keepalives=sent_count,
            max_keepalives=3,
        )

    assert plan_after(2) is not None
    assert plan_after(3) is None


def test_expired_entries_get_no_keepalive() -> None:
    cached_prompt, cache = send_prompt(prompt(*opening(), *turns(50_000)))
    assert (
        plan_keepalive(
            cached_prompt, RULES, cache, forecast_next_request(), response_tokens=200, last_at=0.0, now=301.0
        )
        is None
    )


def test_a_keepalive_never_exceeds_the_breakpoint_limit() -> None:
    """A session leaves a long-TTL entry with every turn; only the last of them are refreshed."""
    history, cache, now = [*opening(), *turns(20_000)], SimulatedCache(), 0.0
    for turn in range(12):
        cached_prompt = prompt(*history)
        sent_prompt = apply_breakpoints(
            cached_prompt, place_breakpoints(cached_prompt, RULES, cache, WEIGHTS, now=now)
        )
        cache = cache.serve(sent_prompt, RULES, at=now).cache
        entries = readable_entries(sent_prompt, cache, now)
        keepalive = KeepAlive(
            at=now + 290, pieces=max(entries) + 1, includes_response=turn % 2 == 0, saved_tokens=1.0
        )
        keepalive_prompt = build_keepalive_prompt(sent_prompt, keepalive, RESPONSE, RULES, entries)
        ttls = [
            prompt_piece.breakpoint_ttl
            for prompt_piece in keepalive_prompt.pieces
            if prompt_piece.breakpoint_ttl
        ]
        assert 1 <= len(ttls) <= 4
        assert ttls == sorted(ttls, key=lambda ttl: ttl is not LONG)
        assert cache.serve(keepalive_prompt, RULES, at=now + 1).usage.read == sum(
            prompt_piece.tokens for prompt_piece in history
        )
        history = [*history, *turns(300, 4_000, start=2 * turn + 1)]
        now += 200.0


@pytest.mark.parametrize("model", ["gpt-4o", "deepseek-chat", "gpt-5.6", "claude-2.1", "nobody-knows-it"])
def test_automatic_caches_get_no_keepalive(model: str) -> None:
    rules = rules_for(model)
    cached_prompt = prompt(*opening(), *turns(50_000), model=model)
    cache = SimulatedCache().serve(cached_prompt, rules, at=0.0).cache
    assert (
        plan_keepalive(
            cached_prompt, rules, cache, forecast_next_request(), response_tokens=200, last_at=0.0, now=0.0
        )
        is None
    )


def test_an_overdue_keepalive_is_due_now() -> None:
    cached_prompt, cache = send_prompt(prompt(*opening(), *turns(50_000)))
    keepalive = plan_keepalive(
        cached_prompt, RULES, cache, forecast_next_request(), response_tokens=200, last_at=0.0, now=296.0
    )
    assert keepalive is not None
    assert keepalive.at == 296.0
