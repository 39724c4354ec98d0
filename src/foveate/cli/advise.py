"""`foveate advise`: show what local sessions cost, where the money went, and the settings that save most."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.console import Display
from foveate.cli.shared.errors import SOME_FAILED, report_errors
from foveate.cli.shared.options import ConfigFile, find_config_file
from foveate.cli.shared.tables import Column, Fit, format_table, show_byte_progress, style_text, wrap_text
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.advice.advise import Advice, Simulation, Spend, SpendReport
    from foveate.advice.candidate_settings import CandidateResult, SettingPath, SettingValue
    from foveate.advice.cost_breakdown import ContextPart, PartCost
    from foveate.advice.session_costs import Period, SimulatedCost
    from foveate.config.settings import Settings
    from foveate.replay.recording import RecordingSource
    from foveate.replay.recording_files import FoundFiles, SessionFiles

_DEFAULT_DAYS = 30
_DAY_SECONDS = 86_400
_MAX_LISTED = 3
# A simulation takes about this many times as long as reading.
_SIMULATION_FACTOR = 2
_MAX_PARTS = 8
_MAX_CAUSES = 4
_MAX_MODELS = 3
_CENT = Decimal("0.01")
_AGENT_NAMES = {
    "claude-code": "Claude Code",
    "codex": "Codex",
    "gemini-cli": "Gemini CLI",
    "qwen-code": "Qwen Code",
    "openhands": "OpenHands",
    "swe-agent": "SWE-agent",
}


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Logs as for `foveate replay`: files, folders or archives. Default: the logs of Claude Code, "
            "Codex, Gemini CLI, Qwen Code, opencode and pi on this machine.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            metavar="DAYS",
            help="Only calls of the last DAYS days. Default: 30, or all calls if paths are given.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="AGENT",
            help="Only logs of this agent: claude-code, codex, gemini-cli, qwen-code, opencode, pi or another "
            "format of `foveate replay`. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Write the recommended settings to the configuration file, after a question. Its previous "
            "content is saved next to it.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --apply: do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Show what your agents cost, where the money went, and which settings would have saved most.

    It reads the logs on this machine and sends nothing.

    Example: foveate advise --days 7
    """
    with report_errors(as_json=json):
        from time import time

        from foveate.advice.session_costs import Period

        if days is not None and not 0 < days < float("inf"):
            raise BadOption(f"--days takes a number of days above 0, not {days:g}")
        if yes and not apply:
            raise BadOption("--yes needs --apply")
        sources = _parse_agents(agent or [])
        file = find_config_file(config)
        settings = _load_settings(file)
        now = time()
        shown_days = days if days is not None or paths else float(_DEFAULT_DAYS)
        period = Period(now - shown_days * _DAY_SECONDS if shown_days is not None else 0.0, now)
        advice = _advise(paths or [], sources, settings, period)
        _check_calls(advice, paths or [], shown_days)

        report = advice_object(advice, shown_days, str(file or ""))
        if not json:
            display = console.display_for(sys.stdout)
            console.print_lines(AdviceFormatter(display).lines(advice, shown_days, str(file or "")))
        _print_notes(advice)
        if apply:
            report["applied"] = _apply(advice, file, asks=not yes, as_json=json)
        if json:
            console.print_object(report)
        if advice.unread:
            raise typer.Exit(SOME_FAILED)


def _parse_agents(names: list[str]) -> "frozenset[RecordingSource]":
    from foveate.replay.recording import RecordingSource

    for name in names:
        if name not in tuple(RecordingSource):
            raise BadOption(f"--agent takes {', '.join(RecordingSource)}, not {name!r}")
    return frozenset(map(RecordingSource, names))


def _load_settings(file: Path | None) -> "Settings":
    """Load the settings to start from.

    Raises:
        InputError: the configuration cannot be read.
    """
    from foveate.config.load import load_settings
    from foveate.config.settings import Settings

    return Settings() if file is None else load_settings(file)


