"""The text of a node in a view: its heading, and below it as much as is shown."""

import re

from foveate.memory.nodes import Node
from foveate.memory.outline import StampKind
from foveate.memory.view import ViewFormat

_PLANNING = re.compile(rf"^[ \t]*(?:{'|'.join(kind.name for kind in StampKind)}):[^\n]*$", re.MULTILINE)
# What would be taken for a heading of the view, and is none. Org knows a star after a blank as a list.
_STARS = re.compile(r"^(?=\*+[ \t])", re.MULTILINE)
_HASHES = re.compile(r"^(?=#{1,6}(?:[ \t]|$))", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN_LEVELS = 6


def heading(node: Node, form: ViewFormat, depth: int, score: float | None = None) -> str:
    """The heading of a node, with its state, tags and id; with a score, what it promoted the node by."""
    entry = node.entry
    title = " ".join(node.title.split())
    words = [entry.todo, f"[#{entry.priority}]" if entry.priority else "", title]
    line = " ".join(word for word in words if word)
    tags = f" :{':'.join(entry.tags)}:" if entry.tags else ""
    if form is ViewFormat.MARKDOWN:
        said = f" score={score:.2f}" if score is not None else ""
        return f"{'#' * min(depth + 1, _MARKDOWN_LEVELS)} {line}{tags} {{#{node.id}{said}}}"
    stars = "*" * (depth + 1)
    if score is None:
        return f"{stars} {line} <<{node.id}>>{tags}"
    drawer = f":PROPERTIES:\n:ID: {node.id}\n:SEMANTIC_SCORE: {score:.2f}\n:END:"
    return f"{stars} {line}{tags}\n{drawer}"


def body(node: Node, form: ViewFormat) -> str:
    """What stands below the heading of a node that is shown in full: its planning and its content."""
    entry = node.entry
    between = node.document.outline.text[entry.body : entry.content]
    planning = [line.strip() for line in _PLANNING.findall(between)] if entry.stamps else []
    content = node.content
    return "\n".join([*planning, _shielded(content, form)] if content else planning)


def _shielded(content: str, form: ViewFormat) -> str:
    """`content` with nothing in it that would be taken for a heading of the view."""
    if form is ViewFormat.ORG:
        return _STARS.sub(" ", content) if "*" in content else content
    if "#" not in content:
        return content
    pieces, at = [], 0
    for fence in _FENCE.finditer(content):
        pieces += [_HASHES.sub(r"\\", content[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, _HASHES.sub(r"\\", content[at:])])
