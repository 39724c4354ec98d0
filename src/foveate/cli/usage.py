"""`foveate usage`: reports of usage from the logs of agents on this machine and from the ledger."""

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.console import Display
from foveate.cli.shared.errors import SOME_FAILED, report_errors
from foveate.cli.shared.options import (
    LOCAL_TIME_HELP,
    UNTIL_NOTE,
    ConfigFile,
    find_config_file,
    find_store_url,
    shorten_ids,
)
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
from foveate.cli.store import AsJson, StoreUrl, note_missing_store, run_in_store
from foveate.errors import BadOption, NothingKept
from foveate.paths import data_folder, sqlite_path

if TYPE_CHECKING:
    from datetime import tzinfo

    from foveate.cost.pricing.custom_prices import CustomPrice
    from foveate.cost.pricing.price_book import PriceBook
    from foveate.replay.local_logs import LogPlace
    from foveate.replay.usage.collect import CollectedUsage
    from foveate.replay.usage.report import ReportKind, UsageRecord, UsageReport, UsageRow, UsageSum
    from foveate.store import Store

_CACHE_NAME = "usage-cache.msgpack"
_UNKNOWN = "?"
_NAME_KEYS = {
    "daily": "day",
    "weekly": "week",
    "monthly": "month",
    "sessions": "session",
    "projects": "project",
    "blocks": "block",
}
_COUNTS = (
    *("calls", "uncached", "read", "written_5m", "written_1h", "output_tokens", "reasoning_tokens"),
    *("unknown_calls", "logged_cost_calls", "inherited_calls", "gateway_calls"),
)
_DATE_SUFFIX_CHARS = len("-20251101")
_SECONDS_PER_MINUTE = 60
_YEARS = "a time from the year 2 to 9998"  # others are not in all time zones


def command(
    report: Annotated[
        str,
        typer.Argument(
            metavar="[REPORT]",
            help="daily, weekly, monthly, sessions, projects, or blocks (of five hours, as subscriptions limit "
            "them).",
            show_default=False,
        ),
    ] = "daily",
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="NAME",
            help="Only calls by this agent: claude-code, codex, gemini-cli, qwen-code, opencode, pi, or an "
            "agent of the gateway. Can be repeated.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help=f"Only calls since this time: {LOCAL_TIME_HELP}"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help=f"Only calls up to this time: {LOCAL_TIME_HELP} {UNTIL_NOTE}"
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(
            "--timezone",
            metavar="NAME",
            help="Time zone of days and times, such as Europe/Berlin or UTC. Default: local time.",
        ),
    ] = None,
    no_ledger: Annotated[
        bool, typer.Option("--no-ledger", help="Read only the logs of agents, not the gateway's ledger.")
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Read all logs again, also those that have not changed.")
    ] = False,
    config: ConfigFile = None,
    store: StoreUrl = None,
    json: AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV.")] = False,
) -> None:
    """Show usage and cost by day, session or project, from the logs of your agents and the gateway's ledger.

    Reads the logs that agents keep on this machine. Nothing is sent anywhere. The exit code is 1 if a log could
    not be read.

    Example: foveate usage weekly --agent claude-code --since 30d
    """
    with report_errors(as_json=json):
        if json and csv:
            raise BadOption("--json and --csv cannot be used together")
        from time import time

        from foveate.replay.usage.report import build_usage_report, merge_ledger

        now, kind, zone = time(), _parse_kind(report), _parse_zone(timezone)
        start, end = _parse_times(since, until, zone, now)
        agents = frozenset(name.strip() for name in agent or ())
        if "" in agents:
            raise BadOption("--agent needs a name")
        places, collected = _collect_logs(agents, config, use_cache=not no_cache)
        records = collected.records
        if not no_ledger:
            records = merge_ledger(records, _read_ledger(store, start, end))
        records = [
            record
            for record in records
            if (not agents or record.agent in agents)
            and (start is None or record.at >= start)
            and (end is None or record.at < end)
        ]
        usage_report = build_usage_report(records, kind, zone=zone)
        if json:
            console.print_object(
                report_object(usage_report, zone, now)
                | {"since": start, "until": end, "logs": collected.logs}
                | {"unreadable_logs": len(collected.unreadable_logs)}
                | {"unreadable_lines": collected.unreadable_lines}
            )
        elif csv:
            console.print_raw(report_csv(usage_report, zone))
        else:
            console.print_lines(report_lines(usage_report, zone, now, console.display_for(sys.stdout)))
            for note in report_notes(usage_report, now):
                console.print_note(note)
        _print_unreadable(collected)
        if not records:
            _print_places(places, is_limited=bool(agents or since or until))
        if collected.unreadable_logs:
            raise typer.Exit(SOME_FAILED)


