"""What requests make known of their sessions, for who keeps that of many of them together."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from foveate.session.turns import SessionStore, SessionWrite


class PendingWrite(msgspec.Struct, frozen=True):
    """Something to be stored: `alone`, or if there are `rows` of it by then, with those of others.

    Then `kept` is told whether they are stored. If one of them cannot be, none is, and each is stored alone.
    """

    write_alone: Callable[[], Awaitable[object]]
    make_rows: Callable[[], SessionWrite | None] = lambda: None
    on_saved: Callable[[bool], None] = lambda _: None


def make_pending_write(rows: SessionWrite, store: SessionStore) -> PendingWrite:
    """Return the news that stores `rows` in `turns`."""
    return PendingWrite(partial(store.save, (rows,)), lambda: rows)
