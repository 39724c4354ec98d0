"""What is old is forgotten now and then, while the gateway serves."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from foveate.errors import FoveateError
from foveate.store import Forgotten

_LOG = logging.getLogger(__name__)

# Not at the start, when there is most to do; and often enough that there is never much.
FIRST_SECONDS = 300.0
EVERY_SECONDS = 6 * 3600.0


class Forgets(Protocol):
    """Forgets what was not seen for so many days."""

    async def forget(self, *, keep_days: float, now: float) -> Forgotten:
        """What was forgotten."""


@asynccontextmanager
async def forgetting(
    store: Forgets,
    keep_days: Callable[[], float],
    *,
    clock: Callable[[], float],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Until the end of the block, what is older than `keep_days` is forgotten every few hours."""
    task = asyncio.create_task(_now_and_then(store, keep_days, clock, wait))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _now_and_then(
    store: Forgets,
    keep_days: Callable[[], float],
    clock: Callable[[], float],
    wait: Callable[[float], Awaitable[None]],
) -> None:
    seconds = FIRST_SECONDS
    while True:
        await wait(seconds)
        seconds = EVERY_SECONDS
        days = keep_days()
        try:
            gone = await store.forget(keep_days=days, now=clock())
        except FoveateError as error:
            _LOG.warning("what is old could not be forgotten, and is tried again later: %s", error)
            continue
        if gone != Forgotten():
            _LOG.info("forgot what was not seen for %g days: %s", days, gone)
