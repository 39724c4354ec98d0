"""Calls and sums as CSV: they can be read back unchanged, and contain no formulas."""

import csv
import io
import re
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from math import nextafter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.cli.cost.output import CALL_COLUMNS, SUM_COLUMNS, csv_line, report_csv, write_calls
from foveate.cost.caps import utc_day
from foveate.cost.ledger import Charge, GroupBy
from foveate.cost.savings import CostReport, CostReportRow
from foveate.model import Savings
from tests.support.stores.ledger_records import CALL, CHARGE, make_call, make_charge


async def export_csv(*charges: Charge) -> bytes:
    async def iterate() -> AsyncIterator[Charge]:
        for charge in charges:
            yield charge

    file = io.BytesIO()
    assert await write_calls(iterate(), file) == len(charges)
    return file.getvalue()


def parse_csv(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))


async def test_every_call_is_a_line_with_exact_dollars_and_a_utc_time() -> None:
    data = await export_csv(CHARGE, make_charge(make_call("call-2", at=1.5), None))

    heading, first, second = parse_csv(data)
    assert tuple(heading) == CALL_COLUMNS
    known = dict(zip(heading, first, strict=True))
    assert known["at"] == "2026-11-15T12:00:00.000000Z"
    assert (known["agent"], known["category"], known["tier"]) == ("ana", "main", "batch")
    assert (known["uncached"], known["read"], known["written_5m"], known["written_1h"]) == (
        "12",
        "34000",
        "560",
        "78",
    )
    assert (known["dollars"], known["said_dollars"]) == ("0.061234567891", "0.0612345678901234567890")
    assert (known["comparison"], known["saved_by_compaction"]) == ("simulated", "-0.000000000001")
    unknown = dict(zip(heading, second, strict=True))
    assert (known["is_partial"], unknown["is_possibly_charged"], unknown["charged_dollars"]) == (
        "true",
        "false",
        "",
    )
    assert (unknown["at"], unknown["dollars"]) == ("1970-01-01T00:00:01.500000Z", "")
    assert data.count(b"\r\n") == 3


async def test_a_time_out_of_range_is_written_in_seconds() -> None:
    _, row = parse_csv(await export_csv(replace(CHARGE, call=replace(CALL, at=1e18))))

    assert row[0] == "1000000000000000000"


async def test_a_call_just_before_midnight_is_exported_on_its_day() -> None:
    """Regression: it was rounded into the next day."""
    midnight = 1_793_577_600.0
    late = nextafter(midnight, 0)

    _, before, after = parse_csv(
        await export_csv(make_charge(make_call("a", at=late), 1), make_charge(make_call("b", at=midnight), 1))
    )

    assert (before[0], after[0]) == ("2026-11-01T23:59:59.999999Z", "2026-11-02T00:00:00.000000Z")
    assert utc_day(late) == "2026-11-01"


@pytest.mark.parametrize("first", "=+-@\t\r\n＝＋－＠")
@pytest.mark.parametrize("before", ["", "  "])
async def test_names_are_never_formulas(first: str, before: str) -> None:
    name = f'{before}{first}HYPERLINK("http://example.com","x")'

    _, row = parse_csv(await export_csv(replace(CHARGE, call=replace(CALL, agent=name))))

    assert row[2] == f"'{name}"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a;=1+1", "a;'=1+1"),
        ("a; @x;-2", "a;' @x;'-2"),
        ("a\n=1", "a\n'=1"),
        ("a\t＝1", "a\t'＝1"),
        ("a;'b", "a;''b"),
        ("a;b-c", "a;b-c"),
        ("a\r\nb", "a\r\nb"),
    ],
)
def test_names_are_never_formulas_after_other_cell_separators(name: str, written: str) -> None:
    """Regression: spreadsheets that split at `;` evaluated them."""
    ((_, cell),) = parse_csv(csv_line(["first", name]))

    assert cell == written


@pytest.mark.slow
@given(st.lists(st.text(max_size=12).filter(lambda text: text.isprintable() or text.isascii()), min_size=2))
@example(["\t=", "';'", ";; =", "\r\n'"])
@example(["'=1", '"', "a,b", "\r\n", " '", "-1"])
def test_removing_the_apostrophe_restores_the_text(texts: Sequence[str]) -> None:
    (cells,) = parse_csv(csv_line(texts))

    assert [re.sub(r"(?:^|(?<=[;\t\r\n]))'", "", cell) for cell in cells] == list(texts)
    parts = [part for cell in cells for part in re.split(r"[;\t\r\n]", cell)]
    assert not any(part.lstrip(" ").startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")) for part in parts)
    assert not any(cell.lstrip(" ").startswith(("\t", "\r", "\n")) for cell in cells)


def test_negative_numbers_stay_numbers() -> None:
    assert (
        csv_line([-1, Decimal("-0.000000000001"), Decimal("1E+3"), None, True])
        == b"-1,-0.000000000001,1000,,true\r\n"
    )


def test_a_csv_report_has_no_total() -> None:
    row = CostReportRow(group=("@ana",), calls=2, unknown_calls=2, saved=Savings(breakpoints=Decimal("-1.5")))
    report = CostReport(group_by=(GroupBy.AGENT,), rows=(row,), total=row)

    heading, row_values = parse_csv(report_csv(report))

    assert heading == ["agent", *SUM_COLUMNS]
    fields = dict(zip(heading, row_values, strict=True))
    assert (fields["agent"], fields["calls"], fields["dollars"]) == ("'@ana", "2", "")
    assert fields["saved_by_breakpoints"] == "-1.5"
