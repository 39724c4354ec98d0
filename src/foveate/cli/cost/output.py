"""Cost reports, rate limits, caps, corrections and calls as text, as JSON objects and as CSV."""

import csv
import io
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import BinaryIO

from foveate.cli.shared.console import Display
from foveate.cli.shared.options import shorten_ids
from foveate.cli.shared.tables import (
    Cell,
    Column,
    Fit,
    Styled,
    format_amount,
    format_dollar_column,
    format_table,
)
from foveate.cost.caps import CapLevel, CapScope, CapStatus, CapUse, describe_cap, utc_day
from foveate.cost.ledger import Charge, Correction, GroupBy
from foveate.cost.money import format_dollars
from foveate.cost.savings import CostReport, CostReportRow
from foveate.model import Savings
from foveate.session.store import ObservedLimit
from foveate.store.repositories.sessions import DescendantTotals

# JSON has all uses of a cap; text lists this many.
_MAX_LISTED_USES = 20
_STYLES = {CapLevel.FINE: "", CapLevel.NEAR: "yellow", CapLevel.FULL: "red"}
_NO_AMOUNT = "-"
_CAP_COLUMNS = (
    Column(heading="cap", fit=Fit.SHORTEN),
    Column(heading="limit", align="right"),
    Column(heading="spent", align="right"),
    Column(heading="reserved", align="right", optional=True, drop_order=2),
    Column(heading="left", align="right"),
    Column(heading="used", align="right", drop_order=3),
    Column(heading="unpriced", align="right", optional=True, drop_order=1),
    Column(heading="status", optional=True),
)
_CORRECTION_COLUMNS = (
    Column(heading="time (UTC)"),
    Column(heading="corrected", fit=Fit.SHORTEN),
    Column(heading="before", align="right"),
    Column(heading="after", align="right"),
    Column(heading="reason", fit=Fit.WRAP),
)
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

CsvCell = str | int | Decimal | bool | None


@dataclass(frozen=True, slots=True)
class SessionFamily:
    title: str
    descendants: DescendantTotals


def report_object(report: CostReport, families: Mapping[str, SessionFamily] | None = None) -> dict[str, object]:
    """Return a report as JSON: money as strings, null if unknown."""
    rows = [
        dict(zip(report.group_by, row.group, strict=True)) | _row_object(row)  # the group, then its numbers
        for row in report.rows
    ]
    sessions = [
        {
            "session": id_,
            "title": family.title,
            "started_sessions": family.descendants.sessions,
            "started_dollars": _to_json(family.descendants.dollars),
        }
        for id_, family in (families or {}).items()
    ]
    return {"by": list(report.group_by), "rows": rows, "total": _row_object(report.total), "sessions": sessions}


def report_notes(report: CostReport, families: Mapping[str, SessionFamily]) -> Iterator[str]:
    """Yield the facts that the table does not show, such as unknown prices and estimates."""
    total = report.total
    yield from _savings_notes(total)
    if total.unknown_calls > total.possibly_charged_calls:
        number = total.unknown_calls - total.possibly_charged_calls
        yield f"{_count_calls(number)} without a known price: not included in the cost"
    yield from _estimate_notes(total)
    if partial_calls := total.partial_calls - total.possibly_charged_calls:
        yield f"{_count_calls(partial_calls)} ended before the provider reported the complete usage"
    yield from _family_notes(families)


def _savings_notes(total: CostReportRow) -> Iterator[str]:
    savings = total.saved
    if savings.total is not None:
        parts = {
            "cache breakpoints": savings.breakpoints,
            "compaction": savings.compaction,
            "injected context": savings.context,
            "keep-alive": savings.keep_alive,
        }
        shown = ", ".join(f"{name} {format_amount(dollars)}" for name, dollars in parts.items() if dollars)
        accuracy = ""
        if savings.simulation_error:
            accuracy = f" (simulated; {format_amount(abs(savings.simulation_error))} off the actual charges)"
        if shown:
            yield f"savings: {shown}{accuracy}"
        if total.compared_calls < total.calls:
            yield f"savings cover {total.compared_calls:,} of {_count_calls(total.calls)}"
    if total.unknown_compactions:
        yield (
            f"{_count(total.unknown_compactions, 'summary', 'summaries')} without a known price: compaction"
            " saved less than shown"
        )
    if total.would_not_fit_calls:
        calls, dollars = _count_calls(total.would_not_fit_calls), format_amount(total.would_not_fit_dollars)
        yield f"{calls} ({dollars}) would not have fit the context window without Foveate: not in the savings"


