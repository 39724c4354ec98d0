"""A text that was measured once, so that the length of any part of it is known without measuring it again.

Seams are places where what is counted in two pieces adds up to what the whole has (`tokens.pieces`). A tape
remembers some of them, and the sum up to each. A part of the text is then a few characters before its first
seam, a difference of two sums, and a few characters after its last: only those are ever tokenised again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import add, sub
from typing import NamedTuple

import msgspec

from foveate.tokens.pieces import AFTER_WORDS, Seam, cut
from foveate.tokens.rendering import Counts, Scale
from foveate.values import NOTHING as ZERO
from foveate.values import TokenCount

# Short enough that finding a place inside a piece costs little, long enough that remembering the piece does.
PIECE_CHARS = 1024
# A piece without a seam that is longer than this is gone through in steps.
_LONG_CHARS = 8 * 1024
# In a text as short as this there is nothing to remember: it is tokenised sooner.
_TINY_CHARS = 96
# So far from its ends a text's first and last seam are looked for; most words end sooner.
_NEAR_CHARS, _FAR_CHARS = 64, 1024


class Run(NamedTuple):
    """A stretch of text: what is open on its left, what was counted between seams, what is open on its right.

    Without a seam in it there are no counts, and all of it is `head`.
    """

    head: str
    counts: Counts | None = None
    tail: str = ""


NOTHING = Run("")


class Marks(NamedTuple):
    """Places in a text, its two ends among them, and what was counted up to each."""

    places: Sequence[int]
    sums: Sequence[Counts]

    def run(self, text: str, start: int, end: int) -> Run:
        """The part of `text` from `start` to `end`, closed at the marks inside."""
        first = bisect_right(self.places, start)
        last = bisect_left(self.places, end) - 1
        if first > last:
            return Run(text[start:end])
        counts = tuple(map(sub, self.sums[last], self.sums[first]))
        return Run(text[start : self.places[first]], counts, text[self.places[last] : end])


class Tape(msgspec.Struct, eq=False):
    """A measured text: `total` is its count, and `whole` all of it, closed at its seams.

    Prompts can have thousands of them, so this is msgspec's, as are the values of `rendering`.
    """

    text: str
    whole: Run
    total: TokenCount
    borders: Sequence[int]
    counts: Sequence[Counts]
    known_seams: Marks | None = None
    known_steps: Marks | None = None

    @property
    def seams(self) -> Marks:
        """Places that can be relied on, summed up when first asked for: most texts are never cut."""
        if self.known_seams is None:
            self.known_seams = _marks(self.borders, self.counts)
        return self.known_seams

    @property
    def steps(self) -> Marks:
        """The same; but where seams are far apart, there are others between that nearly can be relied on."""
        return self.known_steps or self.seams


def measured(texts: Sequence[str], scale: Scale) -> list[Tape]:
    """`texts` measured; each of their pieces is counted once, all of them side by side."""
    seam = scale.seam or AFTER_WORDS
    all_borders = [_borders(text, seam) for text in texts]
    pieces = [
        text[start:end]
        for text, borders in zip(texts, all_borders, strict=True)
        for start, end in pairwise(borders)
    ]
    counts = scale.counts([piece if len(piece) <= _LONG_CHARS else "" for piece in pieces])
    tapes, at = [], 0
    for text, borders in zip(texts, all_borders, strict=True):
        own = counts[at : at + len(borders) - 1]
        at += len(own)
        if len(text) > _TINY_CHARS or scale.seam is None:
            tapes.append(_tape(text, borders, own, scale))
        else:
            tapes.append(Tape(text, Run(text), scale.total(own[0]), borders, own) if text else _EMPTY)
    return tapes


def _tape(text: str, borders: Sequence[int], counts: Sequence[Counts], scale: Scale) -> Tape:
    """`text` from what was counted in its pieces; those that are too long were not, and are now."""
    if not text:
        return _EMPTY
    steps: Marks | None = None
    if len(text) > _LONG_CHARS and any(end - start > _LONG_CHARS for start, end in pairwise(borders)):
        counts, steps = _stepped(text, borders, counts, scale)
    if scale.seam is None:
        steps = steps or _marks(borders, counts)
        borders, counts = (0, len(text)), scale.counts([text])
    total = scale.total(counts[0] if len(counts) == 1 else summed(counts))
    if len(counts) < 3:
        # One piece, or two that meet in the only seam.
        whole = Run(text) if len(counts) == 1 else Run(text[: borders[1]], _nothing(counts), text[borders[1] :])
    else:
        inner = counts[1] if len(counts) == 3 else summed(counts[1:-1])
        whole = Run(text[: borders[1]], inner, text[borders[-2] :])
    return Tape(text, whole, total, borders, counts, known_steps=steps)


def _borders(text: str, seam: Seam) -> list[int]:
    """Where `text` is cut: at a seam close to each end, so that little is open there, and some between."""
    size = len(text)
    if size <= _TINY_CHARS:
        return [0, size]
    first = seam.search(text, 0, _FAR_CHARS)
    if size <= PIECE_CHARS:
        if first is None:
            return [0, size]
        start, end = first.end(), _last_seam(text, seam)
        return [0, start, end, size] if start < end else [0, start, size]
    borders = {0, size, *accumulate(map(len, cut(text, PIECE_CHARS, seam)))}
    if first is not None:
        borders.add(first.end())
    end = _last_seam(text, seam)
    if end:
        borders.add(end)
    return sorted(borders)


def _last_seam(text: str, seam: Seam) -> int:
    """The last seam of a text, not too far from its end, or 0."""
    for near in (_NEAR_CHARS, _FAR_CHARS):
        found = [last.end() for last in seam.finditer(text, max(0, len(text) - near))]
        if found:
            return found[-1]
    return 0


def _stepped(
    text: str, borders: Sequence[int], counts: Sequence[Counts], scale: Scale
) -> tuple[Sequence[Counts], Marks]:
    """What is counted in all pieces, also the long ones, and steps inside those; `counts` are of the others."""
    steps, step_counts, all_counts = [0], list[Counts](), list[Counts]()
    for (start, end), count in zip(pairwise(borders), counts, strict=True):
        found: Sequence[tuple[int, Counts]] = [(end - start, count)]
        if end - start > _LONG_CHARS:
            piece = text[start:end]
            told = scale.steps(piece, PIECE_CHARS)
            found = _apart(piece, scale) if told is None else told
            count = scale.counts([piece])[0] if told is None else summed([count for _, count in told])
        steps += [start + at for at, _ in found]
        step_counts += [each for _, each in found]
        all_counts.append(count)
    return all_counts, _marks(steps, step_counts)


def _apart(piece: str, scale: Scale) -> list[tuple[int, Counts]]:
    """Steps that are counted each by itself: the next best guide where tokens do not show where they stand."""
    ends = [*range(PIECE_CHARS, len(piece), PIECE_CHARS), len(piece)]
    return list(zip(ends, scale.counts([piece[i:j] for i, j in pairwise((0, *ends))]), strict=True))


def _marks(borders: Sequence[int], counts: Sequence[Counts]) -> Marks:
    return Marks(borders, list(accumulate(counts, _plus, initial=_nothing(counts))))


def _nothing(counts: Sequence[Counts]) -> Counts:
    return (0,) * len(counts[0])


def _plus(one: Counts, other: Counts) -> Counts:
    return tuple(map(add, one, other))


def summed(counts: Sequence[Counts]) -> Counts:
    """The sum of counts, at least one."""
    return tuple(map(sum, zip(*counts, strict=True)))


_EMPTY = Tape("", NOTHING, ZERO, (0,), ((),))
