"""Exit codes, mapped once. 2 is also what a wrong option gives, 130 what Ctrl-C does."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from foveate.cli import console
from foveate.errors import BudgetExceeded, FoveateError, InputError, UnwritableOutput, UpstreamError

OK = 0
SOME_FAILED = 1
BAD_INPUT = 2
BUDGET_EXCEEDED = 3
UPSTREAM_FAILED = 4

# So many sections are named in a line; JSON has them all.
_MAX_LISTED_SECTIONS = 12


def exit_code(error: FoveateError) -> int:
    """The code that a command ends with when `error` stopped it."""
    match error:
        case InputError():
            return BAD_INPUT
        case BudgetExceeded():
            return BUDGET_EXCEEDED
        case UpstreamError():
            return UPSTREAM_FAILED
        case _:
            return SOME_FAILED


@contextmanager
def report_errors(*, as_json: bool) -> Iterator[None]:
    """Tell an error of ours in one line on standard error, and end with its code.

    Whoever reads JSON gets the error on standard output as well.
    """
    try:
        yield
    except FoveateError as error:
        console.print_note(_error_line(error))
        if as_json and not isinstance(error, UnwritableOutput):
            console.print_error(error)
        raise typer.Exit(exit_code(error)) from None


def _error_line(error: FoveateError) -> str:
    """What an error says; where it is about hundreds of sections, its numbers and only the largest of them."""
    if not isinstance(error, BudgetExceeded) or len(error.sections) <= _MAX_LISTED_SECTIONS:
        return str(error)
    largest = sorted(error.sections, key=lambda size: size.after, reverse=True)[:_MAX_LISTED_SECTIONS]
    listed = ", ".join(f"{size.name} ({size.priority}) {size.after:,}" for size in largest)
    more = len(error.sections) - _MAX_LISTED_SECTIONS
    return f"{error.problem}: {listed} and {more:,} more; {error.remedy}"