def _estimate_notes(total: CostReportRow) -> Iterator[str]:
    """Say which dollars are not exact charges: inherited prices, subscriptions, possibly charged calls."""
    if total.inherited_calls:
        calls, dollars = _count_calls(total.inherited_calls), format_amount(total.inherited_dollars)
        yield (
            f"{dollars} of the cost is an upper bound: {calls} to unlisted models, at the highest price of the"
            " model family"
        )
    if total.subscription_calls:
        calls, dollars = _count_calls(total.subscription_calls), format_amount(total.subscription_dollars)
        yield f"{dollars} of the cost is the list price of {calls} covered by a subscription"
    if total.possibly_charged_calls:
        calls, limit = _count_calls(total.possibly_charged_calls), format_amount(total.possibly_charged_dollars)
        yield (
            f"{calls} possibly charged, up to {limit}: in flight when the gateway process ended, not included"
            " in the cost"
        )


def _family_notes(families: Mapping[str, SessionFamily]) -> Iterator[str]:
    ids = shorten_ids(list(families))
    for id_, family in families.items():
        if (descendants := family.descendants).sessions:
            cost = format_amount(descendants.dollars)
            if descendants.unpriced:
                cost += f" and {_count_calls(descendants.unpriced)} without a known price"
            sessions = _count(descendants.sessions, "session")
            yield f"session {ids[id_]} started {sessions}, not included in its row: {cost}"


def rate_limit_object(observed: ObservedLimit, now: float) -> dict[str, object]:
    return {
        "agent": observed.agent,
        "provider": observed.provider,
        "limit": observed.limit.name,
        "used": observed.used_at(now),
        "resets_at": observed.limit.resets_at,
        "status": observed.limit.status,
        "at": observed.at,
    }


def rate_limit_notes(limits: Sequence[ObservedLimit], now: float) -> Iterator[str]:
    for observed in limits:
        used, resets_at = observed.used_at(now), observed.limit.resets_at
        share = "usage unknown" if used is None else f"{used:.0%} used"
        reset = ""
        if resets_at is not None and resets_at > now:
            reset = f", resets {datetime.fromtimestamp(resets_at, UTC):%Y-%m-%d %H:%M} UTC"
        limit = f"{observed.limit.name} subscription limit of {observed.agent} at {observed.provider}"
        yield f"{limit}: {share}{reset}"


def _row_object(row: CostReportRow) -> dict[str, object]:
    numbers = {name: _to_json(value) for name, value in asdict(row).items() if name not in ("group", "saved")}
    savings = row.saved
    saved = {
        "total": savings.total,
        "breakpoints": savings.breakpoints,
        "compaction": savings.compaction,
        "context": savings.context,
        "keep_alive": savings.keep_alive,
    }
    return numbers | {
        "without_dollars": _to_json(savings.without),
        "saved": {name: _to_json(value) for name, value in saved.items()},
        "simulation_error": _to_json(savings.simulation_error),
    }


def cap_object(status: CapStatus) -> dict[str, object]:
    fields = {name: _to_json(value) for name, value in asdict(status.cap).items()}
    return fields | {"uses": [_use_object(use) for use in status.uses]}


def _use_object(use: CapUse) -> dict[str, object]:
    return {
        "agent": use.agent,
        "session_id": use.session_id,
        "day": use.day,
        "spent": _to_json(use.balance.spent),
        "reserved": _to_json(use.balance.reserved),
        "left": _to_json(use.remaining),
        "unknown_calls": use.unknown_calls,
        "level": use.level,
    }


