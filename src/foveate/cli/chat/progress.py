"""A progress line with the elapsed time, for work that takes longer than a second."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from foveate.cli.shared import console

_UPDATE_SECONDS = 0.5


@contextmanager
def show_progress(
    activity: str,
    *,
    hint: str = "",
    stream: TextIO | None = None,
    after_seconds: float = console.PROGRESS_AFTER_SECONDS,
) -> Iterator[None]:
    """Show a line such as `Waiting for gpt-5.4 … 12 s` on standard error, and erase it at the end.

    A thread updates it, so it moves even while the event loop is busy. There is no line unless the stream is a
    terminal that can erase it.
    """
    terminal = stream or sys.stderr
    if terminal is None or not terminal.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    is_ended = Event()
    thread = Thread(target=_draw_until, args=(is_ended, terminal, activity, hint, after_seconds), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_ended.set()
        thread.join()


def _draw_until(is_ended: Event, stream: TextIO, activity: str, hint: str, after_seconds: float) -> None:
    started, cells, delay = time.monotonic(), 0, after_seconds
    while not is_ended.wait(delay):
        display = console.display_for(stream)
        ellipsis = "…" if display.can_show("…") else "..."
        line = f"{display.escape(activity)} {ellipsis} {_format_seconds(time.monotonic() - started)}{hint}"
        if cell_len(line) >= display.columns:  # only one line can be erased
            line = set_cell_size(line, max(0, display.columns - 1))
        _write(stream, f"\r{line}{' ' * (cells - cell_len(line))}")
        cells, delay = cell_len(line), _UPDATE_SECONDS
    if cells:
        _write(stream, f"\r{' ' * cells}\r")  # works on every terminal


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # the terminal was closed
        return


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
