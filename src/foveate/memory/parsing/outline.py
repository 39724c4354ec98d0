"""What a file of notes says: its text, and where in it each heading stands with what belongs to it.

What could not be read as it was meant, in words and with its line.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

import msgspec

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class PlanningKind(StrEnum):
    """What a date in the planning of an entry is for."""

    SCHEDULED = "scheduled"
    DEADLINE = "deadline"
    CLOSED = "closed"


class PlanningDate(msgspec.Struct, frozen=True, gc=False):
    """A date in the planning of an entry, in the local time of whoever wrote it."""

    kind: PlanningKind
    at: datetime
    has_time: bool = False
    repeater: str = ""
    """As written: `+1w`, `.+2d`, `++1m`."""


class OutlineEntry(msgspec.Struct, frozen=True, gc=False):
    """A heading and its own text, up to the next heading; the first of a file is the file itself.

    All places are in the text of its outline. From `start` to `body` it is the heading, from `body` to `end`
    everything else: planning, drawers and content, which begins at `content`.
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


class Outline(msgspec.Struct, frozen=True):
    """A file's text and its entries in their order, which together are all of the text."""

    text: str
    entries: Sequence[OutlineEntry]
    problems: tuple[str, ...] = ()
    """In words, what could not be read as it was meant; nothing of it is lost."""
    private_ranges: Sequence[tuple[int, int]] = ()
    """Where text begins and ends that has a privacy tag of its own, in order, each in an entry's content."""

    def to_text(self) -> str:
        """The text again, from the entries."""
        return "".join([self.text[entry.start : entry.end] for entry in self.entries])


# Who has made the same mistake a thousand times needs to hear of it, not of each.
_MAX_LISTED = 20


class ParseProblems:
    """Collects them while a text is read, and tells them by line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[tuple[int, str]] = []

    def add(self, at: int, reason: str) -> None:
        """Remember what is wrong at this place of the text."""
        self._found.append((at, reason))

    def to_messages(self) -> tuple[str, ...]:
        """The first of them in their order, and how many more there are."""
        messages, line, before = [], 1, 0
        for at, reason in sorted(self._found)[:_MAX_LISTED]:
            passed = self._text[before:at]
            line += passed.count("\n") + passed.count("\r") - passed.count("\r\n")
            before = at
            messages.append(f"line {line}: {reason}")
        if len(self._found) > _MAX_LISTED:
            messages.append(f"and {len(self._found) - _MAX_LISTED} more")
        return tuple(messages)


def shorten(text: str) -> str:
    """A piece of a text, short enough for a message."""
    text = " ".join(text[:200].split())
    return text if len(text) <= 60 else f"{text[:59]}…"
