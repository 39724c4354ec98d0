"""Parse Markdown notes into outlines.

Besides CommonMark headings: front matter, tags in headings and in lines of their own, states and dates as in
Org, and ids in braces.

markdown-it-py is slow and needs 24 times the memory of the text. So most text is scanned without it: a line
that starts with `#` is a heading, except in fences and HTML, whose ends are easy to find if they start a line
too. Only ambiguous parts are parsed by the library, from the start of one block to the start of another where
earlier text no longer matters.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.common.utils import mdTrim
from markdown_it.rules_block.html_block import HTML_SEQUENCES
from markdown_it.token import Token
from msgspec.structs import replace

from foveate.memory.parsing.front_matter import FrontMatter, parse_front_matter, tags_in_front_matter
from foveate.memory.parsing.outline import (
    CHECKBOX_STATES,
    NO_PROPERTIES,
    PLANNING_START,
    Outline,
    OutlineEntry,
    ParseProblems,
    PlanningDate,
    TagScope,
    TagToken,
    parse_planning,
    split_priority,
    split_state,
    split_tags,
)
from foveate.memory.parsing.tag_tokens import (
    CodeRanges,
    Mentions,
    TagLine,
    TagText,
    TextBlocks,
    find_tag_lines,
    tags_in_heading,
)

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
        while candidate := _CANDIDATE_LINE.search(text, position):
            start = candidate.start()
            if candidate[1]:
                position = self._scan_heading(start, len(candidate[1]))
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
        """Return whether an unindented line certainly starts a top-level block."""
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
    rest = rest.strip(" \t")
    bare = rest.rstrip("#")
    if not bare:
        return ""
    if bare[-1] in " \t":
        rest = bare
    return _trim(rest)


def _trim(title: str) -> str:
    return mdTrim(title).replace("\0", "\ufffd")


_TODO_STATES = frozenset({"TODO", "DONE"})
_CHECKBOX = re.compile(r"\[([ xX])\](?!\S)\s*")
# A number is an issue, not a tag.
_TAG = re.compile(r"#(?=\S*[^\W\d_])([\w@%][^\s#,;]*)[,;]?\Z")
_ATTRIBUTE = re.compile(r"[#.][^\s{}]+\Z|[\w:-]+=\S*\Z")
# Tags and attributes at the end of a heading may alternate this often.
_MAX_HEADING_SUFFIXES = 8
_BLANK = re.compile(r"[ \t\n]*")
_CODE_OR_LINK = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))"
    r"|\[\[(?:[^\[\]|]*\|)?(?P<page>[^\[\]|]+)\]\]"
    r"|!?\[(?P<text>[^\[\]]*)\]\((?:<[^<>]*>|[^()\s]*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)"
    r"|<(?P<address>[A-Za-z][A-Za-z0-9+.-]*:[^\s<>]*)>"
)
# A longer line is not a line of tags.
_MAX_TAG_LINE_CHARS = 2000
# Searching for links in longer titles is slow.
_MAX_LINKED_TITLE_CHARS = 500

# A heading that is in the wrong place, lacks a space after its signs, or uses Org syntax.
_LIKE_HEADING = re.compile(
    r"^(?>(?:[^\S\n]++|[\ufeff>]|(?:[-*+]|\d{1,9}[.)]|\[[ xX-]\]|\[\^[^\]\s]{1,60}\]:)[^\S\n])*)"
    r"(#{1,6})[^\S\n]*([^#\s].*)$"
    r"|^(\*+)[ \t]+(\S.*)$"
    r"|^([^\n]+)\n[ \t>]{0,20}(=+|-+)[ \t]*$",
    re.MULTILINE,
)
_HTML_HEADING = re.compile(r"<(/?)(?:h[1-6]|summary)(?![^\s>])", re.IGNORECASE)
_MAX_HTML_HEADING_CHARS = 1000
# At the top of a file it applies to the whole file, whatever follows.
_FIRST_HASHTAG = re.compile(r"[\s\ufeff]*+[#＃]([^\s#]+)")


def parse_markdown(text: str, *, name: str = "") -> Outline:
    """Parse a Markdown file; `name` is its default title.

    The title is in the front matter. If there is none there, or the same, a first heading without siblings is
    the title, and what is below it is the text of the file.

    Headings in code fences, quotes, lists and HTML do not count. A line of hashtags applies to the heading
    directly above it, or at the top to the file.
    """
    return _MarkdownParser(text).parse(name)


def _has_title_heading(preamble: str, entries: Sequence[OutlineEntry]) -> bool:
    """Return whether the first heading is the title of the file: no text before it and no sibling."""
    if preamble.strip() or not entries or entries[0].level != 1:
        return False
    return all(entry.level > 1 for entry in entries[1:])


def _merge_title_heading(file: OutlineEntry, first: OutlineEntry) -> OutlineEntry:
    has_id = bool(file.properties.get("ID", "").strip())
    return replace(
        first,
        start=file.start,
        level=0,
        title=first.title or file.title,
        tags=tuple(dict.fromkeys(file.tags + first.tags)),
        properties=file.properties if has_id else {**file.properties, **first.properties},
        planning_dates=file.planning_dates + first.planning_dates,
    )


class _MarkdownHeader(NamedTuple):
    """Tags and planning directly below a heading, and the start of the content after them."""

    content: int
    tags: tuple[str, ...]
    planning_dates: tuple[PlanningDate, ...]


class _MarkdownParser:
    """Parses a text, mostly the part below the front matter, with LF line ends."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._problems = ParseProblems(text)
        # A single CR ends a line too. Positions stay the same.
        self._lines = re.sub(r"\r(?!\n)", "\n", text) if "\r" in text else text
        self._front_matter = parse_front_matter(self._lines)
        self._body, self._to_original_index = _normalize_line_ends(text[self._front_matter.end :])
        # The start of the content below each heading, in the body.
        self._contents: list[int] = []

    def parse(self, name: str) -> Outline:
        for problem in self._front_matter.problems:
            self._problems.add(0, problem)
        headings = find_headings(self._body)
        ends = [*(heading.start for heading in headings), len(self._body)]
        header = self._read_header(0, ends[0])
        entries = [self._heading_entry(heading, end) for heading, end in zip(headings, ends[1:], strict=True)]
        # Unreadable front matter stays part of the content.
        is_read = self._front_matter.content == self._front_matter.end
        file = OutlineEntry(
            start=0,
            body=1 if self._text[:1] == "\ufeff" else 0,
            content=self._file_index(header.content) if is_read else self._front_matter.content,
            end=self._file_index(ends[0]),
            level=0,
            title=self._front_matter.title or name,
            tags=tuple(dict.fromkeys(self._front_matter.tags + header.tags)),
            properties=self._front_matter.properties,
            planning_dates=self._front_matter.planning_dates + header.planning_dates,
        )
        title_entries = None
        if is_read and _has_title_heading(self._body[header.content : ends[0]], entries):
            title = " ".join(entries[0].title.split())
            if not self._front_matter.title or self._front_matter.title == title:
                title_entries = file, entries[0]
                file, *entries = _merge_title_heading(file, entries[0]), *entries[1:]
        entries = [file, *entries]
        tokens = _MarkdownTokens(
            lines=self._lines,
            body=self._body,
            file_index=self._file_index,
            front_matter=self._front_matter,
            headings=headings,
            contents=self._contents,
            entries=entries,
        )
        return Outline(self._text, entries, self._problems.to_messages(), tokens, title_entries)

    def _file_index(self, index: int) -> int:
        return self._front_matter.end + self._to_original_index(index)

    def _heading_entry(self, match: MarkdownHeading, end: int) -> OutlineEntry:
        heading = _parse_heading(match.title)
        body = min(match.body, end)
        header = self._read_header(body, end)
        self._contents.append(header.content)
        return OutlineEntry(
            start=self._file_index(match.start),
            body=self._file_index(body),
            content=self._file_index(header.content),
            end=self._file_index(end),
            level=match.level,
            title=heading.title,
            tags=heading.tags + header.tags,
            todo=heading.todo,
            is_done=heading.todo == "DONE",
            priority=heading.priority,
            properties={"ID": heading.id} if heading.id else NO_PROPERTIES,
            planning_dates=header.planning_dates,
        )

    def _read_header(self, start: int, end: int) -> _MarkdownHeader:
        content = start
        tags: list[str] = []
        stamps: list[PlanningDate] = []
        while blank := _BLANK.match(self._body, content, end):
            position = self._body.rfind("\n", content, blank.end()) + 1 or content
            after = self._body.find("\n", position, end) + 1 or end
            line = self._body[position:after] if after - position <= _MAX_TAG_LINE_CHARS else ""
            if hashtags := _parse_hashtags(line.split()):
                tags += hashtags
            elif PLANNING_START.match(line) and (planning := parse_planning(line)):
                stamps += planning.dates
                for problem in planning.problems:
                    self._problems.add(self._file_index(position), problem)
                if not planning.is_complete_line:
                    break
            else:
                break
            content = after
        return _MarkdownHeader(content, tuple(tags), tuple(stamps))


