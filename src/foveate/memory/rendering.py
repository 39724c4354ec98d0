"""Rendering: from a forest, and what is looked for in it, to a view within its limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from foveate.errors import BudgetExceeded
from foveate.memory.blocks import content, heading
from foveate.memory.excerpts import Stretch, ranked
from foveate.memory.forest import Forest
from foveate.memory.levels import Wish, fill, outline
from foveate.memory.page import Page
from foveate.memory.view import View, ViewFormat
from foveate.memory.words import words
from foveate.tokens.gauge import Gauge

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.memory.relevance import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is looked at: a node, what matches a query, both or neither, in all of the forest or a part of it.

    `scores` are those to the query, otherwise to the focus; None where there is neither.
    """

    inside: tuple[int, int]
    focus: int | None = None
    query: str | None = None
    scores: "Scores | None" = None
    threshold: float = 0.75
    nearness: float = 0.0
    """What it counts beside a query to stand near the focus."""
    hidden: "NDArray[np.bool_] | None" = None
    """Whether each node is left out; None: none is."""


def render(forest: Forest, look: Look, *, limit_tokens: int | None, form: ViewFormat, gauge: Gauge) -> View:
    """What is shown of `forest`: whoever looks sees the focus whole, and the rest as far as there is room.

    Raises:
        BudgetExceeded: not even the title of the focus fits.
    """
    nothing = np.zeros(len(forest.nodes), np.float32)
    similarity = nothing if look.scores is None else look.scores.similarity
    relevance = nothing if look.scores is None else _relevance(forest, look, look.scores.relevance)
    wish = Wish(
        inside=look.inside,
        focus=look.focus,
        relevance=None if look.query is None else relevance,
        similarity=similarity,
        threshold=look.threshold,
        stretches=None if look.query is None else _best_stretches(forest, form, look.query),
        hidden=look.hidden,
    )
    first, last = look.inside
    similar = np.flatnonzero(similarity[first:last] >= look.threshold) + first
    page = Page(
        forest,
        gauge,
        form,
        first=first,
        promoted={place: float(similarity[place]) for place in similar.tolist() if place != look.focus},
    )
    if limit_tokens is None:
        outline(page, wish)
    else:
        _look_at(page, look.focus, limit_tokens)
        must = page.blocks.copy()
        if look.focus is None or not page.stands_free(look.focus):
            fill(page, wish, limit_tokens)
        while page.count().upper > limit_tokens and len(page.blocks) > len(must):
            page.take_off_last()
        if page.used_tokens > limit_tokens:  # what must be there was made longer
            page.blocks = must
    return page.view(limit_tokens, {place: _score(place, look.focus, relevance) for place in page.blocks})


def _relevance(forest: Forest, look: Look, relevance: "NDArray[np.float32]") -> "NDArray[np.float32]":
    """What matches the query; with a focus, what stands near it a little more."""
    if look.query is None or look.focus is None or not look.nearness:
        return relevance
    start, distances = forest.distances(look.focus)
    near = relevance.copy()
    near[start : start + len(distances)] += np.float32(look.nearness) / (1 + np.maximum(distances - 1, 0))
    return np.minimum(near, np.float32(1))


def _score(place: int, focus: int | None, relevance: "NDArray[np.float32]") -> float:
    return 1.0 if place == focus else round(float(relevance[place]), 4)


def _look_at(page: Page, focus: int | None, limit_tokens: int) -> None:
    """Put the focus on the page with what it stands in: whole, else cut, else its title.

    Raises:
        BudgetExceeded: not even that fits.
    """
    if focus is None:
        return
    if not page.put_excerpt(focus, limit_tokens) and not page.put_alone(focus, limit_tokens):
        title = heading(page.forest.nodes[focus], page.form, int(page.forest.depth[focus]))
        tokens = page.gauge.tape(title).total.upper
        raise BudgetExceeded(
            f"the title of the focus takes {tokens:,} of {limit_tokens:,} tokens",
            "raise the limit",
            limit_tokens=limit_tokens,
            tokens=tokens,
            sections=(),
        )


def _best_stretches(forest: Forest, form: ViewFormat, query: str) -> Callable[[int], Sequence[Stretch]]:
    """For a node, the stretches of its content that match a query, the best first."""
    wanted = frozenset(words(query))
    # To go through a long text takes a while, and it may be tried with more than one room.
    return cache(lambda place: ranked(content(forest.nodes[place], form), wanted))
