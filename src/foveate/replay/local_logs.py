"""Finds the logs that coding agents keep on this machine.

The folders are those that the agents' own variables and defaults name (November 2026).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from foveate.replay.recording import RecordingSource


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A folder with logs of an agent, or its database."""

    agent: RecordingSource
    path: Path


def find_local_logs(environ: Mapping[str, str], home: Path) -> list[LogPlace]:
    """The places that exist, each once, even if a link leads to it."""
    found: dict[Path, LogPlace] = {}
    for place in list_log_places(environ, home):
        try:
            if place.path.exists():
                found.setdefault(place.path.resolve(), place)
        except (OSError, RuntimeError, ValueError):  # no permission, a loop of links, a NUL byte
            continue
    return list(found.values())


def list_log_places(environ: Mapping[str, str], home: Path) -> list[LogPlace]:
    """All places in which agents keep logs, whether or not they exist."""
    return [
        LogPlace(agent, path)
        for agent, paths in (
            (RecordingSource.CLAUDE_CODE, _claude_code_folders(environ, home)),
            (RecordingSource.CODEX, _codex_folders(environ, home)),
            (RecordingSource.GEMINI_CLI, _gemini_cli_folders(environ, home)),
            (RecordingSource.QWEN_CODE, _qwen_code_folders(environ, home)),
            (RecordingSource.OPENCODE, _opencode_places(environ, home)),
            (RecordingSource.PI, _pi_folders(environ, home)),
        )
        for path in dict.fromkeys(paths)
    ]


def _claude_code_folders(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    configured = _read_paths(environ, home, "CLAUDE_CONFIG_DIR")
    config = _read_paths(environ, home, "XDG_CONFIG_HOME")[:1] or [home / ".config"]
    for folder in configured or [config[0] / "claude", home / ".claude"]:
        yield folder if folder.name == "projects" else folder / "projects"


def _codex_folders(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    for folder in _read_paths(environ, home, "CODEX_HOME") or [home / ".codex"]:
        yield folder / "sessions"
        yield folder / "archived_sessions"


def _gemini_cli_folders(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    for folder in _read_paths(environ, home, "GEMINI_CLI_HOME") or [home]:
        yield folder / ".gemini" / "tmp"


def _qwen_code_folders(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    configured = _read_paths(environ, home, "QWEN_RUNTIME_DIR") or _read_paths(environ, home, "QWEN_HOME")
    for folder in configured or [home / ".qwen"]:
        yield folder / "projects"
        yield folder / "tmp"  # until version 0.5


def _opencode_places(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """The databases first: they contain what opencode copied from its storage folder."""
    yield from _read_paths(environ, home, "OPENCODE_DB")
    data = _read_paths(environ, home, "XDG_DATA_HOME")[:1] or [home / ".local" / "share"]
    folder = data[0] / "opencode"
    yield folder / "opencode.db"
    with suppress(OSError):
        yield from sorted(folder.glob("opencode-*.db"))  # of other release channels
    yield folder / "storage"


def _pi_folders(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    folders = _read_paths(environ, home, "PI_CODING_AGENT_SESSION_DIR")
    agent_folders = _read_paths(environ, home, "PI_CODING_AGENT_DIR") or [home / ".pi" / "agent"]
    yield from folders or [folder / "sessions" for folder in agent_folders]


def _read_paths(environ: Mapping[str, str], home: Path, name: str) -> list[Path]:
    """The paths in a variable, separated by commas; empty if it is not set."""
    texts = [text.strip() for text in environ.get(name, "").split(",")]
    return [home / text[2:] if text.startswith("~/") else Path(text) for text in texts if text]


_JSON_LINES = (".jsonl",)
_SUFFIXES = {
    RecordingSource.GEMINI_CLI: (".jsonl", ".json"),
    RecordingSource.OPENCODE: (".json",),
}
# Only these folders contain recordings; others contain histories of prompts, checkpoints and outputs of tools.
_INNER_FOLDERS = {
    RecordingSource.GEMINI_CLI: frozenset(("chats",)),
    RecordingSource.OPENCODE: frozenset(("message", "part")),
}


def list_log_files(place: LogPlace, on_unreadable: Callable[[Path], None] = lambda _: None) -> Iterator[Path]:
    """The files of a place that contain logs. Links are followed, but no folder is listed twice.

    `on_unreadable` receives folders that cannot be listed.
    """
    if not place.path.is_dir():
        yield place.path
        return
    suffixes = _SUFFIXES.get(place.agent, _JSON_LINES)
    inner_folders = _INNER_FOLDERS.get(place.agent)
    seen: set[tuple[int, int]] = set()
    for parent, folders, names in os.walk(
        place.path, onerror=lambda error: on_unreadable(Path(error.filename)), followlinks=True
    ):
        try:
            status = Path(parent).stat()
        except OSError:  # deleted meanwhile
            continue
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        if inner_folders is None or not inner_folders.isdisjoint(Path(parent).relative_to(place.path).parts):
            yield from (Path(parent, name) for name in sorted(names) if name.endswith(suffixes))
