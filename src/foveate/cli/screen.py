"""What commands print: tables for people, JSON for programs, errors on standard error."""

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from foveate.errors import FoveateError

if TYPE_CHECKING:
    from foveate.tokens.counter import RequestCount


def print_json(counted: "RequestCount") -> None:
    """A count as one JSON object."""
    shown = asdict(counted)
    if not shown["unexplained"]:
        del shown["unexplained"]
    sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")


def print_count(counted: "RequestCount", *, heading: str) -> None:
    """A count as a table: a row a part, the total, and how far it can be trusted."""
    rows = [(part.name, _number(part.tokens, part.exact)) for part in counted.parts]
    total = ("total", _number(counted.total.tokens, counted.total.exact))
    width = max((len(name) for name, _ in (*rows, total, (heading, ""))), default=0)
    digits = max(len(number) for _, number in (*rows, total, ("", "tokens")))
    lines = [_dim(f"{heading:<{width}}  {'tokens':>{digits}}")]
    lines += [f"{name:<{width}}  {number:>{digits}}" for name, number in rows]
    lines.append(_bold(f"{total[0]:<{width}}  {total[1]:>{digits}}"))
    lines.append(_dim(_trust(counted)))
    sys.stdout.write("\n".join(lines) + "\n")


def print_error(error: FoveateError) -> None:
    """One line on standard error."""
    sys.stderr.write(f"foveate: {error}\n")


def print_hint(text: str) -> None:
    """A quiet line on standard error."""
    sys.stderr.write(f"foveate: {text}\n")


def _number(tokens: int, exact: bool) -> str:
    return f"{tokens:,}" if exact else f"~{tokens:,}"


def _trust(counted: "RequestCount") -> str:
    total = counted.total
    trust = "exact" if total.exact else "estimated"
    if total.upper != total.tokens:
        trust += f", at most {total.upper:,}"
    lines = [f"{counted.model}, {counted.backend}: {trust}"]
    if counted.unexplained:
        lines.append("cannot be seen from here, and comes on top: " + ", ".join(counted.unexplained))
    return "\n".join(lines)


def _dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if _colours() else text


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if _colours() else text


def _colours() -> bool:
    """Colours for a terminal, unless NO_COLOR is set or the terminal cannot show them."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
