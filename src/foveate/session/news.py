"""What requests make known of their sessions, for who keeps that of many of them together."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from foveate.session.chain import Chain
from foveate.session.sessions import Guess, Tips, confirm
from foveate.session.turns import CountRows, Move, Turns


class News(msgspec.Struct, frozen=True):
    """Something that is to be kept: `alone`, or where there are `rows` of it by then, with those of others.

    Then `kept` is told whether these are. Where one of them cannot be, none is, and each is kept alone.
    `dropped` is called if the store was away: then nothing is kept, and nobody may wait for it.
    """

    alone: Callable[[], Awaitable[object]]
    rows: Callable[[], Move | CountRows | None] = lambda: None
    kept: Callable[[bool], None] = lambda _: None
    dropped: Callable[[], None] = lambda: None


def moved(guessed: Guess, chain: Chain, turns: Turns, tips: Tips) -> News:
    """What `confirm` keeps; alone where it has to wait for something else first."""
    session, behind, pending = guessed.found.session, guessed.behind, guessed.pending

    def rows() -> Move | None:
        if guessed.has_new_parent or (behind is not None and not behind.is_kept):
            return None
        if pending is not None:
            pending.is_kept = True  # those that follow can be kept in the same transaction
        return Move(session=session, turns=guessed.new, after=guessed.after)

    def kept(is_kept: bool) -> None:
        if is_kept and guessed.named is None:
            tips.arrived(pending, session, is_kept=True)
        elif pending is not None:
            pending.is_kept = False

    def dropped() -> None:
        if pending is not None:
            tips.end(pending, is_kept=False)

    return News(partial(confirm, guessed, chain, turns, tips), rows, kept, dropped)
