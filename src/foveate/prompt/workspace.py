"""Workspaces: the files that every prompt of an agent carries, read once and kept until they change."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Self

from foveate.errors import BadOption
from foveate.memory.gate import Gate
from foveate.prompt.bundles import Bundle, Trouble, Workspace, blank_names, settled
from foveate.prompt.contents import read
from foveate.prompt.sources import Happened, Sight, look
from foveate.prompt.watching import Change, Watcher
from foveate.tokens.caches import register

__all__ = [
    "Bundle",
    "Trouble",
    "Workspace",
    "WorkspaceCacheOptions",
    "WorkspaceCounts",
    "Workspaces",
    "read_bundle",
]

UNWATCHED_SECONDS = 5.0
"""How long a bundle holds where changes are not seen and no `max_age_seconds` is set."""

# A file that is emptied to be written again is empty for much less.
_BLANK_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCacheOptions:
    """How bundles are kept. A `max_age_seconds` of 0 is none: only a change makes them be read again."""

    enabled: bool = True
    watch_debounce_ms: float = 500
    max_age_seconds: float = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            BadOption: names the option.
        """
        if not isinstance(self.enabled, bool):
            raise BadOption(f"enabled is true or false, not {self.enabled!r}", path=("enabled",))
        for name, unit in (("watch_debounce_ms", "milliseconds"), ("max_age_seconds", "seconds")):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and isfinite(value) and value >= 0):
                raise BadOption(f"{name} is a number of {unit}, 0 or more, not {value!r}", path=(name,))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCounts:
    """How often bundles of a root were there already, had to be read, and were dropped for a change."""

    hits: int = 0
    misses: int = 0
    invalidations: int = 0


@dataclass(slots=True, eq=False)
class _Slot:
    """A workspace, what was last known of it, and how sure that is. Guarded by the lock of its `Workspaces`."""

    workspace: Workspace
    reading: Lock = field(default_factory=Lock)
    """Held by whoever reads its files, so that nobody else does."""
    bundle: Bundle | None = None
    """The last one; it holds as long as `sight` is there."""
    sight: Sight | None = None
    read_at: float = -inf
    retry_seconds: float = 0
    """How long what is wrong in it is borne; 0 where nothing is."""
    blank_since: dict[str, float] = field(default_factory=dict)
    is_watched: bool = False


def read_bundle(workspace: Workspace, gate: Gate, last: Bundle | None = None) -> Bundle:
    """The bundle of a workspace, read now; what cannot be had stays as it was in the `last` one."""
    return settled(workspace, read(look(workspace), gate), last, frozenset())


