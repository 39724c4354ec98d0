"""`foveate cost`: what calls cost and what was saved, how caps stand, and every call as CSV."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import telling
from foveate.cli.outputs import Output, opened_output, output_name
from foveate.cli.store import AsJson, StoreUrl, in_store, note_nothing
from foveate.cli.usual import usual_config
from foveate.errors import BadOption, NothingKept

if TYPE_CHECKING:
    from foveate.cli.cost_asked import Asked, SessionFamily
    from foveate.cost.corrections import Correction
    from foveate.cost.ledger import By
    from foveate.cost.report import Report
    from foveate.session.rate_limits import SeenLimit
    from foveate.store import Store

_BY = "model,category"

app = typer.Typer(
    name="cost",
    help="Shows what calls cost, what the cache, folds and cuts saved, and how caps stand.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Agent = Annotated[str | None, typer.Option("--agent", metavar="A", help="Of this agent.")]
Session = Annotated[
    str | None, typer.Option("--session", metavar="S", help="Of this session: its id, or how it begins.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="T", help="Made then or later: 2026-11-01 (UTC), or 7d ago."),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="T", help="Made then or before: 2026-11-01 (UTC), or 7d ago."),
]


@app.callback(invoke_without_command=True)
def report(
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option("--by", metavar="B,…", help="A row for each: agent, session, model, category, day."),
    ] = _BY,
    since: Since = None,
    until: Until = None,
    agent: Agent = None,
    session: Session = None,
    store: StoreUrl = None,
    json: AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
) -> None:
    """Show what calls cost, by model and category, and what the cache, folds and cuts saved.

    Example: foveate cost --by agent,day --since 7d
    """
    if context.invoked_subcommand is not None:
        with telling(as_json=False):
            _check_nothing_before(context)
        return
    with telling(as_json=json):
        if json and csv:
            raise BadOption("--json and --csv cannot both be")
        from time import time

        from foveate.cli.cost_asked import by_of
        from foveate.cost.report import report_of

        told_by, now = by_of(by), time()
        asked = _asked(agent, session, since, until)
        try:
            found, families, limits, corrected = in_store(
                store, lambda opened: _reported(opened, told_by, asked, now), "adding up"
            )
        except NothingKept as error:
            note_nothing(error)
            found, families, limits, corrected = report_of([], told_by), {}, [], 0
        if json:
            from foveate.cli.cost_lines import limit_object, report_object

            screen.print_object(
                report_object(found, families)
                | {"rate_limits": [limit_object(one, now) for one in limits]}
                | {"corrections": corrected, "since": asked.since, "until": asked.until}
            )
        elif csv:
            from foveate.cli.cost_csv import report_csv

            screen.print_raw(report_csv(found))
        else:
            _print_report(found, families, limits, now)
            if corrected:
                said = f"{corrected:,} correction{'s' * (corrected != 1)} made by hand in this time"
                screen.print_note(f"{said}: foveate cost corrections")


@app.command("caps")
def caps(
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="The configuration that caps stand in; default: foveate.yaml here, or among Foveate's data.",
        ),
    ] = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Show every cap with what is spent, reserved and left of it, for whom it is on now.

    Example: foveate cost caps --config foveate.yaml
    """
    with telling(as_json=json):
        if config is None and (usual := usual_config()) is not None:
            config = str(usual)
        if config is None:
            screen.print_note("no configuration (foveate.yaml), so no caps; --config FILE names one")
            if json:
                screen.print_object({"caps": []})
            return
        if config == "":
            raise BadOption("--config needs the name of a file")
        from time import time

        from foveate.cli.cost_lines import CapWriting, cap_object
        from foveate.config.cost import load_cost
        from foveate.cost.held import held, held_in

        known = load_cost(config).caps
        try:
            found = in_store(store, lambda opened: held(opened.ledger, known, now=time()), "adding up")
        except NothingKept as error:
            note_nothing(error)
            found = held_in(known, now=time())
        if json:
            screen.print_object({"caps": [cap_object(one) for one in found]})
        else:
            screen.print_lines(CapWriting(screen.look(sys.stdout)).lines(found))
            if not found:
                screen.print_note(f"{config} has no caps")


