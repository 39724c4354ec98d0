"""HTML for notebooks: a heading, and a table with a bar in each row."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_TABLE = 'style="border-collapse:collapse;font-variant-numeric:tabular-nums"'
_CELL = 'style="text-align:left;padding:1px 12px 1px 0;border:0"'
_NUMBER = 'style="text-align:right;padding:1px 12px 1px 0;border:0;white-space:nowrap"'
_BAR_PIXELS = 240
# They are visible on light and dark pages.
_KEPT_COLOUR, _CUT_COLOUR = "#2e9e5b", "rgba(128,128,128,.35)"


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """A row of a table. The bar is as long as `tokens_before`, and filled up to `tokens`."""

    name: str
    tokens: int
    tokens_before: int
    size: str
    note: str = ""


def format_tokens(tokens: int, *, exact: bool) -> str:
    return f"{'' if exact else '~'}{tokens:,}"


def render_bars(heading: str, rows: Sequence[BarRow]) -> str:
    largest = max((row.tokens_before for row in rows), default=0)
    cells = "".join(
        f"<tr><td {_CELL}>{escape(row.name)}</td><td {_CELL}>{_bar(row, largest)}</td>"
        f"<td {_NUMBER}>{escape(row.size)}</td><td {_CELL}>{escape(row.note)}</td></tr>"
        for row in rows
    )
    return f"<div><strong>{escape(heading)}</strong><table {_TABLE}>{cells}</table></div>"


def render_text(heading: str, text: str) -> str:
    return (
        f'<div><strong>{escape(heading)}</strong><pre style="white-space:pre-wrap">{escape(text)}</pre></div>'
    )


def _bar(row: BarRow, largest: int) -> str:
    """Parts that are not empty take at least one pixel."""
    whole = max(round(_BAR_PIXELS * row.tokens_before / largest), 1) if row.tokens_before else 0
    kept = min(max(round(_BAR_PIXELS * row.tokens / largest), 1), whole) if row.tokens else 0
    spans = ((kept, _KEPT_COLOUR), (whole - kept, _CUT_COLOUR))
    return "".join(
        f'<span style="display:inline-block;height:.8em;width:{pixels}px;background:{colour}"></span>'
        for pixels, colour in spans
        if pixels
    )
