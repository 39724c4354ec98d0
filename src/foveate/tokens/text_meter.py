"""Counts of texts that are joined from parts of others, before they are joined.

A text is measured once, so that any part of it can be counted without tokenising it again. At a safe boundary,
the counts of the text before and after add up to the count of the whole (`tokenizers.tokenizer`). A measured
text knows some of these positions, and the cumulative counts up to each. A part of the text is then a few
characters before its first boundary, the difference of two counts, and a few characters after its last
boundary. Only those characters are tokenised again. The same holds for the text around each join, and that is
cached too.
"""

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import add, sub
from threading import Lock
from typing import NamedTuple, Protocol

import msgspec

from foveate.errors import BadOption
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.tokens.tokenizers.tokenizer import (
    AFTER_WORDS,
    AdditiveCounts,
    SafeBoundary,
    SegmentCounter,
    split_text,
)
from foveate.tokens.worker_threads import frequent_thread_switches

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
    """An approximation for tokenizers that cannot tell where tokens end."""
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


# Limits of the cache of measured texts.
_MAX_CACHED_CHARS = 16 * 1024 * 1024
_MAX_CACHED_TEXTS = 16 * 1024
# The text around a join is usually a word or two.
_MAX_CACHED_JOINS = 16 * 1024
_MAX_CACHED_JOIN_CHARS = 256


class TextSpan(NamedTuple):
    measured_text: MeasuredText
    start: int
    end: int


TextPart = str | TextSpan | MeasuredText | Segment
"""Part of a text to be counted."""


class TextMeter:
    """Measures texts, and counts texts joined from their parts. Caches both; thread-safe."""

    def __init__(self, counter: SegmentCounter) -> None:
        self._counter = counter
        self._measured_texts: OrderedDict[str, MeasuredText] = OrderedDict()
        self._cached_chars = 0
        self._join_counts: dict[str, AdditiveCounts] = {}
        self._lock = Lock()

    @property
    def has_safe_boundaries(self) -> bool:
        """Return whether counts of parts add up; otherwise only counts of whole texts are reliable."""
        return self._counter.safe_boundary is not None

    def measure(self, text: str) -> MeasuredText:
        return self.measure_many((text,))[0]

    def measure_many(self, texts: Sequence[str]) -> list[MeasuredText]:
        with self._lock:
            cache = self._measured_texts
            cached = list(map(cache.get, texts))
            for text, measured_text in zip(texts, cached, strict=True):
                if measured_text is not None:
                    cache.move_to_end(text)
        new = list(
            dict.fromkeys(
                text for text, measured_text in zip(texts, cached, strict=True) if measured_text is None
            )
        )
        if not new:
            return [measured_text for measured_text in cached if measured_text is not None]
        with frequent_thread_switches(sum(map(len, new))):
            fresh = dict(zip(new, measure_texts(new, self._counter), strict=True))
        self._store(fresh, cache)
        return [
            fresh[text] if measured_text is None else measured_text
            for text, measured_text in zip(texts, cached, strict=True)
        ]

    def _store(self, fresh: Mapping[str, MeasuredText], cache: OrderedDict[str, MeasuredText]) -> None:
        with self._lock:
            if cache is not self._measured_texts:
                return  # the cache was dropped during the measurement
            for text, measured_text in fresh.items():
                if text not in cache:
                    cache[text] = measured_text
                    self._cached_chars += len(text)
            while self._cached_chars > _MAX_CACHED_CHARS or len(cache) > _MAX_CACHED_TEXTS:
                self._cached_chars -= len(cache.popitem(last=False)[0])

    def clear(self) -> None:
        """Empty the caches, and do not store what is being measured now."""
        with self._lock:
            # New objects, so that counts under way keep theirs.
            self._measured_texts, self._cached_chars, self._join_counts = OrderedDict(), 0, {}

    def join(self, parts: Iterable[TextPart], *, approximate: bool = False) -> Segment:
        """Join `parts` into one segment. `approximate` also uses nearly safe boundaries, which is faster."""
        head: str | None = None
        open_texts: list[str] = []
        join_texts: list[str] = []
        counts: list[AdditiveCounts] = []
        for part in parts:
            if isinstance(part, str):
                open_texts.append(part)
                continue
            # Most parts are whole texts, and there can be thousands: avoid the call for those.
            segment = (
                part.whole
                if isinstance(part, MeasuredText) and not approximate
                else _to_segment(part, approximate=approximate)
            )
            open_texts.append(segment.head)
            if segment.counts is not None:
                if head is None:
                    head = "".join(open_texts)
                else:
                    join_texts.append("".join(open_texts))
                counts.append(segment.counts)
                open_texts = [segment.tail]
        if head is None:
            return Segment("".join(open_texts))
        return Segment(head, sum_additive_counts(counts + self._count_joins(join_texts)), "".join(open_texts))

    def join_closed(self, parts: Iterable[TextPart]) -> Segment:
        """Join `parts` into a segment for repeated use, with as little uncounted text as possible."""
        segment = self.join(parts)
        if not self.has_safe_boundaries or len(segment.head) + len(segment.tail) <= PIECE_CHARS:
            return segment
        head, tail = measure_texts((segment.head, segment.tail), self._counter)
        return self.join((head, tail) if segment.counts is None else (head, Segment("", segment.counts), tail))

    def count_joined(self, measured_texts: Sequence[MeasuredText], separator: str) -> TokenCount:
        """The most frequent case of `count`, and faster."""
        segments = [measured_text.whole for measured_text in measured_texts]
        counts = [segment.counts for segment in segments if segment.counts is not None]
        if not counts:
            return self.count([separator.join([segment.head for segment in segments])])
        if len(counts) < len(segments):
            return self.count(
                [part for measured_text in measured_texts for part in (separator, measured_text)][1:]
            )
        join_texts = [before.tail + separator + after.head for before, after in pairwise(segments)]
        ends = [end for end in (segments[0].head, segments[-1].tail) if end]
        return self._counter.to_token_count(sum_additive_counts(counts + self._count_joins(join_texts + ends)))

    def count(self, parts: Iterable[TextPart], *, approximate: bool = False) -> TokenCount:
        segment = self.join(parts, approximate=approximate)
        counts = self._count_joins([text for text in (segment.head, segment.tail) if text])
        if segment.counts is not None:
            counts.append(segment.counts)
        return self._counter.to_token_count(sum_additive_counts(counts)) if counts else ZERO_TOKENS

    def estimate_chars(self, span: TextSpan, limit_tokens: int, *, from_right: bool = False) -> int:
        """Estimate how many characters of `span` take `limit_tokens`, from one end. A start for a search."""
        positions, cumulative_counts = span.measured_text.approximate_positions
        first, last = bisect_left(positions, span.start), bisect_right(positions, span.end) - 1
        size = span.end - span.start
        limit_tokens = max(limit_tokens, 0)
        if first >= last:
            return size // 2
        origin = last if from_right else first

        def tokens(steps: int) -> int:
            position = last - steps if from_right else first + steps
            return (
                self._counter.to_token_count(
                    tuple(map(abs, map(sub, cumulative_counts[position], cumulative_counts[origin])))
                ).upper
                if steps
                else 0
            )

        full_steps = bisect_right(range(last - first + 1), limit_tokens, key=tokens) - 1
        position, next_position = (
            (last - full_steps, last - full_steps - 1)
            if from_right
            else (first + full_steps, first + full_steps + 1)
        )
        chars = abs(positions[position] - positions[origin])
        if full_steps < last - first:
            step_tokens = max(tokens(full_steps + 1) - tokens(full_steps), 1)
            chars += (
                abs(positions[next_position] - positions[position])
                * (limit_tokens - tokens(full_steps))
                // step_tokens
            )
        return min(max(chars, 0), size)

    def _count_joins(self, join_texts: Sequence[str]) -> list[AdditiveCounts]:
        join_counts = self._join_counts
        try:
            return [join_counts[text] for text in join_texts]
        except KeyError:
            new = [text for text in join_texts if text not in join_counts]
        fresh = dict(zip(new, self._counter.additive_counts(new), strict=True))
        result = [join_counts[text] if text in join_counts else fresh[text] for text in join_texts]
        if len(join_counts) + len(fresh) > _MAX_CACHED_JOINS:
            with self._lock:
                if join_counts is self._join_counts:
                    join_counts = self._join_counts = {}
        join_counts.update(
            (text, counts) for text, counts in fresh.items() if len(text) <= _MAX_CACHED_JOIN_CHARS
        )
        return result


