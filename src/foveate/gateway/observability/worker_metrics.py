"""Shares metrics between the workers of a gateway, so that `/metrics` of any worker shows all of them.

The supervisor calls `create_folder` first and passes its environment on to the workers. The folder is new at
each start, so that old metrics are not counted again. Each worker writes its own file, every second and at its
end, and recreates the folder if somebody deleted it. The counters of a dead worker stay in the sums; its gauges
are dropped once it is marked as dead.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

import msgspec

from foveate.engine.metrics.registry import Sample

FOLDER_VARIABLE = "FOVEATE_METRICS"
"""Environment variable that names the folder."""

_PREFIX = "foveate-metrics-"
_LIVE_SUFFIX, _DEAD_SUFFIX, _NEW_SUFFIX = ".live", ".dead", ".new"
# Folders unchanged for this long are not in use.
_STALE_SECONDS = 60.0


def create_folder(environment: MutableMapping[str, str], *, parent: Path | None = None) -> Path:
    """Create the folder and name it in `environment`; the caller removes it at the end.

    It is created in `parent`, by default the system's temporary folder. Folders left behind by killed processes
    are removed.
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_stale_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    _try_lock(folder)  # held until this process ends, so that others see that the folder is in use
    environment[FOLDER_VARIABLE] = str(folder)
    return folder


def _remove_stale_folders(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's folder, or another process removes it too
            if time.time() - folder.stat().st_mtime < _STALE_SECONDS:
                continue
            lock = _try_lock(folder)
            if lock is not None:
                remove_folder(folder)
                os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """Lock a folder for this process and return the descriptor; None if another process holds it.

    A lock works across containers, unlike a process id.
    """
    import fcntl  # not on Windows

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def find_folder(environment: Mapping[str, str]) -> Path | None:
    """None if there is only one process."""
    path = environment.get(FOLDER_VARIABLE)
    return Path(path) if path else None


def mark_worker_dead(pid: int, folder: Path) -> None:
    """Drop the gauges of a worker that has ended."""
    with suppress(FileNotFoundError):
        (folder / f"{pid}{_LIVE_SUFFIX}").replace(folder / f"{pid}{_DEAD_SUFFIX}")


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def write_samples(folder: Path, samples: Iterable[Sample]) -> None:
    fresh, data = folder / f"{os.getpid()}{_NEW_SUFFIX}", msgspec.json.encode(list(samples))
    try:
        fresh.write_bytes(data)
    except FileNotFoundError:
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh.write_bytes(data)
    fresh.replace(folder / f"{os.getpid()}{_LIVE_SUFFIX}")


def read_other_workers(folder: Path) -> list[tuple[list[Sample], bool]]:
    """Return the metrics of all other workers, and whether each is alive."""
    workers = []
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        if path.suffix not in (_LIVE_SUFFIX, _DEAD_SUFFIX) or path.stem == str(os.getpid()):
            continue
        with suppress(FileNotFoundError):  # it has just been marked as dead
            workers.append(
                (msgspec.json.decode(path.read_bytes(), type=list[Sample]), path.suffix == _LIVE_SUFFIX)
            )
    return workers
