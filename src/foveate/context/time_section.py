"""The section `time`: the time, the duration of the session, and deadlines."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import StrEnum
from typing import Self

from foveate.budget.sections import Keep, Priority, Section, Stability, parse_choice
from foveate.context.deadlines import (
    Deadline,
    DeadlineCache,
    DueDeadlines,
    check_zone,
    local_minute,
    to_seconds,
)
from foveate.errors import BadOption
from foveate.memory.nodes import Node

AWARENESS_VARIABLE = "TIME_AWARENESS"
FORMAT_VARIABLE = "TIME_FORMAT"
WARNING_MINUTES_VARIABLE = "DEADLINE_WARNING_MINUTES"

NOTHING_DUE = DueDeadlines()

_BOOLEANS = dict.fromkeys(("true", "on", "yes", "1"), True) | dict.fromkeys(("false", "off", "no", "0"), False)
# Not `strftime`, which depends on the locale.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MAX_TITLE_CHARS = 200


class TimeFormat(StrEnum):
    ISO = "iso"
    NATURAL = "natural"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOptions:
    """Options of the section `time`."""

    awareness: bool = True
    format: TimeFormat = TimeFormat.ISO
    warning_minutes: int = 60

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            BadOption: an unknown format, a negative number of minutes, or a switch that is not a bool.
        """
        if not isinstance(self.awareness, bool):
            raise BadOption(f"awareness is true or false, not {self.awareness!r}", path=("awareness",))
        object.__setattr__(self, "format", parse_choice(TimeFormat, self.format, ("format",)))
        minutes = self.warning_minutes
        if type(minutes) is not int or minutes < 0:
            raise BadOption(
                f"warning_minutes is a whole number of minutes, 0 or more, not {minutes!r}",
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
    """Renders the section `time` for prompts with one memory."""

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
        lasted = to_seconds(minute) - to_seconds(check_zone(session_started))
        lines.append(f"Session: {_format_duration(max(0, lasted // 60), TimeFormat.ISO)}")
    for deadline in due.near:
        ahead = f"in {_format_duration(deadline.minutes, format)}" if deadline.minutes else "now"
        lines.append(f"Deadline {ahead}: {_format_deadline(deadline, format)}")
    if due.more_near:
        lines.append(f"Deadlines near, beside these: {due.more_near}")
    lines += [
        f"Overdue by {_format_duration(-deadline.minutes, format)}: {_format_deadline(deadline, format)}"
        for deadline in due.overdue
    ]
    if due.more_overdue:
        lines.append(f"Overdue, beside these: {due.more_overdue}")
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
            when = at.isoformat(timespec="minutes")
        case TimeFormat.ISO, _:
            when = at.date().isoformat()
        case _, True:
            when = f"{_format_day(at)}, {at:%H:%M}"
        case _:
            when = _format_day(at)
    return f"{_shorten_title(deadline.title)} ({when}; id {_shorten_title(deadline.node_id)})"


def _format_day(moment: datetime) -> str:
    return f"{_WEEKDAYS[moment.weekday()]}, {moment.day} {_MONTHS[moment.month - 1]} {moment.year}"


def _format_duration(minutes: int, time_format: TimeFormat) -> str:
    """Write a duration in its two largest units."""
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d", "day"), (hours, "h", "hour"), (0 if days else minutes, "min", "minute")]
    filled = [unit for unit in units if unit[0]] or units[-1:]
    if time_format is TimeFormat.ISO:
        return " ".join(f"{number} {short}" for number, short, _ in filled)
    return " ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, _, word in filled)


def _shorten_title(text: str) -> str:
    """Return the title on one line, limited in length."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TITLE_CHARS else line[:_MAX_TITLE_CHARS] + " …"


def _invalid_variable(variable: str, what: str, value: str) -> BadOption:
    return BadOption(f"{variable} is {what}, not {value!r:.40}; or unset it", path=(variable,))
