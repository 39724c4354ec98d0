"""`foveate run`: the command."""

import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import report_errors
from foveate.cli.shared.help import PlainUsageCommand
from foveate.cli.shared.options import ConfigFile, find_config_file
from foveate.errors import BadOption, FoveateError

if TYPE_CHECKING:
    from foveate.agents.catalog import Agent
    from foveate.agents.launch import LaunchPlan
    from foveate.agents.run_prefix import RunPrefix
    from foveate.agents.run_summary import RunSummary
    from foveate.cli.run.gateway import ConfiguredGateway, RunGateway

CONTEXT_SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
_IS_COMMAND = "foveate.run.is_command"
# A gateway that goes on running stores charges a moment after the response.
_SETTLE_SECONDS = 0.4
_MAX_READS = 6
_LOGGED_ID_CHARS = len("req_0123ab")


class RunCommand(PlainUsageCommand):
    """Notes whether `--` precedes the program: then it is any command, not the name of an agent."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        rest = super().parse_args(ctx, args)
        count = len(ctx.params.get("command") or ())
        ctx.meta[_IS_COMMAND] = len(words) > count and words[len(words) - count - 1] == "--"
        return rest


def command(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="AGENT [ARGS]...",
            help="The agent, with its own arguments; or any command after --.",
            show_default=False,
        ),
    ],
    config: ConfigFile = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Record its calls under this name. Default: that of the agent."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the summary.")] = False,
    print_: Annotated[
        bool,
        typer.Option("--print", help="Show what would be set, and start nothing. Default: start the agent."),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the summary as one JSON object on standard error; with --print, the plan on standard "
            "output.",
        ),
    ] = False,
) -> None:
    """Start an agent with its requests going through the gateway, and show what it cost.

    Uses the gateway that is running here, or starts one that ends with the agent. Options of foveate come
    before the agent; all that follows is passed to it. No file of the agent is changed, and its login is kept.

    Agents: claude, codex, opencode, gemini, pi, aider, qwen, copilot, openhands, cline, continue, droid, crush,
    goose. With --, any program that reads OPENAI_BASE_URL or ANTHROPIC_BASE_URL.

    Example: foveate run claude

    Example: foveate run -- python my_agent.py
    """
    with report_errors(as_json=json and print_):
        from foveate.agents.catalog import find_agent
        from foveate.agents.run_prefix import new_run
        from foveate.cli.run.gateway import load_configured_gateway, open_gateway

        environment: Mapping[str, str] = context.obj or dict(os.environ)
        program = Path(command[0]).name
        agent = find_agent(program)
        if agent is None and not context.meta.get(_IS_COMMAND):
            raise BadOption(_explain_unknown(command))
        words = [agent.command if agent and command[0] == program else command[0], *command[1:]]
        config_file = find_config_file(config)
        configured = load_configured_gateway(config_file, os.environ)
        run = new_run(name or (agent.name if agent else Path(program).stem))
        if print_:
            plan = _make_plan(agent, words, configured.url, run, environment, configured)
            _print_plan(plan, agent, run, as_json=json)
            return
        _check_program(words[0], environment, agent)
        if agent is not None and agent.needs_lines:
            plan = _make_plan(agent, words, configured.url, run, environment, configured)
            _confirm_lines(plan, agent)
        started_at = time()
        with open_gateway(
            configured, config_file, needs_configured_address=agent is not None and agent.needs_lines
        ) as gateway:
            plan = _make_plan(agent, words, gateway.url, run, environment, configured)
            code = _run(plan, environment)
        if not quiet:
            recorded_as = agent.name if agent is not None and agent.needs_lines else None
            summary = _read_summary(configured, gateway, run, recorded_as, started_at)
            if summary is not None:
                advice = _find_advice(summary, agent, gateway, run)
                _print_summary(summary, run, code, advice, as_json=json)
        raise typer.Exit(code)


def _explain_unknown(command: Sequence[str]) -> str:
    from foveate.agents.catalog import agent_words

    known = agent_words()
    close = get_close_matches(command[0].lower(), known, n=1)
    suggestion = f" Did you mean {close[0]}?" if close else ""
    return (
        f"{command[0]!r} is not an agent that Foveate knows.{suggestion} To run any command, put -- before it:"
        f" foveate run -- {command[0]} …. Known agents: {', '.join(known)}"
    )


def _check_program(program: str, environment: Mapping[str, str], agent: "Agent | None") -> None:
    """Check that the program exists, before a gateway is started for it."""
    import shutil

    if shutil.which(program, path=environment.get("PATH")) is None:
        if os.sep in program:
            raise BadOption(f"{program} cannot be run: there is no such file, or it is not executable")
        title = agent.title if agent is not None else program
        raise BadOption(f"{title} is not installed here: there is no program {program!r} on PATH")


def _make_plan(
    agent: "Agent | None",
    words: Sequence[str],
    gateway_url: str,
    run: "RunPrefix",
    environment: Mapping[str, str],
    configured: "ConfiguredGateway",
) -> "LaunchPlan":
    from foveate.agents.launch import plan_launch
    from foveate.agents.user_settings import find_configured_urls, find_direct_access, find_missing_settings

    found = list(find_configured_urls(agent, environment, Path()))
    direct_access = [] if agent is None else list(find_direct_access(agent, environment, Path()))
    missing = [] if agent is None else list(find_missing_settings(agent, environment, Path()))
    return plan_launch(
        agent,
        words,
        f"{gateway_url}{run}",
        environment,
        configured=found,
        direct_access=direct_access,
        missing_settings=missing,
        gateway_url=configured.url,
    )


def _confirm_lines(plan: "LaunchPlan", agent: "Agent") -> None:
    """Show the lines that an agent needs in its own file, and ask whether they are there."""
    from foveate.cli.run.output import lines_to_add

    if not plan.lines:
        return
    for line in lines_to_add(plan, agent):
        console.print_to_stderr(line)
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadOption(f"{agent.title} does not know the gateway yet: add the lines above, then run it again")
    if not typer.confirm("Are the lines there?", default=False, err=True):
        raise BadOption("nothing was started")


def _run(plan: "LaunchPlan", environment: Mapping[str, str]) -> int:
    from foveate.cli.run.process import run_in_foreground

    for note in plan.notes:
        console.print_note(note)
    return run_in_foreground(plan.arguments, {**environment, **plan.environment})


def _read_summary(
    configured: "ConfiguredGateway",
    gateway: "RunGateway",
    run: "RunPrefix",
    recorded_as: str | None,
    started_at: float,
) -> "RunSummary | None":
    """Read what the run cost. A store that cannot be read must not change the exit code of the agent."""
    from foveate.agents.run_summary import RunSummary, read_run
    from foveate.cli.store import run_in_store
    from foveate.errors import NothingKept

    def read() -> RunSummary:
        return run_in_store(
            configured.store_url,
            lambda store: read_run(store, run=run.run, agent=recorded_as, since=started_at),
            "reading the ledger",
        )

    try:
        summary = read()
        for _ in range(0 if gateway.is_own else _MAX_READS):
            sleep(_SETTLE_SECONDS)
            earlier, summary = summary, read()
            if summary == earlier and summary.calls:
                break
        return summary
    except NothingKept:
        return RunSummary()
    except FoveateError as error:
        console.print_note(f"no summary: {error}")
        return None


def _find_advice(summary: "RunSummary", agent: "Agent | None", gateway: "RunGateway", run: "RunPrefix") -> str:
    from foveate.agents.run_prefix import request_id_prefix
    from foveate.cli.run.output import advise

    # Log lines may shorten the ids of requests. A request that got no response is nowhere else.
    log_line = "" if summary.calls else gateway.find_log_line(request_id_prefix(run.run)[:_LOGGED_ID_CHARS])
    return advise(summary, title=None if agent is None else agent.title, log_line=log_line)


def _print_plan(plan: "LaunchPlan", agent: "Agent | None", run: "RunPrefix", *, as_json: bool) -> None:
    from foveate.cli.run.output import lines_to_add, plan_lines, plan_object

    if as_json:
        console.print_object(plan_object(plan, agent=run.agent, run=run.run))
        return
    console.print_lines(plan_lines(plan))
    for note in plan.notes:
        console.print_note(note)
    if plan.lines and agent is not None:
        for line in lines_to_add(plan, agent):
            console.print_to_stderr(line)


def _print_summary(summary: "RunSummary", run: "RunPrefix", code: int, advice: str, *, as_json: bool) -> None:
    from foveate.cli.run.output import summary_lines, summary_object, to_json_line

    if as_json:
        console.print_to_stderr(
            to_json_line(summary_object(summary, agent=run.agent, run=run.run, exit_code=code, advice=advice))
        )
        return
    for line in summary_lines(summary, agent=run.agent, advice=advice, display=console.display_for(sys.stderr)):
        console.print_to_stderr(line)
