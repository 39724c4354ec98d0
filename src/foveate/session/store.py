"""Stored sessions, turns and answers, and the interface of their store."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of one agent, up to `tip`, the hash of its last message.

    `parent_id` is the session that started a sub-agent's session, or that a fork continues from; `forked_at` is
    the hash of the last shared message. `caller` identifies the sender of a session without a name: it is empty
    for a named session, and None for one stored before callers were recorded. `setting` is a digest of the
    system prompt and tools of the first request, which had `first_messages`. `folder` is the client's working
    directory, and `opening` the first words, if they may be stored.
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
    """One message, identified by the hash of the chain up to it; `position` starts at 0."""

    hash: bytes
    position: int
    session_id: str


class AnswerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to the request that ends at `tip`, identified by a digest."""

    digest: bytes
    session_id: str
    tip: bytes
    at: float


class SessionUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Current state of a session, and turns that may not be stored yet."""

    session: Session
    turns: Sequence[Turn] = ()


class AnswerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    rows: Sequence[AnswerRecord]


class CountUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of an agent's turns by `counter`, by hash."""

    agent: str
    counter: str
    counts: Mapping[bytes, bytes]


SessionWrite = SessionUpdate | AnswerUpdate | CountUpdate
"""Anything that a request writes to the session store."""


class SessionStore(Protocol):
    """Stores sessions, their turns and answers, and token counts of turns."""

    async def find_turns(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        """Return those of `hashes` that are stored for `agent`."""

    async def get_session(self, session_id: str) -> Session | None: ...

    async def find_answers(self, digests: Sequence[bytes]) -> Sequence[tuple[AnswerRecord, Session]]:
        """Return the answers with these digests, and their sessions; only some if there are very many."""

    async def find_sessions_ending_at(
        self, agent: str, caller: str, tips: Sequence[bytes]
    ) -> Sequence[tuple[Session, bool]]:
        """Return sessions of a caller (or without one) that end at one of `tips`; only some of very many.

        Each comes with whether its last request was answered.
        """

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        """Store everything in one transaction.

        The later of two states of a session wins. A turn stays with the session that had it first; the other
        session then depends on that one, which is kept as long as it is.
        """

    async def get_counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        """Return the stored counts of these turns by `counter`."""

    async def save_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        """Store counts of turns by `counter`, replacing earlier ones."""


class PendingWrite(msgspec.Struct, frozen=True):
    """A write that is executed alone, or batched with others if `make_rows` returns rows.

    `on_saved` is called with whether a batch was stored. If a batch fails, each write is executed alone.
    """

    write_alone: Callable[[], Awaitable[object]]
    make_rows: Callable[[], SessionWrite | None] = lambda: None
    on_saved: Callable[[bool], None] = lambda _: None


def make_pending_write(rows: SessionWrite, store: SessionStore) -> PendingWrite:
    return PendingWrite(partial(store.save, (rows,)), lambda: rows)
