"""Where cache marks pay: at most four, the client's own among them, chosen by what they are expected to save.

What is kept now and what can be expected next are arguments, so that the same request in the same situation is
marked in the same way. Every set of places that a provider would take is weighed by one sum: what this request
costs with it, less what the next one is expected to save.

Two things make that sum worth doing. An entry that is written at a long-lived mark is kept for that time whole,
though only what is new in it is paid for; so a long-lived mark on the first small block of a new turn protects
the whole history for the price of that block. And a mark finds an entry only a few positions back, so where a
turn brings many blocks, one mark has to stand near the entry that is known to be there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

from foveate.cache.prompts import CachedPrompt, Piece, positions, prefixes
from foveate.cache.rhythm import Chances
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache, Entry
from foveate.values import Area, Mark, Ttl

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
) -> tuple[Mark, ...]:
    """The marks to add to `prompt`, sent at `now`, where `cache` is what is known to be kept."""
    if rules.caching not in (Caching.MARKS, Caching.BOTH):
        return ()
    own = _own(prompt, rules)
    free = rules.most_marks - len(own) - prompt.double_marks
    if free <= 0 or not prompt.pieces:
        return ()
    sums = _Sums(prompt, rules, cache, chances, now)
    taken = {place.at for place in own}
    candidates = [at for at in _candidates(prompt, sums, options) if at not in taken]
    best = _best(sums, own, candidates, free, _lifetimes(rules, options))
    return tuple(_mark(prompt, sums, place, rules) for place in best)


def _own(prompt: CachedPrompt, rules: Rules) -> list["_Place"]:
    """The client's own marks, and the one that some providers put at the end by themselves."""
    own = [_Place(at, _is_long(piece.mark, rules)) for at, piece in enumerate(prompt.pieces) if piece.mark]
    last = len(prompt.pieces) - 1
    is_implicit = rules.caching is Caching.BOTH and not prompt.only_marked
    return [*own, _Place(last, False)] if is_implicit and not (own and own[-1].at == last) else own


def marked(prompt: CachedPrompt, marks: Sequence[Mark]) -> CachedPrompt:
    """`prompt` as it is after `marks` were written into it."""
    wanted = {mark.place: mark.ttl for mark in marks}
    pieces = (
        replace(piece, mark=wanted[piece.place]) if piece.place in wanted else piece for piece in prompt.pieces
    )
    return replace(prompt, pieces=tuple(pieces))


class _Place(NamedTuple):
    """A mark on the piece number `at`."""

    at: int
    is_long: bool


class _Sums:
    """What every choice of places is weighed by, computed once a request."""

    def __init__(self, prompt: CachedPrompt, rules: Rules, cache: Cache, chances: Chances, now: float) -> None:
        self.rules = rules
        self.ends = list(accumulate(piece.tokens for piece in prompt.pieces))
        self.tools_end, self.system_end = _ends(prompt)
        self.live = kept(prompt, cache, now)
        self._positions = positions(prompt.pieces, runs_are_one=rules.runs_are_one_position)
        self._long_price = max(rules.write_prices.values(), default=1.0)
        self._short_price = min(rules.write_prices.values(), default=1.0)
        saving = self._short_price - rules.read_price
        self._soon = chances.soon * saving
        self._late = chances.late * saving
        self._rewritten_history = chances.rewritten_history * saving
        self._rewritten_system = chances.rewritten_system * saving
        self._found: dict[int, int] = {}

    def found(self, at: int) -> int:
        """The piece at which a mark on piece `at` finds an entry, or -1."""
        if at not in self._found:
            entry = max((entry for entry in self.live if entry <= at), default=-1)
            reaches = (
                entry >= 0 and self._positions[at] - self._positions[entry] < self.rules.lookback_positions
            )
            self._found[at] = entry if reaches else -1
        return self._found[at]

    def cost(self, places: Sequence[_Place]) -> float:
        """What a request with these marks costs, in uncached tokens, less what it lets the next one save."""
        ends, live = self.ends, self.live
        read_at = -1
        to_long = to_short = lasting = history = system = 0
        for place in places:  # in their order, so that the last of each kind reaches farthest
            at = place.at
            read_at = max(read_at, self.found(at))
            to_short = ends[at]
            if place.is_long:
                to_long = to_short
            if at in live and _is_long(live[at].ttl, self.rules):
                lasting = to_short
            if at < self.system_end:
                history = to_short
                if at < self.tools_end:
                    system = to_short
        read = 0
        if read_at >= 0:
            read = ends[read_at]
            if _is_long(live[read_at].ttl, self.rules):
                lasting = max(lasting, read)
        if to_long > read:
            lasting = max(lasting, to_long)
        to_long = max(to_long, read)
        to_short = max(to_short, to_long)
        return (
            read * self.rules.read_price
            + (to_long - read) * self._long_price
            + (to_short - to_long) * self._short_price
            + (ends[-1] - to_short)
            - to_short * self._soon
            - lasting * self._late
            - history * self._rewritten_history
            - system * self._rewritten_system
        )


