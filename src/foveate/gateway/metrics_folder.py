"""Where the workers of one gateway put their numbers, so that `/metrics` of any of them shows those of all.

A folder is made for each start: numbers of an earlier one would be counted again. It has to be there before the
first number is counted, so whoever starts workers calls `prepare` first, and starts them with the environment
that it leaves. A worker that dies keeps what it counted in the sums; what it was doing is no longer shown once
it is marked as dead.
"""

import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus-client looks for the folder, when it is first loaded."""

_PREFIX = "foveate-metrics-"


def prepare(environment: MutableMapping[str, str] = os.environ) -> Path:
    """A fresh folder, which the environment names from now on; to be removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    environment[VARIABLE] = str(folder)
    return folder


def mark_dead(pid: int, folder: Path) -> None:
    """Have the gauges of a worker that has ended shown no longer."""
    for left in folder.glob(f"gauge_live*_{pid}.db"):
        left.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove the folder with all numbers in it."""
    shutil.rmtree(folder, ignore_errors=True)
