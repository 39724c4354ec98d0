"""Limits of subscriptions that responses tell of, kept now and then."""

import logging
from collections.abc import Callable

from foveate.engine.exchange import Exchange
from foveate.engine.soon import Soon
from foveate.errors import StoreUnavailable
from foveate.session.rate_limits import RateLimits, SeenLimit

_LOG = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
# Of more, the next response tells again.
_MAX_WAITING = 4_096


class KeepRateLimits:
    """Keeps the newest limits of each agent. Closed by `close`. For one event loop."""

    def __init__(
        self, limits: RateLimits, *, clock: Callable[[], float], every_seconds: float = EVERY_SECONDS
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._soon = Soon(self._write, every_seconds)
        self._waiting: dict[tuple[str, str, str], SeenLimit] = {}

    def __call__(self, exchange: Exchange) -> None:
        """Have what a response tells of kept soon."""
        incoming = exchange.incoming
        for limit in exchange.rate_limits:
            if len(self._waiting) >= _MAX_WAITING:
                return
            seen = SeenLimit(
                agent=incoming.agent, provider=incoming.provider, limit=limit, at=exchange.begun_at
            )
            self._waiting[seen.agent, seen.provider, limit.name] = seen
            self._soon.want()

    async def close(self) -> None:
        """Keep what was told so far."""
        await self._soon.close()

    async def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        try:
            await self._limits.keep([*waiting.values()])
        except StoreUnavailable as error:  # the next response tells it again
            _LOG.warning("the limits of %d subscriptions could not be kept: %s", len(waiting), error)
