"""Parse Org notes into outlines.

Entries are found in one pass. orgparse does not keep positions, copies the file for each tree operation, fails
completely on one impossible date, and takes minutes for some lines. It is used only for TODO settings and
links.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from orgparse.inline import to_plain_text
from orgparse.node import parse_seq_todo

from foveate.memory.parsing.org_syntax import (
    PLANNING_START,
    add_suspected_tag,
    parse_planning,
    split_priority,
    split_state,
    split_tags,
)
from foveate.memory.parsing.outline import NO_PROPERTIES, Outline, OutlineEntry, ParseProblems, PlanningDate
from foveate.memory.parsing.privacy_tags import (
    CodeRanges,
    find_lone_tag_lines,
    find_private_blocks,
    find_tag_in_heading,
    find_tag_in_property,
    find_tag_in_text,
    mentions_privacy_tag,
)
from foveate.memory.privacy import Gate

_BLOCK = "src|example|export|comment"
_HEADING_OR_SETTING = re.compile(
    # The space after the stars may be missing if there are tags at the end; unless the stars mark bold text.
    rf"^(?:(?:[^\S\r\n]|[\ufeff,])*+(\*+)(?:[^\S\r\n]|(?=[^\s*][^*\n]*:[ \t\r]*$))"
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
# In any position, to find privacy tags.
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


def parse_org(text: str, gate: Gate, *, name: str = "") -> Outline:
    """Parse an Org file; `name` is its default title.

    Headings in literal blocks such as `#+begin_src` do not count, unless the block is not closed or the heading
    has a privacy tag. `#+FILETAGS` count everywhere.
    """
    return _OrgParser(text, gate).parse(name)


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
    def __init__(self, text: str, gate: Gate) -> None:
        self._text = text
        # A single CR ends a line too, as in files of old Macs. Positions stay the same.
        self._lines = re.sub(r"\r(?!\n)", "\n", text) if "\r" in text else text
        self._gate = gate
        self._may_be_private = mentions_privacy_tag(text, gate)
        self._problems = ParseProblems(text)
        self._headings: list[_OrgHeading] = []
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
        if self._may_be_private:
            self._accept_private_settings()
        starts = [heading.start for heading in self._headings]
        ends = [*starts, len(self._text)]
        entries = [self._file_entry(ends[0], name)]
        for heading, end in zip(self._headings, ends[1:], strict=True):
            entries.append(self._heading_entry(heading, end, states, done))
        return Outline(self._text, entries, self._problems.to_messages(), self._private_blocks(entries))

    def _private_blocks(self, entries: Iterable[OutlineEntry]) -> list[tuple[int, int]]:
        if not self._may_be_private:
            return []
        code = CodeRanges(self._code)
        return [
            block
            for entry in entries
            for block in find_private_blocks(self._lines, entry.content, entry.end, code, self._gate)
        ]

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
                    self._accept_private_headings(inside)
                    self._code.append((opened, match.end()))
                    block, inside = "", []
            elif block:
                inside.append(match)
            else:
                self._accept((match,))
        self._accept(inside)

    def _accept(self, matches: Iterable[re.Match[str]]) -> None:
        for match in matches:
            if match.lastindex == _HEADING:
                if _is_regular_heading(match) or self._is_private_heading(match):
                    self._headings.append(_to_heading(match))
            else:
                self._apply_setting(match[_SETTING].upper(), self._rest_of_line(match.end()).strip())

    def _accept_private_headings(self, matches: Iterable[re.Match[str]]) -> None:
        for match in matches if self._may_be_private else ():
            if match.lastindex == _HEADING and self._is_private_heading(match):
                self._headings.append(_to_heading(match))

    def _accept_private_settings(self) -> None:
        """Apply settings in any position that may make the file private."""
        for setting in _ANY_SETTING.finditer(self._lines):
            if mentions_privacy_tag(setting[0], self._gate) and (
                tag := self._find_tag_in_setting(setting[1], setting[2])
            ):
                self._file_tags.append(tag)

    def _find_tag_in_setting(self, key: str, value: str) -> str:
        key = key.removesuffix("+")
        match key.upper():
            case "TITLE":
                return find_tag_in_heading(value, self._gate)
            case "PROPERTY":
                key, value = (*value.split(None, 1), "", "")[:2]
                return find_tag_in_property(key.removesuffix("+"), value, self._gate)
            case "TAGS" if not _SINGLE_TAG.fullmatch(value.strip()):
                return ""
            case _:
                return find_tag_in_property(key, value, self._gate)

    def _find_tags_in_properties(self, start: int, end: int) -> tuple[str, ...]:
        """Privacy tags in lines such as `:TAGS: private`, after planning, or alone in a line or comment."""
        if not self._may_be_private or not mentions_privacy_tag(self._lines[start:end], self._gate):
            return ()
        for match in _ANY_PROPERTY.finditer(self._lines[start:end]):
            key, value = match[1].removesuffix("+"), (match[2] or "").strip()
            tag = find_tag_in_property(key, value, self._gate) or (
                "" if value else find_tag_in_text(key, self._gate)
            )
            if tag:
                return (tag,)
        for line in _PLANNING_LINE.finditer(self._lines[start:end]):
            if tag := find_tag_in_heading(line[0], self._gate):
                return (tag,)
        return tuple(tag_line.tag for tag_line in find_lone_tag_lines(self._lines[start:end], self._gate))

    def _is_private_heading(self, heading: re.Match[str]) -> bool:
        if not self._may_be_private or _is_list_item(heading):
            return False
        line = self._rest_of_line(heading.end()).strip()
        tags = add_suspected_tag(line, split_tags(line)[1], self._gate)
        return any(map(self._gate.is_private, tags))

    def _rest_of_line(self, position: int) -> str:
        end = self._lines.find("\n", position)
        return self._lines[position:] if end < 0 else self._lines[position:end]

    def _apply_setting(self, setting: str, value: str) -> None:
        match setting:
            case "TITLE":
                self._title.append(value)
            case "FILETAGS":
                tags = [tag for tag in re.split(r"[\s:,;]+", value) if tag.strip("#")]
                self._file_tags += tags
                tag = find_tag_in_text(value, self._gate) if self._may_be_private else ""
                if tag and not any(map(self._gate.is_private, tags)):
                    self._file_tags.append(tag)
            case _:
                todo, done = parse_seq_todo(value)  # type: ignore[no-untyped-call]
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
            tags=tuple(dict.fromkeys((*self._file_tags, *self._find_tags_in_properties(0, end)))),
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
        if self._may_be_private:
            tags = add_suspected_tag(line, tags, self._gate) + self._find_tags_in_properties(body, end)
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
        """Read planning and drawers, in any order."""
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
    """The title with links replaced by their texts."""
    title = title.strip()
    if "[[" not in title or len(title) > _MAX_LINKED_TITLE_CHARS:
        return title
    return str(to_plain_text(title))  # type: ignore[no-untyped-call]
