"""The outline of a note file: its text with the position and properties of each heading.

Below it is Org syntax that Markdown notes use too: planning dates, states, priorities and tags of headings.
"""

import re
import unicodedata
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class PlanningKind(StrEnum):
    SCHEDULED = "scheduled"
    DEADLINE = "deadline"
    CLOSED = "closed"


class PlanningDate(msgspec.Struct, frozen=True, gc=False):
    """A date in the planning of an entry, in the writer's local time."""

    kind: PlanningKind
    at: datetime
    has_time: bool = False
    repeater: str = ""
    """As written: `+1w`, `.+2d`, `++1m`."""


class OutlineEntry(msgspec.Struct, frozen=True, gc=False):
    """A heading and its text up to the next heading. The first entry is the file itself.

    Positions are in the text of the outline: the heading from `start` to `body`, then planning and drawers,
    then the content from `content` to `end`.
    """

    start: int
    body: int
    content: int
    end: int
    level: int
    """0 for the file, 1 for `* ` and `# `."""
    title: str
    tags: tuple[str, ...] = ()
    """Its own, as written, without colons."""
    todo: str = ""
    is_done: bool = False
    priority: str = ""
    properties: Mapping[str, str] = NO_PROPERTIES
    """Keys in capitals."""
    planning_dates: tuple[PlanningDate, ...] = ()


class TagScope(Enum):
    FILE = auto()
    HEADING = auto()
    """The heading, and everything below it."""
    BLOCK = auto()
    """The paragraph, the list item with everything below it, or the table row."""


class TagToken(NamedTuple):
    """A part of the text of an outline that is written like a tag, or may be meant as one."""

    position: int
    text: str
    is_whole: bool
    """The text is one tag. Otherwise any of its words may be one."""
    scope: TagScope
    level: int = 0
    """If not 0, the line may be meant as a heading of this level, but is not an entry."""


class TagTokens(Protocol):
    """Finds the tag-like tokens of an outline, all but those that are tags of entries."""

    def find(self, mentions: Callable[[str], bool]) -> Iterator[TagToken]:
        """The tokens in any order, without those in lines that `mentions` excludes."""

    def find_block(self, position: int, start: int, end: int) -> tuple[int, int]: ...


class Outline(msgspec.Struct, frozen=True):
    """The text of a file and its entries, which together cover all of it."""

    text: str
    entries: Sequence[OutlineEntry]
    problems: tuple[str, ...] = ()
    """Parts that could not be parsed as intended; none of them is lost."""
    tokens: TagTokens | None = None
    title_entries: tuple[OutlineEntry, OutlineEntry] | None = None
    """The file and its title heading, if they are merged into the first entry."""

    def to_text(self) -> str:
        return "".join([self.text[entry.start : entry.end] for entry in self.entries])


# A mistake that is repeated a thousand times need not be listed each time.
_MAX_LISTED = 20


class ParseProblems:
    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[tuple[int, str]] = []

    def add(self, position: int, reason: str) -> None:
        self._found.append((position, reason))

    def to_messages(self) -> tuple[str, ...]:
        messages, line, before = [], 1, 0
        for position, reason in sorted(self._found)[:_MAX_LISTED]:
            text_between = self._text[before:position]
            line += text_between.count("\n") + text_between.count("\r") - text_between.count("\r\n")
            before = position
            messages.append(f"line {line}: {reason}")
        if len(self._found) > _MAX_LISTED:
            messages.append(f"and {len(self._found) - _MAX_LISTED} more")
        return tuple(messages)


def shorten_line(text: str) -> str:
    text = " ".join(text[:200].split())
    return text if len(text) <= 60 else f"{text[:59]}…"


