"""What is reserved for the calls under way of one process, held for them by short leases that are renewed.

A lease is short so that a process that dies stands in nobody's way for long. One that stalls for longer than
that may find, when it goes on, that others were let through in its place: then what its calls may cost is
reserved once more, whether or not there is room, since they may be billed. So caps are found full until those
calls are booked, and nothing more is let through here before it is known how they stand.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from foveate.cost.ledger import Ledger, Reservation
from foveate.errors import FoveateError

_LOG = logging.getLogger(__name__)

# So often in the time of a lease it is renewed, so that it lives through a try or two that fail.
_RENEWALS = 3


@dataclass(frozen=True, slots=True)
class Held:
    """A reservation, until when it is held for its call, and until when it can be."""

    reservation: Reservation
    until: float
    at_last: float


class Leases:
    """The reservations of the calls under way, for one process and one event loop. Closed by `close`.

    A lease is renewed for `lifetime_seconds` at most: for so long a call may take.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        lease_seconds: float,
        lifetime_seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._lifetime_seconds = lifetime_seconds
        self._sleep = sleep
        self._held: dict[str, Held] = {}
        self._first_ends_at = math.inf
        self._renewing = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._lapsed = 0

    @property
    def lapsed(self) -> int:
        """How many reservations had run out while their calls went on, and were made once more."""
        return self._lapsed

    def until(self, now: float) -> float:
        """When a lease ends that is taken now."""
        return now + min(self._lease_seconds, self._lifetime_seconds)

    def hold(self, reservation: Reservation, *, now: float) -> None:
        """Renew a reservation from now on."""
        until = reservation.expires_at
        self._held[reservation.call_id] = Held(reservation, until, now + self._lifetime_seconds)
        self._first_ends_at = min(self._first_ends_at, until)
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep())

    def let_go(self, call_id: str) -> Held | None:
        """What was held for a call, which is over; None where nothing was."""
        return self._held.pop(call_id, None)

    def held(self, call_id: str) -> Held | None:
        """What is held for a call that goes on; None where nothing is."""
        return self._held.get(call_id)

    async def checked(self, now: float) -> None:
        """See that nothing has run out that is held here, so that a cap can be checked.

        Raises:
            StoreUnavailable: nobody can say.
        """
        if self._first_ends_at <= now:
            await self._renew(now)

    async def close(self) -> None:
        """Renew nothing any longer."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])

    async def _keep(self) -> None:
        pause_seconds = self._lease_seconds / _RENEWALS
        while self._held:
            await self._sleep(pause_seconds)
            try:
                await self._renew(self._clock())
            except FoveateError as error:
                _LOG.warning("what is reserved for calls under way cannot be renewed: %s", error)

    async def _renew(self, now: float) -> None:
        async with self._renewing:
            due = self._due(now)
            if due:
                until = now + self._lease_seconds
                there = await self._ledger.renew(due, expires_at=until)
                for call_id in due:
                    await self._renewed(call_id, until, is_there=call_id in there)
            self._first_ends_at = min((held.until for held in self._held.values()), default=math.inf)

    def _due(self, now: float) -> list[str]:
        """The calls whose lease has had a good part of its time; those that take too long are let go."""
        for call_id in [call_id for call_id, held in self._held.items() if held.at_last <= now]:
            del self._held[call_id]
            _LOG.warning("%s takes too long: nothing is held for it any longer", call_id)
        soon = now + self._lease_seconds * (_RENEWALS - 1) / _RENEWALS
        return [call_id for call_id, held in self._held.items() if held.until <= soon]

    async def _renewed(self, call_id: str, until: float, *, is_there: bool) -> None:
        held = self._held.get(call_id)
        if held is None:  # it is over since
            return
        if not is_there:
            # Whatever is left of the caps by now: what it may cost is to be found there.
            again = replace(held.reservation, limits={}, expires_at=until)
            await self._ledger.reserve(again, now=self._clock())
            if call_id not in self._held:  # it was over before that, and is not to be found there
                await self._ledger.release(call_id)
                return
            self._lapsed += 1
            _LOG.warning("what was reserved for %s had run out; it is reserved once more", call_id)
        if self._held.get(call_id) is held:
            self._held[call_id] = replace(held, until=until)
