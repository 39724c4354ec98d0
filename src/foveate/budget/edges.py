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
_FIRST_STEP = 32
_BLANK_CHARS = 256


class Edges(Protocol):
    """The sizes that a piece may have."""

    def within(self, size: int) -> int:
        """The largest that is not more than `size`."""

    def beyond(self, size: int) -> int:
        """The smallest that is more than `size`; where there is none, the whole stretch."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a text, from which a piece is kept at one end."""

    text: str
    start: int
    end: int
    from_right: bool = False

    @property
    def size(self) -> int:
        """How many characters it has."""
        return self.end - self.start

    def kept(self, size: int) -> tuple[int, int]:
        """Where the piece of that size starts and ends, but for blanks at its right end: they are not kept."""
        start, end = (self.end - size, self.end) if self.from_right else (self.start, self.start + size)
        return start, _last_word(self.text, start, end)


def _last_word(text: str, start: int, end: int) -> int:
    """Where the blanks at the end of a piece begin; looked for from there, since a piece can be megabytes."""
    while start < end:
        piece = text[max(start, end - _BLANK_CHARS) : end]
        if word := piece.rstrip():
            return end - len(piece) + len(word)
        end -= len(piece)
    return start


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of a stretch."""

    of: Stretch

    def within(self, size: int) -> int:
        """The largest that is not more than `size`."""
        text, start, end = self.of.text, self.of.start, self.of.end
        if size >= self.of.size:
            return self.of.size
        if self.of.from_right:
            found = text.find("\n", end - size - 1, end)
            return 0 if found < 0 else end - (found + 1)
        return max(text.rfind("\n", start, start + size + 1) - start, 0)

    def beyond(self, size: int) -> int:
        """The smallest that is more than `size`."""
        text, start, end = self.of.text, self.of.start, self.of.end
        if self.of.from_right:
            found = text.rfind("\n", start, max(end - size - 1, start))
            return self.of.size if found < 0 else end - (found + 1)
        found = text.find("\n", start + size + 1, end)
        return self.of.size if found < 0 else found - start


@dataclass(frozen=True, slots=True)
class Graphemes:
    """Whole graphemes of a stretch."""

    of: Stretch

    def within(self, size: int) -> int:
        """The largest that is not more than `size`."""
        if size >= self.of.size:
            return self.of.size
        if self.of.from_right:
            return max(self.of.end - graphemes.ceil(self.of.text, self.of.end - size), 0)
        return max(graphemes.floor(self.of.text, self.of.start + size) - self.of.start, 0)

    def beyond(self, size: int) -> int:
        """The smallest that is more than `size`."""
        if self.of.from_right:
            return min(self.of.end - graphemes.before(self.of.text, self.of.end - size), self.of.size)
        return min(graphemes.after(self.of.text, self.of.start + size) - self.of.start, self.of.size)


@dataclass(frozen=True, slots=True)
class Listed:
    """Sizes that are known one by one: those of whole items, or how many of them."""

    sizes: Sequence[int]
    """Ascending, from 0 to the whole."""

    def within(self, size: int) -> int:
        """The largest that is not more than `size`."""
        return self.sizes[bisect_right(self.sizes, size) - 1]

    def beyond(self, size: int) -> int:
        """The smallest that is more than `size`."""
        return self.sizes[min(bisect_right(self.sizes, size), len(self.sizes) - 1)]


def largest(
    edges: Edges, fits: Callable[[int], bool], *, low: int, high: int, guess: int, step: int = _FIRST_STEP
) -> int:
    """The largest edge from `low` up to but not `high` that fits; `low` is taken to fit and `high` not to.

    What fits is looked for around `guess`, so that few sizes are tried where it is good.
    """
    at = edges.within(min(max(guess, low), high))
    if low < at < high:
        if fits(at):
            low = at
            while (at := _between(edges, low + step, low, high)) < high:
                if not fits(at):
                    high = at
                    break
                low, step = at, 2 * step
        else:
            high = at
            while (at := edges.within(max(high - step, low))) > low:
                if fits(at):
                    low = at
                    break
                high, step = at, 2 * step
    while (at := _between(edges, (low + high) // 2, low, high)) < high:
        if fits(at):
            low = at
        else:
            high = at
    return low


def _between(edges: Edges, size: int, low: int, high: int) -> int:
    """An edge near `size` between the two; `high` where there is none."""
    at = edges.within(min(size, high - 1))
    return at if at > low else min(edges.beyond(low), high)
