"""Debouncing of background work."""

import asyncio
from collections.abc import Awaitable, Callable


class Debouncer:
    """Runs `action` at most once per `delay_seconds`, and never concurrently. For one event loop."""

    def __init__(self, action: Callable[[], Awaitable[None]], delay_seconds: float) -> None:
        self._action = action
        self._delay_seconds = delay_seconds
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def request(self) -> None:
        """Run the action after the delay; requests until then are combined."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_seconds, self._start)

    async def close(self) -> None:
        """Run it now, for the last time."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._action()

    def _start(self) -> None:
        self._timer = None
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._action())
        else:
            self.request()  # still running: combine the requests until it ends
