"""Times as logs write them."""

from datetime import UTC, datetime

_MOST_SECONDS = 1e11  # in the year 5138
_FINEST = 1e20  # nanoseconds of that year; what is larger is no time


def seconds(said: object) -> float:
    """A time as seconds since 1970, whatever way it is written; 0 where it cannot be one.

    A number may be seconds, or thousandths, millionths or billionths of one. A time without a zone is UTC.
    """
    if isinstance(said, bool) or said is None:
        return 0.0
    if isinstance(said, int | float):
        return _of_number(said)
    try:
        told = datetime.fromisoformat(str(said).strip())
        told = told if told.tzinfo is not None else told.replace(tzinfo=UTC)
        return max(told.timestamp(), 0.0)
    except (ValueError, OverflowError, OSError):
        return _of_text(str(said))


def _of_number(said: float) -> float:
    if not 0 < said < _FINEST:
        return 0.0
    number = float(said)
    while number > _MOST_SECONDS:
        number /= 1000
    return number


def _of_text(said: str) -> float:
    try:
        return _of_number(float(said))
    except ValueError:
        return 0.0
