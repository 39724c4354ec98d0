"""Reads of pages, which leave room for those of requests: nobody's request waits for those who look on."""

import asyncio
from typing import Protocol
from weakref import WeakKeyDictionary

from foveate.store.database import T, Work

MOST = 2
"""So many reads of pages are under way at once, of those that a database takes."""


class Reads(Protocol):
    """Reads a database, as all of them do."""

    async def read(self, work: Work[T]) -> T:
        """What `work` finds."""


class Aside:
    """The same database for those who can wait: few of their reads are under way, the others come in turn."""

    def __init__(self, database: Reads, most: int = MOST) -> None:
        self._database = database
        self._most = most
        # A store may be used from any event loop, and nobody can wait for another loop's.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def read(self, work: Work[T]) -> T:
        """What `work` finds, once it is its turn."""
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._most))
        async with turns:
            return await self._database.read(work)