@dataclass(frozen=True)
class _MarkdownTokens:
    lines: str
    """The text of the file; a single CR is replaced by LF."""
    body: str
    """The text below the front matter, with LF line ends."""
    file_index: Callable[[int], int]
    """Converts positions in the body to positions in the file."""
    front_matter: FrontMatter
    headings: Sequence[MarkdownHeading]
    contents: Sequence[int]
    """The start of the content below each heading."""
    entries: Sequence[OutlineEntry]

    @cached_property
    def _blocks(self) -> TextBlocks:
        return TextBlocks(self.lines, CodeRanges.from_fences(self.lines))

    @cached_property
    def _code(self) -> CodeRanges:
        return CodeRanges.from_fences(self.body)

    @cached_property
    def _starts(self) -> list[int]:
        return [heading.start for heading in self.headings]

    def find_block(self, position: int, start: int, end: int) -> tuple[int, int]:
        return self._blocks.find_range(position, start, end)

    def find(self, mentions: Mentions) -> Iterator[TagToken]:
        for tag in self._tags_of_file(mentions):
            yield TagToken(0, *tag, TagScope.FILE)
        for heading in self.headings:
            if mentions(heading.title):
                for tag in _heading_tags(heading.title):
                    yield TagToken(self.file_index(heading.start), *tag, TagScope.HEADING)
        tag_lines = [line for line in find_tag_lines(self.body, mentions) if line.start not in self._code]
        yield from self._find_suspected_headings(mentions, {line.start for line in tag_lines})
        yield from self._scope_tag_lines(tag_lines)
        yield from self._blocks.find_tokens(self.entries, mentions)

    def _tags_of_file(self, mentions: Mentions) -> Iterator[TagText]:
        """Tags in the front matter and at the top, and in HTML headings: what belongs to these is unknown."""
        if mentions(self.front_matter.source) or mentions(self.front_matter.unparsed):
            yield from tags_in_front_matter(self.front_matter)
        if first := _FIRST_HASHTAG.match(self.body):
            yield TagText(first[1])
        html_tags = list(_HTML_HEADING.finditer(self.body))
        ends = [*(tag.start() for tag in html_tags), len(self.body)][1:]
        for opened, end in zip(html_tags, ends, strict=True):
            text = self.body[opened.end() : min(end, opened.end() + _MAX_HTML_HEADING_CHARS)]
            if not opened[1] and mentions(text) and opened.start() not in self._code:
                yield from tags_in_heading(text)

    def _find_suspected_headings(self, mentions: Mentions, tag_lines: Container[int]) -> Iterator[TagToken]:
        """Find lines that look like headings, but are in other places.

        What such a line applies to is unknown if it is also a line of tags, so it applies to the file.
        """
        for match in _LIKE_HEADING.finditer(self.body):
            line = match[2] or match[4] or match[5]
            if not mentions(line) or _parse_hashtags(match[0].split()):
                continue
            number = bisect_right(self._starts, match.start()) - 1
            if number >= 0 and match.start() < self.headings[number].body:
                continue
            if match[3] and "#" in line:
                # With stars it is an Org heading, in which `#` does not mark a tag, or a list item.
                line = line.replace("#", " ")
            level = len(match[1] or match[3] or "") or (1 if match[6][0] == "=" else 2)
            is_for_file = match.start() in tag_lines or self._is_title(match.start(), level, line)
            scope = TagScope.FILE if is_for_file else TagScope.HEADING
            for tag in _heading_tags(line):
                yield TagToken(self.file_index(match.start()), *tag, scope, level)

    def _is_title(self, start: int, level: int, line: str) -> bool:
        """Return whether a heading at this position would be the title of the file."""
        if level != 1 or self.lines[self.entries[0].content : self.file_index(start)].strip():
            return False
        title = " ".join(_parse_heading(line).title.split())
        return self.front_matter.title in ("", title) and all(heading.level > 1 for heading in self.headings)

    def _scope_tag_lines(self, tag_lines: Iterable[TagLine]) -> Iterator[TagToken]:
        """Lines of tags apply to the heading if they are in the first paragraph below it, else to the file."""
        paragraph_end = cache(self._paragraph_end)
        for start, tag in tag_lines:
            number = bisect_right(self._starts, start) - 1
            is_below = number >= 0 and self.headings[number].body <= start < paragraph_end(number)
            yield TagToken(self.file_index(start), *tag, TagScope.HEADING if is_below else TagScope.FILE)

    def _paragraph_end(self, number: int) -> int:
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self.body)
        blank = _BLANK.match(self.body, self.contents[number], end)
        paragraph_end = self.body.find("\n\n", blank.end() if blank else self.contents[number], end)
        return end if paragraph_end < 0 else paragraph_end


