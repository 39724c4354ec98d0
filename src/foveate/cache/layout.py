"""Where cache marks pay: at most four, the client's own among them, chosen by what they are expected to save.

What is kept now and what can be expected next are arguments, so that the same request in the same situation is
marked in the same way. A set of places is weighed by one sum: what this request costs with it, less what the
next one is expected to save, which may repeat all of it, all but the end, or only what the history stands on.

Two things make that sum worth doing. An entry that is written at a long-lived mark is kept for that time whole,
though only what is new in it is paid for; so a long-lived mark on the first small block of a new turn protects
the whole history for the price of that block. And a mark finds an entry only a few positions back, so where a
turn brings many blocks, one mark has to stand near the entry that is known to be there.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from foveate.cache.prompts import CachedPrompt, Piece, positions, prefixes
from foveate.cache.rhythm import Chances
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache, Entry
from foveate.values import Area, Mark, Place, Ttl

_THOUGHTS = frozenset(("thinking", "redacted_thinking"))
# So many of the last blocks of a system prompt are places to be weighed: what changes stands at its end.
_SYSTEM_PLACES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """What the user decides: a `ttl` for all marks (None: chosen), and whether tools are marked.

    `long_ttl` is off for providers on which long-lived marks are not wanted.
    """

    ttl: Ttl | None = None
    cache_tools: bool = True
    long_ttl: bool = True


DEFAULT_OPTIONS = LayoutOptions()


def layout(
    prompt: CachedPrompt,
    rules: Rules,
    cache: Cache,
    chances: Chances,
    *,
    now: float,
    options: LayoutOptions = DEFAULT_OPTIONS,
    passing: Collection[Place] = (),
) -> tuple[Mark, ...]:
    """The marks to add to `prompt`, sent at `now`, where `cache` is what is known to be kept.

    `passing` are the places of blocks that the next request will not repeat, such as the time.
    """
    if rules.caching not in (Caching.MARKS, Caching.BOTH):
        return ()
    own = _own(prompt, rules)
    free = rules.most_marks - len(own) - prompt.double_marks
    if free <= 0 or not prompt.pieces:
        return ()
    sums = _Sums(prompt, rules, cache, chances, now, passing)
    taken = {place.at for place in own}
    candidates = [at for at in _candidates(prompt, sums, options) if at not in taken]
    best = _best(sums, own, candidates, free, _lifetimes(rules, options))
    return tuple(_mark(prompt, sums, place, rules) for place in best)


def marked(prompt: CachedPrompt, marks: Sequence[Mark]) -> CachedPrompt:
    """`prompt` as it is after `marks` were written into it."""
    if not marks:
        return prompt
    wanted = {mark.place: mark.ttl for mark in marks}
    numbers = {mark.place.index for mark in marks}  # told apart at less than the whole place
    pieces = list(prompt.pieces)
    for at, piece in enumerate(pieces):
        place = piece.place
        if place is not None and place.index in numbers and place in wanted:
            pieces[at] = replace(piece, mark=wanted[place])
    return replace(prompt, pieces=tuple(pieces))


def kept(prompt: CachedPrompt, cache: Cache, now: float) -> dict[int, Entry]:
    """The entries that `prompt` could read at `now`, by the piece that they end with."""
    return cache.entries.readable(prefixes(prompt), now)


class _Place(NamedTuple):
    """A mark on the piece number `at`."""

    at: int
    is_long: bool


class _Sums:
    """What every choice of places is weighed by, computed once a request."""

    def __init__(
        self,
        prompt: CachedPrompt,
        rules: Rules,
        cache: Cache,
        chances: Chances,
        now: float,
        passing: Collection[Place],
    ) -> None:
        self.rules = rules
        self.ends = list(accumulate([piece.tokens for piece in prompt.pieces]))
        self.tools_end, self.system_end = _ends(prompt)
        self.live = kept(prompt, cache, now)
        self.lasting = {at for at, entry in self.live.items() if _is_long(entry.ttl, rules)}
        pieces = prompt.pieces
        self.stays = len(pieces)
        if passing:
            self.stays = next((at for at, piece in enumerate(pieces) if piece.place in passing), len(pieces))
        kinds = [piece.kind for piece in pieces]
        self.firm = min((kinds.index(kind) for kind in _THOUGHTS if kind in kinds), default=self.stays)
        self._only_at_marks = prompt.only_marked
        self._pieces = pieces
        self._positions: Sequence[int] = ()
        self._long_price = max(rules.write_prices.values(), default=1.0)
        self._short_price = min(rules.write_prices.values(), default=1.0)
        saving = self._short_price - rules.read_price
        self._late = chances.late * saving
        thought = self.firm if rules.drops_thinking else self.stays
        last = next((at for at in range(self.stays - 1, -1, -1) if pieces[at].markable), 0)
        # What the next request may repeat: so many pieces from the first one on, and how likely.
        self._repeats = [
            (self.stays, chances.soon * saving),
            (last, chances.changed_end * saving),
            (thought, chances.ended_turn * saving),
            (self.system_end, chances.rewritten_history * saving),
            (self.tools_end, chances.rewritten_system * saving),
        ]
        self._found: dict[int, int] = {}

    def found(self, at: int) -> int:
        """The piece at which a mark on piece `at` finds an entry, or -1."""
        if at not in self._found:
            self._found[at] = self._find(at)
        return self._found[at]

    def _find(self, at: int) -> int:
        if self._only_at_marks:
            return at if at in self.live else -1
        entry = max((entry for entry in self.live if entry <= at), default=-1)
        if entry < 0:
            return -1
        if not self._positions:
            self._positions = positions(self._pieces, runs_are_one=self.rules.runs_are_one_position)
        reach = self.rules.lookback_positions or len(self.ends)  # no bound where none is known
        return entry if self._positions[at] - self._positions[entry] < reach else -1

    def cost(self, places: Sequence[_Place]) -> float:
        """What a request with these marks costs, in uncached tokens, less what it lets the next one save."""
        ends, found = self.ends, self._found
        read_at = last_long = last = -1
        used = []
        for at, is_long in places:  # a handful; but there are many such sets for each request
            reads = found[at] if at in found else self.found(at)
            if reads > read_at:
                read_at = reads
            if is_long and at > last_long:
                last_long = at
            if at > last:
                last = at
            used.append(at)
        if read_at >= 0:
            used.append(read_at)
        used.sort(reverse=True)
        read = ends[read_at] if read_at >= 0 else 0
        to_long = max(read, ends[last_long]) if last_long >= 0 else read
        to_short = max(to_long, ends[last]) if last >= 0 else to_long
        kept = to_long if to_long > read else 0
        for at in used:
            if at in self.lasting:
                kept = max(kept, ends[at])
                break
        costs = (
            read * self.rules.read_price
            + (to_long - read) * self._long_price
            + (to_short - to_long) * self._short_price
            + (ends[-1] - to_short)
            - kept * self._late
        )
        for pieces, weight in self._repeats:
            for at in used:
                if at < pieces:
                    costs -= ends[at] * weight
                    break
        return costs


def _own(prompt: CachedPrompt, rules: Rules) -> list[_Place]:
    """The client's own marks, and the one that some providers put at the end by themselves."""
    own = [_Place(at, _is_long(piece.mark, rules)) for at, piece in enumerate(prompt.pieces) if piece.mark]
    last = len(prompt.pieces) - 1
    is_implicit = rules.caching is Caching.BOTH and not prompt.only_marked
    return [*own, _Place(last, False)] if is_implicit and not (own and own[-1].at == last) else own


