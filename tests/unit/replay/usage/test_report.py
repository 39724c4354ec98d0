"""Sums by day, week, month, session and project in a time zone, and blocks of five hours."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.replay.usage.report import BLOCK_SECONDS, ReportKind, build_usage_report, find_blocks
from tests.support.scenarios.usage_logs import make_record

DOLLAR = 10**12


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("kind", "zone", "expected"),
    [
        (ReportKind.DAILY, "UTC", ["2026-10-31", "2026-11-01", "2026-11-02"]),
        (ReportKind.DAILY, "Asia/Kolkata", ["2026-11-01", "2026-11-02"]),
        (ReportKind.DAILY, "America/Los_Angeles", ["2026-10-31", "2026-11-01"]),
        (ReportKind.WEEKLY, "UTC", ["2026-10-26", "2026-11-02"]),
        (ReportKind.MONTHLY, "UTC", ["2026-10", "2026-11"]),
    ],
)
def test_days_are_those_of_the_time_zone(kind: ReportKind, zone: str, expected: list[str]) -> None:
    times = ["2026-10-31T19:00", "2026-11-01T06:59", "2026-11-02T01:00"]
    records = [make_record(str(number), at=at(time)) for number, time in enumerate(times)]
    report = build_usage_report(records, kind, zone=ZoneInfo(zone))
    assert [row.name for row in report.rows] == expected
    assert report.total.calls == sum(row.sum.calls for row in report.rows) == 3


def test_a_call_without_a_time_is_counted_apart() -> None:
    report = build_usage_report([make_record(at=0.0)], ReportKind.DAILY, zone=UTC)
    assert [row.name for row in report.rows] == [""]


def test_an_unknown_price_is_never_zero() -> None:
    known, unknown = make_record("a", picodollars=2 * DOLLAR), make_record("b", picodollars=None)
    assert build_usage_report([unknown], ReportKind.DAILY).total.dollars is None
    total = build_usage_report([known, unknown], ReportKind.DAILY).total
    assert (total.dollars, total.unknown_calls) == (Decimal(2), 1)


def test_sessions_are_ordered_by_their_last_call() -> None:
    records = [
        make_record("a", session="late", at=500.0),
        make_record("b", session="early", at=100.0),
        make_record("c", session="late", at=50.0),
    ]
    rows = build_usage_report(records, ReportKind.SESSIONS).rows
    assert [(row.name, row.sum.calls, row.project) for row in rows] == [("early", 1, "p"), ("late", 2, "p")]


def test_a_block_starts_with_the_hour_and_lasts_five_hours() -> None:
    records = [
        make_record("a", at=at("2026-11-01T09:40")),
        make_record("b", at=at("2026-11-01T13:59")),
        make_record("c", at=at("2026-11-01T14:00")),
        make_record("d", at=at("2026-11-02T01:30")),
    ]
    blocks = find_blocks(records)
    assert [(row.name, row.sum.calls) for row in blocks] == [
        ("2026-11-01T09:00Z", 2),
        ("2026-11-01T14:00Z", 1),
        ("2026-11-02T01:00Z", 1),
    ]
    assert blocks[-1].is_active(at("2026-11-02T05:59"))
    assert not blocks[-1].is_active(at("2026-11-02T06:00"))


def test_agents_have_blocks_of_their_own() -> None:
    records = [make_record("a", at=3_700.0), make_record("b", agent="codex", at=9_000.0)]
    assert [(list(row.sum.agents), row.start) for row in find_blocks(records)] == [
        (["claude-code"], 3_600.0),
        (["codex"], 7_200.0),
    ]


def test_the_pace_of_an_active_block_is_projected_to_its_end() -> None:
    start = at("2026-11-01T09:00")
    records = [
        make_record("a", at=start, picodollars=DOLLAR),
        make_record("b", at=start + 3_600, picodollars=DOLLAR),
    ]
    (block,) = find_blocks(records)
    assert block.dollars_per_hour() == 2
    assert block.tokens_per_minute() == 0.5
    assert block.projected_dollars(start + 3_600) == 2 + 2 * 4
    assert block.projected_dollars(block.end) is None


def test_a_block_with_an_unknown_price_has_no_pace() -> None:
    records = [make_record("a", at=0.5), make_record("b", at=3_600, picodollars=None)]
    (block,) = find_blocks(records)
    assert block.dollars_per_hour() is None


@given(st.lists(st.floats(1, 1e6), max_size=30))
def test_each_call_is_in_exactly_one_block_that_contains_its_time(times: list[float]) -> None:
    blocks = find_blocks(make_record(str(number), at=time) for number, time in enumerate(times))
    assert sum(block.sum.calls for block in blocks) == len(times)
    assert all(block.end <= following.start for block, following in pairwise(blocks))
    for block in blocks:
        assert block.start <= block.sum.first_at <= block.sum.last_at < block.end == block.start + BLOCK_SECONDS
