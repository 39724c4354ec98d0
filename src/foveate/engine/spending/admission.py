"""Admission that tells of every bill, and of caps that are near.

Calls let through under their caps, also those that nobody can count.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from foveate.cost.admission import Admission, AdmissionOptions, AdmittedCall, Settlement, SettlementOutcome
from foveate.cost.caps import Cap, UnknownPricePolicy, make_cap_uncheckable
from foveate.cost.ledger import Call, Category, Charge, Ledger, Outbox, WriteAheadLog
from foveate.engine.observer import Observer
from foveate.engine.options import SpendingOptions
from foveate.errors import CapExceeded
from foveate.store.outbox import OrphanedFile

_LOG = logging.getLogger(__name__)

_ADOPT_INTERVAL_SECONDS = 20.0
# Of more, some are told again.
_MAX_WARNINGS = 4_096


class ObservedAdmission(Admission):
    """Lets calls through and books them as `Admission` does, and tells `watch` what became of each bill."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        options: AdmissionOptions,
        observer: Observer,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        outbox: Outbox | None = None,
        write_ahead_log: WriteAheadLog | None = None,
    ) -> None:
        super().__init__(
            ledger, clock=clock, options=options, sleep=sleep, outbox=outbox, write_ahead_log=write_ahead_log
        )
        self._observer = observer
        self._warned: set[object] = set()

    async def admit(self, call: Call, ceiling: Decimal | None, caps: Sequence[Cap]) -> AdmittedCall:
        """A call that is let through; each cap that is near then is told once in the log, for each account."""
        reservation = await super().admit(call, ceiling, caps)
        for warning in reservation.warnings:
            warning_key = (warning.cap, warning.cap.find_account(call) or (call.agent, call.model))
            if warning_key not in self._warned:
                if len(self._warned) >= _MAX_WARNINGS:
                    self._warned.clear()
                self._warned.add(warning_key)
                _LOG.warning("%s (call %s of %s, session %s)", warning, call.id, call.agent, call.session_id)
        return reservation

    async def settle_all(self, charges: Sequence[Charge]) -> Sequence[Settlement]:
        """What became of each bill, told before it is given back."""
        try:
            results = await super().settle_all(charges)
        except asyncio.CancelledError:
            for entry in charges:
                self._observer.on_charge(
                    entry, Settlement(outcome=SettlementOutcome.WAITING, problem=self.problem)
                )
            raise
        for entry, result in zip(charges, results, strict=True):
            if result.problem and result.outcome is not SettlementOutcome.LOST:
                _LOG.warning("the bill of %s is %s: %s", entry.call.id, result.outcome.value, result.problem)
            self._observer.on_charge(entry, result)
        return results

    def lose(self, charge: Charge, problem: str) -> Settlement:
        """Count a bill that cannot be kept, and tell it in the log, where it can be found again."""
        _LOG.error("a bill is lost: %s (%s)", describe_charge(charge), problem)
        return super().lose(charge, problem)

    async def close(self) -> tuple[Charge, ...]:
        """The bills that could not be booked even now; each is told in the log."""
        unrecorded = await super().close()
        for entry in unrecorded:
            _LOG.error("a bill could not be booked before the end: %s", describe_charge(entry))
        return unrecorded


class OrphanedCharges(Protocol):
    """Bills that processes have left which are no more."""

    async def orphans(self) -> Sequence[OrphanedFile]:
        """All of them, file by file, held until they are let go of."""

    async def release(self, *, recorded: Collection[Path], unrecordable: Collection[Path]) -> None:
        """Remove the files that are `booked`, move those aside that can never be, and leave all others."""


