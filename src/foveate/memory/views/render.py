"""Render a view of a forest within a token limit.

The nodes that it shows, and how much of each, are selected for the most relevance per token. With a query, the
best matches are shown, completely if possible. With a focus alone, the focus is shown completely, its
neighborhood as an outline, and titles of the rest. Titles before the focus come first, because a provider can
reuse the cached prompt before a change but not after it.
"""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from foveate.errors import BudgetExceeded
from foveate.memory.nodes import Forest
from foveate.memory.search.words import split_words
from foveate.memory.views.page import Page, Passage, content_text, rank_passages, render_heading
from foveate.memory.views.view import DetailLevel, View, ViewFormat
from foveate.tokens.text_meter import TextMeter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from foveate.memory.search.relevance import NodeScores

_MAX_OUTLINE_DEPTH = 2
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
class ViewTarget:
    """Content of a view: a focus, matches of a query, both or neither, within a scope.

    `scores` relate to the query, or else to the focus; None if there is neither.
    """

    scope_range: tuple[int, int]
    focus: int | None = None
    query: str | None = None
    scores: "NodeScores | None" = None
    threshold: float = 0.75
    nearness: float = 0.0
    """Weight of being near the focus, in addition to a query."""
    hidden: bytearray | None = None
    """Mask of nodes to leave out: 1 for each of them. None for none."""


def render(
    forest: Forest, target: ViewTarget, *, limit_tokens: int | None, view_format: ViewFormat, meter: TextMeter
) -> View:
    """Render the focus completely, and the rest as far as it fits.

    Raises:
        BudgetExceeded: not even the title of the focus fits.
    """
    similarity, relevance = None, None
    if target.scores is not None:
        similarity = target.scores.similarity
        relevance = _boost_near_focus(forest, target, target.scores.relevance)
    criteria = _SelectionCriteria(
        scope_range=target.scope_range,
        focus=target.focus,
        relevance=None if target.query is None else relevance,
        similarity=similarity,
        threshold=target.threshold,
        passages=None if target.query is None else _best_passages(forest, view_format, target.query),
        hidden=target.hidden,
    )
    first, last = target.scope_range
    similarity_scores: dict[int, float] = {}
    if similarity is not None:
        similar = (similarity[first:last] >= target.threshold).nonzero()[0] + first
        similarity_scores = {
            index: float(similarity[index]) for index in similar.tolist() if index != target.focus
        }
    page = Page(forest, meter, view_format, first=first, similarity_scores=similarity_scores)
    if limit_tokens is None:
        _fill_outline(page, criteria)
    else:
        _add_focus(page, target.focus, limit_tokens)
        required_blocks = page.blocks.copy()
        if target.focus is None or not page.lacks_ancestor(target.focus):
            _fill_page(page, criteria, limit_tokens)
        while page.count().upper > limit_tokens and len(page.blocks) > len(required_blocks):
            page.remove_last()
        if page.used_tokens > limit_tokens:  # required blocks were extended
            page.blocks = required_blocks
    return page.to_view(limit_tokens, {index: _score(index, target.focus, relevance) for index in page.blocks})


def _boost_near_focus(
    forest: Forest, target: ViewTarget, relevance: "NDArray[np.float32]"
) -> "NDArray[np.float32]":
    if target.query is None or target.focus is None or not target.nearness:
        return relevance
    import numpy as np

    start, distances = forest.distances(target.focus)
    boosted = relevance.copy()
    steps_between = np.maximum(np.asarray(distances) - 1, 0)
    boosted[start : start + len(distances)] += np.float32(target.nearness) / (1 + steps_between)
    return np.minimum(boosted, np.float32(1))


def _score(index: int, focus: int | None, relevance: "NDArray[np.float32] | None") -> float:
    if index == focus:
        return 1.0
    return 0.0 if relevance is None else round(float(relevance[index]), 4)


