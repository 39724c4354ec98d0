"""What requests make known of their sessions, for who keeps that of many of them together."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from foveate.session.turns import Stored, Turns


class News(msgspec.Struct, frozen=True):
    """Something to be stored: `alone`, or if there are `rows` of it by then, with those of others.

    Then `kept` is told whether they are stored. If one of them cannot be, none is, and each is stored alone.
    """

    alone: Callable[[], Awaitable[object]]
    rows: Callable[[], Stored | None] = lambda: None
    kept: Callable[[bool], None] = lambda _: None


def stored(rows: Stored, turns: Turns) -> News:
    """Return the news that stores `rows` in `turns`."""
    return News(partial(turns.keep, (rows,)), lambda: rows)
