"""Rate limits of subscriptions as last reported, and the interface of their store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate.formats.response.rate_limits import RateLimit

RECENT_SECONDS = 8 * 86_400.0
"""Older reports are not shown: the longest limit resets every week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLimit:
    """A limit of the subscription that an agent uses, at a point in time."""

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

    async def find_recent(self, *, since: float) -> Sequence[ObservedLimit]:
        """Return the limits reported since then, by agent, provider and name."""
