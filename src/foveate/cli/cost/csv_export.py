"""Calls and sums as CSV (RFC 4180): exact dollars, UTC times, and no formula injection.

A text that starts like a formula gets a leading apostrophe, as spreadsheets write it themselves. So does one
that starts with an apostrophe, so that removing one always restores the original. The same applies after a
semicolon, a tab and a line break, where some spreadsheets start another cell.
"""

import csv
import io
import re
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import BinaryIO

from foveate.cost.caps import utc_day
from foveate.cost.ledger import Charge
from foveate.cost.savings import CostReport, CostReportRow
from foveate.model import Savings

_SAVINGS_COLUMNS = (
    "without_dollars",
    "saved_by_compaction",
    "saved_by_context",
    "saved_by_breakpoints",
    "saved_by_keep_alive",
    "simulation_error",
)
CALL_COLUMNS = (
    "at",
    "call_id",
    "agent",
    "session_id",
    "provider",
    "model",
    "category",
    "uncached",
    "read",
    "written_5m",
    "written_1h",
    "output_tokens",
    "reasoning_tokens",
    "dollars",
    "said_dollars",
    "tier",
    "estimated_input_tokens",
    "estimated_dollars",
    "comparison",
    *_SAVINGS_COLUMNS,
    *("is_partial", "is_inherited", "is_subscription", "is_possibly_charged", "charged_dollars"),
)
SUM_COLUMNS = (
    "calls",
    "unknown_calls",
    "partial_calls",
    "uncached",
    "read",
    "written_5m",
    "written_1h",
    "output_tokens",
    "reasoning_tokens",
    "dollars",
    "estimated_dollars",
    "compared_calls",
    "compared_dollars",
    *_SAVINGS_COLUMNS,
    "would_not_fit_calls",
    "would_not_fit_dollars",
    "compaction_dollars",
    "unknown_compactions",
    *("inherited_calls", "inherited_dollars", "subscription_calls", "subscription_dollars"),
    *("possibly_charged_calls", "possibly_charged_dollars"),
)

# Start of a formula; some programs strip the blanks before it.
_FORMULA = r"[=+\-@＝＋－＠']"
_APOSTROPHE = "'"
_FORMULA_START = re.compile(rf"^(?= *(?:{_FORMULA}|[\t\r\n]))|(?<=[;\t\r\n])(?= *{_FORMULA})")

Cell = str | int | Decimal | bool | None


async def write_calls(entries: AsyncIterator[Charge], file: BinaryIO) -> int:
    """Write a header and the calls, one at a time, and return the number of calls."""
    file.write(csv_line(CALL_COLUMNS))
    count = 0
    async for entry in entries:
        file.write(csv_line(_call_cells(entry)))
        count += 1
    return count


def report_csv(report: CostReport) -> bytes:
    lines = [csv_line((*report.group_by, *SUM_COLUMNS)), *(csv_line(_sum_cells(row)) for row in report.rows)]
    return b"".join(lines)


def csv_line(cells: Iterable[Cell]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerow([_format_cell(cell) for cell in cells])
    return buffer.getvalue().encode("utf-8", "replace")


def _format_cell(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return "true" if cell else "false"
        case Decimal():
            return f"{cell:f}"
        case int():
            return str(cell)
    return _FORMULA_START.sub(_APOSTROPHE, cell)


def _call_cells(entry: Charge) -> tuple[Cell, ...]:
    call, usage = entry.call, entry.usage
    return (
        _format_time(call.at),
        call.id,
        call.agent,
        call.session_id,
        call.provider,
        call.model,
        call.category.value,
        usage.cache.uncached,
        usage.cache.read,
        usage.cache.written_5m,
        usage.cache.written_1h,
        usage.output_tokens,
        usage.reasoning_tokens,
        entry.dollars,
        usage.reported_dollars,
        usage.tier,
        entry.estimated_input_tokens,
        entry.estimated_dollars,
        entry.savings.comparison.value,
        *_savings_cells(entry.savings),
        *(entry.is_partial, entry.is_inherited, call.is_subscription, entry.is_possibly_charged),
        entry.charge if entry.dollars is None else entry.dollars,
    )


def _sum_cells(row: CostReportRow) -> tuple[Cell, ...]:
    return (
        *row.group,
        row.calls,
        row.unknown_calls,
        row.partial_calls,
        row.uncached,
        row.read,
        row.written_5m,
        row.written_1h,
        row.output_tokens,
        row.reasoning_tokens,
        row.dollars,
        row.estimated_dollars,
        row.compared_calls,
        row.compared_dollars,
        *_savings_cells(row.saved),
        row.would_not_fit_calls,
        row.would_not_fit_dollars,
        row.compaction_dollars,
        row.unknown_compactions,
        *(row.inherited_calls, row.inherited_dollars, row.subscription_calls, row.subscription_dollars),
        *(row.possibly_charged_calls, row.possibly_charged_dollars),
    )


def _savings_cells(savings: Savings) -> tuple[Cell, ...]:
    edits = savings.without, savings.compaction, savings.context
    return *edits, savings.breakpoints, savings.keep_alive, savings.simulation_error


def _format_time(seconds: float) -> str:
    """Format a time as 2026-11-15T12:00:00.000000Z, or in seconds if it is out of range."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
        if moment.date().isoformat() != utc_day(seconds):  # rounded up to the next day, but charged on this
            moment -= timedelta(microseconds=1)
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{Decimal(seconds):f}"
