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

from foveate.cache.prompts import CachedPrompt, Piece, ends_of, landmarks_of, numbers_of
from foveate.cache.rhythm import Chances
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache
from foveate.cache.weighing import MarkAt, Marks, Sums, is_long, kept
from foveate.values import Mark, Place, Ttl

__all__ = [
    "DEFAULT_OPTIONS",
    "LayoutOptions",
    "borne_by",
    "kept",
    "layout",
    "marked",
    "marks_in",
    "weighing_rules",
    "without_long_ttl",
]

# So many of the last blocks of a system prompt are places to be weighed: what changes stands at its end.
_SYSTEM_PLACES = 2
# More tokens than sums of as many tokens as a prompt has can be off by.
_ROUNDING = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """What the user decides: a `ttl` for all marks (None: chosen), and whether tools are marked.

    `long_ttl` is off for providers on which long-lived marks are not wanted.
    """

    ttl: Ttl | None = None
    cache_tools: bool = True
    long_ttl: bool = True


DEFAULT_OPTIONS = LayoutOptions()


def without_long_ttl(options: LayoutOptions, rules: Rules) -> LayoutOptions:
    """Options for a provider that is not asked for long-lived breakpoints, even if the user sets the TTL."""
    ttl = rules.ttls[0] if is_long(options.ttl, rules) else options.ttl
    return replace(options, ttl=ttl, long_ttl=False)


def weighing_rules(rules: Rules, options: LayoutOptions) -> Rules:
    """The rules to choose places by. If the user sets the long TTL, its price does not speak against a place.

    A write for an hour costs more than the next request alone can save, so that no place would ever be chosen.
    """
    if options.ttl is None or not is_long(options.ttl, rules):
        return rules
    return replace(rules, write_prices={**rules.write_prices, options.ttl: rules.write_prices[rules.ttls[0]]})


def layout(
    prompt: CachedPrompt,
    rules: Rules,
    cache: Cache,
    chances: Chances,
    *,
    now: float,
    options: LayoutOptions = DEFAULT_OPTIONS,
    passing: Collection[Place] = (),
    reach: int | None = None,
) -> tuple[Mark, ...]:
    """The marks to add to `prompt`, sent at `now`, where `cache` is what is known to be kept.

    `passing` are the places of blocks that the next request will not repeat, such as the time. `reach` is how
    many pieces are worth a breakpoint; all of them if it is not given.
    """
    sums, best = _weighed(prompt, rules, cache, chances, now, options, passing, reach)
    return tuple(_mark(prompt, sums, place, rules) for place in best) if sums is not None else ()


def marks_in(
    prompt: CachedPrompt,
    rules: Rules,
    cache: Cache,
    chances: Chances,
    *,
    now: float,
    options: LayoutOptions = DEFAULT_OPTIONS,
    reach: int | None = None,
) -> dict[int, Ttl]:
    """The same marks by the pieces that they stand on, for who writes none into a request."""
    _, best = _weighed(prompt, rules, cache, chances, now, options, (), reach)
    return {place.at: _ttl(prompt, place, rules) for place in best}


def _weighed(
    prompt: CachedPrompt,
    rules: Rules,
    cache: Cache,
    chances: Chances,
    now: float,
    options: LayoutOptions,
    passing: Collection[Place],
    reach: int | None,
) -> tuple[Sums | None, tuple[MarkAt, ...]]:
    """The best places, in their order, and what they were weighed by; None where nothing was."""
    if rules.caching not in (Caching.MARKS, Caching.BOTH):
        return None, ()
    own = _own(prompt, rules)
    free = rules.most_marks - len(own) - prompt.double_marks
    if free <= 0 or not prompt.pieces or reach == 0:
        return None, ()
    sums = Sums(prompt, rules, cache, chances, now, passing, reach)
    taken = {place.at for place in own}
    candidates = [at for at in _candidates(prompt, sums, options) if at not in taken]
    return sums, _best(sums, own, candidates, free, _lifetimes(rules, options))


