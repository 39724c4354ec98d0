"""The text of a node in a view: heading, planning and content, and passages of long contents."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from foveate.budget import graphemes
from foveate.memory.nodes import Node
from foveate.memory.parsing.org_syntax import parse_planning
from foveate.memory.search.words import split_words
from foveate.memory.views.view import ViewFormat

# Lines that would look like headings of the view. In Org, a star after a space is a list item.
_STARS = re.compile(r"^(?=\*+[ \t])", re.MULTILINE)
_HASHES = re.compile(r"^( {0,3})(?=#{1,6}(?:[ \t]|$))", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[^\n]*+\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN_LEVELS = 6
_MAX_TITLE_CHARS = 240


def render_heading(
    node: Node, view_format: ViewFormat, depth: int, score: float | None = None, *, shows_id: bool = True
) -> str:
    """The heading of a node with state, tags and id; with a score if it is shown for its similarity."""
    entry = node.entry
    title = _shorten_title(" ".join(node.title.split()))
    words = [entry.todo, f"[#{entry.priority}]" if entry.priority else "", title]
    line = " ".join(word for word in words if word)
    tags = f" :{':'.join(entry.tags)}:" if entry.tags else ""
    if view_format is ViewFormat.MARKDOWN:
        score_text = f" score={score:.2f}" if score is not None else ""
        id_text = f" {{#{node.id}{score_text}}}" if shows_id or score_text else ""
        return f"{'#' * min(depth + 1, _MARKDOWN_LEVELS)} {line}{tags}{id_text}"
    stars = "*" * (depth + 1)
    if score is None:
        return f"{stars} {line}{f' <<{node.id}>>' if shows_id else ''}{tags}"
    drawer = f":PROPERTIES:\n:ID: {node.id}\n:SEMANTIC_SCORE: {score:.2f}\n:END:"
    return f"{stars} {line}{tags}\n{drawer}"


def _shorten_title(title: str) -> str:
    """Shorten a title that would leave no room for content."""
    if len(title) <= _MAX_TITLE_CHARS:
        return title
    return f"{title[: graphemes.boundary_at_or_before(title, _MAX_TITLE_CHARS)].rstrip()}…"


def planning_text(node: Node) -> str:
    """The planning of a node, as written below its heading."""
    entry = node.entry
    if not entry.planning_dates:
        return ""
    # The planning of a file may be in its front matter.
    start = entry.body if entry.level else entry.start
    lines = map(str.strip, node.document.outline.text[start : entry.content].splitlines())
    return "\n".join(line for line in lines if parse_planning(line))


def content_text(node: Node, view_format: ViewFormat) -> str:
    """The content of a node, with lines escaped that would look like headings."""
    return _escape_headings(node.full_text, view_format)


def _escape_headings(content: str, view_format: ViewFormat) -> str:
    if view_format is ViewFormat.ORG:
        return _STARS.sub(" ", content) if "*" in content else content
    if "#" not in content:
        return content
    pieces, position = [], 0
    for fence in _FENCE.finditer(content):
        pieces += [_HASHES.sub(r"\1\\", content[position : fence.start()]), fence[0]]
        position = fence.end()
    return "".join([*pieces, _HASHES.sub(r"\1\\", content[position:])])


# A longer line is split, because it may be all that fits.
MAX_PASSAGE_CHARS = 500
_SENTENCE_ENDS = (". ", "! ", "? ", "。")
# A passage next to a match is useful too.
_NEIGHBOUR_WEIGHT = 0.3

Passage = tuple[int, int]
"""Start and end of a part of a text."""


def split_passages(text: str) -> Iterator[Passage]:
    """Split a text into lines without line ends, and long lines into parts."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        while end - start > MAX_PASSAGE_CHARS:
            after = _passage_end(text, start, start + MAX_PASSAGE_CHARS)
            yield start, after
            start = after
        yield start, end
        start = end + 1


def _passage_end(text: str, start: int, max_end: int) -> int:
    """The end of a part of a long line: after a sentence, a word, or a character."""
    for ends in (_SENTENCE_ENDS, (" ",)):
        last_end = max(text.rfind(end, start + 1, max_end) + len(end) for end in ends)
        if last_end > start + 1:
            return graphemes.boundary_at_or_after(text, last_end)
    end = graphemes.boundary_at_or_before(text, max_end)
    return end if end > start else graphemes.boundary_at_or_after(text, max_end)


def rank_passages(text: str, wanted: frozenset[str]) -> Sequence[Passage]:
    """The passages that are not blank, best first: those with the wanted words, rare ones most."""
    passages = list(split_passages(text))
    matches = [wanted.intersection(split_words(text[start:end])) for start, end in passages]
    word_counts = Counter(word for match in matches for word in match)
    own_scores = [sum(math.log1p(len(passages) / word_counts[word]) for word in match) for match in matches]
    padded_scores = [0.0, *own_scores, 0.0]
    scores = [
        score + _NEIGHBOUR_WEIGHT * (padded_scores[number] + padded_scores[number + 2])
        for number, score in enumerate(own_scores)
    ]
    non_blank = [number for number, (start, end) in enumerate(passages) if text[start:end].strip()]
    return [passages[number] for number in sorted(non_blank, key=lambda number: -scores[number])]
