"""Near and overdue deadlines that are not done, in the time zone of their author."""

from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foveate.context.time_section import DueDeadlines, find_due_deadlines, next_occurrence
from foveate.errors import BadOption
from foveate.memory.nodes import Node
from foveate.memory.parsing.outline import PlanningDate, PlanningKind
from tests.support.scenarios.memory_nodes import NodeSpec, build_test_nodes, deadline_at

VIENNA = ZoneInfo("Europe/Vienna")
NOW = datetime(2026, 11, 15, 9, 12, 34, tzinfo=VIENNA)


def find_due(
    *dates: PlanningDate, now: datetime = NOW, minutes: int = 60, zone: tzinfo | None = VIENNA
) -> DueDeadlines:
    nodes = build_test_nodes(
        *(NodeSpec(title=f"task {number}", planning_dates=(date_,)) for number, date_ in enumerate(dates))
    )
    return find_due_deadlines(nodes, now=now, warning_minutes=minutes, zone=zone)


def minutes_ahead(*dates: PlanningDate, now: datetime = NOW, zone: tzinfo | None = VIENNA) -> list[int]:
    """Minutes to each deadline that is listed."""
    due_deadlines = find_due(*dates, now=now, minutes=10**9, zone=zone)
    return [deadline.minutes for deadline in (*due_deadlines.near, *due_deadlines.overdue)]


@pytest.mark.parametrize(
    ("at", "near", "overdue"),
    [
        (datetime(2026, 11, 15, 10, 13), [], []),
        (datetime(2026, 11, 15, 10, 12), [60], []),
        (datetime(2026, 11, 15, 9, 12), [0], []),
        (datetime(2026, 11, 15, 9, 11), [], [-1]),
    ],
)
def test_a_deadline_is_near_within_the_warning_and_overdue_after_its_minute(
    at: datetime, near: list[int], overdue: list[int]
) -> None:
    due_deadlines = find_due(deadline_at(at))

    assert [deadline.minutes for deadline in due_deadlines.near] == near
    assert [deadline.minutes for deadline in due_deadlines.overdue] == overdue


def test_a_deadline_without_a_time_is_at_the_last_minute_of_its_day() -> None:
    day = deadline_at(datetime(2026, 11, 15), has_time=False)

    assert minutes_ahead(day, now=datetime(2026, 11, 15, 23, 24, tzinfo=VIENNA)) == [35]
    assert minutes_ahead(day, now=datetime(2026, 11, 16, 0, 0, tzinfo=VIENNA)) == [-1]
    assert find_due(day).near == ()


def test_done_and_scheduled_entries_have_no_deadline() -> None:
    at = datetime(2026, 11, 15, 9, 30)
    nodes = build_test_nodes(
        NodeSpec(title="done", todo="CANCELLED", is_done=True, planning_dates=(deadline_at(at),)),
        NodeSpec(
            title="scheduled",
            todo="TODO",
            planning_dates=(PlanningDate(PlanningKind.SCHEDULED, at, has_time=True),),
        ),
        NodeSpec(title="open", todo="TODO", planning_dates=(deadline_at(at),)),
        NodeSpec(title="no task", planning_dates=(deadline_at(at),)),
    )

    due_deadlines = find_due_deadlines(nodes, now=NOW, warning_minutes=60)

    assert [deadline.title for deadline in due_deadlines.near] == ["open", "no task"]
    assert [deadline.node_id for deadline in due_deadlines.near] == [nodes[3].id, nodes[4].id]


def test_private_deadlines_are_hidden() -> None:
    nodes = build_test_nodes(
        NodeSpec(
            title="private", tags=("Private",), planning_dates=(deadline_at(datetime(2026, 11, 15, 9, 30)),)
        ),
        NodeSpec(title="below", level=2, planning_dates=(deadline_at(datetime(2026, 11, 15, 9, 30)),)),
    )

    assert find_due_deadlines(nodes, now=NOW, warning_minutes=60) == DueDeadlines()


def test_near_deadlines_are_soonest_first_and_overdue_ones_latest_first() -> None:
    times = [datetime(2026, 11, 15, 9, minute) for minute in (30, 20, 5, 10)]

    due_deadlines = find_due(*map(deadline_at, times))

    assert [deadline.at.minute for deadline in due_deadlines.near] == [20, 30]
    assert [deadline.at.minute for deadline in due_deadlines.overdue] == [10, 5]


