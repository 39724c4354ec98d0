"""`foveate replay`: compute what recorded sessions would have cost under each policy."""

import os
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import SOME_FAILED, report_errors
from foveate.cli.shared.options import MODEL_METAVAR, ConfigFile, find_config_file
from foveate.cli.shared.tables import show_byte_progress
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.engine.options import AgentOptions
    from foveate.replay.outcomes import Policy
    from foveate.replay.recording import RecordingSource
    from foveate.replay.recording_files import FoundFiles, SessionFiles
    from foveate.replay.report import ReplayReport
    from foveate.replay.run import ReplayOptions


STANDARD_INPUT = "-"
_STANDARD_INPUT_NAME = "standard-input"
_MAX_LISTED = 5


@contextmanager
def copy_streams_to_files(files: list[str]) -> Iterator[list[str]]:
    """Copy standard input and pipes to temporary files, since recordings are read twice.

    Yields the names of all files; the copies are deleted at the end of the block.

    Raises:
        UnreadableInput: a stream cannot be read or copied.
    """
    streams = [name for name in dict.fromkeys(files) if name == STANDARD_INPUT or _is_pipe(name)]
    if not streams:
        yield files
        return
    with tempfile.TemporaryDirectory(prefix="foveate-") as folder:
        copies = {name: _copy_to_file(name, Path(folder, str(number))) for number, name in enumerate(streams)}
        try:
            yield [copies.get(name, name) for name in files]
        except UnreadableInput as error:  # report the given names: the copies are gone by now
            source, reason = error.source, error.reason
            for name, path in copies.items():
                source, reason = (text.replace(path, _display_name(name)) for text in (source, reason))
            raise UnreadableInput(source, reason) from None


def _is_pipe(name: str) -> bool:
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError):
        return False  # opening it reports the error
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def _copy_to_file(name: str, folder: Path) -> str:
    path = folder / (_STANDARD_INPUT_NAME if name == STANDARD_INPUT else Path(name).name)
    try:
        folder.mkdir()
        with _open_stream(name) as stream, path.open("wb") as file:
            shutil.copyfileobj(stream, file)
    except OSError as error:
        raise UnreadableInput(_display_name(name), error.strerror or "cannot be read") from None
    return str(path)


