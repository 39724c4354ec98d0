"""Cost reports and caps as text and as JSON objects."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from foveate.cli.console import Display
from foveate.cli.cost.output import CapFormatter, ReportFormatter, cap_object, report_object
from foveate.cost.cap_status import CallerSummary, CapLevel, CapStatus, CapUse, compute_cap_status
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import GroupBy
from foveate.cost.report import CostReport, CostReportRow
from foveate.model import ComparisonOutcome, Savings
from tests.support.stores.ledger_records import NOON, make_cap, make_standing

WIDE, NARROW = Display(columns=260), Display(columns=60)


MAIN = CostReportRow(
    group=("claude-opus-5-5", "main"),
    calls=41,
    uncached=12_000,
    read=1_204_331,
    written_5m=88_000,
    written_1h=112,
    output_tokens=31_002,
    dollars=Decimal("1.24"),
    estimated_dollars=Decimal("1.9"),
    compared_calls=40,
    compared_dollars=Decimal("1.24"),
    saved=Savings(
        comparison=ComparisonOutcome.SIMULATED,
        without=Decimal("4.61"),
        breakpoints=Decimal("3.1"),
        compaction=Decimal("0.4"),
        context=Decimal("-0.12"),
        simulation_error=Decimal("0.01"),
    ),
)


LOCAL = CostReportRow(group=("local", "main"), calls=3, unknown_calls=3, output_tokens=7)


TOTAL = replace(MAIN, group=(), calls=44, unknown_calls=3)


REPORT = CostReport(group_by=(GroupBy.MODEL, GroupBy.CATEGORY), rows=(MAIN, LOCAL), total=TOTAL)


def report_lines(report: CostReport, display: Display = WIDE) -> list[str]:
    return list(ReportFormatter(display).lines(report))


def split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_a_table_has_a_row_for_each_group_and_a_total() -> None:
    heading, main, local, total = report_lines(REPORT)

    assert split_cells(heading) == [
        "model", "category", "calls", "uncached", "read", "written", "output", "cost", "at most",
        "without Foveate", "saved", "by breakpoints", "by compaction", "by injected context",
        "simulation error",
    ]  # fmt: skip
    assert split_cells(main) == [
        "claude-opus-5-5", "main", "41", "12,000", "1,204,331", "88,112", "31,002", "$1.24", "$1.90",
        "$4.61 for 40 calls", "$3.38", "$3.10", "$0.40", "cost $0.12 more", "$0.01",
    ]  # fmt: skip
    assert split_cells(local)[-3:] == ["3 calls of unknown price", "unknown", "unknown"]
    assert "$1.24 + 3 calls of unknown price" in split_cells(total)
    assert total.startswith("total ")


def test_a_row_takes_several_lines_on_a_narrow_display() -> None:
    assert report_lines(REPORT, NARROW) == [
        "claude-opus-5-5  main  41 calls",
        "  in 12,000 uncached, 1,204,331 read, 88,112 written; out 31,002",
        "  $1.24 (at most $1.90)",
        "  without Foveate $4.61 for 40 calls; saved $3.38",
        "  by breakpoints $3.10; by compaction $0.40; by injected context cost $0.12 more",
        "  simulation error $0.01",
        "local  main  3 calls",
        "  in 0 uncached, 0 read, 0 written; out 7",
        "  3 calls of unknown price",
        "total  44 calls",
        "  in 12,000 uncached, 1,204,331 read, 88,112 written; out 31,002",
        "  $1.24 + 3 calls of unknown price (at most $1.90)",
        "  without Foveate $4.61 for 40 calls; saved $3.38",
        "  by breakpoints $3.10; by compaction $0.40; by injected context cost $0.12 more",
        "  simulation error $0.01",
    ]


def test_a_negative_saving_is_described_as_a_cost() -> None:
    with_loss = replace(MAIN, saved=Savings(without=Decimal(0), keep_alive=Decimal("-0.2")))

    result = report_lines(replace(REPORT, rows=(with_loss,)), NARROW)

    assert result[-2:] == [
        "  without Foveate $0.00 for 40 calls; cost $0.20 more",
        "  by keep-alive cost $0.20 more",
    ]


def test_one_row_has_no_total_and_no_rows_have_no_heading() -> None:
    assert len(report_lines(replace(REPORT, rows=(MAIN,)))) == 2
    assert report_lines(replace(REPORT, rows=())) == []


def test_unknown_number_columns_are_left_out() -> None:
    unknown = replace(LOCAL, group=("unknown", "main"))

    heading, row = report_lines(replace(REPORT, rows=(unknown,)))

    assert split_cells(heading) == [
        "model",
        "category",
        "calls",
        "uncached",
        "read",
        "written",
        "output",
        "cost",
    ]
    assert split_cells(row)[0] == "unknown"


def test_a_summary_of_unknown_price_is_shown_with_the_compaction_saving() -> None:
    row = replace(MAIN, unknown_compactions=2)

    _, line = report_lines(replace(REPORT, rows=(row,)))
    nothing_else = replace(row, saved=Savings())
    not_fitting = replace(row, would_not_fit_calls=2, would_not_fit_dollars=Decimal("0.5"))

    assert "$0.40 less 2 calls of unknown price" in line
    assert report_lines(replace(REPORT, rows=(nothing_else,)))[1].endswith("  2 calls of unknown price")
    assert report_lines(replace(REPORT, rows=(not_fitting,)), Display(columns=300))[1].endswith(
        "  2 calls, $0.50"
    )


def test_control_characters_in_names_are_escaped() -> None:
    row = replace(MAIN, group=("a\x1b[31m\nb" + "x" * 100, ""))

    result = "\n".join(report_lines(replace(REPORT, rows=(row,)), replace(WIDE, encoding="ascii")))

    assert result.isascii()
    assert "\x1b" not in result
    assert result.count("\n") == 1
    assert '  ""  ' in result


def test_session_ids_are_shortened() -> None:
    rows = tuple(replace(MAIN, group=(id_,)) for id_ in ("0123456789abc", "0123456789abd", "f" * 32))

    _, *result, _ = report_lines(CostReport(group_by=(GroupBy.SESSION,), rows=rows, total=TOTAL))

    assert [split_cells(line)[0] for line in result] == ["0123456789abc", "0123456789abd", "f" * 13]


def test_reports_use_colours_only_if_the_display_has_them() -> None:
    heading, *_, total = report_lines(REPORT, replace(WIDE, colours=True))

    assert heading.startswith("\x1b[2m")
    assert total.startswith("\x1b[1m")
    assert not any("\x1b" in line for line in report_lines(REPORT))


def test_a_report_object_has_every_number_and_money_as_strings() -> None:
    result = json.loads(json.dumps(report_object(REPORT)))

    first, second = result["rows"]
    assert (first["model"], first["category"], first["dollars"]) == ("claude-opus-5-5", "main", "1.24")
    assert first["saved"] == {
        "total": "3.38",
        "breakpoints": "3.1",
        "compaction": "0.4",
        "context": "-0.12",
        "keep_alive": None,
    }
    assert (second["dollars"], second["unknown_calls"]) == (None, 3)
    assert (result["by"], result["total"]["calls"]) == (["model", "category"], 44)
    assert set(first) - {"model", "category"} == set(result["total"])


CAPS = [
    Cap(scope=CapScope.CALL, dollars=Decimal("0.5")),
    make_cap(CapScope.SESSION, 5),
    make_cap(CapScope.SESSION, 4, "bob"),
    make_cap(CapScope.AGENT, 10),
    make_cap(CapScope.AGENT, 20, "zoe"),
    make_cap(CapScope.DAY, 30),
    make_cap(CapScope.DAY, 40, "ana"),
    make_cap(CapScope.TOTAL, 50),
]


CALLERS = CallerSummary(agents=("ana", "bob"), sessions=(("ana", "s" * 32), ("bob", "t" * 32)))


BALANCES = {
    f"session {'s' * 32}": make_standing(4, "0.5"),
    f"session {'t' * 32}": make_standing(1),
    "agent ana": make_standing(10),
    "agent bob": make_standing("11.5"),
    "day 2026-11-15": make_standing(3),
    "day 2026-11-15 of ana": make_standing(31, 1),
    "total": make_standing("21.5"),
}


def cap_statuses() -> list[CapStatus]:
    return compute_cap_status(CAPS, now=NOON, callers=CALLERS, balances=BALANCES)


def test_every_cap_is_listed_with_its_uses() -> None:
    heading, *result = CapFormatter(WIDE).lines(cap_statuses())

    assert split_cells(heading) == ["cap", "limit", "spent", "reserved", "left"]
    assert [split_cells(line) for line in result] == [
        ["each call", "$0.50"],
        ["session ssssssss of ana", "$5.00", "$4.00", "$0.50", "$0.50", "90% used, warns from 80% on"],
        ["session tttttttt of bob", "$5.00", "$1.00", "$0.00", "$4.00", "20% used"],
        ["session tttttttt of bob", "$4.00", "$1.00", "$0.00", "$3.00", "25% used"],
        ["agent bob", "$10.00", "$11.50", "$0.00", "$0.00", "over by $1.50"],
        ["agent ana", "$10.00", "$10.00", "$0.00", "$0.00", "nothing left"],
        ["agent zoe", "$20.00", "$0.00", "$0.00", "$20.00", "0% used"],
        ["day 2026-11-15", "$30.00", "$3.00", "$0.00", "$27.00", "10% used"],
        ["day 2026-11-15 of ana", "$40.00", "$31.00", "$1.00", "$8.00", "80% used, warns from 80% on"],
        ["all", "$50.00", "$21.50", "$0.00", "$28.50", "43% used"],
    ]


def test_caps_take_two_lines_on_a_narrow_display() -> None:
    result = list(CapFormatter(NARROW).lines(cap_statuses()))

    assert result[:3] == [
        "each call  $0.50",
        "session ssssssss of ana  $5.00  90% used, warns from 80% on",
        "  $4.00 spent, $0.50 reserved, $0.50 left",
    ]


def test_caps_are_listed_when_no_calls_exist() -> None:
    result = [split_cells(line) for line in CapFormatter(WIDE).lines(compute_cap_status(CAPS, now=NOON))]

    assert ["each session", "$5.00", "nobody has called of late"] in result
    assert ["each session of bob", "$4.00", "nobody has called of late"] in result
    assert ["each agent", "$10.00", "nobody has called of late"] in result
    assert ["all", "$50.00", "$0.00", "$0.00", "$50.00", "0% used"] in result


def test_only_the_sessions_nearest_to_their_cap_are_listed() -> None:
    callers = CallerSummary(sessions=[("ana", f"s{number:02}") for number in range(25)])
    balances = {f"session s{number:02}": make_standing(number) for number in range(25)}

    _, *result, last = CapFormatter(WIDE).lines(
        compute_cap_status([make_cap(CapScope.SESSION, 30)], now=NOON, callers=callers, balances=balances)
    )

    assert [split_cells(line)[0] for line in result] == [
        f"session s{24 - number:02} of ana" for number in range(20)
    ]
    assert split_cells(last) == ["…", "5 more sessions, farther from it; --json has them all"]


@pytest.mark.parametrize(
    ("spent", "reserved", "level"),
    [
        ("7.99", "0", CapLevel.FINE),
        ("7.99", "0.01", CapLevel.NEAR),
        ("9", "1", CapLevel.FULL),
        ("11", "0", CapLevel.FULL),
    ],
)
def test_a_cap_is_fine_near_or_full(spent: str, reserved: str, level: CapLevel) -> None:
    assert CapUse(cap=make_cap(CapScope.TOTAL, 10), balance=make_standing(spent, reserved)).level is level


def test_a_cap_of_zero_dollars_is_full() -> None:
    use = CapUse(cap=make_cap(CapScope.TOTAL, 0))

    assert use.level is CapLevel.FULL
    assert list(CapFormatter(WIDE).lines([CapStatus(cap=use.cap, uses=(use,))]))[1].endswith("nothing left")


def test_calls_of_unknown_price_are_shown_with_the_spent_amount() -> None:
    use = CapUse(cap=make_cap(CapScope.TOTAL, 10), balance=make_standing("1.24"), unknown_calls=3)

    line = list(CapFormatter(WIDE).lines([CapStatus(cap=use.cap, uses=(use,))]))[1]

    assert "$1.24 with 3 calls of unknown price" in line


def test_a_cap_object_has_all_fields() -> None:
    result = json.loads(json.dumps([cap_object(status) for status in cap_statuses()]))

    assert result[0] == {
        "scope": "call", "dollars": "0.5", "agent": None, "warn_at": "0.8", "unknown": "refuse", "uses": [],
    }  # fmt: skip
    assert result[3]["uses"][0] == {
        "agent": "bob", "session_id": None, "day": None, "spent": "11.5", "reserved": "0", "left": "-1.5",
        "unknown_calls": 0, "level": "full",
    }  # fmt: skip


def test_calls_without_a_session_have_a_row_of_their_own() -> None:
    report = CostReport(group_by=(GroupBy.SESSION,), rows=(replace(LOCAL, group=("",)),), total=TOTAL)

    assert split_cells(report_lines(report)[1])[0] == "(no session)"