class Workspaces:
    """Bundles, each read when it is first asked for, and again when a file of its workspace has changed.

    Safe to share between threads: those that ask for the same bundle at once wait for one reading. Has a thread
    of its own from the first bundle on; `close` ends it, and so does leaving a `with`.
    """

    def __init__(
        self,
        gate: Gate,
        options: WorkspaceCacheOptions | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Nothing is read yet. `clock` gives seconds and never goes back."""
        self._gate = gate
        self._options = options or WorkspaceCacheOptions()
        self._clock = clock
        self._lock = Lock()
        self._slots: dict[Workspace, _Slot] = {}
        self._unwatched: set[_Slot] = set()
        self._counts: dict[str, WorkspaceCounts] = {}
        self._blind = ""
        self._watcher = Watcher(self, debounce_seconds=self._options.watch_debounce_ms / 1000)
        register(self)

    def __enter__(self) -> Self:
        """Itself; leaving closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Watch no longer. Bundles can still be asked for, and are read again when they are old."""
        self._watcher.close()

    def bundle(self, workspace: Workspace, *, enabled: bool | None = None) -> Bundle:
        """The bundle of `workspace`: the one that is kept, or read now. `enabled` overrides the option.

        Files that cannot be had are warnings in it, never an error.
        """
        if not (self._options.enabled if enabled is None else enabled):
            return read_bundle(workspace, self._gate)
        self._watcher.ensure()
        with self._lock:
            slot = self._slots.get(workspace) or self._slots.setdefault(workspace, _Slot(workspace))
            found = self._held(slot)
        if found is None:
            with slot.reading:
                with self._lock:
                    found = self._held(slot)  # by another thread, while this one waited
                found = found or self._read(slot)
        if self._blind:
            return replace(found, warnings=(*found.warnings, self._blindness(workspace)))
        return found

    def kept(self, workspace: Workspace) -> Bundle | None:
        """The bundle of `workspace` that is kept and holds still; None where `bundle` would have to read it.

        For an event loop: no file is touched.
        """
        self._watcher.ensure()
        with self._lock:
            slot = self._slots.get(workspace)
            return None if slot is None or self._blind else self._held(slot)

    def counts(self) -> Mapping[str, WorkspaceCounts]:
        """How often bundles were kept, read and dropped, by root."""
        with self._lock:
            return dict(self._counts)

    def drop(self) -> None:
        """Forget every bundle, also what it said before, and those that are being read now."""
        with self._lock:
            self._slots.clear()
            self._unwatched.clear()

    def _held(self, slot: _Slot) -> Bundle | None:
        """The bundle, if it holds still."""
        if slot.sight is None or self._clock() - slot.read_at >= self._age_limit(slot):
            return None
        self._count(slot, hits=1)
        return slot.bundle

    def _age_limit(self, slot: _Slot) -> float:
        """After how many seconds a bundle is read again."""
        limit = self._options.max_age_seconds or (inf if slot.is_watched else UNWATCHED_SECONDS)
        return min(limit, slot.retry_seconds or inf)

    def _read(self, slot: _Slot) -> Bundle:
        began = self._clock()
        sight = look(slot.workspace)
        reading = read(sight, self._gate)
        with self._lock:
            slot.blank_since = {name: slot.blank_since.get(name, began) for name in blank_names(reading)}
            blanked = {name for name, since in slot.blank_since.items() if began - since >= _BLANK_SECONDS}
            bundle = settled(slot.workspace, reading, slot.bundle, blanked)
            again = min(2 * slot.retry_seconds or _FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
            slot.retry_seconds = 0 if all(warning.is_lasting for warning in bundle.warnings) else again
            slot.bundle, slot.sight, slot.read_at, slot.is_watched = bundle, sight, began, False
            if self._slots.get(slot.workspace) is slot:  # and all was not dropped meanwhile
                self._unwatched.add(slot)
            self._count(slot, misses=1)
        return bundle

    def _blindness(self, workspace: Workspace) -> Trouble:
        seconds = self._options.max_age_seconds or UNWATCHED_SECONDS
        return Trouble(
            workspace.root,
            f"changes are not noticed ({self._blind}), so files are read again after {seconds:g} seconds",
        )

    def _count(self, slot: _Slot, *, hits: int = 0, misses: int = 0, invalidations: int = 0) -> None:
        now = self._counts.get(slot.workspace.root, WorkspaceCounts())
        self._counts[slot.workspace.root] = WorkspaceCounts(
            hits=now.hits + hits,
            misses=now.misses + misses,
            invalidations=now.invalidations + invalidations,
        )

    # What follows is for the watcher, in its thread.

    def unwatched(self) -> frozenset[str]:
        """The folders of the bundles that are not watched yet."""
        with self._lock:
            return frozenset().union(*(slot.sight.folders for slot in self._unwatched if slot.sight))

    def folders(self) -> frozenset[str]:
        """The folders of all bundles that are kept."""
        with self._lock:
            return frozenset().union(*(slot.sight.folders for slot in self._slots.values() if slot.sight))

    def watched(self, folders: frozenset[str]) -> None:
        """Trust the bundles in these folders, unless something changed between their reading and now."""
        with self._lock:
            self._blind = ""
            new = [(slot, slot.sight, slot.bundle) for slot in self._unwatched]
        for slot, sight, bundle in new:
            if sight is None or bundle is None or not sight.own_folders <= folders:
                continue
            is_same = self._is_same(sight, bundle)
            with self._lock:
                if slot.sight is not sight:  # it was read again meanwhile
                    continue
                if is_same:
                    slot.is_watched = True
                    self._unwatched.discard(slot)
                else:
                    self._invalidate({slot.workspace.root})

    def _is_same(self, sight: Sight, bundle: Bundle) -> bool:
        """Whether the files are still as they were when they were read."""
        now = look(bundle.workspace)
        if now != sight or not sight.is_young:
            return now == sight
        again = settled(bundle.workspace, read(now, self._gate), bundle, frozenset())
        return again.version == bundle.version

    def is_concerned(self, changes: Set[Change]) -> bool:
        """Whether any of these matters to a bundle that is kept."""
        return bool(self._touched(changes))

    def changed(self, changes: frozenset[Change]) -> None:
        """Drop the bundles of every root in which something changed that matters."""
        touched = self._touched(changes)
        with self._lock:
            self._invalidate(touched)

    def _touched(self, changes: Set[Change]) -> set[str]:
        with self._lock:
            kept = [(slot.workspace.root, slot.sight) for slot in self._slots.values() if slot.sight]
        happened = Happened.of(changes)
        return {root for root, sight in kept if sight.is_touched(happened)}

    def lost(self, reason: str) -> None:
        """Trust no bundle for longer than its age allows."""
        with self._lock:
            self._blind = reason
            for slot in self._slots.values():
                slot.is_watched = False
                if slot.sight is not None:
                    self._unwatched.add(slot)

    def _invalidate(self, roots: set[str]) -> None:
        told: set[str] = set()
        for slot in self._slots.values():
            root = slot.workspace.root
            if root in roots and slot.sight is not None:
                slot.sight, slot.retry_seconds = None, 0
                self._unwatched.discard(slot)
                self._count(slot, invalidations=root not in told)
                told.add(root)