def _heading_tags(line: str) -> Iterator[TagText]:
    heading = _parse_heading(line)
    yield from (TagText(tag, is_whole=True) for tag in heading.tags)
    yield from map(TagText, heading.classes)
    yield from tags_in_heading(line)


def _normalize_line_ends(text: str) -> tuple[str, Callable[[int], int]]:
    """Replace all line ends by LF, and return a function that converts positions back."""
    if "\r" not in text:
        return text, int
    removed = [line_end.start() - number for number, line_end in enumerate(re.finditer("\r\n", text))]
    return re.sub("\r\n?", "\n", text), lambda index: index + bisect_left(removed, index)


class _HeadingLine(NamedTuple):
    title: str
    tags: tuple[str, ...]
    todo: str
    priority: str
    id: str
    classes: tuple[str, ...]


def _parse_heading(line: str) -> _HeadingLine:
    """Parse a heading: tags and attributes at its end, in any order, and the state at its start."""
    title, id_ = line.strip(), ""
    tags: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    for _ in range(_MAX_HEADING_SUFFIXES):
        attributes = _heading_attributes(title)
        if attributes:
            id_ = id_ or next((word[1:] for word in attributes if word[0] == "#"), "")
            classes = (*(word[1:] for word in attributes if word[0] == "."), *classes)
            title = title[: title.rindex("{")].rstrip()
        title, hashtags = _split_hashtags(title)
        title, org_tags = split_tags(title)
        if not attributes and not hashtags and not org_tags:
            break
        tags = org_tags + hashtags + tags
    title, todo = split_state(title, _TODO_STATES)
    title, priority = split_priority(title)
    if not todo and (box := _CHECKBOX.match(title)):
        title, todo = title[box.end() :], CHECKBOX_STATES[box[1]]
    return _HeadingLine(_plain_title(title), tags, todo, priority, id_, classes)


