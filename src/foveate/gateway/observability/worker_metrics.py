"""Where the workers of one gateway put their numbers, so that `/metrics` of any of them shows those of all.

Whoever starts workers calls `prepare` first, and starts them with the environment that it leaves. The folder is
made for each start: numbers of an earlier one would be counted again. Each worker writes a file of its own,
every second and at its end; where somebody has cleaned the folder away, it is made anew. A worker that dies
keeps what it counted in the sums; what it was doing is shown no longer once it is marked as dead.
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
"""By which workers are told of the folder."""

_PREFIX = "foveate-metrics-"
_LIVE_SUFFIX, _DEAD_SUFFIX, _NEW_SUFFIX = ".live", ".dead", ".new"
# A folder in which nothing has changed for so long is not one that workers write to.
_STALE_SECONDS = 60.0


def create_folder(environment: MutableMapping[str, str], *, parent: Path | None = None) -> Path:
    """A fresh folder, which `environment` names from now on; to be removed at the end.

    It is made `within` the usual place for such things, and those that are left there by processes that were
    killed are removed.
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_stale_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    _try_lock(folder)  # to the end of this process, by which others see that it is there
    environment[FOLDER_VARIABLE] = str(folder)
    return folder


def _remove_stale_folders(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or somebody else removes it too
            if time.time() - folder.stat().st_mtime < _STALE_SECONDS:
                continue
            lock = _try_lock(folder)
            if lock is not None:
                remove_folder(folder)
                os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """A descriptor by which a folder is held for this process; None where another one holds it.

    A lock, and no process id: those of a container mean nothing outside.
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
    """The folder that a worker was told of; None where there is only one process."""
    path = environment.get(FOLDER_VARIABLE)
    return Path(path) if path else None


def mark_worker_dead(pid: int, folder: Path) -> None:
    """Have what a worker was doing shown no longer: it has ended."""
    with suppress(FileNotFoundError):
        (folder / f"{pid}{_LIVE_SUFFIX}").replace(folder / f"{pid}{_DEAD_SUFFIX}")


def remove_folder(folder: Path) -> None:
    """Remove the folder with all numbers in it."""
    shutil.rmtree(folder, ignore_errors=True)


def write_samples(folder: Path, samples: Iterable[Sample]) -> None:
    """Put the numbers of this process there, in the place of those from before."""
    fresh, data = folder / f"{os.getpid()}{_NEW_SUFFIX}", msgspec.json.encode(list(samples))
    try:
        fresh.write_bytes(data)
    except FileNotFoundError:
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh.write_bytes(data)
    fresh.replace(folder / f"{os.getpid()}{_LIVE_SUFFIX}")


def read_other_workers(folder: Path) -> list[tuple[list[Sample], bool]]:
    """The numbers of all other workers, and whether each is alive."""
    workers = []
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        if path.suffix not in (_LIVE_SUFFIX, _DEAD_SUFFIX) or path.stem == str(os.getpid()):
            continue
        with suppress(FileNotFoundError):  # it has just been marked
            workers.append(
                (msgspec.json.decode(path.read_bytes(), type=list[Sample]), path.suffix == _LIVE_SUFFIX)
            )
    return workers
