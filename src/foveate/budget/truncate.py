"""Truncate the text of a section: find the largest piece that fits, by what the section wants to keep.

A text is measured once. The end of the piece is then found by arithmetic on the counts, down to a few words,
and only those are tokenised again. Cuts fall after an item, after a line, or between graphemes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from foveate.budget import graphemes
from foveate.budget.sections import Keep
from foveate.tokens.text_meter import EMPTY_SEGMENT, MeasuredText, Segment, TextMeter, TextPart, TextSpan

TRUNCATED = "[...truncated]"
OLDER_TRUNCATED = "[...older entries truncated]"
LESS_RELEVANT_TRUNCATED = "[...lower relevance truncated]"
# Cuts fall between lines. But a line longer than this is cut inside, since dropping it would lose too much.
LONG_LINE_CHARS = 2000
# A longer word can have fewer tokens than its beginning, so a few more graphemes are tried.
_EXTRA_GRAPHEMES = 16
# Tokens that may disappear where a marker is joined to a text.
_MERGED_TOKENS = 2
# Maximum corrections of an approximate search.
_MAX_CORRECTIONS = 6
# If only this fraction of the room stays unused, the result is good enough, since each count covers the whole
# prompt.
_MIN_UNUSED_FRACTION = 256
# The search begins with steps of so many characters, a few words.
_FIRST_STEP_CHARS = 32
_WHITESPACE_CHUNK_CHARS = 256
TextParts = tuple[TextPart, ...]


@dataclass(frozen=True, slots=True)
class AvailableRoom:
    """The room for a section in a prompt: the limit, and the text around it.

    `around` is the text before and after, counted between safe boundaries; `approximate_around` the same
    between nearly safe ones, which is enough for a guess.
    """

    meter: TextMeter
    limit_tokens: int
    around: tuple[Segment, Segment] = (EMPTY_SEGMENT, EMPTY_SEGMENT)
    approximate_around: tuple[Segment, Segment] = (EMPTY_SEGMENT, EMPTY_SEGMENT)

    def remaining_tokens(self, parts: TextParts, *, approximate: bool = False) -> int:
        """Tokens that remain with `parts` in place; negative if they do not fit."""
        before, after = self.approximate_around if approximate else self.around
        return self.limit_tokens - self.meter.count((before, *parts, after), approximate=approximate).upper


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatableText:
    """Text that can be truncated: a range of a measured text, and its items if it has any.

    `items` are their starts and ends, `ranking` the indexes of those that are not blank, the most relevant
    first.
    """

    measured_text: MeasuredText
    keep: Keep
    start: int
    end: int
    items: Sequence[tuple[int, int]] | None = None
    ranking: Sequence[int] = ()


def truncate(body: TruncatableText, room: AvailableRoom) -> TextParts | None:
    """Return the largest piece of `body` that fits, with its marker. None if nothing fits."""
    match body.keep:
        case Keep.WHOLE:
            return None
        case Keep.HEAD:
            search = _OneEndSearch(body, room, TRUNCATED, from_right=False).find
        case Keep.NEWEST:
            search = _OneEndSearch(body, room, OLDER_TRUNCATED, from_right=True).find
        case Keep.RELEVANT if body.items and body.ranking:
            search = _RankedItemsSearch(body, room, body.items).find
        case Keep.RELEVANT:
            search = _OneEndSearch(body, room, LESS_RELEVANT_TRUNCATED, from_right=False).find
        case Keep.ENDS:
            search = _BothEndsSearch(body, room).find
    return _search_exactly(
        search, room, is_exact=body.measured_text.approximate_positions is body.measured_text.safe_positions
    )


def truncate_without_marker(body: TruncatableText, room: AvailableRoom) -> TextParts | None:
    if body.keep is Keep.RELEVANT and body.items and body.ranking:
        start, end = body.items[body.ranking[0]]
        body = replace(body, start=start, end=end, items=None)
    return _search_exactly(
        _OneEndSearch(body, room, "", from_right=body.keep is Keep.NEWEST).find, room, is_exact=False
    )


PieceSearch = Callable[[int], TextParts | None]
"""Finds the largest piece that approximately leaves so many tokens; a negative number allows an excess."""


def _search_exactly(search: PieceSearch, room: AvailableRoom, *, is_exact: bool) -> TextParts | None:
    """Count what `search` finds, and repeat it with the error of its approximation."""
    spare_tokens = 0 if is_exact else room.remaining_tokens((), approximate=True) - room.remaining_tokens(())
    best: TextParts | None = None
    best_remaining, attempts = room.limit_tokens + 1, 0
    while (parts := search(spare_tokens)) is not None:
        remaining = room.remaining_tokens(parts)
        attempts += 1
        if 0 <= remaining < best_remaining:
            best, best_remaining = parts, remaining
        if is_exact and remaining >= 0:
            break
        if attempts >= _MAX_CORRECTIONS:
            if best is not None:
                break
            spare_tokens = 2 * abs(spare_tokens) + 1  # the approximation is too bad for more corrections
        elif remaining < 0:
            spare_tokens -= remaining
        elif remaining * _MIN_UNUSED_FRACTION <= room.limit_tokens:
            break
        else:
            spare_tokens -= remaining
    return best


class _OneEndSearch:
    def __init__(self, body: TruncatableText, room: AvailableRoom, marker: str, *, from_right: bool) -> None:
        self._body = body
        self._room = room
        self._text_range = TextRange(body.measured_text.text, body.start, body.end, from_right)
        self._marker = f"\n{marker}" if marker else ""

    def find(self, spare_tokens: int) -> TextParts | None:
        room_tokens = self._room.remaining_tokens((self._marker,), approximate=True) - spare_tokens
        if room_tokens < -_MERGED_TOKENS:
            return None

        def fits(size: int) -> bool:
            return (
                self._room.remaining_tokens(self._parts(*self._text_range.piece(size)), approximate=True)
                >= spare_tokens
            )

        start, end = _find_largest_piece(self._body, self._text_range, fits, self._room.meter, room_tokens)
        return self._parts(start, end) if end > start else None

    def _parts(self, start: int, end: int) -> TextParts:
        return (TextSpan(self._body.measured_text, start, end), self._marker)


class _BothEndsSearch:
    def __init__(self, body: TruncatableText, room: AvailableRoom) -> None:
        self._body = body
        self._room = room

    def find(self, spare_tokens: int) -> TextParts | None:
        body, room = self._body, self._room
        marker_text = f"\n{TRUNCATED}\n"
        room_tokens = room.remaining_tokens((marker_text,), approximate=True) - spare_tokens
        if room_tokens < -_MERGED_TOKENS:
            return None
        head_range = TextRange(body.measured_text.text, body.start, body.end)

        def head_fits(size: int) -> bool:
            parts = (TextSpan(body.measured_text, *head_range.piece(size)), marker_text)
            return room.remaining_tokens(parts, approximate=True) >= spare_tokens + room_tokens // 2

        head = TextSpan(
            body.measured_text, *_find_largest_piece(body, head_range, head_fits, room.meter, room_tokens // 2)
        )
        tail_range = TextRange(body.measured_text.text, head.end, body.end, from_right=True)

        def tail_fits(size: int) -> bool:
            return (
                room.remaining_tokens(
                    (head, marker_text, TextSpan(body.measured_text, *tail_range.piece(size))), approximate=True
                )
                >= spare_tokens
            )

        tail_tokens = room.remaining_tokens((head, marker_text), approximate=True) - spare_tokens
        tail = TextSpan(
            body.measured_text, *_find_largest_piece(body, tail_range, tail_fits, room.meter, tail_tokens)
        )
        if tail.end == tail.start:
            return (head, marker_text.rstrip()) if head.end > head.start else None
        return (head, marker_text, tail) if head.end > head.start else (marker_text.lstrip(), tail)


class _RankedItemsSearch:
    """Keeps the most relevant items, in their order."""

    def __init__(self, body: TruncatableText, room: AvailableRoom, items: Sequence[tuple[int, int]]) -> None:
        self._body = body
        self._room = room
        self._items = items

    def find(self, spare_tokens: int) -> TextParts | None:
        """Return the most items that leave `spare_tokens`; if none fits, the head of the most relevant one."""
        total = len(self._body.ranking)
        room_tokens = (
            self._room.remaining_tokens((f"\n{LESS_RELEVANT_TRUNCATED}",), approximate=True) - spare_tokens
        )
        if room_tokens < -_MERGED_TOKENS:
            return None
        sizes = [self._items[number][1] - self._items[number][0] for number in self._body.ranking]
        whole_text = TextSpan(self._body.measured_text, self._body.start, self._body.end)
        guess = bisect_right(list(accumulate(sizes)), self._room.meter.estimate_chars(whole_text, room_tokens))

        def fits(size: int) -> bool:
            return self._room.remaining_tokens(self._parts(size), approximate=True) >= spare_tokens

        item_counts = ListedSizes(range(total + 1))
        item_count = total if fits(total) else search_largest(item_counts, fits, low=0, high=total, guess=guess)
        if item_count:
            return self._parts(item_count)
        start, end = self._items[self._body.ranking[0]]
        best = replace(self._body, start=start, end=end, items=None)
        return _OneEndSearch(best, self._room, LESS_RELEVANT_TRUNCATED, from_right=False).find(spare_tokens)

    def _parts(self, size: int) -> TextParts:
        parts: list[TextPart] = []
        for first, last in _iter_consecutive(sorted(self._body.ranking[:size])):
            parts += [TextSpan(self._body.measured_text, self._items[first][0], self._items[last][1]), "\n"]
        return (*parts[:-1], f"\n{LESS_RELEVANT_TRUNCATED}")


def _iter_consecutive(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    row: list[int] = []
    for number in numbers:
        if row and number != row[1] + 1:
            yield row[0], row[1]
            row = []
        row = [row[0] if row else number, number]
    if row:
        yield row[0], row[1]


class CutSizes(Protocol):
    """Sizes in characters that a piece may have: 0, the whole range, and where something ends in between."""

    def round_down(self, size: int) -> int:
        """The largest size up to `size`."""

    def next_after(self, size: int) -> int:
        """The smallest size above `size`, or the whole range."""


@dataclass(frozen=True, slots=True)
class TextRange:
    text: str
    start: int
    end: int
    from_right: bool = False

    @property
    def size(self) -> int:
        return self.end - self.start

    def piece(self, size: int) -> tuple[int, int]:
        """Start and end of the piece of that size, without whitespace at its end."""
        start, end = (self.end - size, self.end) if self.from_right else (self.start, self.start + size)
        return start, _strip_end(self.text, start, end)


def _strip_end(text: str, start: int, end: int) -> int:
    """Return where trailing whitespace begins. Searched from the end, since a piece can be megabytes."""
    while start < end:
        piece = text[max(start, end - _WHITESPACE_CHUNK_CHARS) : end]
        if word := piece.rstrip():
            return end - len(piece) + len(word)
        end -= len(piece)
    return start


@dataclass(frozen=True, slots=True)
class LineSizes:
    text_range: TextRange

    def round_down(self, size: int) -> int:
        text, start, end = self.text_range.text, self.text_range.start, self.text_range.end
        if size >= self.text_range.size:
            return self.text_range.size
        if self.text_range.from_right:
            newline = text.find("\n", end - size - 1, end)
            return 0 if newline < 0 else end - (newline + 1)
        return max(text.rfind("\n", start, start + size + 1) - start, 0)

    def next_after(self, size: int) -> int:
        text, start, end = self.text_range.text, self.text_range.start, self.text_range.end
        if self.text_range.from_right:
            newline = text.rfind("\n", start, max(end - size - 1, start))
            return self.text_range.size if newline < 0 else end - (newline + 1)
        newline = text.find("\n", start + size + 1, end)
        return self.text_range.size if newline < 0 else newline - start


@dataclass(frozen=True, slots=True)
class GraphemeSizes:
    text_range: TextRange

    def round_down(self, size: int) -> int:
        if size >= self.text_range.size:
            return self.text_range.size
        if self.text_range.from_right:
            return max(
                self.text_range.end
                - graphemes.boundary_at_or_after(self.text_range.text, self.text_range.end - size),
                0,
            )
        return max(
            graphemes.boundary_at_or_before(self.text_range.text, self.text_range.start + size)
            - self.text_range.start,
            0,
        )

    def next_after(self, size: int) -> int:
        if self.text_range.from_right:
            return min(
                self.text_range.end
                - graphemes.previous_boundary(self.text_range.text, self.text_range.end - size),
                self.text_range.size,
            )
        return min(
            graphemes.next_boundary(self.text_range.text, self.text_range.start + size) - self.text_range.start,
            self.text_range.size,
        )


@dataclass(frozen=True, slots=True)
class ListedSizes:
    """A list of sizes: of whole items, or numbers of items."""

    sizes: Sequence[int]
    """Ascending, from 0 to the whole range."""

    def round_down(self, size: int) -> int:
        return self.sizes[bisect_right(self.sizes, size) - 1]

    def next_after(self, size: int) -> int:
        return self.sizes[min(bisect_right(self.sizes, size), len(self.sizes) - 1)]


def _iter_cut_sizes(body: TruncatableText, text_range: TextRange) -> Iterator[CutSizes]:
    """Yield where a range can be cut: between items, between lines, between graphemes, the coarsest first."""
    if body.items is not None:
        sizes = {0, text_range.size}
        for start, end in body.items:
            # Whitespace at the end of the last item is not part of the range.
            if text_range.start <= start < text_range.end:
                sizes.add(
                    text_range.end - start
                    if text_range.from_right
                    else min(end, text_range.end) - text_range.start
                )
        yield ListedSizes(sorted(sizes))
    yield LineSizes(text_range)
    yield GraphemeSizes(text_range)


def _find_largest_piece(
    body: TruncatableText,
    text_range: TextRange,
    fits: Callable[[int], bool],
    meter: TextMeter,
    room_tokens: int,
) -> tuple[int, int]:
    whole = TextSpan(body.measured_text, text_range.start, text_range.end)
    guess = meter.estimate_chars(whole, room_tokens, from_right=text_range.from_right)
    size = (
        text_range.size
        if fits(text_range.size)
        else _find_largest_size(_iter_cut_sizes(body, text_range), fits, text_range, guess)
    )
    return text_range.piece(size)


def _find_largest_size(
    levels: Iterator[CutSizes], fits: Callable[[int], bool], text_range: TextRange, guess: int
) -> int:
    """Return the largest size that fits: whole items or lines if possible, otherwise a part of one."""
    low, high = 0, text_range.size
    for sizes in levels:
        low = search_largest(sizes, fits, low=low, high=high, guess=guess)
        if isinstance(sizes, GraphemeSizes):
            return _extend_by_graphemes(sizes, fits, low, high)
        high = sizes.next_after(low)
        start, end = text_range.piece(low)
        is_blank = start == end  # as good as nothing
        if not is_blank and not (isinstance(sizes, LineSizes) and high - low > LONG_LINE_CHARS):
            break
    return low


def _extend_by_graphemes(sizes: CutSizes, fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest size that fits, of `low` and the few that follow it."""
    largest_fitting = size = low
    for _ in range(_EXTRA_GRAPHEMES):
        size = sizes.next_after(size)
        if size >= high:
            break
        if fits(size):
            largest_fitting = size
    return largest_fitting


def search_largest(
    sizes: CutSizes,
    fits: Callable[[int], bool],
    *,
    low: int,
    high: int,
    guess: int,
    step: int = _FIRST_STEP_CHARS,
) -> int:
    """Return the largest size from `low` up to but not including `high` that fits. `low` is assumed to fit.

    The search starts around `guess`, so that a good guess needs few attempts.
    """
    size = sizes.round_down(min(max(guess, low), high))
    if low < size < high:
        if fits(size):
            low = size
            while (size := _size_between(sizes, low + step, low, high)) < high:
                if not fits(size):
                    high = size
                    break
                low, step = size, 2 * step
        else:
            high = size
            while (size := sizes.round_down(max(high - step, low))) > low:
                if fits(size):
                    low = size
                    break
                high, step = size, 2 * step
    while (size := _size_between(sizes, (low + high) // 2, low, high)) < high:
        if fits(size):
            low = size
        else:
            high = size
    return low


def _size_between(sizes: CutSizes, size: int, low: int, high: int) -> int:
    """Return a size near `size` between the two, or `high`."""
    candidate = sizes.round_down(min(size, high - 1))
    return candidate if candidate > low else min(sizes.next_after(low), high)