# A longer line is text, whatever it starts with.
_MAX_LINE_CHARS = 2000
_BRACKETED = r"[<\[]([^<>\[\]\n]{0,200})[>\]](?:--?[<\[][^<>\[\]\n]{0,200}[>\]])?"
_PLAIN = (
    r"(\d{4}-\d{1,2}-\d{1,2}"
    r"(?:[T \t]+\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"(?:[ \t]+[.+]?\+\d+[hdwmy])?)(?![\d-])"
)
_KEY = r"[*_]{0,2}(SCHEDULED|DEADLINE|CLOSED)[*_]{0,2}:[*_]{0,2}"
PLANNING_ITEM = re.compile(rf"{_KEY}[ \t]*(?:{_BRACKETED}|{_PLAIN})", re.IGNORECASE)
PLANNING_START = re.compile(rf"[ \t]*{_KEY}", re.IGNORECASE)
"""Start of a planning line."""
_DATE = re.compile(r"\s*(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)[Tt]?")
_TIME = re.compile(r"(?<!\S)(\d{1,2}):(\d{2})(?!\d)")
_REPEATER = re.compile(r"(?<!\S)((?:\.\+|\+\+|\+)\d+[hdwmy](?:/\d+[hdwmy])?)(?!\S)")


class PlanningLine(NamedTuple):
    dates: tuple[PlanningDate, ...]
    problems: tuple[str, ...]
    is_complete_line: bool
    """The line contains nothing else."""


def parse_planning(line: str) -> PlanningLine | None:
    """Parse a line such as `SCHEDULED: <2026-11-20 Fri> DEADLINE: <2026-11-30 Mon>`; None if it is not one."""
    line = line.strip()
    if len(line) > _MAX_LINE_CHARS or not PLANNING_ITEM.match(line):
        return None
    dates, problems = [], []
    for match in PLANNING_ITEM.finditer(line):
        planning_date, problem = parse_planning_date(
            PlanningKind(match[1].lower()), match[2] if match[2] is not None else match[3]
        )
        if planning_date:
            dates.append(planning_date)
        if problem:
            problems.append(problem)
    return PlanningLine(tuple(dates), tuple(problems), not PLANNING_ITEM.sub("", line).strip(" \t,;|"))


def parse_planning_date(kind: PlanningKind, text: str) -> tuple[PlanningDate | None, str]:
    """Parse a date such as `2026-11-20 Fri 17:00 +1w`, and return what is wrong with it.

    Dates are in the writer's local time, so the zone of an ISO date is ignored.
    """
    match = _DATE.match(text)
    if not match:
        return None, f"{kind.upper()} has an invalid date: {shorten_line(text)}"
    year, month, day = map(int, match.groups())
    rest = text[match.end() :]
    try:
        date = datetime(year, month, day)
    except ValueError:
        return None, f"{kind.upper()} has a date that does not exist: {shorten_line(text)}"
    repeater = _REPEATER.search(rest)
    repeated = repeater[1] if repeater else ""
    time = _TIME.search(rest)
    if not time:
        return PlanningDate(kind, date, repeater=repeated), ""
    hour, minute = int(time[1]), int(time[2])
    if hour > 23 or minute > 59:
        return PlanningDate(
            kind, date, repeater=repeated
        ), f"{kind.upper()} has an invalid time of day: {shorten_line(text)}"
    return PlanningDate(kind, date.replace(hour=hour, minute=minute), has_time=True, repeater=repeated), ""


_TAGS = re.compile(r":[\w@#%:]+:\Z")
_PRIORITY = re.compile(r"\[#([A-Za-z]|[0-9]{1,2})\]\s*")
CHECKBOX_STATES = {" ": "TODO", "x": "DONE", "X": "DONE"}


def split_tags(line: str) -> tuple[str, tuple[str, ...]]:
    """Split tags such as `:a:b:` from the end of a line."""
    if line[-1:] != ":":
        return line, ()
    *before, last = line.rsplit(None, 1)
    if not _are_tags(last):
        return line, ()
    tags = tuple(tag for tag in last.split(":") if tag)
    return ("".join(before), tags) if tags else (line, ())


def _are_tags(word: str) -> bool:
    if _TAGS.match(word):
        return True
    # Org accepts combining marks, which many languages need.
    return word[0] == ":" and all(
        letter.isalnum() or letter in "_@#%:" or unicodedata.category(letter)[0] == "M" for letter in word
    )


def split_state(line: str, states: Container[str]) -> tuple[str, str]:
    first, *rest = line.split(None, 1) or [""]
    return ("".join(rest), first) if first in states else (line, "")


def split_priority(line: str) -> tuple[str, str]:
    """Split a priority such as `[#A]` from the start of a line."""
    match = _PRIORITY.match(line) if line[:2] == "[#" else None
    return (line[match.end() :], match[1].upper()) if match else (line, "")
