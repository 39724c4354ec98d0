"""Run `foveate` as users do, in a process of its own."""

import json
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes.forked_commands import COMMAND, command_pid

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "NO_COLOR")
WITHOUT_KEYS = {name: value for name, value in os.environ.items() if name not in KEYS}
ESCAPE = "\x1b"


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> dict[str, str]:
        """Rows of a table by name."""
        lines = [line.rsplit(maxsplit=1) for line in self.out.splitlines()]
        return {line[0].strip(): line[1] for line in lines if len(line) == 2}


def to_outcome(process: "subprocess.CompletedProcess[bytes]") -> Outcome:
    return Outcome(process.returncode, process.stdout.decode(), process.stderr.decode())


def spawn(
    *arguments: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None, command: Sequence[str] = ()
) -> Outcome:
    return to_outcome(
        subprocess.run(
            [*(command or COMMAND), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
            env=WITHOUT_KEYS | (env or {}),
        )
    )


def on_terminal(*arguments: str, env: dict[str, str] | None = None, columns: int = 0) -> str:
    """Return what the command shows on a terminal, standard error included; 0 columns means unknown."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=WITHOUT_KEYS | {"TERM": "xterm", "COLUMNS": ""} | (env or {}),
    ) as process:
        os.close(terminal)
        output = b""
        while select.select([controller], [], [], 60)[0]:
            try:
                output += os.read(controller, 4096)
            except OSError:  # the other side was closed
                break
        process.wait(60)
    os.close(controller)
    return output.decode()


def wait_until_open(path: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while not any(is_link_to(path, link) for link in Path(f"/proc/{command_pid(process.pid)}/fd").iterdir()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_link_to(path: Path, link: Path) -> bool:
    try:
        return link.readlink() == path
    except FileNotFoundError:  # already closed
        return False


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
