"""`foveate run`: the command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from shlex import join, quote
from time import sleep, time
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.cli.shared import console
from foveate.cli.shared.console import Display
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.help import PlainUsageCommand
from foveate.cli.shared.options import ConfigFile, find_config_file
from foveate.cli.shared.tables import format_amount, style_text
from foveate.errors import BadOption, CannotStart, FoveateError

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
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
# A terminal sends these to the agent as well; only the agent decides what they mean.
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_SIGNAL_CODE = 128


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
    from foveate.agents.installation import find_configured_urls, find_direct_access, find_missing_settings
    from foveate.agents.launch import plan_launch

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
    if not plan.lines:
        return
    for line in lines_to_add(plan, agent):
        console.print_to_stderr(line)
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadOption(f"{agent.title} does not know the gateway yet: add the lines above, then run it again")
    if not typer.confirm("Are the lines there?", default=False, err=True):
        raise BadOption("nothing was started")


def _run(plan: "LaunchPlan", environment: Mapping[str, str]) -> int:
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
    """A store that cannot be read must not change the exit code of the agent."""
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

    # Log lines may shorten the ids of requests. A request that got no response is nowhere else.
    log_line = "" if summary.calls else gateway.find_log_line(request_id_prefix(run.run)[:_LOGGED_ID_CHARS])
    return advise(summary, title=None if agent is None else agent.title, log_line=log_line)


def _print_plan(plan: "LaunchPlan", agent: "Agent | None", run: "RunPrefix", *, as_json: bool) -> None:
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
    if as_json:
        console.print_to_stderr(
            to_json_line(summary_object(summary, agent=run.agent, run=run.run, exit_code=code, advice=advice))
        )
        return
    for line in summary_lines(summary, agent=run.agent, advice=advice, display=console.display_for(sys.stderr)):
        console.print_to_stderr(line)


def plan_lines(plan: "LaunchPlan") -> Iterator[str]:
    yield from (f"export {name}={quote(value)}" for name, value in plan.environment.items())
    yield join(plan.arguments)


def plan_object(plan: "LaunchPlan", *, agent: str, run: str) -> dict[str, object]:
    return {
        "agent": agent,
        "run": run,
        "arguments": list(plan.arguments),
        "environment": dict(plan.environment),
        "notes": list(plan.notes),
        "lines": plan.lines or None,
        "lines_file": plan.lines_file if plan.lines else None,
    }


def summary_object(
    summary: "RunSummary", *, agent: str, run: str, exit_code: int, advice: str
) -> dict[str, object]:
    worst = summary.worst_miss
    return {
        "agent": agent,
        "run": run,
        "exit_code": exit_code,
        "calls": summary.calls,
        "sessions": summary.sessions,
        "dollars": _to_text(summary.dollars),
        "without_dollars": _to_text(summary.without_dollars),
        "compared_calls": summary.compared_calls,
        "unknown_calls": summary.unknown_calls,
        "subscription_calls": summary.subscription_calls,
        "failed_requests": summary.failed_requests,
        "cache_misses": summary.misses,
        "lost_dollars": _to_text(summary.lost_dollars),
        "worst_miss": None
        if worst is None
        else {"request": worst.request_id, "cause": worst.cache_miss.cause, "where": worst.cache_miss.where},
        "advice": advice or None,
    }


def _to_text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


def summary_lines(summary: "RunSummary", *, agent: str, advice: str, display: Display) -> Iterator[str]:
    heading = style_text(f"Foveate: {agent}", "bold", display)
    if not summary.calls:
        failed = summary.failed_requests
        yield f"{heading}: no calls" + (f"; {_count(failed, 'request')} failed" if failed else "")
    else:
        parts = [_count(summary.calls, "call"), _count(summary.sessions, "session"), *_cost_parts(summary)]
        yield f"{heading}: {', '.join(parts)}"
        if summary.misses:
            lost = f", {format_amount(summary.lost_dollars)} lost" if summary.lost_dollars else ""
            yield f"  {_count(summary.misses, 'unexpected cache miss', 'unexpected cache misses')}{lost}"
    if advice:
        yield f"  {display.escape(advice)}"


def _cost_parts(summary: "RunSummary") -> Iterator[str]:
    if summary.dollars is None:
        yield "cost unknown"
        return
    is_subscription = summary.subscription_calls > 0
    yield f"{format_amount(summary.dollars)}{' at list prices (subscription)' if is_subscription else ''}"
    if summary.unknown_calls:
        yield f"{_count(summary.unknown_calls, 'call')} of unknown cost"
    if summary.without_dollars is not None:
        yield f"{format_amount(summary.without_dollars)} without Foveate"


def advise(summary: "RunSummary", *, title: str | None, log_line: str) -> str:
    """Return the most useful next step; empty if there is none.

    `title` is that of a known agent; `log_line` is what the gateway logged about the last request of the run.
    """
    from foveate.agents.run_summary import find_advice

    if summary.calls:
        return find_advice(summary)
    if summary.failed_requests or log_line:
        logged = f"the gateway's log has: {log_line}. " if log_line else ""
        return f"{logged}`foveate doctor` checks whether the providers can be reached"
    if title is not None:
        return (
            f"no request reached the gateway: `foveate agents` and `foveate doctor` show how {title} is set up"
        )
    return "no request reached the gateway: does the program read ANTHROPIC_BASE_URL or OPENAI_BASE_URL?"


def lines_to_add(plan: "LaunchPlan", agent: "Agent") -> Iterator[str]:
    is_command = plan.lines.startswith(f"{agent.command} ")
    action = "Run this once" if is_command else "Add these lines to it"
    yield f"{agent.title} reads the address of the gateway only from {plan.lines_file}. {action}:"
    yield ""
    yield from (f"    {line}" for line in plan.lines.splitlines())
    yield ""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def to_json_line(value: dict[str, object]) -> str:
    return json.dumps(value)


def run_in_foreground(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program until it ends, and return its exit code; 128 and the number of the signal that ended it.

    It stays in the process group of this process, so that Ctrl-C, Ctrl-Z and `fg` work.

    Raises:
        CannotStart: there is no such program, or it cannot be executed.
    """
    with _saved_terminal(), _handled_signals() as target:
        try:
            process = subprocess.Popen(list(arguments), env=dict(environment))
        except OSError as error:
            raise CannotStart(arguments[0], error.strerror or str(error)) from None
        target.append(process.pid)
        return _wait(process)


def _wait(process: "subprocess.Popen[bytes]") -> int:
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            # The agent has stopped itself: stop too, so that the shell takes over, until `fg` continues both.
            if sys.stdin is not None and sys.stdin.isatty():
                os.kill(os.getpid(), signal.SIGSTOP)
            continue
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code
        return _SIGNAL_CODE - code if code < 0 else code


@contextmanager
def _handled_signals() -> Iterator[list[int]]:
    """Forward signals to the agent, unless a terminal sends them to both; yields a list for its process id."""
    target: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        for pid in target:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def forward_without_terminal(number: int, frame: FrameType | None) -> None:
        if not _is_in_foreground():
            forward(number, frame)

    previous: dict[int, Any] = {number: signal.signal(number, forward) for number in _FORWARDED}
    previous |= {number: signal.signal(number, forward_without_terminal) for number in _OF_TERMINAL}
    try:
        yield target
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Return whether the terminal sends its signals to this process and the agent."""
    try:
        with Path("/dev/tty").open("rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextmanager
def _saved_terminal() -> Iterator[None]:
    """An agent that is killed leaves the terminal in raw mode."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    attributes = termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        # In the background this would stop the process.
        if os.tcgetpgrp(descriptor) == os.getpgrp():
            termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)
