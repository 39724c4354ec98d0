"""The outline of a note file: its text with the position and properties of each heading."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """The part of a file that a tag applies to."""

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

    def find_block(self, position: int, start: int, end: int) -> tuple[int, int]:
        """The range of the block at a token's position, between `start` and `end`."""


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
        """The first problems by line, and the number of others."""
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
