"""Cost reports and caps as text and as JSON objects."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from foveate.cli.cost.output import (
    SessionFamily,
    cap_lines,
    cap_object,
    report_lines,
    report_notes,
    report_object,
)
from foveate.cli.shared.console import Display
from foveate.cost.caps import CallerSummary, Cap, CapLevel, CapScope, CapStatus, CapUse, compute_cap_status
from foveate.cost.ledger import GroupBy
from foveate.cost.savings import CostReport, CostReportRow
from foveate.model import ComparisonOutcome, Savings
from foveate.store.repositories.sessions import DescendantTotals
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


def table_lines(report: CostReport, display: Display = WIDE, *, worst_case: bool = False) -> list[str]:
    return report_lines(report, display, worst_case=worst_case)


def split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_a_table_has_a_row_for_each_group_and_a_total() -> None:
    heading, main, local, total = table_lines(REPORT)

    assert split_cells(heading) == [
        "model", "category", "calls", "input", "cached", "written", "output", "cost", "unpriced",
        "without Foveate", "saved",
    ]  # fmt: skip
    assert split_cells(main) == [
        "claude-opus-5-5", "main", "41", "1,304,443", "92%", "88,112", "31,002", "$1.24", "0", "$4.61", "$3.38",
    ]  # fmt: skip
    assert split_cells(local) == ["local", "main", "3", "0", "0%", "0", "7", "unknown", "3", "-", "-"]
    assert split_cells(total) == [
        "total", "44", "1,304,443", "92%", "88,112", "31,002", "$1.24", "3", "$4.61", "$3.38",
    ]  # fmt: skip


def test_the_worst_case_cost_has_a_column_on_request() -> None:
    heading, main, local, total = table_lines(REPORT, worst_case=True)

    assert "  worst case  " in heading
    assert "  $1.90  " in main
    assert split_cells(local)[-3:] == ["-", "-", "-"]
    assert "  $1.90  " in total


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (100, "model category calls input cached output cost unpriced saved"),
        (80, "model category calls input cached cost unpriced saved"),
        (60, "model category calls cost unpriced saved"),
    ],
)
def test_narrow_terminals_show_fewer_columns_and_the_same_rows(columns: int, headings: str) -> None:
    heading, *rows = table_lines(REPORT, Display(columns=columns))

    assert heading.split() == headings.split()
    assert [row.split()[0][-5:] for row in rows] == ["s-5-5", "local", "total"]
    assert all(len(line) <= columns for line in (heading, *rows))


def test_pipes_get_all_columns_and_whole_names() -> None:
    name = "claude-opus-5-5-with-a-name-that-is-longer-than-any-other"
    report = replace(REPORT, rows=(replace(MAIN, group=(name, "main")),))

    assert table_lines(report, Display(columns=60, is_terminal=False)) == table_lines(report)
    assert table_lines(report, Display(columns=60))[1].startswith("claude-op…ny-other  main")


def test_a_negative_saving_is_a_negative_amount() -> None:
    with_loss = replace(MAIN, saved=Savings(without=Decimal(0), keep_alive=Decimal("-0.2")))
    report = replace(REPORT, rows=(with_loss,), total=with_loss)

    assert table_lines(report)[1].endswith(" -$0.20")
    assert next(report_notes(report, {})) == "savings: keep-alive -$0.20"


def test_one_row_has_no_total_and_no_rows_have_no_heading() -> None:
    assert len(table_lines(replace(REPORT, rows=(MAIN,)))) == 2
    assert table_lines(replace(REPORT, rows=())) == []


def test_columns_without_any_amount_are_left_out() -> None:
    unknown = replace(LOCAL, group=("unknown", "main"))

    heading, row = table_lines(replace(REPORT, rows=(unknown,), total=unknown))

    assert split_cells(heading) == ["model", "category", "calls", "output", "cost", "unpriced"]
    assert split_cells(row) == ["unknown", "main", "3", "7", "unknown", "3"]


def test_amounts_of_a_column_have_one_precision() -> None:
    small = replace(MAIN, group=("small", "main"), dollars=Decimal("0.0031"))

    _, *rows = table_lines(replace(REPORT, rows=(MAIN, small)))

    assert [split_cells(row)[-4] for row in rows] == ["$1.2400", "$0.0031", "$1.2400"]


def test_notes_name_what_the_cost_and_the_savings_do_not_include() -> None:
    total = replace(
        TOTAL,
        partial_calls=3,
        possibly_charged_calls=1,
        possibly_charged_dollars=Decimal("0.8"),
        unknown_compactions=2,
        would_not_fit_calls=2,
        would_not_fit_dollars=Decimal("0.5"),
        inherited_calls=1,
        inherited_dollars=Decimal("0.25"),
        subscription_calls=4,
        subscription_dollars=Decimal("0.5"),
    )
    family = SessionFamily("title", DescendantTotals(sessions=2, dollars=Decimal("0.3"), unpriced=1))

    assert list(report_notes(replace(REPORT, total=total), {"0123456789": family})) == [
        "savings: cache breakpoints $3.10, compaction $0.40, injected context -$0.12 (simulated; $0.01 off the"
        " actual charges)",
        "savings cover 40 of 44 calls",
        "2 summaries without a known price: compaction saved less than shown",
        "2 calls ($0.50) would not have fit the context window without Foveate: not in the savings",
        "2 calls without a known price: not included in the cost",
        "$0.25 of the cost is an upper bound: 1 call to unlisted models, at the highest price of the model"
        " family",
        "$0.50 of the cost is the list price of 4 calls covered by a subscription",
        "1 call possibly charged, up to $0.80: in flight when the gateway process ended, not included in the"
        " cost",
        "2 calls ended before the provider reported the complete usage",
        "session 01234567 started 2 sessions, not included in its row: $0.30 and 1 call without a known price",
    ]
    assert list(report_notes(replace(REPORT, total=replace(MAIN, saved=Savings())), {})) == []


def test_control_characters_in_names_are_escaped() -> None:
    row = replace(MAIN, group=("a\x1b[31m\nb[red]" + "x" * 100, ""))

    result = "\n".join(table_lines(replace(REPORT, rows=(row,)), replace(WIDE, encoding="ascii")))

    assert result.isascii()
    assert "\x1b" not in result
    assert result.count("\n") == 1
    assert r"a\x1b[31m\nb[red]" in result
    assert '  ""  ' in result


def test_session_ids_are_shortened_on_terminals_only() -> None:
    rows = tuple(replace(MAIN, group=(id_,)) for id_ in ("0123456789abc", "0123456789abd", "f" * 32))

    report = CostReport(group_by=(GroupBy.SESSION,), rows=rows, total=TOTAL)

    _, *shortened, _ = table_lines(report)
    _, *whole, _ = table_lines(report, replace(WIDE, is_terminal=False))

    assert [split_cells(line)[0] for line in shortened] == ["0123456789abc", "0123456789abd", "f" * 13]
    assert split_cells(whole[-1])[0] == "f" * 32


def test_titles_of_sessions_have_a_column() -> None:
    report = CostReport(group_by=(GroupBy.SESSION,), rows=(replace(MAIN, group=("s1",)),), total=TOTAL)

    heading, row = report_lines(report, WIDE, {"s1": SessionFamily("Fix the [bold] tests", DescendantTotals())})

    assert split_cells(heading)[:2] == ["session", "title"]
    assert split_cells(row)[:2] == ["s1", "Fix the [bold] tests"]


def test_reports_use_colours_only_if_the_display_has_them() -> None:
    heading, *_, total = table_lines(REPORT, replace(WIDE, colours=True))

    assert heading.startswith("\x1b[2m")
    assert total.startswith("\x1b[1m")
    assert not any("\x1b" in line for line in table_lines(REPORT))


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
    heading, *result = cap_lines(cap_statuses(), WIDE)

    assert split_cells(heading) == ["cap", "limit", "spent", "reserved", "left", "used", "status"]
    assert [split_cells(line) for line in result] == [
        ["each call", "$0.50"],
        ["session ssssssss of ana", "$5.00", "$4.00", "$0.50", "$0.50", "90%", "near cap"],
        ["session tttttttt of bob", "$5.00", "$1.00", "$0.00", "$4.00", "20%"],
        ["session tttttttt of bob", "$4.00", "$1.00", "$0.00", "$3.00", "25%"],
        ["agent bob", "$10.00", "$11.50", "$0.00", "$0.00", "115%", "over by $1.50"],
        ["agent ana", "$10.00", "$10.00", "$0.00", "$0.00", "100%", "cap reached"],
        ["agent zoe", "$20.00", "$0.00", "$0.00", "$20.00", "0%"],
        ["day 2026-11-15", "$30.00", "$3.00", "$0.00", "$27.00", "10%"],
        ["day 2026-11-15 of ana", "$40.00", "$31.00", "$1.00", "$8.00", "80%", "near cap"],
        ["all", "$50.00", "$21.50", "$0.00", "$28.50", "43%"],
    ]


def test_the_names_of_caps_are_shortened_on_a_narrow_terminal_only() -> None:
    narrow = cap_lines(cap_statuses(), NARROW)
    piped = cap_lines(cap_statuses(), replace(NARROW, is_terminal=False))

    assert "…" in narrow[2]
    assert piped[2].startswith(f"session {'s' * 32} of ana   $5.00")


def test_caps_are_listed_when_no_calls_exist() -> None:
    result = [split_cells(line) for line in cap_lines(compute_cap_status(CAPS, now=NOON), WIDE)]

    assert ["each session", "$5.00", "no recent calls"] in result
    assert ["each session of bob", "$4.00", "no recent calls"] in result
    assert ["each agent", "$10.00", "no recent calls"] in result
    assert ["all", "$50.00", "$0.00", "$50.00", "0%"] in result


def test_only_the_sessions_nearest_to_their_cap_are_listed() -> None:
    callers = CallerSummary(sessions=[("ana", f"s{number:02}") for number in range(25)])
    balances = {f"session s{number:02}": make_standing(number) for number in range(25)}

    _, *result, last = cap_lines(
        compute_cap_status([make_cap(CapScope.SESSION, 30)], now=NOON, callers=callers, balances=balances), WIDE
    )

    assert [split_cells(line)[0] for line in result] == [
        f"session s{24 - number:02} of ana" for number in range(20)
    ]
    assert last == "5 more sessions (--json lists all)"


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
    assert cap_lines([CapStatus(cap=use.cap, uses=(use,))], WIDE)[1].endswith("  cap reached")


def test_calls_without_a_known_price_are_counted_next_to_the_spent_amount() -> None:
    use = CapUse(cap=make_cap(CapScope.TOTAL, 10), balance=make_standing("1.24"), unknown_calls=3)

    heading, line = cap_lines([CapStatus(cap=use.cap, uses=(use,))], WIDE)

    assert split_cells(heading)[-1] == "unpriced"
    assert split_cells(line) == ["all", "$10.00", "$1.24", "$8.76", "12%", "3"]


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

    assert split_cells(table_lines(report)[1])[0] == "(no session)"
