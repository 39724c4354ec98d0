"""Write a streamed answer to a terminal: Markdown rendered, words wrapped, thinking dimmed, tools named."""

import asyncio
import io
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar, TextIO

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from foveate.chat.responses import FragmentKind, ResponseFragment
from foveate.cli.shared.console import Display, escape_control_chars

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_ERASE_LINE_END, _ERASE_BELOW = "\x1b[K", "\x1b[J"
# The block in progress is drawn again at most this often, and at most this share of the time.
_DRAW_SECONDS = 0.05
_MAX_DRAW_SHARE = 0.2
_DEFAULT_ROWS = 24
# Rows that stay free below the block in progress: that of the cursor, and one against rounding of heights.
_SPARE_ROWS = 2
# References are off because blocks are rendered one by one, and their definitions would not be shown. Images
# are off because a terminal cannot show them: they become links. HTML is shown as it is.
_UNUSED_RULES = ("reference", "image")
_CODE_THEME = "ansi_dark"
_CODE_INDENT = 2
_TABLE, _CODE, _LIST_ITEM = "table_open", "fence", "list_item_open"
_MAX_CODE_LINES = 100
_STYLES = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic dim",
        "markdown.code": "cyan",
        "markdown.link": "blue",
        "markdown.link_url": "blue underline",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.block_quote": "italic",
        "markdown.hr": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
