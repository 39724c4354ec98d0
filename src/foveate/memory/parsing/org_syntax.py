"""Planning: the dates for which an entry is scheduled, at which it is due, and at which it was closed.

The line of a heading: its state, its priority and its tags, as Org writes them and many do in Markdown.
"""

import re
import unicodedata
from collections.abc import Container
from datetime import datetime
from typing import NamedTuple

from foveate.memory.parsing.outline import PlanningDate, PlanningKind, shorten
from foveate.memory.parsing.privacy_tags import find_tag_in_heading, mentions_privacy_tag
from foveate.memory.privacy import Gate

# A longer line is a text, whatever it begins with.
_MAX_LINE_CHARS = 2000
_BRACKETED = r"[<\[]([^<>\[\]\n]{0,200})[>\]](?:--?[<\[][^<>\[\]\n]{0,200}[>\]])?"
_PLAIN = (
    r"(\d{4}-\d{1,2}-\d{1,2}"
    r"(?:[T \t]+\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"(?:[ \t]+[.+]?\+\d+[hdwmy])?)(?![\d-])"
)
_KEY = r"[*_]{0,2}(SCHEDULED|DEADLINE|CLOSED)[*_]{0,2}:[*_]{0,2}"
_PLANNING_ITEM = re.compile(rf"{_KEY}[ \t]*(?:{_BRACKETED}|{_PLAIN})", re.IGNORECASE)
PLANNING_START = re.compile(rf"[ \t]*{_KEY}", re.IGNORECASE)
"""How a line of planning begins."""

_DATE = re.compile(r"\s*(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)[Tt]?")
_TIME = re.compile(r"(?<!\S)(\d{1,2}):(\d{2})(?!\d)")
_REPEATER = re.compile(r"(?<!\S)((?:\.\+|\+\+|\+)\d+[hdwmy](?:/\d+[hdwmy])?)(?!\S)")


class PlanningLine(NamedTuple):
    """What a line of planning says."""

    dates: tuple[PlanningDate, ...]
    problems: tuple[str, ...]
    is_complete_line: bool
    """Whether the line has nothing else."""


def parse_planning(line: str) -> PlanningLine | None:
    """The dates of a line such as `SCHEDULED: <2026-11-20 Fri> DEADLINE: <2026-11-30 Mon>`, if it is one."""
    line = line.strip()
    if len(line) > _MAX_LINE_CHARS or not _PLANNING_ITEM.match(line):
        return None
    dates, problems = [], []
    for found in _PLANNING_ITEM.finditer(line):
        planning_date, problem = parse_planning_date(
            PlanningKind(found[1].lower()), found[2] if found[2] is not None else found[3]
        )
        if planning_date:
            dates.append(planning_date)
        if problem:
            problems.append(problem)
    return PlanningLine(tuple(dates), tuple(problems), not _PLANNING_ITEM.sub("", line).strip(" \t,;|"))


def parse_planning_date(kind: PlanningKind, text: str) -> tuple[PlanningDate | None, str]:
    """The date in a text such as `2026-11-20 Fri 17:00 +1w`, as far as there is one, and what is wrong with it.

    Where the writer was on the globe is not asked: a date is in the writer's own time, so what an ISO date says
    of it is left out.
    """
    found = _DATE.match(text)
    if not found:
        return None, f"{kind.upper()} has no date that can be read: {shorten(text)}"
    year, month, day = map(int, found.groups())
    rest = text[found.end() :]
    try:
        at = datetime(year, month, day)
    except ValueError:
        return None, f"{kind.upper()} is on a day that does not exist: {shorten(text)}"
    repeater = _REPEATER.search(rest)
    repeated = repeater[1] if repeater else ""
    time = _TIME.search(rest)
    if not time:
        return PlanningDate(kind, at, repeater=repeated), ""
    hour, minute = int(time[1]), int(time[2])
    if hour > 23 or minute > 59:
        return PlanningDate(
            kind, at, repeater=repeated
        ), f"{kind.upper()} is at no time of day: {shorten(text)}"
    return PlanningDate(kind, at.replace(hour=hour, minute=minute), has_time=True, repeater=repeated), ""


_TAGS = re.compile(r":[\w@#%:]+:\Z")
_PRIORITY = re.compile(r"\[#([A-Za-z]|[0-9]{1,2})\]\s*")


def split_tags(line: str) -> tuple[str, tuple[str, ...]]:
    """The line without tags such as `:a:b:` at its end, and these tags."""
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
    # Org takes combining marks for letters, without which many languages cannot be written.
    return word[0] == ":" and all(
        letter.isalnum() or letter in "_@#%:" or unicodedata.category(letter)[0] == "M" for letter in word
    )


def split_state(line: str, states: Container[str]) -> tuple[str, str]:
    """The line without one of `states` at its beginning, and this state."""
    first, *rest = line.split(None, 1) or [""]
    return ("".join(rest), first) if first in states else (line, "")


def split_priority(line: str) -> tuple[str, str]:
    """The line without a priority such as `[#A]` at its beginning, and this priority."""
    found = _PRIORITY.match(line) if line[:2] == "[#" else None
    return (line[found.end() :], found[1].upper()) if found else (line, "")


def add_suspected_tag(line: str, tags: tuple[str, ...], gate: Gate) -> tuple[str, ...]:
    """The tags of a heading, also with one that only may be meant."""
    if not mentions_privacy_tag(line, gate) or any(map(gate.is_private, tags)):
        return tags
    tag = find_tag_in_heading(line, gate)
    return (*tags, tag) if tag else tags
