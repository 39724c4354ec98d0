"""Render a view of a forest within a token limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from foveate.errors import BudgetExceeded
from foveate.memory.forest import Forest
from foveate.memory.search.words import split_words
from foveate.memory.views.page import Page, Passage, content_text, rank_passages, render_heading
from foveate.memory.views.select import SelectionCriteria, fill_outline, fill_page
from foveate.memory.views.view import View, ViewFormat
from foveate.tokens.text_meter import TextMeter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from foveate.memory.search.relevance import NodeScores


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
    criteria = SelectionCriteria(
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
        fill_outline(page, criteria)
    else:
        _add_focus(page, target.focus, limit_tokens)
        required_blocks = page.blocks.copy()
        if target.focus is None or not page.lacks_ancestor(target.focus):
            fill_page(page, criteria, limit_tokens)
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
