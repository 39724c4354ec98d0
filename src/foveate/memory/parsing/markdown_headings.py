"""Find the headings of a Markdown text as CommonMark defines them.

markdown-it-py is slow and needs 24 times the memory of the text. So most text is scanned without it: a line
that starts with `#` is a heading, except in fences and HTML, whose ends are easy to find if they start a line
too. Only ambiguous parts are parsed by the library, from the start of one block to the start of another where
earlier text no longer matters.
"""

import re
from functools import cache
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.common.utils import mdTrim
from markdown_it.rules_block.html_block import HTML_SEQUENCES
from markdown_it.token import Token

# Each list takes two levels. Beyond the limit, the library skips the rest of the text.
_MAX_NESTING = 200
# How many positions to try when searching backwards for the start of a block.
_MAX_TRIES = 16

_CANDIDATE_LINE = re.compile(
    r"^(#{1,6})(?=[ \t]|$)|^ {0,3}(?:```|~~~|<|=+[ \t]*$|-+[ \t]*$)|^ {1,3}#",
    re.MULTILINE,
)
_FENCE = re.compile(r"(?:(`{3,})[^`\n]*|(~{3,})[^\n]*)$", re.MULTILINE)


class MarkdownHeading(NamedTuple):
    """A top-level heading, not one in a quote or a list."""

    start: int
    body: int
    level: int
    title: str


def find_headings(text: str, *, chunk_chars: int = 4096) -> list[MarkdownHeading]:
    """Find all headings in a text with LF line ends.

    The library parses about `chunk_chars` at a time, more if that is one block.
    """
    return _HeadingScanner(text, chunk_chars).scan()


def parse_headings(text: str, base: int = 0) -> tuple[list[MarkdownHeading], int]:
    """The headings found by the library, and the start of the last block that is certain.

    A link definition can span lines and take them from other blocks, but not across a blank line, a `#` heading
    or a fence. `base` is the position of `text`.
    """
    tokens = _markdown_it().parse(text)
    starts = [0, *(headings.end() for headings in re.finditer("\n", text)), len(text)]
    headings, last_certain = [], 0
    for number, token in enumerate(tokens):
        if token.level or not token.map or token.nesting < 0:
            continue
        # A final blank line has no number.
        first, after = (min(line, len(starts) - 1) for line in token.map)
        start, end = starts[first], starts[after]
        if (
            token.type == "fence"
            or token.markup[:1] == "#"
            or not text[starts[first - 1] : start].strip(" \t\n")
        ):
            last_certain = start
        if token.type == "heading_open":
            headings.append(
                MarkdownHeading(base + start, base + end, int(token.tag[1]), _join_lines(tokens[number + 1]))
            )
    return headings, base + last_certain


def _join_lines(inline: Token) -> str:
    return " ".join(inline.content.split("\n"))


@cache
def _markdown_it() -> MarkdownIt:
    library = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING})
    library.core.ruler.enableOnly(["normalize", "block"])
    return library