def marked(prompt: CachedPrompt, marks: Sequence[Mark]) -> CachedPrompt:
    """`prompt` as it is after `marks` were written into it."""
    borne = borne_by(prompt, marks)
    pieces, landmarks = list(prompt.pieces), landmarks_of(prompt)
    for at in borne.keys() | landmarks.marks.keys():
        pieces[at] = structs.replace(pieces[at], mark=borne.get(at))
    return replace(prompt, pieces=tuple(pieces), landmarks=landmarks._replace(marks=borne))


def borne_by(prompt: CachedPrompt, marks: Sequence[Mark]) -> Mapping[int, Ttl]:
    """The marks in `prompt` after `marks` were written into it, by the pieces that they stand on."""
    own = landmarks_of(prompt).marks
    if not marks:
        return own
    wanted = {mark.place: mark.ttl for mark in marks}
    borne = {**own, **{at: wanted[place] for place, at in numbers_of(prompt, wanted).items()}}
    return {at: ttl for at, ttl in sorted(borne.items()) if ttl is not None}


def _own(prompt: CachedPrompt, rules: Rules) -> list[MarkAt]:
    """The client's own marks, and the one that some providers put at the end by themselves."""
    own = [MarkAt(at, is_long(ttl, rules)) for at, ttl in landmarks_of(prompt).marks.items()]
    last = len(prompt.pieces) - 1
    is_implicit = rules.caching is Caching.BOTH and not prompt.only_marked
    return [*own, MarkAt(last, False)] if is_implicit and not (own and own[-1].at == last) else own


def _lifetimes(rules: Rules, options: LayoutOptions) -> tuple[bool, ...]:
    """Which of short-lived and long-lived marks may be set; where a request has one time for all, the short."""
    if options.ttl is not None:
        return (is_long(options.ttl, rules),)
    chosen = options.long_ttl and len(rules.ttls) > 1 and rules.caching is Caching.MARKS
    return (False, True) if chosen else (False,)


def _candidates(prompt: CachedPrompt, sums: Sums, options: LayoutOptions) -> list[int]:
    """The places worth weighing, in their order.

    They are the ends of tools and system, what is known to be kept, what stands before thinking that will be
    left out, the first new block, and the last ones.
    """
    pieces, stays, system_end = prompt.pieces, sums.stays, sums.system_end
    long_enough = bisect_left(ends_of(prompt), sums.rules.minimum_tokens)
    history = max(system_end, long_enough)
    last = sums.last_live
    found = {
        *_last_ones(pieces, range(long_enough, min(sums.tools_end, stays)), 1 if options.cache_tools else 0),
        *_last_ones(pieces, range(max(sums.tools_end, long_enough), min(system_end, stays)), _SYSTEM_PLACES),
        *_first_one(pieces, range(max(history, last + 1), stays)),
        *_last_ones(pieces, range(history, min(sums.firm, stays)), 1),
        *_last_ones(pieces, range(history, stays), 2),
    }
    if last < system_end:
        turns = [at for at in range(history, stays) if pieces[at].markable][:-1]
        found.update([at for at in turns if _is_turn_end(pieces, at)][-2:])
    live = last, sums.last_lasting, last if last < sums.firm else sums.live_before(sums.firm)
    found.update(at for at in live if history <= at < stays and pieces[at].markable)
    return sorted(found)


def _last_ones(pieces: Sequence[Piece], among: range, most: int) -> list[int]:
    """The last of these pieces that may be marked."""
    return list(islice((at for at in reversed(among) if pieces[at].markable), most))


def _first_one(pieces: Sequence[Piece], among: range) -> list[int]:
    return list(islice((at for at in among if pieces[at].markable), 1))


def _is_turn_end(pieces: Sequence[Piece], at: int) -> bool:
    here, after = pieces[at].place, pieces[at + 1].place
    return here is not None and after is not None and here.index != after.index


