"""A text that was measured once, so that the length of any part of it is known without measuring it again.

Seams are places where what is counted in two pieces adds up to what the whole has (`tokens.pieces`). A tape
remembers some of them, and the sum up to each. A part of the text is then a few characters before its first
seam, a difference of two sums, and a few characters after its last: only those are ever tokenised again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import add, sub
from typing import NamedTuple

from foveate.tokens.pieces import AFTER_WORDS, Seam, cut
from foveate.tokens.rendering import Counts, Scale

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


def measured(text: str, scale: Scale) -> Tape:
    """`text` measured; each of its pieces is counted once."""
    borders = _borders(text, scale.seam or AFTER_WORDS)
    pieces = [text[start:end] for start, end in pairwise(borders)]
    if scale.seam is None:
        seams = _marks([0, len(text)], scale.counts([text]))
        return Tape(text, seams, _marks(borders, scale.counts(pieces)), Run(text))
    counts = scale.counts([piece if len(piece) <= _LONG_CHARS else "" for piece in pieces])
    if all(len(piece) <= _LONG_CHARS for piece in pieces):
        seams = steps = _marks(borders, counts)
    else:
        seams, steps = _stepped(pieces, counts, scale)
    return Tape(text, seams, steps, seams.run(text, 0, len(text)))


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


def _stepped(pieces: Sequence[str], counts: Sequence[Counts], scale: Scale) -> tuple[Marks, Marks]:
    """Seams, and steps inside the pieces that are long; `counts` are of the others."""
    seams, steps, step_counts = [0], [0], list[Counts]()
    seam_counts = list(counts)
    for i, piece in enumerate(pieces):
        found: Sequence[tuple[int, Counts]] = [(len(piece), counts[i])]
        if len(piece) > _LONG_CHARS:
            told = scale.steps(piece, PIECE_CHARS)
            found = _apart(piece, scale) if told is None else told
            seam_counts[i] = scale.counts([piece])[0] if told is None else summed(count for _, count in told)
        steps += [seams[-1] + end for end, _ in found]
        step_counts += [count for _, count in found]
        seams.append(seams[-1] + len(piece))
    return _marks(seams, seam_counts), _marks(steps, step_counts)


def _apart(piece: str, scale: Scale) -> list[tuple[int, Counts]]:
    """Steps that are counted each by itself: the next best guide where tokens do not show where they stand."""
    ends = [*range(PIECE_CHARS, len(piece), PIECE_CHARS), len(piece)]
    return list(zip(ends, scale.counts([piece[i:j] for i, j in pairwise((0, *ends))]), strict=True))


def _marks(borders: Sequence[int], counts: Sequence[Counts]) -> Marks:
    nothing = tuple(0 for _ in counts[0]) if counts else ()
    return Marks(borders, list(accumulate(counts, _plus, initial=nothing)))


def _plus(one: Counts, other: Counts) -> Counts:
    return tuple(map(add, one, other))


def summed(counts: Iterable[Counts]) -> Counts:
    """The sum of counts, at least one."""
    return tuple(map(sum, zip(*counts, strict=True)))
