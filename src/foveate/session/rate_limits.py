"""How much of each subscription is used, as its provider last said, and the interface of who keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate.formats.response.rate_limits import RateLimit

RECENT_SECONDS = 8 * 86_400.0
"""Limits that were told of longer ago are not shown: the longest is reset every week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLimit:
    """A limit of the subscription that an agent's calls use, as it was at a time."""

    agent: str
    provider: str
    limit: RateLimit
    at: float

    def used_at(self, now: float) -> float | None:
        """The share that is used: nothing once the limit was reset; None where nobody said."""
        resets_at = self.limit.resets_at
        return 0.0 if resets_at is not None and resets_at <= now else self.limit.used


class RateLimitStore(Protocol):
    """Keeps the newest state of every limit.

    Raises:
        StoreUnavailable: it cannot be reached.
    """

    async def save(self, limits: Sequence[ObservedLimit]) -> None:
        """Keep these, unless what is there is newer."""

    async def find_recent(self, *, since: float) -> Sequence[ObservedLimit]:
        """The limits that were told of since then, by agent, provider and name."""
