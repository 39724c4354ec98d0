"""Folders that one worker of a test run makes for all of them."""

import fcntl
from collections.abc import Callable
from pathlib import Path

from tests.support.processes.forked_commands import SHARED_FOLDER


def make_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that the first worker makes, while the others wait for it."""
    folder = SHARED_FOLDER / name
    with (SHARED_FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder
