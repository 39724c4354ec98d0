"""`foveate compactions`: list, show, undo and export the compactions of sessions."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.console import Output, open_output, parse_output_option
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.options import LOCAL_TIME_HELP, UNTIL_NOTE
from foveate.cli.store import AsJson, StoreUrl, note_missing_store, run_in_store
from foveate.errors import BadOption, NothingKept

if TYPE_CHECKING:
    from foveate.cli.compactions.selection import CompactionFilter
    from foveate.compaction.inspection import CompactionContents
    from foveate.compaction.store import Compaction
    from foveate.store import Store

_LIMIT = 50
_KEEP_TOKENS = 20_000
_MAX_ROWS = 1_000_000
_JSONL, _JSON = "jsonl", "json"

app = typer.Typer(
    name="compactions",
    help="List, preview, show, undo and export compactions: summaries that replace old messages.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CompactionId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a compaction, or its first characters, e.g. 3f9a.")
]
Session = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID",
        help="Only compactions of this session: its id, or its first characters.",
    ),
]


@app.command("list")
def list_(
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only compactions of this agent.")
    ] = None,
    session: Session = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            "--outcome",
            metavar="OUTCOME",
            help="Only this outcome: ok, failed, lock_held (another process was compacting the session), "
            "no_boundary (no place to cut the history), tool_result_truncated (a long tool result was "
            "shortened), results_cleared (old tool results became placeholders) or sections_moved (text that "
            "was added to injected sections moved before the history).",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help=f"Only compactions since this time: {LOCAL_TIME_HELP}",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help=f"Only compactions up to this time: {LOCAL_TIME_HELP} {UNTIL_NOTE}",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="Maximum number of compactions to list.")
    ] = _LIMIT,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """List compactions, newest first, with their outcome, cost, messages, and tokens before and after.

    Example: foveate compactions list --agent ana --since 7d
    """
    with report_errors(as_json=json):
        if not 0 < limit <= _MAX_ROWS:
            raise BadOption(f"--limit takes a number of compactions from 1 to {_MAX_ROWS:,}, not {limit}")
        selection = _parse_filter(agent, outcome, since, until)
        try:
            found, is_more = run_in_store(
                store, lambda opened_store: _list_selected(opened_store, selection, session, limit), "reading"
            )
        except NothingKept as error:
            note_missing_store(error)
            if json:
                console.print_object({"folds": [], "more": False})
            return
        from foveate.cli.compactions.output import CompactionFormatter, compaction_row_object

        if json:
            console.print_object(
                {"folds": [compaction_row_object(compaction) for compaction in found], "more": is_more}
            )
        else:
            console.print_lines(CompactionFormatter(console.display_for(sys.stdout)).list_lines(found))
            _print_count(found, is_more=is_more)


@app.command("show")
def show(
    id: CompactionId,  # noqa: A002  # the argument's name
    full: Annotated[
        bool, typer.Option("--full", help="Print all carried lines and names, and the original messages.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Show the outcome of a compaction, its summary, the messages it replaced, its tokens and its cost.

    Example: foveate compactions show 3f9a --full
    """
    with report_errors(as_json=json):
        details = run_in_store(store, lambda opened_store: _load_details(opened_store, id), "reading")
        from foveate.cli.compactions.output import CompactionFormatter, compaction_details_object

        if json:
            console.print_object(compaction_details_object(details, full=full))
        else:
            console.print_lines(
                CompactionFormatter(console.display_for(sys.stdout)).detail_lines(details, full=full)
            )


