"""The public `Memory` class: note files with queries and rendered views."""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Self

from foveate.budget.sections import check_token_limit
from foveate.errors import BadOption, MissingExtra
from foveate.extras import check_search
from foveate.memory.nodes import MIN_SHORT_ID_CHARS, Forest, Node, checklist_items, with_checklist_items
from foveate.memory.note_files import Problem
from foveate.memory.note_library import Changes, Library, LibraryState
from foveate.memory.privacy import Gate
from foveate.memory.queries import Query, active_projects, filter_nodes, is_project, recent_tasks
from foveate.memory.search.words import split_words
from foveate.memory.views.render import ViewTarget, render
from foveate.memory.views.view import (
    DEFAULT_LIMIT_TOKENS,
    View,
    ViewFormat,
    ViewFormatName,
    parse_view_format,
    read_semantic_threshold,
)
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.text_meter import text_meter_for

if TYPE_CHECKING:
    from foveate.memory.search.relevance import Index, NodeScores
    from foveate.paths import StrPath
    from foveate.tokens.text_meter import TextCounter

_LOG = logging.getLogger(__name__)
_MAX_LISTED_IDS = 8
# Comparing titles is slow.
_MAX_COMPARED_TITLES = 400


@dataclass(frozen=True, slots=True)
class _MemorySnapshot:
    state: LibraryState
    forest: Forest

    def node(self, id_or_title: str) -> Node:
        node = self.state.nodes.get(id_or_title)
        if node is not None:
            return node
        matches = [node for node in self.forest.nodes if node.title == id_or_title]
        if len(matches) == 1:
            return matches[0]
        what = "have the title"
        if not matches and (matches := self._find_by_short_id(id_or_title)):
            what = "have an id that starts with"
        matches = matches or self._find_items(id_or_title)
        if len(matches) == 1:
            return matches[0]
        if matches:
            ids = ", ".join(node.id for node in matches[:_MAX_LISTED_IDS])
            raise BadOption(f"{len(matches)} nodes {what} {id_or_title!r:.80}; use one of the ids: {ids}")
        similar_title = self._find_similar_title(id_or_title)
        hint = f"; did you mean {similar_title!r:.80}?" if similar_title else ""
        raise BadOption(f"the memory has no node {id_or_title!r:.80}{hint}")

    def find_index(self, target: str | Node) -> int:
        """Index of a node; of a checklist item, the node whose text contains it."""
        node = self.node(target.id if isinstance(target, Node) else target)
        owner = node.parent if node.parent is not None and node.id not in self.state.nodes else node
        index = self.forest.find_index(owner)
        assert index is not None  # both have the same documents
        return index

    def _find_by_short_id(self, start: str) -> list[Node]:
        if len(start) < MIN_SHORT_ID_CHARS or not start.isdecimal():
            return []
        return [node for node in self.forest.nodes if node.has_generated_id and node.id.startswith(start)]

    def _find_items(self, id_or_title: str) -> list[Node]:
        return [
            item
            for node in self.forest.nodes
            for item in checklist_items(node)
            if id_or_title in (item.id, item.title)
        ]

    def _find_similar_title(self, unknown_title: str) -> str | None:
        words, start = frozenset(split_words(unknown_title)), unknown_title[:2].casefold()
        titles = dict.fromkeys(node.title for node in self.forest.nodes)
        candidates = (
            title
            for title in titles
            if title[:2].casefold() == start or not words.isdisjoint(split_words(title))
        )
        return next(iter(get_close_matches(unknown_title, islice(candidates, _MAX_COMPARED_TITLES), n=1)), None)


