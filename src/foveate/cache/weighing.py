"""What a choice of cache marks costs: this request with it, less what the next one is expected to save."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from foveate.cache.entries import CacheEntry
from foveate.cache.prompts import (
    CachedPrompt,
    count_positions,
    find_pieces,
    prefix_keys,
    prompt_layout,
    token_ends,
)
from foveate.cache.rhythm import ReturnProbabilities
from foveate.cache.rules import CacheRules
from foveate.cache.simulate import SimulatedCache
from foveate.values import Place, Ttl
from foveate.wire.begun import PrefixList

# By what the next request may repeat.
_Savings = tuple[float, float, float, float, float]


def readable_entries(prompt: CachedPrompt, cache: SimulatedCache, now: float) -> dict[int, CacheEntry]:
    """The entries that `prompt` could read at `now`, by the piece that they end with."""
    return cache.entries.find_readable(prefix_keys(prompt), now)


def is_long_ttl(ttl: Ttl | None, rules: CacheRules) -> bool:
    """Whether a mark asks for the longest time of several that there are."""
    return ttl is not None and len(rules.ttls) > 1 and ttl is rules.ttls[-1]


class BreakpointAt(NamedTuple):
    """A mark on the piece number `at`."""

    at: int
    is_long: bool


class BreakpointSet(NamedTuple):
    """A set of marks as far as its cost and its order depend on it; there are many such sets for each request.

    `read_at` is the piece up to which they read, `lasting` the last marked piece at which a long-lived entry is
    kept, and `saved` what they keep for each next request that may come.
    """

    read_at: int
    last: int
    last_long: int
    first_short: int
    last_lasting: int
    saved: _Savings

    def accepts(self, place: BreakpointAt) -> bool:
        """Whether every long-lived mark then stands before every short-lived one, as providers want it."""
        at, is_long = place
        return at < self.first_short if is_long else at > self.last_long


class _LazyEnds(dict[int, int]):
    """How many tokens there are up to and with a piece, of those that were asked for: a few, over and over.

    There are none up to -1, which is no piece.
    """

    def __init__(self, ends: Sequence[int]) -> None:
        super().__init__({-1: 0})
        self._all = ends

    def __missing__(self, at: int) -> int:
        end = self[at] = self._all[at]
        return end


class PlacementCosts:
    """What every choice of places is weighed by, computed once a request."""

    def __init__(
        self,
        prompt: CachedPrompt,
        rules: CacheRules,
        cache: SimulatedCache,
        chances: ReturnProbabilities,
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
        self._keys = keys.items if isinstance(keys, PrefixList) else keys
        self._entries, self._now = cache.entries, now
        # The last pieces up to which something can be read, and is kept for long.
        self.last_live = self.last_readable_before(len(pieces))
        self.last_lasting = -1
        if self.last_live >= 0 and len(rules.ttls) > 1:
            self.last_lasting = cache.entries.last_readable(self._keys, self.last_live + 1, now, rules.ttls[-1])
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
        self.late_saving = chances.late * saving
        self.front_late_saving = chances.front_late * saving
        self.front_end = self.ends[self.system_end - 1]
        thinking_start = self.thinking_start if rules.drops_thinking else self.stable_pieces
        last = next((at for at in range(self.stable_pieces - 1, -1, -1) if pieces[at].accepts_breakpoint), 0)
        # What the next request may repeat: so many pieces from the first one on, and how likely.
        self._repeats = (
            (self.stable_pieces, chances.soon * saving),
            (last, chances.changed_end * saving),
            (thinking_start, chances.ended_turn * saving),
            (self.system_end, chances.rewritten_history * saving),
            (self.tools_end, chances.rewritten_system * saving),
        )
        self._savings_by_piece: dict[int, _Savings] = {}
        self._weights_by_piece: dict[int, _Weights] = {}
        self.no_breakpoints = BreakpointSet(-1, -1, -1, len(pieces), -1, self._expected_savings(-1))

    def entry(self, at: int) -> CacheEntry | None:
        """The entry that ends with piece `at`, if it can be read now."""
        entry = self._entries.find(self._keys[at])
        return entry if entry is not None and entry.is_readable(self._now) else None

    def last_usable(self, last: int) -> int:
        """The last piece that a mark can stand on where nothing is written behind the mark on piece `last`."""
        return max(last, self.last_live)

    def last_readable_before(self, end: int) -> int:
        """The last of the pieces before `end` with an entry that can be read now, or -1."""
        return self._entries.last_readable(self._keys, end, self._now)

    def is_lasting(self, at: int) -> bool:
        """Whether the entry that ends with piece `at` is kept for long."""
        if at > self.last_lasting:
            return False
        entry = self.entry(at)
        return entry is not None and is_long_ttl(entry.ttl, self.rules)

    def read_position(self, at: int) -> int:
        """The piece at which a mark on piece `at` finds an entry, or -1."""
        return self._weights_at(at)[0]

    def _find_read_position(self, at: int) -> int:
        if self._explicit_only:
            return -1 if self.entry(at) is None else at
        entry = self.last_live if at >= self.last_live else self.last_readable_before(at + 1)
        if entry < 0:
            return -1
        reach = self.rules.lookback_positions  # no bound where none is known
        runs = self.rules.runs_are_one_position
        if not reach or count_positions(self._pieces, entry, at, runs_are_one=runs, limit=reach) < reach:
            return entry
        return -1

    def _expected_savings(self, at: int) -> _Savings:
        """What an entry that ends with piece `at` saves each next request that may come, as likely as it is."""
        found = self._savings_by_piece.get(at)
        if found is None:
            end = self.ends[at]
            (a, v), (b, w), (c, x), (d, y), (e, z) = self._repeats
            found = self._savings_by_piece[at] = (
                end * v if at < a else 0.0,
                end * w if at < b else 0.0,
                end * x if at < c else 0.0,
                end * y if at < d else 0.0,
                end * z if at < e else 0.0,
            )
        return found

    def with_breakpoint(self, breakpoints: BreakpointSet, place: BreakpointAt) -> BreakpointSet:
        """The same marks and one more."""
        at, is_long = place
        read_at, last, last_long, first_short, lasting, saved = breakpoints
        reads, _, _, lasts, alone, _ = self._weights_at(at)
        return BreakpointSet(
            reads if reads > read_at else read_at,
            at if at > last else last,
            at if is_long and at > last_long else last_long,
            at if not is_long and at < first_short else first_short,
            at if lasts and at > lasting else lasting,
            _max_each(saved, alone),
        )

    def find_cheaper(
        self, breakpoints: BreakpointSet, places: Sequence[BreakpointAt], max_cost: float
    ) -> list[tuple[float, BreakpointAt]]:
        """Those of `places` with which the same marks and one more cost less than `most`, and what `cost` says.

        All of it is spelled out, since it is asked for dozens of times a request.
        """
        ends, weights, last_lasting = self.ends, self._weights_by_piece, self.last_lasting
        read_price, long_price, short_price = self.read_price, self.long_price, self.short_price
        read_before, last, last_long, first_short, lasting_before, unread = breakpoints
        as_read = _max_each(unread, self._expected_savings(read_before)) if read_before >= 0 else unread
        total, last_end = self.total, ends[last]
        read_end, long_end, lasting_end = ends[read_before], ends[last_long], ends[lasting_before]
        late, front_late, front_end = self.late_saving, self.front_late_saving, self.front_end
        found = []
        for place in places:
            at, is_long = place
            if at >= first_short if is_long else at <= last_long:
                continue
            reads, new_read, end, lasts, alone, with_read = weights.get(at) or self._weights_at(at)
            if reads > read_before:
                read_at, read, (a, b, c, d, e), (v, w, x, y, z) = reads, new_read, unread, with_read
            else:
                read_at, read, (a, b, c, d, e), (v, w, x, y, z) = read_before, read_end, as_read, alone
            lasting, kept_end = lasting_before, lasting_end
            if lasts and at > lasting:
                lasting, kept_end = at, end
            if lasting < read_at <= last_lasting and self.is_lasting(read_at):
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
                - kept_tokens * late
                - (kept_tokens if kept_tokens < front_end else front_end) * front_late
                - saved
            )
            if cost < max_cost:
                found.append((cost, place))
        return found

    def _weights_at(self, at: int) -> "_Weights":
        """What a mark on a piece brings, kept for the next set that it is tried in."""
        found = self._weights_by_piece.get(at)
        if found is None:
            reads, alone = self._find_read_position(at), self._expected_savings(at)
            with_read = _max_each(alone, self._expected_savings(reads)) if 0 <= reads < at else alone
            found = reads, self.ends[reads], self.ends[at], self.is_lasting(at), alone, with_read
            self._weights_by_piece[at] = found
        return found

    def make_lower_bound(self, existing: BreakpointSet, candidates: Sequence[int]) -> "CostLowerBound":
        """What no set of marks on `candidates`, beside those that are there already, costs less than."""
        weights = [self._weights_at(at) for at in candidates]
        read_at = max([existing.read_at, *[reads for reads, *_ in weights]])
        saved = _max_each(existing.saved, self._expected_savings(existing.read_at))
        each = accumulate([with_read for *_, with_read in weights], _max_each, initial=saved)
        return CostLowerBound(self, existing, candidates, read_at, [sum(saves) for saves in each])

    def cost(self, breakpoints: BreakpointSet) -> float:
        """What a request with these marks costs, in uncached tokens, less what it lets the next one save."""
        ends = self.ends
        read_at, last, last_long, _, lasting, saved = breakpoints
        if read_at >= 0:
            saved = _max_each(saved, self._expected_savings(read_at))
            if read_at > lasting and self.is_lasting(read_at):
                lasting = read_at
        read = ends[read_at]
        to_long = max(read, ends[last_long])
        to_short = max(to_long, ends[last])
        kept_tokens = max(to_long if to_long > read else 0, ends[lasting])
        return (
            read * self.read_price
            + (to_long - read) * self.long_price
            + (to_short - to_long) * self.short_price
            + (self.total - to_short)
            - kept_tokens * self.late_saving
            - min(kept_tokens, self.front_end) * self.front_late_saving
            - sum(saved)
        )


# The piece that a mark reads up to, the ends of that and of its own, whether a long-lived entry is kept there,
# what it saves, and what with what it reads.
_Weights = tuple[int, int, int, bool, _Savings, _Savings]


class CostLowerBound:
    """A bound that says quickly which sets of marks need not be weighed.

    As much is read and saved as by any mark up to the set's own last, and as little written as these ask for.
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
        self._lasting_end = ends[costs.last_lasting]
        # Of prices that are in another order than all known ones, nothing is said.
        self._is_valid = (
            0 <= costs.read_price <= 1 <= costs.short_price
            and costs.late_saving >= 0 <= costs.front_late_saving
        )

    def min_cost(self, places: Sequence[BreakpointAt]) -> float:
        """What a set with these marks costs at the least, whatever candidates before them are added to it."""
        if not self._is_valid:
            return -inf
        costs, read, last, last_long = (
            self._costs,
            self._max_read,
            self._existing.last,
            self._existing.last_long,
        )
        for at, is_long in places:
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
            - max(long_end, self._lasting_end) * costs.late_saving
            - min(max(long_end, self._lasting_end), costs.front_end) * costs.front_late_saving
        )


def _max_each(first: _Savings, second: _Savings) -> _Savings:
    """The greater of each two; spelled out, since it is asked for hundreds of times a request."""
    a, b, c, d, e = first
    v, w, x, y, z = second
    return (
        a if a > v else v,
        b if b > w else w,
        c if c > x else x,
        d if d > y else y,
        e if e > z else z,
    )
