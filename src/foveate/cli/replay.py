"""`foveate replay`: compute what recorded sessions would have cost under each policy."""

import os
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.console import Display
from foveate.cli.shared.errors import SOME_FAILED, report_errors
from foveate.cli.shared.options import MODEL_METAVAR, ConfigFile, find_config_file
from foveate.cli.shared.tables import (
    Column,
    Fit,
    format_dollar_column,
    format_short_count,
    format_table,
    shorten_middle,
    show_byte_progress,
    style_text,
    wrap_text,
)
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.engine.options import AgentOptions
    from foveate.replay.outcomes import CostCheck, EditOutcome, Outcome, Placeholders, Policy, ReplayedSession
    from foveate.replay.recording import RecordingSource, UnreadableLine
    from foveate.replay.recording_files import FoundFiles, SessionFiles
    from foveate.replay.report import Conclusion, ModelGroup, PolicySaving, ReplayReport
    from foveate.replay.run import ReplayOptions

STANDARD_INPUT = "-"
_STANDARD_INPUT_NAME = "standard-input"
_MAX_LISTED = 5
_INDENT = "  "
# Up to three sessions are shown in full; of more, the most expensive in one line each.
_MAX_DETAILED_SESSIONS = 3
_MAX_LISTED_SESSIONS = 10
_DEFAULTS, _CONFIG_NAME = "its default configuration", "foveate.yaml"
_NAME_CELLS = 40
_CENT = Decimal("0.01")
# Smaller differences between two policies do not explain a saving.
_MIN_EXPLAINED_SHARE = 0.01
# Keys in JSON that differ from the names of fields.
_CHECK_KEYS = {"lower_read_calls": "changed", "higher_read_calls": "kept", "reported": "said"}
_OUTCOME_COLUMNS = (
    Column(heading="policy"),
    Column(heading="cost", align="right"),
    Column(heading="saved", align="right", optional=True),
    Column(align="right", optional=True, drop_order=6),
    Column(heading="hits", align="right", drop_order=7),
    Column(heading="uncached", align="right", optional=True, drop_order=3),
    Column(heading="read", align="right", optional=True, drop_order=4),
    Column(heading="written", align="right", optional=True, drop_order=5),
    Column(heading="largest", align="right", optional=True, drop_order=1),
    Column(heading="overflows", align="right", optional=True, drop_order=8),
    Column(heading="compactions", align="right", optional=True, drop_order=2),
)
_BEST_COLUMNS = (
    Column(heading="recorded", align="right"),
    Column(heading="best", align="right"),
    Column(heading="policy", drop_order=3),
    Column(heading="saved", align="right"),
)


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
    from foveate.engine.options_from_settings import options_by_agent

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
    if as_json:
        console.print_object(report_object(report))
    else:
        console.print_lines(ReplayFormatter(console.display_for(sys.stdout)).lines(report, each=each))


def _print_notes(report: "ReplayReport") -> None:
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


