"""Where cache marks pay: at most four, the client's own among them, chosen by what they are expected to save.

What is kept now and what can be expected next are arguments, so that the same request in the same situation is
marked in the same way. A set of places is weighed by one sum: what this request costs with it, less what the
next one is expected to save, which may repeat all of it, all but the end, or only what the history stands on.

Two things make that sum worth doing. An entry that is written at a long-lived mark is kept for that time whole,
though only what is new in it is paid for; so a long-lived mark on the first small block of a new turn protects
the whole history for the price of that block. And a mark finds an entry only a few positions back, so where a
turn brings many blocks, one mark has to stand near the entry that is known to be there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter

from msgspec import structs

from foveate.cache.prompts import CachedPrompt, PromptPiece, find_pieces, prompt_layout, token_ends
from foveate.cache.rhythm import ReturnProbabilities
from foveate.cache.rules import CacheRules, CachingMode
from foveate.cache.simulate import SimulatedCache
from foveate.cache.weighing import BreakpointAt, BreakpointSet, PlacementCosts, is_long_ttl, readable_entries
from foveate.values import CacheBreakpoint, Place, Ttl

__all__ = [
    "DEFAULT_PLACEMENT",
    "PlacementOptions",
    "apply_breakpoints",
    "disable_long_ttl",
    "merge_breakpoints",
    "place_breakpoints",
    "place_breakpoints_on_pieces",
    "placement_rules",
    "readable_entries",
]

# So many of the last blocks of a system prompt are places to be weighed: what changes stands at its end.
_SYSTEM_CANDIDATES = 2
# More tokens than sums of as many tokens as a prompt has can be off by.
_ROUNDING_TOKENS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """What the user decides: a `ttl` for all marks (None: chosen), and whether tools are marked.

    `long_ttl` is off for providers on which long-lived marks are not wanted.
    """

    ttl: Ttl | None = None
    cache_tools: bool = True
    long_ttl: bool = True


DEFAULT_PLACEMENT = PlacementOptions()


def disable_long_ttl(options: PlacementOptions, rules: CacheRules) -> PlacementOptions:
    """Options for a provider that is not asked for long-lived breakpoints, even if the user sets the TTL."""
    ttl = rules.ttls[0] if is_long_ttl(options.ttl, rules) else options.ttl
    return replace(options, ttl=ttl, long_ttl=False)


def placement_rules(rules: CacheRules, options: PlacementOptions) -> CacheRules:
    """The rules to choose places by. If the user sets the long TTL, its price does not speak against a place.

    A write for an hour costs more than the next request alone can save, so that no place would ever be chosen.
    """
    if options.ttl is None or not is_long_ttl(options.ttl, rules):
        return rules
    return replace(rules, write_prices={**rules.write_prices, options.ttl: rules.write_prices[rules.ttls[0]]})


def place_breakpoints(
    prompt: CachedPrompt,
    rules: CacheRules,
    cache: SimulatedCache,
    chances: ReturnProbabilities,
    *,
    now: float,
    options: PlacementOptions = DEFAULT_PLACEMENT,
    transient: Collection[Place] = (),
    max_pieces: int | None = None,
) -> tuple[CacheBreakpoint, ...]:
    """The marks to add to `prompt`, sent at `now`, where `cache` is what is known to be kept.

    `passing` are the places of blocks that the next request will not repeat, such as the time. `reach` is how
    many pieces are worth a breakpoint; all of them if it is not given.
    """
    costs, best = _find_best(prompt, rules, cache, chances, now, options, transient, max_pieces)
    return tuple(_make_breakpoint(prompt, costs, place, rules) for place in best) if costs is not None else ()


def place_breakpoints_on_pieces(
    prompt: CachedPrompt,
    rules: CacheRules,
    cache: SimulatedCache,
    chances: ReturnProbabilities,
    *,
    now: float,
    options: PlacementOptions = DEFAULT_PLACEMENT,
    max_pieces: int | None = None,
) -> dict[int, Ttl]:
    """The same marks by the pieces that they stand on, for who writes none into a request."""
    _, best = _find_best(prompt, rules, cache, chances, now, options, (), max_pieces)
    return {place.at: _breakpoint_ttl(prompt, place, rules) for place in best}


def _find_best(
    prompt: CachedPrompt,
    rules: CacheRules,
    cache: SimulatedCache,
    chances: ReturnProbabilities,
    now: float,
    options: PlacementOptions,
    transient: Collection[Place],
    max_pieces: int | None,
) -> tuple[PlacementCosts | None, tuple[BreakpointAt, ...]]:
    """The best places, in their order, and what they were weighed by; None where nothing was."""
    if rules.caching not in (CachingMode.BREAKPOINTS, CachingMode.BOTH):
        return None, ()
    existing = _existing_breakpoints(prompt, rules)
    free = rules.max_breakpoints - len(existing) - prompt.duplicate_breakpoints
    if free <= 0 or not prompt.pieces or max_pieces == 0:
        return None, ()
    costs = PlacementCosts(prompt, rules, cache, chances, now, transient, max_pieces)
    taken = {place.at for place in existing}
    candidates = [at for at in _find_candidates(prompt, costs, options) if at not in taken]
    return costs, _choose_cheapest(costs, existing, candidates, free, _allowed_lifetimes(rules, options))


def apply_breakpoints(prompt: CachedPrompt, breakpoints: Sequence[CacheBreakpoint]) -> CachedPrompt:
    """`prompt` as it is after `marks` were written into it."""
    merged = merge_breakpoints(prompt, breakpoints)
    pieces, layout = list(prompt.pieces), prompt_layout(prompt)
    for at in merged.keys() | layout.breakpoints.keys():
        pieces[at] = structs.replace(pieces[at], breakpoint_ttl=merged.get(at))
    return replace(prompt, pieces=tuple(pieces), layout=layout._replace(breakpoints=merged))


def merge_breakpoints(prompt: CachedPrompt, breakpoints: Sequence[CacheBreakpoint]) -> Mapping[int, Ttl]:
    """The marks in `prompt` after `marks` were written into it, by the pieces that they stand on."""
    existing = prompt_layout(prompt).breakpoints
    if not breakpoints:
        return existing
    wanted = {cache_breakpoint.place: cache_breakpoint.ttl for cache_breakpoint in breakpoints}
    merged = {**existing, **{at: wanted[place] for place, at in find_pieces(prompt, wanted).items()}}
    return {at: ttl for at, ttl in sorted(merged.items()) if ttl is not None}


def _existing_breakpoints(prompt: CachedPrompt, rules: CacheRules) -> list[BreakpointAt]:
    """The client's own marks, and the one that some providers put at the end by themselves."""
    existing = [
        BreakpointAt(at, is_long_ttl(ttl, rules)) for at, ttl in prompt_layout(prompt).breakpoints.items()
    ]
    last = len(prompt.pieces) - 1
    is_implicit = rules.caching is CachingMode.BOTH and not prompt.explicit_only
    return (
        [*existing, BreakpointAt(last, False)]
        if is_implicit and not (existing and existing[-1].at == last)
        else existing
    )


