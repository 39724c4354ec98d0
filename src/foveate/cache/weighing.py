"""What a choice of cache marks costs: this request with it, less what the next one is expected to save."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from foveate.cache.entries import Entry
from foveate.cache.prompts import CachedPrompt, distance, ends_of, landmarks_of, numbers_of, prefixes
from foveate.cache.rhythm import Chances
from foveate.cache.rules import Rules
from foveate.cache.simulate import Cache
from foveate.values import Place, Ttl
from foveate.wire.begun import Begun

# By what the next request may repeat.
_Saved = tuple[float, float, float, float, float]


def kept(prompt: CachedPrompt, cache: Cache, now: float) -> dict[int, Entry]:
    """The entries that `prompt` could read at `now`, by the piece that they end with."""
    return cache.entries.readable(prefixes(prompt), now)


def is_long(ttl: Ttl | None, rules: Rules) -> bool:
    """Whether a mark asks for the longest time of several that there are."""
    return ttl is not None and len(rules.ttls) > 1 and ttl is rules.ttls[-1]


class MarkAt(NamedTuple):
    """A mark on the piece number `at`."""

    at: int
    is_long: bool


class Marks(NamedTuple):
    """A set of marks as far as its cost and its order depend on it; there are many such sets for each request.

    `read_at` is the piece up to which they read, `lasting` the last marked piece at which a long-lived entry is
    kept, and `saved` what they keep for each next request that may come.
    """

    read_at: int
    last: int
    last_long: int
    first_short: int
    lasting: int
    saved: _Saved

    def takes(self, place: MarkAt) -> bool:
        """Whether every long-lived mark then stands before every short-lived one, as providers want it."""
        at, is_long = place
        return at < self.first_short if is_long else at > self.last_long


class _Ends(dict[int, int]):
    """How many tokens there are up to and with a piece, of those that were asked for: a few, over and over.

    There are none up to -1, which is no piece.
    """

    def __init__(self, ends: Sequence[int]) -> None:
        super().__init__({-1: 0})
        self._all = ends

    def __missing__(self, at: int) -> int:
        end = self[at] = self._all[at]
        return end


class Sums:
    """What every choice of places is weighed by, computed once a request."""

    def __init__(
        self,
        prompt: CachedPrompt,
        rules: Rules,
        cache: Cache,
        chances: Chances,
        now: float,
        passing: Collection[Place],
        reach: int | None = None,
    ) -> None:
        self.rules = rules
        ends = ends_of(prompt)
        self.ends = _Ends(ends)
        self.total = ends[-1]
        self.tools_end, self.system_end, firm, _ = landmarks_of(prompt)
        keys, pieces = prefixes(prompt), prompt.pieces
        self._keys = keys.items if isinstance(keys, Begun) else keys
        self._entries, self._now = cache.entries, now
        # The last pieces up to which something can be read, and is kept for long.
        self.last_live = self.live_before(len(pieces))
        self.last_lasting = -1
        if self.last_live >= 0 and len(rules.ttls) > 1:
            self.last_lasting = cache.entries.last(self._keys, self.last_live + 1, now, rules.ttls[-1])
        self.stays = len(pieces)
        if passing:
            self.stays = min(numbers_of(prompt, passing).values(), default=len(pieces))
        if reach is not None:
            self.stays = min(self.stays, reach)
        self.firm = self.stays if firm is None else firm
        self._only_at_marks = prompt.only_marked
        self._pieces = pieces
        self.read_price = rules.read_price
        self.long_price = max(rules.write_prices.values(), default=1.0)
        self.short_price = min(rules.write_prices.values(), default=1.0)
        saving = self.short_price - rules.read_price
        self.late = chances.late * saving
        self.front_late = chances.front_late * saving
        self.front_end = self.ends[self.system_end - 1]
        thought = self.firm if rules.drops_thinking else self.stays
        last = next((at for at in range(self.stays - 1, -1, -1) if pieces[at].markable), 0)
        # What the next request may repeat: so many pieces from the first one on, and how likely.
        self._repeats = (
            (self.stays, chances.soon * saving),
            (last, chances.changed_end * saving),
            (thought, chances.ended_turn * saving),
            (self.system_end, chances.rewritten_history * saving),
            (self.tools_end, chances.rewritten_system * saving),
        )
        self._saving: dict[int, _Saved] = {}
        self._weights: dict[int, _Weights] = {}
        self.no_marks = Marks(-1, -1, -1, len(pieces), -1, self._saved(-1))

    def entry(self, at: int) -> Entry | None:
        """The entry that ends with piece `at`, if it can be read now."""
        entry = self._entries.found(self._keys[at])
        return entry if entry is not None and entry.reads(self._now) else None

    def reach(self, last: int) -> int:
        """The last piece that a mark can stand on where nothing is written behind the mark on piece `last`."""
        return max(last, self.last_live)

    def live_before(self, end: int) -> int:
        """The last of the pieces before `end` with an entry that can be read now, or -1."""
        return self._entries.last(self._keys, end, self._now)

    def lasts(self, at: int) -> bool:
        """Whether the entry that ends with piece `at` is kept for long."""
        if at > self.last_lasting:
            return False
        entry = self.entry(at)
        return entry is not None and is_long(entry.ttl, self.rules)

    def found(self, at: int) -> int:
        """The piece at which a mark on piece `at` finds an entry, or -1."""
        return self._weigh(at)[0]

    def _find(self, at: int) -> int:
        if self._only_at_marks:
            return -1 if self.entry(at) is None else at
        entry = self.last_live if at >= self.last_live else self.live_before(at + 1)
        if entry < 0:
            return -1
        reach = self.rules.lookback_positions  # no bound where none is known
        runs = self.rules.runs_are_one_position
        if not reach or distance(self._pieces, entry, at, runs_are_one=runs, most=reach) < reach:
            return entry
        return -1

    def _saved(self, at: int) -> _Saved:
        """What an entry that ends with piece `at` saves each next request that may come, as likely as it is."""
        found = self._saving.get(at)
        if found is None:
            end = self.ends[at]
            (a, v), (b, w), (c, x), (d, y), (e, z) = self._repeats
            found = self._saving[at] = (
                end * v if at < a else 0.0,
                end * w if at < b else 0.0,
                end * x if at < c else 0.0,
                end * y if at < d else 0.0,
                end * z if at < e else 0.0,
            )
        return found

    def with_mark(self, marks: Marks, place: MarkAt) -> Marks:
        """The same marks and one more."""
        at, is_long = place
        read_at, last, last_long, first_short, lasting, saved = marks
        reads, _, _, lasts, alone, _ = self._weigh(at)
        return Marks(
            reads if reads > read_at else read_at,
            at if at > last else last,
            at if is_long and at > last_long else last_long,
            at if not is_long and at < first_short else first_short,
            at if lasts and at > lasting else lasting,
            _most(saved, alone),
        )

    def paying(self, marks: Marks, places: Sequence[MarkAt], most: float) -> list[tuple[float, MarkAt]]:
        """Those of `places` with which the same marks and one more cost less than `most`, and what `cost` says.

        All of it is spelled out, since it is asked for dozens of times a request.
        """
        ends, weights, last_lasting = self.ends, self._weights, self.last_lasting
        read_price, long_price, short_price = self.read_price, self.long_price, self.short_price
        read_before, last, last_long, first_short, lasting_before, unread = marks
        as_read = _most(unread, self._saved(read_before)) if read_before >= 0 else unread
        total, last_end = self.total, ends[last]
        read_end, long_end, lasting_end = ends[read_before], ends[last_long], ends[lasting_before]
        late, front_late, front_end = self.late, self.front_late, self.front_end
        found = []
        for place in places:
            at, is_long = place
            if at >= first_short if is_long else at <= last_long:
                continue
            reads, new_read, end, lasts, alone, with_read = weights.get(at) or self._weigh(at)
            if reads > read_before:
                read_at, read, (a, b, c, d, e), (v, w, x, y, z) = reads, new_read, unread, with_read
            else:
                read_at, read, (a, b, c, d, e), (v, w, x, y, z) = read_before, read_end, as_read, alone
            lasting, kept_end = lasting_before, lasting_end
            if lasts and at > lasting:
                lasting, kept_end = at, end
            if lasting < read_at <= last_lasting and self.lasts(read_at):
                kept_end = read
            to_long = end if is_long and at > last_long else long_end
            kept = to_long
            if to_long <= read:
                to_long, kept = read, 0
            if kept_end > kept:
                kept = kept_end
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
                - kept * late
                - (kept if kept < front_end else front_end) * front_late
                - saved
            )
            if cost < most:
                found.append((cost, place))
        return found

    def _weigh(self, at: int) -> "_Weights":
        """What a mark on a piece brings, kept for the next set that it is tried in."""
        found = self._weights.get(at)
        if found is None:
            reads, alone = self._find(at), self._saved(at)
            with_read = _most(alone, self._saved(reads)) if 0 <= reads < at else alone
            found = reads, self.ends[reads], self.ends[at], self.lasts(at), alone, with_read
            self._weights[at] = found
        return found

    def floor(self, own: Marks, candidates: Sequence[int]) -> "Floor":
        """What no set of marks on `candidates`, beside those that are there already, costs less than."""
        weights = [self._weigh(at) for at in candidates]
        read_at = max([own.read_at, *[reads for reads, *_ in weights]])
        saved = _most(own.saved, self._saved(own.read_at))
        each = accumulate([with_read for *_, with_read in weights], _most, initial=saved)
        return Floor(self, own, candidates, read_at, [sum(saves) for saves in each])

    def cost(self, marks: Marks) -> float:
        """What a request with these marks costs, in uncached tokens, less what it lets the next one save."""
        ends = self.ends
        read_at, last, last_long, _, lasting, saved = marks
        if read_at >= 0:
            saved = _most(saved, self._saved(read_at))
            if read_at > lasting and self.lasts(read_at):
                lasting = read_at
        read = ends[read_at]
        to_long = max(read, ends[last_long])
        to_short = max(to_long, ends[last])
        kept = max(to_long if to_long > read else 0, ends[lasting])
        return (
            read * self.read_price
            + (to_long - read) * self.long_price
            + (to_short - to_long) * self.short_price
            + (self.total - to_short)
            - kept * self.late
            - min(kept, self.front_end) * self.front_late
            - sum(saved)
        )


# The piece that a mark reads up to, the ends of that and of its own, whether a long-lived entry is kept there,
# what it saves, and what with what it reads.
_Weights = tuple[int, int, int, bool, _Saved, _Saved]


class Floor:
    """A bound that says quickly which sets of marks need not be weighed.

    As much is read and saved as by any mark up to the set's own last, and as little written as these ask for.
    """

    def __init__(
        self, sums: Sums, own: Marks, candidates: Sequence[int], read_at: int, saved: Sequence[float]
    ) -> None:
        ends = sums.ends
        self._sums = sums
        self._own = own
        self._candidates = candidates
        self._read = ends[read_at]
        self._saved = saved
        self._lasting = ends[sums.last_lasting]
        # Of prices that are in another order than all known ones, nothing is said.
        self._holds = 0 <= sums.read_price <= 1 <= sums.short_price and sums.late >= 0 <= sums.front_late

    def under(self, places: Sequence[MarkAt]) -> float:
        """What a set with these marks costs at the least, whatever candidates before them are added to it."""
        if not self._holds:
            return -inf
        sums, read, last, last_long = self._sums, self._read, self._own.last, self._own.last_long
        for at, is_long in places:
            if at > last:
                last = at
            if is_long and at > last_long:
                last_long = at
        long_end = sums.ends[last_long]
        return (
            sums.total
            + read * (sums.read_price - sums.long_price)
            + max(read, long_end) * (sums.long_price - sums.short_price)
            + max(read, sums.ends[last]) * (sums.short_price - 1)
            - self._saved[bisect_right(self._candidates, sums.reach(last))]
            - max(long_end, self._lasting) * sums.late
            - min(max(long_end, self._lasting), sums.front_end) * sums.front_late
        )


def _most(one: _Saved, other: _Saved) -> _Saved:
    """The greater of each two; spelled out, since it is asked for hundreds of times a request."""
    a, b, c, d, e = one
    v, w, x, y, z = other
    return (
        a if a > v else v,
        b if b > w else w,
        c if c > x else x,
        d if d > y else y,
        e if e > z else z,
    )
