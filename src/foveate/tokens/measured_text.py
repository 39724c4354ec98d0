"""Texts that are measured once, so that any part of them can be counted without tokenising it again.

At a safe boundary, the counts of the text before and after add up to the count of the whole
(`tokenizers.tokenizer`). A measured text knows some of these positions, and the cumulative counts up to
each. A part of the text is then a few characters before its first boundary, the difference of two counts, and a
few characters after its last boundary. Only those characters are tokenised again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import add, sub
from typing import NamedTuple

import msgspec

from foveate.model import ZERO_TOKENS, TokenCount
from foveate.tokens.tokenizers.tokenizer import (
    AFTER_WORDS,
    AdditiveCounts,
    SafeBoundary,
    SegmentCounter,
    split_text,
)

# Short enough that finding a position inside a piece is cheap, long enough that storing the counts is.
PIECE_CHARS = 1024
# Longer pieces without a safe boundary are counted in steps.
_MAX_PIECE_CHARS = 8 * 1024
# A text this short is tokenised again faster than its parts are looked up.
_MAX_TINY_CHARS = 96
# How far from its ends the first and last boundary of a text are searched. Most words are shorter.
_NEAR_CHARS, _FAR_CHARS = 64, 1024


class Segment(NamedTuple):
    """A part of a text: the characters before its first safe boundary, the counts up to the last one, and the
    rest.

    Without a boundary there are no counts, and `head` is the whole text.
    """

    head: str
    counts: AdditiveCounts | None = None
    tail: str = ""


EMPTY_SEGMENT = Segment("")


class CountedPositions(NamedTuple):
    """Positions in a text, its two ends included, and the cumulative counts up to each."""

    positions: Sequence[int]
    cumulative_counts: Sequence[AdditiveCounts]

    def segment(self, text: str, start: int, end: int) -> Segment:
        """Return the part of `text` from `start` to `end`, counted between the positions inside."""
        first = bisect_right(self.positions, start)
        last = bisect_left(self.positions, end) - 1
        if first > last:
            return Segment(text[start:end])
        counts = tuple(map(sub, self.cumulative_counts[last], self.cumulative_counts[first]))
        return Segment(text[start : self.positions[first]], counts, text[self.positions[last] : end])


class MeasuredText(msgspec.Struct, eq=False):
    """A measured text: `total` is its count, `whole` the text as a segment.

    A struct of msgspec, since prompts can have thousands of these.
    """

    text: str
    whole: Segment
    total: TokenCount
    piece_borders: Sequence[int]
    piece_counts: Sequence[AdditiveCounts]
    cached_safe_positions: CountedPositions | None = None
    cached_approximate_positions: CountedPositions | None = None

    @property
    def safe_positions(self) -> CountedPositions:
        """Safe boundaries. Computed on first use, since most texts are never cut."""
        if self.cached_safe_positions is None:
            self.cached_safe_positions = _accumulate_counts(self.piece_borders, self.piece_counts)
        return self.cached_safe_positions

    @property
    def approximate_positions(self) -> CountedPositions:
        """Safe boundaries, and if they are far apart, positions between them that are nearly safe."""
        return self.cached_approximate_positions or self.safe_positions


def measure_texts(texts: Sequence[str], counter: SegmentCounter) -> list[MeasuredText]:
    """Measure `texts`. All pieces are counted in one batch."""
    safe_boundary = counter.safe_boundary or AFTER_WORDS
    all_borders = [_find_piece_borders(text, safe_boundary) for text in texts]
    pieces = [
        text[start:end]
        for text, borders in zip(texts, all_borders, strict=True)
        for start, end in pairwise(borders)
    ]
    counts = counter.additive_counts([piece if len(piece) <= _MAX_PIECE_CHARS else "" for piece in pieces])
    measured_texts, offset = [], 0
    for text, borders in zip(texts, all_borders, strict=True):
        text_counts = counts[offset : offset + len(borders) - 1]
        offset += len(text_counts)
        if len(text) > _MAX_TINY_CHARS or counter.safe_boundary is None:
            measured_texts.append(_build_measured_text(text, borders, text_counts, counter))
        else:
            measured_texts.append(
                MeasuredText(text, Segment(text), counter.to_token_count(text_counts[0]), borders, text_counts)
                if text
                else _EMPTY_TEXT
            )
    return measured_texts


def _build_measured_text(
    text: str, borders: Sequence[int], counts: Sequence[AdditiveCounts], counter: SegmentCounter
) -> MeasuredText:
    """Build the measured text from the counts of its pieces. Pieces that were too long are counted now."""
    if not text:
        return _EMPTY_TEXT
    approximate_positions: CountedPositions | None = None
    if len(text) > _MAX_PIECE_CHARS and any(end - start > _MAX_PIECE_CHARS for start, end in pairwise(borders)):
        counts, approximate_positions = _count_long_pieces(text, borders, counts, counter)
    if counter.safe_boundary is None:
        approximate_positions = approximate_positions or _accumulate_counts(borders, counts)
        borders, counts = (0, len(text)), counter.additive_counts([text])
    total = counter.to_token_count(counts[0] if len(counts) == 1 else sum_additive_counts(counts))
    if len(counts) < 3:
        # One piece, or two pieces with one boundary between them.
        whole = (
            Segment(text)
            if len(counts) == 1
            else Segment(text[: borders[1]], _zero_counts(counts), text[borders[1] :])
        )
    else:
        inner = counts[1] if len(counts) == 3 else sum_additive_counts(counts[1:-1])
        whole = Segment(text[: borders[1]], inner, text[borders[-2] :])
    return MeasuredText(text, whole, total, borders, counts, cached_approximate_positions=approximate_positions)


def _find_piece_borders(text: str, safe_boundary: SafeBoundary) -> list[int]:
    """Find boundaries close to both ends, so that little stays uncounted there, and some in between."""
    length = len(text)
    if length <= _MAX_TINY_CHARS:
        return [0, length]
    first = safe_boundary.search(text, 0, _FAR_CHARS)
    if length <= PIECE_CHARS:
        if first is None:
            return [0, length]
        start, end = first.end(), _find_last_boundary(text, safe_boundary)
        return [0, start, end, length] if start < end else [0, start, length]
    borders = {0, length, *accumulate(map(len, split_text(text, PIECE_CHARS, safe_boundary)))}
    if first is not None:
        borders.add(first.end())
    end = _find_last_boundary(text, safe_boundary)
    if end:
        borders.add(end)
    return sorted(borders)


def _find_last_boundary(text: str, safe_boundary: SafeBoundary) -> int:
    """Return the last safe boundary, if it is not too far from the end, otherwise 0."""
    for search_chars in (_NEAR_CHARS, _FAR_CHARS):
        ends = [match.end() for match in safe_boundary.finditer(text, max(0, len(text) - search_chars))]
        if ends:
            return ends[-1]
    return 0


def _count_long_pieces(
    text: str, borders: Sequence[int], counts: Sequence[AdditiveCounts], counter: SegmentCounter
) -> tuple[Sequence[AdditiveCounts], CountedPositions]:
    """Count the pieces that are too long, in steps. `counts` has those of the other pieces."""
    steps, step_counts, all_counts = [0], list[AdditiveCounts](), list[AdditiveCounts]()
    for (start, end), count in zip(pairwise(borders), counts, strict=True):
        piece_steps: Sequence[tuple[int, AdditiveCounts]] = [(end - start, count)]
        if end - start > _MAX_PIECE_CHARS:
            piece = text[start:end]
            token_steps = counter.count_steps(piece, PIECE_CHARS)
            piece_steps = _count_fixed_steps(piece, counter) if token_steps is None else token_steps
            count = (
                counter.additive_counts([piece])[0]
                if token_steps is None
                else sum_additive_counts([count for _, count in token_steps])
            )
        steps += [start + end_in_piece for end_in_piece, _ in piece_steps]
        step_counts += [step_count for _, step_count in piece_steps]
        all_counts.append(count)
    return all_counts, _accumulate_counts(steps, step_counts)


def _count_fixed_steps(piece: str, counter: SegmentCounter) -> list[tuple[int, AdditiveCounts]]:
    """Count steps of fixed length. An approximation for tokenizers that cannot tell where tokens end."""
    ends = [*range(PIECE_CHARS, len(piece), PIECE_CHARS), len(piece)]
    return list(zip(ends, counter.additive_counts([piece[i:j] for i, j in pairwise((0, *ends))]), strict=True))


def _accumulate_counts(borders: Sequence[int], counts: Sequence[AdditiveCounts]) -> CountedPositions:
    return CountedPositions(borders, list(accumulate(counts, _add_counts, initial=_zero_counts(counts))))


def _zero_counts(counts: Sequence[AdditiveCounts]) -> AdditiveCounts:
    return (0,) * len(counts[0])


def _add_counts(left: AdditiveCounts, right: AdditiveCounts) -> AdditiveCounts:
    return tuple(map(add, left, right))


def sum_additive_counts(counts: Sequence[AdditiveCounts]) -> AdditiveCounts:
    return tuple(map(sum, zip(*counts, strict=True)))


_EMPTY_TEXT = MeasuredText("", EMPTY_SEGMENT, ZERO_TOKENS, (0,), ((),))
