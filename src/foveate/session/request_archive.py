"""Whole requests as they went out, kept where that is wanted, and the small interface of who keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from foveate.model import Format, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRequest:
    """A request with its bill, as far as one came: `sent` went out, and `came` is what the client sent.

    `came` is None where nothing was changed. There are no headers, and so no keys.
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
    """Keeps whole requests.

    Raises:
        StoreUnavailable: it cannot be reached.
    """

    async def save(self, request: ArchivedRequest) -> int:
        """Keep a request; how many bytes that takes. One that is kept already stays as it is."""

    async def trim(self, *, before: float, max_bytes: int) -> int:
        """Drop those from before that time, and the oldest of more than `most_bytes`; how many were dropped."""

    async def get(self, request_id: str) -> ArchivedRequest | None:
        """One by its id; None where it is not kept, or no longer."""

    async def find_by_session(
        self, session_id: str, *, limit: int = 2, before: float | None = None
    ) -> Sequence[ArchivedRequest]:
        """The last ones of a session, the newest first; with `before`, the last ones before that time."""
