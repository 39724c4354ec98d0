"""Cache of workspace bundles: files are read once, and again after a change."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Self

from foveate.caching import register
from foveate.context.file_watcher import FileChange, FileWatcher
from foveate.context.workspace import (
    Bundle,
    FolderChanges,
    Workspace,
    WorkspaceScan,
    WorkspaceWarning,
    blank_file_names,
    merge_reading,
    read_files,
    scan_workspace,
)
from foveate.errors import BadOption
from foveate.memory.privacy import Gate

__all__ = [
    "Bundle",
    "Workspace",
    "WorkspaceCache",
    "WorkspaceCacheOptions",
    "WorkspaceCacheStats",
    "WorkspaceWarning",
    "read_bundle",
]

UNWATCHED_MAX_AGE_SECONDS = 5.0
"""Maximum age of a bundle if changes cannot be watched and `max_age_seconds` is not set."""

# A file that is truncated to be written is empty for a much shorter time.
_BLANK_GRACE_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCacheOptions:
    """With a `max_age_seconds` of 0, bundles are read again only after changes."""

    enabled: bool = True
    watch_debounce_ms: float = 500
    max_age_seconds: float = 0

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            BadOption: names the option.
        """
        if not isinstance(self.enabled, bool):
            raise BadOption(f"enabled must be true or false, not {self.enabled!r}", path=("enabled",))
        for name, unit in (("watch_debounce_ms", "milliseconds"), ("max_age_seconds", "seconds")):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and isfinite(value) and value >= 0):
                raise BadOption(f"{name} must be a number of {unit}, 0 or more, not {value!r}", path=(name,))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCacheStats:
    hits: int = 0
    misses: int = 0
    invalidations: int = 0


@dataclass(slots=True, eq=False)
class _CacheSlot:
    """Guarded by the lock of its `WorkspaceCache`."""

    workspace: Workspace
    read_lock: Lock = field(default_factory=Lock)
    """Held while its files are read, so that only one thread reads."""
    bundle: Bundle | None = None
    """The last bundle; valid as long as `scan` is set."""
    scan: WorkspaceScan | None = None
    read_at: float = -inf
    retry_seconds: float = 0
    """When a bundle with warnings is read again; 0 without warnings."""
    blank_since: dict[str, float] = field(default_factory=dict)
    is_watched: bool = False


def read_bundle(workspace: Workspace, gate: Gate, last: Bundle | None = None) -> Bundle:
    """Unavailable files keep their text in `last`."""
    return merge_reading(workspace, read_files(scan_workspace(workspace), gate), last, frozenset())