def _advise(
    paths: list[str], sources: "frozenset[RecordingSource]", settings: "Settings", period: "Period"
) -> "Advice":
    """Analyse the logs at these paths, or the local ones.

    Raises:
        UnreadableInput: there are no logs.
    """
    from foveate.advice.advise import give_advice
    from foveate.replay.recording_files import group_sessions
    from foveate.replay.run import session_size_bytes

    with _find_logs(paths, sources, period) as found:
        sessions, broken = group_sessions(found.files)
        readable = [session for session in sessions if _is_wanted(session, sources, found.explicit)]
        size_bytes = sum(map(session_size_bytes, readable))
        with show_byte_progress("analysing", size_bytes * (1 + _SIMULATION_FACTOR)) as report_progress:
            advice = give_advice(
                readable,
                settings,
                period,
                on_charging=report_progress,
                on_simulating=lambda done_bytes: report_progress(done_bytes * _SIMULATION_FACTOR),
            )
    unread = (*((line.file, line.reason) for line in broken), *found.rejected, *advice.unread)
    return replace(
        advice, unread=tuple((found.replace_paths(name), found.replace_paths(why)) for name, why in unread)
    )


def _is_wanted(
    session: "SessionFiles", sources: "frozenset[RecordingSource]", explicit: frozenset[Path]
) -> bool:
    """Other files in a folder are not recordings, which is not an error."""
    if session.source is None:
        return not sources and not explicit.isdisjoint(session.files)
    return not sources or session.source in sources


def _find_logs(
    paths: list[str], sources: "frozenset[RecordingSource]", period: "Period"
) -> "AbstractContextManager[FoundFiles]":
    from foveate.replay.recording_files import find_files, unpack_archives

    if paths:
        return unpack_archives(find_files(paths))
    return nullcontext(_find_local_files(sources, period))


def _find_local_files(sources: "frozenset[RecordingSource]", period: "Period") -> "FoundFiles":
    import os

    from foveate.replay.local_logs import find_local_logs, list_log_files, list_log_places
    from foveate.replay.recording_files import FoundFiles

    home = Path.home()
    places = [place for place in find_local_logs(os.environ, home) if not sources or place.agent in sources]
    unreadable: list[Path] = []
    files = [path for place in places for path in list_log_files(place, unreadable.append)]
    recent = [path for path in files if not _ended_before(path, period.since)]
    if not places:
        searched = ", ".join(str(place.path) for place in list_log_places(os.environ, home))
        raise UnreadableInput(
            "this machine",
            f"has no logs of coding agents; name their files: foveate advise PATH. It looked at {searched}",
        )
    return FoundFiles(
        files=tuple(recent), rejected=tuple((str(folder), "cannot be listed") for folder in unreadable)
    )


def _ended_before(path: Path, since: float) -> bool:
    """Return whether a log was last written before this time. Databases may be written without a trace."""
    try:
        return path.suffix == ".jsonl" and path.stat().st_mtime < since
    except OSError:
        return False  # reading it reports the error


def _check_calls(advice: "Advice", paths: list[str], days: float | None) -> None:
    """Raise if there is nothing to show.

    Raises:
        UnreadableInput: there are no calls, or none has a known price.
    """
    source = ", ".join(paths) or "this machine"
    if not advice.spend.total.calls:
        if advice.unread:
            name, reason = advice.unread[0]
            raise UnreadableInput(
                source, f"contains no readable call; {'' if name in paths else f'{name}: '}{reason}"
            )
        period = f" in the last {days:g} days: use --days for a longer period" if days is not None else ""
        raise UnreadableInput(source, f"contains no model call{period}")
    if advice.spend.total.unpriced_calls == advice.spend.total.calls:
        models = ", ".join(model or "calls without a model" for model in advice.spend.unpriced)
        raise UnreadableInput(
            source, f"no price is known for {models}: import prices with `foveate prices update`"
        )


