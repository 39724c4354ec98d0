"""The progress line, and how it is erased."""

import io
import time
from contextlib import redirect_stderr
from threading import Event

import pytest

from foveate.cli.console import show_progress


class SlowTerminal(io.StringIO):
    """A terminal that writes slowly, and signals the first write."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written_to = Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.is_written_to.set()
        time.sleep(0.05)
        return super().write(text)


@pytest.mark.slow
def test_the_progress_line_is_erased_even_if_the_end_comes_while_it_is_written() -> None:
    """Defect: it stayed, in front of the next output."""
    terminal = SlowTerminal()
    with redirect_stderr(terminal), show_progress("counting"):
        assert terminal.is_written_to.wait(30)

    line = "foveate: counting …"
    assert terminal.getvalue() == f"{line}\r{' ' * len(line)}\r"


def test_a_short_action_shows_no_progress() -> None:
    terminal = SlowTerminal()
    with redirect_stderr(terminal), show_progress("counting"):
        pass

    assert terminal.getvalue() == ""