def _allowed_lifetimes(rules: CacheRules, options: PlacementOptions) -> tuple[bool, ...]:
    """Which of short-lived and long-lived marks may be set; where a request has one time for all, the short."""
    if options.ttl is not None:
        return (is_long_ttl(options.ttl, rules),)
    chosen = options.long_ttl and len(rules.ttls) > 1 and rules.caching is CachingMode.BREAKPOINTS
    return (False, True) if chosen else (False,)


def _find_candidates(prompt: CachedPrompt, costs: PlacementCosts, options: PlacementOptions) -> list[int]:
    """The places worth weighing, in their order.

    They are the ends of tools and system, what is known to be kept, what stands before thinking that will be
    left out, the first new block, and the last ones.
    """
    pieces, stays, system_end = prompt.pieces, costs.stable_pieces, costs.system_end
    long_enough = bisect_left(token_ends(prompt), costs.rules.minimum_tokens)
    history = max(system_end, long_enough)
    last = costs.last_live
    found = {
        *_last_accepting(
            pieces, range(long_enough, min(costs.tools_end, stays)), 1 if options.cache_tools else 0
        ),
        *_last_accepting(
            pieces, range(max(costs.tools_end, long_enough), min(system_end, stays)), _SYSTEM_CANDIDATES
        ),
        *_first_accepting(pieces, range(max(history, last + 1), stays)),
        *_last_accepting(pieces, range(history, min(costs.thinking_start, stays)), 1),
        *_last_accepting(pieces, range(history, stays), 2),
    }
    if last < system_end:
        turns = [at for at in range(history, stays) if pieces[at].accepts_breakpoint][:-1]
        found.update([at for at in turns if _is_turn_end(pieces, at)][-2:])
    live = (
        last,
        costs.last_lasting,
        last if last < costs.thinking_start else costs.last_readable_before(costs.thinking_start),
    )
    found.update(at for at in live if history <= at < stays and pieces[at].accepts_breakpoint)
    return sorted(found)


def _last_accepting(pieces: Sequence[PromptPiece], among: range, limit: int) -> list[int]:
    """The last of these pieces that may be marked."""
    return list(islice((at for at in reversed(among) if pieces[at].accepts_breakpoint), limit))


def _first_accepting(pieces: Sequence[PromptPiece], among: range) -> list[int]:
    return list(islice((at for at in among if pieces[at].accepts_breakpoint), 1))


def _is_turn_end(pieces: Sequence[PromptPiece], at: int) -> bool:
    place, after = pieces[at].place, pieces[at + 1].place
    return place is not None and after is not None and place.index != after.index


