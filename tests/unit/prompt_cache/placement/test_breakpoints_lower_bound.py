"""Sets of breakpoints that the lower bound skips would never have been chosen."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from foveate.model import Ttl
from foveate.prompt_cache.placement.arrival_times import (
    NO_GAPS,
    GapHistogram,
    estimate_returns,
    forecast_next_request,
)
from foveate.prompt_cache.placement.breakpoints import (
    DEFAULT_PLACEMENT,
    CandidateBreakpoint,
    PlacementCosts,
    _add_in_order,
    _allowed_lifetimes,
    _candidate_pairs,
    _choose_cheapest,
    _existing_breakpoints,
    _find_candidates,
    apply_breakpoints,
    place_breakpoints,
)
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from tests.support.scenarios.cache_prompts import opening, prompt, results, turns, with_breakpoints

BLOCK_KINDS = ("text", "tool_use", "tool_result", "thinking")


def search_exhaustively(
    costs: PlacementCosts,
    client_breakpoints: Sequence[CandidateBreakpoint],
    candidates: Sequence[int],
    max_added: int,
    lifetimes: Sequence[bool],
) -> tuple[CandidateBreakpoint, ...]:
    """Return the cheapest set, computing the cost of every pair and every breakpoint before it."""
    chosen: tuple[CandidateBreakpoint, ...] = ()
    breakpoints = _add_in_order(costs, costs.no_breakpoints, client_breakpoints)
    if breakpoints is None:
        return ()
    min_cost = costs.cost(breakpoints)
    for pair in _candidate_pairs(costs, client_breakpoints, candidates, lifetimes):
        if len(pair) > max_added or (state := _add_in_order(costs, breakpoints, pair)) is None:
            continue
        last_long = max((candidate.piece for candidate in pair if candidate.is_long), default=-1)
        earlier_candidates = [index for index in candidates if index <= max(state.last, costs.last_readable)]
        remaining = [
            CandidateBreakpoint(index, index <= last_long if len(lifetimes) > 1 else lifetimes[0])
            for index in earlier_candidates
        ]
        remaining = [
            candidate
            for candidate in remaining
            if candidate.piece not in {chosen_breakpoint.piece for chosen_breakpoint in pair}
        ]
        added, cost = list(pair), costs.cost(state)
        while len(added) < max_added:
            cost_options = [
                (costs.cost(costs.with_breakpoint(state, candidate)), candidate)
                for candidate in remaining
                if state.accepts(candidate)
            ]
            cheaper = [(total, candidate) for total, candidate in cost_options if total < cost]
            if not cheaper:
                break
            cost, cheapest = min(cheaper, key=lambda option: option[0])
            added.append(cheapest)
            state = costs.with_breakpoint(state, cheapest)
            remaining = [candidate for _, candidate in cheaper if candidate is not cheapest]
        if cost < min_cost:
            chosen, min_cost = tuple(sorted(added)), cost
    return chosen


@st.composite
def sessions(draw: st.DrawFn) -> list[tuple[float, CachedPrompt]]:
    """Generate requests that mostly repeat the previous one, with their times."""
    pieces = opening(draw(st.integers(0, 5_000)), draw(st.integers(0, 4_000)))
    requests, now = [], 0.0
    for index in range(draw(st.integers(1, 4))):
        count, tokens = draw(st.integers(1, 24)), draw(st.integers(0, 3_000))
        new = results(count, tokens, index=2 * index, kind=draw(st.sampled_from(BLOCK_KINDS)))
        pieces = [*pieces, *new, *turns(draw(st.integers(0, 9_000)), start=2 * index + 1)]
        sent_pieces = pieces
        if draw(st.integers(0, 3)) == 0:
            breakpoint_index = draw(st.integers(0, len(pieces) - 1))
            sent_pieces = with_breakpoints(
                pieces, [(breakpoint_index, draw(st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR))))]
            )
        requests.append((now, prompt(*sent_pieces)))
        now += draw(st.sampled_from((1.0, 60.0, 290.0, 600.0, 3_000.0, 5_000.0)))
    return requests


@given(sessions(), st.sampled_from(("claude-sonnet-4-5", "claude-3-5-haiku-20241022", "gpt-5.6")))
def test_the_chosen_set_is_always_the_one_that_an_exhaustive_search_finds(
    session: list[tuple[float, CachedPrompt]], model: str
) -> None:
    rules, cache, histogram, previous_at = rules_for(model), SimulatedCache(), NO_GAPS, None
    for now, cached_prompt in session:
        histogram = (
            histogram if previous_at is None else GapHistogram(histogram.counts).with_gap(now - previous_at)
        )
        previous_at = now
        weights = estimate_returns(forecast_next_request(histogram), rules)
        client_breakpoints, costs = (
            _existing_breakpoints(cached_prompt, rules),
            PlacementCosts(cached_prompt, rules, cache, weights, now, ()),
        )
        used_indexes, max_added = (
            {candidate.piece for candidate in client_breakpoints},
            rules.max_breakpoints - len(client_breakpoints),
        )
        candidates = [
            candidate
            for candidate in _find_candidates(cached_prompt, costs, DEFAULT_PLACEMENT)
            if candidate not in used_indexes
        ]
        lifetimes = _allowed_lifetimes(rules, DEFAULT_PLACEMENT)

        chosen = _choose_cheapest(costs, client_breakpoints, candidates, max_added, lifetimes)

        assert chosen == search_exhaustively(costs, client_breakpoints, candidates, max_added, lifetimes)
        breakpoints = place_breakpoints(cached_prompt, rules, cache, weights, now=now)
        cache = cache.serve(apply_breakpoints(cached_prompt, breakpoints), rules, at=now).cache