def test_the_lists_are_limited_and_the_rest_is_counted() -> None:
    near = [deadline_at(datetime(2026, 11, 15, 9, 12) + timedelta(minutes=number)) for number in range(30)]
    overdue = [deadline_at(datetime(2026, 11, 1) + timedelta(days=number)) for number in range(12)]

    due_deadlines = find_due(*near, *overdue)

    assert (
        len(due_deadlines.near),
        due_deadlines.more_near,
        len(due_deadlines.overdue),
        due_deadlines.more_overdue,
    ) == (20, 10, 5, 7)
    assert due_deadlines.overdue[0].at == datetime(2026, 11, 12)


def test_dates_are_in_the_given_zone_whatever_the_zone_of_now() -> None:
    date_ = deadline_at(datetime(2026, 11, 15, 9, 47))

    assert minutes_ahead(date_, now=NOW.astimezone(UTC), zone=VIENNA) == [35]
    assert minutes_ahead(date_, now=NOW, zone=None) == [35]
    assert minutes_ahead(date_, now=NOW, zone=UTC) == [95]


def test_minutes_are_correct_across_clock_changes() -> None:
    night = datetime(2026, 10, 25, 1, 30, tzinfo=VIENNA)  # at 03:00 it is 02:00 again
    spring = datetime(2026, 3, 29, 1, 30, tzinfo=VIENNA)  # at 02:00 it is 03:00

    assert minutes_ahead(deadline_at(datetime(2026, 10, 25, 3, 30)), now=night) == [180]
    assert minutes_ahead(deadline_at(datetime(2026, 10, 25, 2, 30)), now=night) == [60]
    assert minutes_ahead(deadline_at(datetime(2026, 3, 29, 3, 30)), now=spring) == [60]
    assert minutes_ahead(deadline_at(datetime(2026, 3, 29, 2, 30)), now=spring) == [60]


@pytest.mark.parametrize(
    ("first", "repeater", "expected"),
    [
        (datetime(2026, 11, 15, 10, 0), "+1w", datetime(2026, 11, 15, 10, 0)),
        (datetime(2026, 11, 8, 10, 0), "+1w", datetime(2026, 11, 15, 10, 0)),
        (datetime(2026, 11, 15, 9, 0), "++1d", datetime(2026, 11, 16, 9, 0)),
        (datetime(2026, 11, 15, 9, 12), ".+1d", datetime(2026, 11, 15, 9, 12)),
        (datetime(2026, 11, 15, 1, 30), "+4h", datetime(2026, 11, 15, 9, 30)),
        (datetime(1950, 1, 31, 10, 0), "+1m", datetime(2026, 11, 30, 10, 0)),
        (datetime(2024, 2, 29, 10, 0), "+1y", datetime(2027, 2, 28, 10, 0)),
        (datetime(2026, 11, 1, 10, 0), "+1m/2m", datetime(2026, 12, 1, 10, 0)),
        (datetime(1, 1, 1), "+1h", datetime(2026, 11, 15, 10, 0)),
        (datetime(2026, 11, 1, 10, 0), "+0d", datetime(2026, 11, 1, 10, 0)),
        (datetime(2026, 11, 1, 10, 0), "+9999999999d", datetime(2026, 11, 1, 10, 0)),
        (datetime(2026, 11, 1, 10, 0), "+999999w", datetime(2026, 11, 1, 10, 0)),
        (datetime(2026, 11, 1, 10, 0), "+99999y", datetime(2026, 11, 1, 10, 0)),
        (datetime(2026, 11, 1, 10, 0), "often", datetime(2026, 11, 1, 10, 0)),
    ],
)
def test_the_next_occurrence_of_a_repeating_deadline_counts(
    first: datetime, repeater: str, expected: datetime
) -> None:
    due_deadlines = find_due(deadline_at(first, repeater=repeater), minutes=10**9)

    assert [deadline.at for deadline in (*due_deadlines.near, *due_deadlines.overdue)] == [expected]


