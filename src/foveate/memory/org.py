"""Org into outlines.

Where an entry begins and ends is found here, in one pass over the text: orgparse keeps no places, copies the
file for each question about the tree, loses all of it to one impossible date, and takes minutes for some lines.
What settings and links mean is asked of it, piece by piece.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from orgparse.inline import to_plain_text
from orgparse.node import parse_seq_todo

from foveate.memory.doubts import alone, meant_in_heading, meant_in_property, mentioned, mentions
from foveate.memory.fences import Code
from foveate.memory.gate import Gate
from foveate.memory.headings import with_doubt, without_priority, without_state, without_tags
from foveate.memory.outline import NO_PROPERTIES, Entry, Outline, Stamp
from foveate.memory.problems import Problems
from foveate.memory.stamps import PLANNED, read_planning
from foveate.memory.tagged import private_blocks

_BLOCK = "src|example|export|comment"
_NOTED = re.compile(
    # The blank behind the stars may have been forgotten, if tags are at the end; unless the stars make it bold.
    rf"^(?:(?:[^\S\r\n]|[\ufeff,])*+(\*+)(?:[^\S\r\n]|(?=[^\s*][^*\n]*:[ \t\r]*$))"
    rf"|[ \t\ufeff]*#\+(?:begin_({_BLOCK})(?!\S)|end_({_BLOCK})(?!\S)"
    r"|(filetags|title|todo|seq_todo|typ_todo)[ \t]*:))",
    re.MULTILINE | re.IGNORECASE,
)
_HEADING, _BEGIN, _END_OF_BLOCK, _SETTING = 1, 2, 3, 4

# What is at the top of a file about the file. What is for a table or a picture below it stays with that.
_SETTINGS = re.compile(
    r"[ \t]*(?:#\+(archive|author|bind|category|columns|constants|creator|date|dependencies|depends|description"
    r"|email|exclude_tags|export_file_name|filetags|html_\w+|keywords|language|latex_\w+|link|options|priorities"
    r"|priority|property|select_tags|seq_todo|setupfile|startup|subtitle|tags|title|todo|typ_todo)[ \t]*:(.*)"
    r"|# -\*-.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_READ_ELSEWHERE = frozenset({"FILETAGS", "TITLE", "TODO", "SEQ_TODO", "TYP_TODO"})
_DRAWER = re.compile(r"[ \t]*:(properties|logbook|clock):[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_END = re.compile(r"^[ \t]*:end:[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_PROPERTY = re.compile(r":(\S+):(?!\S)")
# Wherever they stand, for what may be meant as private.
_ANY_SETTING = re.compile(
    r"^[ \t\ufeff,]*+#\+[ \t]*+(filetags(?=[ \t])|[^\s:]++(?=[ \t]*:))[ \t]*:?(.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_PLANNING_LINE = re.compile(rf"^{PLANNED.pattern}.*$", re.MULTILINE | re.IGNORECASE)
_ANY_PROPERTY = re.compile(r"^[ \t]*:(\S+):(?:[ \t]+(.*))?$", re.MULTILINE)
# `#+TAGS: a b(c)` says which tags there are; like this it is meant as FILETAGS.
_NO_CHOICE = re.compile(r":\S+:|[^\s(){}\[\]]+")
_BLANK_LINES = re.compile(r"(?:[ \t\r]*\n)*")
# Its links would take a while.
_LONG_TITLE_CHARS = 2000


def parse_org(text: str, gate: Gate, *, name: str = "") -> Outline:
    """What an Org file says; `name` is its title where it has none.

    Text in a block that is literal, such as `#+begin_src`, has no headings, unless the block is not closed, or
    the heading has a privacy tag. `#+FILETAGS` count wherever they stand.
    """
    return _Reading(text, gate).outline(name)


_Properties = dict[str, list[str]]


class _Heading(NamedTuple):
    """Where a heading begins, and what it says behind its stars."""

    start: int
    after: int
    level: int


class _Below(NamedTuple):
    """What stands directly below a heading, and where the content begins below that."""

    content: int
    properties: _Properties
    stamps: tuple[Stamp, ...]


class _Reading:
    """One pass over a text."""

    def __init__(self, text: str, gate: Gate) -> None:
        self._text = text
        # A lone CR ends a line too, or a file from an old Mac would be a single heading. Places stay the same.
        self._lines = re.sub(r"\r(?!\n)", "\n", text) if "\r" in text else text
        self._gate = gate
        self._is_doubtful = mentions(text, gate)
        self._problems = Problems(text)
        self._headings: list[_Heading] = []
        self._code: list[tuple[int, int]] = []
        self._title: list[str] = []
        self._file_tags: list[str] = []
        self._todo: list[str] = []
        self._done: list[str] = []

    def outline(self, name: str) -> Outline:
        self._scan()
        if not self._todo and not self._done:
            self._todo, self._done = ["TODO"], ["DONE"]
        states, done = frozenset(self._todo + self._done), frozenset(self._done)
        if self._is_doubtful:
            self._take_doubtful()
        starts = [found.start for found in self._headings]
        ends = [*starts, len(self._text)]
        entries = [self._file(ends[0], name)]
        for found, end in zip(self._headings, ends[1:], strict=True):
            entries.append(self._entry(found, end, states, done))
        return Outline(self._text, entries, self._problems.told(), self._private_blocks(entries))

    def _private_blocks(self, entries: Iterable[Entry]) -> list[tuple[int, int]]:
        if not self._is_doubtful:
            return []
        code = Code(self._code)
        return [
            block
            for entry in entries
            for block in private_blocks(self._lines, entry.content, entry.end, code, self._gate)
        ]

    def _scan(self) -> None:
        """Find the headings and the settings, also those in literal blocks that turn out not to be."""
        block, opened = "", 0
        inside: list[re.Match[str]] = []
        for found in _NOTED.finditer(self._lines):
            kind = found.lastindex
            if kind == _BEGIN:
                # Where one has begun already, that was never closed, so what is in it counts.
                self._take(inside)
                block, opened, inside = found[_BEGIN].lower(), found.start(), []
            elif kind == _END_OF_BLOCK:
                if block == found[_END_OF_BLOCK].lower():
                    self._take_private(inside)
                    self._code.append((opened, found.end()))
                    block, inside = "", []
            elif block:
                inside.append(found)
            else:
                self._take((found,))
        self._take(inside)

    def _take(self, noted: Iterable[re.Match[str]]) -> None:
        for found in noted:
            if found.lastindex == _HEADING:
                if _is_plain(found) or self._is_meant_private(found):
                    self._headings.append(_found(found))
            else:
                self._set(found[_SETTING].upper(), self._rest(found.end()).strip())

    def _take_private(self, noted: Iterable[re.Match[str]]) -> None:
        for found in noted if self._is_doubtful else ():
            if found.lastindex == _HEADING and self._is_meant_private(found):
                self._headings.append(_found(found))

    def _take_doubtful(self) -> None:
        """Take settings anywhere that may make the file private."""
        for setting in _ANY_SETTING.finditer(self._lines):
            if mentions(setting[0], self._gate) and (tag := self._meant_in_setting(setting[1], setting[2])):
                self._file_tags.append(tag)

    def _meant_in_setting(self, key: str, value: str) -> str:
        key = key.removesuffix("+")
        match key.upper():
            case "TITLE":
                return meant_in_heading(value, self._gate)
            case "PROPERTY":
                key, value = (*value.split(None, 1), "", "")[:2]
                return meant_in_property(key.removesuffix("+"), value, self._gate)
            case "TAGS" if not _NO_CHOICE.fullmatch(value.strip()):
                return ""
            case _:
                return meant_in_property(key, value, self._gate)

    def _meant_in_properties(self, start: int, end: int) -> tuple[str, ...]:
        """A privacy tag in a line such as `:TAGS: private`, behind planning, or alone in a line or comment."""
        if not self._is_doubtful or not mentions(self._lines[start:end], self._gate):
            return ()
        for found in _ANY_PROPERTY.finditer(self._lines[start:end]):
            key, value = found[1].removesuffix("+"), (found[2] or "").strip()
            tag = meant_in_property(key, value, self._gate) or ("" if value else mentioned(key, self._gate))
            if tag:
                return (tag,)
        for line in _PLANNING_LINE.finditer(self._lines[start:end]):
            if tag := meant_in_heading(line[0], self._gate):
                return (tag,)
        return tuple(said.tag for said in alone(self._lines[start:end], self._gate))

    def _is_meant_private(self, heading: re.Match[str]) -> bool:
        if not self._is_doubtful or _is_item(heading):
            return False
        line = self._rest(heading.end()).strip()
        tags = with_doubt(line, without_tags(line)[1], self._gate)
        return any(map(self._gate.is_private, tags))

    def _rest(self, at: int) -> str:
        """The rest of a line."""
        end = self._lines.find("\n", at)
        return self._lines[at:] if end < 0 else self._lines[at:end]

    def _set(self, setting: str, value: str) -> None:
        match setting:
            case "TITLE":
                self._title.append(value)
            case "FILETAGS":
                tags = [tag for tag in re.split(r"[\s:,;]+", value) if tag.strip("#")]
                self._file_tags += tags
                tag = mentioned(value, self._gate) if self._is_doubtful else ""
                if tag and not any(map(self._gate.is_private, tags)):
                    self._file_tags.append(tag)
            case _:
                todo, done = parse_seq_todo(value)  # type: ignore[no-untyped-call]
                if "|" not in value:
                    # orgparse knows no state to be done then; Org takes the last.
                    todo, done = todo[:-1], todo[-1:]
                self._todo += todo
                self._done += done

    def _file(self, end: int, name: str) -> Entry:
        body = content = at = 1 if self._text[:1] == "\ufeff" and end else 0
        properties: _Properties = {}
        stamps: list[Stamp] = []
        while at < end:
            blank = _BLANK_LINES.match(self._lines, at, end)
            at = blank.end() if blank else at
            if setting := _SETTINGS.match(self._lines, at, end):
                key = (setting[1] or "").upper()
                if key and key not in _READ_ELSEWHERE:
                    properties.setdefault(key, []).append(setting[2].strip())
                at = content = min(setting.end() + 1, end)
                continue
            below = self._below(at, end)
            properties |= below.properties
            stamps += below.stamps
            if below.content == at:
                break
            at = content = below.content
        return Entry(
            start=0,
            body=body,
            content=content,
            end=end,
            level=0,
            title=_shown(" ".join(filter(None, self._title))) or name,
            tags=tuple(dict.fromkeys((*self._file_tags, *self._meant_in_properties(0, end)))),
            properties=_joined(properties),
            stamps=tuple(stamps),
        )

    def _entry(self, heading: _Heading, end: int, states: frozenset[str], done: frozenset[str]) -> Entry:
        line_end = self._lines.find("\n", heading.after, end)
        body = end if line_end < 0 else line_end + 1
        line = self._lines[heading.after : body].strip()
        title, tags = without_tags(line)
        if self._is_doubtful:
            tags = with_doubt(line, tags, self._gate) + self._meant_in_properties(body, end)
        title, todo = without_state(title, states)
        title, priority = without_priority(title)
        below = self._below(body, end)
        return Entry(
            start=heading.start,
            body=body,
            content=below.content,
            end=end,
            level=heading.level,
            title=_shown(title),
            tags=tags,
            todo=todo,
            is_done=todo in done,
            priority=priority,
            properties=_joined(below.properties),
            stamps=below.stamps,
        )

    def _below(self, at: int, end: int) -> _Below:
        """The planning and the drawers at this place, in any order."""
        properties: _Properties = {}
        stamps: list[Stamp] = []
        while at < end:
            if PLANNED.match(self._lines, at, end):
                line = self._rest(at)
                planning = read_planning(line)
                if not planning:
                    break
                stamps += planning.stamps
                for problem in planning.problems:
                    self._problems.add(at, problem)
                if not planning.is_all:
                    break
                at = min(at + len(line) + 1, end)
            elif drawer := _DRAWER.match(self._lines, at, end):
                closed = _END.search(self._lines, drawer.end(), end)
                if drawer[1].lower() == "properties":
                    is_all = self._read_properties(properties, drawer.end(), closed.start() if closed else end)
                    if not is_all or not closed:
                        self._problems.add(at, "these properties have lines that are none, or no :END:")
                        break
                elif not closed:
                    break
                at = min(closed.end() + 1, end)
            else:
                break
        return _Below(at, properties, tuple(stamps))

    def _read_properties(self, properties: _Properties, at: int, end: int) -> bool:
        """Add the properties that stand here, line by line; whether there is nothing else."""
        for line in self._lines[at:end].split("\n"):
            stripped = line.strip()
            found = _PROPERTY.match(stripped)
            if found:
                key, value = found[1].upper(), stripped[found.end() :].strip()
                # The first value is what it is, unless `KEY+` adds to it.
                if key[-1] == "+":
                    properties.setdefault(key[:-1], []).append(value)
                else:
                    properties.setdefault(key, [value])
            elif stripped:
                return False
        return True


def _is_plain(heading: re.Match[str]) -> bool:
    """Whether the stars begin the line and a blank is behind them; what else looks like it is doubtful."""
    return heading[0][-1] == " " and _before(heading) in ("", "\ufeff")


def _is_item(heading: re.Match[str]) -> bool:
    """Whether it is rather an item of a list: a star with nothing but blanks before it."""
    before = _before(heading)
    return bool(before) and len(heading[_HEADING]) == 1 and not before.strip(" \t")


def _before(heading: re.Match[str]) -> str:
    return heading[0][: heading.start(_HEADING) - heading.start()]


def _found(heading: re.Match[str]) -> _Heading:
    return _Heading(heading.start(), heading.end(), len(heading[_HEADING]))


def _joined(properties: _Properties) -> Mapping[str, str]:
    return {key: " ".join(values) for key, values in properties.items()} if properties else NO_PROPERTIES


def _shown(title: str) -> str:
    """A title with its links by what they are called."""
    title = title.strip()
    if "[[" not in title or len(title) > _LONG_TITLE_CHARS:
        return title
    return str(to_plain_text(title))  # type: ignore[no-untyped-call]
