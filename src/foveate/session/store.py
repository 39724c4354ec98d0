"""Stored sessions, turns, answers, archived requests and rate limits, and the interfaces of their stores."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from foveate.formats.response.rate_limits import RateLimit
from foveate.model import Format, Usage


class Session(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A conversation of one agent, up to `tip`, the hash of its last message.

    `parent_id` is the session that started a sub-agent's session, or that a fork continues from; `forked_at` is
    the hash of the last shared message. `caller` identifies the sender of a session without a name: it is empty
    for a named session, and None for one stored before callers were recorded. `prompt_digest` is a digest of
    the system prompt and tools of the first request, which had `first_messages`. `folder` is the client's
    working directory, and `opening` the first words, if they may be stored.
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
    prompt_digest: bytes | None = msgspec.field(default=None, name="setting")
    first_messages: int = 0
    folder: str | None = None
    opening: str | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message, identified by the hash of the chain up to it; `position` starts at 0."""

    hash: bytes
    position: int
    session_id: str


class AnswerRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    agent: str
    counter: str
    counts: Mapping[bytes, bytes]


SessionWrite = SessionUpdate | AnswerUpdate | CountUpdate
"""Anything that a request writes to the session store."""


class SessionStore(Protocol):
    async def find_turns(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]: ...

    async def get_session(self, session_id: str) -> Session | None: ...

    async def find_answers(self, digests: Sequence[bytes]) -> Sequence[tuple[AnswerRecord, Session]]:
        """Return the answers with these digests, and their sessions; only some if there are very many."""

    async def find_sessions_ending_at(
        self, agent: str, caller: str, last_hashes: Sequence[bytes]
    ) -> Sequence[Session]:
        """Return sessions of a caller, or without one, that end at one of `last_hashes`; only some of many."""

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        """Store everything in one transaction.

        The later of two states of a session wins. A turn stays with the session that had it first; the other
        session then depends on that one, which is kept as long as it is.
        """

    async def get_counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]: ...

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRequest:
    """A request as sent, with its usage if there was one.

    `original_body` is what the client sent, None if nothing was changed. Headers, and so keys, are not stored.
    """

    id: str
    agent: str
    session_id: str
    format: Format
    provider: str
    model: str
    at: float
    status: int
    request_body: bytes = field(repr=False)
    original_body: bytes | None = field(default=None, repr=False)
    usage: Usage | None = None


class RequestArchive(Protocol):
    """Stores complete requests.

    Raises:
        StoreUnavailable: it cannot be reached.
    """

    async def save(self, request: ArchivedRequest) -> int:
        """Store a request and return its size in bytes. One that exists already is not changed."""

    async def trim(self, *, before: float, max_bytes: int) -> int:
        """Delete requests before that time, and the oldest beyond `max_bytes`; return how many."""

    async def get(self, request_id: str) -> ArchivedRequest | None: ...

    async def find_by_session(
        self, session_id: str, *, limit: int = 2, before: float | None = None
    ) -> Sequence[ArchivedRequest]: ...


RECENT_SECONDS = 8 * 86_400.0
"""Older reports are not shown: the longest limit resets every week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLimit:
    agent: str
    provider: str
    limit: RateLimit
    at: float

    def used_at(self, now: float) -> float | None:
        """Return the share used: 0 after the limit was reset, None if it is unknown."""
        resets_at = self.limit.resets_at
        return 0.0 if resets_at is not None and resets_at <= now else self.limit.used


class RateLimitStore(Protocol):
    """Stores the newest state of every limit.

    Raises:
        StoreUnavailable: it cannot be reached.
    """

    async def save(self, limits: Sequence[ObservedLimit]) -> None:
        """Store these, unless the stored state is newer."""

    async def find_recent(self, *, since: float) -> Sequence[ObservedLimit]: ...
