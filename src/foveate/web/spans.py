"""The time that a page is about: today by the hour, or some days up to now. Days are those of UTC."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from foveate.session.totals import Per

TODAY, WEEK, MONTH = "today", "7d", "30d"
SPANS: Mapping[str, str] = {TODAY: "Today", WEEK: "7 days", MONTH: "30 days"}
"""What can be chosen, and what it is called."""
_DAYS = {WEEK: 7, MONTH: 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time in pieces: `groups` are their names among totals, `labels` what people call them.

    `title` goes with a sentence (`today`, `in the last 7 days`), `piece` is what one of them is, and so many of
    them have `begun`.
    """

    name: str
    title: str
    piece: str
    since: float
    per: Per
    groups: tuple[str, ...]
    labels: tuple[str, ...]
    begun: int

    @property
    def is_today(self) -> bool:
        """Whether it is no more than today."""
        return self.per is Per.HOUR


def span_of(name: str, now: float) -> Span:
    """One of `SPANS`, up to `now`."""
    moment = datetime.fromtimestamp(now, UTC)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if name == TODAY:
        hours = [midnight + timedelta(hours=hour) for hour in range(24)]
        return Span(
            name=name,
            title="today",
            piece="hour",
            since=midnight.timestamp(),
            per=Per.HOUR,
            groups=tuple(hour.strftime("%Y-%m-%dT%H") for hour in hours),
            labels=tuple(hour.strftime("%H:00") for hour in hours),
            begun=moment.hour + 1,
        )
    count = _DAYS[name]
    days = [midnight - timedelta(days=ago) for ago in reversed(range(count))]
    return Span(
        name=name,
        title=f"in the last {count} days",
        piece="day",
        since=days[0].timestamp(),
        per=Per.DAY,
        groups=tuple(day_of(day.timestamp()) for day in days),
        labels=tuple(f"{day.day} {day:%b}" for day in days),
        begun=count,
    )


def day_of(at: float) -> str:
    """The name of a day among totals."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
