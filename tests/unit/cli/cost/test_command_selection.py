"""Selecting calls and grouping sums by options."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from foveate.cli.cost.command import CallSelection, parse_group_by
from foveate.cost.ledger import GroupBy
from foveate.errors import BadOption
from tests.support.stores.ledger_records import NOON


@pytest.fixture
def auckland_time() -> Iterator[None]:
    """A local time zone far from UTC, so that dates differ too."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", "Pacific/Auckland")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("auckland_time")
@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-11-15", None, (NOON - 43_200, None)),
        (None, "2026-11-14", (None, NOON - 43_200)),
        ("1d", "2026-11-15T13:00", (NOON - 86_400, NOON + 3_600)),
        ("2026-11-15T13:00+01:00", None, (NOON, None)),
    ],
)
def test_times_are_parsed_in_utc(
    since: str | None, until: str | None, expected: tuple[float | None, float | None]
) -> None:
    selection = CallSelection.from_options(agent=None, session=None, since=since, until=until, now=NOON)

    assert selection.since == expected[0]
    assert selection.until == (None if expected[1] is None else pytest.approx(expected[1], abs=1e-3))


def test_until_includes_its_own_moment() -> None:
    selection = CallSelection.from_options(
        agent=None, session=None, since=None, until="2026-11-15T12:00", now=NOON
    )

    assert selection.until is not None
    assert selection.until > NOON


@pytest.mark.parametrize("day", ["2026-11-01", "2026-11-14", "2000-02-29"])
def test_until_a_day_and_since_the_next_leave_no_gap(day: str) -> None:
    """Regression: a quarter of a microsecond before midnight could not be selected."""
    selection = CallSelection.from_options(agent=None, session=None, since=None, until=day, now=NOON)

    midnight = datetime.fromisoformat(f"{day}T00:00+00:00").timestamp() + 86_400
    assert selection.until == midnight


def test_until_the_last_day_of_the_calendar_is_accepted() -> None:
    selection = CallSelection.from_options(agent=None, session=None, since=None, until="9999-12-31", now=NOON)

    assert selection.until == 253_402_300_800.0


def test_group_by_preserves_the_order() -> None:
    assert parse_group_by("Day, agent") == (GroupBy.DAY, GroupBy.AGENT)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "not ''"), ("agent,", "not ''"), ("week", "not 'week'"), ("day,day", "--by names day twice")],
)
def test_an_unknown_or_repeated_group_is_rejected(text: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parse_group_by(text)
