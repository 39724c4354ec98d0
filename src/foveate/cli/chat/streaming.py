"""Write a streamed answer to a terminal: Markdown rendered, thinking dimmed, tool calls named."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from foveate.chat.responses import FragmentKind, ResponseFragment
from foveate.cli.chat.wrapping import WordWrapper, escape_for_terminal
from foveate.cli.shared.console import Display, escape_control_chars

if TYPE_CHECKING:
    from foveate.cli.chat.markdown import MarkdownBlock

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_ERASE_LINE_END, _ERASE_BELOW = "\x1b[K", "\x1b[J"
# The block in progress is drawn again at most this often, and at most this share of the time.
_DRAW_SECONDS = 0.05
_MAX_DRAW_SHARE = 0.2
_DEFAULT_ROWS = 24
# Rows that stay free below the block in progress: that of the cursor, and one against rounding of heights.
_SPARE_ROWS = 2


def terminal_rows(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).lines or _DEFAULT_ROWS
    except (OSError, ValueError):
        return _DEFAULT_ROWS


class AnswerWriter:
    """Writes the fragments of one answer to a terminal. Calls `on_start` before the first.

    With `renders_markdown`, a complete block of Markdown is written once; only the block in progress is drawn
    again as it grows. Call `refresh` now and then, so that text is drawn even if no more arrives. Without, text
    is written as it arrives, broken between words.
    """

    def __init__(
        self,
        stream: TextIO,
        display: Callable[[], Display],
        on_start: Callable[[], None] = lambda: None,
        *,
        renders_markdown: bool = False,
        rows: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._display = display
        self._on_start = on_start
        self._renders_markdown = renders_markdown
        self._rows = rows or (lambda: terminal_rows(stream))
        self._clock = clock
        self._kind: FragmentKind | None = None
        self._wrapper: WordWrapper | None = None
        self._markdown: _MarkdownWriter | None = None
        self._last = "\n"
        self._pending_return = ""
        """A carriage return whose line feed may be in the next fragment."""

    def __call__(self, fragment: ResponseFragment) -> None:
        if self._kind is None:
            self._on_start()
        if fragment.kind is FragmentKind.TOOL_CALL:
            self._change(FragmentKind.TOOL_CALL)
            self._write(f"[calls {escape_control_chars(fragment.text)}]")
        else:
            if fragment.kind is not self._kind:
                self._change(fragment.kind)
            text = self._pending_return + fragment.text
            self._pending_return = "\r" if text.endswith("\r") else ""
            self._write_text(escape_for_terminal(text.removesuffix("\r")))
        self._stream.flush()

    def refresh(self) -> None:
        """Draw text that has arrived but is not shown yet."""
        if self._markdown is not None:
            self._markdown.refresh()
            self._stream.flush()

    @asynccontextmanager
    async def keep_refreshed(self) -> AsyncIterator[None]:
        """Refresh regularly until the end of the block."""
        task = asyncio.create_task(self._refresh_forever())
        try:
            yield
        finally:
            task.cancel()

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(_DRAW_SECONDS)
            self.refresh()

    def end(self) -> None:
        """Write the rest and finish the current line, so that the next output starts on a new one."""
        if self._kind is None:
            self._on_start()
        self._close()
        self._stream.flush()

    def _change(self, kind: FragmentKind) -> None:
        self._close()
        self._kind = kind
        if kind is FragmentKind.TEXT and self._renders_markdown:
            self._markdown = _MarkdownWriter(self._write, self._display, self._rows, self._clock)
        elif kind is not FragmentKind.TOOL_CALL:
            self._wrapper = WordWrapper(_line_columns(self._display()))
        if kind is FragmentKind.THINKING:
            if self._display().colours:
                self._stream.write(_DIM)
            else:
                self._write_text("(thinking) ")

    def _write_text(self, text: str) -> None:
        if self._markdown is not None:
            self._markdown.feed(text)
        elif self._wrapper is not None:
            self._wrapper.columns = _line_columns(self._display())
            self._write(self._wrapper.feed(text))

    def _close(self) -> None:
        self._pending_return = ""
        if self._markdown is not None:
            self._markdown.end()
            self._last = "\n"
        if self._wrapper is not None:
            self._write(self._wrapper.flush())
        self._markdown = self._wrapper = None
        if self._kind is FragmentKind.THINKING and self._display().colours:
            self._stream.write(_PLAIN)
        if self._last != "\n":
            self._write("\n")

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._last = text[-1:] or self._last


class _MarkdownWriter:
    """Writes Markdown block by block. The block in progress is the live region at the end of the output."""

    def __init__(
        self,
        write: Callable[[str], None],
        display: Callable[[], Display],
        rows: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._write = write
        self._display = display
        self._rows = rows
        self._clock = clock
        self._text = ""
        """Text of the block in progress, and text that is not drawn yet."""
        self._drawn_text = ""
        self._live_lines: list[str] = []
        self._scrolled_lines = 0
        """First lines of the block in progress that no longer fit the screen, and cannot be drawn again."""
        self._has_blocks = self._is_started = False
        self._is_joined = False
        """The text continues the list or the code that is finished."""
        self._next_draw = 0.0

    def feed(self, text: str) -> None:
        self._text += text
        if self._clock() >= self._next_draw:
            self._draw()

    def refresh(self) -> None:
        if self._text != self._drawn_text and self._clock() >= self._next_draw:
            self._draw()

    def end(self) -> None:
        self._draw(is_end=True)
        self._finish_block()

    def _draw(self, *, is_end: bool = False) -> None:
        from foveate.cli.chat.markdown import split_finished

        started = self._clock()
        finished, rest = split_finished(self._text, is_joined=self._is_joined)
        for block in finished:
            self._draw_block(block, is_finished=True)
            self._finish_block()
        self._draw_block(rest, is_finished=is_end)
        self._text = self._drawn_text = rest.text
        self._is_joined = rest.is_joined
        ended = self._clock()
        self._next_draw = ended + max(_DRAW_SECONDS, (ended - started) / _MAX_DRAW_SHARE)

    def _draw_block(self, block: "MarkdownBlock", *, is_finished: bool) -> None:
        from foveate.cli.chat.markdown import render_blocks

        rendered = render_blocks(block.text, Display(columns=_line_columns(self._display()), colours=True))
        lines = rendered.lines[self._scrolled_lines :]
        if lines and self._has_blocks and not self._is_started and not block.is_joined:
            self._write("\n")  # between blocks
        self._is_started = self._is_started or bool(lines)
        self._draw_lines(lines, is_finished=is_finished, can_scroll=not rendered.has_table)

    def _finish_block(self) -> None:
        if self._live_lines or self._scrolled_lines:
            self._has_blocks, self._is_started = True, False
        # Otherwise nothing is left of the block but the empty line before it, which serves the next one.
        self._live_lines, self._scrolled_lines = [], 0

    def _draw_lines(self, lines: list[str], *, is_finished: bool, can_scroll: bool) -> None:
        """Replace the live lines. Lines that are the same stay untouched, so nothing flickers."""
        room = max(1, self._rows() - _SPARE_ROWS)
        is_too_long = len(lines) > room and not is_finished
        if is_too_long and not can_scroll:
            lines = lines[-room:]
        same = _count_equal(self._live_lines, lines)
        height = self._height(self._live_lines[same:])
        output = f"\x1b[{height}A\r" if height else ""
        output += "".join(f"{line}{_ERASE_LINE_END}\n" for line in lines[same:])
        if height:
            output += _ERASE_BELOW
        if output:
            self._write(output)
        if is_too_long and can_scroll:
            self._scrolled_lines += len(lines) - room
            lines = lines[-room:]
        self._live_lines = lines

    def _height(self, lines: Sequence[str]) -> int:
        """Count rows of the screen: if the terminal is narrower now, a line may take several."""
        from rich.text import Text

        columns = max(1, self._display().columns)
        return sum(max(1, -(-cell_len(Text.from_ansi(line).plain) // columns)) for line in lines)


def _line_columns(display: Display) -> int:
    """Return the usable width: terminals differ in what they do in the last column."""
    return max(1, display.columns - 1)


def _count_equal(old: Sequence[str], new: Sequence[str]) -> int:
    return next(
        (number for number, (before, after) in enumerate(zip(old, new, strict=False)) if before != after),
        min(len(old), len(new)),
    )
