"""What a file of notes says: its text, and where in it each heading stands with what belongs to it."""

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
