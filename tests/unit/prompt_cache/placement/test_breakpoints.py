"""Breakpoints are placed where they pay, and never where a provider would reject them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
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
from tests.support.harness.example_limits import limit_examples
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
USUAL = estimate_returns(forecast_next_request(), RULES)


def place(
    row: CachedPrompt,
    cache: SimulatedCache | None = None,
    *,
    now: float = 0.0,
    weights: ReturnProbabilities = USUAL,
) -> list[CacheBreakpoint]:
    return list(place_breakpoints(row, rules_for(row.model), cache or SimulatedCache(), weights, now=now))


def ends(row: CachedPrompt, found: Sequence[CacheBreakpoint]) -> list[int]:
    places = [cache_breakpoint.place for cache_breakpoint in found]
    return [at for at, each in enumerate(row.pieces) if each.place in places]


def after(row: CachedPrompt, *, at: float = 0.0, cache: SimulatedCache | None = None) -> SimulatedCache:
    kept = cache or SimulatedCache()
    return kept.serve(apply_breakpoints(row, place(row, kept, now=at)), rules_for(row.model), at=at).cache


def test_a_first_request_gets_breakpoints_at_tools_system_prompt_and_end() -> None:
    row = prompt(*opening(), *turns(500))
    assert ends(row, place(row)) == [0, 1, 2]


def test_the_next_request_reads_everything_that_the_last_one_sent() -> None:
    first = prompt(*opening(), *turns(500))
    cache = after(first)
    second = prompt(*first.pieces, *turns(200, 900, start=1))
    served = cache.serve(apply_breakpoints(second, place(second, cache, now=20.0)), RULES, at=20.0)
    assert served.usage.read == first.tokens
    assert served.usage.uncached == 0


def test_a_long_ttl_on_a_small_response_keeps_the_whole_history_for_its_price() -> None:
    first = prompt(*opening(), *turns(60_000))
    cache = after(first)
    second = prompt(*first.pieces, *turns(100, 5_000, start=1))
    found = place(second, cache, now=20.0)
    assert {second.pieces.index(each) for each in second.pieces if each.place == found[-2].place} == {3}
    assert [cache_breakpoint.ttl for cache_breakpoint in found] == [LONG, LONG, LONG, SHORT]
    served = cache.serve(apply_breakpoints(second, found), RULES, at=20.0)
    assert served.usage.written_1h == 100
    third = prompt(*second.pieces, *turns(100, start=3))
    late = served.cache.serve(
        apply_breakpoints(third, place(third, served.cache, now=1500.0)), RULES, at=1500.0
    )
    assert late.usage.read == first.tokens + 100


def test_thirty_tool_results_in_one_turn_do_not_lose_the_history_before_them() -> None:
    """The last breakpoint only looks back 20 positions; if runs are not one position, another one is needed."""
    rules = replace(RULES, runs_are_one_position=False)
    first = prompt(*opening(), *turns(30_000))
    cache = (
        SimulatedCache()
        .serve(
            apply_breakpoints(first, place_breakpoints(first, rules, SimulatedCache(), USUAL, now=0.0)),
            rules,
            at=0.0,
        )
        .cache
    )
    second = prompt(*first.pieces, *results(30, 50, index=1, kind="tool_use"), *results(30, 200, index=2))
    found = place_breakpoints(second, rules, cache, USUAL, now=20.0)
    served = cache.serve(apply_breakpoints(second, found), rules, at=20.0)
    assert served.usage.read == first.tokens
    assert served.usage.uncached == 0


def test_a_prompt_below_the_minimum_gets_no_breakpoint() -> None:
    row = prompt(*opening(400, 300), *turns(100))
    assert place(row) == []
    row = prompt(*opening(400, 300), *turns(400))
    assert ends(row, place(row)) == [2]


def test_a_block_that_accepts_no_breakpoint_gets_none() -> None:
    row = prompt(
        *opening(), *turns(500), piece("thought", 200, kind="thinking", index=1, accepts_breakpoint=False)
    )
    assert ends(row, place(row)) == [0, 1, 2]


def test_the_clients_breakpoints_count_towards_the_limit_and_stay() -> None:
    own = with_breakpoints(
        [*opening(), *turns(500, 200, 300)], [(0, SHORT), (1, SHORT), (2, SHORT), (4, SHORT)]
    )
    assert place(prompt(*own)) == []
    three = with_breakpoints([*opening(), *turns(500, 200, 300)], [(0, SHORT), (1, SHORT), (2, SHORT)])
    assert ends(prompt(*three), place(prompt(*three))) == [4]


def test_no_long_ttl_is_placed_after_a_short_ttl_of_the_client() -> None:
    first = prompt(*opening(), *turns(60_000))
    cache = after(first)
    own = with_breakpoints([*first.pieces, *turns(100, 5_000, start=1)], [(1, SHORT)])
    assert LONG not in {cache_breakpoint.ttl for cache_breakpoint in place(prompt(*own), cache, now=20.0)}


@pytest.mark.parametrize("ttl", [SHORT, LONG])
def test_a_configured_ttl_applies_to_all_breakpoints(ttl: Ttl) -> None:
    row = prompt(*opening(), *turns(500))
    found = place_breakpoints(row, RULES, SimulatedCache(), USUAL, now=0.0, options=PlacementOptions(ttl=ttl))
    assert {cache_breakpoint.ttl for cache_breakpoint in found} == {ttl}


def test_tools_get_no_breakpoint_if_that_is_disabled() -> None:
    row = prompt(*opening(), *turns(500))
    found = place_breakpoints(
        row, RULES, SimulatedCache(), USUAL, now=0.0, options=PlacementOptions(cache_tools=False)
    )
    assert Area.TOOLS not in {cache_breakpoint.place.area for cache_breakpoint in found}


def test_a_session_with_long_pauses_gets_the_long_ttl() -> None:
    resting = NO_GAPS
    for _ in range(20):
        resting = resting.with_gap(1200.0)
    weights = estimate_returns(forecast_next_request(resting), RULES)
    row = prompt(*opening(), *turns(50_000))
    assert {cache_breakpoint.ttl for cache_breakpoint in place(row, weights=weights)} == {LONG}
    assert {cache_breakpoint.ttl for cache_breakpoint in place(row)} == {SHORT}


def test_models_that_cache_automatically_or_not_at_all_get_no_breakpoints() -> None:
    for model in ("gpt-4o", "claude-2.1", "deepseek-chat", "a-model-that-nobody-knows"):
        assert place(prompt(*opening(), *turns(5_000), model=model)) == []


def test_a_model_with_an_automatic_last_breakpoint_gets_stable_ones_within_the_limit() -> None:
    row = prompt(*opening(), *turns(5_000), model="gpt-5.6")
    found = place(row)
    assert len(row.pieces) - 1 not in ends(row, found)
    assert 1 in ends(row, found)
    assert len(found) <= 3


def test_every_breakpoint_has_a_reason() -> None:
    row = prompt(*opening(), *turns(500))
    assert all(cache_breakpoint.reason and cache_breakpoint.saved_tokens for cache_breakpoint in place(row))


KINDS = ("text", "tool_use", "tool_result", "image", "thinking")


@st.composite
def rows(draw: st.DrawFn) -> CachedPrompt:
    """Any tools, system prompt and messages, with breakpoints of the client that a provider accepts."""
    pieces: list[PromptPiece] = []
    for area, most in ((Area.TOOLS, 3), (Area.SYSTEM, 3), (Area.MESSAGES, 30)):
        for index in range(draw(st.integers(0, most))):
            kind = "tool" if area is Area.TOOLS else draw(st.sampled_from(KINDS))
            tokens = draw(st.one_of(st.integers(0, 40), st.integers(0, 30_000)))
            said = f"{area} {index} {draw(st.integers(0, 1))}"
            allowed = kind != "thinking" and tokens > 0
            pieces.append(piece(said, tokens, kind=kind, area=area, index=index, accepts_breakpoint=allowed))
    places = [at for at, each in enumerate(pieces) if each.accepts_breakpoint]
    own = sorted(draw(st.sets(st.sampled_from(places), max_size=4))) if places else []
    long_lived = draw(st.integers(0, len(own)))
    lives = [(at, LONG if number < long_lived else SHORT) for number, at in enumerate(own)]
    return prompt(*with_breakpoints(pieces, lives))


@pytest.mark.slow
@settings(max_examples=limit_examples(80))
@given(
    st.lists(st.tuples(rows(), st.floats(0, 5000)), min_size=1, max_size=3),
    st.lists(st.floats(1, 9000), max_size=9),
)
def test_breakpoints_are_at_most_four_in_order_and_on_blocks_that_accept_them(
    sent: list[tuple[CachedPrompt, float]], gaps: list[float]
) -> None:
    """CACHE 2, for any conversation, any breakpoints of the client, any cache and any forecast."""
    cache, now, histogram = SimulatedCache(), 0.0, NO_GAPS
    for gap in gaps:
        histogram = histogram.with_gap(gap)
    for row, gap in sent:
        now += gap
        weights = estimate_returns(forecast_next_request(histogram, GapHistogram()), RULES)
        found = place_breakpoints(row, RULES, cache, weights, now=now)
        assert found == place_breakpoints(row, RULES, cache, weights, now=now)
        whole = apply_breakpoints(row, found)
        lives = [each.breakpoint_ttl for each in whole.pieces if each.breakpoint_ttl is not None]
        assert len(lives) <= 4
        assert lives == sorted(lives, key=lambda ttl: ttl is not LONG)
        length = 0
        for before, each in zip(row.pieces, whole.pieces, strict=True):
            length += each.tokens
            assert before.breakpoint_ttl in (None, each.breakpoint_ttl)
            if each.breakpoint_ttl and not before.breakpoint_ttl:
                assert each.accepts_breakpoint
                assert each.tokens
                assert length >= RULES.minimum_tokens
        cache = cache.serve(whole, RULES, at=now).cache