def _add_focus(page: Page, focus: int | None, limit_tokens: int) -> None:
    """Add the focus with its ancestors: completely, else cut, else its title.

    Raises:
        BudgetExceeded: not even the title fits.
    """
    if focus is None:
        return
    if not page.add_excerpt(focus, limit_tokens) and not page.add_title(focus, limit_tokens):
        title = render_heading(
            page.forest.nodes[focus],
            page.view_format,
            page.forest.depth[focus],
            short_id=page.forest.short_ids[focus],
        )
        tokens = page.meter.measure(title).total.upper
        raise BudgetExceeded(
            f"the title of the focus takes {tokens:,} tokens, but the limit is {limit_tokens:,}",
            "raise the limit",
            limit_tokens=limit_tokens,
            tokens=tokens,
            sections=(),
        )


def _best_passages(forest: Forest, view_format: ViewFormat, query: str) -> Callable[[int], Sequence[Passage]]:
    query_words = frozenset(split_words(query))
    # Ranking a long text is slow, and it may be tried with different room.
    return cache(lambda index: rank_passages(content_text(forest.nodes[index], view_format), query_words))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SelectionCriteria:
    """Criteria by which a view selects nodes. Indexes are those of the forest, and `scope_range` is the visible
    part.

    `relevance`, `similarity` and the mask `hidden` have one item per node. `passages` returns the passages of a
    node's content, best first. Only nodes with scores need NumPy.
    """

    scope_range: tuple[int, int]
    focus: int | None
    relevance: "NDArray[np.float32] | None"
    similarity: "NDArray[np.float32] | None"
    threshold: float
    passages: "Callable[[int], Sequence[Passage]] | None"
    hidden: bytearray | None = None

    def visible(self, indexes: Iterable[int]) -> Iterator[int]:
        (first, last), hidden = self.scope_range, self.hidden
        return (index for index in indexes if first <= index < last and not (hidden and hidden[index]))


def _fill_outline(page: Page, criteria: _SelectionCriteria) -> None:
    forest, (first, last) = page.forest, criteria.scope_range
    endless = sys.maxsize
    max_depth = (forest.depth[first] if last > first else 0) + _MAX_OUTLINE_DEPTH
    indexes = [index for index in criteria.visible(range(first, last)) if forest.depth[index] <= max_depth]
    page.add_nodes(indexes, DetailLevel.TITLE, endless)
    if criteria.focus is not None:
        page.add_nodes([criteria.focus], DetailLevel.FULL, endless)
        page.add_nodes(_children(forest, criteria.focus), DetailLevel.TITLE, endless)
    page.add_nodes(_similar_nodes(criteria), DetailLevel.FULL, endless)


def _fill_page(page: Page, criteria: _SelectionCriteria, limit_tokens: int) -> None:
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


def _fill_titles(page: Page, depths: Iterable[Iterable[int]], room_tokens: int) -> None:
    for indexes in depths:
        if page.used_tokens + _MIN_TITLE_TOKENS > room_tokens:
            break
        candidates = _first_that_may_fit(indexes, room_tokens - page.used_tokens)
        page.add_nodes(candidates, DetailLevel.TITLE, room_tokens)
        if candidates and page.blocks.keys().isdisjoint(candidates):
            break  # deeper nodes need one of these as an ancestor


def _fill_by_relevance(
    page: Page, criteria: _SelectionCriteria, relevance: "NDArray[np.float32]", limit_tokens: int
) -> None:
    """Show the best matches: short files completely if they fit, otherwise node by node."""
    import numpy as np

    first, last = criteria.scope_range
    if first == last:
        return
    tokens = np.asarray(page.forest.chars)[first:last] / _CHARS_PER_TOKEN + 2 * _MIN_TITLE_TOKENS
    node_relevance = relevance[first:last]
    if criteria.hidden is not None:
        node_relevance = node_relevance * ~np.frombuffer(criteria.hidden, np.bool_)[first:last]
    starts = np.asarray(page.forest.piece_starts)
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


