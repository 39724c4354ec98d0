"""Time ranges of pages."""

from foveate.session.rollups import TotalsGroup
from foveate.web.spending import TIME_RANGES, format_day, resolve_time_range
from tests.support.stores.ledger_records import NOON


def test_today_has_all_hours_some_of_which_have_started() -> None:
    time_range = resolve_time_range("today", NOON)

    assert time_range.per is TotalsGroup.HOUR
    assert time_range.is_today
    assert (time_range.groups[0], time_range.groups[-1], len(time_range.groups)) == (
        "2026-11-15T00",
        "2026-11-15T23",
        24,
    )
    assert (time_range.labels[-1], time_range.started) == ("23:00", 13)
    assert time_range.since == NOON - 43_200


def test_a_week_is_seven_days_with_today_as_the_last() -> None:
    time_range = resolve_time_range("7d", NOON)

    assert time_range.groups == tuple(f"2026-11-{day:02}" for day in range(9, 16))
    assert time_range.labels[0] == "9 Nov"
    assert time_range.since == NOON - 43_200 - 6 * 86_400
    assert not time_range.is_today
    assert time_range.started == 7


def test_every_time_range_has_a_label_for_each_unit() -> None:
    for name in TIME_RANGES:
        time_range = resolve_time_range(name, NOON)
        assert len(time_range.labels) == len(time_range.groups) <= 30
        assert list(time_range.groups) == sorted(set(time_range.groups))


def test_the_first_second_of_a_day_belongs_to_that_day() -> None:
    midnight = NOON + 43_200

    assert resolve_time_range("today", midnight).groups[0] == "2026-11-16T00"
    assert resolve_time_range("today", midnight).started == 1
    assert resolve_time_range("30d", midnight).groups[-1] == format_day(midnight) == "2026-11-16"
