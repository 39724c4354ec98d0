"""A page: a view while it is being filled, with the text of each node and passages of long contents."""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from foveate.budget import graphemes
from foveate.budget.ladder import parts_to_text
from foveate.budget.sections import Keep
from foveate.budget.truncate import TRUNCATED, AvailableRoom, TextParts, TruncatableText, truncate
from foveate.memory.nodes import Forest, Node
from foveate.memory.parsing import is_org
from foveate.memory.parsing.outline import parse_planning
from foveate.memory.search.words import split_words
from foveate.memory.views.view import DetailLevel, View, ViewFormat, ViewNode
from foveate.model import TokenCount
from foveate.tokens.text_meter import EMPTY_SEGMENT, TextMeter, TextPart

# Lines that would look like headings of the view. In Org, a star after a space is a list item.
_STARS = re.compile(r"^(?=\*+[ \t])", re.MULTILINE)
_HASHES = re.compile(r"^( {0,3})(?=#{1,6}(?:[ \t]|$))", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[^\n]*+\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN_LEVELS = 6
_MAX_TITLE_CHARS = 240


def render_heading(
    node: Node,
    view_format: ViewFormat,
    depth: int,
    score: float | None = None,
    *,
    shows_id: bool = True,
    short_id: str = "",
) -> str:
    """The heading of a node with state, tags and id; with a score if it is shown for its similarity.

    Markdown shows `short_id`, if it is given.
    """
    entry = node.entry
    view_format = _resolve_format(node, view_format)
    title = _shorten_title(" ".join(node.title.split()))
    words = [entry.todo, f"[#{entry.priority}]" if entry.priority else "", title]
    line = " ".join(word for word in words if word)
    tags = f" :{':'.join(entry.tags)}:" if entry.tags else ""
    if view_format is ViewFormat.MARKDOWN:
        score_text = f" score={score:.2f}" if score is not None else ""
        id_text = f" {{#{short_id or node.id}{score_text}}}" if shows_id or score_text else ""
        return f"{'#' * min(depth + 1, _MARKDOWN_LEVELS)} {line}{tags}{id_text}"
    stars = "*" * (depth + 1)
    if score is None:
        return f"{stars} {line}{f' <<{node.id}>>' if shows_id else ''}{tags}"
    drawer = f":PROPERTIES:\n:ID: {node.id}\n:SEMANTIC_SCORE: {score:.2f}\n:END:"
    return f"{stars} {line}{tags}\n{drawer}"


def _resolve_format(node: Node, view_format: ViewFormat) -> ViewFormat:
    if view_format is not ViewFormat.AUTO:
        return view_format
    return ViewFormat.ORG if is_org(node.document.key) else ViewFormat.MARKDOWN


def _shorten_title(title: str) -> str:
    if len(title) <= _MAX_TITLE_CHARS:
        return title
    return f"{title[: graphemes.boundary_at_or_before(title, _MAX_TITLE_CHARS)].rstrip()}…"


def planning_text(node: Node) -> str:
    entry = node.entry
    if not entry.planning_dates:
        return ""
    # The planning of a file may be in its front matter.
    start = entry.body if entry.level else entry.start
    lines = map(str.strip, node.document.outline.text[start : entry.content].splitlines())
    return "\n".join(line for line in lines if parse_planning(line))


def content_text(node: Node, view_format: ViewFormat) -> str:
    """The content of a node, with lines escaped that would look like headings."""
    return _escape_headings(node.full_text, _resolve_format(node, view_format))


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


def rank_passages(text: str, query_words: frozenset[str]) -> Sequence[Passage]:
    """The passages that are not blank, best first: those with the wanted words, rare ones most."""
    passages = list(split_passages(text))
    matches = [query_words.intersection(split_words(text[start:end])) for start, end in passages]
    word_counts = Counter(word for match in matches for word in match)
    own_scores = [sum(math.log1p(len(passages) / word_counts[word]) for word in match) for match in matches]
    padded_scores = [0.0, *own_scores, 0.0]
    scores = [
        score + _NEIGHBOUR_WEIGHT * (padded_scores[number] + padded_scores[number + 2])
        for number, score in enumerate(own_scores)
    ]
    non_blank = [number for number, (start, end) in enumerate(passages) if text[start:end].strip()]
    return [passages[number] for number in sorted(non_blank, key=lambda number: -scores[number])]


_LINE_BREAK = "\n"
# Measuring many blocks at once is much faster.
_BATCH_NODES = 64
# After this many nodes that do not fit, hardly any other will.
_MAX_MISSES = 24

# The longest tokens are runs of spaces.
_MAX_CHARS_PER_TOKEN = 128
# How many spaces between two lines are kept.
_MAX_BLANKS = 128

_LEVEL_RANKS = {DetailLevel.HIDDEN: 0, DetailLevel.TITLE: 1, DetailLevel.EXCERPT: 2, DetailLevel.FULL: 3}


@dataclass(frozen=True, slots=True)
class PageBlock:
    """A node on a page: its detail level, text, and tokens including the line end."""

    level: DetailLevel
    parts: TextParts
    tokens: int


@dataclass(slots=True)
class Page:
    """The shown nodes by their index in the forest.

    Ancestors are always shown: adding a node also costs the titles of its missing ancestors.
    """

    forest: Forest
    meter: TextMeter
    view_format: ViewFormat
    first: int = 0
    """Nodes before this index are never shown."""
    similarity_scores: Mapping[int, float] = field(default_factory=dict)
    """Similarity of the nodes that are shown for it, which their headings tell."""
    blocks: dict[int, PageBlock] = field(default_factory=dict)
    """In the order in which they were added."""
    used_tokens: int = 0

    def add_nodes(
        self, indexes: Sequence[int], level: DetailLevel, room_tokens: int, *, max_misses: int = _MAX_MISSES
    ) -> int | None:
        """Add the nodes that fit in `room_tokens`; return the first that does not.

        After more than `max_misses` of these no others are tried.
        """
        misses: list[int] = []
        for start in range(0, len(indexes), _BATCH_NODES):
            batch = [index for index in indexes[start : start + _BATCH_NODES] if self._shows_more(index, level)]
            measured_texts = self.meter.measure_many([self._node_text(index, level) for index in batch])
            for index, measured in zip(batch, measured_texts, strict=True):
                if not (
                    self._try_add(index, PageBlock(level, (measured,), measured.total.upper + 1), room_tokens)
                    or self._add_without_score(index, level, room_tokens)
                ):
                    misses.append(index)
                if len(misses) > max_misses:
                    return misses[0]
        return misses[0] if misses else None

    def add_all_or_none(self, indexes: Sequence[int], room_tokens: int) -> bool:
        adding = [index for index in indexes if self._shows_more(index, DetailLevel.FULL)]
        # One id is enough for all of them. Nodes that are shown already keep theirs.
        with_id = {indexes[0], *self.blocks}
        texts = [self._node_text(index, DetailLevel.FULL, shows_id=index in with_id) for index in adding]
        measured_texts = self.meter.measure_many(texts)
        blocks = {
            index: PageBlock(DetailLevel.FULL, (measured,), measured.total.upper + 1)
            for index, measured in zip(adding, measured_texts, strict=True)
        }
        replaced_tokens = sum(self.blocks[index].tokens for index in adding if index in self.blocks)
        tokens = self.used_tokens - replaced_tokens + sum(block.tokens for block in blocks.values())
        if tokens > room_tokens:
            return False
        self.blocks |= blocks
        self.used_tokens = tokens
        return True

    def add_excerpt(
        self,
        index: int,
        room_tokens: int,
        relevant: Sequence[Passage] | None = None,
        *,
        needs_passage: bool = False,
    ) -> bool:
        """Add as much of a node as fits: all, its start, or the `relevant` passages.

        `relevant` are passages of its content, best first. Nothing is added if only the heading fits or, with
        `needs_passage`, if the first passage does not fit completely.
        """
        ancestors = self._missing_ancestors(index)
        free_tokens = room_tokens - self._tokens_without(index) - (1 if self.blocks else 0)
        node, head = self.forest.nodes[index], self._heading_text(index)
        body_text, plan = content_text(node, self.view_format), planning_text(node)
        block = self._cut_block(ancestors, _join_lines(head, plan), body_text, free_tokens, relevant)
        if needs_passage:
            start, end = relevant[0] if relevant else next(split_passages(body_text))
            if block is None or body_text[start:end].rstrip() not in parts_to_text(block.parts):
                return False
        elif block is None and plan:
            block = self._planning_block(ancestors, head, plan.split(_LINE_BREAK), free_tokens)
        if block is None:
            return False
        self._add(index, block, ancestors)
        return True

    def add_title(self, index: int, room_tokens: int) -> bool:
        """Add the title of a node, and as many titles of its nearest ancestors as fit."""
        measured = self.meter.measure(self._node_text(index, DetailLevel.TITLE))
        if measured.total.upper > room_tokens:
            return False
        ancestors = list(self._missing_ancestors(index).items())[::-1]
        self.blocks[index] = PageBlock(DetailLevel.TITLE, (measured,), measured.total.upper + 1)
        tokens = measured.total.upper
        for ancestor, block in ancestors:
            # Next to others a title can take one token less, hardly ever more.
            tokens += block.tokens - 1
            if tokens > room_tokens:
                break
            self.blocks[ancestor] = block
        while self.count().upper > room_tokens:
            self.remove_last()
        return True

    def lacks_ancestor(self, index: int) -> bool:
        while (index := self.forest.parent[index]) >= self.first:
            if index not in self.blocks:
                return True
        return False

    def remove_last(self) -> None:
        self.used_tokens -= self.blocks.popitem()[1].tokens

    def count(self) -> TokenCount:
        """Count the whole page, and use this count from now on."""
        count = self.meter.count(self._all_parts())
        self.used_tokens = count.upper
        return count

    def to_view(self, limit_tokens: int | None, scores: Mapping[int, float]) -> View:
        nodes = self.forest.nodes
        return View(
            text=parts_to_text(self._all_parts()),
            count=self.count(),
            limit_tokens=limit_tokens,
            nodes=tuple(
                ViewNode(nodes[index].id, nodes[index].title, block.level, scores[index], block.tokens - 1)
                for index, block in sorted(self.blocks.items())
            ),
        )

    def _cut_block(
        self,
        ancestors: Mapping[int, PageBlock],
        opening: str,
        body_text: str,
        room_tokens: int,
        relevant: Sequence[Passage] | None = None,
    ) -> PageBlock | None:
        opening += _LINE_BREAK if body_text else ""
        before = self.meter.join([*_join_blocks(ancestors), _LINE_BREAK, opening] if ancestors else [opening])
        room = AvailableRoom(self.meter, room_tokens, (before, EMPTY_SEGMENT), (before, EMPTY_SEGMENT))
        # Do not measure text that certainly does not fit: it may have megabytes.
        max_chars = max(room_tokens, 1) * _MAX_CHARS_PER_TOKEN
        if relevant:
            body = _build_body(self.meter, body_text, _limit_passages(relevant, max_chars))
        else:
            text = body_text[:max_chars]
            body = TruncatableText(
                measured_text=self.meter.measure(text), keep=Keep.HEAD, start=0, end=len(text)
            )
        is_whole = (
            body.measured_text.text.rstrip() == body_text.rstrip()
            and room.remaining_tokens((body.measured_text,)) >= 0
        )
        body_parts = (body.measured_text,) if is_whole else truncate(body, room)
        if body_parts is None:
            return None
        parts = (opening, *body_parts)
        level = DetailLevel.FULL if is_whole else DetailLevel.EXCERPT
        return PageBlock(level, parts, self.meter.count(parts).upper + 1)

    def _planning_block(
        self, ancestors: Mapping[int, PageBlock], head: str, lines: Sequence[str], room_tokens: int
    ) -> PageBlock | None:
        """A heading with as many planning lines as fit, if nothing else does.

        Lines are never cut, because half a date is another date.
        """
        for size in range(len(lines), 0, -1):
            for marker in (TRUNCATED, ""):
                text = _join_lines(head, *lines[:size], marker)
                if (
                    self.meter.count([*_join_blocks(ancestors), _LINE_BREAK if ancestors else "", text]).upper
                    <= room_tokens
                ):
                    measured = self.meter.measure(text)
                    return PageBlock(DetailLevel.EXCERPT, (measured,), measured.total.upper + 1)
        return None

    def _add_without_score(self, index: int, level: DetailLevel, room_tokens: int) -> bool:
        if level is DetailLevel.TITLE or index not in self.similarity_scores:
            return False
        node = self.forest.nodes[index]
        head = self._plain_heading(index)
        measured = self.meter.measure(
            _join_lines(head, planning_text(node), content_text(node, self.view_format))
        )
        return self._try_add(index, PageBlock(level, (measured,), measured.total.upper + 1), room_tokens)

    def _node_text(self, index: int, level: DetailLevel, *, shows_id: bool = True) -> str:
        if level is DetailLevel.TITLE:
            return self._plain_heading(index)
        content = content_text(self.forest.nodes[index], self.view_format)
        return _join_lines(self._header_text(index, shows_id=shows_id), content)

    def _header_text(self, index: int, *, shows_id: bool = True) -> str:
        """The part of a node's text before its content, which is never cut."""
        return _join_lines(
            self._heading_text(index, shows_id=shows_id), planning_text(self.forest.nodes[index])
        )

    def _heading_text(self, index: int, *, shows_id: bool = True) -> str:
        node, depth = self.forest.nodes[index], self.forest.depth[index]
        return render_heading(
            node,
            self.view_format,
            depth,
            self.similarity_scores.get(index),
            shows_id=shows_id,
            short_id=self.forest.short_ids[index],
        )

    def _plain_heading(self, index: int) -> str:
        node, depth = self.forest.nodes[index], self.forest.depth[index]
        return render_heading(node, self.view_format, depth, short_id=self.forest.short_ids[index])

    def _shows_more(self, index: int, level: DetailLevel) -> bool:
        block = self.blocks.get(index)
        return block is None or _LEVEL_RANKS[level] > _LEVEL_RANKS[block.level]

    def _try_add(self, index: int, block: PageBlock, room_tokens: int) -> bool:
        ancestors = self._missing_ancestors(index)
        tokens = block.tokens + sum(ancestor.tokens for ancestor in ancestors.values())
        if self._tokens_without(index) + tokens > room_tokens:
            return False
        self._add(index, block, ancestors)
        return True

    def _add(self, index: int, block: PageBlock, ancestors: Mapping[int, PageBlock]) -> None:
        self.used_tokens = (
            self._tokens_without(index) + block.tokens + sum(ancestor.tokens for ancestor in ancestors.values())
        )
        self.blocks.update(ancestors)
        self.blocks[index] = block

    def _tokens_without(self, index: int) -> int:
        block = self.blocks.get(index)
        return self.used_tokens - (block.tokens if block else 0)

    def _missing_ancestors(self, index: int) -> dict[int, PageBlock]:
        missing = []
        while (index := self.forest.parent[index]) >= self.first and index not in self.blocks:
            missing.append(index)
        measured_texts = self.meter.measure_many(
            [self._node_text(index, DetailLevel.TITLE) for index in reversed(missing)]
        )
        return {
            index: PageBlock(DetailLevel.TITLE, (measured,), measured.total.upper + 1)
            for index, measured in zip(reversed(missing), measured_texts, strict=True)
        }

    def _all_parts(self) -> list[TextPart]:
        return _join_blocks(dict(sorted(self.blocks.items())))


def _join_blocks(blocks: Mapping[int, PageBlock]) -> list[TextPart]:
    return [part for block in blocks.values() for part in (_LINE_BREAK, *block.parts)][1:]


def _join_lines(*texts: str) -> str:
    return _LINE_BREAK.join(filter(None, texts))


def _limit_passages(ranked: Sequence[Passage], max_chars: int) -> Sequence[Passage]:
    ends = list(accumulate(end - start for start, end in ranked))
    return ranked[: bisect_right(ends, max_chars, lo=min(1, len(ends)))]


def _build_body(meter: TextMeter, body_text: str, relevant: Sequence[Passage]) -> TruncatableText:
    """Join passages in text order, each as an item, with the whitespace between them."""
    texts: list[str] = []
    items: dict[Passage, tuple[int, int]] = {}
    position = before = 0
    for start, end in sorted(relevant):
        blanks = body_text[before:start]
        if blanks.strip() or len(blanks) > _MAX_BLANKS:
            blanks = _LINE_BREAK
        texts += [blanks, body_text[start:end]]
        position += len(blanks)
        items[start, end] = (position, position + end - start)
        position, before = items[start, end][1], end
    numbers = {stretch: number for number, stretch in enumerate(items)}
    return TruncatableText(
        measured_text=meter.measure("".join(texts)),
        keep=Keep.RELEVANT,
        start=0,
        end=position,
        items=[*items.values()],
        ranking=[numbers[stretch] for stretch in relevant],
    )
