"""The section `time` and its settings."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget import Keep, Priority, Stability
from foveate.context.time_section import (
    Deadline,
    DueDeadlines,
    TimeAwareness,
    TimeFormat,
    TimeOptions,
    render_time,
)
from foveate.errors import BadOption
from foveate.memory.nodes import Node
from foveate.tokens import drop_caches
from tests.support.scenarios.memory_nodes import NodeSpec, build_test_nodes, deadline_at

VIENNA = ZoneInfo("Europe/Vienna")
NOW = datetime(2026, 11, 15, 9, 12, 34, tzinfo=VIENNA)
INVOICE = Deadline(
    node_id="a1", title="Send the invoice", at=datetime(2026, 11, 15, 9, 47), has_time=True, minutes=35
)
CALL = Deadline(node_id="b2", title="Call Ana", at=datetime(2026, 11, 14, 23, 59), has_time=False, minutes=-553)
DUE = DueDeadlines(near=(INVOICE,), overdue=(CALL,), more_overdue=3)


def lines(now: datetime, due: DueDeadlines = DUE, **rest: Any) -> list[str]:
    return render_time(now, due, **rest).text.split("\n")


def test_the_section_has_the_time_the_session_and_deadlines() -> None:
    assert lines(NOW, session_started=datetime(2026, 11, 15, 6, 7, tzinfo=UTC)) == [
        "Time: 2026-11-15T09:12+01:00",
        "Session: 2 h 5 min",
        "Deadline in 35 min: Send the invoice (2026-11-15T09:47; id a1)",
        "Overdue by 9 h 13 min: Call Ana (2026-11-14; id b2)",
        "More overdue: 3",
    ]


def test_the_natural_format_reads_like_a_sentence() -> None:
    assert lines(NOW, session_started=NOW, format=TimeFormat.NATURAL) == [
        "Time: Sunday, 15 November 2026, 09:12 (CET)",
        "Session: 0 min",
        "Deadline in 35 minutes: Send the invoice (Sunday, 15 November 2026, 09:47; id a1)",
        "Overdue by 9 hours 13 minutes: Call Ana (Saturday, 14 November 2026; id b2)",
        "More overdue: 3",
    ]


def test_the_section_is_stable_for_a_turn_and_drops_the_time_last() -> None:
    section = render_time(NOW, DUE)

    assert (section.name, section.stability, section.priority) == ("time", Stability.TURN, Priority.HIGH)
    assert section.keep is Keep.HEAD
    assert section.items is not None
    assert section.items[0].text.startswith("Time: ")


@pytest.mark.parametrize(
    ("minutes", "iso", "natural"),
    [
        (1, "1 min", "1 minute"),
        (60, "1 h", "1 hour"),
        (61, "1 h 1 min", "1 hour 1 minute"),
        (1440, "1 d", "1 day"),
        (1441, "1 d", "1 day"),
        (3000, "2 d 2 h", "2 days 2 hours"),
    ],
)
def test_a_duration_is_written_in_its_two_largest_units(minutes: int, iso: str, natural: str) -> None:
    due = DueDeadlines(near=(replace(INVOICE, minutes=minutes),))

    assert f"Deadline in {iso}: " in render_time(NOW, due).text
    assert f"Deadline in {natural}: " in render_time(NOW, due, format=TimeFormat.NATURAL).text


def test_a_deadline_of_this_minute_is_now_and_omitted_ones_are_counted() -> None:
    due = DueDeadlines(near=(replace(INVOICE, minutes=0),), more_near=2)

    assert lines(NOW, due)[1:] == [
        "Deadline now: Send the invoice (2026-11-15T09:47; id a1)",
        "More deadlines near: 2",
    ]


def test_a_title_is_limited_to_one_short_line() -> None:
    due = DueDeadlines(near=(replace(INVOICE, title="Two\nlines"), replace(INVOICE, title="x" * 5000)))

    assert lines(NOW, due)[1].startswith("Deadline in 35 min: Two lines (")
    assert len(lines(NOW, due)[2]) < 300


def test_the_time_is_in_the_zone_of_the_user() -> None:
    assert lines(NOW, zone=ZoneInfo("Asia/Kolkata"))[0] == "Time: 2026-11-15T13:42+05:30"
    assert lines(NOW, zone=timezone(timedelta(hours=-3)), format=TimeFormat.NATURAL)[0] == (
        "Time: Sunday, 15 November 2026, 05:12 (UTC-03:00)"
    )


class UnnamedZone(tzinfo):
    """An offset of an hour and a half, without a name."""

    def utcoffset(self, _moment: datetime | None) -> timedelta:
        return timedelta(hours=1, minutes=30)

    def dst(self, _moment: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _moment: datetime | None) -> str | None:
        return None


def test_a_zone_without_a_name_is_shown_as_its_utc_offset() -> None:
    now = datetime(2026, 11, 15, 9, 12, tzinfo=UnnamedZone())

    assert lines(now, format=TimeFormat.NATURAL)[0] == "Time: Sunday, 15 November 2026, 09:12 (+01:30)"


def test_the_duration_of_a_session_is_correct_across_clock_changes() -> None:
    started = datetime(2026, 10, 24, 23, 0, tzinfo=VIENNA)

    assert lines(datetime(2026, 10, 25, 9, 0, tzinfo=VIENNA), session_started=started)[1] == "Session: 11 h"


def test_a_session_that_starts_in_the_future_lasts_0_minutes() -> None:
    assert lines(NOW, session_started=NOW + timedelta(hours=1))[1] == "Session: 0 min"


@pytest.mark.parametrize(
    "arguments", [{"now": NOW.replace(tzinfo=None)}, {"now": NOW, "session_started": NOW.replace(tzinfo=None)}]
)
def test_a_time_without_a_zone_is_rejected(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="a time must have a time zone; 2026-11-15 09:12:34"):
        render_time(**arguments)


@pytest.mark.slow
@given(
    now=st.datetimes(timezones=st.timezones()),
    zone=st.none() | st.timezones(),
    started=st.none() | st.datetimes(timezones=st.timezones()),
    time_format=st.sampled_from(TimeFormat),
    second=st.integers(0, 59),
)
def test_any_time_can_be_rendered_with_the_same_bytes_within_a_minute(
    now: datetime, zone: tzinfo | None, started: datetime | None, time_format: TimeFormat, second: int
) -> None:
    first = render_time(now, session_started=started, format=time_format)
    in_zone = render_time(now, zone=zone, session_started=started, format=time_format)

    assert render_time(now.replace(second=second), session_started=started, format=time_format) == first
    assert [line.split(":")[0] for line in in_zone.text.split("\n")] == ["Time", "Session"][: 1 + bool(started)]


class CountingNodes:
    """Nodes that count how often they are iterated."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.count = 0

    def __iter__(self) -> Iterator[Node]:
        self.count += 1
        return iter(self.nodes)