def _heading_attributes(title: str) -> list[str]:
    """The words in braces at the end of a title, such as `{#id .class key=value}`."""
    words = title[title.rfind("{") + 1 : -1].removeprefix(":").split() if title[-1:] == "}" else []
    return words if "{" in title and all(map(_ATTRIBUTE.match, words)) else []


def _split_hashtags(title: str) -> tuple[str, tuple[str, ...]]:
    if "#" not in title:
        return title, ()
    words = title.split()
    count = 0
    while count < len(words) and _TAG.match(words[-1 - count]):
        count += 1
    if not count:
        return title, ()
    return title.rsplit(None, count)[0] if count < len(words) else "", _parse_hashtags(words[-count:])


def _parse_hashtags(words: Sequence[str]) -> tuple[str, ...]:
    if not words or words[0][0] != "#":
        return ()
    matches = [_TAG.match(word) for word in words]
    return tuple(tag[1] for tag in matches if tag) if all(matches) else ()


def _plain_title(title: str) -> str:
    title = title.strip()
    if not ("[" in title or "<" in title) or len(title) > _MAX_LINKED_TITLE_CHARS:
        return title
    return _CODE_OR_LINK.sub(_link_text, title)


def _link_text(match: re.Match[str]) -> str:
    return match["code"] or match["page"] or match["text"] or match["address"] or ""
