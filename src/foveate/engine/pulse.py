"""A beat for what is not urgent: all who wait for it go on together, and what they write is one transaction."""

import asyncio

_SECONDS = 0.005
# By then the others have beaten too, and have written.
_OTHERS_SECONDS = 0.02
_LONGEST_SECONDS = 5.0


class Pulse:
    """Beats a moment after somebody begins to wait for it. For one event loop."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._next: asyncio.Event | None = None

    async def beat(self) -> None:
        """Wait for the next beat."""
        if self._next is None:
            self._next = asyncio.Event()
            asyncio.get_running_loop().call_later(self._seconds, self.fire)
        await self._next.wait()

    def fire(self) -> None:
        """Beat now."""
        if self._next is not None:
            self._next.set()
        self._next = None


class Behind:
    """What is done behind answers: on each beat of its pulse, until it is done."""

    def __init__(self) -> None:
        self.pulse = Pulse()
        self.under_way: set[asyncio.Future[None]] = set()
        self.keeping: set[asyncio.Future[None]] = set()

    async def caught_up(self) -> None:
        """Have all done that is to be done by now, here and in the other processes."""
        self.pulse.fire()
        await asyncio.sleep(_OTHERS_SECONDS)
        if self.under_way:
            await asyncio.wait(set(self.under_way), timeout=_LONGEST_SECONDS)

    def keep(self, keeping: "asyncio.Future[None]") -> None:
        """Have something kept behind all else, which may have to wait for others."""
        self.keeping.add(keeping)
        keeping.add_done_callback(self.keeping.discard)

    async def end(self) -> None:
        """Wait for what is under way; for what waits for others not for long."""
        while self.under_way:
            await asyncio.wait(set(self.under_way))
        if self.keeping:
            await asyncio.wait(set(self.keeping), timeout=_LONGEST_SECONDS)