class _HeadingScanner:
    """Scans a text once, and uses the library only if necessary."""

    def __init__(self, text: str, chunk_chars: int) -> None:
        self._text = text
        self._chunk_chars = chunk_chars
        self._headings: list[MarkdownHeading] = []
        # A top-level block starts here, whatever precedes it.
        self._known_block_start = 0

    def scan(self) -> list[MarkdownHeading]:
        text, position = self._text, 0
        while noted := _CANDIDATE_LINE.search(text, position):
            start = noted.start()
            if noted[1]:
                position = self._scan_heading(start, len(noted[1]))
            elif text[start] in "`~":
                position = self._scan_fence(start)
            elif text[start] == "<":
                position = self._scan_html(start)
            elif text[start] in "=-":
                position = self._scan_underline(start)
            else:
                position = self._scan_with_library(start)
        return self._headings

    def _scan_heading(self, start: int, level: int) -> int:
        end = self._after_line(start)
        self._headings.append(
            MarkdownHeading(start, end, level, _clean_title(self._text[start + level : end].rstrip("\n")))
        )
        self._known_block_start = end
        return end

    def _scan_fence(self, start: int) -> int:
        """Skip a fence; without an end it extends to the end of the text."""
        opened = _FENCE.match(self._text, start)
        if not opened:
            return self._after_line(start)
        fence = opened[1] or opened[2]
        closing = re.compile(rf"^ {{0,3}}{fence[0]}{{{len(fence)},}}[ \t]*$", re.MULTILINE)
        closed = closing.search(self._text, opened.end())
        self._known_block_start = self._after_line(closed.end()) if closed else len(self._text)
        return self._known_block_start

    def _scan_html(self, start: int) -> int:
        end = self._after_line(start)
        line = self._text[start:end].rstrip("\n")
        sequence = next((candidate for candidate in HTML_SEQUENCES if candidate[0].search(line)), None)
        if not sequence:
            return end
        _, ends, can_interrupt = sequence
        if not can_interrupt and not self._begins_block(start):
            return end if self._begins_paragraph(self._line_before(start)) else self._scan_with_library(start)
        while not ends.search(line):
            if end == len(self._text):
                self._known_block_start = end
                return end
            begin, end = end, self._after_line(end)
            line = self._text[begin:end].strip(" \t\n")
        self._known_block_start = end
        return end

    def _scan_underline(self, start: int) -> int:
        """Scan a line of `=` or `-`, which makes a heading of a single line of text above it."""
        end = self._after_line(start)
        if self._begins_block(start):
            return end
        title_start = self._line_before(start)
        if not self._begins_paragraph(title_start):
            return self._scan_with_library(start)
        level = 1 if self._text[start] == "=" else 2
        self._headings.append(MarkdownHeading(title_start, end, level, _trim(self._text[title_start:start])))
        self._known_block_start = end
        return end

    def _begins_block(self, start: int) -> bool:
        """Tell whether an unindented line certainly starts a top-level block."""
        return start == self._known_block_start or not self._text[self._line_before(start) : start].strip(
            " \t\n"
        )

    def _begins_paragraph(self, start: int) -> bool:
        return self._text[start].isalpha() and self._begins_block(start)

    def _line_before(self, start: int) -> int:
        return self._text.rfind("\n", 0, max(start - 1, 0)) + 1

    def _scan_with_library(self, start: int) -> int:
        """Let the library parse from before `start` to the start of a later block."""
        text, block_start = self._text, self._block_start_before(start)
        size = self._chunk_chars
        while True:
            end = max(text.rfind("\n", start, start + size) + 1, self._after_line(start))
            if start + size >= len(text):
                end = len(text)
            headings, last = parse_headings(text[block_start:end], block_start)
            if end == len(text) or last > start:
                break
            size *= 4
        if end == len(text):
            self._headings += headings
            return end
        self._headings += [heading for heading in headings if heading.start < last]
        self._known_block_start = last
        return last

    def _block_start_before(self, start: int) -> int:
        """The last certain start of a block: an unindented line after a blank one."""
        position = start
        for _ in range(_MAX_TRIES):
            position = self._text.rfind("\n\n", self._known_block_start, position + 1)
            if position < 0:
                break
            if position + 2 <= start and self._text[position + 2 : position + 3].strip():
                return position + 2
        return self._known_block_start

    def _after_line(self, position: int) -> int:
        end = self._text.find("\n", position)
        return len(self._text) if end < 0 else end + 1


def _clean_title(rest: str) -> str:
    """The title as the library reads it."""
    rest = rest.strip(" \t")
    bare = rest.rstrip("#")
    if not bare:
        return ""
    if bare[-1] in " \t":
        rest = bare
    return _trim(rest)


def _trim(title: str) -> str:
    return mdTrim(title).replace("\0", "\ufffd")