def _to_segment(part: TextSpan | MeasuredText | Segment, *, approximate: bool) -> Segment:
    match part:
        case Segment():
            return part
        case MeasuredText():
            return (
                part.approximate_positions.segment(part.text, 0, len(part.text)) if approximate else part.whole
            )
        case TextSpan(measured_text, start, end):
            return (
                measured_text.approximate_positions if approximate else measured_text.safe_positions
            ).segment(measured_text.text, start, end)


class TextCounter(Protocol):
    """Counts texts. The minimum that `assemble` needs of a counter."""

    def text(self, text: str) -> TokenCount: ...


def text_meter_for(counter: TextCounter) -> TextMeter:
    """Return the text meter of `counter`, or a new one that counts only whole texts.

    Raises:
        BadOption: `counter` cannot count texts.
    """
    if not callable(getattr(counter, "text", None)):
        raise BadOption(
            f"a counter must have a method text(text) that returns a TokenCount; {counter!r} has none"
        )
    text_meter = getattr(counter, "text_meter", None)
    return text_meter if isinstance(text_meter, TextMeter) else TextMeter(_WholeTextCounter(counter))


class _WholeTextCounter:
    """Adapts a counter of which nothing is known, so that only counts of whole texts are reliable."""

    safe_boundary: None = None

    def __init__(self, counter: TextCounter) -> None:
        self._counter = counter

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        """Tokens, upper bound, and whether it is an estimate."""
        return [_to_additive_counts(self._counter.text(text)) for text in texts]

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        tokens, upper, estimated = counts
        return TokenCount(tokens, not estimated, max(upper, tokens))

    def count_steps(self, text: str, step_chars: int) -> list[tuple[int, AdditiveCounts]] | None:
        """Return None: a counter does not show where tokens end."""
        del text, step_chars
        return None


def _to_additive_counts(count: object) -> AdditiveCounts:
    if not isinstance(count, TokenCount):
        raise BadOption(f"a counter's text(text) must return a TokenCount, not {type(count).__name__}")
    return math.ceil(count.tokens), math.ceil(count.upper), int(not count.exact)
