"""Nodes and views of a memory as text and as JSON objects."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.tables import GAP, Cell, Column, Fit, Styled, format_table, join_styled, shorten_middle
from foveate.memory.nodes import Node, NoteDocument
from foveate.memory.parsing.outline import PlanningDate, PlanningKind
from foveate.memory.views.view import DetailLevel, View

if TYPE_CHECKING:
    from foveate.model import TokenCount

_INDENT = "  "
_MIN_TITLE_CELLS, _MAX_TITLE_CELLS = 16, 120
_NODE_COLUMNS = (
    Column(),  # id
    Column(optional=True),  # TODO state
    Column(fit=Fit.WRAP, min_cells=_MIN_TITLE_CELLS),  # title
    Column(optional=True, drop_order=2),  # tags
    Column(fit=Fit.SHORTEN, drop_order=1),  # file
)


def view_summary(view: View, *, model: str, nodes: int) -> str:
    count, limit = view.count, view.limit_tokens
    tokens = f"{format_tokens(count.tokens, count.exact)} tokens"
    if limit is not None:
        tokens = f"{format_tokens(count.tokens, count.exact)} of {limit:,} tokens"
    accuracy = "exact" if count.exact else f"estimated, upper bound {count.upper:,}"
    levels = [node.level for node in view.nodes]
    counts = ", ".join(
        f"{levels.count(level):,} {word}"
        for level, word in (
            (DetailLevel.FULL, "full"),
            (DetailLevel.EXCERPT, "excerpt"),
            (DetailLevel.TITLE, "title"),
        )
        if level in levels
    )
    others = f"{nodes - len(levels):,} not shown"
    return f"{tokens}, {model}, {accuracy}; {nodes:,} nodes: {f'{counts}, ' if counts else ''}{others}"


def view_object(view: View, *, model: str, focus: str | None) -> dict[str, object]:
    return {
        "tokens": view.tokens,
        "limit_tokens": view.limit_tokens,
        "text": view.text,
        "nodes": [asdict(node) for node in view.nodes],
        "count": asdict(view.count),
        "model": model,
        "focus": focus,
    }


def node_object(node: Node) -> dict[str, object]:
    return {
        "id": node.id,
        "title": node.title,
        "type": node.type,
        "todo": node.todo,
        "is_done": node.entry.is_done,
        "priority": node.entry.priority,
        "tags": sorted(node.tags),
        "path": node.document.path,
        "parent": node.parent.id if node.parent else None,
        "modified": node.modified.isoformat(),
        "scheduled": _planned_time(node, PlanningKind.SCHEDULED),
        "deadline": _planned_time(node, PlanningKind.DEADLINE),
    }


def node_lines(nodes: Sequence[Node], display: Display) -> list[str]:
    rows: list[list[Cell]] = [
        [
            Styled(node.id, "dim"),
            node.todo,
            _short_title(node, display),
            _format_tags(sorted(node.tags)),
            Styled(node.document.key, "dim"),
        ]
        for node in nodes
    ]
    return format_table(_NODE_COLUMNS, rows, display) if rows else []


def outline_lines(nodes: Iterable[Node], depth: int | None, display: Display) -> Iterator[str]:
    for document, level, node in _nodes_to_depth(nodes, depth):
        title = " ".join(filter(None, (node.todo, _priority(node), _short_title(node, display))))
        parts = [
            Styled(_INDENT * level + title, "" if level else "bold"),
            Styled(f"<<{node.id}>>", "dim"),
            Styled(_format_tags(node.entry.tags)),
        ]
        if not level:
            count = _count_tokens(document)
            node_count = len(document.nodes)
            tokens = f"{format_tokens(count.tokens, count.exact)} tokens"
            size = f"{node_count:,} node{'s' * (node_count != 1)}, {tokens}"
            parts += [Styled(document.key), Styled(size)]
        yield (" " * GAP).join(join_styled([part], display) for part in parts if part.text)


def outline_object(nodes: Iterable[Node], depth: int | None) -> dict[str, object]:
    files: list[dict[str, object]] = []
    node_objects: list[dict[str, object]] = []
    for document, level, node in _nodes_to_depth(nodes, depth):
        if not level:
            tokens = _count_tokens(document).tokens
            files.append({"id": node.id, "path": document.path, "nodes": len(document.nodes), "tokens": tokens})
        node_objects.append(
            {
                "id": node.id,
                "title": node.title,
                "depth": level,
                "parent": node.parent.id if node.parent else None,
                "todo": node.todo,
                "tags": list(node.entry.tags),
            }
        )
    return {"files": files, "nodes": node_objects}


def _nodes_to_depth(nodes: Iterable[Node], depth: int | None) -> Iterator[tuple[NoteDocument, int, Node]]:
    for document, document_nodes in groupby(nodes, key=lambda node: node.document):
        depths: dict[int, int] = {}  # node.depth would walk up to the root each time
        for node in document_nodes:
            level = depths[id(node)] = depths[id(node.parent)] + 1 if node.parent else 0
            if depth is None or level <= depth:
                yield document, level, node


def _count_tokens(document: NoteDocument) -> "TokenCount":
    import foveate

    return foveate.count(document.outline.text)


def _short_title(node: Node, display: Display) -> str:
    return shorten_middle(" ".join(node.title.split()), _MAX_TITLE_CELLS, display)


def _priority(node: Node) -> str:
    return f"[#{node.entry.priority}]" if node.entry.priority else ""


def _format_tags(tags: Iterable[str]) -> str:
    joined = ":".join(tags)
    return f":{joined}:" if joined else ""


def _planned_time(node: Node, kind: PlanningKind) -> str | None:
    return next((_format_stamp(stamp) for stamp in node.entry.planning_dates if stamp.kind is kind), None)


def _format_stamp(stamp: PlanningDate) -> str:
    return stamp.at.isoformat(timespec="minutes") if stamp.has_time else stamp.at.date().isoformat()
