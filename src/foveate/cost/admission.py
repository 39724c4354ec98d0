"""Admit calls under their caps, and record what they cost.

The cost ceiling of a call is reserved before it is made, and settled when its usage is known. A reservation is
a short lease that is renewed while the call is in flight, so that the reservations of a process that dies
expire soon. A process that stalls longer than its leases may find that other calls were admitted instead. It
then reserves again, whether or not there is room, because its calls may be charged, and admits nothing until
that is done. A call that outlives its reservation is still recorded.

If the ledger cannot be reached, charges wait in memory and in the outbox, if there is one, and are written when
it is back.
"""

import asyncio
import dataclasses
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from foveate.cost.caps import (
    Cap,
    CapWarning,
    ReservationClaim,
    claim_reservation,
    find_cap_warnings,
    list_accounts,
    make_cap_exceeded,
    make_cap_uncheckable,
)
from foveate.cost.ledger import (
    AccountBalance,
    AccountOverLimit,
    Call,
    Charge,
    Ledger,
    Outbox,
    Reservation,
    WriteAheadLog,
)
from foveate.cost.money import MIN_DOLLARS, to_dollars, to_picodollars_rounded_up
from foveate.errors import CapUncheckable, FoveateError, StoreUnavailable, UnwritableFile
from foveate.model import CacheUsage, Savings, Usage

_LOG = logging.getLogger(__name__)

# A lease survives one or two failed renewals.
_RENEWALS_PER_LEASE = 3
_MIN_RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 30.0
# A cancelled caller's reservation completes within this time and can then be released.
_CANCELLED_RELEASE_SECONDS = 1.0
# Waiting charges that are recorded in one transaction.
_MAX_BATCH_CHARGES = 256
_RESTORE_STORE_REMEDY = "restore the store, or remove the cap"


@dataclass(frozen=True, slots=True)
class Lease:
    reservation: Reservation
    expires_at: float
    final_expiry: float


