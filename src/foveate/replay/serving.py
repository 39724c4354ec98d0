"""Calls billed on their way back: a few marks, each looking for what was kept at so many positions before it.

The simulator does the same with a prompt of all pieces. Where marks depend on nothing but what is sent, no such
prompt has to be made: the places that matter are a few steps from the end, whatever stands before them.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from foveate.cache.prompts import goes_on
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache, Served
from foveate.replay.stretches import Front, Stretch
from foveate.values import Area, Ttl

_MODEL, _USER = "assistant", "user"
# So many messages are looked at for one that takes a mark: without an end, each call would cost its history.
_MOST_MESSAGES = 64


class Spot(NamedTuple):
    """A mark on a piece of a message, or of the front where there is no `stretch`."""

    stretch: Stretch | None
    number: int
    ttl: Ttl


def is_served_by_marks(rules: Rules) -> bool:
    """Whether what is kept and found is told by the marks of a request, and a few positions before each."""
    return rules.caching is Caching.NONE or (rules.caching is Caching.MARKS and rules.lookback_positions > 0)


def client_spots(front: Front, last: Stretch, *, front_ttl: Ttl, tail_ttl: Ttl) -> list[Spot]:
    """The marks that coding agents put: the ends of the system prompt, what the model and the user said last.

    In a message it is the block that was logged last, or the last that takes a mark.
    """
    found = [Spot(None, at, front_ttl) for at in front.marks]
    wanted = {_MODEL, _USER}
    for stretch in _back(last):
        role = _MODEL if stretch.role == _MODEL else _USER
        if role in wanted:
            wanted.remove(role)
            at = place_in(stretch)
            if at is not None:
                found.append(Spot(stretch, at, tail_ttl))
            if not wanted:
                break
    return found


def fixed_spots(front: Front, last: Stretch, ttl: Ttl) -> list[Spot]:
    """Where one would mark by hand: the end of the tools, of the system prompt, and the last block."""
    by_area: dict[Area, Spot] = {}
    for at, piece in enumerate(front.pieces):
        if piece.markable:
            by_area[piece.area] = Spot(None, at, ttl)
    for stretch in _back(last):
        at_last = next(
            (at for at in range(len(stretch.pieces) - 1, -1, -1) if stretch.pieces[at].markable), None
        )
        if at_last is not None:
            by_area[Area.MESSAGES] = Spot(stretch, at_last, ttl)
            break
    return list(by_area.values())


def _back(last: Stretch) -> Iterator[Stretch]:
    here: Stretch | None = last
    for _ in range(_MOST_MESSAGES):
        if here is None:
            return
        yield here
        here = here.before


def place_in(stretch: Stretch) -> int | None:
    """The piece of a message that a client marks; None where it takes no mark."""
    pieces = stretch.pieces
    latest = stretch.said.latest if stretch.said is not None else -1
    if 0 <= latest < len(pieces) and pieces[latest].markable:
        return latest
    return _last_markable(stretch)


def _last_markable(stretch: Stretch) -> int | None:
    for number in range(len(stretch.pieces) - 1, -1, -1):
        if stretch.pieces[number].markable:
            return number
    return None


def serve_spots(
    cache: Cache,
    front: Front,
    last: Stretch,
    spots: Iterable[Spot],
    rules: Rules,
    *,
    at: float,
    answers_at: float,
) -> Served:
    """What `Cache.serve_marked` says of all that is sent up to `last`, with these marks."""
    by_place = {} if rules.caching is Caching.NONE else {_place(spot): spot for spot in spots}
    ends = {place: _end(front, spot) for place, spot in by_place.items()}
    asked = sorted([place for place, end in ends.items() if end >= rules.minimum_tokens])
    hit = _hit(cache, front, [by_place[place] for place in asked], rules, at)
    places = asked
    # Also one at a mark that itself asks for nothing, since too little stands before it.
    if hit is not None and (here := _place(hit)) not in asked:
        by_place[here], ends[here] = hit, _end(front, hit)
        places = sorted((*asked, here))
    found = places.index(_place(hit)) if hit is not None else -1
    return cache.settled(
        [_key(front, by_place[place]) for place in places],
        [*(ends[place] for place in places), front.tokens + last.end],
        {places.index(place): by_place[place].ttl for place in asked},
        rules,
        hit=found,
        at=at,
        answers_at=answers_at,
    )


def _hit(cache: Cache, front: Front, asked: list[Spot], rules: Rules, at: float) -> Spot | None:
    """The farthest piece that something is found at, by a mark there or a few positions behind it."""
    for number in range(len(asked) - 1, -1, -1):
        hit = _found(cache, front, asked[number], asked[number - 1] if number else None, rules, at)
        if hit is not None:
            return hit
    return None


def _found(cache: Cache, front: Front, mark: Spot, stop: Spot | None, rules: Rules, at: float) -> Spot | None:
    """What a mark finds before the mark at `stop`, which looks from there on for itself."""
    kept, runs, left = cache.entries.found, rules.runs_are_one_position, rules.lookback_positions
    stretch, number, ttl = mark
    pieces = stretch.pieces if stretch is not None else front.pieces
    while True:
        entry = kept(front.key + stretch.keys[number] if stretch is not None else front.keys[number])
        if entry is not None and entry.reads(at):
            return Spot(stretch, number, ttl)
        behind = pieces[number]
        number -= 1
        while number < 0:
            if stretch is None:
                return None
            stretch = stretch.before
            pieces = stretch.pieces if stretch is not None else front.pieces
            number = len(pieces) - 1
        if stop is not None and stretch is stop.stretch and number == stop.number:
            return None
        if not (runs and goes_on(pieces[number], behind)):
            left -= 1
            if not left:
                return None


def _place(spot: Spot) -> tuple[int, int]:
    return (spot.stretch.depth if spot.stretch is not None else -1), spot.number


def _key(front: Front, spot: Spot) -> bytes:
    stretch, number, _ = spot
    return front.keys[number] if stretch is None else front.key + stretch.keys[number]


def _end(front: Front, spot: Spot) -> int:
    """How many tokens stand up to and with a piece."""
    stretch, number, _ = spot
    if stretch is None:
        return front.end(number)
    end = front.tokens + stretch.end
    behind = stretch.pieces[number + 1 :]
    return end - sum([piece.tokens for piece in behind]) if behind else end
