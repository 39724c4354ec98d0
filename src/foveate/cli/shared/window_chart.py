"""Chart of a context window: one bar, and a row for each part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.tables import (
    BarPart,
    Cell,
    Column,
    Fit,
    Styled,
    draw_bar,
    format_table,
    join_styled,
    wrap_text,
)

_BAR_CELLS, _MIN_BAR_CELLS = 60, 10
_STYLES = (
    "blue", "cyan", "magenta", "green", "yellow",
    "bright_blue", "bright_magenta", "bright_cyan", "bright_green",
)  # fmt: skip
_COLUMNS = (Column(fit=Fit.SHORTEN), Column(align="right"), Column(align="right"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowGlyphs:
    parts: str
    free: str
    reserved: str


_BLOCKS = _WindowGlyphs(parts="█▓▒░▚▞▤▥▦", free="·", reserved="╌")
_ASCII = _WindowGlyphs(parts="#=+*%@o&x", free=".", reserved="-")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowChartData:
    """`window_tokens` is None if unknown. `reserved_tokens` are for the response."""

    sections: Sequence[tuple[str, int]]
    tokens: int
    exact: bool
    window_tokens: int | None = None
    reserved_tokens: int = 0


def draw_window(window: WindowChartData, display: Display) -> Iterator[str]:
    is_over = window.window_tokens is not None and window.tokens > window.window_tokens
    yield from wrap_text(_heading(window), display, style="red" if is_over else "bold")
    if not window.sections:
        return
    glyphs = _BLOCKS if display.can_show(_BLOCKS.parts + _BLOCKS.free + _BLOCKS.reserved) else _ASCII
    parts = [
        BarPart(size=tokens, glyph=glyphs.parts[index % len(glyphs.parts)], style=_STYLES[index % len(_STYLES)])
        for index, (_, tokens) in enumerate(window.sections)
    ]
    cells = min(_BAR_CELLS, max(_MIN_BAR_CELLS, display.columns))
    yield join_styled(_draw_bar(window, parts, glyphs, cells), display)
    rows: list[list[Cell]] = [
        [
            [Styled(part.glyph, part.style), Styled(f" {name}")],
            format_tokens(tokens, window.exact),
            f"{100 * tokens / max(1, window.tokens):.1f}%",
        ]
        for part, (name, tokens) in zip(parts, window.sections, strict=True)
    ]
    yield from format_table(_COLUMNS, rows, display)


def _draw_bar(
    window: WindowChartData, parts: Sequence[BarPart], glyphs: _WindowGlyphs, cells: int
) -> list[Styled]:
    total_tokens = max(window.window_tokens or 0, window.tokens, 1)
    unused_tokens = total_tokens - sum(tokens for _, tokens in window.sections)
    reserved_tokens = max(0, min(window.reserved_tokens, unused_tokens))
    free = BarPart(size=max(0, unused_tokens - reserved_tokens), glyph=glyphs.free, style="dim")
    reserved = BarPart(size=reserved_tokens, glyph=glyphs.reserved, style="dim")
    return draw_bar([*parts, free, reserved], cells=cells, full=total_tokens)


def _heading(window: WindowChartData) -> str:
    tokens = format_tokens(window.tokens, window.exact)
    if window.window_tokens is None:
        return f"context window: {tokens} tokens used; the size of the model's window is unknown"
    share = f"{round(100 * window.tokens / max(1, window.window_tokens))}%"
    text = f"context window: {tokens} of {window.window_tokens:,} tokens used ({share})"
    return text + (f", {window.reserved_tokens:,} reserved for the response" if window.reserved_tokens else "")
