"""Run a program in the foreground: terminal, signals and exit code are passed through."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from foveate.errors import CannotStart

_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
# A terminal sends these to the agent as well; only the agent decides what they mean.
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_SIGNAL_CODE = 128


def run_in_foreground(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program until it ends, and return its exit code; 128 and the number of the signal that ended it.

    It stays in the process group of this process, so that Ctrl-C, Ctrl-Z and `fg` work.

    Raises:
        CannotStart: there is no such program, or it cannot be executed.
    """
    with _saved_terminal(), _handled_signals() as target:
        try:
            process = subprocess.Popen(list(arguments), env=dict(environment))
        except OSError as error:
            raise CannotStart(arguments[0], error.strerror or str(error)) from None
        target.append(process.pid)
        return _wait(process)


def _wait(process: "subprocess.Popen[bytes]") -> int:
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            # The agent has stopped itself: stop too, so that the shell takes over, until `fg` continues both.
            if sys.stdin is not None and sys.stdin.isatty():
                os.kill(os.getpid(), signal.SIGSTOP)
            continue
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code
        return _SIGNAL_CODE - code if code < 0 else code


@contextmanager
def _handled_signals() -> Iterator[list[int]]:
    """Forward signals to the agent, unless a terminal sends them to both; yields a list for its process id."""
    target: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        for pid in target:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def forward_without_terminal(number: int, frame: FrameType | None) -> None:
        if not _is_in_foreground():
            forward(number, frame)

    previous: dict[int, Any] = {number: signal.signal(number, forward) for number in _FORWARDED}
    previous |= {number: signal.signal(number, forward_without_terminal) for number in _OF_TERMINAL}
    try:
        yield target
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Return whether the terminal sends its signals to this process and the agent."""
    try:
        with Path("/dev/tty").open("rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextmanager
def _saved_terminal() -> Iterator[None]:
    """Restore the terminal afterwards: an agent that is killed leaves it in raw mode."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    attributes = termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        # In the background this would stop the process.
        if os.tcgetpgrp(descriptor) == os.getpgrp():
            termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)
