"""Reports of usage as tables, JSON objects and CSV."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from decimal import Decimal

from foveate.cli.shared.console import Display
from foveate.cli.shared.options import shorten_ids
from foveate.cli.shared.tables import (
    Cell,
    Column,
    Fit,
    Styled,
    format_amount,
    format_dollar_column,
    format_short_count,
    format_table,
    style_text,
)
from foveate.replay.usage.report import ReportKind, UsageReport, UsageRow, UsageSum

_UNKNOWN = "?"
_NAME_KEYS = {
    ReportKind.DAILY: "day",
    ReportKind.WEEKLY: "week",
    ReportKind.MONTHLY: "month",
    ReportKind.SESSIONS: "session",
    ReportKind.PROJECTS: "project",
    ReportKind.BLOCKS: "block",
}
_COUNTS = (
    *("calls", "uncached", "read", "written_5m", "written_1h", "output_tokens", "reasoning_tokens"),
    *("unknown_calls", "logged_cost_calls", "inherited_calls", "gateway_calls"),
)
_DATE_SUFFIX_CHARS = len("-20251101")
_SECONDS_PER_MINUTE = 60


def report_object(report: UsageReport, zone: tzinfo | None, now: float) -> dict[str, object]:
    """Return a report as JSON: money as strings, null if unknown; times in seconds since 1970."""
    return {
        "report": report.kind.value,
        "timezone": zone_name(zone, now),
        "rows": [_row_object(report.kind, row, now) for row in report.rows],
        "total": _sum_object(report.total),
    }


def _row_object(kind: ReportKind, row: UsageRow, now: float) -> dict[str, object]:
    fields: dict[str, object] = {_NAME_KEYS[kind]: row.name}
    if kind is ReportKind.SESSIONS:
        fields["project"] = row.project
    if kind is ReportKind.BLOCKS:
        is_active = row.is_active(now)
        fields |= {
            "start": row.start,
            "end": row.end,
            "is_active": is_active,
            "tokens_per_minute": row.tokens_per_minute() if is_active else None,
            "dollars_per_hour": _to_json(row.dollars_per_hour()) if is_active else None,
            "projected_dollars": _to_json(row.projected_dollars(now)),
        }
    return fields | _sum_object(row.sum)


def _sum_object(sum_: UsageSum) -> dict[str, object]:
    return {
        "agents": sorted(sum_.agents),
        "models": sum_.models,
        **{name: getattr(sum_, name) for name in _COUNTS},
        "dollars": _to_json(sum_.dollars),
        "first_at": sum_.first_at or None,
        "last_at": sum_.last_at or None,
    }


def _to_json(dollars: Decimal | None) -> str | None:
    return None if dollars is None else f"{dollars:f}"


def report_csv(report: UsageReport, zone: tzinfo | None) -> bytes:
    from foveate.cli.cost.csv_export import csv_line  # imports the whole report of costs

    names = [_NAME_KEYS[report.kind], *(["project"] if report.kind is ReportKind.SESSIONS else [])]
    lines = [csv_line((*names, "agents", "models", *_COUNTS, "dollars", "first_at", "last_at"))]
    for row in report.rows:
        sum_ = row.sum
        lines.append(
            csv_line(
                (
                    row.name,
                    *([row.project] if report.kind is ReportKind.SESSIONS else []),
                    " ".join(sorted(sum_.agents)),
                    " ".join(sum_.models),
                    *(getattr(sum_, name) for name in _COUNTS),
                    sum_.dollars,
                    *(_format_time(at, zone, "seconds") for at in (sum_.first_at, sum_.last_at)),
                )
            )
        )
    return b"".join(lines)


def zone_name(zone: tzinfo | None, now: float) -> str:
    """The name of a time zone; for local time, its abbreviation, such as CET."""
    if zone is not None:
        return str(zone)
    return datetime.fromtimestamp(now, UTC).astimezone().tzname() or ""


def _format_time(at: float, zone: tzinfo | None, precision: str = "minutes") -> str:
    if not at:
        return ""
    moment = datetime.fromtimestamp(at, UTC).astimezone(zone)
    return moment.isoformat(timespec=precision)


def report_lines(report: UsageReport, zone: tzinfo | None, now: float, display: Display) -> list[str]:
    """Format a title, and a table with a row for each group and a total."""
    if not report.rows:
        return []
    columns = [*_name_columns(report, zone, now, display), *_number_columns(report, display)]
    *rows, total = zip(*(cells for _, cells in columns), strict=True)
    name = zone_name(zone, now)
    title = f"Usage by {_NAME_KEYS[report.kind]}, {f'local time ({name})' if zone is None else name}"
    return [
        style_text(title, "bold", display),
        "",
        *format_table([column for column, _ in columns], rows, display, total=total),
    ]


def _name_columns(
    report: UsageReport, zone: tzinfo | None, now: float, display: Display
) -> Iterator[tuple[Column, list[Cell]]]:
    """Yield the columns that name the rows, each with a cell for every row and the total."""
    rows = report.rows
    match report.kind:
        case ReportKind.SESSIONS:
            ids = shorten_ids([row.name for row in rows])
            times = [datetime.fromtimestamp(row.sum.last_at, UTC).astimezone(zone) for row in rows]
            yield Column(heading="last call"), [*(f"{time:%Y-%m-%d %H:%M}" for time in times), "total"]
            yield (
                Column(heading="session", drop_order=1),
                [*(ids[row.name] if display.is_terminal else row.name for row in rows), ""],
            )
            yield (
                Column(heading="project", fit=Fit.SHORTEN, min_cells=8),
                [*(_short_path(row.project, display) for row in rows), ""],
            )
        case ReportKind.PROJECTS:
            names = [_short_path(row.name, display) or "(unknown)" for row in rows]
            yield Column(heading="project", fit=Fit.SHORTEN, min_cells=12), [*names, "total"]
        case ReportKind.BLOCKS:
            starts = [datetime.fromtimestamp(row.start, UTC).astimezone(zone) for row in rows]
            yield Column(heading="start"), [*(f"{start:%Y-%m-%d %H:%M}" for start in starts), "total"]
            yield Column(heading="status", optional=True), [*(_block_status(row, now) for row in rows), ""]
        case _:
            yield (
                Column(heading=_NAME_KEYS[report.kind]),
                [*(row.name or "unknown" for row in rows), "total"],
            )
    if len(report.total.agents) > 1:
        agents = [*(", ".join(sorted(row.sum.agents)) for row in rows), ""]
        yield Column(heading="agents", fit=Fit.SHORTEN, min_cells=6, drop_order=2), [*agents]
    models = [", ".join(dict.fromkeys(map(_short_model, row.sum.models))) for row in rows]
    yield Column(heading="models", fit=Fit.SHORTEN, min_cells=8, drop_order=3), [*models, ""]


def _block_status(row: UsageRow, now: float) -> Cell:
    if not row.is_active(now):
        return ""
    minutes = int(row.end - now) // _SECONDS_PER_MINUTE
    return Styled(f"{minutes // 60}h {minutes % 60:02}m left", "green")


def _number_columns(report: UsageReport, display: Display) -> Iterator[tuple[Column, list[Cell]]]:
    sums = [*(row.sum for row in report.rows), report.total]

    def count_column(
        heading: str, counts: Sequence[int], drop_order: int | None = None
    ) -> tuple[Column, list[Cell]]:
        cells: list[Cell] = [
            format_short_count(count) if display.is_terminal else f"{count:,}" for count in counts
        ]
        return Column(heading=heading, align="right", drop_order=drop_order), cells

    yield count_column("input", [sum_.uncached for sum_ in sums])
    yield count_column("output", [sum_.output_tokens for sum_ in sums])
    yield count_column("cache write", [sum_.written for sum_ in sums], drop_order=4)
    yield count_column("cache read", [sum_.read for sum_ in sums], drop_order=5)
    amounts = format_dollar_column([sum_.dollars for sum_ in sums], unknown=_UNKNOWN)
    yield Column(heading="cost", align="right"), list(map(_cost_cell, sums, amounts))


def _cost_cell(sum_: UsageSum, amount: str) -> Cell:
    """A cost; if some prices are unknown, it is only a part of it."""
    if not sum_.unknown_calls:
        return Styled(amount, "green")
    return Styled(amount if amount == _UNKNOWN else f"{amount} + {_UNKNOWN}", "yellow")


def _short_model(model: str) -> str:
    """A model without its maker and date: opus-4-5."""
    name = model.rpartition("/")[2].removeprefix("claude-")
    suffix = name[-_DATE_SUFFIX_CHARS:]
    return (
        name[:-_DATE_SUFFIX_CHARS] if suffix.startswith("-20") and suffix[1:].isdecimal() else name or _UNKNOWN
    )


def _short_path(path: str, display: Display) -> str:
    """On a terminal, only the last two folders."""
    return "/".join(path.split("/")[-2:]) if display.is_terminal and path.count("/") > 2 else path


def report_notes(report: UsageReport, now: float) -> Iterator[str]:
    """Yield how the cost was found, if the table does not tell, and the pace of active blocks."""
    total = report.total
    if total.unknown_calls:
        yield f"{_count_calls(total.unknown_calls)} without a known price: not included in the cost"
    if total.inherited_calls:
        calls = _count_calls(total.inherited_calls)
        yield f"{calls} to unlisted models: priced at the highest price of the model family"
    if total.logged_cost_calls:
        calls = _count_calls(total.logged_cost_calls)
        yield f"{calls} at the cost that the agent logged; all others at list prices"
    if total.gateway_calls:
        yield f"{_count_calls(total.gateway_calls)} by the gateway itself: summaries, keep-alive, token counts"
    for row in report.rows if report.kind is ReportKind.BLOCKS else ():
        rate, projected = row.dollars_per_hour(), row.projected_dollars(now)
        if rate is not None and projected is not None:
            agent, pace = ", ".join(row.sum.agents), f"{format_amount(rate)} per hour"
            yield f"active block of {agent}: {pace}; at this pace {format_amount(projected)} at its end"


def _count_calls(number: int) -> str:
    return f"{number:,} call{'s' * (number != 1)}"
