"""What is old is forgotten now and then, while the gateway serves."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from foveate.errors import FoveateError
from foveate.store import PruneResult

_LOG = logging.getLogger(__name__)

# Not at the start, when there is most to do; and often enough that there is never much.
FIRST_DELAY_SECONDS = 300.0
INTERVAL_SECONDS = 6 * 3600.0


class RetentionStore(Protocol):
    """Forgets what was not seen for so many days."""

    async def prune(self, *, keep_days: float, now: float) -> PruneResult:
        """What was forgotten."""


@asynccontextmanager
async def run_retention(
    store: RetentionStore,
    keep_days: Callable[[], float],
    *,
    clock: Callable[[], float],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Until the end of the block, what is older than `keep_days` is forgotten every few hours."""
    task = asyncio.create_task(_retention_loop(store, keep_days, clock, wait))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _retention_loop(
    store: RetentionStore,
    keep_days: Callable[[], float],
    clock: Callable[[], float],
    wait: Callable[[float], Awaitable[None]],
) -> None:
    seconds = FIRST_DELAY_SECONDS
    while True:
        await wait(seconds)
        seconds = INTERVAL_SECONDS
        days = keep_days()
        try:
            deleted = await store.prune(keep_days=days, now=clock())
        except FoveateError as error:
            _LOG.warning("what is old could not be forgotten, and is tried again later: %s", error)
            continue
        if deleted != PruneResult():
            _LOG.info("forgot what was not seen for %g days: %s", days, deleted)
