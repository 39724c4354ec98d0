"""`foveate store`: show what is stored, and delete what is old."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, astuple, dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from foveate.cli.shared import console
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.options import find_config_file, find_store_url
from foveate.cli.shared.tables import Column, format_table
from foveate.errors import BadOption, NothingKept

if TYPE_CHECKING:
    from foveate.store import PrunePreview, Store, StoreSizes

_DAY_SECONDS = 86_400.0
_MAX_DAYS = 36_500.0
_COUNTS = ("sessions", "turns", "folds", "folded", "size_bytes")

T = TypeVar("T")

app = typer.Typer(
    name="store",
    help="Show the location and size of the store (the database), and delete old sessions.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Database: sqlite:///path or postgresql://user@host/name. Default: the environment variable "
        "FOVEATE_STORE, else store.url in foveate.yaml, else a SQLite file in the data folder.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


@app.command("info")
def info(store: StoreUrl = None, json: AsJson = False) -> None:
    """Show the location of the store, its schema version, and how much data it holds.

    Example: foveate store info --json
    """
    with report_errors(as_json=json):
        try:
            sizes = run_in_store(store, lambda opened_store: opened_store.sizes(), "reading the store")
        except NothingKept as error:
            note_missing_store(error)
            if json:
                console.print_object({"where": error.where, "version": None, **dict.fromkeys(_COUNTS, 0)})
            return
        if json:
            console.print_object(asdict(sizes))
        else:
            console.print_lines(_size_lines(sizes, console.display_for(sys.stdout)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _VacuumResult:
    dry_run: bool
    keep_days: float
    forgotten: "PrunePreview"
    keep_ledger_days: float | None = None
    calls: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@app.command("vacuum")
def vacuum(
    keep_days: Annotated[
        float | None,
        typer.Option(
            "--keep-days",
            metavar="DAYS",
            help="Delete sessions that have not been used for this many days. Default: store.keep_days in "
            "foveate.yaml, else 30.",
        ),
    ] = None,
    keep_ledger_days: Annotated[
        float | None,
        typer.Option(
            "--keep-ledger-days",
            metavar="DAYS",
            help="Also delete calls older than this many days from the ledger. Default: keep all calls.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, without deleting it.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Delete sessions that have not been used for a while, with their compactions, and free disk space.

    Example: foveate store vacuum --keep-days 90 --dry-run
    """
    with report_errors(as_json=json):
        for name, days in {"--keep-days": keep_days, "--keep-ledger-days": keep_ledger_days}.items():
            if days is not None and not (isfinite(days) and 0 < days <= _MAX_DAYS):
                raise BadOption(
                    f"{name} takes a number of days above 0 and at most {_MAX_DAYS:,.0f}, not {days:g}"
                )
        from foveate.store.retention import PrunePreview

        result = _VacuumResult(
            dry_run=dry_run,
            keep_days=_configured_keep_days() if keep_days is None else keep_days,
            keep_ledger_days=keep_ledger_days,
            forgotten=PrunePreview(),
        )
        try:
            result = run_in_store(
                store, lambda opened_store: _vacuum(opened_store, result), "deleting old data"
            )
        except NothingKept as error:
            note_missing_store(error)
        else:
            if not json:
                console.print_text(_describe_vacuum(result))
        if json:
            console.print_object(asdict(result))


def _configured_keep_days() -> float:
    """Return how long the gateway keeps sessions.

    Raises:
        InputError: the configuration cannot be read.
    """
    from foveate.config.load import load_settings
    from foveate.config.settings import StoreSettings

    file = find_config_file()
    return (StoreSettings() if file is None else load_settings(file).store).keep_days


def run_in_store(url: str | None, action: "Callable[[Store], Awaitable[T]]", activity: str) -> T:
    """Run `action` with the store at `url`, which is not created if it does not exist.

    Without a URL, use the store that a gateway started here would use.

    Raises:
        BadOption: this is not the URL of a store.
        NothingKept: the store does not exist.
        StoreUnavailable: it cannot be used, or was written by a newer version.
    """
    if url == "":
        raise BadOption("--store must not be empty: use sqlite:///path or postgresql://user@host/name")
    with console.show_progress(activity):
        import asyncio

        from foveate.store import open_store

        url = find_store_url(url)

        async def run() -> T:
            async with await open_store(url, create=False) as store:
                return await action(store)

        return asyncio.run(run())


def note_missing_store(error: NothingKept) -> None:
    console.print_note(str(error))


async def _vacuum(store: "Store", requested: _VacuumResult) -> _VacuumResult:
    from time import time

    keep_days, now = requested.keep_days, time()
    before = await store.sizes()
    would_delete = await store.preview_prune(keep_days=keep_days, now=now)
    calls_before = (
        None if requested.keep_ledger_days is None else now - requested.keep_ledger_days * _DAY_SECONDS
    )
    if requested.dry_run:
        return replace(
            requested,
            forgotten=would_delete,
            calls=0 if calls_before is None else await store.ledger.count_before(before=calls_before),
            bytes_before=before.size_bytes,
            bytes_after=before.size_bytes,
        )
    deleted = await store.prune(keep_days=keep_days, now=now)
    calls = 0 if calls_before is None else await store.ledger.delete_before(before=calls_before)
    await store.vacuum()
    after = await store.sizes()
    return replace(
        requested,
        forgotten=replace(would_delete, **asdict(deleted)),
        calls=calls,
        bytes_before=before.size_bytes,
        bytes_after=after.size_bytes,
    )


def _size_lines(sizes: "StoreSizes", display: console.Display) -> list[str]:
    rows = {
        "where": sizes.where,
        "version": sizes.version,
        "sessions": f"{sizes.sessions:,}",
        "turns": f"{sizes.turns:,}",
        "compactions": f"{sizes.folds:,}, with {sizes.folded:,} original messages to undo them",
        "requests": f"{sizes.requests:,} stored in full, {_format_size(sizes.request_bytes)}",
        "size": _format_size(sizes.size_bytes),
    }
    return format_table((Column(), Column()), list(rows.items()), display)


def _describe_vacuum(result: _VacuumResult) -> str:
    counts = zip(astuple(result.forgotten), ("session", "turn", "compaction", "compacted message"), strict=True)
    deleted = ", ".join(f"{number:,} {word}{'s' * (number != 1)}" for number, word in counts)
    if result.keep_ledger_days is not None:
        calls = f"{result.calls:,} call{'s' * (result.calls != 1)}"
        deleted += f", and from the ledger {calls} older than {result.keep_ledger_days:g} days"
    days = f"not used for {result.keep_days:g} day{'s' * (result.keep_days != 1)}"
    before, after = _format_size(result.bytes_before), _format_size(result.bytes_after)
    if result.dry_run:
        return f"would delete data {days}: {deleted}; store size: {before}"
    return f"deleted data {days}: {deleted}; store size: {before} before, {after} now"


def _format_size(size_bytes: int) -> str:
    if size_bytes < 1_000:
        return f"{size_bytes} bytes"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1_000
        if size < 999.5 or unit == "GB":
            break
    return f"{size:,.1f} {unit}" if size < 9.95 else f"{size:,.0f} {unit}"