def _ends(prompt: CachedPrompt) -> tuple[int, int]:
    """How many pieces the tools are, and the tools and the system prompt together."""
    tools = end = 0
    for piece in prompt.pieces:
        if piece.area is Area.MESSAGES:
            break
        tools += piece.area is Area.TOOLS
        end += 1
    return tools, end


def _is_long(ttl: Ttl | None, rules: Rules) -> bool:
    return ttl is not None and len(rules.ttls) > 1 and ttl is rules.ttls[-1]


def _lifetimes(rules: Rules, options: LayoutOptions) -> tuple[bool, ...]:
    """Which of short-lived and long-lived marks may be set; where a request has one time for all, the short."""
    if options.ttl is not None:
        return (_is_long(options.ttl, rules),)
    chosen = options.long_ttl and len(rules.ttls) > 1 and rules.caching is Caching.MARKS
    return (False, True) if chosen else (False,)


def _candidates(prompt: CachedPrompt, sums: _Sums, options: LayoutOptions) -> list[int]:
    """The places worth weighing, in their order.

    They are the ends of tools and system, what is known to be kept, what stands before thinking that will be
    left out, the first new block, and the last ones.
    """
    pieces = prompt.pieces
    long_enough = bisect_left(sums.ends, sums.rules.minimum_tokens)
    allowed = [at for at in range(long_enough, sums.stays) if pieces[at].markable]
    tools = [at for at in allowed if at < sums.tools_end] if options.cache_tools else []
    system = [at for at in allowed if sums.tools_end <= at < sums.system_end]
    history = [at for at in allowed if at >= sums.system_end]
    last = max(sums.live, default=-1)
    new = [at for at in history if at > last]
    firm = [at for at in history if at < sums.firm]
    live = [last, max(sums.lasting, default=-1), max((at for at in sums.live if at < sums.firm), default=-1)]
    turns = [at for at in history[:-1] if _is_turn_end(prompt.pieces, at)] if last < sums.system_end else []
    found = [*tools[-1:], *system[-_SYSTEM_PLACES:], *new[:1], *firm[-1:], *turns[-2:], *history[-2:]]
    return sorted({*found, *(at for at in live if at in history)})


