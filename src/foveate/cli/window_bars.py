"""A window as a picture: one bar of all that fills it, and a row for each part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from foveate.cli.screen import Look, number

_BAR_CELLS, _LEAST_BAR_CELLS = 60, 10
_NAME_CELLS = 28
_GAP = "  "
_DIM, _BOLD, _RED = "2", "1", "31"
_COLOURS = ("34", "36", "35", "32", "33", "94", "95", "96", "92")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Glyphs:
    parts: str
    free: str
    reserved: str
    more: str


_BLOCKS = _Glyphs(parts="█▓▒░▚▞▤▥▦", free="·", reserved="╌", more="…")
_ASCII = _Glyphs(parts="#=+*%@o&x", free=".", reserved="-", more="..")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What fills a window, and how large it is (None: nobody knows); `reserved_tokens` are for the answer."""

    sections: Sequence[tuple[str, int]]
    tokens: int
    exact: bool
    window_tokens: int | None = None
    reserved_tokens: int = 0


def window_lines(window: Window, look: Look) -> Iterator[str]:
    """How full it is, the bar, and a row for each part; what it has no columns for is left out."""
    yield from _Drawing(look).lines(window)


class _Drawing:
    def __init__(self, look: Look) -> None:
        self._look = look
        self._glyphs = _BLOCKS if look.can_show(_BLOCKS.parts + _BLOCKS.free + _BLOCKS.reserved) else _ASCII

    def lines(self, window: Window) -> Iterator[str]:
        over = window.window_tokens is not None and window.tokens > window.window_tokens
        for line in self._wrapped(_heading(window)):
            yield self._painted(line, _RED if over else _BOLD)
        if not window.sections:
            return
        cells = min(_BAR_CELLS, max(_LEAST_BAR_CELLS, self._look.columns))
        yield self._bar(window, cells)
        yield from self._rows(window)

    def _bar(self, window: Window, cells: int) -> str:
        """All parts in a row; what is there at all can be seen as long as there are cells for it."""
        whole = max(window.window_tokens or 0, window.tokens, 1)
        bar, reached, drawn = "", 0, 0
        for at, (_, tokens) in enumerate(window.sections):
            reached += tokens
            end = min(max(round(cells * reached / whole), drawn + bool(tokens)), cells)
            bar += self._painted(self._glyph(at) * (end - drawn), self._colour(at))
            drawn = end
        reserved = min(round(cells * window.reserved_tokens / whole), cells - drawn)
        free = cells - drawn - reserved
        return bar + self._painted(self._glyphs.free * free + self._glyphs.reserved * reserved, _DIM)

    def _rows(self, window: Window) -> Iterator[str]:
        names = [self._look.plain(name) for name, _ in window.sections]
        sizes = [number(tokens, window.exact) for _, tokens in window.sections]
        shares = [f"{100 * tokens / max(1, window.tokens):.1f}%" for _, tokens in window.sections]
        width = max(map(len, sizes))
        room = self._look.columns - width - max(map(len, shares)) - 2 * len(_GAP) - 2
        name_cells = max(1, min(_NAME_CELLS, max(map(cell_len, names)), room))
        for at, (name, size, share) in enumerate(zip(names, sizes, shares, strict=True)):
            glyph = self._painted(self._glyph(at), self._colour(at))
            yield f"{glyph} {self._fitted(name, name_cells)}{_GAP}{size:>{width}}{_GAP}{share:>6}"

    def _glyph(self, at: int) -> str:
        return self._glyphs.parts[at % len(self._glyphs.parts)]

    def _colour(self, at: int) -> str:
        return _COLOURS[at % len(_COLOURS)]

    def _fitted(self, text: str, cells: int) -> str:
        if cell_len(text) <= cells:
            return set_cell_size(text, cells)
        more = self._glyphs.more[:cells]
        return set_cell_size(set_cell_size(text, cells - len(more)).rstrip() + more, cells)

    def _wrapped(self, text: str) -> list[str]:
        lines = [""]
        for word in text.split():
            if lines[-1] and cell_len(f"{lines[-1]} {word}") > self._look.columns:
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}".lstrip()
        return lines

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and self._look.colours else text


def _heading(window: Window) -> str:
    tokens = number(window.tokens, window.exact)
    if window.window_tokens is None:
        return f"window: {tokens} tokens of a window that nobody knows"
    share = f"{round(100 * window.tokens / max(1, window.window_tokens))}%"
    told = f"window: {tokens} of {window.window_tokens:,} tokens ({share})"
    return told + (f", {window.reserved_tokens:,} reserved for the answer" if window.reserved_tokens else "")
