"""Chooses cache breakpoints: the positions that are expected to save most, within the provider's limit.

A set of positions is rated by one number: what this request costs with it, less what the next request is
expected to save. The next request may repeat all of this one, all but the end, or only the tools and system
prompt. The current cache and the probabilities of the next request are arguments, so that the same situation
always gives the same breakpoints.

Two effects make the calculation worthwhile. An entry written at a breakpoint with the long TTL is kept for
that time as a whole, although only its new tokens are charged; so a long TTL on the first small block of a
new turn protects the whole history for the price of that block. And a breakpoint finds an entry only a few
positions back, so if a turn adds many blocks, one breakpoint has to stay near the known entry.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from math import inf
from operator import itemgetter
from typing import NamedTuple

from msgspec import structs

from foveate.model import CacheBreakpoint, Place, Ttl
from foveate.prompt_cache.placement.arrival_times import ReturnProbabilities
from foveate.prompt_cache.prompt.cached_prompt import (
    CachedPrompt,
    PromptPiece,
    count_positions,
    find_pieces,
    prefix_keys,
    prompt_layout,
    token_ends,
)
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import CacheEntry, SimulatedCache

# Expected savings for each prefix that the next request may repeat.
_Savings = tuple[float, float, float, float, float]
# The piece that a breakpoint reads up to, its cumulative tokens and those of the breakpoint, whether the
# entry there has the long TTL, the savings of the breakpoint, and those including what it reads.
_Weights = tuple[int, int, int, bool, _Savings, _Savings]
# The last blocks of a system prompt are candidates, since what changes is at its end.
_SYSTEM_CANDIDATES = 2
# A message may have 100,000 blocks, and this runs on the event loop.
_MAX_SEARCHED_PIECES = 2_000
# More than the rounding error of sums over a prompt's tokens.
_ROUNDING_TOKENS = 0.001


def readable_entries(prompt: CachedPrompt, cache: SimulatedCache, now: float) -> dict[int, CacheEntry]:
    """The entries that `prompt` can read at `now`, by their last piece."""
    return cache.entries.find_readable(prefix_keys(prompt), now)


def is_long_ttl(ttl: Ttl | None, rules: CacheRules) -> bool:
    """Return whether `ttl` is the longest of several TTLs."""
    return ttl is not None and len(rules.ttls) > 1 and ttl is rules.ttls[-1]


class CandidateBreakpoint(NamedTuple):
    piece: int
    is_long: bool


class BreakpointSet(NamedTuple):
    """Facts that the cost of a set of breakpoints depends on. Many such sets are compared for each request.

    `read_at` is the last piece that is read, `last_long_entry` the last piece with a breakpoint and a long-TTL
    entry, and `saved` the expected savings for each possible next request.
    """

    read_at: int
    last: int
    last_long: int
    first_short: int
    last_long_entry: int
    saved: _Savings

    def accepts(self, candidate: CandidateBreakpoint) -> bool:
        """Return whether all long-TTL breakpoints would precede all short-TTL ones, as providers require."""
        at, is_long = candidate
        return at < self.first_short if is_long else at > self.last_long


class _LazyEnds(dict[int, int]):
    """Cumulative tokens of pieces, computed on first access. Position -1 has none."""

    def __init__(self, ends: Sequence[int]) -> None:
        super().__init__({-1: 0})
        self._all = ends

    def __missing__(self, at: int) -> int:
        end = self[at] = self._all[at]
        return end


class PlacementCosts:
    """Everything that sets of breakpoints are compared by, computed once per request."""

    def __init__(
        self,
        prompt: CachedPrompt,
        rules: CacheRules,
        cache: SimulatedCache,
        return_probabilities: ReturnProbabilities,
        now: float,
        transient: Collection[Place],
        max_pieces: int | None = None,
    ) -> None:
        self.rules = rules
        ends = token_ends(prompt)
        self.ends = _LazyEnds(ends)
        self.total = ends[-1]
        self.tools_end, self.system_end, first_thinking, _ = prompt_layout(prompt)
        keys, pieces = prefix_keys(prompt), prompt.pieces
        self._keys = keys
        self._entries, self._now = cache.entries, now
        # The last pieces with a readable entry, and with one of the long TTL.
        self.last_readable = self.last_readable_before(len(pieces))
        self.last_long_entry = -1
        if self.last_readable >= 0 and len(rules.ttls) > 1:
            self.last_long_entry = cache.entries.last_readable(
                self._keys, self.last_readable + 1, now, rules.ttls[-1]
            )
        self.stable_pieces = len(pieces)
        if transient:
            self.stable_pieces = min(find_pieces(prompt, transient).values(), default=len(pieces))
        if max_pieces is not None:
            self.stable_pieces = min(self.stable_pieces, max_pieces)
        self.thinking_start = self.stable_pieces if first_thinking is None else first_thinking
        self._explicit_only = prompt.explicit_only
        self._pieces = pieces
        self.read_price = rules.read_price
        self.long_price = max(rules.write_prices.values(), default=1.0)
        self.short_price = min(rules.write_prices.values(), default=1.0)
        saving = self.short_price - rules.read_price
        self.long_ttl_saving = return_probabilities.long_probability * saving
        self.preamble_long_ttl_saving = return_probabilities.preamble_long_probability * saving
        self.preamble_end = self.ends[self.system_end - 1]
        thinking_start = self.thinking_start if rules.drops_thinking else self.stable_pieces
        last = next((at for at in range(self.stable_pieces - 1, -1, -1) if pieces[at].accepts_breakpoint), 0)
        # The prefixes that the next request may repeat, as numbers of pieces, with their probabilities times
        # the saving per token.
        self._repeats = (
            (self.stable_pieces, return_probabilities.short_probability * saving),
            (last, return_probabilities.changed_end * saving),
            (thinking_start, return_probabilities.ended_turn * saving),
            (self.system_end, return_probabilities.rewritten_history * saving),
            (self.tools_end, return_probabilities.rewritten_system * saving),
        )
        self._savings_by_piece: dict[int, _Savings] = {}
        self._weights_by_piece: dict[int, _Weights] = {}
        self.no_breakpoints = BreakpointSet(-1, -1, -1, len(pieces), -1, self._expected_savings(-1))

    def entry(self, at: int) -> CacheEntry | None:
        """The readable entry that ends with piece `at`."""
        entry = self._entries.find(self._keys[at])
        return entry if entry is not None and entry.is_readable(self._now) else None

    def last_usable(self, last: int) -> int:
        """The last piece on which a breakpoint writes nothing, if the breakpoint on piece `last` exists."""
        return max(last, self.last_readable)

    def last_readable_before(self, end: int) -> int:
        """The last piece before `end` with a readable entry, or -1."""
        return self._entries.last_readable(self._keys, end, self._now)

    def has_long_entry(self, at: int) -> bool:
        if at > self.last_long_entry:
            return False
        entry = self.entry(at)
        return entry is not None and is_long_ttl(entry.ttl, self.rules)

    def read_position(self, at: int) -> int:
        """The piece at which a breakpoint on piece `at` finds an entry, or -1."""
        return self._weights_at(at)[0]

    def _find_read_position(self, at: int) -> int:
        if self._explicit_only:
            return -1 if self.entry(at) is None else at
        entry = self.last_readable if at >= self.last_readable else self.last_readable_before(at + 1)
        if entry < 0:
            return -1
        reach = self.rules.lookback_positions  # 0: no limit
        runs = self.rules.runs_are_one_position
        if not reach or count_positions(self._pieces, entry, at, runs_are_one=runs, limit=reach) < reach:
            return entry
        return -1

    def _expected_savings(self, at: int) -> _Savings:
        """Expected savings of an entry that ends with piece `at`, for each possible next request."""
        savings = self._savings_by_piece.get(at)
        if savings is None:
            end = self.ends[at]
            (a, v), (b, w), (c, x), (d, y), (e, z) = self._repeats
            savings = self._savings_by_piece[at] = (
                end * v if at < a else 0.0,
                end * w if at < b else 0.0,
                end * x if at < c else 0.0,
                end * y if at < d else 0.0,
                end * z if at < e else 0.0,
            )
        return savings

    def with_breakpoint(self, breakpoints: BreakpointSet, candidate: CandidateBreakpoint) -> BreakpointSet:
        at, is_long = candidate
        read_at, last, last_long, first_short, long_entry, saved = breakpoints
        reads, _, _, lasts, alone, _ = self._weights_at(at)
        return BreakpointSet(
            reads if reads > read_at else read_at,
            at if at > last else last,
            at if is_long and at > last_long else last_long,
            at if not is_long and at < first_short else first_short,
            at if lasts and at > long_entry else long_entry,
            _max_each(saved, alone),
        )

    def find_cheaper(
        self, breakpoints: BreakpointSet, candidates: Sequence[CandidateBreakpoint], max_cost: float
    ) -> list[tuple[float, CandidateBreakpoint]]:
        """The candidates that make the set cost less than `max_cost` if added, with the resulting cost.

        Repeats `cost` inline, since it runs dozens of times per request.
        """
        ends, weights, last_long_entry = self.ends, self._weights_by_piece, self.last_long_entry
        read_price, long_price, short_price = self.read_price, self.long_price, self.short_price
        read_before, last, last_long, first_short, long_entry_before, unread = breakpoints
        as_read = _max_each(unread, self._expected_savings(read_before)) if read_before >= 0 else unread
        total, last_end = self.total, ends[last]
        read_end, long_end, long_entry_end = ends[read_before], ends[last_long], ends[long_entry_before]
        long_saving, preamble_long_saving, preamble_end = (
            self.long_ttl_saving,
            self.preamble_long_ttl_saving,
            self.preamble_end,
        )
        cheaper = []
        for candidate in candidates:
            at, is_long = candidate
            if at >= first_short if is_long else at <= last_long:
                continue
            reads, new_read, end, lasts, alone, with_read = weights.get(at) or self._weights_at(at)
            if reads > read_before:
                read_at, read, (a, b, c, d, e), (v, w, x, y, z) = reads, new_read, unread, with_read
            else:
                read_at, read, (a, b, c, d, e), (v, w, x, y, z) = read_before, read_end, as_read, alone
            long_entry, kept_end = long_entry_before, long_entry_end
            if lasts and at > long_entry:
                long_entry, kept_end = at, end
            if long_entry < read_at <= last_long_entry and self.has_long_entry(read_at):
                kept_end = read
            to_long = end if is_long and at > last_long else long_end
            kept_tokens = to_long
            if to_long <= read:
                to_long, kept_tokens = read, 0
            if kept_end > kept_tokens:
                kept_tokens = kept_end
            to_short = end if at > last else last_end
            if to_short < to_long:
                to_short = to_long
            saved = (
                (a if a > v else v)
                + (b if b > w else w)
                + (c if c > x else x)
                + (d if d > y else y)
                + (e if e > z else z)
            )
            cost = (
                read * read_price
                + (to_long - read) * long_price
                + (to_short - to_long) * short_price
                + (total - to_short)
                - kept_tokens * long_saving
                - (kept_tokens if kept_tokens < preamble_end else preamble_end) * preamble_long_saving
                - saved
            )
            if cost < max_cost:
                cheaper.append((cost, candidate))
        return cheaper

    def _weights_at(self, at: int) -> "_Weights":
        """Contribution of a breakpoint on piece `at`, cached for later sets."""
        weights = self._weights_by_piece.get(at)
        if weights is None:
            reads, alone = self._find_read_position(at), self._expected_savings(at)
            with_read = _max_each(alone, self._expected_savings(reads)) if 0 <= reads < at else alone
            weights = reads, self.ends[reads], self.ends[at], self.has_long_entry(at), alone, with_read
            self._weights_by_piece[at] = weights
        return weights

    def make_lower_bound(self, existing: BreakpointSet, candidates: Sequence[int]) -> "CostLowerBound":
        weights = [self._weights_at(at) for at in candidates]
        read_at = max([existing.read_at, *[reads for reads, *_ in weights]])
        saved = _max_each(existing.saved, self._expected_savings(existing.read_at))
        cumulative_savings = accumulate([with_read for *_, with_read in weights], _max_each, initial=saved)
        return CostLowerBound(self, existing, candidates, read_at, [sum(saves) for saves in cumulative_savings])

    def cost(self, breakpoints: BreakpointSet) -> float:
        """The cost of a request with these breakpoints, in uncached tokens, less the expected savings of the
        next one.
        """
        ends = self.ends
        read_at, last, last_long, _, long_entry, saved = breakpoints
        if read_at >= 0:
            saved = _max_each(saved, self._expected_savings(read_at))
            if read_at > long_entry and self.has_long_entry(read_at):
                long_entry = read_at
        read = ends[read_at]
        to_long = max(read, ends[last_long])
        to_short = max(to_long, ends[last])
        kept_tokens = max(to_long if to_long > read else 0, ends[long_entry])
        return (
            read * self.read_price
            + (to_long - read) * self.long_price
            + (to_short - to_long) * self.short_price
            + (self.total - to_short)
            - kept_tokens * self.long_ttl_saving
            - min(kept_tokens, self.preamble_end) * self.preamble_long_ttl_saving
            - sum(saved)
        )


class CostLowerBound:
    """A quick lower bound of the cost, to skip sets that cannot be the cheapest.

    Assumes that as much is read and saved as by any breakpoint up to the last one of the set, and that only
    this set is written.
    """

    def __init__(
        self,
        costs: PlacementCosts,
        existing: BreakpointSet,
        candidates: Sequence[int],
        read_at: int,
        saved: Sequence[float],
    ) -> None:
        ends = costs.ends
        self._costs = costs
        self._existing = existing
        self._candidates = candidates
        self._max_read = ends[read_at]
        self._max_savings = saved
        self._long_entry_end = ends[costs.last_long_entry]
        # The bound is only valid if prices are in the usual order.
        self._is_valid = (
            0 <= costs.read_price <= 1 <= costs.short_price
            and costs.long_ttl_saving >= 0 <= costs.preamble_long_ttl_saving
        )

    def min_cost(self, candidates: Sequence[CandidateBreakpoint]) -> float:
        """The minimum cost of a set with these breakpoints, whatever candidates before them are added."""
        if not self._is_valid:
            return -inf
        costs, read, last, last_long = (
            self._costs,
            self._max_read,
            self._existing.last,
            self._existing.last_long,
        )
        for at, is_long in candidates:
            if at > last:
                last = at
            if is_long and at > last_long:
                last_long = at
        long_end = costs.ends[last_long]
        return (
            costs.total
            + read * (costs.read_price - costs.long_price)
            + max(read, long_end) * (costs.long_price - costs.short_price)
            + max(read, costs.ends[last]) * (costs.short_price - 1)
            - self._max_savings[bisect_right(self._candidates, costs.last_usable(last))]
            - max(long_end, self._long_entry_end) * costs.long_ttl_saving
            - min(max(long_end, self._long_entry_end), costs.preamble_end) * costs.preamble_long_ttl_saving
        )


def _max_each(first: _Savings, second: _Savings) -> _Savings:
    """Element-wise maximum; written out, since it runs hundreds of times per request."""
    a, b, c, d, e = first
    v, w, x, y, z = second
    return (
        a if a > v else v,
        b if b > w else w,
        c if c > x else x,
        d if d > y else y,
        e if e > z else z,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """User options: a fixed `ttl` for all breakpoints (None: chosen), and whether tools get one.

    `long_ttl` is False for providers that should not be asked for long TTLs.
    """

    ttl: Ttl | None = None
    cache_tools: bool = True
    long_ttl: bool = True


DEFAULT_PLACEMENT = PlacementOptions()


def disable_long_ttl(options: PlacementOptions, rules: CacheRules) -> PlacementOptions:
    """Options for a provider that is not asked for long TTLs, even if the user sets the TTL."""
    ttl = rules.ttls[0] if is_long_ttl(options.ttl, rules) else options.ttl
    return replace(options, ttl=ttl, long_ttl=False)


def placement_rules(rules: CacheRules, options: PlacementOptions) -> CacheRules:
    """The rules to place breakpoints by. If the user sets the long TTL, its write price is not held against a
    position.

    A one-hour write costs more than the next request alone can save, so no position would ever be chosen.
    """
    if options.ttl is None or not is_long_ttl(options.ttl, rules):
        return rules
    return replace(rules, write_prices={**rules.write_prices, options.ttl: rules.write_prices[rules.ttls[0]]})


def place_breakpoints(
    prompt: CachedPrompt,
    rules: CacheRules,
    cache: SimulatedCache,
    return_probabilities: ReturnProbabilities,
    *,
    now: float,
    options: PlacementOptions = DEFAULT_PLACEMENT,
    transient: Collection[Place] = (),
    max_pieces: int | None = None,
) -> tuple[CacheBreakpoint, ...]:
    """The breakpoints to add to `prompt`, sent at `now`, if `cache` is what the provider is known to have.

    `transient` are the places of blocks that the next request will not repeat, such as the time. `max_pieces`
    limits breakpoints to the first pieces.
    """
    costs, best = _find_best(prompt, rules, cache, return_probabilities, now, options, transient, max_pieces)
    return (
        tuple(_make_breakpoint(prompt, costs, candidate, rules) for candidate in best)
        if costs is not None
        else ()
    )


def place_breakpoints_on_pieces(
    prompt: CachedPrompt,
    rules: CacheRules,
    cache: SimulatedCache,
    return_probabilities: ReturnProbabilities,
    *,
    now: float,
    options: PlacementOptions = DEFAULT_PLACEMENT,
    max_pieces: int | None = None,
) -> dict[int, Ttl]:
    """The same breakpoints as TTLs by piece, for callers that do not edit a request."""
    _, best = _find_best(prompt, rules, cache, return_probabilities, now, options, (), max_pieces)
    return {candidate.piece: _breakpoint_ttl(prompt, candidate, rules) for candidate in best}


def _find_best(
    prompt: CachedPrompt,
    rules: CacheRules,
    cache: SimulatedCache,
    return_probabilities: ReturnProbabilities,
    now: float,
    options: PlacementOptions,
    transient: Collection[Place],
    max_pieces: int | None,
) -> tuple[PlacementCosts | None, tuple[CandidateBreakpoint, ...]]:
    """The best positions in order, and the costs that they were compared by; None if nothing was compared."""
    if rules.caching not in (CachingMode.BREAKPOINTS, CachingMode.BOTH):
        return None, ()
    existing = _existing_breakpoints(prompt, rules)
    free_breakpoints = rules.max_breakpoints - len(existing) - prompt.duplicate_breakpoints
    if free_breakpoints <= 0 or not prompt.pieces or max_pieces == 0:
        return None, ()
    costs = PlacementCosts(prompt, rules, cache, return_probabilities, now, transient, max_pieces)
    used_positions = {candidate.piece for candidate in existing}
    candidates = [at for at in _find_candidates(prompt, costs, options) if at not in used_positions]
    return costs, _choose_cheapest(
        costs, existing, candidates, free_breakpoints, _allowed_lifetimes(rules, options)
    )


def apply_breakpoints(prompt: CachedPrompt, breakpoints: Sequence[CacheBreakpoint]) -> CachedPrompt:
    merged = merge_breakpoints(prompt, breakpoints)
    pieces, layout = list(prompt.pieces), prompt_layout(prompt)
    for at in merged.keys() | layout.breakpoints.keys():
        pieces[at] = structs.replace(pieces[at], breakpoint_ttl=merged.get(at))
    return replace(prompt, pieces=tuple(pieces), layout=layout._replace(breakpoints=merged))


def merge_breakpoints(prompt: CachedPrompt, breakpoints: Sequence[CacheBreakpoint]) -> Mapping[int, Ttl]:
    """The TTLs by piece after `breakpoints` were written into `prompt`."""
    existing = prompt_layout(prompt).breakpoints
    if not breakpoints:
        return existing
    ttls_by_place = {cache_breakpoint.place: cache_breakpoint.ttl for cache_breakpoint in breakpoints}
    merged = {
        **existing,
        **{at: ttls_by_place[place] for place, at in find_pieces(prompt, ttls_by_place).items()},
    }
    return {at: ttl for at, ttl in sorted(merged.items()) if ttl is not None}


def _existing_breakpoints(prompt: CachedPrompt, rules: CacheRules) -> list[CandidateBreakpoint]:
    """The client's breakpoints, and the one that some providers add at the end."""
    existing = [
        CandidateBreakpoint(at, is_long_ttl(ttl, rules))
        for at, ttl in prompt_layout(prompt).breakpoints.items()
    ]
    last = len(prompt.pieces) - 1
    is_implicit = rules.caching is CachingMode.BOTH and not prompt.explicit_only
    return (
        [*existing, CandidateBreakpoint(last, False)]
        if is_implicit and not (existing and existing[-1].piece == last)
        else existing
    )