def nodes_with_near_deadline() -> CountingNodes:
    return CountingNodes(
        build_test_nodes(
            NodeSpec(title="Soon", todo="TODO", planning_dates=(deadline_at(datetime(2026, 11, 15, 10, 12)),))
        )
    )


def test_the_memory_is_scanned_once_a_minute_and_after_a_change() -> None:
    nodes, awareness = nodes_with_near_deadline(), TimeAwareness()

    for now, version, rounds in (
        (NOW, 1, 1),
        (NOW + timedelta(seconds=25), 1, 1),
        (NOW.astimezone(UTC) - timedelta(seconds=34), 1, 1),
        (NOW + timedelta(seconds=26), 1, 2),
        (NOW + timedelta(seconds=26), 2, 3),
        (NOW, 2, 4),
    ):
        section = awareness.section(nodes, memory_version=version, now=now, zone=VIENNA)
        assert section is not None
        assert "Soon" in section.text
        assert nodes.count == rounds


def test_another_warning_is_another_scan() -> None:
    nodes, awareness = nodes_with_near_deadline(), TimeAwareness()

    late = awareness.section(nodes, memory_version=1, now=NOW, options=TimeOptions(warning_minutes=59))
    early = awareness.section(nodes, memory_version=1, now=NOW, options=TimeOptions(warning_minutes=60))

    assert late is not None
    assert early is not None
    assert "Soon" not in late.text
    assert "Soon" in early.text


