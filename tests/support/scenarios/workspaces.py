"""Workspaces on disk for tests, a clock that is set by hand, and waiting for what a watcher will see."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from foveate.context.workspace_cache import WorkspaceCache, WorkspaceCacheOptions
from foveate.memory.privacy import Gate

# Generous, since it is only ever waited out by a test that fails.
LONGEST_SECONDS = 30.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fill(root: Path, files: Mapping[str, str]) -> Path:
    """Have these files below `root`, each written in one go."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something to hold."""
    end = time.monotonic() + LONGEST_SECONDS
    while not holds():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.01)


@contextmanager
def watching(debounce_ms: float = 20) -> Iterator[WorkspaceCache]:
    """Workspaces that see changes soon."""
    with WorkspaceCache(Gate(), WorkspaceCacheOptions(watch_debounce_ms=debounce_ms)) as workspaces:
        yield workspaces


def blind(clock: Clock, max_age_seconds: float = 0) -> WorkspaceCache:
    """Workspaces that see no changes: bundles are read again only when they are old."""
    options = WorkspaceCacheOptions(max_age_seconds=max_age_seconds)
    workspaces = WorkspaceCache(Gate(), options, clock=clock)
    workspaces.close()
    return workspaces
