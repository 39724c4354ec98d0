"""Reports: summaries count against compaction, and unknown prices are never zero."""

from dataclasses import fields, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.cost.ledger import Category, ChargeTotal, GroupBy
from foveate.cost.savings import CostReportRow, build_report, required_groups
from foveate.model import ComparisonOutcome, Savings


def make_total(
    *group: str, calls: int = 1, unknown: int = 0, dollars: str = "1", saved: str | None = None
) -> ChargeTotal:
    return ChargeTotal(
        group=group,
        calls=calls,
        unknown_calls=unknown,
        uncached=10,
        read=0,
        written_5m=0,
        written_1h=0,
        output_tokens=1,
        reasoning_tokens=0,
        dollars=Decimal(dollars),
        estimated_dollars=Decimal(0),
        savings=Savings(compaction=None if saved is None else Decimal(saved)),
    )


def test_the_cost_of_summaries_is_subtracted_from_what_compaction_saved() -> None:
    totals = [
        make_total("ana", "main", dollars="9", saved="0.50"),
        make_total("ana", "compaction", dollars="0.62", saved="-0.62"),
    ]

    (row,) = build_report(totals, [GroupBy.AGENT]).rows

    assert (row.calls, row.dollars) == (2, Decimal("9.62"))
    assert (row.saved.compaction, row.compaction_dollars) == (Decimal("-0.12"), Decimal("0.62"))


def test_compared_calls_were_charged_the_simulated_cost_and_its_error() -> None:
    savings = Savings(
        comparison=ComparisonOutcome.SIMULATED,
        without=Decimal(10),
        compaction=Decimal(3),
        context=Decimal(-1),
        breakpoints=Decimal(2),
        keep_alive=Decimal(0),
        simulation_error=Decimal("0.5"),
    )
    compared = replace(make_total("main", dollars="7"), savings=savings, compared_calls=1)
    uncompared = replace(
        make_total("main", dollars="4"), would_not_fit_calls=1, would_not_fit_dollars=Decimal(4)
    )

    total = build_report([compared, uncompared], [GroupBy.CATEGORY]).total

    assert (total.dollars, total.compared_dollars, total.compared_calls) == (Decimal(11), Decimal("6.5"), 1)
    assert (total.saved.without, total.saved.total) == (Decimal(10), Decimal(4))
    assert (total.would_not_fit_calls, total.would_not_fit_dollars) == (1, Decimal(4))


def test_an_unknown_price_is_never_zero() -> None:
    totals = [
        make_total("a", "main", calls=3, unknown=3, dollars="0"),
        make_total("b", "main", calls=5, unknown=2),
    ]

    report = build_report(totals, [GroupBy.MODEL])

    assert [(row.group, row.dollars, row.unknown_calls) for row in report.rows] == [
        (("b",), Decimal(1), 2),
        (("a",), None, 3),
    ]
    assert (report.total.dollars, report.total.unknown_calls) == (Decimal(1), 5)


def test_a_summary_of_unknown_price_is_counted_and_reduces_no_savings() -> None:
    totals = [make_total("main", saved="1"), make_total("compaction", calls=2, unknown=2, dollars="0")]

    total = build_report(totals, [GroupBy.CATEGORY]).total

    assert (total.saved.compaction, total.unknown_compactions) == (Decimal(1), 2)


def test_groups_are_sorted_by_cost_and_days_by_date() -> None:
    days = [make_total("2026-11-02", "main", dollars="1"), make_total("2026-11-01", "main", dollars="9")]
    assert [row.group for row in build_report(days, [GroupBy.DAY]).rows] == [("2026-11-01",), ("2026-11-02",)]

    agents = [make_total("a", "main", dollars="1"), make_total("b", "main", dollars="9")]
    assert [row.group for row in build_report(agents, [GroupBy.AGENT]).rows] == [("b",), ("a",)]


@pytest.mark.parametrize("group_by", [[], [GroupBy.AGENT]])
def test_a_report_without_calls_has_no_rows(group_by: list[GroupBy]) -> None:
    empty = replace(make_total("main"), calls=0) if not group_by else replace(make_total("", "main"), calls=0)

    report = build_report([empty], group_by)

    assert (report.rows, report.total) == ((), CostReportRow())


MONEY = st.decimals(0, 4_000_000, places=12, allow_nan=False, allow_infinity=False)
SIGNED = st.none() | st.decimals(-1_000_000, 1_000_000, places=12, allow_nan=False, allow_infinity=False)
COUNTS = st.integers(1, 10**15)


@st.composite
def any_totals(draw: st.DrawFn) -> ChargeTotal:
    calls = draw(st.integers(1, 50))
    unknown = draw(st.integers(0, calls))
    tokens: Any = {name: draw(COUNTS) for name in TOKENS}
    return ChargeTotal(
        group=(draw(st.sampled_from("ab")), draw(st.sampled_from("xy")), draw(st.sampled_from(Category))),
        calls=calls,
        unknown_calls=unknown,
        dollars=draw(MONEY) if unknown < calls else Decimal(0),
        estimated_dollars=draw(MONEY),
        savings=Savings(breakpoints=draw(SIGNED), compaction=draw(SIGNED), context=draw(SIGNED)),
        **tokens,
    )


TOKENS = [field.name for field in fields(ChargeTotal) if field.type is int and "calls" not in field.name]


@pytest.mark.slow
@given(st.lists(any_totals(), max_size=6))
def test_rows_always_add_up_to_the_total(charge_totals: list[ChargeTotal]) -> None:
    group_by = (GroupBy.AGENT, GroupBy.MODEL)
    assert required_groups(group_by) == (*group_by, GroupBy.CATEGORY)

    report = build_report(charge_totals, group_by)

    for name in ("calls", "unknown_calls", *TOKENS):
        assert sum(getattr(row, name) for row in report.rows) == sum(
            getattr(charge_total, name) for charge_total in charge_totals
        )
        assert getattr(report.total, name) == sum(getattr(charge_total, name) for charge_total in charge_totals)
    assert (report.total.dollars or 0) == sum(charge_total.dollars for charge_total in charge_totals)
    assert sum(row.dollars or 0 for row in report.rows) == sum(
        charge_total.dollars for charge_total in charge_totals
    )
    for name in ("compaction", "context", "breakpoints"):
        reported = getattr(report.total.saved, name) or 0
        assert reported == sum(getattr(charge_total.savings, name) or 0 for charge_total in charge_totals)
