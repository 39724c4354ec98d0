"""Forked `foveate` commands: tests that start many of them need not load the package for each.

`COMMAND` stands for `python -m foveate`, also in scripts of shells: it runs in a fork of a server that has
loaded everything (see `fork_client`). The process that a test starts is the client: `command_pid` returns the
id of the command's own process. `REAL_COMMAND` is for tests of how a command starts.
"""

import atexit
import fcntl
import os
import shlex
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from tests.support.processes.fork_client import READ_AT_START

ROOT = Path(__file__).parents[3]
REAL_COMMAND = [sys.executable, "-m", "foveate"]
_VARIABLE = "FORK_SERVER_FOLDER"
_servers: list["subprocess.Popen[bytes]"] = []


def _shared_folder() -> Path:
    """Return the folder that all workers of a test run share, for the server's socket and other files."""
    if _VARIABLE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="foveate-fork-", ignore_cleanup_errors=True)
        os.mkfifo(f"{folder.name}/lifeline")
        atexit.register(folder.cleanup)
        atexit.register(os.close, os.open(f"{folder.name}/lifeline", os.O_RDWR))
        os.environ[_VARIABLE] = folder.name
    return Path(os.environ[_VARIABLE])


SHARED_FOLDER = _shared_folder()
_SOCKET = str(SHARED_FOLDER / "socket")
COMMAND = [sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), _SOCKET]


@cache
def ensure_running() -> None:
    """Start the server unless another worker has; it ends with the process that started the test run."""
    if sys.platform != "linux":  # the client then runs the real command
        return
    with (
        (SHARED_FOLDER / "lock").open("w") as lock,
        (SHARED_FOLDER / "lifeline").open("rb", buffering=0) as lifeline,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if Path(_SOCKET).exists():
            return
        python = SHARED_FOLDER / "python"  # for commands that start modules of the package
        python.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.fork_server", _SOCKET],
            cwd=ROOT,
            stdin=lifeline,
            stdout=subprocess.PIPE,
        )
        _servers.append(server)  # it may outlive this process, which is not to warn about that
        assert server.stdout is not None
        with server.stdout:
            assert server.stdout.readline(), "the fork server did not start"


def required_variables() -> dict[str, str]:
    """Return the variables without which a command with an environment of its own is not forked."""
    return {name: value for name, value in os.environ.items() if name.startswith(READ_AT_START)}


def command_pid(client_pid: int) -> int:
    """Return the id of the process that runs the command, once the client or the command itself has started."""
    process = Path(f"/proc/{client_pid}")
    # The client, or the script that starts it.
    while f"\0{SHARED_FOLDER}/".encode() in (process / "cmdline").read_bytes():
        name = (process / "comm").read_text(encoding="utf-8").strip()
        if name.isdecimal():
            return int(name)
        time.sleep(0.001)
    return client_pid