# Zero-width joiners are not printable by `isprintable`, but harmless to terminals.
_JOINERS = frozenset("\u200c\u200d")
_JOINER = "\u200d"
_ALLOWED_CONTROLS = frozenset("\n")
_TAB = "    "
_WIDE_CELLS = 2


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
        """Lines that are the same stay untouched, so nothing flickers."""
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
        columns = max(1, self._display().columns)
        return sum(max(1, -(-cell_len(Text.from_ansi(line).plain) // columns)) for line in lines)


def _line_columns(display: Display) -> int:
    """Terminals differ in what they do in the last column."""
    return max(1, display.columns - 1)


def _count_equal(old: Sequence[str], new: Sequence[str]) -> int:
    return next(
        (number for number, (before, after) in enumerate(zip(old, new, strict=False)) if before != after),
        min(len(old), len(new)),
    )


def can_render_markdown(display: Display) -> bool:
    """Check whether a terminal has styles and the characters of lists and tables."""
    return display.colours and display.can_show("•▌─│")


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    """A block of Markdown. `is_joined`: it continues the list or the code of the block before it.

    A list has a block for each item, and long code has several: so they are finished piece by piece.
    """

    text: str
    is_joined: bool = False


def split_finished(text: str, *, is_joined: bool = False) -> tuple[list[MarkdownBlock], MarkdownBlock]:
    """Split growing text into blocks that cannot change any more, and the rest.

    A block is finished if another block follows it. An incomplete line does not count: it may turn out to be
    a part of the block. `is_joined` applies to the first block.
    """
    starts = _find_starts(text[: text.rfind("\n") + 1]) or {0: False}
    lines = text.splitlines(keepends=True)
    joined = [is_joined, *list(starts.values())[1:]]
    ends = [*list(starts)[1:], len(lines)]
    blocks = [
        MarkdownBlock("".join(lines[start:end]), is_joined=flag)
        for start, end, flag in zip(starts, ends, joined, strict=True)
    ]
    code, rest = _split_code(blocks.pop())
    return [*blocks, *code], rest


def _find_starts(text: str) -> dict[int, bool]:
    """Return the first line of each block, and whether it continues the block before."""
    starts: dict[int, bool] = {}
    is_first_item = True
    for token in _BLOCK_PARSER.parse(text):
        if token.map is None:
            continue
        if token.level == 0:
            starts[token.map[0]] = False
            is_first_item = True
        elif token.level == 1 and token.type == _LIST_ITEM:
            starts[token.map[0]] = not is_first_item
            is_first_item = False
    return starts


def _split_code(block: MarkdownBlock) -> tuple[list[MarkdownBlock], MarkdownBlock]:
    """Split code that has many lines, between two lines that are not blank, if possible without indentation."""
    tokens = _BLOCK_PARSER.parse(block.text)
    opening, *lines = block.text.splitlines(keepends=True) or [""]
    if len(lines) <= _MAX_CODE_LINES or not tokens or tokens[0].type != _CODE:
        return [], block
    candidates = [
        number
        for number in range(1, len(lines) - 1)
        if lines[number].strip() and lines[number - 1].strip() and tokens[0].markup not in lines[number]
    ]
    unindented = [number for number in candidates if not lines[number][0].isspace()]
    if not candidates:
        return [], block
    cut = (unindented or candidates)[-1]
    return (
        [MarkdownBlock("".join([opening, *lines[:cut]]), is_joined=block.is_joined)],
        MarkdownBlock("".join([opening, *lines[cut:]]), is_joined=True),
    )


@dataclass(frozen=True, slots=True)
class RenderedBlocks:
    """If there is a table, lines may change with every row that is appended."""

    lines: list[str]
    has_table: bool = False


def render_blocks(text: str, display: Display) -> RenderedBlocks:
    """Render blocks as lines with escape sequences for styles, and with no other control characters."""
    rendered: list[str] = []
    source_lines = text.splitlines(keepends=True)
    starts = _find_starts(text)
    ends = [*list(starts)[1:], len(source_lines)]
    for (start, is_joined), end in zip(starts.items(), ends, strict=False):
        lines = _render_block("".join(source_lines[start:end]), display)
        rendered += ["", *lines] if rendered and lines and not is_joined else lines
    has_table = any(token.type == _TABLE for token in _BLOCK_PARSER.parse(text))
    return RenderedBlocks(rendered, has_table=has_table)


def _render_block(text: str, display: Display) -> list[str]:
    try:
        return _strip_blank_lines(_render_lines(text, display.columns))
    except Exception:  # noqa: BLE001 - an answer may contain anything, and the renderer is not ours
        return wrap_text(text, display.columns)


def _render_lines(text: str, columns: int) -> Iterator[str]:
    console = Console(
        file=io.StringIO(),
        width=columns,
        height=25,
        force_terminal=True,
        color_system="standard",
        theme=_STYLES,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    for line in console.render_lines(_AnswerMarkdown(text), pad=False):
        segments = [(segment.text, segment.style) for segment in line if not segment.is_control]
        while segments and not segments[-1][0].strip():  # blanks up to the edge of the terminal
            segments.pop()
        if segments:
            segments[-1] = (segments[-1][0].rstrip(), segments[-1][1])
        # Character references such as &#x202e; are decoded by the parser, after the text was escaped.
        yield "".join(
            escape_for_terminal(part)
            if style is None
            else style.render(escape_for_terminal(part), color_system=ColorSystem.STANDARD)
            for part, style in segments
        )


def _strip_blank_lines(lines: Iterator[str]) -> list[str]:
    stripped = list(lines)
    while stripped and not stripped[0].strip():
        stripped.pop(0)
    while stripped and not stripped[-1].strip():
        stripped.pop()
    return stripped


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = {}


class _IndentedCode(CodeBlock):
    """Code without a background, so that copied lines do not end in blanks."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=self.theme,
            background_color="default",
            word_wrap=True,
            padding=(0, 0, 0, _CODE_INDENT),
        )


class _AnswerMarkdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _IndentedCode,
        "code_block": _IndentedCode,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme=_CODE_THEME, hyperlinks=False)
        self.markup = text
        self.parsed = list(_adapt_tokens(_PARSER.parse(text)))


def _adapt_tokens(tokens: list[Token]) -> Iterator[Token]:
    """Keep line breaks as the model wrote them, and show a bare URL once instead of as text and target."""
    is_autolink = False
    for token in tokens:
        if token.type == "link_open":
            is_autolink = token.markup == "autolink"
        if token.type in ("link_open", "link_close") and is_autolink:
            continue
        if token.type == "softbreak":
            token.type = "hardbreak"
        if token.children:
            token.children = list(_adapt_tokens(token.children))
        yield token


def _create_parser() -> MarkdownIt:
    return (
        MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable([*_UNUSED_RULES])
    )


_PARSER = _create_parser()
_BLOCK_PARSER = _create_parser().disable("inline")


def escape_for_terminal(text: str) -> str:
    """Escape control characters, but keep line breaks and expand tabs."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    return "".join(
        char if char in _JOINERS or char.isprintable() else _TAB if char == "\t" else _escape_char(char)
        for char in text
    )


def _escape_char(char: str) -> str:
    return char if char in _ALLOWED_CONTROLS else escape_control_chars(char)


def wrap_text(text: str, columns: int) -> list[str]:
    """Break escaped text into lines that fit."""
    wrapper = WordWrapper(columns)
    return (wrapper.feed(text) + wrapper.flush()).splitlines()


def wrap_styled(line: str, columns: int) -> list[str]:
    """Continuation lines have the same indentation."""
    text = Text.from_ansi(line)
    if text.cell_len <= columns:
        return [line]
    indent = len(text.plain) - len(text.plain.lstrip())
    console = Console(
        file=io.StringIO(), width=columns, height=25, force_terminal=True, color_system="standard"
    )
    has_styles = bool(text.spans)
    lines = []
    for number, part in enumerate(text.wrap(console, max(1, columns - indent))):
        part.rstrip()
        with console.capture() as capture:
            console.print(part, end="", soft_wrap=True, highlight=False)
        rendered = capture.get() if has_styles else part.plain
        lines.append(" " * indent * bool(number) + rendered)
    return lines


class WordWrapper:
    """Breaks lines between words while text arrives. Returns the last word once it is complete.

    Lines can also be broken before and after wide characters, such as Chinese ones. A word that is longer than
    a line starts on a new one, and the terminal breaks it.
    """

    def __init__(self, columns: int) -> None:
        self.columns = max(1, columns)
        self._column = 0
        self._blanks = ""
        self._word = ""
        self._is_joined = False
        """The last character was a joiner: the next belongs to the same symbol."""

    def feed(self, text: str) -> str:
        output = ""
        for char in text:
            if char == "\n":
                output += self._end_word() + char
                self._column, self._blanks = 0, ""
            elif char == " ":
                output += self._end_word()
                self._blanks += char
            elif self._can_break_before(char):
                output += self._end_word()
                self._word = char
            else:
                self._word += char
            self._is_joined = char == _JOINER
        return output

    def _can_break_before(self, char: str) -> bool:
        if cell_len(char) == _WIDE_CELLS:
            return not self._is_joined
        return bool(self._word) and cell_len(self._word[0]) == _WIDE_CELLS and char.isalnum()

    def flush(self) -> str:
        """Return the last word; blanks at the end of a line are dropped."""
        return self._end_word()

    def _end_word(self) -> str:
        if not self._word:
            return ""
        word, blanks, cells = self._word, self._blanks, cell_len(self._word)
        self._word = self._blanks = ""
        if self._column and self._column + len(blanks) + cells > self.columns:
            self._column, blanks, lead = 0, "", "\n"
        else:
            if not self._column:  # a word that fits without its indentation is not broken
                blanks = blanks[: max(0, self.columns - cells)]
            lead = blanks
        self._column += len(blanks) + cells
        if self._column > self.columns:  # the terminal has broken the word
            self._column %= self.columns
        return lead + word
