"""Chart of a context window: one bar, and a row for each part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from foveate.cli.console import Display, format_tokens

_BAR_CELLS, _MIN_BAR_CELLS = 60, 10
_NAME_CELLS = 28
_GAP = "  "
_DIM, _BOLD, _RED = "2", "1", "31"
_COLOURS = ("34", "36", "35", "32", "33", "94", "95", "96", "92")


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowGlyphs:
    parts: str
    free: str
    reserved: str
    more: str


_BLOCKS = _WindowGlyphs(parts="█▓▒░▚▞▤▥▦", free="·", reserved="╌", more="…")
_ASCII = _WindowGlyphs(parts="#=+*%@o&x", free=".", reserved="-", more="..")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowChartData:
    """`window_tokens` is None if unknown. `reserved_tokens` are for the answer."""

    sections: Sequence[tuple[str, int]]
    tokens: int
    exact: bool
    window_tokens: int | None = None
    reserved_tokens: int = 0


def draw_window(window: WindowChartData, display: Display) -> Iterator[str]:
    yield from _WindowChart(display).lines(window)


class _WindowChart:
    def __init__(self, display: Display) -> None:
        self._display = display
        self._glyphs = _BLOCKS if display.can_show(_BLOCKS.parts + _BLOCKS.free + _BLOCKS.reserved) else _ASCII

    def lines(self, window: WindowChartData) -> Iterator[str]:
        is_over = window.window_tokens is not None and window.tokens > window.window_tokens
        for line in self._wrap(_heading(window)):
            yield self._paint(line, _RED if is_over else _BOLD)
        if not window.sections:
            return
        cells = min(_BAR_CELLS, max(_MIN_BAR_CELLS, self._display.columns))
        yield self._bar(window, cells)
        yield from self._rows(window)

    def _bar(self, window: WindowChartData, cells: int) -> str:
        """Draw all parts in one bar. Non-empty parts take at least one cell as long as there are cells."""
        total_tokens = max(window.window_tokens or 0, window.tokens, 1)
        bar, cumulative_tokens, drawn_cells = "", 0, 0
        for index, (_, tokens) in enumerate(window.sections):
            cumulative_tokens += tokens
            end = min(max(round(cells * cumulative_tokens / total_tokens), drawn_cells + bool(tokens)), cells)
            bar += self._paint(self._glyph(index) * (end - drawn_cells), self._colour(index))
            drawn_cells = end
        reserved = min(round(cells * window.reserved_tokens / total_tokens), cells - drawn_cells)
        free = cells - drawn_cells - reserved
        return bar + self._paint(self._glyphs.free * free + self._glyphs.reserved * reserved, _DIM)

    def _rows(self, window: WindowChartData) -> Iterator[str]:
        names = [self._display.escape(name) for name, _ in window.sections]
        sizes = [format_tokens(tokens, window.exact) for _, tokens in window.sections]
        shares = [f"{100 * tokens / max(1, window.tokens):.1f}%" for _, tokens in window.sections]
        width = max(map(len, sizes))
        room = self._display.columns - width - max(map(len, shares)) - 2 * len(_GAP) - 2
        name_cells = max(1, min(_NAME_CELLS, max(map(cell_len, names)), room))
        for index, (name, size, share) in enumerate(zip(names, sizes, shares, strict=True)):
            glyph = self._paint(self._glyph(index), self._colour(index))
            yield f"{glyph} {self._fit(name, name_cells)}{_GAP}{size:>{width}}{_GAP}{share:>6}"

    def _glyph(self, index: int) -> str:
        return self._glyphs.parts[index % len(self._glyphs.parts)]

    def _colour(self, index: int) -> str:
        return _COLOURS[index % len(_COLOURS)]

    def _fit(self, text: str, cells: int) -> str:
        if cell_len(text) <= cells:
            return set_cell_size(text, cells)
        more = self._glyphs.more[:cells]
        return set_cell_size(set_cell_size(text, cells - len(more)).rstrip() + more, cells)

    def _wrap(self, text: str) -> list[str]:
        lines = [""]
        for word in text.split():
            if lines[-1] and cell_len(f"{lines[-1]} {word}") > self._display.columns:
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}".lstrip()
        return lines

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and self._display.colours else text


def _heading(window: WindowChartData) -> str:
    tokens = format_tokens(window.tokens, window.exact)
    if window.window_tokens is None:
        return f"window: {tokens} tokens of a window that nobody knows"
    share = f"{round(100 * window.tokens / max(1, window.window_tokens))}%"
    text = f"window: {tokens} of {window.window_tokens:,} tokens ({share})"
    return text + (f", {window.reserved_tokens:,} reserved for the answer" if window.reserved_tokens else "")
