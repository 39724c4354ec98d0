"""Progress of long work: shown after a while with the elapsed time, and erased."""

import re
import time
from io import StringIO

import pyte

from foveate.cli.chat.progress import show_progress


class FakeTerminal(StringIO):
    def isatty(self) -> bool:
        return True


def screen_of(stream: StringIO) -> str:
    screen = pyte.Screen(80, 3)
    pyte.Stream(screen).feed(stream.getvalue())
    return "".join(screen.display).strip()


def test_long_work_is_shown_with_its_time_and_erased() -> None:
    stream = FakeTerminal()
    with show_progress("Counting\x1b tokens", hint=" (Ctrl-C cancels)", stream=stream, after_seconds=0.01):
        deadline = time.monotonic() + 30
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        shown = screen_of(stream)

    assert re.fullmatch(r"Counting\\x1b tokens … \d+ s \(Ctrl-C cancels\)", shown)
    assert screen_of(stream) == ""


def test_short_work_and_pipes_have_no_progress_line() -> None:
    terminal, pipe = FakeTerminal(), StringIO()
    for stream, after_seconds in ((terminal, 5), (pipe, 0)):
        with show_progress("Counting", stream=stream, after_seconds=after_seconds):
            time.sleep(0.02)

    assert terminal.getvalue() == pipe.getvalue() == ""