def _allowed_lifetimes(rules: CacheRules, options: PlacementOptions) -> tuple[bool, ...]:
    """Lifetimes that breakpoints may have: short (False), long (True) or both."""
    if options.ttl is not None:
        return (is_long_ttl(options.ttl, rules),)
    chosen = options.long_ttl and len(rules.ttls) > 1 and rules.caching is CachingMode.BREAKPOINTS
    return (False, True) if chosen else (False,)


def _find_candidates(prompt: CachedPrompt, costs: PlacementCosts, options: PlacementOptions) -> list[int]:
    """The positions worth comparing, in order.

    These are the ends of tools and system prompt, positions with known entries, the last position before
    thinking that will be dropped, the first new block, and the last blocks.
    """
    pieces, stable_pieces, system_end = prompt.pieces, costs.stable_pieces, costs.system_end
    long_enough = bisect_left(token_ends(prompt), costs.rules.minimum_tokens)
    history = max(system_end, long_enough)
    last = costs.last_readable
    candidates = {
        *_last_accepting(
            pieces, range(long_enough, min(costs.tools_end, stable_pieces)), 1 if options.cache_tools else 0
        ),
        *_last_accepting(
            pieces, range(max(costs.tools_end, long_enough), min(system_end, stable_pieces)), _SYSTEM_CANDIDATES
        ),
        *_first_accepting(pieces, range(max(history, last + 1), stable_pieces)),
        *_last_accepting(pieces, range(history, min(costs.thinking_start, stable_pieces)), 1),
        *_last_accepting(pieces, range(history, stable_pieces), 2),
    }
    if last < system_end:
        candidates.update(_last_turn_ends(pieces, range(history, stable_pieces)))
    live = (
        last,
        costs.last_long_entry,
        last if last < costs.thinking_start else costs.last_readable_before(costs.thinking_start),
    )
    candidates.update(at for at in live if history <= at < stable_pieces and pieces[at].accepts_breakpoint)
    return sorted(candidates)