class WorkspaceCache:
    """Cache of bundles. Each is read when it is first needed, and again after a change of its files.

    Thread-safe: concurrent callers wait for one read. A watcher thread runs from the first bundle until `close`
    or the end of the `with` block.
    """

    def __init__(
        self,
        gate: Gate,
        options: WorkspaceCacheOptions | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._gate = gate
        self._options = options or WorkspaceCacheOptions()
        self._clock = clock
        self._lock = Lock()
        self._slots: dict[Workspace, _CacheSlot] = {}
        self._unwatched: set[_CacheSlot] = set()
        self._stats: dict[str, WorkspaceCacheStats] = {}
        self._watch_error = ""
        self._watcher = FileWatcher(self, debounce_seconds=self._options.watch_debounce_ms / 1000)
        register(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching. Bundles can still be read, and are read again when they are too old."""
        self._watcher.close()

    def bundle(self, workspace: Workspace, *, enabled: bool | None = None) -> Bundle:
        """Return the bundle of `workspace`, cached or read now. `enabled` overrides the option.

        Unavailable files are warnings in the bundle, never errors.
        """
        if not (self._options.enabled if enabled is None else enabled):
            return read_bundle(workspace, self._gate)
        self._watcher.ensure_running()
        with self._lock:
            slot = self._slots.get(workspace) or self._slots.setdefault(workspace, _CacheSlot(workspace))
            bundle = self._valid_bundle(slot)
        if bundle is None:
            with slot.read_lock:
                with self._lock:
                    bundle = self._valid_bundle(slot)  # another thread may have read it
                bundle = bundle or self._read_slot(slot)
        if self._watch_error:
            return replace(bundle, warnings=(*bundle.warnings, self._watch_warning(workspace)))
        return bundle

    def cached_bundle(self, workspace: Workspace) -> Bundle | None:
        """Return the cached bundle if it is valid. None if `bundle` would have to read it.

        For event loops: does no I/O.
        """
        self._watcher.ensure_running()
        with self._lock:
            slot = self._slots.get(workspace)
            return None if slot is None or self._watch_error else self._valid_bundle(slot)

    def stats(self) -> Mapping[str, WorkspaceCacheStats]:
        with self._lock:
            return dict(self._stats)

    def clear(self) -> None:
        """Empty the cache, previous texts included; what is being read now is not stored either."""
        with self._lock:
            self._slots.clear()
            self._unwatched.clear()

    def _valid_bundle(self, slot: _CacheSlot) -> Bundle | None:
        if slot.scan is None or self._clock() - slot.read_at >= self._max_age_seconds(slot):
            return None
        self._update_stats(slot, hits=1)
        return slot.bundle

    def _max_age_seconds(self, slot: _CacheSlot) -> float:
        limit = self._options.max_age_seconds or (inf if slot.is_watched else UNWATCHED_MAX_AGE_SECONDS)
        return min(limit, slot.retry_seconds or inf)

    def _read_slot(self, slot: _CacheSlot) -> Bundle:
        started = self._clock()
        scan = scan_workspace(slot.workspace)
        reading = read_files(scan, self._gate)
        with self._lock:
            slot.blank_since = {name: slot.blank_since.get(name, started) for name in blank_file_names(reading)}
            blank_files = {
                name for name, since in slot.blank_since.items() if started - since >= _BLANK_GRACE_SECONDS
            }
            bundle = merge_reading(slot.workspace, reading, slot.bundle, blank_files)
            retry_seconds = min(2 * slot.retry_seconds or _FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS)
            slot.retry_seconds = (
                0 if all(warning.is_permanent for warning in bundle.warnings) else retry_seconds
            )
            slot.bundle, slot.scan, slot.read_at, slot.is_watched = bundle, scan, started, False
            if self._slots.get(slot.workspace) is slot:  # unless the cache was dropped in the meantime
                self._unwatched.add(slot)
            self._update_stats(slot, misses=1)
        return bundle

    def _watch_warning(self, workspace: Workspace) -> WorkspaceWarning:
        seconds = self._options.max_age_seconds or UNWATCHED_MAX_AGE_SECONDS
        return WorkspaceWarning(
            workspace.root,
            f"the folder cannot be watched ({self._watch_error}); files are reread every {seconds:g} seconds",
        )

    def _update_stats(
        self, slot: _CacheSlot, *, hits: int = 0, misses: int = 0, invalidations: int = 0
    ) -> None:
        stats = self._stats.get(slot.workspace.root, WorkspaceCacheStats())
        self._stats[slot.workspace.root] = WorkspaceCacheStats(
            hits=stats.hits + hits,
            misses=stats.misses + misses,
            invalidations=stats.invalidations + invalidations,
        )

    # The following methods are called by the watcher in its thread.

    def unwatched_folders(self) -> frozenset[str]:
        with self._lock:
            return frozenset().union(*(slot.scan.folders for slot in self._unwatched if slot.scan))

    def folders(self) -> frozenset[str]:
        with self._lock:
            return frozenset().union(*(slot.scan.folders for slot in self._slots.values() if slot.scan))

    def on_watched(self, folders: frozenset[str]) -> None:
        """Trust the bundles in these folders, unless a file changed between the read and now."""
        with self._lock:
            self._watch_error = ""
            unwatched = [(slot, slot.scan, slot.bundle) for slot in self._unwatched]
        for slot, scan, bundle in unwatched:
            if scan is None or bundle is None or not scan.own_folders <= folders:
                continue
            is_same = self._is_unchanged(scan, bundle)
            with self._lock:
                if slot.scan is not scan:  # read again in the meantime
                    continue
                if is_same:
                    slot.is_watched = True
                    self._unwatched.discard(slot)
                else:
                    self._invalidate({slot.workspace.root})

    def _is_unchanged(self, scan: WorkspaceScan, bundle: Bundle) -> bool:
        """Compare the files with their state when they were read."""
        current = scan_workspace(bundle.workspace)
        if current != scan or not scan.is_recent:
            return current == scan
        merged = merge_reading(bundle.workspace, read_files(current, self._gate), bundle, frozenset())
        return merged.version == bundle.version

    def is_relevant(self, changes: Set[FileChange]) -> bool:
        return bool(self._affected_roots(changes))

    def on_changed(self, changes: frozenset[FileChange]) -> None:
        """Drop the bundles of every root with a relevant change."""
        roots = self._affected_roots(changes)
        with self._lock:
            self._invalidate(roots)

    def _affected_roots(self, changes: Set[FileChange]) -> set[str]:
        with self._lock:
            cached = [(slot.workspace.root, slot.scan) for slot in self._slots.values() if slot.scan]
        folder_changes = FolderChanges.from_changes(changes)
        return {root for root, scan in cached if scan.is_affected(folder_changes)}

    def on_lost(self, reason: str) -> None:
        """Limit the age of all bundles, since changes are not noticed."""
        with self._lock:
            self._watch_error = reason
            for slot in self._slots.values():
                slot.is_watched = False
                if slot.scan is not None:
                    self._unwatched.add(slot)

    def _invalidate(self, roots: set[str]) -> None:
        counted: set[str] = set()
        for slot in self._slots.values():
            root = slot.workspace.root
            if root in roots and slot.scan is not None:
                slot.scan, slot.retry_seconds = None, 0
                self._unwatched.discard(slot)
                self._update_stats(slot, invalidations=root not in counted)
                counted.add(root)
