"""Admission that tells of every bill, and of caps that are near."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from foveate.cost.admission import Admission, AdmissionOptions, Admitted, Outcome, Settled
from foveate.cost.caps import Cap
from foveate.cost.ledger import Call, Entry, Ledger, Notes, Spool
from foveate.engine.watch import Watch
from foveate.store.spool import Left

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 20.0
# Of more, some are told again.
_KEPT_WARNINGS = 4_096


class ToldAdmission(Admission):
    """Lets calls through and books them as `Admission` does, and tells `watch` what became of each bill."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        options: AdmissionOptions,
        watch: Watch,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        spool: Spool | None = None,
        notes: Notes | None = None,
    ) -> None:
        super().__init__(ledger, clock=clock, options=options, sleep=sleep, spool=spool, notes=notes)
        self._watch = watch
        self._warned: set[object] = set()

    async def admit(self, call: Call, ceiling: Decimal | None, caps: Sequence[Cap]) -> Admitted:
        """A call that is let through; each cap that is near then is told once in the log, for each account."""
        admitted = await super().admit(call, ceiling, caps)
        for near in admitted.warnings:
            whose = (near.cap, near.cap.account(call) or (call.agent, call.model))
            if whose not in self._warned:
                if len(self._warned) >= _KEPT_WARNINGS:
                    self._warned.clear()
                self._warned.add(whose)
                _LOG.warning("%s (call %s of %s, session %s)", near, call.id, call.agent, call.session_id)
        return admitted

    async def settle_all(self, entries: Sequence[Entry]) -> Sequence[Settled]:
        """What became of each bill, told before it is given back."""
        try:
            settled = await super().settle_all(entries)
        except asyncio.CancelledError:
            for entry in entries:
                self._watch.billed(entry, Settled(outcome=Outcome.WAITING, problem=self.problem))
            raise
        for entry, one in zip(entries, settled, strict=True):
            if one.problem and one.outcome is not Outcome.LOST:
                _LOG.warning("the bill of %s is %s: %s", entry.call.id, one.outcome.value, one.problem)
            self._watch.billed(entry, one)
        return settled

    def lose(self, entry: Entry, problem: str) -> Settled:
        """Count a bill that cannot be kept, and tell it in the log, where it can be found again."""
        _LOG.error("a bill is lost: %s (%s)", told(entry), problem)
        return super().lose(entry, problem)

    async def close(self) -> tuple[Entry, ...]:
        """The bills that could not be booked even now; each is told in the log."""
        left = await super().close()
        for entry in left:
            _LOG.error("a bill could not be booked before the end: %s", told(entry))
        return left


class Orphans(Protocol):
    """Bills that processes have left which are no more."""

    async def orphans(self) -> Sequence[Left]:
        """All of them, file by file, held until they are let go of."""

    async def let_go(self, *, booked: Collection[Path], unbookable: Collection[Path]) -> None:
        """Remove the files that are `booked`, move those aside that can never be, and leave all others."""


async def book_orphans(left: Orphans, admission: Admission) -> int:
    """How many bills were booked that others had left; a file with one that has to wait stays where it is."""
    if admission.waiting:
        return 0  # the store is away: they can wait where they are, and not here as well
    booked: set[Path] = set()
    unbookable: set[Path] = set()
    done: list[Outcome] = []
    possible = 0
    try:
        for file in await left.orphans():
            for bill in file.bills:
                done.append((await admission.settle(bill)).outcome)
                possible += bill.is_possibly_charged and done[-1] is Outcome.BOOKED
                if done[-1] is Outcome.WAITING:
                    return done.count(Outcome.BOOKED)
            is_booked = file.is_readable and Outcome.LOST not in done[len(done) - len(file.bills) :]
            (booked if is_booked else unbookable).add(file.path)
    finally:
        await left.let_go(booked=booked, unbookable=unbookable)
        if done:
            said = "%d bills that another process had left; %d of them are booked now"
            _LOG.warning(said, len(done), done.count(Outcome.BOOKED))
        if possible:
            said = "%d calls were under way when their process ended; they are recorded as possibly charged"
            _LOG.warning(said, possible)
    return done.count(Outcome.BOOKED)


async def adopt_orphans(
    left: Orphans,
    admission: Admission,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Book what others leave, now and for as long as this process lives: they may die at any time."""
    while True:
        try:
            await book_orphans(left, admission)
        except OSError as error:
            _LOG.warning("bills that other processes may have left cannot be looked for: %s", error)
        await sleep(_LOOK_SECONDS)


def told(entry: Entry) -> str:
    """A bill in one line, with all that is needed to book it by hand."""
    call, cache = entry.call, entry.usage.cache
    return (
        f"{call.id} of {call.agent}, session {call.session_id}, {call.provider} {call.model},"
        f" {call.category.value}, {cache.uncached} uncached, {cache.read} read,"
        f" {cache.written_5m} and {cache.written_1h} written, {entry.usage.output_tokens} out,"
        f" {'unknown' if entry.dollars is None else entry.dollars} dollars"
    )