def _ends(prompt: CachedPrompt) -> tuple[int, int]:
    """How many pieces the tools are, and the tools and the system prompt together."""
    tools = sum(piece.area is Area.TOOLS for piece in prompt.pieces)
    return tools, tools + sum(piece.area is Area.SYSTEM for piece in prompt.pieces)


def kept(prompt: CachedPrompt, cache: Cache, now: float) -> dict[int, Entry]:
    """The entries that `prompt` could read at `now`, by the piece that they end with."""
    if not cache.entries:
        return {}
    found = ((at, cache.entries.get(prefix)) for at, prefix in enumerate(prefixes(prompt)))
    return {at: entry for at, entry in found if entry and entry.readable_at <= now <= entry.expires_at}


def _is_long(ttl: Ttl | None, rules: Rules) -> bool:
    return ttl is not None and len(rules.ttls) > 1 and ttl is rules.ttls[-1]


def _lifetimes(rules: Rules, options: LayoutOptions) -> tuple[bool, ...]:
    """Which of short-lived and long-lived marks may be set; where a request has one time for all, the short."""
    if options.ttl is not None:
        return (_is_long(options.ttl, rules),)
    chosen = options.long_ttl and len(rules.ttls) > 1 and rules.caching is Caching.MARKS
    return (False, True) if chosen else (False,)


def _candidates(prompt: CachedPrompt, sums: _Sums, options: LayoutOptions) -> list[int]:
    """The places worth weighing: ends of tools and system, what is known to be kept, the new turn's ends."""
    pieces = prompt.pieces
    allowed = [
        at for at, piece in enumerate(pieces) if piece.markable and sums.ends[at] >= sums.rules.minimum_tokens
    ]
    tools = [at for at in allowed if at < sums.tools_end] if options.cache_tools else []
    system = [at for at in allowed if sums.tools_end <= at < sums.system_end]
    history = [at for at in allowed if at >= sums.system_end]
    last = max(sums.live, default=-1)
    lasting = max((at for at, entry in sums.live.items() if _is_long(entry.ttl, sums.rules)), default=-1)
    new = [at for at in history if at > last]
    turns = [at for at in history[:-1] if _is_turn_end(pieces, at)] if last < sums.system_end else []
    found = [*tools[-1:], *system[-_SYSTEM_PLACES:], *new[:1], *turns[-2:], *history[-1:]]
    return sorted({*found, *(at for at in (last, lasting) if at in history)})


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
    """The cheapest set that the provider takes; of equals the smaller one, then the earlier one."""
    chosen: tuple[_Place, ...] = ()
    least = sums.cost(own)
    for size in range(1, min(free, len(candidates)) + 1):
        for places in combinations(candidates, size):
            for long_marks in range(size + 1) if len(lifetimes) > 1 else [size * lifetimes[0]]:
                added = tuple(_Place(at, number < long_marks) for number, at in enumerate(places))
                together = sorted((*own, *added))
                if not _is_ordered(together):
                    continue
                cost = sums.cost(together)
                if cost < least:
                    chosen, least = added, cost
    return chosen


def _is_ordered(places: Sequence[_Place]) -> bool:
    """Whether every long-lived mark stands before every short-lived one, as providers want it."""
    return all(a.is_long or not b.is_long for a, b in pairwise(places))


def _mark(prompt: CachedPrompt, sums: _Sums, place: _Place, rules: Rules) -> Mark:
    piece = prompt.pieces[place.at]
    assert piece.place is not None
    return Mark(
        place=piece.place,
        ttl=rules.ttls[-1] if place.is_long else rules.ttls[0],
        reason=_reason(sums, place),
        saved_tokens=sums.ends[place.at],
    )


def _reason(sums: _Sums, place: _Place) -> str:
    if place.at < sums.tools_end:
        return "the tools, which stay when all else is rewritten"
    if place.at < sums.system_end:
        return "the system prompt, which stays when the history is rewritten"
    if place.at in sums.live:
        return "where the last request left an entry, to find it again"
    if place.is_long:
        return "keeps all before it for longer, for the price of what is new"
    return "the end of the history, which the next request continues"
