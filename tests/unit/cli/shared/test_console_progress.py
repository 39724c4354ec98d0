"""The progress line, and how it is erased."""

import io
import time
from contextlib import redirect_stderr
from threading import Event

import pytest

from foveate.cli.shared.console import show_progress


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

    line = "foveate: counting… 1 s"
    assert terminal.getvalue() == f"{line}\r{' ' * len(line)}\r"


@pytest.mark.slow
def test_the_progress_line_counts_the_seconds_and_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    terminal = SlowTerminal()
    with redirect_stderr(terminal), show_progress("reading the ledger"):
        time.sleep(2.5)

    first, second = (f"foveate: reading the ledger… {seconds} s"[:29] for seconds in (1, 2))
    blanks = f"\r{' ' * 29}\r"
    assert terminal.getvalue() == f"{first}{blanks}{second}{blanks}"


def test_a_short_action_shows_no_progress() -> None:
    terminal = SlowTerminal()
    with redirect_stderr(terminal), show_progress("counting"):
        pass

    assert terminal.getvalue() == ""