def _is_turn_end(pieces: Sequence[Piece], at: int) -> bool:
    here, after = pieces[at].place, pieces[at + 1].place
    return here is not None and after is not None and here.index != after.index


def _best(
    sums: _Sums,
    own: Sequence[_Place],
    candidates: Sequence[int],
    free: int,
    lifetimes: Sequence[bool],
) -> tuple[_Place, ...]:
    """The cheapest set that the provider takes, of those that can be told apart by how far they write.

    What is written, and for how long, is decided by the last long-lived and the last short-lived mark: each
    such pair is tried. All other marks cost nothing, and are added one by one, the best first.
    """
    chosen: tuple[_Place, ...] = ()
    least = sums.cost(own)
    for pair in _pairs(sums, candidates, lifetimes):
        to_long = max((place.at for place in pair if place.is_long), default=-1)
        added = list(pair)
        cost = sums.cost((*own, *added))
        while len(added) < free:
            taken = {place.at for place in added}
            others = [_Place(at, _lives_long(at, to_long, lifetimes)) for at in candidates if at not in taken]
            sets = [(*added, other) for other in others if _is_ordered((*own, *added, other))]
            costs = [sums.cost((*own, *together)) for together in sets]
            if not costs or min(costs) >= cost:
                break
            cost = min(costs)
            added = list(sets[costs.index(cost)])
        if len(added) <= free and cost < least and _is_ordered((*own, *added)):
            chosen, least = tuple(sorted(added)), cost
    return chosen


def _lives_long(at: int, to_long: int, lifetimes: Sequence[bool]) -> bool:
    """What a mark that writes nothing has to be: long-lived up to the last one that is."""
    return at <= to_long if len(lifetimes) > 1 else lifetimes[0]


def _pairs(sums: _Sums, candidates: Sequence[int], lifetimes: Sequence[bool]) -> Iterator[tuple[_Place, ...]]:
    """No mark, or the last long-lived one, the last short-lived one, or both."""
    new = [at for at in candidates if at > max(sums.live, default=-1)] or list(candidates[-1:])
    yield ()
    for at in new:
        yield from ((_Place(at, is_long),) for is_long in lifetimes)
    if len(lifetimes) > 1:
        for at, farther in ((at, farther) for at in candidates for farther in new if farther > at):
            yield (_Place(at, True), _Place(farther, False))


def _is_ordered(places: Sequence[_Place]) -> bool:
    """Whether every long-lived mark stands before every short-lived one, as providers want it."""
    last_long = max([at for at, is_long in places if is_long], default=-1)
    return all(is_long or at > last_long for at, is_long in places)


def _mark(prompt: CachedPrompt, sums: _Sums, place: _Place, rules: Rules) -> Mark:
    piece = prompt.pieces[place.at]
    assert piece.place is not None
    return Mark(
        place=piece.place,
        ttl=rules.ttls[-1] if place.is_long else prompt.ttl or rules.ttls[0],
        reason=_reason(sums, place),
        saved_tokens=sums.ends[place.at],
    )


def _reason(sums: _Sums, place: _Place) -> str:
    if place.at < sums.tools_end:
        return "the tools, which stay when all else is rewritten"
    if place.at < sums.system_end:
        return "the system prompt, which stays when the history is rewritten"
    if place.at in sums.live:
        return "where an earlier request left an entry, to find it and keep it"
    if place.is_long:
        return "keeps all before it for longer, for the price of what is new"
    return "the end of the history, which the next request continues"
