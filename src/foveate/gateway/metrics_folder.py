"""Where the workers of one gateway put their numbers, so that `/metrics` of any of them shows those of all.

Whoever starts workers calls `prepare` first, and starts them with the environment that it leaves. The folder is
made for each start: numbers of an earlier one would be counted again. Each worker writes a file of its own,
every second and at its end. A worker that dies keeps what it counted in the sums; what it was doing is shown no
longer once it is marked as dead.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

import msgspec

from foveate.engine.board import Sample

VARIABLE = "FOVEATE_METRICS"
"""By which workers are told of the folder."""

_PREFIX = "foveate-metrics-"
_LIVE, _DEAD, _NEW = ".live", ".dead", ".new"


def prepare(environment: MutableMapping[str, str]) -> Path:
    """A fresh folder, which `environment` names from now on; to be removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    environment[VARIABLE] = str(folder)
    return folder


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
    fresh = folder / f"{os.getpid()}{_NEW}"
    fresh.write_bytes(msgspec.json.encode(list(samples)))
    fresh.replace(folder / f"{os.getpid()}{_LIVE}")


def others(folder: Path) -> list[tuple[list[Sample], bool]]:
    """The numbers of all other workers, and whether each is alive."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix not in (_LIVE, _DEAD) or path.stem == str(os.getpid()):
            continue
        with suppress(FileNotFoundError):  # it has just been marked
            found.append((msgspec.json.decode(path.read_bytes(), type=list[Sample]), path.suffix == _LIVE))
    return found