@app.command("export")
def export(
    since: Since = None,
    until: Until = None,
    agent: Agent = None,
    session: Session = None,
    output: Output = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Write out every call as CSV, the oldest first, with all its tokens and exact dollars.

    Example: foveate cost export --since 2026-11-01 --output calls.csv
    """
    with telling(as_json=json):
        name, asked = output_name(output), _asked(agent, session, since, until)
        number = 0
        try:
            # Whoever reads standard output may go before the last call; then no more are read either.
            with screen.writable() if name is None else nullcontext():
                number = in_store(store, lambda opened: _exported(opened, asked, name), "exporting")
        except NothingKept as error:
            note_nothing(error)  # and leave a file as it is: it may be of another store
            if json:
                screen.print_object({"calls": 0, "output": None})
            return
        if name is not None:
            screen.print_note(f"{number:,} call{'s' * (number != 1)} in {name}")
            if json:
                screen.print_object({"calls": number, "output": name})


@app.command("correct")
def correct(
    dollars: Annotated[
        str, typer.Option("--dollars", metavar="D", help="The right amount: what it cost, or what is spent.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")],
    call: Annotated[
        str | None,
        typer.Option("--call", metavar="ID", help="Set what this call cost, and change its accounts with it."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="S", help="Set what is spent of this session's cap account."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="A", help="Set what is spent of this agent's cap account.")
    ] = None,
    day: Annotated[
        str | None,
        typer.Option(
            "--day", metavar="DATE", help="Set what is spent on this day (UTC); with --agent, by that agent."
        ),
    ] = None,
    total: Annotated[
        bool, typer.Option("--total", help="Set what is spent of the account of all calls.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Correct what a call cost, or what is spent of a cap account. The correction is recorded.

    A running gateway holds its caps to the new amount from the next request on.

    Example: foveate cost correct --call req_0123 --dollars 0.25 --reason "provider's invoice"
    """
    with telling(as_json=json):
        from time import time

        from foveate.cli import cost_correct

        cost_correct.check_target(call=call, session=session, agent=agent, day=day, is_total=total)
        amount = cost_correct.dollars_in(dollars)
        said_day = None if day is None else cost_correct.day_in(day)
        if not reason.strip():
            raise BadOption("--reason needs a text: it is recorded with the correction")
        made = in_store(
            store,
            lambda opened: cost_correct.correct(
                opened,
                amount,
                reason=reason.strip(),
                at=time(),
                call=call,
                session=session,
                agent=agent,
                day=said_day,
            ),
            "correcting",
        )
        if json:
            screen.print_object({"correction": cost_correct.correction_object(made)})
        else:
            screen.print_lines(map(screen.look(sys.stdout).plain, cost_correct.correction_lines(made)))


@app.command("corrections")
def corrections(
    since: Since = None,
    until: Until = None,
    agent: Agent = None,
    session: Session = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """List the corrections that were made by hand, the oldest first: amounts before and after, and why.

    Example: foveate cost corrections --since 7d
    """
    with telling(as_json=json):
        from foveate.cli.cost_correct import correction_lines, correction_object

        asked = _asked(agent, session, since, until)
        try:
            found = in_store(store, lambda opened: _corrections(opened, asked), "looking for corrections")
        except NothingKept as error:
            note_nothing(error)
            found = []
        if json:
            screen.print_object({"corrections": [correction_object(one) for one in found]})
            return
        plain = screen.look(sys.stdout).plain
        screen.print_lines(plain(line) for one in found for line in correction_lines(one))
        if not found:
            screen.print_note("no corrections")


def _check_nothing_before(context: typer.Context) -> None:
    """Refuse options in front of a command, to which they would say nothing."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name) if parameter.name else None
        if source is not None and source.name == "COMMANDLINE":
            option, command = parameter.opts[0], context.invoked_subcommand
            raise BadOption(f"{option} belongs behind the command: foveate cost {command} {option} …")


def _asked(agent: str | None, session: str | None, since: str | None, until: str | None) -> "Asked":
    from time import time

    from foveate.cli.cost_asked import Asked

    return Asked.of(agent=agent, session=session, since=since, until=until, now=time())


async def _reported(
    store: "Store", by: "tuple[By, ...]", asked: "Asked", now: float
) -> "tuple[Report, Mapping[str, SessionFamily], Sequence[SeenLimit], int]":
    from foveate.cli.cost_asked import session_families, session_named
    from foveate.cost.report import asked_of, report_of
    from foveate.session.rate_limits import RECENT_SECONDS

    session_id = await session_named(store.ledger, asked)
    sums = await store.ledger.sums(
        asked_of(by), since=asked.since, until=asked.until, agent=asked.agent, session_id=session_id
    )
    report = report_of(sums, by)
    limits = await store.rate_limits.recent(since=now - RECENT_SECONDS)
    mine = [one for one in limits if asked.agent in (None, one.agent)]
    made = await store.corrections.listed(
        since=asked.since, until=asked.until, agent=asked.agent, session_id=session_id
    )
    return report, await session_families(store, report, session_id), mine, len(made)


def _print_report(
    found: "Report",
    families: "Mapping[str, SessionFamily]",
    limits: "Sequence[SeenLimit]",
    now: float,
) -> None:
    from foveate.cli.cost_lines import ReportWriting, family_lines, limit_lines, marked_lines

    screen.print_lines(ReportWriting(screen.look(sys.stdout), families).lines(found))
    for line in (*family_lines(families), *marked_lines(found.total), *limit_lines(limits, now)):
        screen.print_note(line)
    if not found.rows:
        screen.print_note("no call is of this kind")
    if partial := found.total.partial_calls - found.total.possibly_charged_calls:
        screen.print_note(f"{partial:,} call{'s' * (partial != 1)} broke off before the bill was whole")


async def _corrections(store: "Store", asked: "Asked") -> "Sequence[Correction]":
    from foveate.cli.cost_asked import session_named

    session_id = await session_named(store.ledger, asked)
    return await store.corrections.listed(
        since=asked.since, until=asked.until, agent=asked.agent, session_id=session_id
    )


async def _exported(store: "Store", asked: "Asked", name: str | None) -> int:
    """How many calls were written."""
    from foveate.cli.cost_asked import session_named
    from foveate.cli.cost_csv import write_calls

    session_id = await session_named(store.ledger, asked)
    entries = store.ledger.entries(
        since=asked.since, until=asked.until, agent=asked.agent, session_id=session_id
    )
    with opened_output(name, store=store.where) as file:
        return await write_calls(entries, file)
