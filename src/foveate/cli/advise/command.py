"""`foveate advise`: show what local sessions cost, where the money went, and the settings that save most."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import SOME_FAILED, report_errors
from foveate.cli.shared.options import ConfigFile, find_config_file
from foveate.cli.shared.tables import show_byte_progress
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.advice.advise import Advice
    from foveate.advice.candidates import SettingPath, SettingValue
    from foveate.advice.session_costs import Period
    from foveate.config.settings import Settings
    from foveate.replay.recording import RecordingSource
    from foveate.replay.recording_files import FoundFiles, SessionFiles

_DEFAULT_DAYS = 30
_DAY_SECONDS = 86_400
_MAX_LISTED = 3
# A simulation takes about this many times as long as reading.
_SIMULATION_FACTOR = 2


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
        from foveate.cli.advise.output import AdviceFormatter, advice_object

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
    from dataclasses import replace

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
    from foveate.advice.candidates import to_yaml
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

    from foveate.cli.shared.tables import style_text

    display = console.display_for(sys.stdout)
    styles = {"+": "green", "-": "red"}
    old, new = (data.decode("utf-8").splitlines() for data in (before, after))
    return [
        style_text(line.rstrip("\r\n"), styles.get(line[:1], ""), display)
        for line in unified_diff(old, new, name, name, lineterm="", n=2)
    ]
