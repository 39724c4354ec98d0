"""Cutting: the largest piece of a section that fits, by what the section wants kept.

A text is measured once. Where the piece must end is then found by arithmetic on that measure, down to a few
words, and only those are tokenised again.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from foveate.budget.edges import Edges, Graphemes, Lines, Listed, Stretch, largest
from foveate.budget.sections import Keep
from foveate.tokens.gauge import Gauge, Part, Span
from foveate.tokens.tape import NOTHING, Run, Tape

TRUNCATED = "[...truncated]"
OLDER_TRUNCATED = "[...older entries truncated]"
LESS_RELEVANT_TRUNCATED = "[...lower relevance truncated]"

# Cuts fall between lines; but one longer than this is cut inside, since leaving it out would lose too much.
LONG_LINE_CHARS = 2000
# A longer word can be fewer tokens than its beginning, so a few more graphemes are tried.
_TRIED_BEYOND = 16
# So many tokens may go where a marker meets a text.
_MERGED_TOKENS = 2
# What was found by a guess is counted, and the guess corrected, so many times.
_CORRECTIONS = 6
# Less than this part of the room is left: good enough, where each count goes through all of the prompt.
_SMALL_PART = 256

Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """The place of a section in a prompt: how many tokens there are, and what stands around it.

    `around` is what stands before and after it, closed where that can be relied on; `nearly` the same, closed
    where it nearly can, which is all that a guess needs.
    """

    gauge: Gauge
    limit_tokens: int
    around: tuple[Run, Run] = (NOTHING, NOTHING)
    nearly: tuple[Run, Run] = (NOTHING, NOTHING)

    def left(self, parts: Parts, *, guess: bool = False) -> int:
        """How many tokens are left with `parts` in it; fewer than 0 where they do not fit."""
        before, after = self.nearly if guess else self.around
        return self.limit_tokens - self.gauge.count((before, *parts, after), guess=guess).upper


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a section can be cut from: a stretch of a measured text, and the items in it, if it has any.

    `items` are where each starts and ends, `ranking` the numbers of those that are not blank, the most relevant
    first.
    """

    tape: Tape
    keep: Keep
    start: int
    end: int
    items: Sequence[tuple[int, int]] | None = None
    ranking: Sequence[int] = ()


def cut(body: Body, room: Room) -> Parts | None:
    """The largest piece of `body` that fits, with its marker; None where nothing of it does."""
    match body.keep:
        case Keep.WHOLE:
            return None
        case Keep.HEAD:
            search = _OneEnd(body, room, TRUNCATED, from_right=False).found
        case Keep.NEWEST:
            search = _OneEnd(body, room, OLDER_TRUNCATED, from_right=True).found
        case Keep.RELEVANT if body.items and body.ranking:
            search = _Ranked(body, room, body.items).found
        case Keep.RELEVANT:
            search = _OneEnd(body, room, LESS_RELEVANT_TRUNCATED, from_right=False).found
        case Keep.ENDS:
            search = _BothEnds(body, room).found
    return _verified(search, room, sure=body.tape.steps is body.tape.seams)


def unmarked(body: Body, room: Room) -> Parts | None:
    """The largest piece that fits without a marker, where there is no room for one, of what is kept first."""
    if body.keep is Keep.RELEVANT and body.items and body.ranking:
        start, end = body.items[body.ranking[0]]
        body = replace(body, start=start, end=end, items=None)
    return _verified(_OneEnd(body, room, "", from_right=body.keep is Keep.NEWEST).found, room, sure=False)


Search = Callable[[int], Parts | None]
"""The largest piece that, by a guess, leaves so many tokens, which can be fewer than 0."""


def _verified(search: Search, room: Room, *, sure: bool) -> Parts | None:
    """What `search` finds, counted: where its guess was wrong it is told by how much, and looks again."""
    spare = 0 if sure else room.left((), guess=True) - room.left(())
    best: Parts | None = None
    best_left, tried = room.limit_tokens + 1, 0
    while (parts := search(spare)) is not None:
        left = room.left(parts)
        tried += 1
        if 0 <= left < best_left:
            best, best_left = parts, left
        if sure and left >= 0:
            break
        if tried >= _CORRECTIONS:
            if best is not None:
                break
            spare = 2 * abs(spare) + 1  # a guess that helps so little is not worth more counts
        elif left < 0:
            spare -= left
        elif left * _SMALL_PART <= room.limit_tokens:
            break
        else:
            spare -= left
    return best


class _OneEnd:
    """Keeps a head, or a tail."""

    def __init__(self, body: Body, room: Room, marker: str, *, from_right: bool) -> None:
        self._body = body
        self._room = room
        self._stretch = Stretch(body.tape.text, body.start, body.end, from_right)
        self._marker = f"\n{marker}" if marker else ""

    def found(self, spare: int) -> Parts | None:
        """The largest piece that leaves `spare` tokens."""
        room_tokens = self._room.left((self._marker,), guess=True) - spare
        if room_tokens < -_MERGED_TOKENS:
            return None

        def fits(size: int) -> bool:
            return self._room.left(self._parts(*self._stretch.kept(size)), guess=True) >= spare

        start, end = _largest(self._body, self._stretch, fits, self._room.gauge, room_tokens)
        return self._parts(start, end) if end > start else None

    def _parts(self, start: int, end: int) -> Parts:
        return (Span(self._body.tape, start, end), self._marker)


