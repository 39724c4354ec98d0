"""Archive of complete requests, which is optional, and the interface of its store."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from foveate.model import Format, Usage


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
    ) -> Sequence[ArchivedRequest]:
        """Return the latest requests of a session, newest first; with `before`, those before that time."""