def _last_accepting(pieces: Sequence[PromptPiece], among: range, limit: int) -> list[int]:
    return list(islice((at for at in reversed(among) if pieces[at].accepts_breakpoint), limit))


def _first_accepting(pieces: Sequence[PromptPiece], among: range) -> list[int]:
    return list(islice((at for at in among if pieces[at].accepts_breakpoint), 1))


def _last_turn_ends(pieces: Sequence[PromptPiece], among: range) -> Iterable[int]:
    accepting = (at for at in reversed(among[-_MAX_SEARCHED_PIECES:]) if pieces[at].accepts_breakpoint)
    return islice((at for at in islice(accepting, 1, None) if _is_turn_end(pieces, at)), 2)


def _is_turn_end(pieces: Sequence[PromptPiece], at: int) -> bool:
    place, after = pieces[at].place, pieces[at + 1].place
    return place is not None and after is not None and place.index != after.index


def _choose_cheapest(
    costs: PlacementCosts,
    existing: Sequence[CandidateBreakpoint],
    candidate_pieces: Sequence[int],
    free_breakpoints: int,
    lifetimes: Sequence[bool],
) -> tuple[CandidateBreakpoint, ...]:
    """The cheapest set that the provider accepts.

    The last long-TTL and the last short-TTL breakpoint decide what is written. Each such pair is tried as
    long as it can still be the cheapest. All other breakpoints precede these and cost nothing; they are added
    one by one, the best first. Of sets with the same cost, the first one wins.
    """
    chosen: tuple[CandidateBreakpoint, ...] = ()
    breakpoints = _add_in_order(costs, costs.no_breakpoints, existing)
    if breakpoints is None:  # the client's own order is invalid, so the provider will reject the request anyway
        return ()
    lowest_cost, first = costs.cost(breakpoints), -1
    lower_bound = costs.make_lower_bound(breakpoints, candidate_pieces)
    pairs = enumerate(_candidate_pairs(costs, existing, candidate_pieces, lifetimes))
    for bound, number, pair in sorted([(lower_bound.min_cost(pair), number, pair) for number, pair in pairs]):
        if bound > lowest_cost + _ROUNDING_TOKENS:
            break
        if (bound >= lowest_cost and number > first) or len(pair) > free_breakpoints:
            continue
        start = _add_in_order(costs, breakpoints, pair)
        if start is None:
            continue
        added, cost = _add_free_breakpoints(
            costs, start, pair, candidate_pieces, free_breakpoints, lifetimes, bound
        )
        if cost < lowest_cost or (cost == lowest_cost and number < first):
            chosen, lowest_cost, first = tuple(sorted(added)), cost, number
    return chosen


