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

from foveate.memory.views.page import Page
from foveate.memory.views.view import DetailLevel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.memory.nodes import Forest
    from foveate.memory.views.node_text import Passage

MAX_OUTLINE_DEPTH = 2
"""Without a limit, titles are shown down to here."""

# Relevance decides, and of what is about as relevant the shorter goes first (see ./bench memory-recall).
_RELEVANCE_WEIGHT = 6.0
_LENGTH_PENALTY = 0.25
# Nothing that is less relevant than this is shown for its relevance.
_MIN_RELEVANCE = 0.02
# Of a node that would take more than this part of the limit alone, an excerpt is shown.
_MAX_NODE_SHARE = 0.5
# The least that a title takes, to know how many can be shown at all.
_MIN_TITLE_TOKENS = 6
_CHARS_PER_TOKEN = 4
# What is near to the focus has a quarter of the limit, or more in steps: so what is far stays as it is while
# the focus moves from one node to the next.
_NEAR_PART, _STEPS = 4, 16
# What stands after it has a quarter of what is left; more only where before it there is not as much to show.
_AFTER_PART = 4
# So much can go to what is similar to the focus, wherever it stands.
_SIMILAR_PART = 16
_ROUNDS = 2
_MIN_CANDIDATES = 64
# After so many that do not fit, hardly any other will.
_MAX_MISSES = 8
_SMALL_PART = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionCriteria:
    """What a view is to show; places are those of the forest, and `inside` where it begins and ends.

    `relevance` and `similarity` have a number for each node, and `hidden` says of each whether it is left out;
    None: none is. `stretches` gives those of a node's content, the
    most relevant first.
    """

    scope_range: tuple[int, int]
    focus: int | None
    relevance: "NDArray[np.float32] | None"
    similarity: "NDArray[np.float32]"
    threshold: float
    passages: "Callable[[int], Sequence[Passage]] | None"
    hidden: "NDArray[np.bool_] | None" = None

    def visible(self, indexes: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """Those of `places` that are not left out."""
        return indexes if self.hidden is None else indexes[~self.hidden[indexes]]


def fill_outline(page: Page, criteria: SelectionCriteria) -> None:
    """Fill a page that has no limit."""
    forest, (first, last) = page.forest, criteria.scope_range
    endless = int(np.iinfo(np.int64).max)
    base = int(forest.depth[first]) if last > first else 0
    indexes = np.arange(first, last)[forest.depth[first:last] <= base + MAX_OUTLINE_DEPTH]
    page.add_nodes(criteria.visible(indexes).tolist(), DetailLevel.TITLE, endless)
    if criteria.focus is not None:
        page.add_nodes([criteria.focus], DetailLevel.FULL, endless)
        page.add_nodes(_children(forest, criteria.focus), DetailLevel.TITLE, endless)
    page.add_nodes(_similar_nodes(criteria), DetailLevel.FULL, endless)


def fill_page(page: Page, criteria: SelectionCriteria, limit_tokens: int) -> None:
    """Fill a page up to its limit; the focus is on it already."""
    for _ in range(_ROUNDS):
        if criteria.relevance is not None:
            _fill_by_relevance(page, criteria, criteria.relevance, limit_tokens)
        elif criteria.focus is not None:
            _fill_around_focus(page, criteria, criteria.focus, limit_tokens)
        if _is_full(page, limit_tokens):
            return
    for _ in range(_ROUNDS):
        _fill_titles(page, _titles_by_depth(page.forest, criteria), limit_tokens)
        newest = [
            index
            for indexes in _titles_by_depth(page.forest, criteria)
            for index in _first_that_may_fit(indexes, limit_tokens)
        ]
        _fill_whole(page, criteria, newest, limit_tokens)
        if _is_full(page, limit_tokens):
            return


def _is_full(page: Page, limit_tokens: int) -> bool:
    """Whether so little is left, counted whole, that only what is far would come and go for it."""
    return limit_tokens - page.count().upper <= limit_tokens // _SMALL_PART


def _fill_titles(page: Page, depths: "Iterable[NDArray[np.int64]]", room_tokens: int) -> None:
    for indexes in depths:
        if page.used_tokens + _MIN_TITLE_TOKENS > room_tokens:
            break
        few = _first_that_may_fit(indexes, room_tokens - page.used_tokens)
        page.add_nodes(few, DetailLevel.TITLE, room_tokens)
        if few and page.blocks.keys().isdisjoint(few):
            break  # what is deeper stands in one of these, and would have to bring it along


def _fill_by_relevance(
    page: Page, criteria: SelectionCriteria, relevance: "NDArray[np.float32]", limit_tokens: int
) -> None:
    """Show what matches best, short files whole where they fit, otherwise node by node."""
    first, last = criteria.scope_range
    if first == last:
        return
    tokens = page.forest.chars[first:last] / _CHARS_PER_TOKEN + 2 * _MIN_TITLE_TOKENS
    wanted = (
        relevance[first:last]
        if criteria.hidden is None
        else relevance[first:last] * ~criteria.hidden[first:last]
    )
    starts = page.forest.piece_starts
    starts = np.append(0, starts[(starts > first) & (starts < last)] - first)
    ends = np.append(starts[1:], last - first)
    sizes = np.add.reduceat(tokens, starts)
    # What is read as one thing is as relevant as the best of it and as all of it, half and half.
    means = np.add.reduceat(wanted * tokens, starts) / sizes
    both = (np.maximum.reduceat(wanted, starts) + means) / 2
    values = _estimate_values(both, sizes)
    max_candidates = max(limit_tokens // _MIN_TITLE_TOKENS, _MIN_CANDIDATES)
    candidates = [
        (-float(values[piece]), int(starts[piece]), int(ends[piece]))
        for piece in _best_indexes(both, values, max_candidates)
    ]
    heapify(candidates)
    missed: list[int] = []
    while candidates and len(missed) <= _MAX_MISSES:
        _, start, end = heappop(candidates)
        if end - start == 1:
            missed += _add_node(page, criteria, first + start, limit_tokens)
        elif not _add_piece(page, criteria, range(first + start, first + end), limit_tokens):
            node_values = _estimate_values(wanted[start:end], tokens[start:end])
            for index in _best_indexes(wanted[start:end], node_values, end - start):
                heappush(candidates, (-float(node_values[index]), start + index, start + index + 1))
    if missed:
        page.count()
        _add_excerpt(page, criteria, missed[0], limit_tokens)


def _add_piece(page: Page, criteria: SelectionCriteria, indexes: range, limit_tokens: int) -> bool:
    """Show a short file whole, unless it would take most of the page, or some of it is left out."""
    if criteria.hidden is not None and criteria.hidden[indexes.start : indexes.stop].any():
        return False
    chars = int(page.forest.chars[indexes.start : indexes.stop].sum())
    is_small = chars <= limit_tokens * _MAX_NODE_SHARE * _CHARS_PER_TOKEN
    return is_small and page.add_all_or_none(indexes, limit_tokens)


def _add_node(page: Page, criteria: SelectionCriteria, index: int, limit_tokens: int) -> list[int]:
    """Show a node whole, or an excerpt where it is too long or nothing is shown yet; itself where it is not."""
    max_node_tokens = int(limit_tokens * _MAX_NODE_SHARE)
    if page.forest.chars[index] > max_node_tokens * _CHARS_PER_TOKEN:
        shown = _add_excerpt(page, criteria, index, min(limit_tokens, page.used_tokens + max_node_tokens))
    else:
        shown = page.add_nodes([index], DetailLevel.FULL, limit_tokens) is None
    # Of what matches best something is shown, also where there would be room for all of something else.
    if not shown and not _shows_content(page):
        shown = _add_excerpt(page, criteria, index, limit_tokens, needs_passage=False)
    return [] if shown else [index]


def _shows_content(page: Page) -> bool:
    """Whether more than headings is shown."""
    return any(
        block.level is not DetailLevel.TITLE and page.forest.chars[index]
        for index, block in page.blocks.items()
    )


def _estimate_values(
    relevance: "NDArray[np.floating]", tokens: "NDArray[np.float64]"
) -> "NDArray[np.floating]":
    """What each is worth, as a logarithm: only the order counts."""
    values: NDArray[np.floating] = _RELEVANCE_WEIGHT * relevance - _LENGTH_PENALTY * np.log(tokens)
    return values


def _best_indexes(
    relevance: "NDArray[np.floating]", values: "NDArray[np.floating]", max_count: int
) -> list[int]:
    """Those that are worth most, the best first, but for what is not relevant at all."""
    found = np.flatnonzero(relevance > _MIN_RELEVANCE)
    if max_count < len(found):
        found = found[np.argpartition(-values[found], max_count)[:max_count]]
    best: list[int] = found[np.argsort(-values[found], kind="stable")].tolist()
    return best


def _fill_whole(page: Page, criteria: SelectionCriteria, indexes: Sequence[int], limit_tokens: int) -> None:
    """Show nodes whole as long as there is room, and of the first that has none an excerpt."""
    max_node_tokens = int(limit_tokens * _MAX_NODE_SHARE)
    shows_some = any(block.level is DetailLevel.FULL for block in page.blocks.values())
    run: list[int] = []
    for index in [*indexes, None]:
        if index is not None and page.forest.chars[index] <= max_node_tokens * _CHARS_PER_TOKEN:
            run.append(index)
            continue
        # Of what matches best something is shown, also where there would be room for all of something else.
        missed = page.add_nodes(
            run, DetailLevel.FULL, limit_tokens, max_misses=_MAX_MISSES if shows_some else 0
        )
        if missed is not None:
            page.count()
            _add_excerpt(page, criteria, missed, limit_tokens, needs_passage=_shows_content(page))
            page.add_nodes(run, DetailLevel.FULL, limit_tokens)
            return
        run = []
        # To find the best lines of a long text takes a while, which would be for nothing from now on.
        if index is not None:
            room_tokens = min(limit_tokens, page.used_tokens + max_node_tokens)
            if not _add_excerpt(page, criteria, index, room_tokens, needs_passage=_shows_content(page)):
                return


def _add_excerpt(
    page: Page, criteria: SelectionCriteria, index: int, room_tokens: int, *, needs_passage: bool = True
) -> bool:
    if index in page.blocks and page.blocks[index].level is DetailLevel.FULL:
        return True
    best = criteria.passages(index) if criteria.passages else None
    return page.add_excerpt(index, room_tokens, best, needs_passage=needs_passage)


def _fill_around_focus(page: Page, criteria: SelectionCriteria, focus: int, limit_tokens: int) -> None:
    forest = page.forest
    document = forest.document_index[focus]
    start, end = forest.starts[document], forest.starts[document + 1]
    step = max(limit_tokens // _STEPS, 1)
    taken = page.used_tokens
    near_tokens = max(limit_tokens // _NEAR_PART, -(-taken // step) * step)
    far_tokens = taken + max(limit_tokens - near_tokens, 0)
    before, after = (lambda indexes: indexes < start), (lambda indexes: indexes >= end)
    _fill_titles(page, _titles_by_depth(forest, criteria, after), taken + (far_tokens - taken) // _AFTER_PART)
    _fill_titles(page, _titles_by_depth(forest, criteria, before), far_tokens)
    _fill_titles(page, _titles_by_depth(forest, criteria, after), far_tokens)
    similar_tokens = min(limit_tokens, page.used_tokens + limit_tokens // _SIMILAR_PART)
    page.add_nodes(_similar_nodes(criteria)[:_STEPS], DetailLevel.FULL, similar_tokens)
    near = _first_that_may_fit(_nearest_nodes(forest, criteria, focus), limit_tokens)
    for _ in range(_ROUNDS):
        page.add_nodes(near, DetailLevel.TITLE, limit_tokens)
        page.count()
    _fill_whole(page, criteria, near, limit_tokens)


def _titles_by_depth(
    forest: "Forest",
    criteria: SelectionCriteria,
    where: "Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None" = None,
) -> "Iterator[NDArray[np.int64]]":
    """Nodes to be shown as titles: those of the same depth together, the newest first; all, or some."""
    first, last = criteria.scope_range
    order = forest.newest_first
    if (first, last) != (0, len(order)):
        order = order[(order >= first) & (order < last)]
    if where is not None:
        order = order[where(order)]
    order = criteria.visible(order)
    depths = forest.depth[order]
    for depth in range(int(depths.max()) + 1 if len(depths) else 0):
        yield order[np.searchsorted(depths, depth) : np.searchsorted(depths, depth, side="right")]


def _nearest_nodes(forest: "Forest", criteria: SelectionCriteria, focus: int) -> "NDArray[np.int64]":
    """The nodes of the focus's own document, the nearest to it in the tree first, of equals the first."""
    start, distances = forest.distances(focus)
    indexes = np.argsort(distances, kind="stable") + start
    return criteria.visible(indexes[(indexes >= criteria.scope_range[0]) & (indexes < criteria.scope_range[1])])


def _children(forest: "Forest", index: int) -> list[int]:
    below = np.arange(index + 1, int(forest.end[index]))
    return [int(child) for child in below[forest.parent[below] == index]]


def _similar_nodes(criteria: SelectionCriteria) -> list[int]:
    """What is so similar that it is shown for that, the most similar first."""
    first, last = criteria.scope_range
    similarity = criteria.similarity[first:last]
    found = np.flatnonzero(similarity >= criteria.threshold)
    ordered = criteria.visible(found[np.argsort(-similarity[found], kind="stable")] + first)
    return [index for index in ordered.tolist() if index != criteria.focus]


def _first_that_may_fit(indexes: "NDArray[np.int64]", room_tokens: int) -> list[int]:
    """As many of the first as there can be room for."""
    few: list[int] = indexes[: max(room_tokens, 0) // _MIN_TITLE_TOKENS + 1].tolist()
    return few
