"""Planning: the dates for which an entry is scheduled, at which it is due, and at which it was closed."""

import re
from datetime import datetime
from typing import NamedTuple

from foveate.memory.outline import Stamp, StampKind
from foveate.memory.problems import shortened

# A longer line is a text, whatever it begins with.
_LONGEST_CHARS = 2000
_BRACKETED = r"[<\[]([^<>\[\]\n]{0,200})[>\]](?:--?[<\[][^<>\[\]\n]{0,200}[>\]])?"
_PLAIN = (
    r"(\d{4}-\d{1,2}-\d{1,2}"
    r"(?:[T \t]+\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"(?:[ \t]+[.+]?\+\d+[hdwmy])?)(?![\d-])"
)
_KEY = r"[*_]{0,2}(SCHEDULED|DEADLINE|CLOSED)[*_]{0,2}:[*_]{0,2}"
_ITEM = re.compile(rf"{_KEY}[ \t]*(?:{_BRACKETED}|{_PLAIN})", re.IGNORECASE)
PLANNED = re.compile(rf"[ \t]*{_KEY}", re.IGNORECASE)
"""How a line of planning begins."""

_DATE = re.compile(r"\s*(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)[Tt]?")
_TIME = re.compile(r"(?<!\S)(\d{1,2}):(\d{2})(?!\d)")
_REPEATER = re.compile(r"(?<!\S)((?:\.\+|\+\+|\+)\d+[hdwmy](?:/\d+[hdwmy])?)(?!\S)")


class Planning(NamedTuple):
    """What a line of planning says."""

    stamps: tuple[Stamp, ...]
    problems: tuple[str, ...]
    is_all: bool
    """Whether the line has nothing else."""


def read_planning(line: str) -> Planning | None:
    """The dates of a line such as `SCHEDULED: <2026-11-20 Fri> DEADLINE: <2026-11-30 Mon>`, if it is one."""
    line = line.strip()
    if len(line) > _LONGEST_CHARS or not _ITEM.match(line):
        return None
    stamps, problems = [], []
    for found in _ITEM.finditer(line):
        stamp, problem = read_stamp(StampKind(found[1].lower()), found[2] if found[2] is not None else found[3])
        if stamp:
            stamps.append(stamp)
        if problem:
            problems.append(problem)
    return Planning(tuple(stamps), tuple(problems), not _ITEM.sub("", line).strip(" \t,;|"))


def read_stamp(kind: StampKind, said: str) -> tuple[Stamp | None, str]:
    """The date in a text such as `2026-11-20 Fri 17:00 +1w`, as far as there is one, and what is wrong with it.

    Where the writer was on the globe is not asked: a date is in the writer's own time, so what an ISO date says
    of it is left out.
    """
    found = _DATE.match(said)
    if not found:
        return None, f"{kind.upper()} has no date that can be read: {shortened(said)}"
    year, month, day = map(int, found.groups())
    rest = said[found.end() :]
    try:
        at = datetime(year, month, day)
    except ValueError:
        return None, f"{kind.upper()} is on a day that does not exist: {shortened(said)}"
    repeater = _REPEATER.search(rest)
    repeated = repeater[1] if repeater else ""
    time = _TIME.search(rest)
    if not time:
        return Stamp(kind, at, repeater=repeated), ""
    hour, minute = int(time[1]), int(time[2])
    if hour > 23 or minute > 59:
        return Stamp(kind, at, repeater=repeated), f"{kind.upper()} is at no time of day: {shortened(said)}"
    return Stamp(kind, at.replace(hour=hour, minute=minute), has_time=True, repeater=repeated), ""
