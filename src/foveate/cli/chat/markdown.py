"""Markdown of answers: split growing text into blocks, and render blocks as lines for a terminal."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.theme import Theme

from foveate.cli.chat.wrapping import escape_for_terminal, wrap_text
from foveate.cli.shared.console import Display

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
    """Lines of some blocks. If there is a table, lines may change with every row that is appended."""

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
