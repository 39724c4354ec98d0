"""Breakpoints are placed where they pay, and never where a provider would reject them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.model import Area, CacheBreakpoint, Ttl
from foveate.prompt_cache.placement.arrival_times import (
    NO_GAPS,
    GapHistogram,
    ReturnProbabilities,
    estimate_returns,
    forecast_next_request,
)
from foveate.prompt_cache.placement.breakpoints import PlacementOptions, apply_breakpoints, place_breakpoints
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from tests.support.scenarios.cache_prompts import (
    MODEL,
    opening,
    piece,
    prompt,
    results,
    turns,
    with_breakpoints,
)

SHORT, LONG = Ttl.FIVE_MINUTES, Ttl.ONE_HOUR
RULES = rules_for(MODEL)
DEFAULT_WEIGHTS = estimate_returns(forecast_next_request(), RULES)


def place_for(
    cached_prompt: CachedPrompt,
    cache: SimulatedCache | None = None,
    *,
    now: float = 0.0,
    weights: ReturnProbabilities = DEFAULT_WEIGHTS,
) -> list[CacheBreakpoint]:
    return list(
        place_breakpoints(
            cached_prompt, rules_for(cached_prompt.model), cache or SimulatedCache(), weights, now=now
        )
    )


def breakpoint_indexes(cached_prompt: CachedPrompt, breakpoints: Sequence[CacheBreakpoint]) -> list[int]:
    places = [cache_breakpoint.place for cache_breakpoint in breakpoints]
    return [index for index, prompt_piece in enumerate(cached_prompt.pieces) if prompt_piece.place in places]


def cache_after(
    cached_prompt: CachedPrompt, *, at: float = 0.0, cache: SimulatedCache | None = None
) -> SimulatedCache:
    existing = cache or SimulatedCache()
    return existing.serve(
        apply_breakpoints(cached_prompt, place_for(cached_prompt, existing, now=at)),
        rules_for(cached_prompt.model),
        at=at,
    ).cache


def test_a_first_request_gets_breakpoints_at_tools_system_prompt_and_end() -> None:
    cached_prompt = prompt(*opening(), *turns(500))
    assert breakpoint_indexes(cached_prompt, place_for(cached_prompt)) == [0, 1, 2]


def test_the_next_request_reads_everything_that_the_last_one_sent() -> None:
    first = prompt(*opening(), *turns(500))
    cache = cache_after(first)
    second = prompt(*first.pieces, *turns(200, 900, start=1))
    served = cache.serve(apply_breakpoints(second, place_for(second, cache, now=20.0)), RULES, at=20.0)
    assert served.usage.read == first.tokens
    assert served.usage.uncached == 0


def test_a_long_ttl_on_a_small_response_keeps_the_whole_history_for_its_price() -> None:
    first = prompt(*opening(), *turns(60_000))
    cache = cache_after(first)
    second = prompt(*first.pieces, *turns(100, 5_000, start=1))
    breakpoints = place_for(second, cache, now=20.0)
    assert {
        second.pieces.index(prompt_piece)
        for prompt_piece in second.pieces
        if prompt_piece.place == breakpoints[-2].place
    } == {3}
    assert [cache_breakpoint.ttl for cache_breakpoint in breakpoints] == [LONG, LONG, LONG, SHORT]
    served = cache.serve(apply_breakpoints(second, breakpoints), RULES, at=20.0)
    assert served.usage.written_1h == 100
    third = prompt(*second.pieces, *turns(100, start=3))
    late_response = served.cache.serve(
        apply_breakpoints(third, place_for(third, served.cache, now=1500.0)), RULES, at=1500.0
    )
    assert late_response.usage.read == first.tokens + 100


def test_thirty_tool_results_in_one_turn_do_not_lose_the_history_before_them() -> None:
    """The last breakpoint only looks back 20 positions; unless a run is one position, another one is needed."""
    rules = replace(RULES, runs_are_one_position=False)
    first = prompt(*opening(), *turns(30_000))
    cache = (
        SimulatedCache()
        .serve(
            apply_breakpoints(
                first, place_breakpoints(first, rules, SimulatedCache(), DEFAULT_WEIGHTS, now=0.0)
            ),
            rules,
            at=0.0,
        )
        .cache
    )
    second = prompt(*first.pieces, *results(30, 50, index=1, kind="tool_use"), *results(30, 200, index=2))
    breakpoints = place_breakpoints(second, rules, cache, DEFAULT_WEIGHTS, now=20.0)
    served = cache.serve(apply_breakpoints(second, breakpoints), rules, at=20.0)
    assert served.usage.read == first.tokens
    assert served.usage.uncached == 0


def test_a_prompt_below_the_minimum_gets_no_breakpoint() -> None:
    cached_prompt = prompt(*opening(400, 300), *turns(100))
    assert place_for(cached_prompt) == []
    cached_prompt = prompt(*opening(400, 300), *turns(400))
    assert breakpoint_indexes(cached_prompt, place_for(cached_prompt)) == [2]


def test_a_block_that_accepts_no_breakpoint_gets_none() -> None:
    cached_prompt = prompt(
        *opening(), *turns(500), piece("reasoning", 200, kind="thinking", index=1, accepts_breakpoint=False)
    )
    assert breakpoint_indexes(cached_prompt, place_for(cached_prompt)) == [0, 1, 2]


def test_the_clients_breakpoints_count_towards_the_limit_and_stay() -> None:
    client_pieces = with_breakpoints(
        [*opening(), *turns(500, 200, 300)], [(0, SHORT), (1, SHORT), (2, SHORT), (4, SHORT)]
    )
    assert place_for(prompt(*client_pieces)) == []
    three_breakpoints = with_breakpoints(
        [*opening(), *turns(500, 200, 300)], [(0, SHORT), (1, SHORT), (2, SHORT)]
    )
    assert breakpoint_indexes(prompt(*three_breakpoints), place_for(prompt(*three_breakpoints))) == [4]


def test_no_long_ttl_is_placed_after_a_short_ttl_of_the_client() -> None:
    first = prompt(*opening(), *turns(60_000))
    cache = cache_after(first)
    client_pieces = with_breakpoints([*first.pieces, *turns(100, 5_000, start=1)], [(1, SHORT)])
    assert LONG not in {
        cache_breakpoint.ttl for cache_breakpoint in place_for(prompt(*client_pieces), cache, now=20.0)
    }


@pytest.mark.parametrize("ttl", [SHORT, LONG])
def test_a_configured_ttl_applies_to_all_breakpoints(ttl: Ttl) -> None:
    cached_prompt = prompt(*opening(), *turns(500))
    breakpoints = place_breakpoints(
        cached_prompt, RULES, SimulatedCache(), DEFAULT_WEIGHTS, now=0.0, options=PlacementOptions(ttl=ttl)
    )
    assert {cache_breakpoint.ttl for cache_breakpoint in breakpoints} == {ttl}


def test_tools_get_no_breakpoint_if_that_is_disabled() -> None:
    cached_prompt = prompt(*opening(), *turns(500))
    breakpoints = place_breakpoints(
        cached_prompt,
        RULES,
        SimulatedCache(),
        DEFAULT_WEIGHTS,
        now=0.0,
        options=PlacementOptions(cache_tools=False),
    )
    assert Area.TOOLS not in {cache_breakpoint.place.area for cache_breakpoint in breakpoints}


def test_a_session_with_long_pauses_gets_the_long_ttl() -> None:
    histogram = NO_GAPS
    for _ in range(20):
        histogram = histogram.with_gap(1200.0)
    weights = estimate_returns(forecast_next_request(histogram), RULES)
    cached_prompt = prompt(*opening(), *turns(50_000))
    assert {cache_breakpoint.ttl for cache_breakpoint in place_for(cached_prompt, weights=weights)} == {LONG}
    assert {cache_breakpoint.ttl for cache_breakpoint in place_for(cached_prompt)} == {SHORT}


def test_models_that_cache_automatically_or_not_at_all_get_no_breakpoints() -> None:
    for model in ("gpt-4o", "claude-2.1", "deepseek-chat", "a-model-that-nobody-knows"):
        assert place_for(prompt(*opening(), *turns(5_000), model=model)) == []


def test_a_model_with_an_automatic_last_breakpoint_gets_stable_ones_within_the_limit() -> None:
    cached_prompt = prompt(*opening(), *turns(5_000), model="gpt-5.6")
    breakpoints = place_for(cached_prompt)
    assert len(cached_prompt.pieces) - 1 not in breakpoint_indexes(cached_prompt, breakpoints)
    assert 1 in breakpoint_indexes(cached_prompt, breakpoints)
    assert len(breakpoints) <= 3


def test_every_breakpoint_has_a_reason() -> None:
    cached_prompt = prompt(*opening(), *turns(500))
    assert all(
        cache_breakpoint.reason and cache_breakpoint.saved_tokens
        for cache_breakpoint in place_for(cached_prompt)
    )


BLOCK_KINDS = ("text", "tool_use", "tool_result", "image", "thinking")


@st.composite
def cached_prompts(draw: st.DrawFn) -> CachedPrompt:
    """Generate tools, system prompt and messages, with breakpoints of the client that a provider accepts."""
    pieces: list[PromptPiece] = []
    for area, max_count in ((Area.TOOLS, 3), (Area.SYSTEM, 3), (Area.MESSAGES, 30)):
        for index in range(draw(st.integers(0, max_count))):
            kind = "tool" if area is Area.TOOLS else draw(st.sampled_from(BLOCK_KINDS))
            tokens = draw(st.one_of(st.integers(0, 40), st.integers(0, 30_000)))
            text = f"{area} {index} {draw(st.integers(0, 1))}"
            accepts_breakpoint = kind != "thinking" and tokens > 0
            pieces.append(
                piece(text, tokens, kind=kind, area=area, index=index, accepts_breakpoint=accepts_breakpoint)
            )
    indexes = [index for index, prompt_piece in enumerate(pieces) if prompt_piece.accepts_breakpoint]
    client_indexes = sorted(draw(st.sets(st.sampled_from(indexes), max_size=4))) if indexes else []
    long_count = draw(st.integers(0, len(client_indexes)))
    ttls_by_index = [
        (index, LONG if number < long_count else SHORT) for number, index in enumerate(client_indexes)
    ]
    return prompt(*with_breakpoints(pieces, ttls_by_index))


@pytest.mark.slow
@given(
    st.lists(st.tuples(cached_prompts(), st.floats(0, 5000)), min_size=1, max_size=3),
    st.lists(st.floats(1, 9000), max_size=9),
)
def test_breakpoints_are_at_most_four_in_order_and_on_blocks_that_accept_them(
    requests: list[tuple[CachedPrompt, float]], gaps: list[float]
) -> None:
    """CACHE 2, for any conversation, any breakpoints of the client, any cache and any forecast."""
    cache, now, histogram = SimulatedCache(), 0.0, NO_GAPS
    for gap in gaps:
        histogram = histogram.with_gap(gap)
    for cached_prompt, gap in requests:
        now += gap
        weights = estimate_returns(forecast_next_request(histogram, GapHistogram()), RULES)
        breakpoints = place_breakpoints(cached_prompt, RULES, cache, weights, now=now)
        assert breakpoints == place_breakpoints(cached_prompt, RULES, cache, weights, now=now)
        final = apply_breakpoints(cached_prompt, breakpoints)
        ttls = [
            prompt_piece.breakpoint_ttl
            for prompt_piece in final.pieces
            if prompt_piece.breakpoint_ttl is not None
        ]
        assert len(ttls) <= 4
        assert ttls == sorted(ttls, key=lambda ttl: ttl is not LONG)
        length = 0
        for before, prompt_piece in zip(cached_prompt.pieces, final.pieces, strict=True):
            length += prompt_piece.tokens
            assert before.breakpoint_ttl in (None, prompt_piece.breakpoint_ttl)
            if prompt_piece.breakpoint_ttl and not before.breakpoint_ttl:
                assert prompt_piece.accepts_breakpoint
                assert prompt_piece.tokens
                assert length >= RULES.minimum_tokens
        cache = cache.serve(final, RULES, at=now).cache
