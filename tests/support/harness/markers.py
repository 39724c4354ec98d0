"""Markers that sort tests into tiers, so that `./test --fast` can leave the expensive ones out.

`postgres` and `browser` follow from the fixtures of a test, and `process` from some of them. Otherwise
`process` and `slow` are written at the test or at the top of its module. A test that starts a process fails
unless it has `process`, `postgres`, `browser` or `agents`.
"""

import platform
import sys

import pytest

TIERS = ("slow", "process", "postgres", "browser", "agents")
_BY_FIXTURE = {
    "postgres": "postgres",
    "own_server": "postgres",
    "browser": "browser",
    "llama_server": "process",
    "dashboard_gateway": "process",
}
# What Python reports of itself. The method "spawn" of multiprocessing is not reported.
_START_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"}

_start_events: list[str] = []


def add_derived_markers(item: pytest.Item) -> None:
    """Add the markers that follow from the fixtures and parameters of a test."""
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in _BY_FIXTURE:
            item.add_marker(_BY_FIXTURE[fixture])
    call = getattr(item, "callspec", None)
    if call is not None and "postgres" in map(call.params.get, ("database_url", "bare_database_url")):
        item.add_marker("postgres")


def watch_processes() -> None:
    """Record from now on what this process starts (an audit hook cannot be removed)."""
    platform.processor()  # runs `uname` once in each process; SDKs of providers ask for it
    sys.addaudithook(_record)


def _record(event: str, arguments: tuple[object, ...]) -> None:
    if event in _START_EVENTS:
        _start_events.append(f"{event} {arguments[:2]!r:.200}")


def forget_processes() -> None:
    """Start a new record, for the next test."""
    _start_events.clear()


def require_process_marker(item: pytest.Item) -> None:
    """Fail a test that has started a process, itself or by its fixtures, and has no marker that allows it."""
    allowed = ("process", "postgres", "browser", "agents")
    if _start_events and not any(item.get_closest_marker(name) for name in allowed):
        pytest.fail(f"has no pytest.mark.process and started {_start_events[0]}", pytrace=False)