class ReplayFormatter:
    """Formats reports for people. Lines fit the width even in a pipe: JSON has every number."""

    def __init__(self, display: Display) -> None:
        self._display = replace(display, is_terminal=True)

    def lines(self, report: "ReplayReport", *, each: bool = False) -> Iterator[str]:
        sessions = report.sessions
        if each or len(sessions) <= _MAX_DETAILED_SESSIONS:
            for session in sessions:
                yield from self._session_lines(session, report.policies)
                yield ""
        if len(sessions) > 1:
            calls = f"all {len(sessions):,} sessions, {report.calls:,} calls"
            yield style_text(calls, "bold", self._display)
            yield from self._outcome_table(report.total, report.policies)
            yield from self._edit_lines(report.total, report.policies)
            yield from self._check_lines(report.check)
            yield ""
        if len(sessions) > _MAX_DETAILED_SESSIONS:
            yield from self._model_table(report)
            if not each:
                yield from self._session_table(report)
        yield from self._wrap(f"{policy}: {policy.meaning}" for policy in report.policies)
        yield ""
        if caveats := _caveats(report):
            yield from self._wrap(caveats)
            yield ""
        yield from self._conclusion_lines(report)

    def _conclusion_lines(self, report: "ReplayReport") -> Iterator[str]:
        conclusion = report.conclusion
        if conclusion is None:
            return
        file = Path(report.configuration).name
        sessions, pronoun = ("this session", "it") if len(report.sessions) == 1 else ("these sessions", "they")
        yield from self._saving_lines(
            f"Through the gateway with {file or _DEFAULTS}, {sessions} would have cost",
            conclusion.configured,
            report,
        )
        suggestion = conclusion.suggestion
        if suggestion is None:
            return
        changes = " and ".join(suggestion.changes)
        yield from self._saving_lines(f"With {changes}, {pronoun} would have cost", suggestion.saving, report)
        yield self._display.escape(f"To apply this, add to {file or _CONFIG_NAME}:")
        yield ""
        yield from (_INDENT + line for line in suggestion.yaml.splitlines())

    def _saving_lines(self, opening: str, saving: "PolicySaving", report: "ReplayReport") -> Iterator[str]:
        text = f"{opening} {_describe_difference(saving)}."
        yield from wrap_text(text, self._display, style="bold")
        if saving.dollars > 0 and (why := _explain_saving(report.total, saving.policy)):
            yield from wrap_text(why, self._display)

    def _session_lines(self, session: "ReplayedSession", policies: "Sequence[Policy]") -> Iterator[str]:
        from foveate.replay.report import has_recorded_cost

        calls = f"{session.calls:,} call{'s' * (session.calls != 1)}"
        name = shorten_middle(session.name or '""', _NAME_CELLS, self._display)
        heading = ", ".join(filter(None, (name, _format_day(session.began_at), calls, *session.models)))
        yield from wrap_text(heading, self._display, style="bold")
        yield from self._outcome_table(session.outcomes, policies)
        yield from self._edit_lines(session.outcomes, policies)
        yield from self._check_lines(session.check if has_recorded_cost(session.check) else None)

    def _outcome_table(
        self, outcomes: "Mapping[Policy, Outcome]", policies: "Sequence[Policy]"
    ) -> Iterator[str]:
        from foveate.replay.outcomes import Policy

        recorded = outcomes.get(Policy.RECORDED)
        shown = [outcomes[policy] for policy in policies]
        savings = [_saving(outcome, recorded) for outcome in shown]
        costs = format_dollar_column([outcome.dollars for outcome in shown])
        saved = format_dollar_column(
            [None if saving is None else saving.dollars for saving in savings], unknown=""
        )
        rows = [
            _outcome_cells(outcome, cost, saved_text, _format_share(saving))
            for outcome, cost, saved_text, saving in zip(shown, costs, saved, savings, strict=True)
        ]
        yield from format_table(_OUTCOME_COLUMNS, rows, self._display)

    def _edit_lines(self, outcomes: "Mapping[Policy, Outcome]", policies: "Sequence[Policy]") -> Iterator[str]:
        for policy in policies:
            edits = [edit for edit in outcomes[policy].edits if edit.decision is not None]
            if not edits:
                continue
            expected = sum(edit.decision.net_dollars for edit in edits if edit.decision is not None)
            saved = sum((edit.saved_dollars for edit in edits), Decimal(0))
            yield from self._wrap(
                [
                    f"{policy}: {len(edits):,} edit{'s' * (len(edits) != 1)} of the history, expected to save "
                    f"{_format_dollars(Decimal(expected))} after all costs; {'lost' if saved < 0 else 'saved'} "
                    f"{_format_dollars(abs(saved))}, summaries included"
                ]
            )

    def _check_lines(self, check: "CostCheck | None") -> Iterator[str]:
        if check is None or check.relative_error is None:
            if check is not None and check.reported is not None:
                text = (
                    f"check: the recording reports a cost of {_format_dollars(check.reported)}, but not for "
                    "which model"
                )
                yield from self._wrap([text])
            return
        source = (
            f"the recorded usage of {check.calls:,} call{'s' * (check.calls != 1)}"
            if check.calls
            else "the recorded total"
        )
        line = (
            f"check: {_format_dollars(check.logged)} by {source}, {_format_dollars(check.simulated)} simulated "
            f"(error {check.relative_error:+.2%})"
        )
        if check.reported is not None and check.calls:
            line += f"; the recording itself reports {_format_dollars(check.reported)}"
        lines = [line]
        lower, higher = check.lower_read_calls, check.higher_read_calls
        if lower or higher:
            lines.append(
                f"{lower:,} call{'s' * (lower != 1)} read less from the cache than the recording explains, "
                f"{higher:,} read more: every policy uses the recorded value for them. Without it, the error "
                f"would be {check.expected_error:+.1%}."
            )
        yield from self._wrap(lines)

    def _model_table(self, report: "ReplayReport") -> Iterator[str]:
        groups = report.by_model
        if len(groups) < 2:
            return
        columns = (
            Column(heading="model", fit=Fit.SHORTEN),
            Column(heading="sessions", align="right", drop_order=1),
            Column(heading="calls", align="right", drop_order=2),
            *_BEST_COLUMNS,
        )
        best_cells = _best_policy_cells([group.outcomes for group in groups], report)
        rows = [
            (group.model, f"{group.sessions:,}", f"{group.calls:,}", *cells)
            for group, cells in zip(groups, best_cells, strict=True)
        ]
        yield from format_table(columns, rows, self._display)
        yield ""

    def _session_table(self, report: "ReplayReport") -> Iterator[str]:
        sessions = report.most_expensive(_MAX_LISTED_SESSIONS)
        is_shortened = len(report.sessions) > _MAX_LISTED_SESSIONS
        columns = (
            Column(heading="most expensive" if is_shortened else "session", fit=Fit.SHORTEN),
            Column(heading="date", optional=True, drop_order=1),
            Column(heading="calls", align="right", drop_order=2),
            *_BEST_COLUMNS,
        )
        best_cells = _best_policy_cells([session.outcomes for session in sessions], report)
        rows = [
            (session.name or '""', _format_day(session.began_at), f"{session.calls:,}", *cells)
            for session, cells in zip(sessions, best_cells, strict=True)
        ]
        yield from format_table(columns, rows, self._display)
        yield ""

    def _wrap(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            yield from wrap_text(line, self._display, style="dim")


def _saving(outcome: "Outcome", recorded: "Outcome | None") -> "PolicySaving | None":
    # No client sends without a cache, so the extra cost of that policy is not a loss.
    from foveate.replay.outcomes import Policy
    from foveate.replay.report import compare_to_recorded

    is_compared = outcome.policy not in (Policy.RECORDED, Policy.NONE)
    return compare_to_recorded(outcome, recorded) if is_compared else None


def _outcome_cells(outcome: "Outcome", cost: str, saved: str, share: str) -> tuple[str, ...]:
    return (
        str(outcome.policy),
        cost,
        saved,
        share,
        f"{outcome.hit_ratio:.0%}" if outcome.hit_ratio is not None else "",
        format_short_count(outcome.uncached),
        format_short_count(outcome.read),
        format_short_count(outcome.written_5m + outcome.written_1h),
        format_short_count(outcome.largest_context),
        f"{outcome.overflows:,}",
        f"{outcome.folds:,}",
    )


def _best_policy_cells(
    outcomes: "Sequence[Mapping[Policy, Outcome]]", report: "ReplayReport"
) -> list[tuple[str, str, str, str]]:
    """Return the recorded cost, the lowest cost, its policy, and the saving, for each group of outcomes."""
    from foveate.replay.outcomes import Policy
    from foveate.replay.report import compare_to_recorded

    recorded = [group[Policy.RECORDED] for group in outcomes]
    best = [_find_best(group, report) for group in outcomes]
    recorded_costs = format_dollar_column([outcome.dollars for outcome in recorded])
    best_costs = format_dollar_column(
        [None if outcome is None else outcome.dollars for outcome in best], unknown=""
    )
    return [
        (cost, best_cost, "", "")
        if outcome is None
        else (cost, best_cost, str(outcome.policy), _format_share(compare_to_recorded(outcome, baseline)))
        for cost, best_cost, outcome, baseline in zip(recorded_costs, best_costs, best, recorded, strict=True)
    ]


def _find_best(outcomes: "Mapping[Policy, Outcome]", report: "ReplayReport") -> "Outcome | None":
    """Return the outcome with the lowest cost; None if no price is known.

    Consider only policies that the gateway can apply, unless others alone were requested.
    """
    from foveate.replay.outcomes import Policy
    from foveate.replay.report import find_reachable_policies

    reachable = find_reachable_policies(report.gateway)
    policies = [policy for policy in report.policies if policy in reachable]
    if set(policies) <= {Policy.RECORDED}:  # only other policies were requested
        policies = list(report.policies)
    if outcomes[Policy.RECORDED].dollars is None:
        return None
    priced = [
        (dollars, number, policy)
        for number, policy in enumerate(policies)
        if (dollars := outcomes[policy].dollars) is not None
    ]
    return outcomes[min(priced)[2]] if priced else None


def _explain_saving(outcomes: "Mapping[Policy, Outcome]", policy: "Policy") -> str:
    """Explain by tokens why a policy costs less than the recorded calls; empty if they do not show it."""
    from foveate.replay.outcomes import Policy

    outcome, recorded = outcomes[policy], outcomes[Policy.RECORDED]
    reasons = []
    if outcome.hit_ratio is not None and recorded.hit_ratio is not None:
        if outcome.hit_ratio - recorded.hit_ratio >= _MIN_EXPLAINED_SHARE:
            reasons.append(
                f"{outcome.hit_ratio:.0%} of the input tokens are read from the cache instead of "
                f"{recorded.hit_ratio:.0%}"
            )
        if recorded.input_tokens - outcome.input_tokens >= _MIN_EXPLAINED_SHARE * recorded.input_tokens:
            compactions = f"{outcome.folds:,} compaction{'s' * (outcome.folds != 1)}"
            before, after = map(format_short_count, (recorded.input_tokens, outcome.input_tokens))
            reduce = f"reduce{'s' * (outcome.folds == 1)}"
            reasons.append(f"{compactions} {reduce} the input from {before} to {after} tokens")
    return f"Reason: {', and '.join(reasons)}." if reasons else ""


def _describe_difference(saving: "PolicySaving") -> str:
    percent = round(100 * abs(saving.share)) if saving.share is not None else 0
    if not saving.dollars or (not percent and abs(saving.dollars) < _CENT):
        return "the same"
    return f"{_format_dollars(abs(saving.dollars))} ({percent}%) {'less' if saving.dollars > 0 else 'more'}"


def _format_share(saving: "PolicySaving | None") -> str:
    """Format the saved share in whole percent, without a negative zero."""
    return "" if saving is None or saving.share is None else f"{round(100 * saving.share) or 0}%"


def _caveats(report: "ReplayReport") -> list[str]:
    from foveate.replay.recording import MissingPart

    sessions = report.sessions
    caveats = []
    if report.model is not None:
        caveats.append(
            f"All calls are computed for {report.model}: with its prices and cache rules, and with message "
            "sizes scaled by its offline token counter."
        )
    hidden = [
        session
        for session in sessions
        if MissingPart.SYSTEM in session.missing or MissingPart.TOOLS in session.missing
    ]
    hidden_tokens_charged = [session.hidden_tokens for session in hidden if session.check.calls]
    if hidden_tokens_charged:
        caveats.append(
            "The recording does not contain the system prompt and the tools. Their size is taken from the "
            f"usage of the first call ({_format_max(hidden_tokens_charged)} tokens)."
        )
    uncharged = [session for session in hidden if not session.check.calls]
    hidden_tokens_by_run = [session.hidden_tokens for session in uncharged if session.hidden_tokens]
    if hidden_tokens_by_run:
        caveats.append(
            "The recording does not contain the tools. Their size is computed from the reported cost of the "
            f"run ({_format_max(hidden_tokens_by_run)} tokens)."
        )
    if len(hidden_tokens_by_run) < len(uncharged):
        caveats.append(
            "The recording contains neither the system prompt and the tools nor usage. They are missing in all "
            "numbers."
        )
    if any(MissingPart.USAGE in session.missing for session in sessions):
        caveats.append(
            "Calls without recorded usage are counted offline, which is an estimate. Cache breakpoints are "
            "assumed if the session shows any."
        )
    if any(MissingPart.TIME in session.missing for session in sessions):
        caveats.append(
            "Calls without a recorded time are assumed to follow each other at once, so that no cache entry "
            "expires."
        )
    if any(MissingPart.TIER_PRICE in session.missing for session in sessions):
        caveats.append(
            "Calls of a service tier with an unknown price (priority, flex, fast) have the standard price."
        )
    placeholders = report.placeholders
    if placeholders.calls:
        caveats.append(
            f"The log has only placeholders for the output tokens of {placeholders.calls:,} responses. By "
            f"their text, {placeholders.tokens:,} output tokens ({_format_dollars(placeholders.dollars)}) "
            "are missing in every row."
        )
    with_agents = [session for session in sessions if session.sub_agents]
    if with_agents:
        agents, count = sum(session.sub_agents for session in with_agents), len(with_agents)
        caveats.append(
            f"The calls of {agents:,} sub-agent{'s' * (agents != 1)} are included in the "
            f"{f'{count:,} sessions' if count != 1 else 'session'} that started them."
        )
    if report.repeated:
        caveats.append(f"{report.repeated:,} calls occur in two files and are counted once.")
    return caveats


def _format_max(tokens: Sequence[int]) -> str:
    return f"{'up to ' * (len(tokens) > 1)}{max(tokens):,}"


def _format_dollars(dollars: Decimal) -> str:
    """Format dollars to the cent, or with four decimals below one dollar."""
    from foveate.cost.money import format_dollars

    digits = Decimal("0.01") if abs(dollars) >= 1 else Decimal("0.0001")
    return format_dollars(dollars.quantize(digits))


def _format_day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" if at else ""


def report_object(report: "ReplayReport") -> dict[str, object]:
    """Return a report as JSON: money as strings, null if unknown."""
    check = report.check
    return {
        "policies": list(report.policies),
        "meanings": {policy: policy.meaning for policy in report.policies},
        "configuration": report.configuration or None,
        "conclusion": _conclusion_object(report.conclusion),
        "model": report.model,
        "sessions": [_session_object(session, report.policies) for session in report.sessions],
        "by_model": [_group_object(group, report.policies) for group in report.by_model],
        "total": _outcomes_object(report.total, report.policies),
        "check": _check_object(check) if check is not None else None,
        "placeholders": _placeholders_object(report.placeholders),
        "repeated_calls": report.repeated,
        "unpriced_calls": report.unpriced,
        "unread": [{"files": files, "why": reason} for files, reason in report.unread],
        "broken": [_broken_object(line) for line in report.unreadable],
    }


def _session_object(session: "ReplayedSession", policies: "Sequence[Policy]") -> dict[str, object]:
    from foveate.replay.report import has_recorded_cost

    return {
        "name": session.name,
        "source": session.source,
        "began_at": session.began_at,
        "calls": session.calls,
        "models": dict(session.models),
        "outcomes": _outcomes_object(session.outcomes, policies, with_edits=True),
        "check": _check_object(session.check) if has_recorded_cost(session.check) else None,
        "placeholders": _placeholders_object(session.placeholders),
        "lacks": sorted(session.missing),
        "hidden_tokens": session.hidden_tokens,
        "sub_agents": session.sub_agents,
        "unpriced_calls": dict(session.unpriced),
        "broken": [_broken_object(line) for line in session.unreadable],
        "size_bytes": session.size_bytes,
    }


def _group_object(group: "ModelGroup", policies: "Sequence[Policy]") -> dict[str, object]:
    return {
        "model": group.model,
        "sessions": group.sessions,
        "calls": group.calls,
        "outcomes": _outcomes_object(group.outcomes, policies),
    }


def _outcomes_object(
    outcomes: "Mapping[Policy, Outcome]", policies: "Sequence[Policy]", *, with_edits: bool = False
) -> list[dict[str, object]]:
    from foveate.replay.outcomes import Policy
    from foveate.replay.report import compare_to_recorded

    recorded = outcomes.get(Policy.RECORDED)
    objects = []
    for policy in policies:
        outcome = outcomes[policy]
        saving = compare_to_recorded(outcome, recorded)
        fields = {name: _to_json(value) for name, value in asdict(replace(outcome, edits=())).items()}
        del fields["edits"]
        if with_edits:
            fields["edits"] = [_edit_object(edit) for edit in outcome.edits]
        objects.append(
            fields
            | {
                "input_tokens": outcome.input_tokens,
                "hit_ratio": outcome.hit_ratio,
                "saved_dollars": _to_json(saving.dollars) if saving is not None else None,
                "saved_share": saving.share if saving is not None else None,
            }
        )
    return objects


def _edit_object(edit: "EditOutcome") -> dict[str, object]:
    decision = edit.decision
    return {
        "request": edit.request,
        "moment": edit.moment,
        "kind": "compaction" if edit.is_compaction else "clearing",
        "freed_tokens": edit.freed_tokens,
        "expected_gain_dollars": decision.gain_dollars if decision is not None else None,
        "expected_cost_dollars": decision.cost_dollars if decision is not None else None,
        "expected_requests": decision.expected_requests if decision is not None else None,
        "saved_dollars": _to_json(edit.saved_dollars),
        "later_requests": edit.later_requests,
    }


def _check_object(check: "CostCheck") -> dict[str, object]:
    fields = {_CHECK_KEYS.get(name, name): _to_json(value) for name, value in asdict(check).items()}
    return fields | {"off": check.relative_error, "expected_off": check.expected_error}


def _placeholders_object(placeholders: "Placeholders") -> dict[str, object]:
    return {name: _to_json(value) for name, value in asdict(placeholders).items()}


def _broken_object(line: "UnreadableLine") -> dict[str, object]:
    return {"file": line.file, "line": line.line, "why": line.reason}


def _to_json(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value


def _conclusion_object(conclusion: "Conclusion | None") -> dict[str, object] | None:
    if conclusion is None:
        return None
    suggestion = conclusion.suggestion
    return {
        **_saving_object(conclusion.configured),
        "suggestion": None
        if suggestion is None
        else {
            **_saving_object(suggestion.saving),
            "changes": list(suggestion.changes),
            "yaml": suggestion.yaml,
        },
    }


def _saving_object(saving: "PolicySaving") -> dict[str, object]:
    return {
        "policy": saving.policy,
        "saved_dollars": _to_json(saving.dollars),
        "saved_share": saving.share,
    }
