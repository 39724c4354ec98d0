"""A text that was measured once, so that the length of any part of it is known without measuring it again.

Seams are places where what is counted in two pieces adds up to what the whole has (`tokens.pieces`). A tape
remembers some of them, and the sum up to each. A part of the text is then a few characters before its first
seam, a difference of two sums, and a few characters after its last: only those are ever tokenised again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice, pairwise
from operator import add, sub
from typing import NamedTuple

from foveate.tokens.pieces import AFTER_WORDS, Seam, cut
from foveate.tokens.rendering import Counts, Scale
from foveate.values import NOTHING as ZERO
from foveate.values import TokenCount

# Short enough that finding a place inside a piece costs little, long enough that remembering the piece does.
PIECE_CHARS = 1024
# A piece without a seam that is longer than this is gone through in steps.
_LONG_CHARS = 8 * 1024
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


class Tape(NamedTuple):
    """A measured text. `seams` can be relied on; where they are far apart, `steps` has some that nearly can."""

    text: str
    seams: Marks
    steps: Marks
    whole: Run
    """All of it, closed at its seams."""
    total: TokenCount


_EMPTY = Tape("", Marks((0,), ((),)), Marks((0,), ((),)), NOTHING, ZERO)


def measured(texts: Sequence[str], scale: Scale) -> list[Tape]:
    """`texts` measured; each of their pieces is counted once, all of them side by side."""
    all_borders = [_borders(text, scale.seam or AFTER_WORDS) for text in texts]
    pieces = [
        text[start:end]
        for text, borders in zip(texts, all_borders, strict=True)
        for start, end in pairwise(borders)
    ]
    counts = iter(scale.counts([piece if len(piece) <= _LONG_CHARS else "" for piece in pieces]))
    return [
        _tape(text, borders, list(islice(counts, len(borders) - 1)), scale)
        for text, borders in zip(texts, all_borders, strict=True)
    ]


def _tape(text: str, borders: Sequence[int], counts: Sequence[Counts], scale: Scale) -> Tape:
    """`text` from what was counted in its pieces; those that are too long were not, and are now."""
    if not text:
        return _EMPTY
    is_long = any(end - start > _LONG_CHARS for start, end in pairwise(borders))
    seams, steps = _stepped(text, borders, counts, scale) if is_long else 2 * (_marks(borders, counts),)
    if scale.seam is None:
        seams = _marks((0, len(text)), scale.counts([text]))
    return Tape(text, seams, steps, seams.run(text, 0, len(text)), scale.total(seams.sums[-1]))


def _borders(text: str, seam: Seam) -> list[int]:
    """Where `text` is cut: at a seam close to each end, so that little is open there, and some between."""
    borders = {0, len(text), *accumulate(map(len, cut(text, PIECE_CHARS, seam)))}
    first = seam.search(text, 0, _FAR_CHARS)
    if first is not None:
        borders.add(first.end())
    for near in (_NEAR_CHARS, _FAR_CHARS):
        found = [last.end() for last in seam.finditer(text, max(0, len(text) - near))]
        if found:
            borders.add(found[-1])
            break
    return sorted(borders)


def _stepped(text: str, borders: Sequence[int], counts: Sequence[Counts], scale: Scale) -> tuple[Marks, Marks]:
    """Seams, and steps inside the pieces that are long; `counts` are of the others."""
    steps, step_counts, seam_counts = [0], list[Counts](), list[Counts]()
    for (start, end), count in zip(pairwise(borders), counts, strict=True):
        found: Sequence[tuple[int, Counts]] = [(end - start, count)]
        if end - start > _LONG_CHARS:
            piece = text[start:end]
            told = scale.steps(piece, PIECE_CHARS)
            found = _apart(piece, scale) if told is None else told
            count = scale.counts([piece])[0] if told is None else summed(count for _, count in told)
        steps += [start + at for at, _ in found]
        step_counts += [each for _, each in found]
        seam_counts.append(count)
    return _marks(borders, seam_counts), _marks(steps, step_counts)


def _apart(piece: str, scale: Scale) -> list[tuple[int, Counts]]:
    """Steps that are counted each by itself: the next best guide where tokens do not show where they stand."""
    ends = [*range(PIECE_CHARS, len(piece), PIECE_CHARS), len(piece)]
    return list(zip(ends, scale.counts([piece[i:j] for i, j in pairwise((0, *ends))]), strict=True))


def _marks(borders: Sequence[int], counts: Sequence[Counts]) -> Marks:
    nothing = tuple(0 for _ in counts[0])
    return Marks(borders, list(accumulate(counts, _plus, initial=nothing)))


def _plus(one: Counts, other: Counts) -> Counts:
    return tuple(map(add, one, other))


def summed(counts: Iterable[Counts]) -> Counts:
    """The sum of counts, at least one."""
    return tuple(map(sum, zip(*counts, strict=True)))