def _print_notes(advice: "Advice") -> None:
    for path, reason in advice.unread[:_MAX_LISTED]:
        console.print_note(reason if path in reason else f"{path}: {reason}")
    if len(advice.unread) > _MAX_LISTED:
        console.print_note(f"… and {len(advice.unread) - _MAX_LISTED:,} more files could not be read")
    lines = advice.spend.unreadable_lines
    if lines:
        console.print_note(f"skipped {lines:,} line{'s' * (lines != 1)} that could not be read")


def _apply(advice: "Advice", file: Path | None, *, asks: bool, as_json: bool) -> dict[str, object] | None:
    """Write the recommended settings, and return the file and its backup; None if there is nothing to write.

    Raises:
        BadOption: there is nobody to ask.
        InputError: the configuration cannot be edited.
        UnwritableFile: it cannot be written.
    """
    combination = advice.simulation.combination if advice.simulation is not None else None
    if combination is None:
        console.print_note("no setting would have saved enough, so nothing was written")
        return None
    target = file or _new_config_file()
    return _write_settings(target, combination.changes, asks=asks, as_json=as_json)


def _new_config_file() -> Path:
    """The file in the data folder: commands and gateways find it from any folder."""
    import os

    from foveate.paths import data_folder, default_config_paths

    return default_config_paths(Path(), data_folder(os.environ, sys.platform))[-1]


def _write_settings(
    file: Path, changes: "dict[SettingPath, SettingValue]", *, asks: bool, as_json: bool
) -> dict[str, object] | None:
    from foveate.advice.candidate_settings import to_yaml
    from foveate.advice.edit_config import edit_config
    from foveate.config.document import MAX_SETTINGS_BYTES
    from foveate.config.files import display_path, read_bytes

    before = read_bytes(file, limit_bytes=MAX_SETTINGS_BYTES) if file.exists() else b""
    after = edit_config(before, display_path(file), changes)
    if asks:
        if as_json or not _is_interactive():
            fragment = to_yaml(changes).replace("\n", "\n  ").rstrip()
            console.print_to_stderr(f"  {fragment}")
            raise BadOption(
                f"--apply asks before it writes {display_path(file)}, which needs a terminal: add --yes, or "
                "add the lines above yourself"
            )
        console.print_lines(["", *_diff_lines(before, after, display_path(file))])
        if not typer.confirm(f"Write {console.escape_control_chars(display_path(file))}?", default=False):
            console.print_note("nothing was written")
            return None
    from foveate.advice.edit_config import write_config

    backup = write_config(file, before, after)
    if not as_json:
        saved = f"; the previous content is in {display_path(backup)}" if backup is not None else ""
        console.print_text(
            console.escape_control_chars(f"wrote {display_path(file)}{saved}. A running gateway reloads it.")
        )
    return {"file": str(file), "backup": None if backup is None else str(backup)}


def _is_interactive() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _diff_lines(before: bytes, after: bytes, name: str) -> list[str]:
    from difflib import unified_diff

    display = console.display_for(sys.stdout)
    styles = {"+": "green", "-": "red"}
    old, new = (data.decode("utf-8").splitlines() for data in (before, after))
    return [
        style_text(line.rstrip("\r\n"), styles.get(line[:1], ""), display)
        for line in unified_diff(old, new, name, name, lineterm="", n=2)
    ]