class _BothEnds:
    """Keeps a head and a tail, each of about half the room, with the marker between them."""

    def __init__(self, body: Body, room: Room) -> None:
        self._body = body
        self._room = room

    def found(self, spare: int) -> Parts | None:
        """The largest piece that leaves `spare` tokens."""
        body, room = self._body, self._room
        between = f"\n{TRUNCATED}\n"
        room_tokens = room.left((between,), guess=True) - spare
        if room_tokens < -_MERGED_TOKENS:
            return None
        left = Stretch(body.tape.text, body.start, body.end)

        def head_fits(size: int) -> bool:
            parts = (Span(body.tape, *left.kept(size)), between)
            return room.left(parts, guess=True) >= spare + room_tokens // 2

        head = Span(body.tape, *_largest(body, left, head_fits, room.gauge, room_tokens // 2))
        right = Stretch(body.tape.text, head.end, body.end, from_right=True)

        def tail_fits(size: int) -> bool:
            return room.left((head, between, Span(body.tape, *right.kept(size))), guess=True) >= spare

        tail_tokens = room.left((head, between), guess=True) - spare
        tail = Span(body.tape, *_largest(body, right, tail_fits, room.gauge, tail_tokens))
        if tail.end == tail.start:
            return (head, between.rstrip()) if head.end > head.start else None
        return (head, between, tail) if head.end > head.start else (between.lstrip(), tail)


class _Ranked:
    """Keeps the most relevant items, in the order in which they stand."""

    def __init__(self, body: Body, room: Room, items: Sequence[tuple[int, int]]) -> None:
        self._body = body
        self._room = room
        self._items = items

    def found(self, spare: int) -> Parts | None:
        """The most items that leave `spare` tokens; where not even one does, a head of the first."""
        total = len(self._body.ranking)
        room_tokens = self._room.left((f"\n{LESS_RELEVANT_TRUNCATED}",), guess=True) - spare
        if room_tokens < -_MERGED_TOKENS:
            return None
        sizes = [self._items[number][1] - self._items[number][0] for number in self._body.ranking]
        everything = Span(self._body.tape, self._body.start, self._body.end)
        guess = bisect_right(list(accumulate(sizes)), self._room.gauge.reach(everything, room_tokens))

        def fits(size: int) -> bool:
            return self._room.left(self._parts(size), guess=True) >= spare

        edges = Listed(range(total + 1))
        kept = total if fits(total) else largest(edges, fits, low=0, high=total, guess=guess)
        if kept:
            return self._parts(kept)
        start, end = self._items[self._body.ranking[0]]
        best = replace(self._body, start=start, end=end, items=None)
        return _OneEnd(best, self._room, LESS_RELEVANT_TRUNCATED, from_right=False).found(spare)

    def _parts(self, size: int) -> Parts:
        parts: list[Part] = []
        for first, last in _neighbours(sorted(self._body.ranking[:size])):
            parts += [Span(self._body.tape, self._items[first][0], self._items[last][1]), "\n"]
        return (*parts[:-1], f"\n{LESS_RELEVANT_TRUNCATED}")


def _neighbours(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Numbers that follow each other, as the first and the last of each row."""
    row: list[int] = []
    for number in numbers:
        if row and number != row[1] + 1:
            yield row[0], row[1]
            row = []
        row = [row[0] if row else number, number]
    if row:
        yield row[0], row[1]


def _levels(body: Body, stretch: Stretch) -> Iterator[Edges]:
    """Where a stretch is cut: between items, between lines, between graphemes, each only if need be."""
    if body.items is not None:
        sizes = {0, stretch.size}
        for start, end in body.items:
            # The blanks at the end of the last item are none of the stretch.
            if stretch.start <= start < stretch.end:
                sizes.add(stretch.end - start if stretch.from_right else min(end, stretch.end) - stretch.start)
        yield Listed(sorted(sizes))
    yield Lines(stretch)
    yield Graphemes(stretch)


def _largest(
    body: Body, stretch: Stretch, fits: Callable[[int], bool], gauge: Gauge, room_tokens: int
) -> tuple[int, int]:
    """Where the largest piece of `stretch` that fits starts and ends."""
    whole = Span(body.tape, stretch.start, stretch.end)
    guess = gauge.reach(whole, room_tokens, from_right=stretch.from_right)
    size = stretch.size if fits(stretch.size) else _descend(_levels(body, stretch), fits, stretch, guess)
    return stretch.kept(size)


def _descend(levels: Iterator[Edges], fits: Callable[[int], bool], stretch: Stretch, guess: int) -> int:
    """The largest size that fits: of whole items or lines where there is one, otherwise of a part."""
    low, high = 0, stretch.size
    for edges in levels:
        low = largest(edges, fits, low=low, high=high, guess=guess)
        if isinstance(edges, Graphemes):
            return _beyond(edges, fits, low, high)
        high = edges.beyond(low)
        start, end = stretch.kept(low)
        is_blank = start == end  # which is as good as nothing
        if not is_blank and not (isinstance(edges, Lines) and high - low > LONG_LINE_CHARS):
            break
    return low


def _beyond(edges: Edges, fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest size that fits of `low` and the few that follow it."""
    found = at = low
    for _ in range(_TRIED_BEYOND):
        at = edges.beyond(at)
        if at >= high:
            break
        if fits(at):
            found = at
    return found