def test_a_repeating_deadline_without_a_time_is_at_the_last_minute() -> None:
    monthly = deadline_at(datetime(2026, 8, 31), has_time=False, repeater="+1m")

    assert minutes_ahead(monthly, now=datetime(2026, 11, 30, 23, 0, tzinfo=VIENNA)) == [59]


def test_a_skipped_or_ambiguous_occurrence_is_not_missed() -> None:
    daily = deadline_at(datetime(2026, 1, 1, 2, 30), repeater="+1d")
    skipped = datetime(2026, 3, 29, 3, 10, tzinfo=VIENNA)
    second_time = datetime(2026, 10, 25, 2, 20, fold=1, tzinfo=VIENNA)

    assert minutes_ahead(daily, now=skipped) == [20]
    assert minutes_ahead(daily, now=second_time) == [24 * 60 + 10]


def test_an_hourly_occurrence_is_not_missed_if_a_clock_skips_two_hours() -> None:
    hourly = deadline_at(datetime(2026, 1, 1, 0, 30), repeater="+1h")
    troll = ZoneInfo("Antarctica/Troll")  # at 01:00 it is 03:00

    assert minutes_ahead(hourly, now=datetime(2026, 3, 29, 3, 10, tzinfo=troll), zone=troll) == [20]


ZONES = st.timezones()
MOMENTS = st.datetimes()


@pytest.mark.slow
@given(
    now=st.datetimes(timezones=ZONES),
    zone=ZONES,
    at=MOMENTS,
    has_time=st.booleans(),
    minutes=st.integers(0, 10**9),
)
def test_a_deadline_is_listed_if_and_only_if_it_is_near_or_overdue(
    now: datetime, zone: tzinfo, at: datetime, has_time: bool, minutes: int
) -> None:
    try:
        end = at if has_time else datetime.combine(at.date(), datetime.max.time())
        instant = end.replace(second=0, microsecond=0, tzinfo=zone).astimezone(UTC)
        minute = now.astimezone(zone).replace(second=0, microsecond=0).astimezone(UTC)
    except OverflowError:
        # In the first and last hours of the calendar there is nothing to compare with.
        find_due_deadlines(
            build_test_nodes(NodeSpec(planning_dates=(deadline_at(at, has_time=has_time),))),
            now=now,
            warning_minutes=minutes,
            zone=zone,
        )
        assume(False)
    due_deadlines = find_due(deadline_at(at, has_time=has_time), now=now, minutes=minutes, zone=zone)

    minutes_left = (instant - minute) // timedelta(minutes=1)
    assert [deadline.minutes for deadline in due_deadlines.overdue] == (
        [minutes_left] if minutes_left < 0 else []
    )
    assert [deadline.minutes for deadline in due_deadlines.near] == (
        [minutes_left] if 0 <= minutes_left <= minutes else []
    )


@given(
    first=st.datetimes(datetime(2020, 1, 1), datetime(2027, 1, 1)),
    wall=st.datetimes(datetime(2020, 1, 1), datetime(2027, 1, 1)),
    kind=st.sampled_from(["+", "++", ".+"]),
    number=st.integers(1, 40),
    unit=st.sampled_from("hdwmy"),
)
def test_the_next_occurrence_is_the_first_that_is_not_over(
    first: datetime, wall: datetime, kind: str, number: int, unit: str
) -> None:
    occurrence = next_occurrence(
        first, f"{kind}{number}{unit}", local_now=wall, is_over=lambda moment: moment < wall
    )

    at, count = first, 0
    while at < wall:
        count += 1
        at = add_interval(first, count * number, unit)
    assert occurrence == at


def add_interval(first: datetime, number: int, unit: str) -> datetime:
    """Step by step, as on a calendar."""
    if unit in "hdw":
        return first + number * {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}[unit]
    year, month = first.year, first.month
    for _ in range(number * (12 if unit == "y" else 1)):
        month += 1
        if month > 12:
            year, month = year + 1, 1
    for day in (first.day, 30, 29, 28):
        try:
            return datetime.combine(date(year, month, min(day, first.day)), first.time())
        except ValueError:
            continue
    raise AssertionError


def test_a_time_without_a_zone_is_rejected() -> None:
    nodes: list[Node] = []

    with pytest.raises(BadOption, match="a time must have a time zone"):
        find_due_deadlines(nodes, now=datetime(2026, 11, 15), warning_minutes=60)
