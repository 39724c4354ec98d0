"""`foveate serve` in a process of its own, as users start it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import forked_commands
from tests.support.stores.templates import ensure_store

SERVE_ARGUMENTS = ("serve", "--port", "0", "--json")
SERVE_COMMAND = (*forked_commands.COMMAND, *SERVE_ARGUMENTS)
# For a scripted upstream, which closes each connection after its response.
UPSTREAMS_WITHOUT_REUSE = """
upstreams:
  anthropic: {{base_url: '{url}', reuse: false}}
  openai: {{base_url: '{url}/v1', reuse: false}}
"""
TOTAL_CAP = "cost: {caps: [{scope: total, dollars: 5}]}\n"


@dataclass(frozen=True)
class GatewayProcess:
    """URL of a gateway, the JSON object that it printed when ready, and its process."""

    url: str
    ready_object: dict[str, Any]
    process: "subprocess.Popen[str]"

    @property
    def pid(self) -> int:
        return forked_commands.command_pid(self.process.pid)

    def workers(self) -> list[int]:
        pids = []
        for client_pid in child_pids(self.pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended by now
                pids.append(forked_commands.command_pid(client_pid))
        return pids

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for_exit(self, *, within_seconds: float = 30) -> tuple[int, str]:
        """Return the exit code and standard error."""
        _, errors = self.process.communicate(timeout=within_seconds)
        return self.process.returncode, errors


@contextmanager
def gateway_process(
    folder: Path, *options: str, forked: bool = True, **environment: str
) -> Iterator[GatewayProcess]:
    """Run a gateway with `folder` as data and working folder, until the end of the block.

    Its store exists already unless `FOVEATE_STORE` is set. Without `forked`, it is started as users do.
    """
    if "FOVEATE_STORE" not in environment:
        ensure_store(folder / "foveate.sqlite")
    if forked:
        forked_commands.ensure_running()
    process = subprocess.Popen(
        [*(forked_commands.COMMAND if forked else forked_commands.REAL_COMMAND), *SERVE_ARGUMENTS, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "FOVEATE_HOME": str(folder), **environment},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        ready_object = json.loads(line)
        yield GatewayProcess(url=ready_object["url"], ready_object=ready_object, process=process)
    finally:
        process.kill()
        process.communicate()


def write_config(path: Path, sandbox_url: str, more: str = "") -> None:
    """Write a configuration that sends everything to a sandbox, atomically."""
    new_file = path.with_suffix(".new")
    upstreams = f"  anthropic: {{base_url: '{sandbox_url}'}}\n  openai: {{base_url: '{sandbox_url}/v1'}}\n"
    new_file.write_text(f"upstreams:\n{upstreams}{more}")
    new_file.replace(path)


def child_pids(pid: int) -> list[int]:
    process = subprocess.run(["ps", "-Ao", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in process.stdout.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]


def wait_until_gone(pids: list[int], *, within_seconds: float) -> None:
    deadline = time.monotonic() + within_seconds
    while remaining := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still there: {remaining}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    process = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(process.stdout.strip()) and not process.stdout.strip().startswith("Z")
