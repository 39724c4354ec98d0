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
_RENEWALS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class Lease:
    """A reservation, until when it is held for its call, and until when it can be."""

    reservation: Reservation
    expires_at: float
    final_expiry: float


class LeaseRenewer:
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
        self._leases: dict[str, Lease] = {}
        self._next_expiry = math.inf
        self._renewal_lock = asyncio.Lock()
        self._renewal_task: asyncio.Task[None] | None = None
        self._lapsed = 0

    @property
    def lapsed(self) -> int:
        """How many reservations had run out while their calls went on, and were made once more."""
        return self._lapsed

    def lease_end(self, now: float) -> float:
        """When a lease ends that is taken now."""
        return now + min(self._lease_seconds, self._lifetime_seconds)

    def add(self, reservation: Reservation, *, now: float) -> None:
        """Renew a reservation from now on."""
        expires_at = reservation.expires_at
        self._leases[reservation.call_id] = Lease(reservation, expires_at, now + self._lifetime_seconds)
        self._next_expiry = min(self._next_expiry, expires_at)
        if self._renewal_task is None or self._renewal_task.done():
            self._renewal_task = asyncio.create_task(self._renew_until_empty())

    def remove(self, call_id: str) -> Lease | None:
        """What was held for a call, which is over; None where nothing was."""
        return self._leases.pop(call_id, None)

    def get(self, call_id: str) -> Lease | None:
        """What is held for a call that goes on; None where nothing is."""
        return self._leases.get(call_id)

    async def ensure_current(self, now: float) -> None:
        """See that nothing has run out that is held here, so that a cap can be checked.

        Raises:
            StoreUnavailable: nobody can say.
        """
        if self._next_expiry <= now:
            await self._renew(now)

    async def close(self) -> None:
        """Renew nothing any longer."""
        if self._renewal_task is not None:
            self._renewal_task.cancel()
            await asyncio.wait([self._renewal_task])

    async def _renew_until_empty(self) -> None:
        pause_seconds = self._lease_seconds / _RENEWALS_PER_LEASE
        while self._leases:
            await self._sleep(pause_seconds)
            try:
                await self._renew(self._clock())
            except FoveateError as error:
                _LOG.warning("what is reserved for calls under way cannot be renewed: %s", error)

    async def _renew(self, now: float) -> None:
        async with self._renewal_lock:
            due = self._take_due(now)
            if due:
                expires_at = now + self._lease_seconds
                renewed = await self._ledger.renew(due, expires_at=expires_at)
                for call_id in due:
                    await self._apply_renewal(call_id, expires_at, is_there=call_id in renewed)
            self._next_expiry = min((lease.expires_at for lease in self._leases.values()), default=math.inf)

    def _take_due(self, now: float) -> list[str]:
        """The calls whose lease has had a good part of its time; those that take too long are let go."""
        for call_id in [call_id for call_id, lease in self._leases.items() if lease.final_expiry <= now]:
            del self._leases[call_id]
            _LOG.warning("%s takes too long: nothing is held for it any longer", call_id)
        due_before = now + self._lease_seconds * (_RENEWALS_PER_LEASE - 1) / _RENEWALS_PER_LEASE
        return [call_id for call_id, lease in self._leases.items() if lease.expires_at <= due_before]

    async def _apply_renewal(self, call_id: str, expires_at: float, *, is_there: bool) -> None:
        lease = self._leases.get(call_id)
        if lease is None:  # it is over since
            return
        if not is_there:
            # Whatever is left of the caps by now: what it may cost is to be found there.
            renewed = replace(lease.reservation, limits={}, expires_at=expires_at)
            await self._ledger.reserve(renewed, now=self._clock())
            if call_id not in self._leases:  # it was over before that, and is not to be found there
                await self._ledger.release(call_id)
                return
            self._lapsed += 1
            _LOG.warning("what was reserved for %s had run out; it is reserved once more", call_id)
        if self._leases.get(call_id) is lease:
            self._leases[call_id] = replace(lease, expires_at=expires_at)
