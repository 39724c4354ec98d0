"""The text of a node in a view: its heading, and below it as much as is shown."""

import re

from foveate.budget import graphemes
from foveate.memory.nodes import Node
from foveate.memory.stamps import parse_planning
from foveate.memory.view import ViewFormat

# What would be taken for a heading of the view, and is none. Org knows a star after a blank as a list.
_STARS = re.compile(r"^(?=\*+[ \t])", re.MULTILINE)
_HASHES = re.compile(r"^( {0,3})(?=#{1,6}(?:[ \t]|$))", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[^\n]*+\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN_LEVELS = 6
_MAX_TITLE_CHARS = 240


def render_heading(
    node: Node, view_format: ViewFormat, depth: int, score: float | None = None, *, shows_id: bool = True
) -> str:
    """The heading of a node, with its state, tags and id; with a score, also what it is shown for."""
    entry = node.entry
    title = _shorten_title(" ".join(node.title.split()))
    words = [entry.todo, f"[#{entry.priority}]" if entry.priority else "", title]
    line = " ".join(word for word in words if word)
    tags = f" :{':'.join(entry.tags)}:" if entry.tags else ""
    if view_format is ViewFormat.MARKDOWN:
        score_text = f" score={score:.2f}" if score is not None else ""
        shown = f" {{#{node.id}{score_text}}}" if shows_id or score_text else ""
        return f"{'#' * min(depth + 1, _MARKDOWN_LEVELS)} {line}{tags}{shown}"
    stars = "*" * (depth + 1)
    if score is None:
        return f"{stars} {line}{f' <<{node.id}>>' if shows_id else ''}{tags}"
    drawer = f":PROPERTIES:\n:ID: {node.id}\n:SEMANTIC_SCORE: {score:.2f}\n:END:"
    return f"{stars} {line}{tags}\n{drawer}"


def _shorten_title(title: str) -> str:
    """A title as far as it is one: a longer one would leave no room for what it stands above."""
    if len(title) <= _MAX_TITLE_CHARS:
        return title
    return f"{title[: graphemes.boundary_at_or_before(title, _MAX_TITLE_CHARS)].rstrip()}…"


def planning_text(node: Node) -> str:
    """When a node is scheduled, due or was closed, as it is written below its heading."""
    entry = node.entry
    if not entry.planning_dates:
        return ""
    # Those of a file may stand in its front matter.
    start = entry.body if entry.level else entry.start
    lines = map(str.strip, node.document.outline.text[start : entry.content].splitlines())
    return "\n".join(line for line in lines if parse_planning(line))


def content_text(node: Node, view_format: ViewFormat) -> str:
    """What a node says below that."""
    return _escape_headings(node.full_text, view_format)


def _escape_headings(content: str, view_format: ViewFormat) -> str:
    """`content` with nothing in it that would be taken for a heading of the view."""
    if view_format is ViewFormat.ORG:
        return _STARS.sub(" ", content) if "*" in content else content
    if "#" not in content:
        return content
    pieces, at = [], 0
    for fence in _FENCE.finditer(content):
        pieces += [_HASHES.sub(r"\1\\", content[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, _HASHES.sub(r"\1\\", content[at:])])