def _add_piece(page: Page, criteria: _SelectionCriteria, indexes: range, limit_tokens: int) -> bool:
    """Show a short file completely, unless it takes most of the page or is partly hidden."""
    if criteria.hidden is not None and any(criteria.hidden[indexes.start : indexes.stop]):
        return False
    chars = sum(page.forest.chars[indexes.start : indexes.stop])
    is_small = chars <= limit_tokens * _MAX_NODE_SHARE * _CHARS_PER_TOKEN
    return is_small and page.add_all_or_none(indexes, limit_tokens)


def _add_node(page: Page, criteria: _SelectionCriteria, index: int, limit_tokens: int) -> list[int]:
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
    return any(
        block.level is not DetailLevel.TITLE and page.forest.chars[index]
        for index, block in page.blocks.items()
    )


def _estimate_values(
    relevance: "NDArray[np.floating]", tokens: "NDArray[np.float64]"
) -> "NDArray[np.floating]":
    """The value of each node, as a logarithm, because only the order matters."""
    import numpy as np

    values: NDArray[np.floating] = _RELEVANCE_WEIGHT * relevance - _LENGTH_PENALTY * np.log(tokens)
    return values


def _best_indexes(
    relevance: "NDArray[np.floating]", values: "NDArray[np.floating]", max_count: int
) -> list[int]:
    import numpy as np

    relevant = np.flatnonzero(relevance > _MIN_RELEVANCE)
    if max_count < len(relevant):
        relevant = relevant[np.argpartition(-values[relevant], max_count)[:max_count]]
    best: list[int] = relevant[np.argsort(-values[relevant], kind="stable")].tolist()
    return best


def _fill_whole(page: Page, criteria: _SelectionCriteria, indexes: Sequence[int], limit_tokens: int) -> None:
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
    page: Page, criteria: _SelectionCriteria, index: int, room_tokens: int, *, needs_passage: bool = True
) -> bool:
    if index in page.blocks and page.blocks[index].level is DetailLevel.FULL:
        return True
    best = criteria.passages(index) if criteria.passages else None
    return page.add_excerpt(index, room_tokens, best, needs_passage=needs_passage)


def _fill_around_focus(page: Page, criteria: _SelectionCriteria, focus: int, limit_tokens: int) -> None:
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
    forest: "Forest", criteria: _SelectionCriteria, where: Callable[[int], bool] | None = None
) -> Iterator[Iterator[int]]:
    """Nodes of the same depth together, the newest first."""
    is_all = criteria.scope_range == (0, len(forest.nodes))
    order = forest.newest_first if is_all else forest.sort_newest_first(*criteria.scope_range)
    depth_of, start = forest.depth.__getitem__, 0
    while start < len(order):
        end = bisect_left(order, depth_of(order[start]) + 1, start, key=depth_of)
        yield criteria.visible(filter(where, order[start:end]) if where else order[start:end])
        start = end


def _nearest_nodes(forest: "Forest", criteria: _SelectionCriteria, focus: int) -> Iterator[int]:
    """The nodes of the focus's document by distance in the tree, then in document order."""
    start, distances = forest.distances(focus)
    by_distance = sorted(range(len(distances)), key=distances.__getitem__)
    return criteria.visible(start + offset for offset in by_distance)


def _children(forest: "Forest", index: int) -> list[int]:
    return [child for child in range(index + 1, forest.end[index]) if forest.parent[child] == index]


def _similar_nodes(criteria: _SelectionCriteria) -> list[int]:
    if criteria.similarity is None:
        return []
    first, last = criteria.scope_range
    similarity = criteria.similarity[first:last]
    similar = (similarity >= criteria.threshold).nonzero()[0]
    ordered = similar[(-similarity[similar]).argsort(kind="stable")] + first
    return [index for index in criteria.visible(ordered.tolist()) if index != criteria.focus]


def _first_that_may_fit(indexes: Iterable[int], room_tokens: int) -> list[int]:
    return list(islice(indexes, max(room_tokens, 0) // _MIN_TITLE_TOKENS + 1))
