"""Error messages and exit codes of commands. Wrong options also end with 2, Ctrl-C ends with 130."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from foveate.cli.shared import console
from foveate.errors import BudgetExceeded, FoveateError, InputError, UnwritableOutput, UpstreamError
from foveate.extras import to_missing_extra

OK = 0
SOME_FAILED = 1
BAD_INPUT = 2
BUDGET_EXCEEDED = 3
UPSTREAM_FAILED = 4

# JSON has all sections; text names this many.
_MAX_LISTED_SECTIONS = 12


def exit_code(error: FoveateError) -> int:
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
    """Report a `FoveateError` in one line on standard error, and exit with its code.

    With `as_json`, print the error as a JSON object on standard output too.
    """
    try:
        with report_missing_extras():
            yield
    except FoveateError as error:
        console.print_note(_error_line(error))
        if as_json and not isinstance(error, UnwritableOutput):
            console.print_error(error)
        raise typer.Exit(exit_code(error)) from None


@contextmanager
def report_missing_extras() -> Iterator[None]:
    """Replace the error of a module that is not installed by one that says how to install it.

    Raises:
        MissingExtra: an extra contains the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise to_missing_extra(error) or error from None


def _error_line(error: FoveateError) -> str:
    """Return the message of an error; if it concerns many sections, name only the largest ones."""
    if not isinstance(error, BudgetExceeded) or len(error.sections) <= _MAX_LISTED_SECTIONS:
        return str(error)
    largest = sorted(error.sections, key=lambda size: size.after, reverse=True)[:_MAX_LISTED_SECTIONS]
    sizes = ", ".join(f"{size.name} ({size.priority}) {size.after:,}" for size in largest)
    more = len(error.sections) - _MAX_LISTED_SECTIONS
    return f"{error.problem}: {sizes} and {more:,} more; {error.remedy}"
