"""Admission of calls under their caps, including calls that cannot be counted, and adoption of orphaned
charges.
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
# Beyond these, some warnings are repeated.
_MAX_WARNINGS = 4_096
_UNKNOWN_COST_REMEDY = (
    "leave it out, list it in `cost.allow_fields` if its cost does not matter, or set `unknown: allow` for the"
    " cap"
)
UNCOUNTED_REMEDY = "send a request that can be counted, or set `unknown: allow` for the cap"


class ObservedAdmission(Admission):
    """Admission that reports every charge to an observer, and logs caps that are nearly spent."""

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
        """Admit a call; log each cap that is nearly spent, once per account."""
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
                outcome = result.outcome.name.lower().replace("_", " ")
                _LOG.warning("the charge of call %s is %s: %s", entry.call.id, outcome, result.problem)
            self._observer.on_charge(entry, result)
        return results

    def record_lost_charge(self, charge: Charge, problem: str) -> Settlement:
        """Count a charge that cannot be stored, and log it so that it can be recovered."""
        _LOG.error("a charge is lost: %s (%s)", describe_charge(charge), problem)
        return super().record_lost_charge(charge, problem)

    async def close(self) -> tuple[Charge, ...]:
        """Return charges that could not be recorded; each is logged."""
        unrecorded = await super().close()
        for entry in unrecorded:
            _LOG.error("a charge could not be recorded before shutdown: %s", describe_charge(entry))
        return unrecorded


class OrphanedCharges(Protocol):
    """Charges left behind by processes that have ended."""

    async def orphans(self) -> Sequence[OrphanedFile]:
        """Return all of them by file, locked until `release`."""

    async def release(self, *, recorded: Collection[Path], unrecordable: Collection[Path]) -> None:
        """Remove `recorded` files, set `unrecordable` ones aside, and leave all others."""


async def record_orphans(orphaned: OrphanedCharges, admission: Admission) -> int:
    """Record orphaned charges and return how many; a file stays if one of its charges has to wait."""
    if admission.waiting_count:
        return 0  # the store is unavailable: they can stay in their files
    recorded: set[Path] = set()
    unrecordable: set[Path] = set()
    outcomes: list[SettlementOutcome] = []
    possibly_charged = 0
    try:
        for file in await orphaned.orphans():
            for charge in file.charges:
                outcomes.append((await admission.settle(charge)).outcome)
                possibly_charged += charge.is_possibly_charged and outcomes[-1] is SettlementOutcome.RECORDED
                if outcomes[-1] is SettlementOutcome.WAITING:
                    return outcomes.count(SettlementOutcome.RECORDED)
            is_recorded = (
                file.is_readable and SettlementOutcome.LOST not in outcomes[len(outcomes) - len(file.charges) :]
            )
            (recorded if is_recorded else unrecordable).add(file.path)
    finally:
        await orphaned.release(recorded=recorded, unrecordable=unrecordable)
        if outcomes:
            message = "found %d charges of a process that ended, recorded %d of them"
            _LOG.warning(message, len(outcomes), outcomes.count(SettlementOutcome.RECORDED))
        if possibly_charged:
            message = "%d calls were in flight when their process ended, recorded as possibly charged"
            _LOG.warning(message, possibly_charged)
    return outcomes.count(SettlementOutcome.RECORDED)


async def adopt_orphans(
    orphaned: OrphanedCharges,
    admission: Admission,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Record orphaned charges now and periodically, since other processes may end at any time."""
    while True:
        try:
            await record_orphans(orphaned, admission)
        except OSError as error:
            _LOG.warning("charges of processes that ended could not be searched for, retrying later: %s", error)
        await sleep(_ADOPT_INTERVAL_SECONDS)


def describe_charge(charge: Charge) -> str:
    """A charge in one line, with everything needed to record it by hand."""
    call, cache = charge.call, charge.usage.cache
    return (
        f"{call.id} of {call.agent}, session {call.session_id}, {call.provider} {call.model},"
        f" {call.category.value}, {cache.uncached} uncached, {cache.read} read,"
        f" {cache.written_5m} and {cache.written_1h} written, {charge.usage.output_tokens} out,"
        f" {'unknown' if charge.dollars is None else charge.dollars} dollars"
    )


class AdmitUncounted(Protocol):
    async def __call__(self, request_id: str, agent: str, reason: str) -> None:
        """Admit a request that cannot be counted for a `reason`.

        Raises:
            CallRefused: a cap applies that does not allow it, or is spent.
        """


class CapUncounted:
    """Admits them if no cap applies, or all caps allow unknown prices and are not spent."""

    def __init__(
        self, admission: Admission, options: Callable[[], SpendingOptions], clock: Callable[[], float]
    ) -> None:
        self._admission = admission
        self._options = options
        self._clock = clock

    async def __call__(self, request_id: str, agent: str, reason: str) -> None:
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
            if cap.unknown is UnknownPricePolicy.REJECT:
                raise make_cap_uncheckable(cap, reason, UNCOUNTED_REMEDY)
        if caps:
            await self._admission.release(await self._admission.admit(call, None, caps))


def check_unknown_cost(caps: Iterable[Cap], unknown: str) -> None:
    """Reject a call with an `unknown` feature if one of its caps says so.

    Raises:
        CapUncheckable: its cost is unknown.
    """
    for cap in caps:
        if unknown and cap.unknown is UnknownPricePolicy.REJECT:
            raise make_cap_uncheckable(cap, f"the cost of {unknown} is unknown", _UNKNOWN_COST_REMEDY)


async def admit_call(
    admission: Admission,
    call: Call,
    ceiling: Decimal | None,
    caps: Sequence[Cap],
    *,
    wait_for_charges: Callable[[], Awaitable[None]] | None,
) -> AdmittedCall:
    """Admit a call. Before it is rejected, charges replace the reservations of finished calls.

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
