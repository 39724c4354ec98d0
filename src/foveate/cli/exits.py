"""Exit codes, mapped once. 2 is also what a wrong option gives, 130 what Ctrl-C does."""

from foveate.errors import FoveateError, InputError, UpstreamError

OK = 0
SOME_FAILED = 1
BAD_INPUT = 2
UPSTREAM_FAILED = 4


def exit_code(error: FoveateError) -> int:
    """The code that a command ends with when `error` stopped it."""
    match error:
        case InputError():
            return BAD_INPUT
        case UpstreamError():
            return UPSTREAM_FAILED
        case _:
            return SOME_FAILED
