"""Watching folders: a thread that tells what changed in them, also across their coming and going."""

import os
from collections.abc import Set
from dataclasses import dataclass
from math import inf
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

# How watchfiles numbers what happened.
_MODIFIED = 2
# How long folders that cannot be watched are left alone before they are tried again.
_RETRY_FOLDERS_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 64.0


@dataclass(frozen=True, slots=True)
class FileChange:
    """Something that happened to a file or folder; an edit leaves it where it is, anything else may not."""

    path: str
    is_edit: bool


class FolderObserver(Protocol):
    """Who wants to know. It is called from the watcher's thread."""

    def unwatched_folders(self) -> frozenset[str]:
        """The folders of what is not watched yet; none most of the time. Asked for many times a second."""

    def folders(self) -> frozenset[str]:
        """All folders that are to be watched."""

    def on_watched(self, folders: frozenset[str]) -> None:
        """From now on, every change in these is told. Called whenever some were not watched yet."""

    def is_relevant(self, changes: Set[FileChange]) -> bool:
        """Whether any of these matters; what does not is not told of again."""

    def on_changed(self, changes: frozenset[FileChange]) -> None:
        """These have happened."""

    def on_lost(self, reason: str) -> None:
        """Nothing is watched any longer, or not yet: changes may have been missed."""


class FileWatcher:
    """A thread that watches folders, not what is in folders below them, and gathers changes for a while.

    It survives folders that are deleted, made again or replaced, and tries again what cannot be watched. It
    begins with `ensure`, and ends with `close`, or with the process.
    """

    def __init__(self, observer: FolderObserver, *, debounce_seconds: float) -> None:
        self._observer = observer
        self._debounce_seconds = debounce_seconds
        self._lock = Lock()
        self._stop = Event()
        self._thread: Thread | None = None

    def ensure_running(self) -> None:
        """Have the thread running, also in a process that was forked from the one in which it ran."""
        if self._is_running_or_closed():
            return
        with self._lock:
            if self._is_running_or_closed():
                return
            thread = Thread(target=self._run, name="foveate-watcher", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # as many threads as the system allows
                self._observer.on_lost(str(error))
                return
            self._thread = thread

    def close(self) -> None:
        """End the thread, and wait for it. Nothing is watched from then on."""
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
            began = monotonic()
            try:
                _WatchSession(self._observer, self._stop, self._debounce_seconds).run()
            except (OSError, WatchfilesRustInternalError) as error:
                self._observer.on_lost(str(error))
                if monotonic() - began > _MAX_PAUSE_SECONDS:  # it did work for a while
                    pause = _FIRST_PAUSE_SECONDS
                self._stop.wait(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        self._observer.on_lost("the watcher was closed")


class _WatchSession:
    """One try at watching, which ends with an error or when it is told to stop."""

    def __init__(self, observer: FolderObserver, stop: Event, debounce_seconds: float) -> None:
        self._observer = observer
        self._stop = stop
        self._debounce_seconds = debounce_seconds
        self._step_ms = round(1000 * min(max(debounce_seconds / 10, 0.01), 0.05))
        self._notify: RustNotify | None = None
        self._watched_folders: frozenset[str] = frozenset()
        """The folders that are watched now."""
        self._pending_changes: set[FileChange] = set()
        self._report_at = inf
        self._unwatchable: frozenset[str] = frozenset()
        """What could not be watched when it was tried last."""
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
        """Watch what is not watched yet, and say so."""
        wanted = self._observer.unwatched_folders()
        if not wanted or (wanted == self._unwatchable and monotonic() < self._retry_at):
            return
        folders = frozenset(filter(_is_watchable, self._observer.folders()))
        if not folders & wanted <= self._watched_folders:
            from watchfiles._rust_notify import RustNotify

            try:
                # The new one watches before the old one ends, so that nothing is missed between them.
                fresh = RustNotify(sorted(folders), False, False, 0, False, False)
            except FileNotFoundError:  # gone since it was looked at
                return
            if self._notify is not None:
                self._collect_changes()
                self._notify.close()
            self._notify, self._watched_folders = fresh, folders
        self._observer.on_watched(self._watched_folders)
        self._unwatchable, self._retry_at = (
            self._observer.unwatched_folders(),
            monotonic() + _RETRY_FOLDERS_SECONDS,
        )

    def _collect_changes(self) -> None:
        """Wait a moment for changes."""
        if self._notify is None:
            self._stop.wait(self._step_ms / 1000)
            return
        events = self._notify.watch(self._step_ms, self._step_ms, self._step_ms, self._stop)
        if isinstance(events, str):  # it was in vain
            return
        changes = {FileChange(path, kind == _MODIFIED) for kind, path in events}
        # Others may write beside a workspace all day long, which must not begin or end the wait.
        if self._observer.is_relevant(changes):
            if not self._pending_changes:
                self._report_at = monotonic() + self._debounce_seconds
            self._pending_changes |= changes
        # A folder that has come or gone is another one from now on, and so are those below it.
        moved = tuple(
            change.path for change in changes if not change.is_edit and change.path in self._watched_folders
        )
        for path in moved:
            self._watched_folders = frozenset(
                each for each in self._watched_folders if not f"{each}/".startswith(f"{path}/")
            )


def _is_watchable(folder: str) -> bool:
    try:
        folder.encode()
    except UnicodeEncodeError:  # watchfiles takes no other names
        return False
    return os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)  # noqa: PTH112
