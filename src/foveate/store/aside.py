"""Reads of pages, which leave room for those of requests: nobody's request waits for those who look on."""

import asyncio
from typing import Protocol
from weakref import WeakKeyDictionary

from foveate.store.database import T, TransactionCallback

MAX_CONCURRENT_READS = 2
"""So many reads of pages are under way at once, of those that a database takes."""


class Reader(Protocol):
    """Reads a database, as all of them do."""

    async def read(self, callback: TransactionCallback[T]) -> T:
        """What `work` finds."""


class LowPriorityReader:
    """The same database for those who can wait: few of their reads are under way, the others come in turn."""

    def __init__(self, database: Reader, max_concurrent: int = MAX_CONCURRENT_READS) -> None:
        self._database = database
        self._max_concurrent = max_concurrent
        # A store may be used from any event loop, and nobody can wait for another loop's.
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def read(self, callback: TransactionCallback[T]) -> T:
        """What `work` finds, once it is its turn."""
        semaphore = self._semaphores.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrent)
        )
        async with semaphore:
            return await self._database.read(callback)