async def record_orphans(orphaned: OrphanedCharges, admission: Admission) -> int:
    """How many bills were booked that others had left; a file with one that has to wait stays where it is."""
    if admission.waiting:
        return 0  # the store is away: they can wait where they are, and not here as well
    recorded: set[Path] = set()
    unrecordable: set[Path] = set()
    outcomes: list[SettlementOutcome] = []
    possibly_charged = 0
    try:
        for file in await orphaned.orphans():
            for charge in file.charges:
                outcomes.append((await admission.settle(charge)).outcome)
                possibly_charged += charge.is_possibly_charged and outcomes[-1] is SettlementOutcome.BOOKED
                if outcomes[-1] is SettlementOutcome.WAITING:
                    return outcomes.count(SettlementOutcome.BOOKED)
            is_recorded = (
                file.is_readable and SettlementOutcome.LOST not in outcomes[len(outcomes) - len(file.charges) :]
            )
            (recorded if is_recorded else unrecordable).add(file.path)
    finally:
        await orphaned.release(recorded=recorded, unrecordable=unrecordable)
        if outcomes:
            message = "%d bills that another process had left; %d of them are booked now"
            _LOG.warning(message, len(outcomes), outcomes.count(SettlementOutcome.BOOKED))
        if possibly_charged:
            message = "%d calls were under way when their process ended; they are recorded as possibly charged"
            _LOG.warning(message, possibly_charged)
    return outcomes.count(SettlementOutcome.BOOKED)


async def adopt_orphans(
    orphaned: OrphanedCharges,
    admission: Admission,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Book what others leave, now and for as long as this process lives: they may die at any time."""
    while True:
        try:
            await record_orphans(orphaned, admission)
        except OSError as error:
            _LOG.warning("bills that other processes may have left cannot be looked for: %s", error)
        await sleep(_ADOPT_INTERVAL_SECONDS)


def describe_charge(charge: Charge) -> str:
    """A bill in one line, with all that is needed to book it by hand."""
    call, cache = charge.call, charge.usage.cache
    return (
        f"{call.id} of {call.agent}, session {call.session_id}, {call.provider} {call.model},"
        f" {call.category.value}, {cache.uncached} uncached, {cache.read} read,"
        f" {cache.written_5m} and {cache.written_1h} written, {charge.usage.output_tokens} out,"
        f" {'unknown' if charge.dollars is None else charge.dollars} dollars"
    )


_UNKNOWN_COST_REMEDY = (
    "leave it out, name it in `cost.allow_fields` if what it adds does not matter, or say `unknown: allow` with"
    " the cap"
)
_UNCOUNTED_REMEDY = "send what can be counted, or say `unknown: allow` with the cap"


class AdmitUncounted(Protocol):
    """Lets requests through that are sent as they came and booked nowhere."""

    async def __call__(self, request_id: str, agent: str, reason: str) -> None:
        """Let one through that cannot be counted for a `reason`.

        Raises:
            CallRefused: a cap holds for the agent that does not allow it, or is spent.
        """


class CapUncounted:
    """Lets them through where no cap holds, or all that do allow what has no known price and are not spent."""

    def __init__(
        self, admission: Admission, options: Callable[[], SpendingOptions], clock: Callable[[], float]
    ) -> None:
        self._admission = admission
        self._options = options
        self._clock = clock

    async def __call__(self, request_id: str, agent: str, reason: str) -> None:
        """Let one through, or refuse it."""
        call = Call(
            id=request_id,
            agent=agent,
            session_id=request_id,
            provider="",
            model="",
            category=Category.MAIN,
            at=self._clock(),
        )
        caps = [cap for cap in self._options().caps if cap.applies_to(call)]
        for cap in caps:
            if cap.unknown is UnknownPricePolicy.REFUSE:
                raise make_cap_uncheckable(cap, reason, _UNCOUNTED_REMEDY)
        if caps:
            await self._admission.release(await self._admission.admit(call, None, caps))


def check_unknown_cost(caps: Iterable[Cap], unknown: str) -> None:
    """Refuse a call with something `unknown` in it, if one of the caps that hold for it says so.

    Raises:
        CapUncheckable: nobody can say what it costs.
    """
    for cap in caps:
        if unknown and cap.unknown is UnknownPricePolicy.REFUSE:
            raise make_cap_uncheckable(
                cap, f"nobody knows how much {unknown} may add to the cost", _UNKNOWN_COST_REMEDY
            )


async def admit_call(
    admission: Admission,
    call: Call,
    ceiling: Decimal | None,
    caps: Sequence[Cap],
    *,
    wait_for_charges: Callable[[], Awaitable[None]] | None,
) -> AdmittedCall:
    """What is let through. Before it is refused, bills take the place of what their calls had reserved.

    Raises:
        CallRefused: as `Admission.admit` does.
    """
    try:
        return await admission.admit(call, ceiling, caps)
    except CapExceeded:
        if wait_for_charges is None:
            raise
    await wait_for_charges()
    return await admission.admit(call, ceiling, caps)
