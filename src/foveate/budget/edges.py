"""Where a text may be cut: after an item, after a line, between graphemes.

A piece is kept from the left or from the right end of a stretch, and edges are its possible sizes in
characters: 0, the whole stretch, and those between that end where something ends.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate.budget import graphemes

# The search begins with steps of so many characters, a few words.
_FIRST_STEP_CHARS = 32
_WHITESPACE_CHUNK_CHARS = 256


class CutSizes(Protocol):
    """The sizes that a piece may have."""

    def at_most(self, size: int) -> int:
        """The largest that is not more than `size`."""

    def next_after(self, size: int) -> int:
        """The smallest that is more than `size`; where there is none, the whole stretch."""


@dataclass(frozen=True, slots=True)
class TextRange:
    """A part of a text, from which a piece is kept at one end."""

    text: str
    start: int
    end: int
    from_right: bool = False

    @property
    def size(self) -> int:
        """How many characters it has."""
        return self.end - self.start

    def piece(self, size: int) -> tuple[int, int]:
        """Where the piece of that size starts and ends, but for blanks at its right end: they are not kept."""
        start, end = (self.end - size, self.end) if self.from_right else (self.start, self.start + size)
        return start, _strip_end(self.text, start, end)


def _strip_end(text: str, start: int, end: int) -> int:
    """Where the blanks at the end of a piece begin; looked for from there, since a piece can be megabytes."""
    while start < end:
        piece = text[max(start, end - _WHITESPACE_CHUNK_CHARS) : end]
        if word := piece.rstrip():
            return end - len(piece) + len(word)
        end -= len(piece)
    return start


@dataclass(frozen=True, slots=True)
class LineSizes:
    """Whole lines of a stretch."""

    text_range: TextRange

    def at_most(self, size: int) -> int:
        """The largest that is not more than `size`."""
        text, start, end = self.text_range.text, self.text_range.start, self.text_range.end
        if size >= self.text_range.size:
            return self.text_range.size
        if self.text_range.from_right:
            newline = text.find("\n", end - size - 1, end)
            return 0 if newline < 0 else end - (newline + 1)
        return max(text.rfind("\n", start, start + size + 1) - start, 0)

    def next_after(self, size: int) -> int:
        """The smallest that is more than `size`."""
        text, start, end = self.text_range.text, self.text_range.start, self.text_range.end
        if self.text_range.from_right:
            newline = text.rfind("\n", start, max(end - size - 1, start))
            return self.text_range.size if newline < 0 else end - (newline + 1)
        newline = text.find("\n", start + size + 1, end)
        return self.text_range.size if newline < 0 else newline - start


@dataclass(frozen=True, slots=True)
class GraphemeSizes:
    """Whole graphemes of a stretch."""

    text_range: TextRange

    def at_most(self, size: int) -> int:
        """The largest that is not more than `size`."""
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
        """The smallest that is more than `size`."""
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
    """Sizes that are known one by one: those of whole items, or how many of them."""

    sizes: Sequence[int]
    """Ascending, from 0 to the whole."""

    def at_most(self, size: int) -> int:
        """The largest that is not more than `size`."""
        return self.sizes[bisect_right(self.sizes, size) - 1]

    def next_after(self, size: int) -> int:
        """The smallest that is more than `size`."""
        return self.sizes[min(bisect_right(self.sizes, size), len(self.sizes) - 1)]


def search_largest(
    sizes: CutSizes,
    fits: Callable[[int], bool],
    *,
    low: int,
    high: int,
    guess: int,
    step: int = _FIRST_STEP_CHARS,
) -> int:
    """The largest edge from `low` up to but not `high` that fits; `low` is taken to fit and `high` not to.

    What fits is looked for around `guess`, so that few sizes are tried where it is good.
    """
    size = sizes.at_most(min(max(guess, low), high))
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
            while (size := sizes.at_most(max(high - step, low))) > low:
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
    """An edge near `size` between the two; `high` where there is none."""
    candidate = sizes.at_most(min(size, high - 1))
    return candidate if candidate > low else min(sizes.next_after(low), high)
