"""`foveate usage`: reports of usage from the logs of agents on this machine and from the ledger."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import report_errors
from foveate.cli.shared.options import LOCAL_TIME_HELP, UNTIL_NOTE, ConfigFile, find_config_file, find_store_url
from foveate.cli.store import AsJson, StoreUrl, note_missing_store, run_in_store
from foveate.errors import BadOption, NothingKept

if TYPE_CHECKING:
    from datetime import tzinfo

    from foveate.cost.pricing.custom_prices import CustomPrice
    from foveate.cost.pricing.price_book import PriceBook
    from foveate.replay.local_logs import LogPlace
    from foveate.replay.usage.collect import CollectedUsage
    from foveate.replay.usage.report import ReportKind, UsageRecord
    from foveate.store import Store

_CACHE_NAME = "usage-cache.msgpack"
_SQLITE_PREFIX = "sqlite:///"


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

    Reads the logs that agents keep on this machine. Nothing is sent anywhere.

    Example: foveate usage weekly --agent claude-code --since 30d
    """
    with report_errors(as_json=json):
        if json and csv:
            raise BadOption("--json and --csv cannot be used together")
        from time import time

        from foveate.cli.usage_output import report_csv, report_lines, report_notes, report_object
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


def _parse_kind(report: str) -> "ReportKind":
    from foveate.replay.usage.report import ReportKind

    try:
        return ReportKind(report.strip().lower())
    except ValueError:
        raise BadOption(f"REPORT takes {', '.join(ReportKind)}, not {report!r:.40}") from None


def _parse_zone(name: str | None) -> "tzinfo | None":
    """Return a time zone; None is local time."""
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

    local_now = (
        datetime.fromtimestamp(now, zone) if zone is not None else datetime.fromtimestamp(now).astimezone()
    )
    moments = Query.parse(since=since, until=until, now=local_now)
    start = None if moments.since is None else moments.since.replace(tzinfo=zone).timestamp()
    # Parsed times have microseconds, and the last microsecond is included.
    end = (
        None
        if moments.until is None
        else (moments.until.replace(tzinfo=zone) + timedelta(microseconds=1)).timestamp()
    )
    return start, end


def _collect_logs(
    agents: frozenset[str], config: Path | None, *, use_cache: bool
) -> "tuple[list[LogPlace], CollectedUsage]":
    from foveate.cli.shared.tables import show_byte_progress
    from foveate.paths import data_folder
    from foveate.replay.local_logs import find_local_logs, list_log_places
    from foveate.replay.usage.collect import LogCollector, UsageCache

    home, folder = Path.home(), data_folder(os.environ, sys.platform)
    places = [place for place in find_local_logs(os.environ, home) if not agents or place.agent in agents]
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
        from foveate.config.updated_prices import default_price_file
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
    """Read the calls in the ledger; none if there is no store."""
    url = find_store_url(store) or os.environ.get("FOVEATE_STORE") or str(_default_store())
    if store is None and "postgres" not in url and not Path(url.removeprefix(_SQLITE_PREFIX)).exists():
        return []  # without importing the database driver
    from foveate.replay.usage.log_scan import to_record
    from foveate.replay.usage.report import MAX_MATCH_SECONDS

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
    from foveate.paths import data_folder

    return data_folder(os.environ, sys.platform) / "foveate.sqlite"


def _print_unreadable(collected: "CollectedUsage") -> None:
    """Say how much was left out, in one line."""
    parts = []
    if logs := collected.unreadable_logs:
        more = f" and {len(logs) - 1:,} more" if len(logs) > 1 else ""
        parts.append(f"{len(logs):,} log{'s' * (len(logs) != 1)} ({logs[0]}{more})")
    if lines := collected.unreadable_lines:
        parts.append(f"{lines:,} line{'s' * (lines != 1)} with usage")
    if parts:
        console.print_note(f"left out, because they cannot be read: {' and '.join(parts)}")


def _print_places(places: "Sequence[LogPlace]", *, is_limited: bool) -> None:
    """Say that there is nothing, and where it was looked for."""
    condition = " match" if is_limited else ""
    if not places:
        from foveate.replay.local_logs import list_log_places

        known = ", ".join(dict.fromkeys(place.agent for place in list_log_places(os.environ, Path.home())))
        console.print_note(f"no calls{condition} in the ledger; agents whose logs are read: {known}")
        return
    console.print_note(f"no calls{condition} in the ledger, nor in logs at:")
    for place in places:
        console.print_to_stderr(f"  {place.agent:<12} {place.path}")