def _parse_kind(report: str) -> "ReportKind":
    from foveate.replay.usage.report import ReportKind

    try:
        return ReportKind(report.strip().lower())
    except ValueError:
        raise BadOption(f"REPORT takes {', '.join(ReportKind)}, not {report!r:.40}") from None


def _parse_zone(name: str | None) -> "tzinfo | None":
    """None is local time."""
    if name is None:
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name.strip())
    except (KeyError, ValueError, OSError):  # unknown, empty, or a folder of zones
        raise BadOption(f"--timezone takes a name such as Europe/Berlin or UTC, not {name!r:.40}") from None


def _parse_times(
    since: str | None, until: str | None, zone: "tzinfo | None", now: float
) -> tuple[float | None, float | None]:
    """Parse the limits as all commands do; the first is included, the second is not."""
    if since is None and until is None:
        return None, None
    from datetime import datetime, timedelta

    from foveate.memory.queries import Query

    # A local time has no zone, since its offset differs between summer and winter.
    moments = Query.parse(since=since, until=until, now=datetime.fromtimestamp(now, zone))
    start = end = None
    try:
        if moments.since is not None:
            start = moments.since.replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        raise BadOption(f"--since takes {_YEARS}, not {since!r}") from None
    try:
        if moments.until is not None:  # parsed times have microseconds, and the last microsecond is included
            end = (moments.until.replace(tzinfo=zone) + timedelta(microseconds=1)).timestamp()
    except (ValueError, OverflowError):
        raise BadOption(f"--until takes {_YEARS}, not {until!r}") from None
    return start, end


def _collect_logs(
    agents: frozenset[str], config: Path | None, *, use_cache: bool
) -> "tuple[list[LogPlace], CollectedUsage]":
    from foveate.cli.shared.tables import show_byte_progress
    from foveate.replay.local_logs import find_local_logs, list_log_places
    from foveate.replay.recording import RecordingSource
    from foveate.replay.usage.collect import LogCollector, UsageCache

    home, folder = Path.home(), data_folder(os.environ, sys.platform)
    # A call in the ledger counts as one of the agent whose log has it, which can be any.
    reads_all = not agents or not agents <= frozenset(RecordingSource)
    places = [place for place in find_local_logs(os.environ, home) if reads_all or place.agent in agents]
    prices = _LocalPrices(config, folder)
    cache = UsageCache(folder / _CACHE_NAME, prices=prices.version) if use_cache else UsageCache()
    collector = LogCollector(places, cache)
    with show_byte_progress("reading logs", collector.pending_bytes) as report_progress:
        collected = collector.collect(prices.load, on_progress=report_progress)
    searched = [place for place in list_log_places(os.environ, home) if not agents or place.agent in agents]
    return searched, collected


class _LocalPrices:
    """The prices of the configuration, the price file and the installed tables."""

    def __init__(self, config: Path | None, folder: Path) -> None:
        from importlib.metadata import version

        self._custom: Sequence[CustomPrice] = ()
        file = find_config_file(config)
        if file is not None:
            from foveate.config.cost_settings import load_cost

            self._custom = load_cost(file).prices
        self._price_file = folder / "prices.json"
        self.version = repr(
            (version("foveate"), version("genai-prices"), self._custom, _file_stamp(self._price_file))
        )

    def load(self) -> "PriceBook":
        from foveate.config.price_file import default_price_file
        from foveate.cost.pricing.price_book import PriceBook

        book = PriceBook(self._custom, load_imported=default_price_file(os.environ).current_prices)
        book.preload()
        return book


