"""`foveate cost`: report costs and savings, list caps, export calls, and correct charges."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Self

import typer

from foveate.cli.shared import console
from foveate.cli.shared.console import Output, open_output, parse_output_option
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.options import CONFIG_HELP, UNTIL_NOTE, UTC_TIME_HELP, find_config_file, resolve_prefix
from foveate.cli.store import AsJson, StoreUrl, note_missing_store, run_in_store
from foveate.errors import BadOption, NothingKept

if TYPE_CHECKING:
    from foveate.cli.cost.output import SessionFamily
    from foveate.cost.ledger import Correction, GroupBy, Ledger
    from foveate.cost.savings import CostReport
    from foveate.session.store import ObservedLimit
    from foveate.store import Store

_DEFAULT_BY = "day,agent"
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)

app = typer.Typer(
    name="cost",
    help="Show costs, savings and spending caps; export and correct calls.\n\n"
    "Without a command: show what calls cost, and what caching and compaction saved.\n\n"
    "Example: foveate cost --by agent,model --since 7d",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only calls by this agent.")]
Session = Annotated[
    str | None,
    typer.Option(
        "--session", metavar="ID", help="Only calls in this session: its id, or its first characters."
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help=f"Only calls since this time: {UTC_TIME_HELP}"),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help=f"Only calls up to this time: {UTC_TIME_HELP} {UNTIL_NOTE}"),
]


@app.callback(invoke_without_command=True)
def report(
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="GROUP,...",
            help="Group calls by one or more of agent, session, model, day and category (main, compaction, "
            "counting, or ping for keep-alive).",
        ),
    ] = _DEFAULT_BY,
    since: Since = None,
    until: Until = None,
    agent: Agent = None,
    session: Session = None,
    worst_case: Annotated[
        bool,
        typer.Option(
            "--worst-case",
            help="Also show the worst-case cost that was computed before each call (cost ceiling).",
        ),
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV.")] = False,
) -> None:
    """Show what calls cost, and what caching and compaction saved."""
    if context.invoked_subcommand is not None:
        with report_errors(as_json=False):
            _reject_options_before_command(context)
        return
    with report_errors(as_json=json):
        if json and csv:
            raise BadOption("--json and --csv cannot be used together")
        from time import time

        from foveate.cost.savings import build_report

        group_by, now = parse_group_by(by), time()
        selection = _parse_selection(agent, session, since, until)
        try:
            cost_report, families, limits, correction_count = run_in_store(
                store,
                lambda opened_store: _load_report(opened_store, group_by, selection, now),
                "reading the ledger",
            )
        except NothingKept as error:
            note_missing_store(error)
            cost_report, families, limits, correction_count = build_report([], group_by), {}, [], 0
        if json:
            from foveate.cli.cost.output import rate_limit_object, report_object

            console.print_object(
                report_object(cost_report, families)
                | {"rate_limits": [rate_limit_object(limit, now) for limit in limits]}
                | {"corrections": correction_count, "since": selection.since, "until": selection.until}
            )
        elif csv:
            from foveate.cli.cost.output import report_csv

            console.print_raw(report_csv(cost_report))
        else:
            _print_report(cost_report, families, limits, now, worst_case=worst_case)
            if correction_count:
                corrections = f"{correction_count:,} manual correction{'s' * (correction_count != 1)}"
                console.print_note(f"{corrections} in this period: see foveate cost corrections")


@app.command("caps")
def caps(
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help=CONFIG_HELP,
        ),
    ] = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Show each spending cap with the amounts spent, reserved and left.

    Example: foveate cost caps --config foveate.yaml
    """
    with report_errors(as_json=json):
        if config is None and (default_config := find_config_file()) is not None:
            config = str(default_config)
        if config is None:
            console.print_note(
                "no caps: there is no foveate.yaml in this folder or in the data folder; use --config FILE"
            )
            if json:
                console.print_object({"caps": []})
            return
        if config == "":
            raise BadOption("--config needs a file name")
        from time import time

        from foveate.cli.cost.output import cap_lines, cap_object
        from foveate.config.cost_settings import load_cost
        from foveate.cost.caps import compute_cap_status, read_cap_status

        configured_caps = load_cost(config).caps
        try:
            statuses = run_in_store(
                store,
                lambda opened_store: read_cap_status(opened_store.ledger, configured_caps, now=time()),
                "reading the ledger",
            )
        except NothingKept as error:
            note_missing_store(error)
            statuses = compute_cap_status(configured_caps, now=time())
        if json:
            console.print_object({"caps": [cap_object(status) for status in statuses]})
        else:
            console.print_lines(cap_lines(statuses, console.display_for(sys.stdout)))
            if not statuses:
                console.print_note(f"{config} defines no caps")