def _add_in_order(
    costs: PlacementCosts, breakpoints: BreakpointSet, candidates: Sequence[CandidateBreakpoint]
) -> BreakpointSet | None:
    """None if the provider would not accept their order."""
    for candidate in candidates:
        if not breakpoints.accepts(candidate):
            return None
        breakpoints = costs.with_breakpoint(breakpoints, candidate)
    return breakpoints


def _add_free_breakpoints(
    costs: PlacementCosts,
    breakpoints: BreakpointSet,
    pair: Sequence[CandidateBreakpoint],
    candidate_pieces: Sequence[int],
    free_breakpoints: int,
    lifetimes: Sequence[bool],
    bound: float,
) -> tuple[list[CandidateBreakpoint], float]:
    """Add breakpoints to a pair as long as that lowers the cost; return all of them and the cost.

    No addition lowers the cost below `bound`.
    """
    # Breakpoints up to the last long-TTL one must have the long TTL too.
    to_long = max((candidate.piece for candidate in pair if candidate.is_long), default=-1)
    is_chosen = len(lifetimes) > 1
    used_positions = {candidate.piece for candidate in pair}
    before = candidate_pieces[: bisect_right(candidate_pieces, costs.last_usable(breakpoints.last))]
    candidates = [
        CandidateBreakpoint(at, at <= to_long if is_chosen else lifetimes[0])
        for at in before
        if at not in used_positions
    ]
    added, cost = list(pair), costs.cost(breakpoints)
    while (
        len(added) < free_breakpoints
        and cost > bound
        and (paying := costs.find_cheaper(breakpoints, candidates, cost))
    ):
        cost, best = min(paying, key=itemgetter(0))
        added.append(best)
        breakpoints = costs.with_breakpoint(breakpoints, best)
        # A breakpoint that saves nothing alone saves even less beside another.
        candidates = [candidate for _, candidate in paying if candidate is not best]
    return added, cost


