"""Workspaces on disk, a manual clock, and waiting for a watcher."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from foveate.context.workspace_cache import WorkspaceCache, WorkspaceCacheOptions
from foveate.memory.privacy import Gate

# Generous, since only failing tests wait this long.
TIMEOUT_SECONDS = 30.0


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write these files below `root`, each atomically."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def wait_until(condition: Callable[[], bool], description: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"timed out: {description}"
        time.sleep(0.01)


@contextmanager
def watched_cache(debounce_ms: float = 20) -> Iterator[WorkspaceCache]:
    """A cache that notices changes quickly."""
    with WorkspaceCache(Gate(), WorkspaceCacheOptions(watch_debounce_ms=debounce_ms)) as workspaces:
        yield workspaces


def make_unwatched_cache(clock: Clock, max_age_seconds: float = 0) -> WorkspaceCache:
    """A cache that notices no changes: bundles are read again only by age."""
    options = WorkspaceCacheOptions(max_age_seconds=max_age_seconds)
    workspaces = WorkspaceCache(Gate(), options, clock=clock)
    workspaces.close()
    return workspaces
