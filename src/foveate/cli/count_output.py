"""Output of `foveate count`: a table of parts with a total."""

import re
import sys
from collections.abc import Iterator, Sequence

from foveate.cli.shared.console import display_for, format_tokens, print_lines
from foveate.cli.shared.tables import Column, Fit, format_table, style_text
from foveate.tokens.counter import PartCount, RequestCount

# Parts that are shown only if they are not empty.
_OPTIONAL_PARTS = frozenset(("system", "tools", "images", "overhead"))
_MESSAGE_PART = re.compile(r"messages\[(\d+)\]")


def print_count(counted: RequestCount, *, heading: str, roles: Sequence[str] = ()) -> None:
    display = display_for(sys.stdout)
    rows = [
        (_part_label(part, roles), format_tokens(part.tokens, part.exact))
        for part in counted.parts
        if part.tokens or part.name not in _OPTIONAL_PARTS or not roles
    ]
    total = ("total", format_tokens(counted.total.tokens, counted.total.exact))
    columns = (Column(heading=heading, fit=Fit.SHORTEN), Column(heading="tokens", align="right"))
    lines = format_table(columns, rows, display, total=total)
    print_lines([*lines, *(style_text(line, "dim", display) for line in _describe_accuracy(counted))])


def _part_label(part: PartCount, roles: Sequence[str]) -> str:
    match = _MESSAGE_PART.fullmatch(part.name) if roles else None
    return f"{part.name} {roles[int(match[1])]}".rstrip() if match else part.name


def _describe_accuracy(counted: RequestCount) -> Iterator[str]:
    total = counted.total
    accuracy = "exact" if total.exact else "estimated"
    if counted.upper is None:
        accuracy += ", upper bound unknown"
    elif counted.upper != total.tokens:
        accuracy += f", at most {counted.upper:,}"
    yield f"{counted.model}, {counted.backend}: {accuracy}"
    if counted.unexplained:
        yield f"not included: input that the provider adds for {', '.join(counted.unexplained)}"
