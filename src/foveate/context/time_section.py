"""The section `time`: the time, the duration of the session, and deadlines that are near or overdue.

Everything is in whole minutes. A deadline without a time is at the last minute of its day. Dates in notes
have no time zone; the given one applies. If a clock change makes a local time ambiguous, the first is meant;
a skipped time is shifted by the size of the change.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Self

from foveate.budget.sections import Keep, Priority, Section, Stability, parse_choice
from foveate.caching import register
from foveate.errors import BadOption
from foveate.memory.nodes import Node, with_checklist_items
from foveate.memory.parsing.outline import PlanningDate

MAX_NEAR = 20
MAX_OVERDUE = 5

_REPEATER = re.compile(r"(?:\+\+|\.\+|\+)([0-9]{1,6})([hdwmy])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
_MONTHS_PER_UNIT = {"m": 1, "y": 12}
AWARENESS_VARIABLE = "TIME_AWARENESS"
FORMAT_VARIABLE = "TIME_FORMAT"
WARNING_MINUTES_VARIABLE = "DEADLINE_WARNING_MINUTES"
_BOOLEANS = dict.fromkeys(("true", "on", "yes", "1"), True) | dict.fromkeys(("false", "off", "no", "0"), False)
# Not `strftime`, which depends on the locale.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MAX_TITLE_CHARS = 200


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
    for node in with_checklist_items(nodes):
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
        key = (memory_version, to_whole_seconds(local_minute(now, zone)), warning_minutes, zone or now.tzinfo)
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
        raise BadOption(f"a time must have a time zone; {moment} has none")
    return moment


def to_whole_seconds(moment: datetime) -> int:
    """Return a time as seconds that can be compared across clock changes, also in the years 1 and 9999."""
    offset = moment.utcoffset() or timedelta(0)
    of_day = moment.hour * 3600 + moment.minute * 60 + moment.second
    return moment.toordinal() * 86_400 + of_day - int(offset.total_seconds())


def _build_deadline(node: Node, stamp: PlanningDate, minute: datetime, zone: tzinfo | None) -> Deadline:
    now = to_whole_seconds(minute)
    first = stamp.at if stamp.has_time else stamp.at.replace(hour=23, minute=59)
    first = first.replace(second=0, microsecond=0)
    at = next_occurrence(
        first,
        stamp.repeater,
        local_now=minute.replace(tzinfo=None),
        is_over=lambda moment: to_whole_seconds(moment.replace(tzinfo=zone)) < now,
    )
    return Deadline(
        node_id=node.id,
        title=node.title,
        at=at,
        has_time=stamp.has_time,
        minutes=(to_whole_seconds(at.replace(tzinfo=zone)) - now) // 60,
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
        if months := number * _MONTHS_PER_UNIT.get(match[2], 0):
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


NOTHING_DUE = DueDeadlines()


class TimeFormat(StrEnum):
    ISO = "iso"
    NATURAL = "natural"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOptions:
    awareness: bool = True
    format: TimeFormat = TimeFormat.ISO
    warning_minutes: int = 60

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            BadOption: an unknown format, a negative number of minutes, or a switch that is not a bool.
        """
        if not isinstance(self.awareness, bool):
            raise BadOption(f"awareness must be true or false, not {self.awareness!r}", path=("awareness",))
        object.__setattr__(self, "format", parse_choice(TimeFormat, self.format, ("format",)))
        minutes = self.warning_minutes
        if type(minutes) is not int or minutes < 0:
            raise BadOption(
                f"warning_minutes must be a whole number of minutes, 0 or more, not {minutes!r}",
                path=("warning_minutes",),
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], over: "TimeOptions | None" = None) -> Self:
        """Return the options in environment variables, over those in `over`. Empty variables are ignored.

        Raises:
            BadOption: an invalid value; names the variable.
        """
        defaults = over or TimeOptions()
        awareness, format_, minutes = (
            environment.get(name, "").strip().strip("\"'").strip()
            for name in (AWARENESS_VARIABLE, FORMAT_VARIABLE, WARNING_MINUTES_VARIABLE)
        )
        if awareness and awareness.lower() not in _BOOLEANS:
            raise _invalid_variable(AWARENESS_VARIABLE, "true or false", awareness)
        if format_ and format_.lower() not in set(TimeFormat):
            raise _invalid_variable(FORMAT_VARIABLE, f"one of {', '.join(TimeFormat)}", format_)
        if minutes and not (minutes.isascii() and minutes.isdigit() and len(minutes) < 10):
            raise _invalid_variable(WARNING_MINUTES_VARIABLE, "a whole number of minutes, 0 or more", minutes)
        return cls(
            awareness=_BOOLEANS[awareness.lower()] if awareness else defaults.awareness,
            format=TimeFormat(format_.lower()) if format_ else defaults.format,
            warning_minutes=int(minutes) if minutes else defaults.warning_minutes,
        )


