"""Select which nodes a view shows, and how much of each, for the most relevance per token.

With a query, the best matches are shown, completely if possible. With a focus alone, the focus is shown
completely, its neighborhood as an outline, and titles of the rest. Titles before the focus come first, because
a provider can reuse the cached prompt before a change but not after it.
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

    from foveate.memory.forest import Forest
    from foveate.memory.views.page import Passage

MAX_OUTLINE_DEPTH = 2
"""Without a limit, titles are shown down to this depth."""

# Relevance decides; of nodes with about the same relevance the shorter comes first (see ./bench memory-recall).
_RELEVANCE_WEIGHT = 6.0
_LENGTH_PENALTY = 0.25
# Less relevant nodes are not shown for their relevance.
_MIN_RELEVANCE = 0.02
# A node that would take more than this share of the limit is shown as an excerpt.
_MAX_NODE_SHARE = 0.5
# Determines how many titles can fit at all.
_MIN_TITLE_TOKENS = 6
_CHARS_PER_TOKEN = 4
# The neighborhood of the focus gets a quarter of the limit, or more in steps. So distant nodes stay the same
# while the focus moves.
_NEAR_PART, _STEPS = 4, 16
# Nodes after the focus get a quarter of the rest; more only if there is less to show before it.
_AFTER_PART = 4
# Share for nodes similar to the focus, anywhere.
_SIMILAR_PART = 16
_ROUNDS = 2
_MIN_CANDIDATES = 64
# After this many nodes that do not fit, hardly any other will.
_MAX_MISSES = 8
_SMALL_PART = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionCriteria:
    """Criteria by which a view selects nodes. Indexes are those of the forest, and `scope_range` is the visible
    part.

    `relevance`, `similarity` and the mask `hidden` have one item per node. `passages` returns the passages of a
    node's content, best first.
    """

    scope_range: tuple[int, int]
    focus: int | None
    relevance: "NDArray[np.float32] | None"
    similarity: "NDArray[np.float32]"
    threshold: float
    passages: "Callable[[int], Sequence[Passage]] | None"
    hidden: "NDArray[np.bool_] | None" = None

    def visible(self, indexes: "NDArray[np.int64]") -> "NDArray[np.int64]":
        return indexes if self.hidden is None else indexes[~self.hidden[indexes]]


def fill_outline(page: Page, criteria: SelectionCriteria) -> None:
    """Fill a page without a limit."""
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
    """Fill a page, which shows the focus already, up to its limit."""
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
    """Return whether so little room is left that only distant nodes would change for it."""
    return limit_tokens - page.count().upper <= limit_tokens // _SMALL_PART


def _fill_titles(page: Page, depths: "Iterable[NDArray[np.int64]]", room_tokens: int) -> None:
    for indexes in depths:
        if page.used_tokens + _MIN_TITLE_TOKENS > room_tokens:
            break
        candidates = _first_that_may_fit(indexes, room_tokens - page.used_tokens)
        page.add_nodes(candidates, DetailLevel.TITLE, room_tokens)
        if candidates and page.blocks.keys().isdisjoint(candidates):
            break  # deeper nodes need one of these as an ancestor


def _fill_by_relevance(
    page: Page, criteria: SelectionCriteria, relevance: "NDArray[np.float32]", limit_tokens: int
) -> None:
    """Show the best matches: short files completely if they fit, otherwise node by node."""
    first, last = criteria.scope_range
    if first == last:
        return
    tokens = page.forest.chars[first:last] / _CHARS_PER_TOKEN + 2 * _MIN_TITLE_TOKENS
    node_relevance = (
        relevance[first:last]
        if criteria.hidden is None
        else relevance[first:last] * ~criteria.hidden[first:last]
    )
    starts = page.forest.piece_starts
    starts = np.append(0, starts[(starts > first) & (starts < last)] - first)
    ends = np.append(starts[1:], last - first)
    sizes = np.add.reduceat(tokens, starts)
    # A piece is as relevant as the mean of its best node and its average.
    means = np.add.reduceat(node_relevance * tokens, starts) / sizes
    piece_relevance = (np.maximum.reduceat(node_relevance, starts) + means) / 2
    values = _estimate_values(piece_relevance, sizes)
    max_candidates = max(limit_tokens // _MIN_TITLE_TOKENS, _MIN_CANDIDATES)
    candidates = [
        (-float(values[piece]), int(starts[piece]), int(ends[piece]))
        for piece in _best_indexes(piece_relevance, values, max_candidates)
    ]
    heapify(candidates)
    misses: list[int] = []
    while candidates and len(misses) <= _MAX_MISSES:
        _, start, end = heappop(candidates)
        if end - start == 1:
            misses += _add_node(page, criteria, first + start, limit_tokens)
        elif not _add_piece(page, criteria, range(first + start, first + end), limit_tokens):
            node_values = _estimate_values(node_relevance[start:end], tokens[start:end])
            for index in _best_indexes(node_relevance[start:end], node_values, end - start):
                heappush(candidates, (-float(node_values[index]), start + index, start + index + 1))
    if misses:
        page.count()
        _add_excerpt(page, criteria, misses[0], limit_tokens)


def _add_piece(page: Page, criteria: SelectionCriteria, indexes: range, limit_tokens: int) -> bool:
    """Show a short file completely, unless it takes most of the page or is partly hidden."""
    if criteria.hidden is not None and criteria.hidden[indexes.start : indexes.stop].any():
        return False
    chars = int(page.forest.chars[indexes.start : indexes.stop].sum())
    is_small = chars <= limit_tokens * _MAX_NODE_SHARE * _CHARS_PER_TOKEN
    return is_small and page.add_all_or_none(indexes, limit_tokens)


def _add_node(page: Page, criteria: SelectionCriteria, index: int, limit_tokens: int) -> list[int]:
    """Show a node completely, or as an excerpt if it is long or the first; return it if it does not fit."""
    max_node_tokens = int(limit_tokens * _MAX_NODE_SHARE)
    if page.forest.chars[index] > max_node_tokens * _CHARS_PER_TOKEN:
        is_shown = _add_excerpt(page, criteria, index, min(limit_tokens, page.used_tokens + max_node_tokens))
    else:
        is_shown = page.add_nodes([index], DetailLevel.FULL, limit_tokens) is None
    # The best match must be shown in part, even if all of another node would fit.
    if not is_shown and not _shows_content(page):
        is_shown = _add_excerpt(page, criteria, index, limit_tokens, needs_passage=False)
    return [] if is_shown else [index]


def _shows_content(page: Page) -> bool:
    """Return whether more than headings is shown."""
    return any(
        block.level is not DetailLevel.TITLE and page.forest.chars[index]
        for index, block in page.blocks.items()
    )


def _estimate_values(
    relevance: "NDArray[np.floating]", tokens: "NDArray[np.float64]"
) -> "NDArray[np.floating]":
    """The value of each node, as a logarithm, because only the order matters."""
    values: NDArray[np.floating] = _RELEVANCE_WEIGHT * relevance - _LENGTH_PENALTY * np.log(tokens)
    return values


def _best_indexes(
    relevance: "NDArray[np.floating]", values: "NDArray[np.floating]", max_count: int
) -> list[int]:
    """The indexes with the highest values, best first, without irrelevant ones."""
    relevant = np.flatnonzero(relevance > _MIN_RELEVANCE)
    if max_count < len(relevant):
        relevant = relevant[np.argpartition(-values[relevant], max_count)[:max_count]]
    best: list[int] = relevant[np.argsort(-values[relevant], kind="stable")].tolist()
    return best


def _fill_whole(page: Page, criteria: SelectionCriteria, indexes: Sequence[int], limit_tokens: int) -> None:
    """Show nodes completely while they fit, and an excerpt of the first that does not."""
    max_node_tokens = int(limit_tokens * _MAX_NODE_SHARE)
    shows_some = any(block.level is DetailLevel.FULL for block in page.blocks.values())
    run: list[int] = []
    for index in [*indexes, None]:
        if index is not None and page.forest.chars[index] <= max_node_tokens * _CHARS_PER_TOKEN:
            run.append(index)
            continue
        # The best match must be shown in part, even if all of another node would fit.
        first_miss = page.add_nodes(
            run, DetailLevel.FULL, limit_tokens, max_misses=_MAX_MISSES if shows_some else 0
        )
        if first_miss is not None:
            page.count()
            _add_excerpt(page, criteria, first_miss, limit_tokens, needs_passage=_shows_content(page))
            page.add_nodes(run, DetailLevel.FULL, limit_tokens)
            return
        run = []
        # Ranking the lines of a long text is slow, and would be useless from now on.
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
    used_tokens = page.used_tokens
    near_tokens = max(limit_tokens // _NEAR_PART, -(-used_tokens // step) * step)
    far_tokens = used_tokens + max(limit_tokens - near_tokens, 0)
    before, after = (lambda indexes: indexes < start), (lambda indexes: indexes >= end)
    _fill_titles(
        page, _titles_by_depth(forest, criteria, after), used_tokens + (far_tokens - used_tokens) // _AFTER_PART
    )
    _fill_titles(page, _titles_by_depth(forest, criteria, before), far_tokens)
    _fill_titles(page, _titles_by_depth(forest, criteria, after), far_tokens)
    similar_tokens = min(limit_tokens, page.used_tokens + limit_tokens // _SIMILAR_PART)
    page.add_nodes(_similar_nodes(criteria)[:_STEPS], DetailLevel.FULL, similar_tokens)
    nearest = _first_that_may_fit(_nearest_nodes(forest, criteria, focus), limit_tokens)
    for _ in range(_ROUNDS):
        page.add_nodes(nearest, DetailLevel.TITLE, limit_tokens)
        page.count()
    _fill_whole(page, criteria, nearest, limit_tokens)


def _titles_by_depth(
    forest: "Forest",
    criteria: SelectionCriteria,
    where: "Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None" = None,
) -> "Iterator[NDArray[np.int64]]":
    """Nodes of the same depth together, the newest first."""
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
    """The nodes of the focus's document by distance in the tree, then in document order."""
    start, distances = forest.distances(focus)
    indexes = np.argsort(distances, kind="stable") + start
    return criteria.visible(indexes[(indexes >= criteria.scope_range[0]) & (indexes < criteria.scope_range[1])])


def _children(forest: "Forest", index: int) -> list[int]:
    descendants = np.arange(index + 1, int(forest.end[index]))
    return [int(child) for child in descendants[forest.parent[descendants] == index]]


def _similar_nodes(criteria: SelectionCriteria) -> list[int]:
    """Nodes above the similarity threshold, the most similar first."""
    first, last = criteria.scope_range
    similarity = criteria.similarity[first:last]
    similar = np.flatnonzero(similarity >= criteria.threshold)
    ordered = criteria.visible(similar[np.argsort(-similarity[similar], kind="stable")] + first)
    return [index for index in ordered.tolist() if index != criteria.focus]


def _first_that_may_fit(indexes: "NDArray[np.int64]", room_tokens: int) -> list[int]:
    candidates: list[int] = indexes[: max(room_tokens, 0) // _MIN_TITLE_TOKENS + 1].tolist()
    return candidates
