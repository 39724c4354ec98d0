"""Time ranges of pages."""

from foveate.session.rollups import TotalsGroup
from foveate.web.time_range import TIME_RANGES, format_day, resolve_time_range
from tests.support.stores.ledger_records import NOON


def test_today_has_all_hours_some_of_which_have_started() -> None:
    span = resolve_time_range("today", NOON)

    assert span.per is TotalsGroup.HOUR
    assert span.is_today
    assert (span.groups[0], span.groups[-1], len(span.groups)) == ("2026-11-15T00", "2026-11-15T23", 24)
    assert (span.labels[-1], span.started) == ("23:00", 13)
    assert span.since == NOON - 43_200


def test_a_week_is_seven_days_with_today_as_the_last() -> None:
    span = resolve_time_range("7d", NOON)

    assert span.groups == tuple(f"2026-11-{day:02}" for day in range(9, 16))
    assert span.labels[0] == "9 Nov"
    assert span.since == NOON - 43_200 - 6 * 86_400
    assert not span.is_today
    assert span.started == 7


def test_every_time_range_has_a_label_for_each_unit() -> None:
    for name in TIME_RANGES:
        span = resolve_time_range(name, NOON)
        assert len(span.labels) == len(span.groups) <= 30
        assert list(span.groups) == sorted(set(span.groups))


def test_the_first_second_of_a_day_belongs_to_that_day() -> None:
    midnight = NOON + 43_200

    assert resolve_time_range("today", midnight).groups[0] == "2026-11-16T00"
    assert resolve_time_range("today", midnight).started == 1
    assert resolve_time_range("30d", midnight).groups[-1] == format_day(midnight) == "2026-11-16"