class TimeAwareness:
    def __init__(self) -> None:
        self._deadlines = DeadlineCache()

    def section(
        self,
        nodes: Iterable[Node] = (),
        *,
        memory_version: Hashable = None,
        now: datetime,
        zone: tzinfo | None = None,
        session_started: datetime | None = None,
        options: TimeOptions | None = None,
    ) -> Section | None:
        """Render the section. None if it is disabled.

        `nodes` are scanned once a minute, and again for another `memory_version`. `zone` is the time zone of
        the user and of the dates in the memory; default: that of `now`.

        Raises:
            BadOption: a time without a time zone.
        """
        options = options or TimeOptions()
        if not options.awareness:
            return None
        due = self._deadlines.due(
            nodes,
            memory_version=memory_version,
            now=now,
            warning_minutes=options.warning_minutes,
            zone=zone,
        )
        return render_time(now, due, zone=zone, session_started=session_started, format=options.format)


def render_time(
    now: datetime,
    due: DueDeadlines = NOTHING_DUE,
    *,
    zone: tzinfo | None = None,
    session_started: datetime | None = None,
    format: TimeFormat = TimeFormat.ISO,  # noqa: A002  # the setting's name
) -> Section:
    """Render the section: the time, the duration of the session, near and overdue deadlines.

    The bytes stay the same within a minute. If the section is cut, the time itself is kept longest.

    Raises:
        BadOption: a time without a time zone.
    """
    minute = local_minute(now, zone)
    lines = [f"Time: {_format_now(minute, format)}"]
    if session_started is not None:
        lasted = to_whole_seconds(minute) - to_whole_seconds(check_zone(session_started))
        lines.append(f"Session: {_format_duration(max(0, lasted // 60), TimeFormat.ISO)}")
    for deadline in due.near:
        time_left = f"in {_format_duration(deadline.minutes, format)}" if deadline.minutes else "now"
        lines.append(f"Deadline {time_left}: {_format_deadline(deadline, format)}")
    if due.more_near:
        lines.append(f"More deadlines near: {due.more_near}")
    lines += [
        f"Overdue by {_format_duration(-deadline.minutes, format)}: {_format_deadline(deadline, format)}"
        for deadline in due.overdue
    ]
    if due.more_overdue:
        lines.append(f"More overdue: {due.more_overdue}")
    return Section("time", items=lines, priority=Priority.HIGH, keep=Keep.HEAD, stability=Stability.TURN)


def _format_now(minute: datetime, time_format: TimeFormat) -> str:
    if time_format is TimeFormat.ISO:
        return minute.isoformat(timespec="minutes")
    # Some zones have no name, but every zone has an offset from UTC.
    zone = minute.tzname() or minute.isoformat().removeprefix(minute.replace(tzinfo=None).isoformat())
    return f"{_format_day(minute)}, {minute:%H:%M} ({zone})"


def _format_deadline(deadline: Deadline, time_format: TimeFormat) -> str:
    at = deadline.at
    match time_format, deadline.has_time:
        case TimeFormat.ISO, True:
            due = at.isoformat(timespec="minutes")
        case TimeFormat.ISO, _:
            due = at.date().isoformat()
        case _, True:
            due = f"{_format_day(at)}, {at:%H:%M}"
        case _:
            due = _format_day(at)
    return f"{_shorten_title(deadline.title)} ({due}; id {_shorten_title(deadline.node_id)})"


def _format_day(moment: datetime) -> str:
    return f"{_WEEKDAYS[moment.weekday()]}, {moment.day} {_MONTHS[moment.month - 1]} {moment.year}"


def _format_duration(minutes: int, time_format: TimeFormat) -> str:
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d", "day"), (hours, "h", "hour"), (0 if days else minutes, "min", "minute")]
    nonzero_units = [unit for unit in units if unit[0]] or units[-1:]
    if time_format is TimeFormat.ISO:
        return " ".join(f"{number} {short}" for number, short, _ in nonzero_units)
    return " ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, _, word in nonzero_units)


def _shorten_title(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TITLE_CHARS else line[:_MAX_TITLE_CHARS] + " …"


def _invalid_variable(variable: str, expected: str, value: str) -> BadOption:
    return BadOption(f"{variable} must be {expected}, not {value!r:.40}; or unset it", path=(variable,))
