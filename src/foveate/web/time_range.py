"""Time ranges of pages, in UTC hours or days."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from foveate.session.rollups import TotalsGroup

TODAY, WEEK, MONTH = "today", "7d", "30d"
TIME_RANGES: Mapping[str, str] = {TODAY: "Today", WEEK: "7 days", MONTH: "30 days"}
"""Names and titles of the ranges to choose from."""
_DAYS = {WEEK: 7, MONTH: 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A time range in units: `groups` are their keys in totals, `labels` are for people.

    `title` fits into a sentence (`today`, `in the last 7 days`). `unit` is an hour or a day, and `started` of
    them have started.
    """

    name: str
    title: str
    unit: str
    since: float
    per: TotalsGroup
    groups: tuple[str, ...]
    labels: tuple[str, ...]
    started: int

    @property
    def is_today(self) -> bool:
        return self.per is TotalsGroup.HOUR


def resolve_time_range(name: str, now: float) -> TimeRange:
    """Return one of `TIME_RANGES` up to `now`."""
    moment = datetime.fromtimestamp(now, UTC)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if name == TODAY:
        hours = [midnight + timedelta(hours=hour) for hour in range(24)]
        return TimeRange(
            name=name,
            title="today",
            unit="hour",
            since=midnight.timestamp(),
            per=TotalsGroup.HOUR,
            groups=tuple(hour.strftime("%Y-%m-%dT%H") for hour in hours),
            labels=tuple(hour.strftime("%H:00") for hour in hours),
            started=moment.hour + 1,
        )
    count = _DAYS[name]
    days = [midnight - timedelta(days=ago) for ago in reversed(range(count))]
    return TimeRange(
        name=name,
        title=f"in the last {count} days",
        unit="day",
        since=days[0].timestamp(),
        per=TotalsGroup.DAY,
        groups=tuple(format_day(day.timestamp()) for day in days),
        labels=tuple(f"{day.day} {day:%b}" for day in days),
        started=count,
    )


def format_day(at: float) -> str:
    """Return the key of a day in totals."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
