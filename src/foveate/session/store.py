"""Sessions and their turns as they are stored, and the interface of the store that keeps them.

What requests make known of their sessions, for who keeps that of many of them together.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of one agent, up to `tip`, the hash of its last message.

    `parent_id` is the session that started a sub-agent's session, or that a fork goes on from; of a fork,
    `forked_at` is the hash of the last message that both have. `caller` identifies who sends a session that no
    client names: empty for one that has a name, None for one that was stored before callers were told apart.
    `setting` is a digest of the system prompt and tools of its first request, which had `first_messages`.
    `folder` is the working directory of its client, and `opening` its first words, if they may be stored.
    """

    id: str
    agent: str
    tip: bytes
    messages: int
    created_at: float
    seen_at: float
    parent_id: str | None = None
    forked_at: bytes | None = None
    caller: str | None = None
    setting: bytes | None = None
    first_messages: int = 0
    folder: str | None = None
    opening: str | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One message, told by the hash of the chain up to and with it, and where it stands: the first is 0."""

    hash: bytes
    position: int
    session_id: str


class AnswerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that a session got to the request that ends at `tip`, by a digest that identifies it."""

    digest: bytes
    session_id: str
    tip: bytes
    at: float


class SessionUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is now, and those of its turns that may not be stored yet."""

    session: Session
    turns: Sequence[Turn] = ()


class AnswerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of one answer."""

    rows: Sequence[AnswerRecord]


class CountUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What `counter` wrote down of an agent's turns, by their hashes."""

    agent: str
    counter: str
    counts: Mapping[bytes, bytes]


SessionWrite = SessionUpdate | AnswerUpdate | CountUpdate
"""What requests have stored."""


class SessionStore(Protocol):
    """Stores sessions, their turns and answers, and token counts of turns."""

    async def find_turns(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        """Return those of `hashes` that are stored for `agent`."""

    async def get_session(self, session_id: str) -> Session | None:
        """Return a session by its id."""

    async def find_answers(self, digests: Sequence[bytes]) -> Sequence[tuple[AnswerRecord, Session]]:
        """Return the answers with these digests, and their sessions; some of them if there are very many."""

    async def find_sessions_ending_at(
        self, agent: str, caller: str, tips: Sequence[bytes]
    ) -> Sequence[tuple[Session, bool]]:
        """Return sessions of a caller (or of nobody known) that end at one of `tips`; some of very many.

        Each comes with whether its last request was answered.
        """

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        """Store all of them in one transaction.

        The later of two states of a session wins. A turn stays with the session that had it first; the other
        session then depends on that one, which is stored for as long as it is.
        """

    async def get_counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        """What `counter` wrote down of each of those turns, as far as that is kept."""

    async def save_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        """Keep what `counter` wrote down of turns; what it wrote before of the same ones is replaced."""


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