def test_drop_caches_drops_the_deadlines() -> None:
    nodes, awareness = nodes_with_near_deadline(), TimeAwareness()

    awareness.section(nodes, memory_version=1, now=NOW)
    drop_caches()
    awareness.section(nodes, memory_version=1, now=NOW)

    assert nodes.count == 2


def test_disabled_awareness_makes_no_section_and_no_scan() -> None:
    nodes = nodes_with_near_deadline()

    assert TimeAwareness().section(nodes, now=NOW, options=TimeOptions(awareness=False)) is None
    assert nodes.count == 0


def test_the_defaults_are_on_iso_and_60_minutes() -> None:
    assert TimeOptions.from_environment({}) == TimeOptions()
    assert TimeOptions() == TimeOptions(awareness=True, format=TimeFormat.ISO, warning_minutes=60)
    assert TimeOptions.from_environment(
        {"TIME_AWARENESS": "Off", "TIME_FORMAT": "NATURAL", "DEADLINE_WARNING_MINUTES": '"90"', "OTHER": "x"}
    ) == TimeOptions(awareness=False, format=TimeFormat.NATURAL, warning_minutes=90)


def test_unset_variables_keep_the_configured_values() -> None:
    configured = TimeOptions(awareness=False, format=TimeFormat.NATURAL, warning_minutes=5)

    assert TimeOptions.from_environment({"TIME_FORMAT": " "}, configured) == configured
    assert TimeOptions.from_environment({"TIME_AWARENESS": "1"}, configured) == replace(
        configured, awareness=True
    )


def test_every_variable_and_format_is_documented(root: Path) -> None:
    page = (root / "docs" / "guides" / "injected-context.md").read_text(encoding="utf-8")

    for word in ("TIME_AWARENESS", "TIME_FORMAT", "DEADLINE_WARNING_MINUTES", *TimeFormat):
        assert f"`{word}`" in page


@pytest.mark.parametrize(
    ("variable", "setting", "expected"),
    [
        ("TIME_AWARENESS", "maybe", "TIME_AWARENESS must be true or false, not 'maybe'; or unset it"),
        ("TIME_FORMAT", "12h", "TIME_FORMAT must be one of iso, natural, not '12h'; or unset it"),
        (
            "DEADLINE_WARNING_MINUTES",
            "-1",
            "DEADLINE_WARNING_MINUTES must be a whole number of minutes, 0 or more",
        ),
        ("DEADLINE_WARNING_MINUTES", "1.5", "not '1.5'"),
        ("DEADLINE_WARNING_MINUTES", "1h", "not '1h'"),
        ("DEADLINE_WARNING_MINUTES", "9" * 5000, "DEADLINE_WARNING_MINUTES must be a whole number"),
    ],
)
def test_an_invalid_variable_is_an_error_with_its_name(variable: str, setting: str, expected: str) -> None:
    with pytest.raises(BadOption) as caught:
        TimeOptions.from_environment({variable: setting})

    assert expected in str(caught.value)
    assert caught.value.path == (variable,)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "options",
    [
        {"warning_minutes": -1},
        {"warning_minutes": 1.5},
        {"warning_minutes": True},
        {"format": "12h"},
        {"awareness": 1},
    ],
)
def test_an_invalid_option_is_rejected_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        TimeOptions(**options)
