"""Turns at writing one SQLite file, for the processes that share it.

SQLite has waiting writers poll with growing pauses, so a process that writes often starves the others. Here
the first writer in line holds the lock `next` while it waits for the lock `turn`, and whoever has just written
queues behind it. The locks only order the writers. SQLite's own lock keeps them apart, so writing without a
turn is safe: it happens if the locks cannot be had, or if somebody keeps one for too long.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_SECONDS = 0.001
_MAX_WAIT_SECONDS = 1.0


class WriterQueue:
    """The locks of one process, for one thread. Closed by `close`."""

    def __init__(self, database: Path) -> None:
        self._paths = [Path(f"{database}-{name}") for name in ("next", "turn")]
        self._files: list[int] | None = None

    @contextmanager
    def hold_turn(self) -> Iterator[None]:
        """Wait for this process's turn, and pass it on afterwards."""
        next_file, turn_file = self._open_files()
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        is_next = _lock_file(next_file, deadline)
        has_turn = _lock_file(turn_file, deadline)
        if is_next:
            _unlock_file(next_file)
        try:
            yield
        finally:
            if has_turn:
                _unlock_file(turn_file)

    def close(self) -> None:
        """Close the lock files. They stay where they are: another process may hold them."""
        for file in self._files or ():
            with suppress(OSError):
                os.close(file)
        self._files = None

    def _open_files(self) -> list[int]:
        """The two lock files; -1 for one that cannot be opened."""
        if self._files is None:
            self._files = [_open_lock_file(path) for path in self._paths]
        return self._files


def _open_lock_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1


def _lock_file(file: int, deadline: float) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows, where the gateway does not run
        return False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        except (OSError, ValueError):  # a file system without locks, or no file
            return False
        else:
            return True


def _unlock_file(file: int) -> None:
    import fcntl

    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)
