"""Saves rate limits of subscriptions, as reported by responses."""

import logging
from collections.abc import Callable

from foveate.engine.background.debouncer import Debouncer
from foveate.engine.exchange import Exchange
from foveate.errors import StoreUnavailable
from foveate.session.store import ObservedLimit, RateLimitStore

_LOG = logging.getLogger(__name__)

SAVE_INTERVAL_SECONDS = 1.0
# Limits beyond these are reported again by the next response.
_MAX_WAITING = 4_096


class SaveRateLimits:
    """Saves the newest limits of each agent. For one event loop."""

    def __init__(
        self,
        limits: RateLimitStore,
        *,
        clock: Callable[[], float],
        interval_seconds: float = SAVE_INTERVAL_SECONDS,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._debouncer = Debouncer(self._write, interval_seconds)
        self._waiting: dict[tuple[str, str, str], ObservedLimit] = {}

    def __call__(self, exchange: Exchange) -> None:
        incoming = exchange.incoming
        for limit in exchange.rate_limits:
            if len(self._waiting) >= _MAX_WAITING:
                return
            seen_limit = ObservedLimit(
                agent=incoming.agent, provider=incoming.provider, limit=limit, at=exchange.response_started_at
            )
            self._waiting[seen_limit.agent, seen_limit.provider, limit.name] = seen_limit
            self._debouncer.request()

    async def close(self) -> None:
        await self._debouncer.close()

    async def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        try:
            await self._limits.save([*waiting.values()])
        except StoreUnavailable as error:  # the next response reports them again
            _LOG.warning("%d rate limits of subscriptions could not be saved: %s", len(waiting), error)
