"""`foveate store`: what is kept, and how to have what is old forgotten."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, astuple, dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from foveate.cli import screen
from foveate.cli.exits import telling
from foveate.cli.usual import usual_store
from foveate.errors import BadOption, NothingKept

if TYPE_CHECKING:
    from foveate.store import Forgettable, Sizes, Store

KEEP_DAYS = 30.0
_DAY_SECONDS = 86_400.0
_MOST_DAYS = 36_500.0
_LABEL_CELLS = 10
_COUNTS = ("sessions", "turns", "folds", "folded", "size_bytes")

T = TypeVar("T")

app = typer.Typer(
    name="store",
    help="Shows what is kept of sessions and folds, and forgets what is old.",
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
    with telling(as_json=json):
        try:
            sizes = in_store(store, lambda opened: opened.sizes(), "counting")
        except NothingKept as error:
            note_nothing(error)
            if json:
                screen.print_object({"where": error.where, "version": None, **dict.fromkeys(_COUNTS, 0)})
            return
        if json:
            screen.print_object(asdict(sizes))
        else:
            screen.print_lines(_size_lines(sizes, screen.look(sys.stdout)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vacuumed:
    """What was forgotten, or would be, and how much room the store took before and takes now."""

    dry_run: bool
    keep_days: float
    forgotten: "Forgettable"
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
    with telling(as_json=json):
        for name, days in {"--keep-days": keep_days, "--keep-ledger-days": keep_ledger_days}.items():
            if days is not None and not (isfinite(days) and 0 < days <= _MOST_DAYS):
                raise BadOption(
                    f"{name} is a number of days, more than 0 and at most {_MOST_DAYS:,.0f}, not {days:g}"
                )
        from foveate.store.sizes import Forgettable

        vacuumed = _Vacuumed(
            dry_run=dry_run,
            keep_days=keep_days,
            keep_ledger_days=keep_ledger_days,
            forgotten=Forgettable(),
        )
        try:
            vacuumed = in_store(store, lambda opened: _vacuumed(opened, vacuumed), "forgetting")
        except NothingKept as error:
            note_nothing(error)
        else:
            if not json:
                screen.print_text(_told(vacuumed))
        if json:
            screen.print_object(asdict(vacuumed))


def in_store(url: str | None, work: "Callable[[Store], Awaitable[T]]", what: str) -> T:
    """What `work` gives with the store at `url`, which is not made where there is none; `what` takes long.

    Without a URL it is the store that a gateway here would have.

    Raises:
        BadOption: this is no URL of a store.
        NothingKept: there is none.
        StoreUnavailable: it cannot be used, or is of a newer Foveate.
    """
    if url == "":
        raise BadOption("--store needs the URL of a database: sqlite:///path or postgresql://user@host/name")
    with screen.patience(what):
        import asyncio

        from foveate.store import open_store

        url = usual_store(url)

        async def run() -> T:
            async with await open_store(url, make=False) as store:
                return await work(store)

        return asyncio.run(run())


def note_nothing(error: NothingKept) -> None:
    """Say that there is no store, which is no error where all is asked for."""
    screen.print_note(str(error))


async def _vacuumed(store: "Store", asked: _Vacuumed) -> _Vacuumed:
    """What became of it."""
    from time import time

    keep_days, now = asked.keep_days, time()
    before = await store.sizes()
    would = await store.would_forget(keep_days=keep_days, now=now)
    calls_before = None if asked.keep_ledger_days is None else now - asked.keep_ledger_days * _DAY_SECONDS
    if asked.dry_run:
        return replace(
            asked,
            forgotten=would,
            calls=0 if calls_before is None else await store.ledger.would_forget(before=calls_before),
            bytes_before=before.size_bytes,
            bytes_after=before.size_bytes,
        )
    forgotten = await store.forget(keep_days=keep_days, now=now)
    calls = 0 if calls_before is None else await store.ledger.forget(before=calls_before)
    await store.vacuum()
    after = await store.sizes()
    return replace(
        asked,
        forgotten=replace(would, **asdict(forgotten)),
        calls=calls,
        bytes_before=before.size_bytes,
        bytes_after=after.size_bytes,
    )


def _size_lines(sizes: "Sizes", look: screen.Look) -> list[str]:
    rows = {
        "where": look.plain(sizes.where),
        "version": look.plain(sizes.version),
        "sessions": f"{sizes.sessions:,}",
        "turns": f"{sizes.turns:,}",
        "folds": f"{sizes.folds:,}, with {sizes.folded:,} messages to undo them with",
        "requests": f"{sizes.requests:,} kept whole, {_size(sizes.request_bytes)}",
        "size": _size(sizes.size_bytes),
    }
    return [f"{name:<{_LABEL_CELLS}}{said}" for name, said in rows.items()]


def _told(vacuumed: _Vacuumed) -> str:
    counts = zip(astuple(vacuumed.forgotten), ("session", "turn", "fold", "folded message"), strict=True)
    gone = ", ".join(f"{number:,} {word}{'s' * (number != 1)}" for number, word in counts)
    if vacuumed.keep_ledger_days is not None:
        calls = f"{vacuumed.calls:,} call{'s' * (vacuumed.calls != 1)}"
        gone += f", and of the ledger {calls} of more than {vacuumed.keep_ledger_days:g} days ago"
    days = f"not seen for {vacuumed.keep_days:g} day{'s' * (vacuumed.keep_days != 1)}"
    before, after = _size(vacuumed.bytes_before), _size(vacuumed.bytes_after)
    if vacuumed.dry_run:
        return f"would forget what was {days}: {gone}; the store takes {before}"
    return f"forgot what was {days}: {gone}; the store took {before} and takes {after}"


def _size(size_bytes: int) -> str:
    """Bytes as people say them."""
    if size_bytes < 1_000:
        return f"{size_bytes} bytes"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1_000
        if size < 999.5 or unit == "GB":
            break
    return f"{size:,.1f} {unit}" if size < 9.95 else f"{size:,.0f} {unit}"