@app.command("preview")
def preview(
    session: Annotated[
        str,
        typer.Argument(metavar="SESSION", help="Id of a session or a stored request, or its first characters."),
    ],
    keep_tokens: Annotated[
        int,
        typer.Option("--keep-tokens", metavar="N", help="Tokens at the end that stay, as tail_keep_tokens."),
    ] = _KEEP_TOKENS,
    full: Annotated[
        bool, typer.Option("--full", help="Print all lines and names, not only the first of each group.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Show what a compaction would replace and carry if it happened now. Nothing is changed.

    Rules write the summary shown here; a model's summary differs, but the same facts are checked in it. The
    gateway must store requests for this: set `keep_requests`.

    Example: foveate compactions preview 3f9a
    """
    with report_errors(as_json=json):
        if keep_tokens < 0:
            raise BadOption(f"--keep-tokens takes a number of tokens, 0 or more, not {keep_tokens}")
        from foveate.cli.compactions.preview import load_preview, preview_object

        found = run_in_store(
            store, lambda opened_store: load_preview(opened_store, session, keep_tokens), "reading"
        )
        if json:
            console.print_object(preview_object(found))
        else:
            from foveate.cli.compactions.preview import preview_lines

            console.print_lines(preview_lines(found, console.display_for(sys.stdout), full=full))


@app.command("undo")
def undo(id: CompactionId, store: StoreUrl = None, json: AsJson = False) -> None:  # noqa: A002  # the argument's name
    """Undo a compaction, or the clearing of tool results: the next request contains the originals again.

    Example: foveate compactions undo 3f9a
    """
    with report_errors(as_json=json):
        from time import time

        from foveate.cli.compactions.output import CompactionFormatter, undo_object
        from foveate.cli.compactions.undo import undo_compaction

        result = run_in_store(
            store, lambda opened_store: undo_compaction(opened_store, id, now=time()), "undoing"
        )
        if json:
            console.print_object(undo_object(result))
        else:
            console.print_lines(CompactionFormatter(console.display_for(sys.stdout)).undo_lines(result))


@app.command("export")
def export(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", help="Ids of compactions, or their first characters. Default: all compactions."
        ),
    ] = None,
    session: Session = None,
    output: Output = None,
    format: Annotated[  # noqa: A002  # the option's name
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Format of the export: jsonl (one JSON object per line) or json (one list).",
        ),
    ] = _JSONL,
    store: StoreUrl = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="With --output FILE, print the number of compactions and the file name as JSON."
        ),
    ] = False,
) -> None:
    """Export compactions as JSON, with their summaries and complete original messages.

    Example: foveate compactions export --output compactions.jsonl
    """
    with report_errors(as_json=json):
        if format not in (_JSONL, _JSON):
            raise BadOption(f"--format takes {_JSONL} or {_JSON}, not {format!r:.40}")
        if ids and session is not None:
            raise BadOption("give either ids of compactions or --session, not both")
        name = parse_output_option(output)
        count = 0
        try:
            # If the reader of standard output goes away, stop reading the store as well.
            with console.handle_write_errors() if name is None else nullcontext():
                count = run_in_store(
                    store,
                    lambda opened_store: _export(opened_store, ids or [], session, name, format),
                    "exporting",
                )
        except NothingKept as error:
            if ids or session is not None:
                raise
            note_missing_store(error)  # an existing output file may belong to another store: keep it
            if json:
                console.print_object({"folds": 0, "output": None})
            return
        if name is not None:
            console.print_note(f"wrote {count:,} compaction{'s' * (count != 1)} to {name}")
            if json:
                console.print_object({"folds": count, "output": name})


def _parse_filter(
    agent: str | None, outcome: str | None, since: str | None, until: str | None
) -> "CompactionFilter":
    from datetime import datetime

    from foveate.cli.compactions.selection import CompactionFilter
    from foveate.compaction.store import CompactionOutcome
    from foveate.memory.queries import Query

    if outcome is not None and outcome not in list(CompactionOutcome):
        raise BadOption(f"--outcome takes one of {', '.join(CompactionOutcome)}, not {outcome!r:.40}")
    # Times are parsed as in all other commands.
    moments = Query.parse(since=since, until=until, now=datetime.now())
    return CompactionFilter(
        agent=agent,
        outcome=None if outcome is None else CompactionOutcome(outcome),
        since=None if moments.since is None else moments.since.timestamp(),
        until=None if moments.until is None else moments.until.timestamp(),
    )


async def _list_selected(
    store: "Store", selection: "CompactionFilter", session: str | None, limit: int
) -> "tuple[list[Compaction], bool]":
    from dataclasses import replace

    from foveate.cli.compactions.selection import find_session_id, list_compactions

    if session is not None:
        session_id = await find_session_id(store, session)
        if session_id is None:
            return [], False
        selection = replace(selection, session_id=session_id)
    return await list_compactions(store, selection, limit=limit)


def _print_count(found: "list[Compaction]", *, is_more: bool) -> None:
    if not found:
        console.print_note("no compaction matches")
        return
    number = f"{len(found):,} compaction{'s' * (len(found) != 1)}"
    console.print_note(f"{number}; older ones are not listed: use --limit" if is_more else number)


async def _load_details(store: "Store", prefix: str) -> "CompactionContents":
    from foveate.cli.compactions.selection import find_compaction
    from foveate.compaction.inspection import load_contents, load_gains

    compaction = await find_compaction(store, prefix)
    gain = (await load_gains(store.compactions, store.ledger, compaction.session_id)).get(compaction.id)
    contents = await load_contents(store.compactions, compaction)
    return replace(contents, realized=gain.realized if gain is not None else None)


async def _export(
    store: "Store", ids: list[str], session: str | None, name: str | None, export_format: str
) -> int:
    from foveate.cli.compactions.output import select_for_export, write_compactions

    # Resolve all names before the first byte is written.
    compactions = await select_for_export(store, ids, session)
    with open_output(name, store=store.location) as file:
        return await write_compactions(store, compactions, file, as_list=export_format == _JSON)