class Memory:
    """Notes in Org and Markdown files as trees of nodes, without anything private.

    Safe to share between threads. Results reflect the last `refresh`.
    """

    def __init__(self, library: Library, gate: Gate, index: "Index | None" = None) -> None:
        self._library = library
        self._gate = gate
        self._given_index = index
        self._snapshot = _MemorySnapshot(library.state, Forest.from_documents(library.documents))
        self._lock = Lock()

    def __repr__(self) -> str:
        forest = self._snapshot.forest
        files, nodes = len(forest.documents), len(forest.nodes)
        return f"<Memory: {files:,} file{'s' * (files != 1)}, {nodes:,} node{'s' * (nodes != 1)}>"

    @classmethod
    def load(
        cls,
        *paths: "StrPath",
        private: Iterable[str] = ("private",),
        index: "Index | None" = None,
        follow_symlinks: bool = False,
    ) -> Self:
        """Read files and folders. `private` are additional tags that hide notes.

        Links that leave the folders are followed only with `follow_symlinks`.

        Raises:
            UnreadableInput: a path does not exist or cannot be read.
            BadOption: no path is given, or a tag is invalid.
        """
        if not paths:
            raise BadOption("a memory needs at least one file or folder")
        gate = Gate.with_tags(private)
        library = Library(paths, gate, follow_symlinks=follow_symlinks)
        library.refresh()
        return cls(library, gate, index)

    def refresh(self) -> Changes:
        """Read files that have changed."""
        with self._lock:
            changes = self._library.refresh()
            state, forest = self._library.state, self._snapshot.forest
            if state.documents != forest.documents:
                forest = Forest.from_documents(state.documents, forest)
            self._snapshot = _MemorySnapshot(state, forest)
            return changes

    @property
    def version(self) -> str:
        """Changes with every change of the memory."""
        return self._snapshot.state.version

    @property
    def privacy_tags(self) -> frozenset[str]:
        """The tags that hide notes."""
        return self._gate.tags

    def hides(self, tag: str) -> bool:
        """Return whether a tag hides notes."""
        return self._gate.is_private(tag)

    @property
    def has_private(self) -> bool:
        """Return whether something in the files has, or may be meant to have, a privacy tag and is hidden."""
        return self._snapshot.state.has_private

    @property
    def semantic_threshold(self) -> float:
        """The similarity from which a node is shown for it, as set in the environment.

        Raises:
            BadOption: the environment variable is not a number from 0 to 1.
        """
        return read_semantic_threshold(os.environ)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Files and folders that could not be read as intended."""
        return self._snapshot.state.problems

    @property
    def nodes(self) -> list[Node]:
        """Every node, in document order."""
        return self._snapshot.forest.nodes

    def node(self, wanted: str) -> Node:
        """The node with this id or, if there is none, the only one with this title or short id.

        Raises:
            BadOption: there is none, or there are several.
        """
        return self._snapshot.node(wanted)

    def query(
        self,
        *,
        tag: str | None = None,
        todo: str | None = None,
        type: str | None = None,  # noqa: A002 - public name
        text: str | None = None,
        since: str | None = None,
        until: str | None = None,
        now: datetime | None = None,
    ) -> list[Node]:
        """The nodes that match all given conditions, in document order; see `Query.parse`.

        With a condition on `todo` or `type`, checklist items of Markdown notes (`- [ ] …`) count as tasks.

        Raises:
            BadOption: a value cannot be parsed, such as an invalid date.
        """
        now = now or datetime.now()
        parsed = Query.parse(tag=tag, todo=todo, type=type, text=text, since=since, until=until, now=now)
        # Other queries find the node whose text contains an item.
        finds_items = todo is not None or type is not None
        return list(filter_nodes(with_checklist_items(self.nodes) if finds_items else self.nodes, parsed))

    def render(
        self,
        focus: str | Node | None = None,
        query: str | None = None,
        limit_tokens: int | None = DEFAULT_LIMIT_TOKENS,
        format: ViewFormat | ViewFormatName = "auto",  # noqa: A002 - public name
        *,
        scope: str | Node | None = None,
        model: "str | TextCounter" = "gpt-4o",
        semantic_threshold: float | None = None,
        finished_projects: bool = True,
    ) -> View:
        """Render the memory as text: the whole focus, what matches the query, and the rest as an outline.

        The text has at most `limit_tokens` of `model`. `focus` and `scope` are ids or titles; nothing outside
        the scope is shown. Without a limit, titles are shown down to the second level. Nodes with at least
        `semantic_threshold` similarity are shown; None takes it from the environment. Without
        `finished_projects`, finished projects are left out with everything below them.

        Raises:
            BadOption: there is no such node or format, or the limit is invalid.
            MissingExtra: a `query` needs packages that are not installed.
            BudgetExceeded: not even the title of the focus fits.
        """
        snapshot = self._snapshot
        forest = snapshot.forest
        view_format = parse_view_format(format)
        scope_range = (0, len(forest.nodes))
        if scope is not None:
            top = snapshot.find_index(scope)
            scope_range = (top, forest.end[top])
        focus_index = None if focus is None else snapshot.find_index(focus)
        if focus_index is not None and not scope_range[0] <= focus_index < scope_range[1]:
            raise BadOption(f"the focus {forest.nodes[focus_index].id} is not in the scope")
        used_query = query if query and query.strip() else None
        target = ViewTarget(
            scope_range=scope_range,
            focus=focus_index,
            query=used_query,
            scores=self._scores(forest, used_query, focus_index),
            threshold=self.semantic_threshold if semantic_threshold is None else semantic_threshold,
            nearness=self._index.weights.nearness if used_query and focus_index is not None else 0.0,
            hidden=None if finished_projects else _finished_project_mask(forest),
        )
        meter = text_meter_for(counter_for(model) if isinstance(model, str) else model)
        return render(
            forest, target, limit_tokens=_check_limit(limit_tokens), view_format=view_format, meter=meter
        )

    @cached_property
    def _index(self) -> "Index":
        """The index of all words and meanings, created when a view first needs it.

        Raises:
            MissingExtra: it needs packages that are not installed.
        """
        if self._given_index is not None:
            return self._given_index
        check_search()
        from foveate.memory.search.relevance import Index

        return Index()

    def _scores(self, forest: Forest, query: str | None, focus: int | None) -> "NodeScores | None":
        if query is not None:
            return self._index.score_query(forest.documents, query)
        if focus is None:
            return None
        try:
            return self._index.score_node(forest.documents, forest.nodes[focus])
        except MissingExtra as error:
            _LOG.warning("notes that are similar to the focus are not shown: %s", error)
            return None

    def active_projects(self) -> list[Node]:
        """The unfinished projects, in document order."""
        return list(active_projects(self.nodes))

    def recent_tasks(self, limit: int = 10) -> list[Node]:
        """The tasks finished last, the newest first."""
        return recent_tasks(with_checklist_items(self.nodes), limit)


def find_private_version(memory: Memory) -> str:
    """Changes if something becomes private: what was shown before must then not be shown again."""
    return memory._snapshot.state.private_version


def _finished_project_mask(forest: Forest) -> bytearray | None:
    done = [index for index, node in enumerate(forest.nodes) if node.entry.is_done and is_project(node)]
    if not done:
        return None
    mask = bytearray(len(forest.nodes))
    for index in done:
        mask[index : forest.end[index]] = b"\1" * (forest.end[index] - index)
    return mask


def _check_limit(tokens: int | None) -> int | None:
    if tokens is None or check_token_limit(tokens, ("limit_tokens",)):
        return tokens
    raise BadOption(
        f"limit_tokens must be a number of tokens, 1 or more, not {tokens!r}", path=("limit_tokens",)
    )
