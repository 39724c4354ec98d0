"""Times as logs write them."""

from datetime import UTC, datetime

_MAX_SECONDS = 1e11  # in the year 5138
_MAX_NUMBER = 1e20  # nanoseconds of that year; what is larger is no time


def parse_time(value: object) -> float:
    """A time as seconds since 1970, whatever way it is written; 0 where it cannot be one.

    A number may be seconds, or thousandths, millionths or billionths of one. A time without a zone is UTC.
    """
    if isinstance(value, bool) or value is None:
        return 0.0
    if isinstance(value, int | float):
        return _parse_number(value)
    try:
        time = datetime.fromisoformat(str(value).strip())
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return max(time.timestamp(), 0.0)
    except (ValueError, OverflowError, OSError):
        return _parse_text(str(value))


def _parse_number(value: float) -> float:
    if not 0 < value < _MAX_NUMBER:
        return 0.0
    number = float(value)
    while number > _MAX_SECONDS:
        number /= 1000
    return number


def _parse_text(value: str) -> float:
    try:
        return _parse_number(float(value))
    except ValueError:
        return 0.0