def _to_json(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value


def report_lines(
    report: CostReport,
    display: Display,
    families: Mapping[str, SessionFamily] | None = None,
    *,
    worst_case: bool = False,
) -> list[str]:
    """Format a table with a row for each group, and a total if there are several.

    Narrow terminals show fewer columns. The worst-case cost is only shown on request.
    """
    if not report.rows:
        return []
    columns = [*_name_columns(report, display, families or {}), *_number_columns(report, worst_case=worst_case)]
    *rows, total = zip(*(cells for _, cells in columns), strict=True)
    return format_table(
        [column for column, _ in columns], rows, display, total=total if len(rows) > 1 else None
    )


def _name_columns(
    report: CostReport, display: Display, families: Mapping[str, SessionFamily]
) -> Iterator[tuple[Column, list[str]]]:
    for number, name in enumerate(report.group_by):
        values = [row.group[number] for row in report.rows]
        total = "" if number else "total"
        if name is not GroupBy.SESSION:
            yield Column(heading=name, fit=Fit.SHORTEN), [*(value or '""' for value in values), total]
            continue
        short_ids = shorten_ids(values)
        ids = [(short_ids[id_] if display.is_terminal else id_) or "(no session)" for id_ in values]
        titles = [families[id_].title if id_ in families else "" for id_ in values]
        yield Column(heading=name), [*ids, total]
        yield Column(heading="title", fit=Fit.SHORTEN, optional=True), [*titles, ""]


def _number_columns(report: CostReport, *, worst_case: bool) -> Iterator[tuple[Column, list[str]]]:
    rows = [*report.rows, report.total]

    def count_column(heading: str, counts: list[int], drop: int | None = None) -> tuple[Column, list[str]]:
        column = Column(heading=heading, align="right", optional=True, drop_order=drop)
        return column, [f"{count:,}" for count in counts]

    written = [row.written_5m + row.written_1h for row in rows]
    inputs = [row.uncached + row.read + written for row, written in zip(rows, written, strict=True)]
    shares = [f"{row.read / max(tokens, 1):.0%}" for row, tokens in zip(rows, inputs, strict=True)]
    yield count_column("calls", [row.calls for row in rows])
    yield count_column("input", inputs, drop=5)
    yield Column(heading="cached", align="right", optional=True, drop_order=4), shares
    yield count_column("written", written, drop=1)
    yield count_column("output", [row.output_tokens for row in rows], drop=3)
    # All amounts have the same precision, so that they can be compared.
    amounts = [
        [row.dollars for row in rows],
        [row.saved.without for row in rows],
        [row.saved.total for row in rows],
        *([[row.estimated_dollars for row in rows]] if worst_case else []),
    ]
    texts = format_dollar_column([amount for column in amounts for amount in column], unknown=_NO_AMOUNT)
    cost, without, saved, *estimates = (
        texts[start : start + len(rows)] for start in range(0, len(texts), len(rows))
    )
    yield Column(heading="cost", align="right"), ["unknown" if text == _NO_AMOUNT else text for text in cost]
    yield count_column("unpriced", [row.unknown_calls for row in rows])
    for cells in estimates:
        yield Column(heading="worst case", align="right"), cells
    yield Column(heading="without Foveate", align="right", optional=True, drop_order=2), without
    yield Column(heading="saved", align="right", optional=True), saved


def cap_lines(caps: Sequence[CapStatus], display: Display) -> list[str]:
    if not caps:
        return []
    ids = shorten_ids([use.session_id or "" for status in caps for use in status.uses])
    if not display.is_terminal:
        ids = {id_: id_ for id_ in ids}
    dollars = iter(format_dollar_column([amount for status in caps for amount in _listed_amounts(status)]))
    rows: list[list[Cell]] = []
    for status in caps:
        cap = status.cap
        if not status.uses:
            note = "" if cap.scope is CapScope.CALL else "no recent calls"
            rows.append([describe_cap(cap, cap.agent), next(dollars), "", "", "", "", "", note])
        for use in status.uses[:_MAX_LISTED_USES]:
            session = None if use.session_id is None else ids[use.session_id]
            name = describe_cap(cap, use.agent, session, use.day)
            amounts = [next(dollars) for _ in range(4)]
            unpriced = f"{use.unknown_calls:,}"
            share = "" if not cap.dollars else f"{(use.balance.spent + use.balance.reserved) / cap.dollars:.0%}"
            rows.append([name, *amounts, share, unpriced, Styled(_cap_note(use), _STYLES[use.level])])
        more = len(status.uses) - _MAX_LISTED_USES
        if more > 0:
            rows.append([f"{more:,} more {cap.scope}{'s' * (more != 1)} (--json lists all)", *[""] * 7])
    return format_table(_CAP_COLUMNS, rows, display)


def _listed_amounts(status: CapStatus) -> Iterator[Decimal]:
    if not status.uses:
        yield status.cap.dollars
    for use in status.uses[:_MAX_LISTED_USES]:
        yield from (status.cap.dollars, use.balance.spent, use.balance.reserved, max(use.remaining, Decimal(0)))


def _cap_note(use: CapUse) -> str:
    if use.remaining < 0:
        return f"over by {format_amount(-use.remaining)}"
    match use.level:
        case CapLevel.FULL:
            return "cap reached"
        case CapLevel.NEAR:
            return "near cap"
        case CapLevel.FINE:
            return ""


def _count_calls(number: int) -> str:
    return _count(number, "call")


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def correction_object(correction: Correction) -> dict[str, object]:
    """Return a correction as JSON: money as strings, null if unknown."""
    return {
        "id": correction.id,
        "at": correction.at,
        "call": correction.call_id or None,
        "agent": correction.agent or None,
        "session": correction.session_id or None,
        "account": correction.account or None,
        "before_dollars": None if correction.before is None else f"{correction.before:f}",
        "charged_dollars": None if correction.charged is None else f"{correction.charged:f}",
        "after_dollars": f"{correction.after:f}",
        "reason": correction.reason,
    }


def correction_lines(correction: Correction) -> Iterator[str]:
    before = "unknown" if correction.before is None else format_dollars(correction.before)
    amounts = f"{before} -> {format_dollars(correction.after)}"
    time, target = _correction_time(correction), _correction_target(correction)
    yield f"{time} UTC  {target}: {amounts}  ({correction.reason})"
    if correction.account:
        return
    if correction.charged is None:
        yield "  cap accounts are unchanged: the amount charged to them for this call is unknown"
    elif correction.charged != correction.after:
        yield f"  cap accounts: {format_dollars(correction.charged)} -> {format_dollars(correction.after)}"


def corrections_table(corrections: Sequence[Correction], display: Display) -> list[str]:
    if not corrections:
        return []
    amounts = format_dollar_column(
        [amount for correction in corrections for amount in (correction.before, correction.after)]
    )
    rows = [
        (_correction_time(correction), _correction_target(correction), before, after, correction.reason)
        for correction, before, after in zip(corrections, amounts[::2], amounts[1::2], strict=True)
    ]
    return format_table(_CORRECTION_COLUMNS, rows, display)


def _correction_time(correction: Correction) -> str:
    return datetime.fromtimestamp(correction.at, UTC).strftime("%Y-%m-%d %H:%M")


def _correction_target(correction: Correction) -> str:
    if correction.account:
        return f"account {correction.account}"
    return f"call {correction.call_id} of {correction.agent}"


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


def csv_line(cells: Iterable[CsvCell]) -> bytes:
    """Format a line of CSV (RFC 4180): exact dollars, and no formula injection.

    A text that starts like a formula gets a leading apostrophe, as spreadsheets write it themselves. So does
    one that starts with an apostrophe, so that removing one always restores the original. The same applies
    after a semicolon, a tab and a line break, where some spreadsheets start another cell.
    """
    buffer = io.StringIO()
    csv.writer(buffer).writerow([_format_csv_cell(cell) for cell in cells])
    return buffer.getvalue().encode("utf-8", "replace")


def _format_csv_cell(cell: CsvCell) -> str:
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


def _call_cells(entry: Charge) -> tuple[CsvCell, ...]:
    call, usage = entry.call, entry.usage
    return (
        _format_exact_time(call.at),
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


def _sum_cells(row: CostReportRow) -> tuple[CsvCell, ...]:
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


def _savings_cells(savings: Savings) -> tuple[CsvCell, ...]:
    edits = savings.without, savings.compaction, savings.context
    return *edits, savings.breakpoints, savings.keep_alive, savings.simulation_error


def _format_exact_time(seconds: float) -> str:
    """Format a time as 2026-11-15T12:00:00.000000Z, or in seconds if it is out of range."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
        if moment.date().isoformat() != utc_day(seconds):  # rounded up to the next day, but charged on this
            moment -= timedelta(microseconds=1)
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{Decimal(seconds):f}"