@app.command("export")
def export(
    since: Since = None,
    until: Until = None,
    agent: Agent = None,
    session: Session = None,
    output: Output = None,
    store: StoreUrl = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="With --output FILE, print the number of calls and the file name as JSON."),
    ] = False,
) -> None:
    """Export all calls as CSV, oldest first, with token counts and exact costs.

    Example: foveate cost export --since 2026-11-01 --output calls.csv
    """
    with report_errors(as_json=json):
        name, selection = parse_output_option(output), _parse_selection(agent, session, since, until)
        count = 0
        try:
            # If the reader of standard output goes away, stop reading the store as well.
            with console.handle_write_errors() if name is None else nullcontext():
                count = run_in_store(
                    store, lambda opened_store: _export(opened_store, selection, name), "exporting calls"
                )
        except NothingKept as error:
            note_missing_store(error)  # an existing output file may belong to another store: keep it
            if json:
                console.print_object({"calls": 0, "output": None})
            return
        if name is not None:
            console.print_note(f"{count:,} call{'s' * (count != 1)} written to {name}")
            if json:
                console.print_object({"calls": count, "output": name})


@app.command("correct")
def correct(
    dollars: Annotated[
        str, typer.Option("--dollars", metavar="DOLLARS", help="The correct amount in dollars.")
    ],
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="TEXT", help="Reason for the correction, which is recorded with it."),
    ],
    call: Annotated[
        str | None,
        typer.Option("--call", metavar="ID", help="Set the cost of this call, in reports and for caps."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="ID",
            help="Set the amount that caps count for this session: its id, or its first characters.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="Set the amount that caps count for this agent."),
    ] = None,
    day: Annotated[
        str | None,
        typer.Option(
            "--day",
            metavar="DATE",
            help="Set the amount that caps count for this UTC day (2026-11-01); with --agent, for that agent.",
        ),
    ] = None,
    total: Annotated[
        bool, typer.Option("--total", help="Set the amount that caps count for all calls together.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """Correct the cost of a call, or an amount that caps count as spent. The correction is recorded.

    A running gateway applies the new amount starting with the next request. Only --call changes cost reports.

    Example: foveate cost correct --call req_0123 --dollars 0.25 --reason "provider's invoice"
    """
    with report_errors(as_json=json):
        from time import time

        from foveate.cli.cost.output import correction_lines, correction_object

        _check_target(call=call, session=session, agent=agent, day=day, is_total=total)
        amount = _parse_dollars(dollars)
        utc_day = None if day is None else _parse_day(day)
        if not reason.strip():
            raise BadOption("--reason needs a text, which is recorded with the correction")
        correction = run_in_store(
            store,
            lambda opened_store: _apply_correction(
                opened_store,
                amount,
                reason=reason.strip(),
                at=time(),
                call=call,
                session=session,
                agent=agent,
                day=utc_day,
            ),
            "recording the correction",
        )
        if json:
            console.print_object({"correction": correction_object(correction)})
        else:
            console.print_lines(map(console.display_for(sys.stdout).escape, correction_lines(correction)))


@app.command("corrections")
def corrections(
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help=f"Only corrections made since this time: {UTC_TIME_HELP}"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help=f"Only corrections made up to this time: {UTC_TIME_HELP} {UNTIL_NOTE}",
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only corrections of calls by this agent.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="ID",
            help="Only corrections of calls in this session: its id, or its first characters.",
        ),
    ] = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> None:
    """List manual corrections, oldest first, with the amounts before and after, and the reason.

    Example: foveate cost corrections --since 7d
    """
    with report_errors(as_json=json):
        from foveate.cli.cost.output import correction_object, corrections_table

        selection = _parse_selection(agent, session, since, until)
        try:
            found = run_in_store(
                store,
                lambda opened_store: _load_corrections(opened_store, selection),
                "reading corrections",
            )
        except NothingKept as error:
            note_missing_store(error)
            found = []
        if json:
            console.print_object({"corrections": [correction_object(correction) for correction in found]})
            return
        console.print_lines(corrections_table(found, console.display_for(sys.stdout)))
        if not found:
            console.print_note("no corrections match")


def _reject_options_before_command(context: typer.Context) -> None:
    """Reject options before a subcommand, where they would have no effect."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name) if parameter.name else None
        if source is not None and source.name == "COMMANDLINE":
            option, command = parameter.opts[0], context.invoked_subcommand
            raise BadOption(f"{option} must follow the command: foveate cost {command} {option} …")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSelection:
    """None matches all. `since` is included, `until` is not."""

    agent: str | None = None
    session: str | None = None
    since: float | None = None
    until: float | None = None

    @classmethod
    def from_options(
        cls, *, agent: str | None, session: str | None, since: str | None, until: str | None, now: float
    ) -> Self:
        """Parse the options; here `since` and `until` are both included.

        Raises:
            BadOption: a time cannot be parsed, or a name is empty.
        """
        for option, value in (("--agent", agent), ("--session", session)):
            if value == "":
                raise BadOption(f"{option} needs a name")
        from foveate.memory.queries import Query

        # Times are parsed as in all other commands.
        moments = Query.parse(since=since, until=until, now=datetime.fromtimestamp(now, UTC))
        return cls(
            agent=agent,
            session=session,
            since=None if moments.since is None else (moments.since - _EPOCH).total_seconds(),
            # Parsed times have microseconds, and the last microsecond is included.
            until=None if moments.until is None else (moments.until - _EPOCH + _MICROSECOND).total_seconds(),
        )


def parse_group_by(text: str) -> "tuple[GroupBy, ...]":
    """Parse what to group sums by.

    Raises:
        BadOption: a word is unknown, or repeated.
    """
    from foveate.cost.ledger import GroupBy

    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in list(GroupBy):
            raise BadOption(f"--by takes {', '.join(GroupBy)}, separated by commas, not {word!r:.40}")
        if words.count(word) > 1:
            raise BadOption(f"--by names {word} twice")
    return tuple(map(GroupBy, words))


def _parse_selection(
    agent: str | None, session: str | None, since: str | None, until: str | None
) -> CallSelection:
    from time import time

    return CallSelection.from_options(agent=agent, session=session, since=since, until=until, now=time())


async def _load_report(
    store: "Store", group_by: "tuple[GroupBy, ...]", selection: CallSelection, now: float
) -> "tuple[CostReport, Mapping[str, SessionFamily], Sequence[ObservedLimit], int]":
    from foveate.cost.savings import build_report, required_groups
    from foveate.session.store import RECENT_SECONDS

    session_id = await _resolve_session_id(store.ledger, selection)
    sums = await store.ledger.sum_charges(
        required_groups(group_by),
        since=selection.since,
        until=selection.until,
        agent=selection.agent,
        session_id=session_id,
    )
    report = build_report(sums, group_by)
    limits = await store.rate_limits.find_recent(since=now - RECENT_SECONDS)
    agent_limits = [limit for limit in limits if selection.agent in (None, limit.agent)]
    corrections_made = await store.corrections.find(
        since=selection.since, until=selection.until, agent=selection.agent, session_id=session_id
    )
    return report, await _load_families(store, report, session_id), agent_limits, len(corrections_made)


async def _load_families(
    store: "Store", report: "CostReport", session_id: str | None
) -> "Mapping[str, SessionFamily]":
    from foveate.cli.cost.output import SessionFamily
    from foveate.cost.ledger import GroupBy
    from foveate.store.repositories.sessions import DescendantTotals

    ids = [] if session_id is None else [session_id]
    if GroupBy.SESSION in report.group_by:
        column = report.group_by.index(GroupBy.SESSION)
        ids += [row.group[column] for row in report.rows if row.group[column] != session_id]
    labels, descendants = await store.session_tree.labels(ids), await store.session_tree.descendants(ids)
    return {
        id_: SessionFamily(labels[id_].title if id_ in labels else "", descendants.get(id_, DescendantTotals()))
        for id_ in ids
        if id_ in labels or id_ in descendants
    }


async def _resolve_session_id(ledger: "Ledger", selection: CallSelection) -> str | None:
    """Return the id of the selected session; None if none is selected.

    Raises:
        BadOption: the prefix matches several sessions, or none.
    """
    if selection.session is None:
        return None
    if any(row.calls for row in await ledger.sum_charges([], session_id=selection.session)):
        return selection.session
    from foveate.cost.ledger import GroupBy

    session_ids = sorted(row.group[0] for row in await ledger.sum_charges([GroupBy.SESSION]))
    found = resolve_prefix(
        [id_ for id_ in session_ids if id_.startswith(selection.session)], selection.session, "session"
    )
    if found is None:
        raise BadOption(f"there are no calls of a session whose id starts with {selection.session!r:.80}")
    return found


def _print_report(
    report: "CostReport",
    families: "Mapping[str, SessionFamily]",
    limits: "Sequence[ObservedLimit]",
    now: float,
    *,
    worst_case: bool,
) -> None:
    from foveate.cli.cost.output import rate_limit_notes, report_lines, report_notes

    display = console.display_for(sys.stdout)
    console.print_lines(report_lines(report, display, families, worst_case=worst_case))
    if not report.rows:
        console.print_note("no calls match")
    for note in (*report_notes(report, families), *rate_limit_notes(limits, now)):
        console.print_note(note)


def _parse_dollars(text: str) -> Decimal:
    """Parse an amount of dollars.

    Raises:
        BadOption: it is not a valid amount.
    """
    try:
        amount = Decimal(text.strip().removeprefix("$"))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount < 0:
        raise BadOption(f"--dollars takes an amount of 0 or more, e.g. 0.25, not {text!r:.40}")
    return amount


def _parse_day(text: str) -> str:
    """Parse a UTC day.

    Raises:
        BadOption: it is not a valid day.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise BadOption(f"--day takes a UTC date, e.g. 2026-11-17, not {text!r:.40}") from None


def _check_target(
    *, call: str | None, session: str | None, agent: str | None, day: str | None, is_total: bool
) -> None:
    """Check that exactly one call or account is named.

    Raises:
        BadOption: none is, or several are.
    """
    for option, value in (("--call", call), ("--session", session), ("--agent", agent), ("--day", day)):
        if value == "":
            raise BadOption(f"{option} needs a value")
    targets = [call is not None, session is not None, agent is not None or day is not None, is_total]
    if sum(targets) != 1:
        raise BadOption(
            "name one call (--call) or one account (--session, --agent, --day, --agent with --day, or --total)"
        )


async def _apply_correction(
    store: "Store",
    dollars: Decimal,
    *,
    reason: str,
    at: float,
    call: str | None,
    session: str | None,
    agent: str | None,
    day: str | None,
) -> "Correction":
    """Correct the named call or account.

    Raises:
        BadOption: the store has no such call or account.
    """
    from foveate.cost.caps import account_name

    if call is not None:
        correction = await store.corrections.correct_call(call, dollars, reason=reason, at=at)
        if correction is None:
            raise BadOption(f"there is no call {call!r:.80}; `foveate cost export` lists all calls")
        return correction
    session_id = await _resolve_session_id(store.ledger, CallSelection(session=session))
    account = account_name(agent=agent, session_id=session_id, day=day)
    correction = await store.corrections.correct_account(account, dollars, reason=reason, at=at)
    if correction is None:
        raise BadOption(f"there are no charges for {account!r:.80}; `foveate cost caps` lists the accounts")
    return correction


async def _load_corrections(store: "Store", selection: CallSelection) -> "Sequence[Correction]":
    session_id = await _resolve_session_id(store.ledger, selection)
    return await store.corrections.find(
        since=selection.since, until=selection.until, agent=selection.agent, session_id=session_id
    )


async def _export(store: "Store", selection: CallSelection, name: str | None) -> int:
    from foveate.cli.cost.output import write_calls

    session_id = await _resolve_session_id(store.ledger, selection)
    entries = store.ledger.list_charges(
        since=selection.since, until=selection.until, agent=selection.agent, session_id=session_id
    )
    with open_output(name, store=store.location) as file:
        return await write_calls(entries, file)