class AdviceFormatter:
    def __init__(self, display: Display) -> None:
        self._display = display

    def lines(self, advice: "Advice", days: float | None, configuration: str) -> Iterator[str]:
        yield from self._spend_lines(advice.spend, days)
        simulation = advice.simulation
        if simulation is None:
            return
        yield ""
        yield from self._part_lines(simulation, advice.spend)
        yield ""
        yield from self._miss_lines(simulation)
        yield from self._other_lines(simulation)
        yield ""
        yield from self._setting_lines(simulation, configuration)

    def _wrap(self, text: str, indent: int = 0) -> list[str]:
        return wrap_text(text, self._display, indent=indent)

    def _heading(self, text: str) -> list[str]:
        return wrap_text(text, self._display, style="bold")

    def _spend_lines(self, spend: "SpendReport", days: float | None) -> Iterator[str]:
        total = spend.total
        period = f"Last {days:g} days" if days is not None else "All recorded calls"
        yield from self._heading(
            f"{period}: {_dollars(total.dollars)} in {_count(total.calls, 'call')} of "
            f"{_count(spend.sessions, 'session')}"
        )
        kinds = (
            ("cache reads", total.read),
            ("cache writes", total.written),
            ("uncached input", total.uncached),
            ("output", total.output),
            ("other", total.other),
        )
        yield from self._wrap(
            "By kind: "
            + ", ".join(
                f"{name} {_dollars(amount)} ({_share(amount, total.dollars)})"
                for name, amount in kinds
                if amount
            ),
            indent=2,
        )
        agents = {_AGENT_NAMES.get(name, name): group for name, group in spend.by_agent.items()}
        yield from self._wrap(f"By agent: {_list_spend(agents)}", indent=2)
        yield from self._wrap(f"By model: {_list_spend(spend.by_model)}", indent=2)
        if total.unpriced_calls:
            models = ", ".join(model or "no model" for model in spend.unpriced)
            yield from self._wrap(
                f"Not included: {_count(total.unpriced_calls, 'call')} without a known price ({models})",
                indent=2,
            )
        if total.estimated_calls:
            yield from self._wrap(
                f"{_count(total.estimated_calls, 'call')} without recorded usage are estimated", indent=2
            )

    def _part_lines(self, simulation: "Simulation", spend: "SpendReport") -> Iterator[str]:
        from foveate.advice.cost_breakdown import OLD_REQUESTS

        yield from self._heading(f"Where it went ({_describe_coverage(simulation, spend)})")
        yield from self._wrap(
            f"Old reads: cache reads of what was first sent {OLD_REQUESTS} or more requests before.", indent=2
        )
        rows = _list_parts(simulation)
        columns = (
            Column(heading="part", fit=Fit.SHORTEN),
            Column(heading="cost", align="right"),
            Column(heading="share", align="right"),
            Column(heading="cache reads", align="right"),
            Column(heading="old reads", align="right"),
        )
        cells = [
            (
                name,
                _dollars(_decimal(cost.dollars)),
                _share(_decimal(cost.dollars), simulation.charged),
                _dollars(_decimal(cost.read)) if cost.read else "",
                _dollars(_decimal(cost.old_read)) if is_old_shown and cost.old_read else "",
            )
            for name, cost, is_old_shown in rows
        ]
        yield from format_table(
            columns, cells, self._display, total=("total", _dollars(simulation.charged), "", "", ""), indent=2
        )

    def _miss_lines(self, simulation: "Simulation") -> Iterator[str]:
        from foveate.advice.cost_breakdown import MissCost, describe_recorded_cause

        misses = sorted(simulation.breakdown.misses.items(), key=lambda miss: -miss[1].dollars)
        lost = _decimal(sum(miss.dollars for _, miss in misses))
        if not misses:
            yield from self._heading("Cache misses: none")
            return
        yield from self._heading(
            f"Of this, paid again after cache misses: {_describe_part(lost, simulation.charged)}"
        )
        shown = [(describe_recorded_cause(cause), miss) for cause, miss in misses[:_MAX_CAUSES]]
        if len(misses) > _MAX_CAUSES:
            rest = MissCost()
            for _, miss in misses[_MAX_CAUSES:]:
                rest.add(miss)
            shown.append((_count(len(misses) - _MAX_CAUSES, "other cause"), rest))
        columns = (
            Column(align="right"),
            Column(align="right"),
            Column(fit=Fit.WRAP),
        )
        cells = [(_dollars(_decimal(miss.dollars)), f"{miss.misses:,}×", name) for name, miss in shown]
        yield from format_table(columns, cells, self._display, indent=2)

    def _other_lines(self, simulation: "Simulation") -> Iterator[str]:
        breakdown = simulation.breakdown
        superseded = [
            (part.tool or "unknown tool", cost.superseded)
            for part, cost in breakdown.parts.items()
            if cost.superseded > 0
        ]
        total = _decimal(sum(dollars for _, dollars in superseded))
        if total >= _CENT:
            tools = sorted(superseded, key=lambda entry: -entry[1])[:_MAX_MODELS]
            yield from self._wrap(
                f"Of this, superseded tool results: {_describe_part(total, simulation.charged)}, "
                f"carried after the same file was read again or the same command was run again: "
                + ", ".join(f"{tool} {_dollars(_decimal(dollars))}" for tool, dollars in tools)
            )
        if breakdown.tier_calls:
            excess = _decimal(breakdown.tier_dollars)
            yield from self._wrap(
                f"Of this, above a price tier: {_describe_part(excess, simulation.charged)} more than "
                f"at the lower price, in {_count(breakdown.tier_calls, 'request')}"
            )

    def _setting_lines(self, simulation: "Simulation", configuration: str) -> Iterator[str]:
        from foveate.advice.candidate_settings import MIN_SHARE

        recorded, current = simulation.recorded, simulation.current
        if recorded is None or current is None:
            yield from self._wrap("No setting was simulated, because some prices are unknown.")
            return
        yield from self._heading("Settings, simulated on the same sessions")
        name = configuration or "its default configuration"
        yield from self._wrap(
            f"As recorded {_dollars(recorded.dollars)}. Through the gateway with {name}: "
            f"{_describe_difference(recorded.dollars - current.dollars)}."
        )
        if not simulation.chosen:
            yield from self._wrap(f"No setting would have saved {MIN_SHARE:.0%} or more.")
            yield from self._rejected_lines(simulation)
            return
        for number, result in enumerate(simulation.chosen, 1):
            yield from self._chosen_lines(number, result, simulation, recorded)
        yield from self._combination_lines(simulation, recorded)
        yield from self._rejected_lines(simulation)

    def _rejected_lines(self, simulation: "Simulation") -> Iterator[str]:
        """Include settings that would have cost more."""
        mechanisms = {result.candidate.mechanism for result in simulation.chosen}
        others = [
            result
            for result in simulation.results
            if result.candidate.mechanism not in mechanisms and result.saving is not None
        ]
        different = [
            f"{result.candidate.name} ({_describe_difference(result.saving)})"
            for result in others
            if _is_different(result.saving)
        ]
        same = [result.candidate.name for result in others if not _is_different(result.saving)]
        if different:
            yield from self._wrap(f"Also simulated: {', '.join(different)}.")
        if same:
            yield from self._wrap(f"No difference: {', '.join(same)}.")

    def _chosen_lines(
        self, number: int, result: "CandidateResult", simulation: "Simulation", recorded: "SimulatedCost"
    ) -> Iterator[str]:
        from foveate.advice.candidate_settings import to_inline_yaml

        candidate, saving = result.candidate, result.saving or Decimal(0)
        also = f" on top of {candidate.base}" if candidate.base else ""
        yield from self._heading(
            f"{number}. {candidate.name}: saves {_describe_part(saving, recorded.dollars)}{also}"
        )
        alternatives = [
            f"{other.candidate.name} ({_describe_difference(other.saving)})"
            for other in simulation.results
            if other.candidate.mechanism is candidate.mechanism
            and other is not result
            and other.saving is not None
        ]
        yield from self._wrap(to_inline_yaml(candidate.changes), indent=3)
        yield from self._wrap(candidate.risk, indent=3)
        if alternatives:
            yield from self._wrap(f"Instead: {', '.join(alternatives)}.", indent=3)

    def _combination_lines(self, simulation: "Simulation", recorded: "SimulatedCost") -> Iterator[str]:
        combination = simulation.combination
        if combination is None or combination.cost is None or combination.saving is None:
            return
        total = recorded.dollars - combination.cost.dollars
        numbers = [
            number
            for number, result in enumerate(simulation.chosen, 1)
            if result.candidate in combination.candidates
        ]
        names = " + ".join(map(str, numbers))
        own = _describe_own_calls(combination.cost)
        subject = f"{names} together" if len(numbers) > 1 else "This alone"
        if len(numbers) < len(simulation.chosen):
            subject = f"{names} {'together save' if len(numbers) > 1 else 'alone saves'} most"
        yield from self._wrap(
            f"{subject}: {_dollars(combination.cost.dollars)}, {_describe_part(total, recorded.dollars)} less "
            f"than recorded{own}.{' Savings do not add up.' if len(simulation.chosen) > 1 else ''}"
        )
        yield from self._wrap("To write this to the configuration: foveate advise --apply")


