"""What a summary carries as text: grouped, with the message that each line comes from."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from foveate.cli.shared.console import Display
from foveate.cli.shared.tables import style_text, wrap_text
from foveate.compaction.summarize.extractive import CarriedLine

_INDENT = 2
_BULLET = "- "
_MAX_LINES = 12
_MAX_ITEMS = 12


def carried_lines(carried: Sequence[CarriedLine], display: Display, *, full: bool) -> Iterator[str]:
    """Format a group for each section; without `full`, only the first lines and names of each."""
    for section, group in groupby(carried, key=lambda line: line.section):
        lines = list(group)
        yield from list_lines(section, [_describe_line(line, full=full) for line in lines], display, full=full)


def list_lines(heading: str, texts: Sequence[str], display: Display, *, full: bool) -> Iterator[str]:
    """Format a heading and a list; without `full`, only its first lines and the number of the others."""
    yield ""
    yield style_text(heading, "dim", display)
    shown = texts if full else texts[:_MAX_LINES]
    for text in shown:
        first, *rest = wrap_text(text, display, indent=_INDENT + len(_BULLET))
        yield f"{' ' * _INDENT}{_BULLET}{first.lstrip(' ')}"
        yield from rest
    if len(shown) < len(texts):
        note = f"and {len(texts) - len(shown):,} more; --full shows all"
        yield " " * _INDENT + style_text(note, "dim", display)


def describe_origin(message: int | None, role: str) -> str:
    if message is None:
        return ""
    return f" (message {message:,}, {role})" if role else f" (message {message:,})"


def _describe_line(line: CarriedLine, *, full: bool) -> str:
    if not line.items:
        return line.text + describe_origin(line.message, line.role)
    left_out = 0 if full else max(len(line.items) - _MAX_ITEMS, 0)
    shown = ", ".join(line.items[: len(line.items) - left_out])
    return f"{shown}, and {left_out:,} more; --full shows all" if left_out else shown
