"""Checklist items of Markdown notes (`- [ ] …`, `- [x] …`) as tasks.

An item is a node below the heading that contains it. It is not part of the forest: it stays in the text of that
heading, which shows it, and does not change the ids of other nodes. Items come from the public text of a node,
so what is private is not among them.
"""

import re
from collections.abc import Iterable, Iterator

from foveate.memory.nodes import Node, generate_id, make_child_node
from foveate.memory.parsing.markdown import CHECKBOX_STATES
from foveate.memory.parsing.org_syntax import PLANNING_ITEM, parse_planning
from foveate.memory.parsing.outline import OutlineEntry
from foveate.memory.parsing.parse import is_org

_ITEM = re.compile(r"^[ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]+\[([ xX])\][ \t]+(\S.*)$", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(`{3,}+|~{3,}+)[^\n]*+\n.*?(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
# Separates the identity of items from that of headings with the same title.
_ITEM_IDENTITY = "checklist item\0"


def with_checklist_items(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield each node, and after it the items in its text."""
    for node in nodes:
        yield node
        yield from checklist_items(node)


def checklist_items(node: Node) -> Iterator[Node]:
    text, entry = node.document.outline.text, node.entry
    if is_org(node.document.key) or text.find("[", entry.content, entry.end) < 0:
        return
    fences = [match.span() for match in _FENCE.finditer(text, entry.content, entry.end)]
    same_titled: dict[str, int] = {}
    for match in _ITEM.finditer(text, entry.content, entry.end):
        if any(start <= match.start() < end for start, end in fences):
            continue
        title = " ".join(PLANNING_ITEM.sub("", match[2]).split())
        number = same_titled[title] = same_titled.get(title, 0) + 1
        planning_start = PLANNING_ITEM.search(match[2])
        planning = parse_planning(match[2][planning_start.start() :]) if planning_start else None
        state = CHECKBOX_STATES[match[1]]
        item = OutlineEntry(
            start=match.start(),
            body=match.end(),
            content=match.end(),
            end=match.end(),
            level=entry.level + 1,
            title=title,
            todo=state,
            is_done=state == "DONE",
            planning_dates=planning.dates if planning else (),
        )
        yield make_child_node(node, item, generate_id(node.id, _ITEM_IDENTITY + title, number))