def _best(
    sums: Sums,
    own: Sequence[MarkAt],
    candidates: Sequence[int],
    free: int,
    lifetimes: Sequence[bool],
) -> tuple[MarkAt, ...]:
    """The cheapest set that the provider takes, of those that can be told apart by how far they write.

    What is written, and for how long, is decided by the last long-lived and the last short-lived mark: each
    such pair is tried, as long as it can still turn out the cheapest. All other marks stand before these and
    cost nothing, and are added one by one, the best first. Of sets that cost the same, it is the first one.
    """
    chosen: tuple[MarkAt, ...] = ()
    marks = _ordered(sums, sums.no_marks, own)
    if marks is None:  # by the client, so that the provider will refuse it as it is
        return ()
    least, first = sums.cost(marks), -1
    floor = sums.floor(marks, candidates)
    pairs = enumerate(_pairs(sums, own, candidates, lifetimes))
    for under, number, pair in sorted([(floor.under(pair), number, pair) for number, pair in pairs]):
        if under > least + _ROUNDING:
            break
        if (under >= least and number > first) or len(pair) > free:
            continue
        start = _ordered(sums, marks, pair)
        if start is None:
            continue
        added, cost = _with_free_marks(sums, start, pair, candidates, free, lifetimes, under)
        if cost < least or (cost == least and number < first):
            chosen, least, first = tuple(sorted(added)), cost, number
    return chosen


def _ordered(sums: Sums, marks: Marks, places: Sequence[MarkAt]) -> Marks | None:
    """The same marks and these, from the first on; None where the provider would not take them."""
    for place in places:
        if not marks.takes(place):
            return None
        marks = sums.with_mark(marks, place)
    return marks


def _with_free_marks(
    sums: Sums,
    marks: Marks,
    pair: Sequence[MarkAt],
    candidates: Sequence[int],
    free: int,
    lifetimes: Sequence[bool],
    under: float,
) -> tuple[list[MarkAt], float]:
    """A pair of which `marks` are the sums, and what is added to it as long as that pays; and what all cost.

    Nothing that is added makes it cost less than `under`.
    """
    # What writes nothing has to be long-lived up to the last mark that is.
    to_long = max((place.at for place in pair if place.is_long), default=-1)
    is_chosen = len(lifetimes) > 1
    taken = {place.at for place in pair}
    before = candidates[: bisect_right(candidates, sums.reach(marks.last))]
    places = [MarkAt(at, at <= to_long if is_chosen else lifetimes[0]) for at in before if at not in taken]
    added, cost = list(pair), sums.cost(marks)
    while len(added) < free and cost > under and (paying := sums.paying(marks, places, cost)):
        cost, best = min(paying, key=itemgetter(0))
        added.append(best)
        marks = sums.with_mark(marks, best)
        # What does not pay alone, pays even less beside another.
        places = [place for _, place in paying if place is not best]
    return added, cost


def _pairs(
    sums: Sums, own: Sequence[MarkAt], candidates: Sequence[int], lifetimes: Sequence[bool]
) -> Iterator[tuple[MarkAt, ...]]:
    """No mark, or the last long-lived one, the last short-lived one, or both."""
    new = [at for at in candidates if at > sums.last_live] or list(candidates[-1:])
    yield ()
    for at in new:
        yield from ((MarkAt(at, is_long),) for is_long in lifetimes)
    if len(lifetimes) > 1:
        # What is read anyway is not written for longer: there a mark is one of those that cost nothing.
        behind = [(farther, -1 if own else sums.found(farther)) for farther in new]
        for at in candidates:
            yield from ((MarkAt(at, True), MarkAt(far, False)) for far, read_at in behind if read_at < at < far)


def _mark(prompt: CachedPrompt, sums: Sums, place: MarkAt, rules: Rules) -> Mark:
    piece = prompt.pieces[place.at]
    assert piece.place is not None
    return Mark(
        place=piece.place,
        ttl=_ttl(prompt, place, rules),
        reason=_reason(sums, place),
        saved_tokens=sums.ends[place.at],
    )


def _ttl(prompt: CachedPrompt, place: MarkAt, rules: Rules) -> Ttl:
    return rules.ttls[-1] if place.is_long else prompt.ttl or rules.ttls[0]


def _reason(sums: Sums, place: MarkAt) -> str:
    if place.at < sums.tools_end:
        return "the tools, which stay when all else is rewritten"
    if place.at < sums.system_end:
        return "the system prompt, which stays when the history is rewritten"
    if sums.entry(place.at) is not None:
        return "where an earlier request left an entry, to find it and keep it"
    if place.is_long:
        return "keeps all before it for longer, for the price of what is new"
    return "the end of the history, which the next request continues"
