"""Org syntax that Markdown notes use too: planning dates, states, priorities and tags of headings."""

import re
import unicodedata
from collections.abc import Container
from datetime import datetime
from typing import NamedTuple

from foveate.memory.parsing.outline import PlanningDate, PlanningKind, shorten_line

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
    """Split one of `states` from the start of a line."""
    first, *rest = line.split(None, 1) or [""]
    return ("".join(rest), first) if first in states else (line, "")


def split_priority(line: str) -> tuple[str, str]:
    """Split a priority such as `[#A]` from the start of a line."""
    match = _PRIORITY.match(line) if line[:2] == "[#" else None
    return (line[match.end() :], match[1].upper()) if match else (line, "")
