"""Sets of breakpoints that the lower bound skips would never have been chosen."""

from collections.abc import Sequence

from hypothesis import given, settings
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
    BreakpointAt,
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
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.cache_prompts import opening, prompt, results, turns, with_breakpoints

KINDS = ("text", "tool_use", "tool_result", "thinking")


def best_of_all(
    costs: PlacementCosts,
    own: Sequence[BreakpointAt],
    candidates: Sequence[int],
    free: int,
    lifetimes: Sequence[bool],
) -> tuple[BreakpointAt, ...]:
    """The cheapest set, found by computing the cost of every pair and every breakpoint before it."""
    chosen: tuple[BreakpointAt, ...] = ()
    breakpoints = _add_in_order(costs, costs.no_breakpoints, own)
    if breakpoints is None:
        return ()
    least = costs.cost(breakpoints)
    for pair in _candidate_pairs(costs, own, candidates, lifetimes):
        if len(pair) > free or (here := _add_in_order(costs, breakpoints, pair)) is None:
            continue
        to_long = max((place.at for place in pair if place.is_long), default=-1)
        before = [at for at in candidates if at <= max(here.last, costs.last_live)]
        places = [BreakpointAt(at, at <= to_long if len(lifetimes) > 1 else lifetimes[0]) for at in before]
        places = [place for place in places if place.at not in {one.at for one in pair}]
        added, cost = list(pair), costs.cost(here)
        while len(added) < free:
            tried = [
                (costs.cost(costs.with_breakpoint(here, place)), place)
                for place in places
                if here.accepts(place)
            ]
            paying = [(total, place) for total, place in tried if total < cost]
            if not paying:
                break
            cost, best = min(paying, key=lambda each: each[0])
            added.append(best)
            here = costs.with_breakpoint(here, best)
            places = [place for _, place in paying if place is not best]
        if cost < least:
            chosen, least = tuple(sorted(added)), cost
    return chosen


@st.composite
def sessions(draw: st.DrawFn) -> list[tuple[float, CachedPrompt]]:
    """Requests that mostly repeat the previous one, and their times."""
    pieces = opening(draw(st.integers(0, 5_000)), draw(st.integers(0, 4_000)))
    found, at = [], 0.0
    for index in range(draw(st.integers(1, 4))):
        count, tokens = draw(st.integers(1, 24)), draw(st.integers(0, 3_000))
        new = results(count, tokens, index=2 * index, kind=draw(st.sampled_from(KINDS)))
        pieces = [*pieces, *new, *turns(draw(st.integers(0, 9_000)), start=2 * index + 1)]
        sent = pieces
        if draw(st.integers(0, 3)) == 0:
            own = draw(st.integers(0, len(pieces) - 1))
            sent = with_breakpoints(pieces, [(own, draw(st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR))))])
        found.append((at, prompt(*sent)))
        at += draw(st.sampled_from((1.0, 60.0, 290.0, 600.0, 3_000.0, 5_000.0)))
    return found


@settings(max_examples=limit_examples(60), deadline=None)
@given(sessions(), st.sampled_from(("claude-sonnet-4-5", "claude-3-5-haiku-20241022", "gpt-5.6")))
def test_the_chosen_set_is_always_the_one_that_an_exhaustive_search_finds(
    session: list[tuple[float, CachedPrompt]], model: str
) -> None:
    rules, cache, histogram, before = rules_for(model), SimulatedCache(), NO_GAPS, None
    for at, sent in session:
        histogram = histogram if before is None else GapHistogram(histogram.counts).with_gap(at - before)
        before = at
        expected = estimate_returns(forecast_next_request(histogram), rules)
        own, costs = (
            _existing_breakpoints(sent, rules),
            PlacementCosts(sent, rules, cache, expected, at, ()),
        )
        taken, free = {place.at for place in own}, rules.max_breakpoints - len(own)
        candidates = [place for place in _find_candidates(sent, costs, DEFAULT_PLACEMENT) if place not in taken]
        lifetimes = _allowed_lifetimes(rules, DEFAULT_PLACEMENT)

        found = _choose_cheapest(costs, own, candidates, free, lifetimes)

        assert found == best_of_all(costs, own, candidates, free, lifetimes)
        breakpoints = place_breakpoints(sent, rules, cache, expected, now=at)
        cache = cache.serve(apply_breakpoints(sent, breakpoints), rules, at=at).cache
