"""Deadlines of a memory that are near or overdue.

Everything is in whole minutes. A deadline without a time is at the last minute of its day. Dates in notes have
no time zone; the given one applies. If a clock change makes a local time ambiguous, the first is meant; a
skipped time is shifted by the size of the change.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from foveate.caching import register
from foveate.errors import BadOption
from foveate.memory.nodes import Node
from foveate.memory.parsing.outline import PlanningDate

MAX_NEAR = 20
MAX_OVERDUE = 5

_REPEATER = re.compile(r"(?:\+\+|\.\+|\+)([0-9]{1,6})([hdwmy])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
_MONTHS = {"m": 1, "y": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A deadline in local time, and the minutes from now; negative if overdue."""

    node_id: str
    title: str
    at: datetime
    has_time: bool
    minutes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DueDeadlines:
    """Near deadlines, soonest first, and overdue ones, latest first.

    Both are limited; `more_near` and `more_overdue` count the rest.
    """

    near: tuple[Deadline, ...] = ()
    overdue: tuple[Deadline, ...] = ()
    more_near: int = 0
    more_overdue: int = 0


def find_due_deadlines(
    nodes: Iterable[Node], *, now: datetime, warning_minutes: int, zone: tzinfo | None = None
) -> DueDeadlines:
    """Return the deadlines of `nodes` that are not done, and near or overdue.

    Of a repeating deadline the next occurrence counts, so it is never overdue. `zone` is the time zone of the
    dates; default: that of `now`.

    Raises:
        BadOption: `now` has no time zone.
    """
    minute = local_minute(now, zone)
    near: list[Deadline] = []
    overdue: list[Deadline] = []
    for node in nodes:
        if not node.entry.planning_dates or node.entry.is_done:
            continue
        for stamp in node.deadlines:
            deadline = _build_deadline(node, stamp, minute, zone or now.tzinfo)
            if deadline.minutes < 0:
                overdue.append(deadline)
            elif deadline.minutes <= warning_minutes:
                near.append(deadline)
    near.sort(key=lambda deadline: deadline.minutes)
    overdue.sort(key=lambda deadline: -deadline.minutes)
    return DueDeadlines(
        near=tuple(near[:MAX_NEAR]),
        overdue=tuple(overdue[:MAX_OVERDUE]),
        more_near=max(0, len(near) - MAX_NEAR),
        more_overdue=max(0, len(overdue) - MAX_OVERDUE),
    )


class DeadlineCache:
    """Scans a memory for deadlines once a minute, and again if the memory has changed.

    Thread-safe; concurrent callers may both scan.
    """

    def __init__(self) -> None:
        self._last: tuple[Hashable, DueDeadlines] | None = None
        register(self)

    def due(
        self,
        nodes: Iterable[Node],
        *,
        memory_version: Hashable,
        now: datetime,
        warning_minutes: int,
        zone: tzinfo | None = None,
    ) -> DueDeadlines:
        """Like `find_due_deadlines`, but `nodes` are scanned only once per minute and memory version.

        Raises:
            BadOption: `now` has no time zone.
        """
        key = (memory_version, to_seconds(local_minute(now, zone)), warning_minutes, zone or now.tzinfo)
        last = self._last
        if last is not None and last[0] == key:
            return last[1]
        due = find_due_deadlines(nodes, now=now, warning_minutes=warning_minutes, zone=zone)
        self._last = key, due
        return due

    def clear(self) -> None:
        self._last = None


def local_minute(moment: datetime, zone: tzinfo | None) -> datetime:
    """The local minute in `zone`, or in the zone of `moment`.

    Raises:
        BadOption: `moment` has no time zone.
    """
    try:
        local = check_zone(moment).astimezone(zone) if zone else check_zone(moment)
    except OverflowError:  # in the first or last hours of the calendar
        local = moment
    return local.replace(second=0, microsecond=0)


def check_zone(moment: datetime) -> datetime:
    """Return `moment` if it has a time zone.

    Raises:
        BadOption: it has none.
    """
    if moment.utcoffset() is None:
        raise BadOption(f"a time has to have a zone, unlike {moment}")
    return moment


def to_seconds(moment: datetime) -> int:
    """Return a time as seconds that can be compared across clock changes, also in the years 1 and 9999."""
    offset = moment.utcoffset() or timedelta(0)
    of_day = moment.hour * 3600 + moment.minute * 60 + moment.second
    return moment.toordinal() * 86_400 + of_day - int(offset.total_seconds())


def _build_deadline(node: Node, stamp: PlanningDate, minute: datetime, zone: tzinfo | None) -> Deadline:
    now = to_seconds(minute)
    first = stamp.at if stamp.has_time else stamp.at.replace(hour=23, minute=59)
    first = first.replace(second=0, microsecond=0)
    at = next_occurrence(
        first,
        stamp.repeater,
        local_now=minute.replace(tzinfo=None),
        is_over=lambda moment: to_seconds(moment.replace(tzinfo=zone)) < now,
    )
    return Deadline(
        node_id=node.id,
        title=node.title,
        at=at,
        has_time=stamp.has_time,
        minutes=(to_seconds(at.replace(tzinfo=zone)) - now) // 60,
    )


def next_occurrence(
    first: datetime, repeater: str, *, local_now: datetime, is_over: Callable[[datetime], bool]
) -> datetime:
    """Return the first occurrence that is not over; `first` if the deadline does not repeat.

    `+1w`, `++1w` and `.+1w` are the same here: they only differ when the date is marked as done. A day that a
    month lacks is its last day. `local_now` avoids stepping through all years.
    """
    match = _REPEATER.match(repeater)
    number = int(match[1]) if match else 0
    if not match or not number:
        return first
    try:
        # Starts a little before now, since clocks may have changed in between.
        if months := number * _MONTHS.get(match[2], 0):
            passed_months = (local_now.year - first.year) * 12 + local_now.month - first.month - 1
            count = max(0, passed_months // months)
            while is_over(occurrence := _months_later(first, count * months)):
                count += 1
        else:
            step = timedelta(hours=number * _HOURS[match[2]])
            count = max(0, (local_now - first - timedelta(days=1)) // step)
            while is_over(occurrence := first + count * step):
                count += 1
    except (OverflowError, ValueError):  # beyond the year 9999
        return first
    return occurrence


def _months_later(moment: datetime, months: int) -> datetime:
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    return moment.replace(year=year, month=month + 1, day=min(moment.day, monthrange(year, month + 1)[1]))
