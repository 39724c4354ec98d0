"""Watch folders for changes in a thread, even if folders are deleted and created again."""

import os
from collections.abc import Set
from dataclasses import dataclass
from math import inf
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

# Code of watchfiles for a modified file.
_MODIFIED = 2
# Wait before folders that could not be watched are tried again.
_RETRY_FOLDERS_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 64.0


@dataclass(frozen=True, slots=True)
class FileChange:
    """An edit leaves the path in place; other changes may not."""

    path: str
    is_edit: bool


class FolderObserver(Protocol):
    """Called in the watcher's thread."""

    def unwatched_folders(self) -> frozenset[str]:
        """Folders that are not watched yet; usually none. Called many times a second."""

    def folders(self) -> frozenset[str]: ...

    def on_watched(self, folders: frozenset[str]) -> None:
        """Called once every change in these folders is reported."""

    def is_relevant(self, changes: Set[FileChange]) -> bool:
        """Changes that are not relevant are not reported."""

    def on_changed(self, changes: frozenset[FileChange]) -> None: ...

    def on_lost(self, reason: str) -> None:
        """Nothing is watched now, so changes may have been missed."""


class FileWatcher:
    """Thread that watches folders, not recursively, and debounces changes.

    Folders may be deleted, created again or replaced; those that cannot be watched are tried again. The thread
    runs from `ensure_running` until `close` or the end of the process.
    """

    def __init__(self, observer: FolderObserver, *, debounce_seconds: float) -> None:
        self._observer = observer
        self._debounce_seconds = debounce_seconds
        self._lock = Lock()
        self._stop = Event()
        self._thread: Thread | None = None

    def ensure_running(self) -> None:
        """Start the thread unless it runs. Also works in a forked process."""
        if self._is_running_or_closed():
            return
        with self._lock:
            if self._is_running_or_closed():
                return
            thread = Thread(target=self._run, name="foveate-watcher", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system allows no more threads
                self._observer.on_lost(str(error))
                return
            self._thread = thread

    def close(self) -> None:
        with self._lock:
            self._stop.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            thread.join()

    def _is_running_or_closed(self) -> bool:
        return self._stop.is_set() or (self._thread is not None and self._thread.is_alive())

    def _run(self) -> None:
        from watchfiles._rust_notify import WatchfilesRustInternalError

        self._observer.on_lost("")
        pause = _FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            started_at = monotonic()
            try:
                _WatchSession(self._observer, self._stop, self._debounce_seconds).run()
            except (OSError, WatchfilesRustInternalError) as error:
                self._observer.on_lost(str(error))
                if monotonic() - started_at > _MAX_PAUSE_SECONDS:  # it worked for a while
                    pause = _FIRST_PAUSE_SECONDS
                self._stop.wait(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        self._observer.on_lost("the watcher was closed")


class _WatchSession:
    """One attempt at watching, until an error or `stop`."""

    def __init__(self, observer: FolderObserver, stop: Event, debounce_seconds: float) -> None:
        self._observer = observer
        self._stop = stop
        self._debounce_seconds = debounce_seconds
        self._step_ms = round(1000 * min(max(debounce_seconds / 10, 0.01), 0.05))
        self._notify: RustNotify | None = None
        self._watched_folders: frozenset[str] = frozenset()
        """Folders that are watched now."""
        self._pending_changes: set[FileChange] = set()
        self._report_at = inf
        self._unwatchable: frozenset[str] = frozenset()
        """Folders that could not be watched at the last attempt."""
        self._retry_at = 0.0

    def run(self) -> None:
        try:
            while not self._stop.is_set():
                self._watch_new_folders()
                self._collect_changes()
                if monotonic() >= self._report_at:
                    changes, self._pending_changes, self._report_at = (
                        frozenset(self._pending_changes),
                        set(),
                        inf,
                    )
                    self._observer.on_changed(changes)
        finally:
            if self._notify is not None:
                self._notify.close()

    def _watch_new_folders(self) -> None:
        unwatched = self._observer.unwatched_folders()
        if not unwatched or (unwatched == self._unwatchable and monotonic() < self._retry_at):
            return
        folders = frozenset(filter(_is_watchable, self._observer.folders()))
        if not folders & unwatched <= self._watched_folders:
            from watchfiles._rust_notify import RustNotify

            try:
                # The new watch starts before the old one ends, so that no change is missed.
                new_notify = RustNotify(sorted(folders), False, False, 0, False, False)
            except FileNotFoundError:  # deleted in the meantime
                return
            if self._notify is not None:
                self._collect_changes()
                self._notify.close()
            self._notify, self._watched_folders = new_notify, folders
        self._observer.on_watched(self._watched_folders)
        self._unwatchable, self._retry_at = (
            self._observer.unwatched_folders(),
            monotonic() + _RETRY_FOLDERS_SECONDS,
        )

    def _collect_changes(self) -> None:
        if self._notify is None:
            self._stop.wait(self._step_ms / 1000)
            return
        events = self._notify.watch(self._step_ms, self._step_ms, self._step_ms, self._stop)
        if isinstance(events, str):  # timeout or stop
            return
        changes = {FileChange(path, kind == _MODIFIED) for kind, path in events}
        # Other programs may write next to a workspace all day, which must neither start nor end the debounce.
        if self._observer.is_relevant(changes):
            if not self._pending_changes:
                self._report_at = monotonic() + self._debounce_seconds
            self._pending_changes |= changes
        # A folder that was created or deleted must be watched again, and so must those below it.
        moved_paths = tuple(
            change.path for change in changes if not change.is_edit and change.path in self._watched_folders
        )
        for path in moved_paths:
            self._watched_folders = frozenset(
                folder for folder in self._watched_folders if not f"{folder}/".startswith(f"{path}/")
            )


def _is_watchable(folder: str) -> bool:
    try:
        folder.encode()
    except UnicodeEncodeError:  # watchfiles accepts only such names
        return False
    return os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)  # noqa: PTH112