def _display_name(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else name


@contextmanager
def _open_stream(name: str) -> Iterator[IO[bytes]]:
    if name != STANDARD_INPUT:
        with Path(name).open("rb") as file:
            yield file
    elif sys.stdin is None:
        raise UnreadableInput("standard input", "is closed")
    else:
        yield sys.stdin.buffer


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Recordings: session logs of Claude Code, Codex, pi, Gemini CLI, Qwen Code and opencode, "
            "LLM logs of OpenHands, trajectories of SWE-agent, results of tau-bench, lists of messages, logs "
            "of request bodies, or a Foveate store. Give files, folders or archives (.tar, .tar.gz, .zip), or "
            "- for standard input.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            metavar="POLICY,...",
            help="Policies to compare, separated by commas, or all: recorded (requests as sent), gateway (with "
            "this configuration), gateway-compaction (also with compaction), gateway-cost (also compacts and "
            "clears when that pays), none (no cache), markers (fixed "
            "breakpoints, 5-minute TTL), markers-1h (the same, 1-hour TTL), adaptive (Foveate's "
            "breakpoints instead of the client's), fold (the same, with compaction).",
        ),
    ] = "all",
    config: ConfigFile = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar=MODEL_METAVAR,
            help="Compute the cost as if all calls used this model. Default: the recorded models.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            metavar="TOKENS",
            help="Context window in tokens. Default: the window of each model.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the name of the option
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="Format of the files: claude-code, codex, pi, gemini-cli, qwen-code, opencode, openhands, "
            "swe-agent, tau-bench, messages, requests or store. Default: detected from their content.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Write a chart of the context size and cost of each call to this file (.png, .svg or .html).",
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Also show a table for each session.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Compare the cost of recorded sessions under different caching and compaction policies.

    Example: foveate replay ~/.claude/projects --policy recorded,gateway,gateway-compaction
    """
    with report_errors(as_json=json):
        from foveate.replay.outcomes import parse_policies

        policies = parse_policies(policy)
        if window is not None and window <= 0:
            raise BadOption(f"--window takes a number of tokens, 1 or more, not {window}")
        if model is not None and not model.strip():
            raise BadOption("--model takes the name of a model, not an empty text")
        if plot is not None:
            from foveate.replay.plot import check_plot

            check_plot(plot)
        from foveate.replay.outcomes import Policy
        from foveate.replay.run import ReplayOptions

        file = find_config_file(config)
        options = ReplayOptions(
            # The recorded policy is the baseline of all others, even if it is not shown.
            policies=tuple(
                each_policy
                for each_policy in Policy
                if each_policy in policies or each_policy is Policy.RECORDED
            ),
            model=model,
            window_tokens=window,
            with_points=plot is not None,
            gateway=_gateway_options(file),
        )
        with copy_streams_to_files(files) as paths:
            report = _replay_files(paths, options, _parse_source(format), policies)
        report = replace(report, gateway=options.gateway, configuration=str(file or ""))
        if plot is not None:
            from foveate.replay.plot import write_plot

            write_plot(report, plot)
            console.print_note(f"wrote the chart to {plot}")
        _print_report(report, as_json=json, each=each)
        if not json:
            _print_notes(report)
        if report.unread:
            raise typer.Exit(SOME_FAILED)


def _gateway_options(file: Path | None) -> "AgentOptions":
    """Read the options that a configuration sets for all agents.

    Raises:
        InputError: the configuration cannot be read.
    """
    from foveate.engine.options import AgentOptions

    if file is None:
        return AgentOptions()
    from foveate.config.load import load_settings
    from foveate.engine.from_settings import options_by_agent

    return options_by_agent(load_settings(file), os.environ)("")


def _parse_source(name: str | None) -> "RecordingSource | None":
    from foveate.replay.recording import RecordingSource

    if name is None:
        return None
    if name not in tuple(RecordingSource):
        raise BadOption(f"--format takes {', '.join(RecordingSource)}, not {name!r}")
    return RecordingSource(name)


def _replay_files(
    files: list[str], options: "ReplayOptions", source: "RecordingSource | None", policies: "tuple[Policy, ...]"
) -> "ReplayReport":
    """Replay all sessions in the files.

    Raises:
        UnreadableInput: there is nothing to replay.
    """
    from foveate.replay.recording_files import find_files, unpack_archives

    with unpack_archives(find_files(files)) as found_files:
        return _replay_found(found_files, files, options, source, policies)


def _replay_found(
    found_files: "FoundFiles",
    files: list[str],
    options: "ReplayOptions",
    source: "RecordingSource | None",
    policies: "tuple[Policy, ...]",
) -> "ReplayReport":
    from foveate.replay.recording_files import group_sessions
    from foveate.replay.report import build_report
    from foveate.replay.run import replay_sessions, session_size_bytes

    read, broken = group_sessions(found_files.files, source=source)
    # Other files in a folder are not recordings, which is not an error.
    unrecognized = [
        session for session in read if session.source is None and found_files.explicit.isdisjoint(session.files)
    ]
    read = [session for session in read if session not in unrecognized]
    with show_byte_progress("replaying", sum(map(session_size_bytes, read))) as report_progress:
        outcomes = list(replay_sessions(read, options, on_progress=report_progress))
    unread = [*found_files.rejected, *((line.file, line.reason) for line in broken)]
    report = build_report(outcomes, policies, unread, options.model).rename_files(found_files.replace_paths)
    if not report.sessions:
        raise UnreadableInput(", ".join(files), _nothing_replayed_reason(report, files, source))
    for line in _skipped_lines(unrecognized):
        console.print_note(line)
    if found_files.skipped:
        more = (
            f" and {len(found_files.skipped) - _MAX_LISTED:,} more"
            if len(found_files.skipped) > _MAX_LISTED
            else ""
        )
        console.print_note(
            f"skipped these files in archives: {', '.join(found_files.skipped[:_MAX_LISTED])}{more}"
        )
    for path, reason in found_files.ignored[:_MAX_LISTED]:
        console.print_note(f"{path}: skipped: {reason}")
    return report


def _skipped_lines(skipped: "list[SessionFiles]") -> list[str]:
    counts = Counter(session.unsupported for session in skipped)
    unknown = counts.pop("", 0)
    lines = [
        f"skipped {_count_files(count)} in a format that is not supported: {name}"
        for name, count in counts.items()
    ]
    if unknown:
        lines.append(f"skipped {_count_files(unknown)}: not recordings")
    return lines


def _count_files(count: int) -> str:
    return f"{count:,} file{'s' * (count != 1)}"


def _nothing_replayed_reason(report: "ReplayReport", files: list[str], source: "RecordingSource | None") -> str:
    if report.unpriced:
        models = [model for model in report.unpriced if model]
        if not models:
            return "no call names its model: set it with --model"
        return f"no price is known for {', '.join(models)}: use --model to compute the calls for another model"
    if report.unread:
        file_prefix = f"{Path(files[0]).expanduser()}: " if len(files) == 1 else ""  # already in the message
        return "; ".join(dict.fromkeys(reason.removeprefix(file_prefix) for _, reason in report.unread))
    if report.unreadable:
        first = report.unreadable[0]
        return f"contains no readable model call; line {first.line} {first.reason}"
    if source is not None:
        return f"contains no model call in the format {source}: leave out --format to detect the format"
    return "contains no model call"


def _print_report(report: "ReplayReport", *, as_json: bool, each: bool) -> None:
    from foveate.cli.replay.output import ReplayFormatter, report_object

    if as_json:
        console.print_object(report_object(report))
    else:
        console.print_lines(ReplayFormatter(console.display_for(sys.stdout)).lines(report, each=each))


def _print_notes(report: "ReplayReport") -> None:
    """Print what could not be read or priced: the first few of each, and how many there are."""
    for model, calls in report.unpriced.items():
        problem = f"no price is known for {model}" if model else "they do not name their model"
        console.print_note(
            f"left out {calls:,} call{'s' * (calls != 1)}: {problem}; "
            "use --model to compute them for another model"
        )
    for path, reason in report.unread[:_MAX_LISTED]:
        console.print_note(reason if path in reason else f"{path}: {reason}")
    if len(report.unread) > _MAX_LISTED:
        console.print_note(f"… and {len(report.unread) - _MAX_LISTED:,} more files could not be read")
    broken = report.unreadable
    for line in broken[:_MAX_LISTED]:
        console.print_note(
            f"{line.file}:{line.line}: {line.reason}" if line.line else f"{line.file}: {line.reason}"
        )
    if len(broken) > _MAX_LISTED:
        console.print_note(f"… and {len(broken) - _MAX_LISTED:,} more lines could not be read")