def _describe_coverage(simulation: "Simulation", spend: "SpendReport") -> str:
    return (
        f"{_count(simulation.sessions, 'session')}, {_dollars(simulation.charged)} of "
        f"{_dollars(spend.total.dollars)}"
    )


def _describe_own_calls(cost: "SimulatedCost") -> str:
    calls = [
        _count(number, name)
        for number, name in ((cost.compactions, "compaction"), (cost.keep_alives, "keep-alive request"))
        if number
    ]
    return f", including {_dollars(cost.own_dollars)} for {' and '.join(calls)}" if calls else ""


def _is_different(saving: Decimal | None) -> bool:
    return saving is not None and abs(saving) >= _CENT


def _describe_difference(saving: Decimal | None) -> str:
    if saving is None or not _is_different(saving):
        return "makes no difference"
    return f"{'saves' if saving > 0 else 'costs'} {_dollars(abs(saving))}{' more' if saving < 0 else ''}"


def _list_parts(simulation: "Simulation") -> "list[tuple[str, PartCost, bool]]":
    """The parts with their names, the most expensive first, then all others, and what is not attributed."""
    from foveate.advice.cost_breakdown import PartCost, PartKind

    ordered = sorted(simulation.breakdown.parts.items(), key=lambda part: -part[1].dollars)
    shown = [(_name_part(part), cost, part.kind is PartKind.TOOL) for part, cost in ordered[:_MAX_PARTS]]
    if len(ordered) > _MAX_PARTS:
        rest = PartCost()
        for _, cost in ordered[_MAX_PARTS:]:
            rest.add(cost)
        shown.append((_count(len(ordered) - _MAX_PARTS, "other part"), rest, False))
    missing = _unattributed(simulation)
    if abs(missing) >= _CENT / 2:
        shown.append(("not attributed", PartCost(uncached=float(missing)), False))
    return shown


