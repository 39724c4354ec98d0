"""Another process that locks an SQLite file."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SCRIPT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN " + sys.argv[2])
print("locked", flush=True)
sys.stdin.readline()
"""


@contextmanager
def locked_by_another_process(path: Path, lock: str = "EXCLUSIVE") -> Iterator["subprocess.Popen[str]"]:
    """Hold a lock until the block ends. Others can still read a file with an `IMMEDIATE` lock."""
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(path), lock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()