class LeaseRenewer:
    """Renews the reservations of calls in flight, for one process and one event loop. Close with `close`.

    A lease is renewed for at most `lifetime_seconds`, the longest time a call may take.
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
        self._lapsed_count = 0

    @property
    def lapsed_count(self) -> int:
        """Number of reservations that expired while their calls were in flight, and were made again."""
        return self._lapsed_count

    def lease_end(self, now: float) -> float:
        return now + min(self._lease_seconds, self._lifetime_seconds)

    def add(self, reservation: Reservation, *, now: float) -> None:
        expires_at = reservation.expires_at
        self._leases[reservation.call_id] = Lease(reservation, expires_at, now + self._lifetime_seconds)
        self._next_expiry = min(self._next_expiry, expires_at)
        if self._renewal_task is None or self._renewal_task.done():
            self._renewal_task = asyncio.create_task(self._renew_until_empty())

    def remove(self, call_id: str) -> Lease | None:
        return self._leases.pop(call_id, None)

    def get(self, call_id: str) -> Lease | None:
        return self._leases.get(call_id)

    async def ensure_current(self, now: float) -> None:
        """Renew leases if one has expired, so that caps can be checked.

        Raises:
            StoreUnavailable: the ledger cannot be reached.
        """
        if self._next_expiry <= now:
            await self._renew(now)

    async def close(self) -> None:
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
                _LOG.warning("cannot renew the reservations of running calls: %s", error)

    async def _renew(self, now: float) -> None:
        async with self._renewal_lock:
            due = self._take_due(now)
            if due:
                expires_at = now + self._lease_seconds
                renewed_ids = await self._ledger.renew(due, expires_at=expires_at)
                for call_id in due:
                    await self._apply_renewal(call_id, expires_at, is_renewed=call_id in renewed_ids)
            self._next_expiry = min((lease.expires_at for lease in self._leases.values()), default=math.inf)

    def _take_due(self, now: float) -> list[str]:
        for call_id in [call_id for call_id, lease in self._leases.items() if lease.final_expiry <= now]:
            del self._leases[call_id]
            _LOG.warning("%s takes too long, its reservation has expired", call_id)
        due_before = now + self._lease_seconds * (_RENEWALS_PER_LEASE - 1) / _RENEWALS_PER_LEASE
        return [call_id for call_id, lease in self._leases.items() if lease.expires_at <= due_before]

    async def _apply_renewal(self, call_id: str, expires_at: float, *, is_renewed: bool) -> None:
        lease = self._leases.get(call_id)
        if lease is None:  # the call has ended
            return
        if not is_renewed:
            # Without limits: the reservation must exist even if the caps have no room.
            reservation = dataclasses.replace(lease.reservation, limits={}, expires_at=expires_at)
            await self._ledger.reserve(reservation, now=self._clock())
            if call_id not in self._leases:  # the call ended meanwhile, so nothing must stay reserved
                await self._ledger.release(call_id)
                return
            self._lapsed_count += 1
            _LOG.warning("the reservation of %s had expired and was made again", call_id)
        if self._leases.get(call_id) is lease:
            self._leases[call_id] = dataclasses.replace(lease, expires_at=expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """Durations of reservations, and the number of charges that can wait for the ledger.

    A reservation lasts `lease_seconds` unless it is renewed, and `lifetime_seconds` in all, longer than any
    call may take. Charges beyond `max_waiting` are lost and reported.
    """

    lease_seconds: float = 90.0
    lifetime_seconds: float = 1200.0
    max_waiting: int = 10_000


class _PendingCharge(msgspec.Struct, frozen=True):
    """A charge, and the amount reserved for its call if the reservation may have expired."""

    charge: Charge
    reserved: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedCall:
    """A call that may be made, for at most `ceiling` dollars. It must be settled or released."""

    call: Call
    ceiling: Decimal | None = None
    is_reserved: bool = False
    warnings: tuple[CapWarning, ...] = ()


class SettlementOutcome(StrEnum):
    RECORDED = "booked"
    ALREADY_RECORDED = "known"
    WAITING = "waiting"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Outcome of a charge: recorded, known already, waiting for the ledger, or lost; `problem` says why."""

    outcome: SettlementOutcome
    problem: str = ""


_RECORDED, _ALREADY_RECORDED = (
    Settlement(outcome=SettlementOutcome.RECORDED),
    Settlement(outcome=SettlementOutcome.ALREADY_RECORDED),
)