def _unattributed(simulation: "Simulation") -> Decimal:
    """What was charged, but not for tokens of a known price: searches, prices that a provider states."""
    return simulation.charged - _decimal(sum(cost.dollars for cost in simulation.breakdown.parts.values()))


def _name_part(part: "ContextPart") -> str:
    from foveate.advice.cost_breakdown import PartKind

    return f"tool {part.tool or '(unknown)'}" if part.kind is PartKind.TOOL else str(part.kind)


def _list_spend(groups: "dict[str, Spend]") -> str:
    ordered = sorted(groups.items(), key=lambda group: -group[1].dollars)
    texts = [f"{name or 'unknown'} {_dollars(spend.dollars)}" for name, spend in ordered[:_MAX_MODELS]]
    rest = ordered[_MAX_MODELS:]
    if rest:
        texts.append(f"{len(rest):,} more {_dollars(sum((spend.dollars for _, spend in rest), Decimal(0)))}")
    return ", ".join(texts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _dollars(amount: Decimal) -> str:
    if amount and abs(amount) < _CENT:
        return f"{'-' * (amount < 0)}<$0.01"
    return f"{'-' * (amount < 0)}${abs(amount):,.2f}"


def _describe_part(amount: Decimal, total: Decimal) -> str:
    return f"{_dollars(amount)} ({_share(amount, total)})"


def _share(amount: Decimal, total: Decimal) -> str:
    if not total:
        return ""
    share = round(100 * amount / total)
    return f"{share}%" if share or not amount else "<1%"


def _decimal(dollars: float) -> Decimal:
    return Decimal(f"{dollars:.6f}")


def advice_object(advice: "Advice", days: float | None, configuration: str) -> dict[str, object]:
    """Return advice as JSON: money as strings, null if unknown."""
    spend, simulation = advice.spend, advice.simulation
    return {
        "days": days,
        "configuration": configuration or None,
        "spend": {
            **_spend_object(spend.total),
            "sessions": spend.sessions,
            "first_at": spend.first_at,
            "last_at": spend.last_at,
            "by_agent": [{"agent": name, **_spend_object(group)} for name, group in spend.by_agent.items()],
            "by_model": [{"model": name, **_spend_object(group)} for name, group in spend.by_model.items()],
            "unpriced_models": dict(spend.unpriced),
            "repeated_calls": spend.repeated_calls,
        },
        "simulation": None if simulation is None else _simulation_object(simulation),
        "unreadable_lines": spend.unreadable_lines,
        "unread": [{"files": files, "why": reason} for files, reason in advice.unread],
        "applied": None,
    }


def _spend_object(spend: "Spend") -> dict[str, object]:
    return {name: _to_json(value) for name, value in asdict(spend).items()}


def _simulation_object(simulation: "Simulation") -> dict[str, object]:
    from foveate.advice.candidate_settings import to_yaml

    breakdown, combination = simulation.breakdown, simulation.combination
    superseded = sum(cost.superseded for cost in breakdown.parts.values())
    return {
        "sessions": simulation.sessions,
        "calls": simulation.calls,
        "charged_dollars": _to_json(simulation.charged),
        "parts": [
            {
                "kind": part.kind.name.lower(),
                "tool": part.tool or None,
                "dollars": _to_json(_decimal(cost.dollars)),
                **{name: _to_json(_decimal(dollars)) for name, dollars in asdict(cost).items()},
            }
            for part, cost in sorted(breakdown.parts.items(), key=lambda part: -part[1].dollars)
        ],
        "unattributed_dollars": _to_json(_unattributed(simulation)),
        "misses": [
            {
                "cause": cause,
                "misses": miss.misses,
                "tokens": miss.tokens,
                "dollars": _to_json(_decimal(miss.dollars)),
            }
            for cause, miss in sorted(breakdown.misses.items(), key=lambda miss: -miss[1].dollars)
        ],
        "superseded_dollars": _to_json(_decimal(superseded)),
        "tier_calls": breakdown.tier_calls,
        "tier_dollars": _to_json(_decimal(breakdown.tier_dollars)),
        "recorded": _cost_object(simulation.recorded),
        "current": _cost_object(simulation.current),
        "candidates": [_result_object(result) for result in simulation.results],
        "recommended": [result.candidate.name for result in simulation.chosen],
        "combination": None
        if combination is None
        else {
            "candidates": [candidate.name for candidate in combination.candidates],
            "cost": _cost_object(combination.cost),
            "saved_dollars": _to_json(combination.saving),
            "yaml": to_yaml(combination.changes),
        },
    }


def _result_object(result: "CandidateResult") -> dict[str, object]:
    from foveate.advice.candidate_settings import merge_changes, to_yaml

    candidate = result.candidate
    return {
        "name": candidate.name,
        "mechanism": candidate.mechanism,
        "base": candidate.base or None,
        "risk": candidate.risk,
        "yaml": to_yaml(merge_changes((candidate,))),
        "cost": _cost_object(result.cost),
        "saved_dollars": _to_json(result.saving),
    }


def _cost_object(cost: "SimulatedCost | None") -> dict[str, object] | None:
    return None if cost is None else {name: _to_json(value) for name, value in asdict(cost).items()}


def _to_json(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value
