"""Lets calls through under their caps, and books what they cost.

What a call may cost at most is reserved before it is made, and settled by its bill. A reservation is a short
lease that is renewed while the call goes on, so that a process that dies stands in nobody's way for long. A
call that takes longer than any may is booked all the same when its bill comes.

A bill that has come is not lost where the ledger cannot be reached: it waits here, and on the disk where there
is a spool, and is written when the ledger is back.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from foveate.cost.caps import Cap, Claim, Near, accounts_of, claim, exceeded, near, unchecked
from foveate.cost.leases import Leases
from foveate.cost.ledger import Call, Entry, Ledger, Notes, Over, Reservation, Spool, Standing
from foveate.cost.money import LEAST_DOLLARS, dollars, picodollars_at_most
from foveate.errors import CapUncheckable, StoreUnavailable, UnwritableFile
from foveate.values import CacheUsage, Savings, Usage

_LOG = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
# Whoever gave up while it was being reserved for: by then it is.
_RELEASED_AFTER_SECONDS = 1.0
# So many bills that waited are booked in one go.
_MOST_TOGETHER = 256
_BRING_IT_BACK = "bring the store back, or take the cap away"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """How long something is reserved for a call, and how many bills can wait for the ledger to be back.

    Something is reserved for `lease_seconds` at a time, so soon a process that dies stands in nobody's way, and
    for `lifetime_seconds` in all: longer than any call may take. Bills beyond `most_waiting` are lost, and
    told.
    """

    lease_seconds: float = 90.0
    lifetime_seconds: float = 1200.0
    most_waiting: int = 10_000


class _Bill(msgspec.Struct, frozen=True):
    """A bill, and what its call had reserved, where that may have run out before it is booked."""

    entry: Entry
    reserved: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A call that may be made, at `ceiling` dollars at most. It is settled by its bill, or else released."""

    call: Call
    ceiling: Decimal | None = None
    is_reserved: bool = False
    warnings: tuple[Near, ...] = ()