class Admission:
    """Admits calls and records their charges, for one process and one event loop. Close with `close`."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        options: AdmissionOptions = AdmissionOptions(),  # noqa: B008 - it is frozen
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        outbox: Outbox | None = None,
        write_ahead_log: WriteAheadLog | None = None,
    ) -> None:
        """With an `outbox`, waiting charges survive the process.

        With a `write_ahead_log`, so do calls in flight, and charges that are about to be recorded.
        """
        self._ledger = ledger
        self._clock = clock
        self._options = options
        self._sleep = sleep
        self._numbers = itertools.count()
        self._leases = LeaseRenewer(
            ledger,
            clock=clock,
            lease_seconds=options.lease_seconds,
            lifetime_seconds=options.lifetime_seconds,
            sleep=sleep,
        )
        self._outbox = outbox
        self._write_ahead_log = write_ahead_log
        self._announced_charges: dict[str, Charge] = {}
        self._waiting_charges: dict[int, _PendingCharge] = {}
        self._problem = ""
        self._lost_count = 0
        self._write_lock = asyncio.Lock()
        self._catch_up_task: asyncio.Task[None] | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting_charges)

    @property
    def lost_count(self) -> int:
        """Number of charges that could not be stored at all."""
        return self._lost_count

    @property
    def lapsed_count(self) -> int:
        """Number of reservations that expired during their calls, because this process or its store stalled."""
        return self._leases.lapsed_count

    @property
    def problem(self) -> str:
        """Latest problem of the ledger or of a charge; empty once it is resolved."""
        return self._problem

    async def admit(self, call: Call, ceiling: Decimal | None, caps: Sequence[Cap]) -> AdmittedCall:
        """Admit a call that costs at most `ceiling` dollars (None: unknown) under `caps`.

        Raises:
            CapExceeded: a cap has no room for it.
            CapUncheckable: its price is unknown, or the ledger cannot be reached.
            BadOption: `ceiling` is not an amount of dollars.
        """
        reservation_claim = claim_reservation(caps, call, ceiling)
        if reservation_claim is None:
            return AdmittedCall(call=call, ceiling=ceiling, warnings=find_cap_warnings(caps, call, ceiling, {}))
        result = await self._reserve(call, reservation_claim)
        if isinstance(result, AccountOverLimit):
            raise make_cap_exceeded(reservation_claim.caps[result.account], result.balance, ceiling)
        warnings = find_cap_warnings(caps, call, ceiling, result)
        return AdmittedCall(call=call, ceiling=ceiling, is_reserved=True, warnings=warnings)

    def announce(
        self, call: Call, *, ceiling: Decimal | None = None, estimated_input_tokens: int | None = None
    ) -> None:
        """Log a call that is about to be sent.

        If this process ends before the call does, the next one records it as possibly charged.
        """
        if self._write_ahead_log is None:
            return
        lease = self._leases.get(call.id)
        self._announced_charges[call.id] = charge = Charge(
            call=call,
            usage=Usage(cache=CacheUsage()),
            dollars=None,
            estimated_input_tokens=estimated_input_tokens,
            estimated_dollars=ceiling,
            is_partial=True,
            charge=ceiling if lease is None else None,
            is_possibly_charged=True,
        )
        self._write_ahead_log.append(
            _with_reserved_charge(charge, None if lease is None else lease.reservation.dollars)
        )

    def announce_ceiling(self, call_id: str, ceiling: Decimal | None) -> None:
        """Add the cost ceiling to a logged call, if it became known after sending."""
        charge = self._announced_charges.get(call_id)
        if charge is not None and charge.estimated_dollars is None and ceiling is not None:
            self.announce(charge.call, ceiling=ceiling, estimated_input_tokens=charge.estimated_input_tokens)

    def log_charge(self, charge: Charge) -> None:
        """Log a charge, so that it survives this process until it is settled."""
        self._announced_charges.pop(charge.call.id, None)
        if self._write_ahead_log is not None:
            lease = self._leases.get(charge.call.id)
            self._write_ahead_log.append(
                _with_reserved_charge(charge, None if lease is None else lease.reservation.dollars)
            )

    def withdraw(self, call_id: str) -> None:
        """Remove the log entry of a call that was not sent, or that the provider does not charge."""
        if self._announced_charges.pop(call_id, None) is not None and self._write_ahead_log is not None:
            self._write_ahead_log.discard(call_id)

    async def settle(self, charge: Charge) -> Settlement:
        (settlement,) = await self.settle_all((charge,))
        return settlement

    async def settle_all(self, charges: Sequence[Charge]) -> Sequence[Settlement]:
        """Record charges, and free the reservations of their calls. A cancelled caller loses nothing.

        A charge whose dollars cannot be stored is recorded with unknown price and a `problem`.
        """
        now = self._clock()
        pending_charges: list[_PendingCharge] = []
        late_charges: dict[int, _PendingCharge] = {}  # for recording after their reservations may have expired
        for charge in charges:
            lease = self._leases.remove(charge.call.id)
            pending = _PendingCharge(charge)
            late_charge = pending if lease is None else _PendingCharge(charge, lease.reservation.dollars)
            pending_charges.append(late_charge if lease is not None and lease.expires_at <= now else pending)
            late_charges[next(self._numbers)] = late_charge
        if self._waiting_charges:
            return await self._enqueue_all(late_charges)
        try:
            settlements = await self._record(pending_charges)
        except StoreUnavailable as error:
            self._problem = str(error)
            return await self._enqueue_all(late_charges)
        except asyncio.CancelledError:
            # They may have been recorded or not; recording is idempotent.
            for number, pending in late_charges.items():
                if self._enqueue(number, pending).outcome is SettlementOutcome.WAITING:
                    self._start_in_background(self._put_in_outbox(pending))
            raise
        for charge in charges:
            self._remove_from_log(charge.call.id)
        return settlements

    def record_lost_charge(self, charge: Charge, problem: str) -> Settlement:
        self._lost_count += 1
        return Settlement(outcome=SettlementOutcome.LOST, problem=problem)

    async def release(self, admitted: AdmittedCall) -> None:
        """Free the reservation of a call that is not charged. If the ledger cannot be reached, it expires."""
        self.withdraw(admitted.call.id)
        if admitted.is_reserved:
            self._leases.remove(admitted.call.id)
            await asyncio.shield(self._start_in_background(self._release(admitted.call.id)))

    async def close(self) -> tuple[Charge, ...]:
        """Stop, and return the charges that could not be recorded, oldest first."""
        if self._catch_up_task is not None:
            self._catch_up_task.cancel()
            await asyncio.wait([self._catch_up_task])
        await self._leases.close()
        if self._background_tasks:
            await asyncio.wait(self._background_tasks)
        await self._write_waiting()
        return tuple(self._waiting_charges[number].charge for number in sorted(self._waiting_charges))

    async def _reserve(
        self, call: Call, claim: ReservationClaim
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        now = self._clock()
        reservation = Reservation(
            call_id=call.id,
            dollars=claim.dollars,
            accounts=list_accounts(call),
            limits={account: cap.dollars for account, cap in claim.caps.items()},
            expires_at=self._leases.lease_end(now),
        )
        # Waiting charges are not in the accounts, and their reservations may have expired.
        if self._waiting_charges and not await self._write_waiting():
            raise self._make_uncheckable_error(claim, self._problem)
        try:
            await self._leases.ensure_current(now)
            result = await self._ledger.reserve(reservation, now=now)
        except StoreUnavailable as error:
            raise self._make_uncheckable_error(claim, str(error)) from error
        except asyncio.CancelledError:
            self._start_in_background(self._release_later(call.id))
            raise
        if not isinstance(result, AccountOverLimit):
            self._leases.add(reservation, now=now)
        return result

    def _make_uncheckable_error(self, claim: ReservationClaim, reason: str) -> CapUncheckable:
        tightest = min(claim.caps.values(), key=lambda cap: cap.dollars)
        return make_cap_uncheckable(tightest, reason, _RESTORE_STORE_REMEDY, is_outage=True)

    def _enqueue(self, number: int, pending: _PendingCharge) -> Settlement:
        if len(self._waiting_charges) >= self._options.max_waiting:
            return self.record_lost_charge(pending.charge, self._problem)
        self._waiting_charges[number] = pending
        if self._catch_up_task is None or self._catch_up_task.done():
            self._catch_up_task = asyncio.create_task(self._catch_up())
        return Settlement(outcome=SettlementOutcome.WAITING, problem=self._problem)

    async def _enqueue_all(self, pending_charges: Mapping[int, _PendingCharge]) -> Sequence[Settlement]:
        """Keep charges in memory and in the outbox until the ledger can be reached."""
        settlements = {number: self._enqueue(number, pending) for number, pending in pending_charges.items()}
        if self._outbox is not None:
            waiting = [
                pending_charges[number]
                for number, settlement in settlements.items()
                if settlement.outcome is SettlementOutcome.WAITING
            ]
            writes = asyncio.gather(
                *(self._start_in_background(self._put_in_outbox(pending)) for pending in waiting)
            )
            await asyncio.shield(writes)
        for number, settlement in settlements.items():
            if settlement.outcome is not SettlementOutcome.WAITING:
                self._remove_from_log(pending_charges[number].charge.call.id)
        return list(settlements.values())

    async def _put_in_outbox(self, pending: _PendingCharge) -> None:
        """Put a charge in the outbox, and remove it from the log, where it stays if that fails."""
        if self._outbox is None:
            return
        try:
            await self._outbox.put(_with_reserved_charge(pending.charge, pending.reserved))
        except UnwritableFile as error:
            _LOG.error(
                "the charge of %s waits in memory for the store, and cannot be put in the outbox: %s",
                pending.charge.call.id,
                error,
            )
        else:
            self._remove_from_log(pending.charge.call.id)

    def _remove_from_log(self, call_id: str) -> None:
        if self._write_ahead_log is not None:
            self._write_ahead_log.mark_recorded(call_id)

    async def _catch_up(self) -> None:
        pause_seconds = _MIN_RETRY_SECONDS
        while self._waiting_charges:
            await self._sleep(pause_seconds)
            await self._write_waiting()
            pause_seconds = min(2 * pause_seconds, _MAX_RETRY_SECONDS)

    async def _write_waiting(self) -> bool:
        """Record waiting charges, oldest first; return whether none is left."""
        async with self._write_lock:
            while self._waiting_charges:
                first = sorted(self._waiting_charges)[:_MAX_BATCH_CHARGES]
                try:
                    await self._record([self._waiting_charges[number] for number in first])
                except StoreUnavailable as error:
                    self._problem = str(error)
                    return False
                recorded = [self._waiting_charges.pop(number) for number in first]
                for pending in recorded:
                    self._remove_from_log(pending.charge.call.id)
                if self._outbox is not None:
                    await asyncio.gather(*(self._outbox.remove(pending.charge.call.id) for pending in recorded))
            return True

    async def _record(self, pending_charges: Sequence[_PendingCharge]) -> Sequence[Settlement]:
        """Record charges.

        Raises:
            StoreUnavailable: the ledger cannot be reached.
        """
        settlements: list[Settlement] = []
        results = await self._try_settle(
            [_with_reserved_charge(pending.charge, pending.reserved) for pending in pending_charges]
        )
        for pending, result in zip(pending_charges, results, strict=True):
            if isinstance(result, Exception):
                settlements.append(await self._record_unpriced(pending, str(result)))
            else:
                is_new = result
                settlements.append(_RECORDED if is_new else _ALREADY_RECORDED)
            self._problem = settlements[-1].problem
        return settlements

    async def _record_unpriced(self, pending: _PendingCharge, problem: str) -> Settlement:
        (result,) = await self._try_settle(
            [_with_reserved_charge(_without_price(pending.charge), pending.reserved)]
        )
        if not isinstance(result, Exception):
            is_new = result
            return Settlement(
                outcome=SettlementOutcome.RECORDED if is_new else SettlementOutcome.ALREADY_RECORDED,
                problem=problem,
            )
        await self._release(pending.charge.call.id)
        return self.record_lost_charge(pending.charge, problem)

    async def _try_settle(self, charges: Sequence[Charge]) -> Sequence[bool | Exception]:
        try:
            return await self._ledger.settle_all([(charge, list_accounts(charge.call)) for charge in charges])
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - outermost border: one bad charge must not fail the others
            if len(charges) == 1:
                return [error]
            return [result for charge in charges for result in await self._try_settle([charge])]

    async def _release(self, call_id: str) -> None:
        try:
            await self._ledger.release(call_id)
        except StoreUnavailable as error:
            self._problem = str(error)

    async def _release_later(self, call_id: str) -> None:
        await self._sleep(_CANCELLED_RELEASE_SECONDS)
        await self._release(call_id)

    def _start_in_background(self, coroutine: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task


def _without_price(charge: Charge) -> Charge:
    """Return the charge without dollars: the ledger then charges what was reserved."""
    return replace(charge, dollars=None, charge=None, estimated_dollars=None, savings=Savings())


def _with_reserved_charge(charge: Charge, reserved: Decimal | None) -> Charge:
    """Charge what was reserved, if the ledger may no longer know the reservation."""
    if reserved is None or charge.dollars is not None or charge.charge is not None:
        return charge
    return replace(
        charge, charge=to_dollars(to_picodollars_rounded_up(reserved)) if reserved > MIN_DOLLARS else Decimal(0)
    )
