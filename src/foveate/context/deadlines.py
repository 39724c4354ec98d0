"""Deadlines: which of a memory's are near, and which have passed without what they are for being done.

All is decided in whole minutes. A deadline on a day without a time is at its last minute. Dates in notes have
no zone; they are those of the zone that is given. Where a clock shows a time twice the first is meant, and a
time that it skips is as much later as the clock was moved.
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
    """When something has to be done, by the clock on the wall, and how many minutes from now; below 0: ago."""

    node_id: str
    title: str
    at: datetime
    has_time: bool
    minutes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DueDeadlines:
    """The deadlines to be told: the near ones, soonest first, the overdue ones, latest first.

    Of both no more than can be of use; `more_near` and `more_overdue` say how many there are beside them.
    """

    near: tuple[Deadline, ...] = ()
    overdue: tuple[Deadline, ...] = ()
    more_near: int = 0
    more_overdue: int = 0


def find_due_deadlines(
    nodes: Iterable[Node], *, now: datetime, warning_minutes: int, zone: tzinfo | None = None
) -> DueDeadlines:
    """The deadlines of `nodes` that are not done and lie at most so many minutes ahead, or behind.

    Of a deadline that repeats the next occurrence counts, so it is never overdue. `zone` is where the dates are
    from; that of `now` where it is None.

    Raises:
        BadOption: `now` has no zone.
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
    """Looks through a memory for deadlines once a minute, and again when the memory has changed.

    Safe to share between threads; two that ask at once may both look.
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
        """As `deadlines_due`; `nodes` are gone through only in another minute, or for another version.

        Raises:
            BadOption: `now` has no zone.
        """
        key = (memory_version, to_seconds(local_minute(now, zone)), warning_minutes, zone or now.tzinfo)
        last = self._last
        if last is not None and last[0] == key:
            return last[1]
        due = find_due_deadlines(nodes, now=now, warning_minutes=warning_minutes, zone=zone)
        self._last = key, due
        return due

    def clear(self) -> None:
        """Forget what was found."""
        self._last = None


def local_minute(moment: datetime, zone: tzinfo | None) -> datetime:
    """The minute that the clock on the wall shows in `zone`, or where `moment` is from.

    Raises:
        BadOption: `moment` has no zone.
    """
    try:
        local = check_zone(moment).astimezone(zone) if zone else check_zone(moment)
    except OverflowError:  # in the first or last hours that there are
        local = moment
    return local.replace(second=0, microsecond=0)


def check_zone(moment: datetime) -> datetime:
    """A time that can be compared with any other.

    Raises:
        BadOption: it cannot, having no zone.
    """
    if moment.utcoffset() is None:
        raise BadOption(f"a time has to have a zone, unlike {moment}")
    return moment


def to_seconds(moment: datetime) -> int:
    """When it is, for comparing and counting: also across a change of clocks, and in the years 1 and 9999."""
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
    """The first time that is not over, of those at which something repeats; `first` where it does not.

    `+1w`, `++1w` and `.+1w` are the same here: they differ in what becomes of the date when it is done. A day
    that a month does not have is its last. `wall` is the time now, and saves going through all the years.
    """
    match = _REPEATER.match(repeater)
    number = int(match[1]) if match else 0
    if not match or not number:
        return first
    try:
        # From a little before now on, since clocks may have been changed in between.
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
