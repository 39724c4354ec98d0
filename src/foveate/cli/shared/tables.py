"""Tables, bars and wrapped text, rendered by rich.

On a terminal, tables fit the width. In a pipe, nothing is shortened, wrapped or left out for lack of space.
All text is escaped: names from outside never become control codes or markup. Importing rich takes 60 ms, so
functions import it, and commands that print JSON never do.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Literal

from foveate.cli.shared.console import Display

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

GAP = 2
_MIN_SHORTENED_CELLS, _MIN_WRAPPED_CELLS = 16, 24
# On a terminal too narrow even for the smallest widths, names are shortened further.
_LEAST_CELLS = 4
# Smaller inputs are done before a progress bar could be read.
_MIN_PROGRESS_BYTES = 2_000_000
_REFRESH_SECONDS = 0.1
_RESET = "\x1b[0m"
_EMPTY_OR_ZERO = re.compile(r"[-–~$%.,0 ]*")
_MAX_SMALL_DOLLARS, _MIN_CENTS_DOLLARS = Decimal(100), Decimal("0.1")


@dataclass(frozen=True, slots=True)
class Styled:
    """A text with a style of rich, such as "dim", "bold" or "red"."""

    text: str
    style: str = ""


Cell = str | Styled | Sequence[Styled]


class Fit(Enum):
    """What happens to a column if the terminal is too narrow for the table."""

    FIXED = "fixed"
    SHORTEN = "shorten"
    """Its cells are shortened in the middle."""
    WRAP = "wrap"
    """Its cells are wrapped between words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    An `optional` column is left out if all its cells are empty or zero. Columns with a `drop_order` are left
    out on terminals that are too narrow, the lowest first. `min_cells` is the smallest width to which
    cells are shortened or wrapped. Columns are wrapped before others are shortened.
    """

    heading: str = ""
    align: Literal["left", "right"] = "left"
    fit: Fit = Fit.FIXED
    optional: bool = False
    drop_order: int | None = None
    min_cells: int | None = None


def format_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    display: Display,
    *,
    total: Sequence[Cell] | None = None,
    indent: int = 0,
) -> list[str]:
    """Format rows under a dim header, with an optional total in bold.

    There is no header if no column has a heading. The table has one line for each row unless a column wraps.
    """
    from rich.cells import cell_len

    cells = [[_to_text(cell, display) for cell in row] for row in (*rows, *([total] if total else []))]
    shown = [
        number
        for number, column in enumerate(columns)
        if not column.optional or not all(_EMPTY_OR_ZERO.fullmatch(row[number].plain) for row in cells)
    ]
    widths = {
        number: max(map(cell_len, (columns[number].heading, *(row[number].plain for row in cells))))
        for number in shown
    }
    widths = _fit_widths(columns, widths, display, indent)
    return _render_table(columns, cells, widths, display, has_total=total is not None, indent=indent)


def _fit_widths(
    columns: Sequence[Column], natural: dict[int, int], display: Display, indent: int
) -> dict[int, int]:
    """Return the widths of the columns that remain."""
    widths = dict(natural)
    if not display.is_terminal:
        return widths
    droppable = sorted(
        (number for number in widths if columns[number].drop_order is not None),
        key=lambda number: columns[number].drop_order or 0,
    )
    while True:
        excess = indent + sum(widths.values()) + GAP * (len(widths) - 1) - display.columns
        minimum = {number: _min_width(columns[number], natural=width) for number, width in widths.items()}
        if excess <= sum(widths[number] - minimum[number] for number in widths) or not droppable:
            break
        del widths[droppable.pop(0)]
    for _ in range(excess):
        shrinkable = [number for number, width in widths.items() if width > minimum[number]] or [
            number
            for number, width in widths.items()
            if columns[number].fit is Fit.SHORTEN and width > _LEAST_CELLS
        ]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda number: (columns[number].fit is Fit.WRAP, widths[number]))] -= 1
    return widths


def _min_width(column: Column, *, natural: int) -> int:
    match column.fit:
        case Fit.FIXED:
            return natural
        case Fit.SHORTEN:
            return min(natural, max(column.min_cells or _MIN_SHORTENED_CELLS, len(column.heading)))
        case Fit.WRAP:
            return min(natural, max(column.min_cells or _MIN_WRAPPED_CELLS, len(column.heading)))


def _render_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence["Text"]],
    widths: dict[int, int],
    display: Display,
    *,
    has_total: bool,
    indent: int,
) -> list[str]:
    from rich.table import Table

    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
        show_header=any(columns[number].heading for number in widths),
        header_style="dim",
    )
    for number, width in widths.items():
        column = columns[number]
        table.add_column(
            column.heading,
            justify=column.align,
            width=width,
            no_wrap=column.fit is not Fit.WRAP,
            overflow="fold",
        )
    for row_number, row in enumerate(rows):
        is_total = has_total and row_number == len(rows) - 1
        table.add_row(
            *(_shorten(row[number], widths[number], columns[number].fit, display) for number in widths),
            style="bold" if is_total else None,
        )
    lines = _render(table, sum(widths.values()) + GAP * len(widths), display)
    return [" " * indent + line for line in lines]


def _shorten(text: "Text", cells: int, fit: Fit, display: Display) -> "Text":
    from rich.text import Text

    if fit is not Fit.SHORTEN or text.cell_len <= cells:
        return text
    return Text(shorten_middle(text.plain, cells, display), style=text.style)


def shorten_middle(text: str, cells: int, display: Display) -> str:
    from rich.cells import cell_len, set_cell_size

    text = display.escape(text)
    if cell_len(text) <= cells:
        return text
    ellipsis = "…" if display.can_show("…") else ".."
    tail_cells = max(cells - len(ellipsis), 0) // 2
    head = set_cell_size(text, max(cells - len(ellipsis) - tail_cells, 0)).rstrip()
    tail = set_cell_size(text[::-1], tail_cells)[::-1].lstrip()
    while tail and not cell_len(tail[0]):  # a combining character without its base
        tail = tail[1:]
    return head + ellipsis[:cells] + tail


def wrap_text(text: str, display: Display, *, style: str = "", indent: int = 0) -> list[str]:
    """Wrap a paragraph between words. Words that are too long, such as ids and paths, stay whole."""
    from rich.cells import cell_len

    lines = [""]
    for word in display.escape(" ".join(text.split())).split(" "):  # rich would break long words
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and indent + cell_len(longer) > display.columns:
            lines.append(word)
        else:
            lines[-1] = longer
    return [" " * indent + style_text(line, style, display) for line in lines]


def style_text(text: str, style: str, display: Display) -> str:
    """Escape a text, and style it if the display has colours."""
    return join_styled([Styled(text, style)], display)


def join_styled(parts: Sequence[Styled], display: Display) -> str:
    from rich.color import ColorSystem
    from rich.style import Style

    escaped = [(display.escape(part.text), part.style) for part in parts]
    if not display.colours:
        return "".join(text for text, _ in escaped)
    return "".join(
        Style.parse(style).render(text, color_system=ColorSystem.STANDARD) for text, style in escaped
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    size: float
    glyph: str
    style: str = ""


def draw_bar(parts: Sequence[BarPart], *, cells: int, full: float) -> list[Styled]:
    """Draw parts next to each other in a bar of `cells` cells that stands for `full`.

    Parts that are not empty take at least one cell if there are enough. Blanks fill the rest.
    """
    bar: list[Styled] = []
    drawn, size = 0, 0.0
    for number, part in enumerate(parts):
        size += part.size
        later = sum(other.size > 0 for other in parts[number + 1 :])
        end = max(round(cells * size / full) if full else 0, drawn + (part.size > 0))
        end = min(max(min(end, cells - later), drawn), cells)
        bar.append(Styled(part.glyph * (end - drawn), part.style))
        drawn = end
    return [*bar, Styled(" " * (cells - drawn))]


def format_dollar_column(amounts: Sequence[Decimal | None], *, unknown: str = "unknown") -> list[str]:
    """Format amounts with the same precision: cents, or four decimals if some amounts are small.

    Amounts that would be rounded to zero are shown as less than the smallest amount.
    """
    known = [abs(amount) for amount in amounts if amount]
    is_small = bool(known) and min(known) < _MIN_CENTS_DOLLARS and max(known) < _MAX_SMALL_DOLLARS
    digits = 4 if is_small else 2
    return [unknown if amount is None else _format_dollars(amount, digits) for amount in amounts]


def format_amount(amount: Decimal) -> str:
    """Format one amount in a sentence: in cents, or with four decimals if it is small."""
    text = format_dollar_column([amount])[0]
    return text.removesuffix("00") if text.endswith("00") and text[-5] == "." else text


def format_short_count(number: int) -> str:
    """Format a number of tokens in few characters: 9,999, 226k or 18.6M."""
    if number < 10_000:
        return f"{number:,}"
    if number < 999_500:
        return f"{number / 1_000:.0f}k"
    return f"{number / 1e6:.1f}M" if number < 999_950_000 else f"{number / 1e9:.1f}B"


def _format_dollars(amount: Decimal, digits: int) -> str:
    rounded = round(abs(amount), digits)
    sign = "-" if amount < 0 else ""
    if amount and not rounded:
        return f"{sign}<${Decimal(1).scaleb(-digits):f}"
    return f"{sign}${rounded:,.{digits}f}"


def _to_text(cell: Cell, display: Display) -> "Text":
    from rich.text import Text

    if isinstance(cell, str):
        return Text(display.escape(cell))
    if isinstance(cell, Styled):
        return Text(display.escape(cell.text), style=cell.style)
    return Text.assemble(*((display.escape(part.text), part.style) for part in cell))


def _render(renderable: "RenderableType", columns: int, display: Display) -> Iterator[str]:
    console = _console(display, columns)
    with console.capture() as capture:
        console.print(renderable, no_wrap=True, overflow="ignore", crop=False)
    for line in capture.get().splitlines():
        yield _strip_trailing_blanks(line)


def _strip_trailing_blanks(line: str) -> str:
    """Remove blanks at the end of a line, also before a final escape sequence."""
    if not line.endswith(_RESET):
        return line.rstrip(" ")
    return line.removesuffix(_RESET).rstrip(" ") + _RESET


def _console(display: Display, columns: int) -> "Console":
    import io

    from rich.console import Console

    return Console(
        file=io.StringIO(),
        width=columns,
        height=25,  # with both, rich does not look at the terminal and the environment
        color_system="standard" if display.colours else None,
        force_terminal=display.colours,
        no_color=not display.colours,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


@contextmanager
def show_byte_progress(activity: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; yields a function that takes the number of bytes done."""
    if size_bytes < _MIN_PROGRESS_BYTES or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(activity),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=size_bytes)

        refreshed_at = monotonic()

        def report_progress(done_bytes: int) -> None:
            nonlocal refreshed_at
            progress.advance(task, done_bytes)
            if monotonic() - refreshed_at >= _REFRESH_SECONDS:  # there can be ten thousand files
                progress.refresh()
                refreshed_at = monotonic()

        progress.refresh()
        yield report_progress
