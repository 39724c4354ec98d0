"""What requests make known of their sessions, for who keeps that of many of them together."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from foveate.session.chain import Chain
from foveate.session.sessions import Guess, Tips, confirm
from foveate.session.turns import CountRows, Move, Turns


def _nothing() -> None:
    """Nothing is to be done."""


class News(msgspec.Struct, frozen=True):
    """Something that is to be kept: `alone`, or where it has `rows`, with those of others.

    Once these are kept, `kept` is called. Where one of them cannot be, each is kept alone.
    """

    alone: Callable[[], Awaitable[object]]
    rows: Callable[[], Move | CountRows] | None = None
    kept: Callable[[], None] = _nothing


def moved(guessed: Guess, chain: Chain, turns: Turns, tips: Tips) -> News:
    """What `confirm` keeps; alone where it has to wait for something else first."""
    alone = partial(confirm, guessed, chain, turns, tips)
    if guessed.behind is not None:
        return News(alone)
    session, after = guessed.found.session, guessed.after
    return News(
        alone,
        rows=lambda: Move(session=session, turns=guessed.new, after=after),
        kept=lambda: tips.arrived(after, session, is_kept=True),
    )
