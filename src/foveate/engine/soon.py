"""Work that is done a while after it is wanted, so that much of it is done together."""

import asyncio
from collections.abc import Awaitable, Callable


class Soon:
    """Has `work` done at most once every so many `seconds`, and never twice at a time. For one event loop."""

    def __init__(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._at_it: asyncio.Task[None] | None = None
        self._next: asyncio.TimerHandle | None = None

    def want(self) -> None:
        """Have it done; whoever wants it until then wants the same."""
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(self._seconds, self._begin)

    async def close(self) -> None:
        """Do it now, for the last time."""
        if self._next is not None:
            self._next.cancel()
        if self._at_it is not None:
            await asyncio.wait([self._at_it])
        await self._work()

    def _begin(self) -> None:
        self._next = None
        if self._at_it is None or self._at_it.done():
            self._at_it = asyncio.ensure_future(self._work())
        else:
            self.want()  # it takes long, and what is wanted meanwhile is done together
