"""`foveate store`: show what is stored, and delete what is old."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, astuple, dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from foveate.cli import console
from foveate.cli.exit_codes import report_errors
from foveate.cli.options import find_store_url
from foveate.errors import BadOption, NothingKept

if TYPE_CHECKING:
    from foveate.store import PrunePreview, Store, StoreSizes

KEEP_DAYS = 30.0
_DAY_SECONDS = 86_400.0
_MAX_DAYS = 36_500.0
_LABEL_CELLS = 10
_COUNTS = ("sessions", "turns", "folds", "folded", "size_bytes")

T = TypeVar("T")

app = typer.Typer(
    name="store",
    help="Show where the store is and how large it is, and delete old sessions.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="sqlite:///path or postgresql://…; default: FOVEATE_STORE, that of foveate.yaml, or the file in"
        " the data folder.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("info")
def info(store: StoreUrl = None, json: AsJson = False) -> None:
    """Say where the store is, which version its tables have, and how much is in it.

    Example: foveate store info --json
    """
    with report_errors(as_json=json):
        try:
            sizes = run_in_store(store, lambda opened_store: opened_store.sizes(), "counting")
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
        float,
        typer.Option("--keep-days", metavar="N", help="Forget what was not seen for so many days."),
    ] = KEEP_DAYS,
    keep_ledger_days: Annotated[
        float | None,
        typer.Option(
            "--keep-ledger-days",
            metavar="N",
            help="Forget calls in the ledger that are older, too; default: they are kept for ever.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be forgotten, and change nothing.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Forget sessions that were not seen for long, with their turns and folds, and give the room back.

    Example: foveate store vacuum --keep-days 90 --dry-run
    """
    with report_errors(as_json=json):
        for name, days in {"--keep-days": keep_days, "--keep-ledger-days": keep_ledger_days}.items():
            if days is not None and not (isfinite(days) and 0 < days <= _MAX_DAYS):
                raise BadOption(
                    f"{name} is a number of days, more than 0 and at most {_MAX_DAYS:,.0f}, not {days:g}"
                )
        from foveate.store.retention import PrunePreview

        result = _VacuumResult(
            dry_run=dry_run,
            keep_days=keep_days,
            keep_ledger_days=keep_ledger_days,
            forgotten=PrunePreview(),
        )
        try:
            result = run_in_store(store, lambda opened_store: _vacuum(opened_store, result), "forgetting")
        except NothingKept as error:
            note_missing_store(error)
        else:
            if not json:
                console.print_text(_describe_vacuum(result))
        if json:
            console.print_object(asdict(result))


def run_in_store(url: str | None, action: "Callable[[Store], Awaitable[T]]", activity: str) -> T:
    """Run `action` with the store at `url`, which is not created if it does not exist.

    Without a URL, use the store that a gateway started here would use.

    Raises:
        BadOption: this is not the URL of a store.
        NothingKept: the store does not exist.
        StoreUnavailable: it cannot be used, or was written by a newer version.
    """
    if url == "":
        raise BadOption("--store needs the URL of a database: sqlite:///path or postgresql://user@host/name")
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
        "where": display.escape(sizes.where),
        "version": display.escape(sizes.version),
        "sessions": f"{sizes.sessions:,}",
        "turns": f"{sizes.turns:,}",
        "folds": f"{sizes.folds:,}, with {sizes.folded:,} messages to undo them with",
        "requests": f"{sizes.requests:,} kept whole, {_format_size(sizes.request_bytes)}",
        "size": _format_size(sizes.size_bytes),
    }
    return [f"{name:<{_LABEL_CELLS}}{text}" for name, text in rows.items()]


def _describe_vacuum(result: _VacuumResult) -> str:
    counts = zip(astuple(result.forgotten), ("session", "turn", "fold", "folded message"), strict=True)
    deleted = ", ".join(f"{number:,} {word}{'s' * (number != 1)}" for number, word in counts)
    if result.keep_ledger_days is not None:
        calls = f"{result.calls:,} call{'s' * (result.calls != 1)}"
        deleted += f", and of the ledger {calls} of more than {result.keep_ledger_days:g} days ago"
    days = f"not seen for {result.keep_days:g} day{'s' * (result.keep_days != 1)}"
    before, after = _format_size(result.bytes_before), _format_size(result.bytes_after)
    if result.dry_run:
        return f"would forget what was {days}: {deleted}; the store takes {before}"
    return f"forgot what was {days}: {deleted}; the store took {before} and takes {after}"


def _format_size(size_bytes: int) -> str:
    if size_bytes < 1_000:
        return f"{size_bytes} bytes"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1_000
        if size < 999.5 or unit == "GB":
            break
    return f"{size:,.1f} {unit}" if size < 9.95 else f"{size:,.0f} {unit}"