def _candidate_pairs(
    costs: PlacementCosts,
    existing: Sequence[CandidateBreakpoint],
    candidate_pieces: Sequence[int],
    lifetimes: Sequence[bool],
) -> Iterator[tuple[CandidateBreakpoint, ...]]:
    """No breakpoint; the last long-TTL one, the last short-TTL one, or both."""
    new = [at for at in candidate_pieces if at > costs.last_readable] or list(candidate_pieces[-1:])
    yield ()
    for at in new:
        yield from ((CandidateBreakpoint(at, is_long),) for is_long in lifetimes)
    if len(lifetimes) > 1:
        # What is read anyway is not written again with a longer TTL: a breakpoint there costs nothing.
        later = [(farther, -1 if existing else costs.read_position(farther)) for farther in new]
        for at in candidate_pieces:
            yield from (
                (CandidateBreakpoint(at, True), CandidateBreakpoint(later_at, False))
                for later_at, read_at in later
                if read_at < at < later_at
            )


def _make_breakpoint(
    prompt: CachedPrompt, costs: PlacementCosts, candidate: CandidateBreakpoint, rules: CacheRules
) -> CacheBreakpoint:
    piece = prompt.pieces[candidate.piece]
    assert piece.place is not None
    return CacheBreakpoint(
        place=piece.place,
        ttl=_breakpoint_ttl(prompt, candidate, rules),
        reason=_placement_reason(costs, candidate),
        saved_tokens=costs.ends[candidate.piece],
    )


def _breakpoint_ttl(prompt: CachedPrompt, candidate: CandidateBreakpoint, rules: CacheRules) -> Ttl:
    return rules.ttls[-1] if candidate.is_long else prompt.ttl or rules.ttls[0]


def _placement_reason(costs: PlacementCosts, candidate: CandidateBreakpoint) -> str:
    if candidate.piece < costs.tools_end:
        return "end of the tools, which stay cached if the rest changes"
    if candidate.piece < costs.system_end:
        return "end of the system prompt, which stays cached if the history changes"
    if costs.entry(candidate.piece) is not None:
        return "end of an existing cache entry, to read it and extend its lifetime"
    if candidate.is_long:
        return "gives the whole prefix the longer TTL, while only the new part is written"
    return "end of the history, which the next request continues"
