"""What is kept of sessions, and the small interface of who keeps it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of one agent, up to `tip`, the hash of its last message.

    A fork is a child: it has a `parent_id`, and `forked_at` is the hash of the last message that both have. One
    that a header names can be a child of several, of the one after the other; these are the last.
    """

    id: str
    agent: str
    tip: bytes
    messages: int
    created_at: float
    seen_at: float
    parent_id: str | None = None
    forked_at: bytes | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One message, told by the hash of the chain up to and with it, and where it stands: the first is 0."""

    hash: bytes
    position: int
    session_id: str


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is now with its new turns; `after` is the tip that it had, None for one that is new."""

    session: Session
    turns: Sequence[Turn]
    after: bytes | None


class CountRows(msgspec.Struct, frozen=True, kw_only=True):
    """What `counter` wrote down of an agent's turns, by their hashes."""

    agent: str
    counter: str
    counts: Mapping[bytes, bytes]


class Turns(Protocol):
    """Keeps sessions, their turns, and what was counted of each turn."""

    async def known(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        """Those of `hashes` that are kept for `agent`."""

    async def session(self, session_id: str) -> Session | None:
        """A session by its id."""

    async def keep(self, session: Session, turns: Sequence[Turn], *, after: bytes | None) -> bool:
        """Keep a session as it is now and its new turns, all in one.

        `after` is the tip that the session had, None for one that is new. False, and nothing kept, where that
        is so no longer (its tip is another, it is there already), where one of `turns` is kept already, or its
        parent is not: somebody else was quicker, and has to be looked at first. A parent is kept for as long as
        the session is, also where it has another one later.
        """

    async def keep_all(self, rows: Sequence[Move | CountRows]) -> bool:
        """Keep the sessions and counts of many requests, all in one; no session among them has a new parent.

        False, and nothing kept, where one of them cannot be, as `keep` and `keep_counts` say of each.
        """

    async def counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        """What `counter` wrote down of each of those turns, as far as that is kept."""

    async def keep_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        """Keep what `counter` wrote down of turns; what it wrote before of the same ones is replaced."""