class Outcome(StrEnum):
    """What became of a bill."""

    BOOKED = "booked"
    KNOWN = "known"
    WAITING = "waiting"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of a bill: booked, known from before, waiting for the ledger, or lost; `problem` says why."""

    outcome: Outcome
    problem: str = ""


_NEW, _KNOWN = Settled(outcome=Outcome.BOOKED), Settled(outcome=Outcome.KNOWN)


class Admission:
    """Lets calls through, and books them, for one process and one event loop. Closed by `close`."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        options: AdmissionOptions = AdmissionOptions(),  # noqa: B008 - it is frozen
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        spool: Spool | None = None,
        notes: Notes | None = None,
    ) -> None:
        """With a `spool`, bills that wait here outlive the process.

        With `notes`, so do calls that are under way, and bills that are about to be booked.
        """
        self._ledger = ledger
        self._clock = clock
        self._options = options
        self._sleep = sleep
        self._numbers = itertools.count()
        self._leases = Leases(
            ledger,
            clock=clock,
            lease_seconds=options.lease_seconds,
            lifetime_seconds=options.lifetime_seconds,
            sleep=sleep,
        )
        self._spool = spool
        self._notes = notes
        self._under_way: dict[str, Entry] = {}
        self._waiting: dict[int, _Bill] = {}
        self._problem = ""
        self._lost = 0
        self._writing = asyncio.Lock()
        self._catching_up: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """How many bills wait for the ledger to be back."""
        return len(self._waiting)

    @property
    def lost(self) -> int:
        """How many bills could not be kept at all."""
        return self._lost

    @property
    def lapsed(self) -> int:
        """How many reservations had run out while their calls went on: this process stalled, or its store."""
        return self._leases.lapsed

    @property
    def problem(self) -> str:
        """What was last wrong with the ledger, or with a bill; empty where all is well again."""
        return self._problem

    async def admit(self, call: Call, ceiling: Decimal | None, caps: Sequence[Cap]) -> Admitted:
        """A call that costs at most `ceiling` dollars (None: nobody knows), let through under `caps`.

        Raises:
            CapExceeded: a cap has no room for it.
            CapUncheckable: its price is not known, or the ledger cannot be reached.
            BadOption: `ceiling` is no number of dollars.
        """
        claimed = claim(caps, call, ceiling)
        if claimed is None:
            return Admitted(call=call, ceiling=ceiling, warnings=near(caps, call, ceiling, {}))
        found = await self._reserved(call, claimed)
        if isinstance(found, Over):
            raise exceeded(claimed.caps[found.account], found.standing, ceiling)
        warnings = near(caps, call, ceiling, found)
        return Admitted(call=call, ceiling=ceiling, is_reserved=True, warnings=warnings)

    def announce(
        self, call: Call, *, ceiling: Decimal | None = None, estimated_input_tokens: int | None = None
    ) -> None:
        """Note a call that is about to be sent.

        If this process ends before the call does, the next one records it as possibly charged.
        """
        if self._notes is None:
            return
        held = self._leases.held(call.id)
        self._under_way[call.id] = entry = Entry(
            call=call,
            usage=Usage(cache=CacheUsage()),
            dollars=None,
            estimated_input_tokens=estimated_input_tokens,
            estimated_dollars=ceiling,
            is_partial=True,
            charge=ceiling if held is None else None,
            is_possibly_charged=True,
        )
        self._notes.jot(_charged(entry, None if held is None else held.reservation.dollars))

    def announce_ceiling(self, call_id: str, ceiling: Decimal | None) -> None:
        """Add the most that a call can cost to its note, if that is known only after it was sent."""
        entry = self._under_way.get(call_id)
        if entry is not None and entry.estimated_dollars is None and ceiling is not None:
            self.announce(entry.call, ceiling=ceiling, estimated_input_tokens=entry.estimated_input_tokens)

    def jot(self, entry: Entry) -> None:
        """Have a bill outlive this process until it is settled."""
        self._under_way.pop(entry.call.id, None)
        if self._notes is not None:
            held = self._leases.held(entry.call.id)
            self._notes.jot(_charged(entry, None if held is None else held.reservation.dollars))

    def withdraw(self, call_id: str) -> None:
        """Remove the note of a call that was not sent, or that the provider does not bill."""
        if self._under_way.pop(call_id, None) is not None and self._notes is not None:
            self._notes.discard(call_id)

    async def settle(self, entry: Entry) -> Settled:
        """The same as `settle_all` of one bill."""
        (settled,) = await self.settle_all((entry,))
        return settled

    async def settle_all(self, entries: Sequence[Entry]) -> Sequence[Settled]:
        """Book what calls cost, and free what was reserved for them. Whoever gives up waiting loses nothing.

        A bill whose dollars cannot be kept is booked as one of unknown price, with a `problem`.
        """
        now = self._clock()
        bills: list[_Bill] = []
        late: dict[int, _Bill] = {}  # as they are booked once their reservations may have run out
        for entry in entries:
            held = self._leases.let_go(entry.call.id)
            bill = _Bill(entry)
            waits = bill if held is None else _Bill(entry, held.reservation.dollars)
            bills.append(waits if held is not None and held.until <= now else bill)
            late[next(self._numbers)] = waits
        if self._waiting:
            return await self._kept(late)
        try:
            settled = await self._booked(bills)
        except StoreUnavailable as error:
            self._problem = str(error)
            return await self._kept(late)
        except asyncio.CancelledError:
            # They may have been booked, and may not: once more is no harm.
            for number, bill in late.items():
                if self._keep(number, bill).outcome is Outcome.WAITING:
                    self._do_beside(self._spooled(bill))
            raise
        if self._notes is not None:
            for entry in entries:
                self._notes.cross_out(entry.call.id)
        return settled

    def lose(self, entry: Entry, problem: str) -> Settled:
        """Count a bill that cannot be kept, now or after it has waited."""
        self._lost += 1
        return Settled(outcome=Outcome.LOST, problem=problem)

    async def release(self, admitted: Admitted) -> None:
        """Free what was reserved for a call that is not billed. Where that cannot be told, it runs out."""
        self.withdraw(admitted.call.id)
        if admitted.is_reserved:
            self._leases.let_go(admitted.call.id)
            await asyncio.shield(self._do_beside(self._release(admitted.call.id)))

    async def close(self) -> tuple[Entry, ...]:
        """The bills that could not be booked even now, in the order that they came."""
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.wait([self._catching_up])
        await self._leases.close()
        if self._beside:
            await asyncio.wait(self._beside)
        await self._write_waiting()
        return tuple(self._waiting[number].entry for number in sorted(self._waiting))

    async def _reserved(self, call: Call, claimed: Claim) -> Mapping[str, Standing] | Over:
        """How the accounts with a cap stand then, or which has no room."""
        now = self._clock()
        wanted = Reservation(
            call_id=call.id,
            dollars=claimed.dollars,
            accounts=accounts_of(call),
            limits={account: cap.dollars for account, cap in claimed.caps.items()},
            expires_at=self._leases.until(now),
        )
        # What waits here is not in the accounts, and its reservation may have run out.
        if self._waiting and not await self._write_waiting():
            raise self._uncheckable(claimed, self._problem)
        try:
            await self._leases.checked(now)
            found = await self._ledger.reserve(wanted, now=now)
        except StoreUnavailable as error:
            raise self._uncheckable(claimed, str(error)) from error
        except asyncio.CancelledError:
            self._do_beside(self._release_later(call.id))
            raise
        if not isinstance(found, Over):
            self._leases.hold(wanted, now=now)
        return found

    def _uncheckable(self, claimed: Claim, reason: str) -> CapUncheckable:
        tightest = min(claimed.caps.values(), key=lambda cap: cap.dollars)
        return unchecked(tightest, reason, _BRING_IT_BACK, is_outage=True)

    def _keep(self, number: int, bill: _Bill) -> Settled:
        """Have a bill wait for the ledger, if there is room."""
        if len(self._waiting) >= self._options.most_waiting:
            return self.lose(bill.entry, self._problem)
        self._waiting[number] = bill
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up())
        return Settled(outcome=Outcome.WAITING, problem=self._problem)

    async def _kept(self, bills: Mapping[int, _Bill]) -> Sequence[Settled]:
        """Have bills wait for the ledger, and on the disk where there is a spool."""
        settled = {number: self._keep(number, bill) for number, bill in bills.items()}
        if self._spool is not None:
            waiting = [bills[number] for number, one in settled.items() if one.outcome is Outcome.WAITING]
            spooled = asyncio.gather(*(self._do_beside(self._spooled(bill)) for bill in waiting))
            await asyncio.shield(spooled)
        if self._notes is not None:
            for bill in bills.values():
                self._notes.cross_out(bill.entry.call.id)
        return list(settled.values())

    async def _spooled(self, bill: _Bill) -> None:
        if self._spool is None:
            return
        try:
            await self._spool.put(_charged(bill.entry, bill.reserved))
        except UnwritableFile as error:
            _LOG.error("the bill of %s waits in memory alone: %s", bill.entry.call.id, error)

    async def _catch_up(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while self._waiting:
            await self._sleep(pause_seconds)
            await self._write_waiting()
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def _write_waiting(self) -> bool:
        """Book what waits, what came first before the rest; whether nothing waits any longer."""
        async with self._writing:
            while self._waiting:
                first = sorted(self._waiting)[:_MOST_TOGETHER]
                try:
                    await self._booked([self._waiting[number] for number in first])
                except StoreUnavailable as error:
                    self._problem = str(error)
                    return False
                written = [self._waiting.pop(number) for number in first]
                if self._spool is not None:
                    await asyncio.gather(*(self._spool.done(bill.entry.call.id) for bill in written))
            return True

    async def _booked(self, bills: Sequence[_Bill]) -> Sequence[Settled]:
        """What becomes of bills where the ledger can be reached.

        Raises:
            StoreUnavailable: it cannot be.
        """
        settled: list[Settled] = []
        tried = await self._tried([_charged(bill.entry, bill.reserved) for bill in bills])
        for bill, is_new in zip(bills, tried, strict=True):
            if isinstance(is_new, Exception):
                settled.append(await self._booked_unpriced(bill, str(is_new)))
            else:
                settled.append(_NEW if is_new else _KNOWN)
            self._problem = settled[-1].problem
        return settled

    async def _booked_unpriced(self, bill: _Bill, problem: str) -> Settled:
        """What becomes of a bill that cannot be kept as it is."""
        (is_new,) = await self._tried([_charged(_unpriced(bill.entry), bill.reserved)])
        if not isinstance(is_new, Exception):
            return Settled(outcome=Outcome.BOOKED if is_new else Outcome.KNOWN, problem=problem)
        await self._release(bill.entry.call.id)
        return self.lose(bill.entry, problem)

    async def _tried(self, entries: Sequence[Entry]) -> Sequence[bool | Exception]:
        try:
            return await self._ledger.settle_all([(entry, accounts_of(entry.call)) for entry in entries])
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a border: no bill ends the others, and it is counted
            if len(entries) == 1:
                return [error]
            return [is_new for entry in entries for is_new in await self._tried([entry])]

    async def _release(self, call_id: str) -> None:
        try:
            await self._ledger.release(call_id)
        except StoreUnavailable as error:
            self._problem = str(error)

    async def _release_later(self, call_id: str) -> None:
        await self._sleep(_RELEASED_AFTER_SECONDS)
        await self._release(call_id)

    def _do_beside(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Do something whether or not anybody waits for it."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task


def _unpriced(entry: Entry) -> Entry:
    """The same bill without any dollars: it is then charged as what was reserved for it."""
    return replace(entry, dollars=None, charge=None, estimated_dollars=None, savings=Savings())


def _charged(entry: Entry, reserved: Decimal | None) -> Entry:
    """A bill that is charged what was reserved for its call, where the ledger may no longer know how much."""
    if reserved is None or entry.dollars is not None or entry.charge is not None:
        return entry
    return replace(
        entry, charge=dollars(picodollars_at_most(reserved)) if reserved > LEAST_DOLLARS else Decimal(0)
    )