def _file_stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _read_ledger(store: str | None, start: float | None, end: float | None) -> "list[UsageRecord]":
    url = find_store_url(store) or os.environ.get("FOVEATE_STORE") or str(_default_store())
    if store is None and not url.startswith("postgres") and not sqlite_path(url, os.environ).exists():
        return []  # without importing the database driver
    from foveate.replay.usage.report import MAX_MATCH_SECONDS, to_record

    async def read(opened_store: "Store") -> "list[UsageRecord]":
        charges = opened_store.ledger.list_charges(
            since=None if start is None else start - MAX_MATCH_SECONDS,
            until=None if end is None else end + MAX_MATCH_SECONDS,
        )
        return [to_record(charge) async for charge in charges]

    try:
        return run_in_store(store, read, "reading the ledger")
    except NothingKept as error:
        note_missing_store(error)
        return []


def _default_store() -> Path:
    return data_folder(os.environ, sys.platform) / "foveate.sqlite"


def _print_unreadable(collected: "CollectedUsage") -> None:
    parts = []
    if logs := collected.unreadable_logs:
        more = f" and {len(logs) - 1:,} more" if len(logs) > 1 else ""
        parts.append(f"{len(logs):,} log{'s' * (len(logs) != 1)} ({logs[0]}{more})")
    if lines := collected.unreadable_lines:
        parts.append(f"{lines:,} line{'s' * (lines != 1)} with usage")
    if parts:
        console.print_note(f"left out, because they cannot be read: {' and '.join(parts)}")


def _print_places(places: "Sequence[LogPlace]", *, is_limited: bool) -> None:
    condition = " match" if is_limited else ""
    if not places:
        from foveate.replay.local_logs import list_log_places

        known = ", ".join(dict.fromkeys(place.agent for place in list_log_places(os.environ, Path.home())))
        console.print_note(f"no calls{condition} in the ledger; agents whose logs are read: {known}")
        return
    console.print_note(f"no calls{condition} in the ledger, nor in logs at:")
    for place in places:
        console.print_to_stderr(f"  {place.agent:<12} {place.path}")


def report_object(report: "UsageReport", zone: tzinfo | None, now: float) -> dict[str, object]:
    """Return a report as JSON: money as strings, null if unknown; times in seconds since 1970."""
    return {
        "report": report.kind.value,
        "timezone": zone_name(zone, now),
        "rows": [_row_object(report.kind, row, now) for row in report.rows],
        "total": _sum_object(report.total),
    }


def _row_object(kind: "ReportKind", row: "UsageRow", now: float) -> dict[str, object]:
    from foveate.replay.usage.report import ReportKind

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


def _sum_object(sum_: "UsageSum") -> dict[str, object]:
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


def report_csv(report: "UsageReport", zone: tzinfo | None) -> bytes:
    from foveate.cli.cost.output import csv_line
    from foveate.replay.usage.report import ReportKind

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


def report_lines(report: "UsageReport", zone: tzinfo | None, now: float, display: Display) -> list[str]:
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
    report: "UsageReport", zone: tzinfo | None, now: float, display: Display
) -> Iterator[tuple[Column, list[Cell]]]:
    from foveate.replay.usage.report import ReportKind

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


def _block_status(row: "UsageRow", now: float) -> Cell:
    if not row.is_active(now):
        return ""
    minutes = int(row.end - now) // _SECONDS_PER_MINUTE
    return Styled(f"{minutes // 60}h {minutes % 60:02}m left", "green")


def _number_columns(report: "UsageReport", display: Display) -> Iterator[tuple[Column, list[Cell]]]:
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


def _cost_cell(sum_: "UsageSum", amount: str) -> Cell:
    """If some prices are unknown, the cost is only a part."""
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


def report_notes(report: "UsageReport", now: float) -> Iterator[str]:
    """Yield how the cost was found, if the table does not tell, and the pace of active blocks."""
    from foveate.replay.usage.report import ReportKind

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
