"""`foveate replay`: what recorded sessions would have cost under each policy."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import SOME_FAILED, telling
from foveate.cli.replay_inputs import readable_twice
from foveate.cli.usual import ConfigFile, usual_config
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.engine.options import AgentOptions
    from foveate.replay.policies import Policy
    from foveate.replay.reading import Found, Session
    from foveate.replay.recordings import Source
    from foveate.replay.replaying import ReplayOptions
    from foveate.replay.reports import Report

# Less than this is done before a bar could be read.
_SHOWN_BYTES = 2_000_000
_MOST_TOLD = 5


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES…",
            help="Session logs of Claude Code, Codex, pi, Gemini CLI, Qwen Code and opencode; LLM logs of "
            "OpenHands; trajectories of SWE-agent, result files of tau-bench; lists of messages, logs of "
            "requests; a store of Foveate. Folders and archives (.tar, .tar.gz, .zip) are read "
            "whole, - is standard input.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            metavar="P,…",
            help="Which policies: recorded, gateway, gateway-compaction, none, markers, markers-1h, adaptive, "
            "fold; or all.",
        ),
    ] = "all",
    config: ConfigFile = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="M", help="What another model would have cost, for all calls."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", metavar="N", help="A context window of so many tokens; default: the model's."),
    ] = None,
    format: Annotated[  # noqa: A002 - the option is called so
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="F",
            help="Who wrote the files, if that is not recognised: claude-code, codex, pi, gemini-cli, "
            "qwen-code, opencode, openhands, swe-agent, tau-bench, messages, requests, store.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw the context over time there, as .png, .svg or .html."
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Show every session, however many there are.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")] = False,
) -> None:
    """Show what recorded sessions would have cost under each policy, beside what was billed for them.

    Example: foveate replay ~/.claude/projects --policy recorded,gateway,gateway-compaction
    """
    with telling(as_json=json):
        from foveate.replay.policies import policies_of

        policies = policies_of(policy)
        if window is not None and window <= 0:
            raise BadOption(f"--window is a number of tokens, more than 0, not {window}")
        if model is not None and not model.strip():
            raise BadOption("--model needs the name of a model")
        if plot is not None:
            from foveate.replay.plotting import check_plot

            check_plot(plot)
        from foveate.replay.policies import Policy
        from foveate.replay.replaying import ReplayOptions

        file = usual_config(config)
        options = ReplayOptions(
            # What the client did is what the others are held against, also where it is not shown.
            policies=tuple(one for one in Policy if one in policies or one is Policy.RECORDED),
            model=model,
            window_tokens=window,
            with_points=plot is not None,
            gateway=_gateway_options(file),
        )
        with readable_twice(files) as there:
            report = _replayed(there, options, _source(format), policies)
        report = replace(report, gateway=options.gateway, configuration=str(file or ""))
        if plot is not None:
            from foveate.replay.plotting import write_plot

            write_plot(report, plot)
            screen.print_note(f"the picture is in {plot}")
        _print(report, as_json=json, each=each)
        if not json:
            _print_notes(report)
        if report.unread:
            raise typer.Exit(SOME_FAILED)


def _gateway_options(file: Path | None) -> "AgentOptions":
    """Read the options that all agents have in a configuration.

    Raises:
        InputError: the configuration cannot be read.
    """
    from foveate.engine.options import AgentOptions

    if file is None:
        return AgentOptions()
    from foveate.config.loading import load_settings
    from foveate.engine.configured import options_by_agent

    return options_by_agent(load_settings(file), os.environ)("")


def _source(said: str | None) -> "Source | None":
    from foveate.replay.recordings import Source

    if said is None:
        return None
    if said not in tuple(Source):
        raise BadOption(f"no format is called {said!r}; there are {', '.join(Source)}")
    return Source(said)


def _replayed(
    files: list[str], options: "ReplayOptions", source: "Source | None", policies: "tuple[Policy, ...]"
) -> "Report":
    """All that the files hold, replayed.

    Raises:
        UnreadableInput: nothing in them can be.
    """
    from foveate.replay.archives import opened_archives
    from foveate.replay.reading import found

    with opened_archives(found(files)) as there:
        return _replayed_found(there, files, options, source, policies)


def _replayed_found(
    there: "Found",
    files: list[str],
    options: "ReplayOptions",
    source: "Source | None",
    policies: "tuple[Policy, ...]",
) -> "Report":
    from foveate.replay.processes import replay_sessions, size_bytes
    from foveate.replay.reading import sessions
    from foveate.replay.reports import report_of

    read, broken = sessions(there.files, source=source)
    # What lies beside the recordings in a folder is no recording, and no fault.
    strange = [session for session in read if session.source is None and there.named.isdisjoint(session.files)]
    read = [session for session in read if session not in strange]
    with _progress(sum(map(size_bytes, read))) as told:
        done = list(replay_sessions(read, options, told=told))
    unread = [*there.refused, *((line.file, line.why) for line in broken)]
    report = report_of(done, policies, unread, options.model).named(there.named_to_people)
    if not report.sessions:
        raise UnreadableInput(", ".join(files), _why_nothing(report, files, source))
    for line in _skipped_lines(strange):
        screen.print_note(line)
    if there.skipped:
        more = f" and {len(there.skipped) - _MOST_TOLD:,} more" if len(there.skipped) > _MOST_TOLD else ""
        screen.print_note(f"skipped in archives: {', '.join(there.skipped[:_MOST_TOLD])}{more}")
    for path, why in there.passed_over[:_MOST_TOLD]:
        screen.print_note(f"{path}: {why}, passed over")
    return report


def _skipped_lines(skipped: "list[Session]") -> list[str]:
    """Say how many files of a folder were skipped, by format if that is known."""
    counts = Counter(session.unsupported for session in skipped)
    unknown = counts.pop("", 0)
    lines = [f"{_files(count)} skipped: {name}; not supported" for name, count in counts.items()]
    if unknown:
        lines.append(f"{_files(unknown)} skipped: not recordings")
    return lines


def _files(count: int) -> str:
    return f"{count:,} file{'s' * (count != 1)}"


def _why_nothing(report: "Report", files: list[str], source: "Source | None") -> str:
    if report.unpriced:
        named = [model for model in report.unpriced if model]
        if not named:
            return "no call says its model: --model M says which it was"
        return f"nobody knows the price of {', '.join(named)}: --model M asks what another would have cost"
    if report.unread:
        alone = f"{Path(files[0]).expanduser()}: " if len(files) == 1 else ""  # it is named already
        return "; ".join(dict.fromkeys(why.removeprefix(alone) for _, why in report.unread))
    if report.broken:
        first = report.broken[0]
        return f"no call of a model could be read in it; line {first.line} {first.why}"
    if source is not None:
        return f"no call of a model is recorded in it as {source}; without --format it is recognised"
    return "no call of a model is recorded in it"


def _print(report: "Report", *, as_json: bool, each: bool) -> None:
    from foveate.cli.replay_json import report_object
    from foveate.cli.replay_lines import ReplayWriting

    if as_json:
        screen.print_object(report_object(report))
    else:
        screen.print_lines(ReplayWriting(screen.look(sys.stdout)).lines(report, each=each))


def _print_notes(report: "Report") -> None:
    """What could not be read or priced, the first few of each and how many there are."""
    for model, calls in report.unpriced.items():
        what = f"nobody knows the price of {model}" if model else "they do not say their model"
        screen.print_note(
            f"{calls:,} call{'s' * (calls != 1)} left out: {what}; --model M asks what another would have cost"
        )
    for path, why in report.unread[:_MOST_TOLD]:
        screen.print_note(why if path in why else f"{path}: {why}")
    if len(report.unread) > _MOST_TOLD:
        screen.print_note(f"… and {len(report.unread) - _MOST_TOLD:,} more files that cannot be read")
    broken = report.broken
    for line in broken[:_MOST_TOLD]:
        screen.print_note(f"{line.file}:{line.line}: {line.why}" if line.line else f"{line.file}: {line.why}")
    if len(broken) > _MOST_TOLD:
        screen.print_note(f"… and {len(broken) - _MOST_TOLD:,} more lines that cannot be read")


@contextmanager
def _progress(size_bytes: int) -> Iterator[Callable[[int], None]]:
    """What is told of bytes that are done, and shows them on a terminal."""
    if size_bytes < _SHOWN_BYTES or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("replaying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=size_bytes)

        def told(done_bytes: int) -> None:
            progress.advance(task, done_bytes)
            progress.refresh()

        progress.refresh()
        yield told
