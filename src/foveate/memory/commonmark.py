"""Where the headings of a Markdown text stand, by CommonMark, as markdown-it-py reads it.

It takes its time, and 24 times the memory of the text. So most of a text is read without it: a line that begins
with `#` is a heading wherever it stands, except in a fence or in HTML, whose ends are easily seen where they
begin a line too. Stretches with anything else are given to it, from the beginning of one block of the text to
that of another, where what came before no longer matters.
"""

import re
from functools import cache
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.common.utils import mdTrim
from markdown_it.rules_block.html_block import HTML_SEQUENCES
from markdown_it.token import Token

# Each list takes two of these. Deeper than this, the library would skip the rest of the text.
_DEEPEST = 200
# Before a stretch, a place is looked for from which it can be read, so many times.
_TRIES = 16

_NOTED = re.compile(
    r"^(#{1,6})(?=[ \t]|$)|^ {0,3}(?:```|~~~|<|=+[ \t]*$|-+[ \t]*$)|^ {1,3}#",
    re.MULTILINE,
)
_FENCE = re.compile(r"(?:(`{3,})[^`\n]*|(~{3,})[^\n]*)$", re.MULTILINE)


class Found(NamedTuple):
    """A heading of the text itself, not of a quote or a list in it."""

    start: int
    body: int
    level: int
    title: str


def headings(text: str, *, stretch_chars: int = 4096) -> list[Found]:
    """All of them, in a text whose lines end with LF.

    So much is given to the library at a time, and more where that is all one block.
    """
    return _Scan(text, stretch_chars).headings()


def judged(text: str, base: int = 0) -> tuple[list[Found], int]:
    """What the library itself finds, and where the last block begins before which nothing can change any more.

    A definition of a link may go on for lines and take them back from other blocks, but not over a blank line,
    a heading with `#` or a fence. `base` is where `text` begins.
    """
    tokens = _library().parse(text)
    starts = [0, *(found.end() for found in re.finditer("\n", text)), len(text)]
    found, last = [], 0
    for number, token in enumerate(tokens):
        if token.level or not token.map or token.nesting < 0:
            continue
        # A last line of blanks has no number.
        first, after = (min(line, len(starts) - 1) for line in token.map)
        start, end = starts[first], starts[after]
        if (
            token.type == "fence"
            or token.markup[:1] == "#"
            or not text[starts[first - 1] : start].strip(" \t\n")
        ):
            last = start
        if token.type == "heading_open":
            found.append(Found(base + start, base + end, int(token.tag[1]), _joined(tokens[number + 1])))
    return found, base + last


def _joined(inline: Token) -> str:
    return " ".join(inline.content.split("\n"))


@cache
def _library() -> MarkdownIt:
    library = MarkdownIt("commonmark", {"maxNesting": _DEEPEST})
    library.core.ruler.enableOnly(["normalize", "block"])
    return library


class _Scan:
    """One pass over a text, that leaves to the library what it must."""

    def __init__(self, text: str, stretch_chars: int) -> None:
        self._text = text
        self._stretch_chars = stretch_chars
        self._found: list[Found] = []
        # Here a block of the text itself begins, whatever came before.
        self._sure = 0

    def headings(self) -> list[Found]:
        text, at = self._text, 0
        while noted := _NOTED.search(text, at):
            start = noted.start()
            if noted[1]:
                at = self._heading(start, len(noted[1]))
            elif text[start] in "`~":
                at = self._fence(start)
            elif text[start] == "<":
                at = self._html(start)
            elif text[start] in "=-":
                at = self._underline(start)
            else:
                at = self._stretch(start)
        return self._found

    def _heading(self, start: int, level: int) -> int:
        end = self._after_line(start)
        self._found.append(Found(start, end, level, _title(self._text[start + level : end].rstrip("\n"))))
        self._sure = end
        return end

    def _fence(self, start: int) -> int:
        """Where a fence that begins a line ends; without an end it takes the rest."""
        opened = _FENCE.match(self._text, start)
        if not opened:
            return self._after_line(start)
        mark = opened[1] or opened[2]
        closing = re.compile(rf"^ {{0,3}}{mark[0]}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
        closed = closing.search(self._text, opened.end())
        self._sure = self._after_line(closed.end()) if closed else len(self._text)
        return self._sure

    def _html(self, start: int) -> int:
        """Where HTML that begins a line ends."""
        end = self._after_line(start)
        line = self._text[start:end].rstrip("\n")
        sequence = next((each for each in HTML_SEQUENCES if each[0].search(line)), None)
        if not sequence:
            return end
        _, ends, can_interrupt = sequence
        if not can_interrupt and not self._begins_block(start):
            return end if self._begins_text(self._line_before(start)) else self._stretch(start)
        while not ends.search(line):
            if end == len(self._text):
                self._sure = end
                return end
            begin, end = end, self._after_line(end)
            line = self._text[begin:end].strip(" \t\n")
        self._sure = end
        return end

    def _underline(self, start: int) -> int:
        """Where a line of `=` or `-` ends, with a heading if there is a single line of text to underline."""
        end = self._after_line(start)
        if self._begins_block(start):
            return end
        above = self._line_before(start)
        if not self._begins_text(above):
            return self._stretch(start)
        level = 1 if self._text[start] == "=" else 2
        self._found.append(Found(above, end, level, _trimmed(self._text[above:start])))
        self._sure = end
        return end

    def _begins_block(self, start: int) -> bool:
        """Whether it is known that what begins at this line without blanks before it is a block of the text."""
        return start == self._sure or not self._text[self._line_before(start) : start].strip(" \t\n")

    def _begins_text(self, start: int) -> bool:
        """Whether it is known that a paragraph begins at this line."""
        return self._text[start].isalpha() and self._begins_block(start)

    def _line_before(self, start: int) -> int:
        return self._text.rfind("\n", 0, max(start - 1, 0)) + 1

    def _stretch(self, start: int) -> int:
        """What the library finds from before `start` to the beginning of some block behind it."""
        text, sure = self._text, self._sure_before(start)
        size = self._stretch_chars
        while True:
            end = max(text.rfind("\n", start, start + size) + 1, self._after_line(start))
            if start + size >= len(text):
                end = len(text)
            found, last = judged(text[sure:end], sure)
            if end == len(text) or last > start:
                break
            size *= 4
        if end == len(text):
            self._found += found
            return end
        self._found += [heading for heading in found if heading.start < last]
        self._sure = last
        return last

    def _sure_before(self, start: int) -> int:
        """The last place at which a block is known to begin: one that is not indented, below a blank line."""
        at = start
        for _ in range(_TRIES):
            at = self._text.rfind("\n\n", self._sure, at + 1)
            if at < 0:
                break
            if at + 2 <= start and self._text[at + 2 : at + 3].strip():
                return at + 2
        return self._sure

    def _after_line(self, at: int) -> int:
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end + 1


def _title(rest: str) -> str:
    """The title of a heading from what is behind its first signs, as the library takes it."""
    rest = rest.strip(" \t")
    bare = rest.rstrip("#")
    if not bare:
        return ""
    if bare[-1] in " \t":
        rest = bare
    return _trimmed(rest)


def _trimmed(title: str) -> str:
    return mdTrim(title).replace("\0", "\ufffd")
