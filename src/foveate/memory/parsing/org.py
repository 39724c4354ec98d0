"""Parse Org notes into outlines.

Entries are found in one pass. orgparse does not keep positions, copies the file for each tree operation, fails
completely on one impossible date, and takes minutes for some lines. It is used only for TODO settings and
links.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orgparse.inline import to_plain_text
from orgparse.node import parse_seq_todo

from foveate.memory.parsing.outline import (
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
    find_lone_tag_lines,
    tags_in_heading,
    tags_in_property,
)

_BLOCK = "src|example|export|comment"
_HEADING_OR_SETTING = re.compile(
    # The space after the stars may be missing if there are tags at the end; unless the stars mark bold text.
    rf"^(?:(?>(?:[^\S\r\n]++|[\ufeff,])*)(\*+)(?:[^\S\r\n]|(?=[^\s*][^*\n]*:[ \t\r]*$))"
    rf"|[ \t\ufeff]*#\+(?:begin_({_BLOCK})(?!\S)|end_({_BLOCK})(?!\S)"
    r"|(filetags|title|todo|seq_todo|typ_todo)[ \t]*:))",
    re.MULTILINE | re.IGNORECASE,
)
_HEADING, _BLOCK_BEGIN, _BLOCK_END, _SETTING = 1, 2, 3, 4

# Settings of the whole file. Those of a table or an image stay with it.
_SETTINGS = re.compile(
    r"[ \t]*(?:#\+(archive|author|bind|category|columns|constants|creator|date|dependencies|depends|description"
    r"|email|exclude_tags|export_file_name|filetags|html_\w+|keywords|language|latex_\w+|link|options|priorities"
    r"|priority|property|select_tags|seq_todo|setupfile|startup|subtitle|tags|title|todo|typ_todo)[ \t]*:(.*)"
    r"|# -\*-.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_HANDLED_SETTINGS = frozenset({"FILETAGS", "TITLE", "TODO", "SEQ_TODO", "TYP_TODO"})
_DRAWER = re.compile(r"[ \t]*:(properties|logbook|clock):[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_END = re.compile(r"^[ \t]*:end:[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_PROPERTY = re.compile(r":(\S+):(?!\S)")
# In any position, to find tags.
_ANY_SETTING = re.compile(
    r"^[ \t\ufeff,]*+#\+[ \t]*+(filetags(?=[ \t])|[^\s:]++(?=[ \t]*:))[ \t]*:?(.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_PLANNING_LINE = re.compile(rf"^{PLANNING_START.pattern}.*$", re.MULTILINE | re.IGNORECASE)
_ANY_PROPERTY = re.compile(r"^[ \t]*:(\S+):(?:[ \t]+(.*))?$", re.MULTILINE)
# `#+TAGS: a b(c)` lists the available tags; a single tag is meant as FILETAGS.
_SINGLE_TAG = re.compile(r":\S+:|[^\s(){}\[\]]+")
_BLANK_LINES = re.compile(r"(?:[ \t\r]*\n)*")
# Searching for links in longer titles is slow.
_MAX_LINKED_TITLE_CHARS = 2000


def parse_org(text: str, *, name: str = "") -> Outline:
    """Parse an Org file; `name` is its default title.

    Headings in literal blocks such as `#+begin_src` do not count, unless the block is not closed. `#+FILETAGS`
    count everywhere outside of them.
    """
    return _OrgParser(text).parse(name)


_Properties = dict[str, list[str]]


class _OrgHeading(NamedTuple):
    start: int
    text_start: int
    level: int


class _OrgHeader(NamedTuple):
    """Properties and planning below a heading, and the start of the content after them."""

    content: int
    properties: _Properties
    planning_dates: tuple[PlanningDate, ...]


class _OrgParser:
    def __init__(self, text: str) -> None:
        self._text = text
        # A single CR ends a line too, as in files of old Macs. Positions stay the same.
        self._lines = re.sub(r"\r(?!\n)", "\n", text) if "\r" in text else text
        self._problems = ParseProblems(text)
        self._headings: list[_OrgHeading] = []
        # Those in literal blocks, and those with something before their stars or no space after them.
        self._suspected_headings: list[_OrgHeading] = []
        self._code: list[tuple[int, int]] = []
        self._title: list[str] = []
        self._file_tags: list[str] = []
        self._todo: list[str] = []
        self._done: list[str] = []

    def parse(self, name: str) -> Outline:
        self._scan()
        if not self._todo and not self._done:
            self._todo, self._done = ["TODO"], ["DONE"]
        states, done = frozenset(self._todo + self._done), frozenset(self._done)
        starts = [heading.start for heading in self._headings]
        ends = [*starts, len(self._text)]
        entries = [self._file_entry(ends[0], name)]
        for heading, end in zip(self._headings, ends[1:], strict=True):
            entries.append(self._heading_entry(heading, end, states, done))
        blocks = TextBlocks(self._lines, CodeRanges(self._code))
        tokens = _OrgTokens(self._lines, entries, self._suspected_headings, blocks)
        return Outline(self._text, entries, self._problems.to_messages(), tokens)

    def _scan(self) -> None:
        """Find headings and settings, also those in unclosed literal blocks."""
        block, opened = "", 0
        inside: list[re.Match[str]] = []
        for match in _HEADING_OR_SETTING.finditer(self._lines):
            kind = match.lastindex
            if kind == _BLOCK_BEGIN:
                # The previous block was never closed, so its contents count.
                self._accept(inside)
                block, opened, inside = match[_BLOCK_BEGIN].lower(), match.start(), []
            elif kind == _BLOCK_END:
                if block == match[_BLOCK_END].lower():
                    self._suspect(inside)
                    self._code.append((opened, match.end()))
                    block, inside = "", []
            elif block:
                inside.append(match)
            else:
                self._accept((match,))
        self._accept(inside)

    def _accept(self, matches: Iterable[re.Match[str]]) -> None:
        for match in matches:
            if match.lastindex == _SETTING:
                self._apply_setting(match[_SETTING].upper(), self._rest_of_line(match.end()).strip())
            elif _is_regular_heading(match):
                self._headings.append(_to_heading(match))
            else:
                self._suspect((match,))

    def _suspect(self, matches: Iterable[re.Match[str]]) -> None:
        for match in matches:
            if match.lastindex == _HEADING and not _is_list_item(match):
                self._suspected_headings.append(_to_heading(match))

    def _rest_of_line(self, position: int) -> str:
        end = self._lines.find("\n", position)
        return self._lines[position:] if end < 0 else self._lines[position:end]

    def _apply_setting(self, setting: str, value: str) -> None:
        match setting:
            case "TITLE":
                self._title.append(value)
            case "FILETAGS":
                self._file_tags += [tag for tag in re.split(r"[\s:,;]+", value) if tag.strip("#")]
            case _:
                todo, done = parse_seq_todo(value)
                if "|" not in value:
                    # orgparse knows no done state then; Org uses the last one.
                    todo, done = todo[:-1], todo[-1:]
                self._todo += todo
                self._done += done

    def _file_entry(self, end: int, name: str) -> OutlineEntry:
        body = content = position = 1 if self._text[:1] == "\ufeff" and end else 0
        properties: _Properties = {}
        stamps: list[PlanningDate] = []
        while position < end:
            blank = _BLANK_LINES.match(self._lines, position, end)
            position = blank.end() if blank else position
            if setting := _SETTINGS.match(self._lines, position, end):
                key = (setting[1] or "").upper()
                if key and key not in _HANDLED_SETTINGS:
                    properties.setdefault(key, []).append(setting[2].strip())
                position = content = min(setting.end() + 1, end)
                continue
            header = self._read_header(position, end)
            properties |= header.properties
            stamps += header.planning_dates
            if header.content == position:
                break
            position = content = header.content
        return OutlineEntry(
            start=0,
            body=body,
            content=content,
            end=end,
            level=0,
            title=_plain_title(" ".join(filter(None, self._title))) or name,
            tags=tuple(dict.fromkeys(self._file_tags)),
            properties=_join_values(properties),
            planning_dates=tuple(stamps),
        )

    def _heading_entry(
        self, heading: _OrgHeading, end: int, states: frozenset[str], done: frozenset[str]
    ) -> OutlineEntry:
        line_end = self._lines.find("\n", heading.text_start, end)
        body = end if line_end < 0 else line_end + 1
        line = self._lines[heading.text_start : body].strip()
        title, tags = split_tags(line)
        title, todo = split_state(title, states)
        title, priority = split_priority(title)
        header = self._read_header(body, end)
        return OutlineEntry(
            start=heading.start,
            body=body,
            content=header.content,
            end=end,
            level=heading.level,
            title=_plain_title(title),
            tags=tags,
            todo=todo,
            is_done=todo in done,
            priority=priority,
            properties=_join_values(header.properties),
            planning_dates=header.planning_dates,
        )

    def _read_header(self, position: int, end: int) -> _OrgHeader:
        properties: _Properties = {}
        stamps: list[PlanningDate] = []
        while position < end:
            if PLANNING_START.match(self._lines, position, end):
                line = self._rest_of_line(position)
                planning = parse_planning(line)
                if not planning:
                    break
                stamps += planning.dates
                for problem in planning.problems:
                    self._problems.add(position, problem)
                if not planning.is_complete_line:
                    break
                position = min(position + len(line) + 1, end)
            elif drawer := _DRAWER.match(self._lines, position, end):
                closed = _END.search(self._lines, drawer.end(), end)
                if drawer[1].lower() == "properties":
                    is_all = self._read_properties(properties, drawer.end(), closed.start() if closed else end)
                    if not is_all or not closed:
                        self._problems.add(position, "these properties contain invalid lines, or have no :END:")
                        break
                elif not closed:
                    break
                position = min(closed.end() + 1, end)
            else:
                break
        return _OrgHeader(position, properties, tuple(stamps))

    def _read_properties(self, properties: _Properties, position: int, end: int) -> bool:
        """Add the properties in these lines; False if there are other lines."""
        for line in self._lines[position:end].split("\n"):
            stripped = line.strip()
            matched = _PROPERTY.match(stripped)
            if matched:
                key, value = matched[1].upper(), stripped[matched.end() :].strip()
                # The first value counts, unless `KEY+` appends.
                if key[-1] == "+":
                    properties.setdefault(key[:-1], []).append(value)
                else:
                    properties.setdefault(key, [value])
            elif stripped:
                return False
        return True


@dataclass(frozen=True)
class _OrgTokens:
    lines: str
    """The text of the file; a single CR is replaced by LF."""
    entries: Sequence[OutlineEntry]
    suspected_headings: Sequence[_OrgHeading]
    blocks: TextBlocks

    def find_block(self, position: int, start: int, end: int) -> tuple[int, int]:
        return self.blocks.find_range(position, start, end)

    def find(self, mentions: Mentions) -> Iterator[TagToken]:
        for setting in _ANY_SETTING.finditer(self.lines):
            if mentions(setting[0]):
                for tag in _tags_in_setting(setting[1], setting[2]):
                    yield TagToken(setting.start(), *tag, TagScope.FILE)
        for heading in self.suspected_headings:
            line_end = self.lines.find("\n", heading.text_start)
            line = self.lines[heading.text_start : line_end if line_end >= 0 else None].strip()
            if mentions(line):
                for tag in tags_in_heading(line):
                    yield TagToken(heading.start, *tag, TagScope.HEADING, heading.level)
        for entry in self.entries:
            start = entry.body if entry.level else 0
            title, text = self.lines[entry.start : start].lstrip("\ufeff*"), self.lines[start : entry.end]
            if mentions(title):
                for tag in tags_in_heading(title):
                    yield TagToken(entry.start, *tag, TagScope.HEADING)
            if mentions(text):
                for line_start, tag in _find_tag_lines(text):
                    yield TagToken(start + line_start, *tag, TagScope.HEADING)
        yield from self.blocks.find_tokens(self.entries, mentions)


def _find_tag_lines(text: str) -> Iterator[TagLine]:
    """Tags in lines such as `:TAGS: a`, after planning, or alone in a line or comment."""
    for match in _ANY_PROPERTY.finditer(text):
        key, value = match[1].removesuffix("+"), (match[2] or "").strip()
        yield from (TagLine(match.start(), tag) for tag in tags_in_property(key, value))
        if not value:
            yield TagLine(match.start(), TagText(key))
    for line in _PLANNING_LINE.finditer(text):
        yield from (TagLine(line.start(), tag) for tag in tags_in_heading(line[0]))
    yield from find_lone_tag_lines(text)


def _tags_in_setting(key: str, value: str) -> Iterator[TagText]:
    key = key.removesuffix("+")
    match key.upper():
        case "TITLE":
            return tags_in_heading(value)
        case "PROPERTY":
            key, value = (*value.split(None, 1), "", "")[:2]
            return tags_in_property(key.removesuffix("+"), value)
        case "TAGS" if not _SINGLE_TAG.fullmatch(value.strip()):
            return iter(())
        case _:
            return tags_in_property(key, value)


def _is_regular_heading(heading: re.Match[str]) -> bool:
    """Return whether the stars start the line, followed by a space."""
    return heading[0][-1] == " " and _text_before_stars(heading) in ("", "\ufeff")


def _is_list_item(heading: re.Match[str]) -> bool:
    """Return whether it is a list item instead: a single star after whitespace."""
    before = _text_before_stars(heading)
    return bool(before) and len(heading[_HEADING]) == 1 and not before.strip(" \t")


def _text_before_stars(heading: re.Match[str]) -> str:
    return heading[0][: heading.start(_HEADING) - heading.start()]


def _to_heading(heading: re.Match[str]) -> _OrgHeading:
    return _OrgHeading(heading.start(), heading.end(), len(heading[_HEADING]))


def _join_values(properties: _Properties) -> Mapping[str, str]:
    return {key: " ".join(values) for key, values in properties.items()} if properties else NO_PROPERTIES


def _plain_title(title: str) -> str:
    title = title.strip()
    if "[[" not in title or len(title) > _MAX_LINKED_TITLE_CHARS:
        return title
    return to_plain_text(title)
