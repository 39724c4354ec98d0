"""`foveate compactions`: the folds of sessions, what they folded, and undoing them."""

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import telling
from foveate.cli.outputs import Output, opened_output, output_name
from foveate.cli.store import AsJson, StoreUrl, in_store, note_nothing
from foveate.errors import BadOption, NothingKept

if TYPE_CHECKING:
    from foveate.cli.compactions_found import Asked
    from foveate.fold.journal import Fold
    from foveate.fold.unfolding import Unfolded
    from foveate.store import Store

_LIMIT = 50
_MOST_ROWS = 1_000_000
_JSONL, _JSON = "jsonl", "json"

app = typer.Typer(
    name="compactions",
    help="Lists the folds of sessions, shows what they folded and carry, undoes and exports them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FoldId = Annotated[str, typer.Argument(metavar="ID", help="The id of a fold, or how it begins.")]
Session = Annotated[
    str | None, typer.Option("--session", metavar="S", help="Of this session: its id, or how it begins.")
]


@app.command("list")
def list_(
    agent: Annotated[str | None, typer.Option("--agent", metavar="A", help="Of this agent.")] = None,
    session: Session = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            "--outcome",
            metavar="O",
            help="That ended so: ok, failed, lock_held, no_boundary or tool_result_truncated.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="Made then or later: 2026-11-01, or 7d ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="T", help="Made then or before: 2026-11-01, or 7d ago.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="How many, the newest first.")] = _LIMIT,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """List folds, the newest first: when, whose, which messages, tokens before and after, dollars, outcome.

    Example: foveate compactions list --agent ana --since 7d
    """
    with telling(as_json=json):
        if not 0 < limit <= _MOST_ROWS:
            raise BadOption(f"--limit is a number of folds, from 1 to {_MOST_ROWS:,}, not {limit}")
        asked = _asked(agent, outcome, since, until)
        try:
            found, is_more = in_store(store, lambda opened: _listed(opened, asked, session, limit), "reading")
        except NothingKept as error:
            note_nothing(error)
            if json:
                screen.print_object({"folds": [], "more": False})
            return
        from foveate.cli.compactions_lines import Writing, listed_object

        if json:
            screen.print_object({"folds": [listed_object(fold) for fold in found], "more": is_more})
        else:
            screen.print_lines(Writing(screen.look(sys.stdout)).listed(found))
            _note_found(found, is_more=is_more)


@app.command("show")
def show(
    id: FoldId,  # noqa: A002  # the argument's name
    full: Annotated[bool, typer.Option("--full", help="Show the folded messages too.")] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Show all that is known of a fold: its span, its summary, what was carried, its tokens and dollars.

    Example: foveate compactions show 3f9a --full
    """
    with telling(as_json=json):
        shown = in_store(store, lambda opened: _shown(opened, id), "reading")
        from foveate.cli.compactions_lines import Writing, unfolded_object

        if json:
            screen.print_object(unfolded_object(shown, full=full))
        else:
            screen.print_lines(Writing(screen.look(sys.stdout)).unfolded(shown, full=full))


@app.command("undo")
def undo(id: FoldId, store: StoreUrl = None, json: AsJson = False) -> None:  # noqa: A002  # the argument's name
    """Have a fold in force no longer: the next request of its session sends the folded messages again.

    Example: foveate compactions undo 3f9a
    """
    with telling(as_json=json):
        from time import time

        from foveate.cli.compactions_lines import Writing, undone_object
        from foveate.cli.compactions_undone import undo as undone_in

        undone = in_store(store, lambda opened: undone_in(opened, id, now=time()), "undoing")
        if json:
            screen.print_object(undone_object(undone))
        else:
            screen.print_lines(Writing(screen.look(sys.stdout)).undone(undone))


@app.command("export")
def export(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Folds by their ids; default: all.")
    ] = None,
    session: Session = None,
    output: Output = None,
    format: Annotated[  # noqa: A002  # the option's name
        str, typer.Option("--format", metavar="FORMAT", help="jsonl (one fold a line) or json (one list).")
    ] = _JSONL,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Write out folds with all they say and all they folded, as JSON that gives every byte back.

    Example: foveate compactions export --output folds.jsonl
    """
    with telling(as_json=json):
        if format not in (_JSONL, _JSON):
            raise BadOption(f"--format is {_JSONL} or {_JSON}, not {format!r:.40}")
        if ids and session is not None:
            raise BadOption("name folds by their ids, or a session, and not both")
        name = output_name(output)
        number = 0
        try:
            # Whoever reads standard output may go before the last fold; then no more are read either.
            with screen.writable() if name is None else nullcontext():
                number = in_store(
                    store, lambda opened: _exported(opened, ids or [], session, name, format), "exporting"
                )
        except NothingKept as error:
            if ids or session is not None:
                raise
            note_nothing(error)  # and leave a file as it is: it may be of another store
            if json:
                screen.print_object({"folds": 0, "output": None})
            return
        if name is not None:
            screen.print_note(f"{number:,} fold{'s' * (number != 1)} in {name}")
            if json:
                screen.print_object({"folds": number, "output": name})


def _asked(agent: str | None, outcome: str | None, since: str | None, until: str | None) -> "Asked":
    from datetime import datetime

    from foveate.cli.compactions_found import Asked
    from foveate.fold.journal import Outcome
    from foveate.memory.queries import Query

    if outcome is not None and outcome not in list(Outcome):
        raise BadOption(f"--outcome is one of {', '.join(Outcome)}, not {outcome!r:.40}")
    # The same words for moments as everywhere.
    moments = Query.of(since=since, until=until, now=datetime.now())
    return Asked(
        agent=agent,
        outcome=None if outcome is None else Outcome(outcome),
        since=None if moments.since is None else moments.since.timestamp(),
        until=None if moments.until is None else moments.until.timestamp(),
    )


async def _listed(store: "Store", asked: "Asked", session: str | None, limit: int) -> "tuple[list[Fold], bool]":
    from dataclasses import replace

    from foveate.cli.compactions_found import listed, session_named

    if session is not None:
        session_id = await session_named(store, session)
        if session_id is None:
            return [], False
        asked = replace(asked, session_id=session_id)
    return await listed(store, asked, limit=limit)


def _note_found(found: "list[Fold]", *, is_more: bool) -> None:
    number = f"{len(found):,} fold{'s' * (len(found) != 1)}" if found else "no fold is of this kind"
    screen.print_note(f"{number}; there are more: --limit" if is_more else number)


async def _shown(store: "Store", beginning: str) -> "Unfolded":
    from foveate.cli.compactions_found import fold_named
    from foveate.fold.unfolding import unfolded

    return await unfolded(store.journal, await fold_named(store, beginning))


async def _exported(store: "Store", ids: list[str], session: str | None, name: str | None, form: str) -> int:
    """How many folds were written."""
    from foveate.cli.compactions_export import chosen, written

    # All that is named is there before the first byte is written.
    folds = await chosen(store, ids, session)
    with opened_output(name, store=store.where) as file:
        return await written(store, folds, file, as_list=form == _JSON)
