"""Which nodes a view shows, and how much of each: the most relevance for the tokens.

With a query, what matches it best is shown, whole where it can be. Without one, a focus is shown whole, what is
near to it in outline, and of the rest the titles: those of what stands before the focus first, since a provider
that caches prompts can use again what comes before a change, and nothing that comes after.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from foveate.memory.page import Page
from foveate.memory.view import Level

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.memory.excerpts import Stretch
    from foveate.memory.forest import Forest

OUTLINED_DEPTH = 2
"""Without a limit, titles are shown down to here."""

# Relevance decides, and of what is about as relevant the shorter goes first (see ./bench memory-recall).
_SHARPNESS = 6.0
_LENGTH = 0.25
# Nothing that is less relevant than this is shown for its relevance.
_IRRELEVANT = 0.02
# Of a node that would take more than this part of the limit alone, an excerpt is shown.
_LARGEST_PART = 0.5
# The least that a title takes, to know how many can be shown at all.
_LEAST_TITLE_TOKENS = 6
_CHARS_PER_TOKEN = 4
# What is near to the focus has a quarter of the limit, or more in steps: so what is far stays as it is while
# the focus moves from one node to the next.
_NEAR_PART, _STEPS = 4, 16
# What stands after it has a quarter of what is left; more only where before it there is not as much to show.
_AFTER_PART = 4
# So much can go to what is similar to the focus, wherever it stands.
_SIMILAR_PART = 16
_ROUNDS = 2
_FEW_PIECES = 64
# After so many that do not fit, hardly any other will.
_PATIENCE = 8
_SMALL_PART = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a view is to show; places are those of the forest, and `inside` where it begins and ends.

    `relevance` and `similarity` have a number for each node, and `hidden` says of each whether it is left out;
    None: none is. `stretches` gives those of a node's content, the
    most relevant first.
    """

    inside: tuple[int, int]
    focus: int | None
    relevance: "NDArray[np.float32] | None"
    similarity: "NDArray[np.float32]"
    threshold: float
    stretches: "Callable[[int], Sequence[Stretch]] | None"
    hidden: "NDArray[np.bool_] | None" = None

    def shown(self, places: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """Those of `places` that are not left out."""
        return places if self.hidden is None else places[~self.hidden[places]]


def outline(page: Page, wish: Wish) -> None:
    """Fill a page that has no limit."""
    forest, (first, last) = page.forest, wish.inside
    endless = int(np.iinfo(np.int64).max)
    base = int(forest.depth[first]) if last > first else 0
    places = np.arange(first, last)[forest.depth[first:last] <= base + OUTLINED_DEPTH]
    page.put_all(wish.shown(places).tolist(), Level.TITLE, endless)
    if wish.focus is not None:
        page.put_all([wish.focus], Level.FULL, endless)
        page.put_all(_children(forest, wish.focus), Level.TITLE, endless)
    page.put_all(_similar(wish), Level.FULL, endless)


def fill(page: Page, wish: Wish, limit_tokens: int) -> None:
    """Fill a page up to its limit; the focus is on it already."""
    for _ in range(_ROUNDS):
        if wish.relevance is not None:
            _fill_by_relevance(page, wish, wish.relevance, limit_tokens)
        elif wish.focus is not None:
            _fill_around(page, wish, wish.focus, limit_tokens)
        if _is_full(page, limit_tokens):
            return
    for _ in range(_ROUNDS):
        _fill_titles(page, _by_depth(page.forest, wish), limit_tokens)
        newest = [place for places in _by_depth(page.forest, wish) for place in _few(places, limit_tokens)]
        _fill_whole(page, wish, newest, limit_tokens)
        if _is_full(page, limit_tokens):
            return


def _is_full(page: Page, limit_tokens: int) -> bool:
    """Whether so little is left, counted whole, that only what is far would come and go for it."""
    return limit_tokens - page.count().upper <= limit_tokens // _SMALL_PART


def _fill_titles(page: Page, depths: "Iterable[NDArray[np.int64]]", room_tokens: int) -> None:
    for places in depths:
        if page.used_tokens + _LEAST_TITLE_TOKENS > room_tokens:
            break
        few = _few(places, room_tokens - page.used_tokens)
        page.put_all(few, Level.TITLE, room_tokens)
        if few and page.blocks.keys().isdisjoint(few):
            break  # what is deeper stands in one of these, and would have to bring it along


def _fill_by_relevance(page: Page, wish: Wish, relevance: "NDArray[np.float32]", limit_tokens: int) -> None:
    """Show what matches best, short files whole where they fit, otherwise node by node."""
    first, last = wish.inside
    if first == last:
        return
    tokens = page.forest.chars[first:last] / _CHARS_PER_TOKEN + 2 * _LEAST_TITLE_TOKENS
    wanted = relevance[first:last] if wish.hidden is None else relevance[first:last] * ~wish.hidden[first:last]
    starts = page.forest.pieces
    starts = np.append(0, starts[(starts > first) & (starts < last)] - first)
    ends = np.append(starts[1:], last - first)
    sizes = np.add.reduceat(tokens, starts)
    # What is read as one thing is as relevant as the best of it and as all of it, half and half.
    means = np.add.reduceat(wanted * tokens, starts) / sizes
    both = (np.maximum.reduceat(wanted, starts) + means) / 2
    worth = _worth(both, sizes)
    most = max(limit_tokens // _LEAST_TITLE_TOKENS, _FEW_PIECES)
    waiting = [
        (-float(worth[piece]), int(starts[piece]), int(ends[piece])) for piece in _best(both, worth, most)
    ]
    heapify(waiting)
    missed: list[int] = []
    while waiting and len(missed) <= _PATIENCE:
        _, start, end = heappop(waiting)
        if end - start == 1:
            missed += _put_node(page, wish, first + start, limit_tokens)
        elif not _put_piece(page, wish, range(first + start, first + end), limit_tokens):
            own = _worth(wanted[start:end], tokens[start:end])
            for place in _best(wanted[start:end], own, end - start):
                heappush(waiting, (-float(own[place]), start + place, start + place + 1))
    if missed:
        page.count()
        _put_excerpt(page, wish, missed[0], limit_tokens)


def _put_piece(page: Page, wish: Wish, places: range, limit_tokens: int) -> bool:
    """Show a short file whole, unless it would take most of the page, or some of it is left out."""
    if wish.hidden is not None and wish.hidden[places.start : places.stop].any():
        return False
    chars = int(page.forest.chars[places.start : places.stop].sum())
    is_small = chars <= limit_tokens * _LARGEST_PART * _CHARS_PER_TOKEN
    return is_small and page.put_together(places, limit_tokens)


def _put_node(page: Page, wish: Wish, place: int, limit_tokens: int) -> list[int]:
    """Show a node whole, or an excerpt where it is too long or nothing is shown yet; itself where it is not."""
    largest = int(limit_tokens * _LARGEST_PART)
    if page.forest.chars[place] > largest * _CHARS_PER_TOKEN:
        shown = _put_excerpt(page, wish, place, min(limit_tokens, page.used_tokens + largest))
    else:
        shown = page.put_all([place], Level.FULL, limit_tokens) is None
    # Of what matches best something is shown, also where there would be room for all of something else.
    if not shown and not _says_something(page):
        shown = _put_excerpt(page, wish, place, limit_tokens, needs_stretch=False)
    return [] if shown else [place]


def _says_something(page: Page) -> bool:
    """Whether more than headings is shown."""
    return any(
        block.level is not Level.TITLE and page.forest.chars[place] for place, block in page.blocks.items()
    )


def _worth(relevance: "NDArray[np.floating]", tokens: "NDArray[np.float64]") -> "NDArray[np.floating]":
    """What each is worth, as a logarithm: only the order counts."""
    worth: NDArray[np.floating] = _SHARPNESS * relevance - _LENGTH * np.log(tokens)
    return worth


def _best(relevance: "NDArray[np.floating]", worth: "NDArray[np.floating]", most: int) -> list[int]:
    """Those that are worth most, the best first, but for what is not relevant at all."""
    found = np.flatnonzero(relevance > _IRRELEVANT)
    if most < len(found):
        found = found[np.argpartition(-worth[found], most)[:most]]
    best: list[int] = found[np.argsort(-worth[found], kind="stable")].tolist()
    return best


def _fill_whole(page: Page, wish: Wish, places: Sequence[int], limit_tokens: int) -> None:
    """Show nodes whole as long as there is room, and of the first that has none an excerpt."""
    largest = int(limit_tokens * _LARGEST_PART)
    shows_some = any(block.level is Level.FULL for block in page.blocks.values())
    run: list[int] = []
    for place in [*places, None]:
        if place is not None and page.forest.chars[place] <= largest * _CHARS_PER_TOKEN:
            run.append(place)
            continue
        # Of what matches best something is shown, also where there would be room for all of something else.
        missed = page.put_all(run, Level.FULL, limit_tokens, patience=_PATIENCE if shows_some else 0)
        if missed is not None:
            page.count()
            _put_excerpt(page, wish, missed, limit_tokens, needs_stretch=_says_something(page))
            page.put_all(run, Level.FULL, limit_tokens)
            return
        run = []
        # To find the best lines of a long text takes a while, which would be for nothing from now on.
        if place is not None:
            room_tokens = min(limit_tokens, page.used_tokens + largest)
            if not _put_excerpt(page, wish, place, room_tokens, needs_stretch=_says_something(page)):
                return


def _put_excerpt(page: Page, wish: Wish, place: int, room_tokens: int, *, needs_stretch: bool = True) -> bool:
    if place in page.blocks and page.blocks[place].level is Level.FULL:
        return True
    best = wish.stretches(place) if wish.stretches else None
    return page.put_excerpt(place, room_tokens, best, needs_stretch=needs_stretch)


def _fill_around(page: Page, wish: Wish, focus: int, limit_tokens: int) -> None:
    forest = page.forest
    document = forest.document_of[focus]
    start, end = forest.starts[document], forest.starts[document + 1]
    step = max(limit_tokens // _STEPS, 1)
    taken = page.used_tokens
    near_tokens = max(limit_tokens // _NEAR_PART, -(-taken // step) * step)
    far_tokens = taken + max(limit_tokens - near_tokens, 0)
    before, after = (lambda places: places < start), (lambda places: places >= end)
    _fill_titles(page, _by_depth(forest, wish, after), taken + (far_tokens - taken) // _AFTER_PART)
    _fill_titles(page, _by_depth(forest, wish, before), far_tokens)
    _fill_titles(page, _by_depth(forest, wish, after), far_tokens)
    similar_tokens = min(limit_tokens, page.used_tokens + limit_tokens // _SIMILAR_PART)
    page.put_all(_similar(wish)[:_STEPS], Level.FULL, similar_tokens)
    near = _few(_nearest(forest, wish, focus), limit_tokens)
    for _ in range(_ROUNDS):
        page.put_all(near, Level.TITLE, limit_tokens)
        page.count()
    _fill_whole(page, wish, near, limit_tokens)


def _by_depth(
    forest: "Forest", wish: Wish, where: "Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None" = None
) -> "Iterator[NDArray[np.int64]]":
    """Nodes to be shown as titles: those of the same depth together, the newest first; all, or some."""
    first, last = wish.inside
    order = forest.newest_first
    if (first, last) != (0, len(order)):
        order = order[(order >= first) & (order < last)]
    if where is not None:
        order = order[where(order)]
    order = wish.shown(order)
    depths = forest.depth[order]
    for depth in range(int(depths.max()) + 1 if len(depths) else 0):
        yield order[np.searchsorted(depths, depth) : np.searchsorted(depths, depth, side="right")]


def _nearest(forest: "Forest", wish: Wish, focus: int) -> "NDArray[np.int64]":
    """The nodes of the focus's own document, the nearest to it in the tree first, of equals the first."""
    start, distances = forest.distances(focus)
    places = np.argsort(distances, kind="stable") + start
    return wish.shown(places[(places >= wish.inside[0]) & (places < wish.inside[1])])


def _children(forest: "Forest", place: int) -> list[int]:
    below = np.arange(place + 1, int(forest.end[place]))
    return [int(child) for child in below[forest.parent[below] == place]]


def _similar(wish: Wish) -> list[int]:
    """What is so similar that it is shown for that, the most similar first."""
    first, last = wish.inside
    similarity = wish.similarity[first:last]
    found = np.flatnonzero(similarity >= wish.threshold)
    ordered = wish.shown(found[np.argsort(-similarity[found], kind="stable")] + first)
    return [place for place in ordered.tolist() if place != wish.focus]


def _few(places: "NDArray[np.int64]", room_tokens: int) -> list[int]:
    """As many of the first as there can be room for."""
    few: list[int] = places[: max(room_tokens, 0) // _LEAST_TITLE_TOKENS + 1].tolist()
    return few
