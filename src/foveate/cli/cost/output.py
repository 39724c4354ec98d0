"""Cost reports, rate limits and caps as text and as JSON objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal

from rich.cells import cell_len, set_cell_size

from foveate.cli.console import Display
from foveate.cli.cost.selection import SessionFamily
from foveate.cli.options import shorten_ids
from foveate.cost.cap_status import CapLevel, CapStatus, CapUse, describe_cap, describe_cap_use
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import GroupBy
from foveate.cost.money import format_dollars
from foveate.cost.report import CostReport, CostReportRow
from foveate.session.store import ObservedLimit

_GAP = "  "
_INDENT = "  "
_UNKNOWN = "unknown"
# JSON has all uses of a cap; text lists this many.
_MAX_LISTED_USES = 20
_MAX_NAME_CELLS = 24
_BOLD, _DIM, _RED, _YELLOW = "1", "2", "31", "33"
_COLOURS = {CapLevel.FINE: "", CapLevel.NEAR: _YELLOW, CapLevel.FULL: _RED}
_NUMBER_COLUMNS = (
    "calls",
    "uncached",
    "read",
    "written",
    "output",
    "cost",
    "inherited",
    "list price",
    "at most",
    "without Foveate",
    "saved",
    "by breakpoints",
    "by compaction",
    "by injected context",
    "by keep-alive",
    "simulation error",
    "would not fit",
)
_CAP_HEADINGS = ("cap", "limit", "spent", "reserved", "left", "")


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


def family_lines(families: Mapping[str, SessionFamily]) -> Iterator[str]:
    ids = shorten_ids(list(families))
    for id_, family in families.items():
        if (descendants := family.descendants).sessions:
            cost = format_dollars(descendants.dollars) + (
                f", and {descendants.unpriced:,} calls unpriced" if descendants.unpriced else ""
            )
            count = f"{descendants.sessions:,} session{'s' * (descendants.sessions != 1)}"
            yield f"{ids[id_]} started {count}, not in its row: {cost}"


def qualification_lines(row: CostReportRow) -> Iterator[str]:
    """Say which dollars are not exact charges: inherited prices, subscriptions, possibly charged calls."""
    if row.inherited_calls:
        calls = _count_calls(row.inherited_calls)
        yield (
            f"of it {format_dollars(row.inherited_dollars)} inherited: {calls} to models without a price of"
            " their own, at the most expensive of their family"
        )
    if row.subscription_calls:
        dollars, calls = format_dollars(row.subscription_dollars), _count_calls(row.subscription_calls)
        yield f"of it {dollars} list-price equivalents: {calls} that a subscription pays for"
    if row.possibly_charged_calls:
        calls, dollars = _count_calls(row.possibly_charged_calls), format_dollars(row.possibly_charged_dollars)
        yield f"{calls} possibly charged, at most {dollars}: under way when the gateway's process ended"


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


def rate_limit_lines(limits: Sequence[ObservedLimit], now: float) -> Iterator[str]:
    for observed in limits:
        used, resets_at = observed.used_at(now), observed.limit.resets_at
        share = "an unknown part" if used is None else f"{used:.0%}"
        until = ""
        if resets_at is not None and resets_at > now:
            until = f", reset {datetime.fromtimestamp(resets_at, UTC):%Y-%m-%d %H:%M} UTC"
        subscription = f"subscription of {observed.agent} at {observed.provider}"
        yield f"{subscription}: {share} of its {observed.limit.name} limit used{until}"


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


class _CostFormatter:
    def __init__(self, display: Display) -> None:
        self._display = display
        self._ellipsis = "…" if display.can_show("…") else ".."

    def _shorten_name(self, name: str) -> str:
        text = self._display.escape(name) or '""'
        if cell_len(text) <= _MAX_NAME_CELLS:
            return text
        return set_cell_size(text, _MAX_NAME_CELLS - len(self._ellipsis)).rstrip() + self._ellipsis

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and colour and self._display.colours else text

    def _fits(self, widths: Sequence[int]) -> bool:
        return sum(widths) + len(_GAP) * (len(widths) - 1) <= self._display.columns


class ReportFormatter(_CostFormatter):
    def __init__(self, display: Display, families: Mapping[str, SessionFamily] | None = None) -> None:
        super().__init__(display)
        self._families = families or {}

    def lines(self, report: CostReport) -> Iterator[str]:
        """Format a table with the total; on narrow displays several lines for each row."""
        if not report.rows:
            return
        names = self._group_names(report)
        rows = list(zip(names, report.rows, strict=True))
        if len(rows) > 1:
            rows.append((("total", *("" for _ in report.group_by[1:])), report.total))
        all_cells = [(*report.group_by, *_NUMBER_COLUMNS), *((*name, *_row_cells(row)) for name, row in rows)]
        columns = [
            column
            for number, column in enumerate(zip(*all_cells, strict=True))
            if number < len(report.group_by) or any(cell not in ("", _UNKNOWN) for cell in column[1:])
        ]
        headings, *table = zip(*columns, strict=True)
        widths = [max(map(cell_len, column)) for column in columns]
        last = len(rows) - 1 if rows[-1][1] is report.total else None
        if not self._fits(widths):
            for number, (name, row) in enumerate(rows):
                yield from self._narrow_lines(_GAP.join(filter(None, name)), row, is_total=number == last)
            return
        yield self._paint(_align_columns(headings, widths, len(report.group_by)), _DIM)
        for number, cells in enumerate(table):
            line = _align_columns(cells, widths, len(report.group_by))
            yield self._paint(line, _BOLD) if number == last else line

    def _group_names(self, report: CostReport) -> list[tuple[str, ...]]:
        if GroupBy.SESSION not in report.group_by:
            return [tuple(map(self._shorten_name, row.group)) for row in report.rows]
        session_column = report.group_by.index(GroupBy.SESSION)
        ids = shorten_ids([row.group[session_column] for row in report.rows])
        return [
            tuple(
                self._session_name(value, ids[value]) if number == session_column else self._shorten_name(value)
                for number, value in enumerate(row.group)
            )
            for row in report.rows
        ]

    def _session_name(self, id_: str, short: str) -> str:
        if not id_:
            return "(no session)"
        family = self._families.get(id_)
        return (
            f"{self._shorten_name(short)} {self._display.escape(family.title)}"
            if family
            else self._shorten_name(short)
        )

    def _narrow_lines(self, name: str, row: CostReportRow, *, is_total: bool) -> Iterator[str]:
        calls = f"{row.calls:,} call{'s' * (row.calls != 1)}"
        yield self._paint(f"{name}{_GAP}{calls}", _BOLD if is_total else "")
        written = row.written_5m + row.written_1h
        yield (
            f"{_INDENT}in {row.uncached:,} uncached, {row.read:,} read, {written:,} written; "
            f"out {row.output_tokens:,}"
        )
        ceiling = "" if row.estimated_dollars is None else f" (at most {format_dollars(row.estimated_dollars)})"
        yield f"{_INDENT}{_format_cost(row)}{ceiling}"
        yield from (f"{_INDENT}{text}" for text in qualification_lines(row))
        savings_cells = _savings_cells(row)
        parts = [
            ""
            if text in ("", _UNKNOWN)
            else text
            if (column_name, text[:4]) == ("saved", "cost")
            else f"{column_name} {text}"
            for column_name, text in zip(_NUMBER_COLUMNS[-len(savings_cells) :], savings_cells, strict=True)
        ]
        for part in (parts[:2], parts[2:6], parts[6:]):  # the total, its parts, and the rest
            if any(part):
                yield _INDENT + "; ".join(filter(None, part))


def _row_cells(row: CostReportRow) -> tuple[str, ...]:
    return (
        f"{row.calls:,}",
        f"{row.uncached:,}",
        f"{row.read:,}",
        f"{row.written_5m + row.written_1h:,}",
        f"{row.output_tokens:,}",
        _format_cost(row),
        format_dollars(row.inherited_dollars) if row.inherited_calls else "",
        format_dollars(row.subscription_dollars) if row.subscription_calls else "",
        "" if row.estimated_dollars is None else format_dollars(row.estimated_dollars),
        *_savings_cells(row),
    )


def _savings_cells(row: CostReportRow) -> tuple[str, ...]:
    savings = row.saved
    without = _UNKNOWN
    if savings.without is not None:
        calls_text = "" if row.compared_calls == row.calls else f" for {_count_calls(row.compared_calls)}"
        without = f"{format_dollars(savings.without)}{calls_text}"
    error, not_fitting = savings.simulation_error, row.would_not_fit_calls
    return (
        without,
        _format_saving(savings.total) or _UNKNOWN,
        _format_nonzero_saving(savings.breakpoints),
        _format_compaction_saving(row),
        _format_nonzero_saving(savings.context),
        _format_nonzero_saving(savings.keep_alive),
        format_dollars(error) if error else "",
        f"{_count_calls(not_fitting)}, {format_dollars(row.would_not_fit_dollars)}" if not_fitting else "",
    )


def _format_cost(row: CostReportRow) -> str:
    """Format the cost of calls. Calls of unknown price are counted, never taken as free."""
    return _format_with_unpriced(row.dollars, "+", row.unknown_calls)


def _format_with_unpriced(dollars: Decimal | None, word: str, calls: int) -> str:
    if not calls:
        return format_dollars(dollars or Decimal(0))
    unknown = f"{_count_calls(calls)} of unknown price"
    return f"{format_dollars(dollars)} {word} {unknown}" if dollars else unknown


def _format_compaction_saving(row: CostReportRow) -> str:
    unknown = f"{_count_calls(row.unknown_compactions)} of unknown price" if row.unknown_compactions else ""
    return " less ".join(filter(None, (_format_nonzero_saving(row.saved.compaction), unknown)))


def _format_nonzero_saving(dollars: Decimal | None) -> str:
    return _format_saving(dollars) if dollars else ""


def _format_saving(dollars: Decimal | None) -> str:
    """Format what was saved or, if negative, what it cost more; empty if unknown."""
    if dollars is None:
        return ""
    return f"cost {format_dollars(-dollars)} more" if dollars < 0 else format_dollars(dollars)


def _count_calls(number: int) -> str:
    return f"{number:,} call{'s' * (number != 1)}"


def _align_columns(cells: Sequence[str], widths: Sequence[int], left_columns: int) -> str:
    """Align cells: the first `left` to the left, the others to the right."""
    parts = []
    for number, (text, width) in enumerate(zip(cells, widths, strict=True)):
        blanks = " " * (width - cell_len(text))
        parts.append(text + blanks if number < left_columns else blanks + text)
    return _GAP.join(parts).rstrip()


class CapFormatter(_CostFormatter):
    def lines(self, caps: Sequence[CapStatus]) -> Iterator[str]:
        """Format a table with a line for each use of a cap; on narrow displays two lines each."""
        if not caps:
            return
        ids = shorten_ids([use.session_id or "" for status in caps for use in status.uses])
        rows = [row for status in caps for row in self._status_rows(status, ids)]
        widths = [
            max(map(cell_len, column)) for column in zip(_CAP_HEADINGS, *(row[0] for row in rows), strict=True)
        ]
        if not self._fits(widths):
            for cells, level in rows:
                yield from self._narrow_lines(cells, level)
            return
        yield self._paint(self._align_row(_CAP_HEADINGS, widths), _DIM)
        for cells, level in rows:
            line = self._align_row(cells, widths)
            yield line.removesuffix(cells[-1]) + self._paint(cells[-1], _COLOURS[level])

    def _status_rows(
        self, status: CapStatus, ids: dict[str, str]
    ) -> Iterator[tuple[tuple[str, ...], CapLevel]]:
        cap = status.cap
        if not status.uses:
            note = "" if cap.scope is CapScope.CALL else "nobody has called of late"
            yield (self._describe_cap(cap), format_dollars(cap.dollars), "", "", "", note), CapLevel.FINE
        for use in status.uses[:_MAX_LISTED_USES]:
            cells = (
                self._describe_cap(cap, use, ids),
                format_dollars(cap.dollars),
                _format_with_unpriced(use.balance.spent, "with", use.unknown_calls),
                format_dollars(use.balance.reserved),
                format_dollars(use.remaining) if use.remaining > 0 else format_dollars(Decimal(0)),
                describe_cap_use(use),
            )
            yield cells, use.level
        more = len(status.uses) - _MAX_LISTED_USES
        if more > 0:
            note = f"{more:,} more {cap.scope}{'s' * (more != 1)}, farther from it; --json has them all"
            yield (self._ellipsis, "", "", "", "", note), CapLevel.FINE

    def _describe_cap(self, cap: Cap, use: CapUse | None = None, ids: dict[str, str] | None = None) -> str:
        agent = cap.agent if use is None else use.agent
        session = None if use is None or ids is None or use.session_id is None else ids[use.session_id]
        return describe_cap(
            cap,
            None if agent is None else self._shorten_name(agent),
            None if session is None else self._shorten_name(session),
            None if use is None else use.day,
        )

    def _narrow_lines(self, cells: tuple[str, ...], level: CapLevel) -> Iterator[str]:
        description, limit, spent, reserved, remaining, note = cells
        yield _GAP.join(filter(None, (description, limit, self._paint(note, _COLOURS[level]))))
        if spent:
            yield f"{_INDENT}{spent} spent, {reserved} reserved, {remaining} left"

    def _align_row(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        *numbers, note = cells
        return (
            f"{_align_columns(numbers, widths[:-1], 1)}{_GAP}{note}".rstrip()
            if note
            else _align_columns(numbers, widths[:-1], 1)
        )
