"""Forked `foveate` commands: tests that start many of them need not load the package for each.

`COMMAND` stands for `python -m foveate`, also in scripts of shells: it runs in a fork of a server that has
loaded everything (see `fork_client`). The process that a test starts is the client: `command_pid` returns the
id of the command's own process. `REAL_COMMAND` is for tests of how a command starts.
"""

import atexit
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
REAL_COMMAND = [sys.executable, "-m", "foveate"]
_folder = tempfile.TemporaryDirectory(prefix="foveate-fork-", ignore_cleanup_errors=True)
_SOCKET = f"{_folder.name}/socket"
COMMAND = [sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), _SOCKET]


@cache
def ensure_running() -> None:
    """Start the server if it does not run yet; it ends with this process."""
    if sys.platform != "linux":  # the client then runs the real command
        return
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.fork_server", _SOCKET],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline(), "the fork server did not start"
    server.stdout.close()
    atexit.register(server.wait)
    atexit.register(server.stdin.close)


def command_pid(client_pid: int) -> int:
    """Return the id of the process that runs the command, once the client or the command itself has started."""
    process = Path(f"/proc/{client_pid}")
    while _SOCKET.encode() in (process / "cmdline").read_bytes().split(b"\0"):
        name = (process / "comm").read_text(encoding="utf-8").strip()
        if name.isdecimal():
            return int(name)
        time.sleep(0.001)
    return client_pid