def _choose_cheapest(
    costs: PlacementCosts,
    existing: Sequence[BreakpointAt],
    candidates: Sequence[int],
    free: int,
    lifetimes: Sequence[bool],
) -> tuple[BreakpointAt, ...]:
    """The cheapest set that the provider takes, of those that can be told apart by how far they write.

    What is written, and for how long, is decided by the last long-lived and the last short-lived mark: each
    such pair is tried, as long as it can still turn out the cheapest. All other marks stand before these and
    cost nothing, and are added one by one, the best first. Of sets that cost the same, it is the first one.
    """
    chosen: tuple[BreakpointAt, ...] = ()
    breakpoints = _add_in_order(costs, costs.no_breakpoints, existing)
    if breakpoints is None:  # by the client, so that the provider will refuse it as it is
        return ()
    lowest_cost, first = costs.cost(breakpoints), -1
    lower_bound = costs.make_lower_bound(breakpoints, candidates)
    pairs = enumerate(_candidate_pairs(costs, existing, candidates, lifetimes))
    for bound, number, pair in sorted([(lower_bound.min_cost(pair), number, pair) for number, pair in pairs]):
        if bound > lowest_cost + _ROUNDING_TOKENS:
            break
        if (bound >= lowest_cost and number > first) or len(pair) > free:
            continue
        start = _add_in_order(costs, breakpoints, pair)
        if start is None:
            continue
        added, cost = _add_free_breakpoints(costs, start, pair, candidates, free, lifetimes, bound)
        if cost < lowest_cost or (cost == lowest_cost and number < first):
            chosen, lowest_cost, first = tuple(sorted(added)), cost, number
    return chosen


def _add_in_order(
    costs: PlacementCosts, breakpoints: BreakpointSet, places: Sequence[BreakpointAt]
) -> BreakpointSet | None:
    """The same marks and these, from the first on; None where the provider would not take them."""
    for place in places:
        if not breakpoints.accepts(place):
            return None
        breakpoints = costs.with_breakpoint(breakpoints, place)
    return breakpoints


def _add_free_breakpoints(
    costs: PlacementCosts,
    breakpoints: BreakpointSet,
    pair: Sequence[BreakpointAt],
    candidates: Sequence[int],
    free: int,
    lifetimes: Sequence[bool],
    bound: float,
) -> tuple[list[BreakpointAt], float]:
    """A pair of which `marks` are the sums, and what is added to it as long as that pays; and what all cost.

    Nothing that is added makes it cost less than `under`.
    """
    # What writes nothing has to be long-lived up to the last mark that is.
    to_long = max((place.at for place in pair if place.is_long), default=-1)
    is_chosen = len(lifetimes) > 1
    taken = {place.at for place in pair}
    before = candidates[: bisect_right(candidates, costs.last_usable(breakpoints.last))]
    places = [
        BreakpointAt(at, at <= to_long if is_chosen else lifetimes[0]) for at in before if at not in taken
    ]
    added, cost = list(pair), costs.cost(breakpoints)
    while len(added) < free and cost > bound and (paying := costs.find_cheaper(breakpoints, places, cost)):
        cost, best = min(paying, key=itemgetter(0))
        added.append(best)
        breakpoints = costs.with_breakpoint(breakpoints, best)
        # What does not pay alone, pays even less beside another.
        places = [place for _, place in paying if place is not best]
    return added, cost


def _candidate_pairs(
    costs: PlacementCosts,
    existing: Sequence[BreakpointAt],
    candidates: Sequence[int],
    lifetimes: Sequence[bool],
) -> Iterator[tuple[BreakpointAt, ...]]:
    """No mark, or the last long-lived one, the last short-lived one, or both."""
    new = [at for at in candidates if at > costs.last_live] or list(candidates[-1:])
    yield ()
    for at in new:
        yield from ((BreakpointAt(at, is_long),) for is_long in lifetimes)
    if len(lifetimes) > 1:
        # What is read anyway is not written for longer: there a mark is one of those that cost nothing.
        later = [(farther, -1 if existing else costs.read_position(farther)) for farther in new]
        for at in candidates:
            yield from (
                (BreakpointAt(at, True), BreakpointAt(later_at, False))
                for later_at, read_at in later
                if read_at < at < later_at
            )


def _make_breakpoint(
    prompt: CachedPrompt, costs: PlacementCosts, place: BreakpointAt, rules: CacheRules
) -> CacheBreakpoint:
    piece = prompt.pieces[place.at]
    assert piece.place is not None
    return CacheBreakpoint(
        place=piece.place,
        ttl=_breakpoint_ttl(prompt, place, rules),
        reason=_placement_reason(costs, place),
        saved_tokens=costs.ends[place.at],
    )


def _breakpoint_ttl(prompt: CachedPrompt, place: BreakpointAt, rules: CacheRules) -> Ttl:
    return rules.ttls[-1] if place.is_long else prompt.ttl or rules.ttls[0]


def _placement_reason(costs: PlacementCosts, place: BreakpointAt) -> str:
    if place.at < costs.tools_end:
        return "the tools, which stay when all else is rewritten"
    if place.at < costs.system_end:
        return "the system prompt, which stays when the history is rewritten"
    if costs.entry(place.at) is not None:
        return "where an earlier request left an entry, to find it and keep it"
    if place.is_long:
        return "keeps all before it for longer, for the price of what is new"
    return "the end of the history, which the next request continues"
