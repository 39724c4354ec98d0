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

from foveate.engine.board import Sample

VARIABLE = "FOVEATE_METRICS"
"""By which workers are told of the folder."""

_PREFIX = "foveate-metrics-"
_LIVE, _DEAD, _NEW = ".live", ".dead", ".new"
# A folder in which nothing has changed for so long is not one that workers write to.
_STILL_SECONDS = 60.0


def prepare(environment: MutableMapping[str, str], *, within: Path | None = None) -> Path:
    """A fresh folder, which `environment` names from now on; to be removed at the end.

    It is made `within` the usual place for such things, and those that are left there by processes that were
    killed are removed.
    """
    within = within or Path(tempfile.gettempdir())
    _remove_left(within)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=within))
    _locked(folder)  # to the end of this process, by which others see that it is there
    environment[VARIABLE] = str(folder)
    return folder


def _remove_left(within: Path) -> None:
    for folder in within.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or somebody else removes it too
            if time.time() - folder.stat().st_mtime < _STILL_SECONDS:
                continue
            held = _locked(folder)
            if held is not None:
                remove(folder)
                os.close(held)


def _locked(folder: Path) -> int | None:
    """A descriptor by which a folder is held for this process; None where another one holds it.

    A lock, and no process id: those of a container mean nothing outside.
    """
    import fcntl  # not on Windows

    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return None
    return found


def folder_in(environment: Mapping[str, str]) -> Path | None:
    """The folder that a worker was told of; None where there is only one process."""
    said = environment.get(VARIABLE)
    return Path(said) if said else None


def mark_dead(pid: int, folder: Path) -> None:
    """Have what a worker was doing shown no longer: it has ended."""
    with suppress(FileNotFoundError):
        (folder / f"{pid}{_LIVE}").replace(folder / f"{pid}{_DEAD}")


def remove(folder: Path) -> None:
    """Remove the folder with all numbers in it."""
    shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, samples: Iterable[Sample]) -> None:
    """Put the numbers of this process there, in the place of those from before."""
    fresh, data = folder / f"{os.getpid()}{_NEW}", msgspec.json.encode(list(samples))
    try:
        fresh.write_bytes(data)
    except FileNotFoundError:
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh.write_bytes(data)
    fresh.replace(folder / f"{os.getpid()}{_LIVE}")


def others(folder: Path) -> list[tuple[list[Sample], bool]]:
    """The numbers of all other workers, and whether each is alive."""
    found = []
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        if path.suffix not in (_LIVE, _DEAD) or path.stem == str(os.getpid()):
            continue
        with suppress(FileNotFoundError):  # it has just been marked
            found.append((msgspec.json.decode(path.read_bytes(), type=list[Sample]), path.suffix == _LIVE))
    return found
