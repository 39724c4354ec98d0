"""Processes and tasks that use one ledger concurrently."""

import asyncio
import itertools
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from foveate.cost.admission import Admission, AdmissionOptions, SettlementOutcome
from foveate.cost.caps import Cap, CapScope
from foveate.cost.money import to_dollars
from foveate.errors import CapExceeded, CapUncheckable
from foveate.store import Store, open_store
from tests.support.processes.store_workers import SPAWN, WAIT_SECONDS
from tests.support.stores.ledger_records import NOON, make_call, make_cap, make_charge

LEASE_SECONDS = 90.0


class CallEnd(StrEnum):
    SETTLED = "settled"
    RELEASED = "released"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A call to make: its cost ceiling and its cost, in picodollars."""

    session_id: str
    ceiling: int
    cost: int
    end: CallEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """Whether a planned call was admitted, and whether nearby caps held at that moment."""

    planned: PlannedCall
    is_admitted: bool
    is_within_caps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLoad:
    """An agent with its caps in picodollars; `concurrency` calls are in flight at a time."""

    agent: str
    agent_limit: int
    session_limit: int
    concurrency: int = 4

    @property
    def caps(self) -> list[Cap]:
        return [
            make_cap(CapScope.AGENT, to_dollars(self.agent_limit), self.agent),
            make_cap(CapScope.SESSION, to_dollars(self.session_limit), self.agent),
        ]


async def make_calls(
    store: Store, load: CallLoad, worker: str, steps: Sequence[PlannedCall]
) -> list[CallResult]:
    """Make the calls concurrently and return the results."""
    admission = Admission(store.ledger, clock=time.time, options=AdmissionOptions(lifetime_seconds=3600.0))
    remaining = iter(enumerate(steps))
    results: list[CallResult] = []

    async def make_next_calls() -> None:
        for number, step in remaining:
            call = make_call(f"{load.agent} {worker} {number}", agent=load.agent, session_id=step.session_id)
            try:
                admitted = await admission.admit(call, to_dollars(step.ceiling), load.caps)
            except CapExceeded:
                results.append(CallResult(planned=step, is_admitted=False))
                continue
            near_caps = [(warning.balance, warning.cap) for warning in admitted.warnings]
            is_within = all(balance.spent + balance.reserved <= cap.dollars for balance, cap in near_caps)
            results.append(CallResult(planned=step, is_admitted=True, is_within_caps=is_within))
            await asyncio.sleep(0)
            if step.end is CallEnd.SETTLED:
                await admission.settle(make_charge(call, to_dollars(step.cost)))
            elif step.end is CallEnd.RELEASED:
                await admission.release(admitted)

    await asyncio.gather(*(make_next_calls() for _ in range(load.concurrency)))
    await admission.close()
    return results


class LedgerWorkerPool:
    """Long-lived processes that use one ledger together."""

    def __init__(self, workers: int) -> None:
        self._gate = SPAWN.Barrier(workers)  # deleted with its last reference
        self._pipes = []
        self._processes = []
        for number in range(workers):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=_run_worker, args=(f"w{number}", theirs, self._gate), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def make_calls(self, url: str, load: CallLoad, steps: Sequence[Sequence[PlannedCall]]) -> list[CallResult]:
        """Start the calls of all processes at the same moment and return the results."""
        for pipe, worker_steps in zip(self._pipes, steps, strict=True):
            pipe.send((url, load, worker_steps))
        results: list[CallResult] = []
        for pipe in self._pipes:
            assert pipe.poll(WAIT_SECONDS)
            results += pipe.recv()
        return results

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(WAIT_SECONDS)


def _run_worker(worker: str, pipe: Connection, barrier: Barrier) -> None:
    async def run_steps(url: str, load: CallLoad, steps: Sequence[PlannedCall]) -> list[CallResult]:
        async with await open_store(url, wait_seconds=30.0) as store:
            await asyncio.to_thread(barrier.wait, WAIT_SECONDS)
            return await make_calls(store, load, worker, steps)

    with suppress(EOFError):
        while True:
            pipe.send(asyncio.run(run_steps(*pipe.recv())))


def call_until_killed(url: str, reports: Connection, at_once: int) -> None:
    """Make calls in a row and report reservations and settlements until this process is killed.

    Call number 20 is never settled: it stays in flight.
    """

    async def make_calls_() -> None:
        async with await open_store(url, wait_seconds=30.0) as store:
            options = AdmissionOptions(lease_seconds=LEASE_SECONDS)
            admission = Admission(store.ledger, clock=lambda: NOON, options=options)
            numbers = itertools.count()

            async def make_calls_in_a_row() -> None:
                for number in numbers:
                    call = make_call(f"call {number}")
                    await admission.admit(call, Decimal("0.5"), [make_cap(CapScope.TOTAL, 1_000_000)])
                    reports.send(("reserved", call.id))
                    if number == 20:
                        await asyncio.sleep(WAIT_SECONDS)
                    await admission.settle(make_charge(call, "0.25"))
                    reports.send(("settled", call.id))

            await asyncio.gather(*(make_calls_in_a_row() for _ in range(at_once)))

    asyncio.run(make_calls_())


def hold_long_call(url: str, control: Connection, lease_seconds: float) -> None:
    """Hold a call until asked whether there is room for another, then settle it with an unknown price.

    Reports how often its reservation had lapsed, and whether there was room.
    """

    async def hold_call() -> None:
        async with await open_store(url, wait_seconds=30.0) as store:
            options = AdmissionOptions(lease_seconds=lease_seconds)
            admission = Admission(store.ledger, clock=time.time, options=options)
            caps = [make_cap(CapScope.TOTAL, 1)]
            await admission.admit(make_call("long"), Decimal("0.8"), caps)
            control.send("reserved")
            await asyncio.to_thread(control.recv)
            try:
                await admission.admit(make_call("another"), Decimal("0.1"), caps)
            except CapExceeded:
                has_room = False
            else:
                has_room = True
            control.send((admission.lapsed_count, has_room))
            await asyncio.to_thread(control.recv)
            await admission.settle(make_charge(make_call("long"), None))
            await admission.close()
            control.send("settled")

    asyncio.run(hold_call())


def settle_on_a_full_disk(url: str, reports: Connection) -> None:
    """Make calls until the disk is full, continue for a while, and then free the disk.

    Reports the outcome of each charge, why a cap rejected a call meanwhile, and what could not be stored in the
    end.
    """
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.RLIM_INFINITY

    async def settle_calls() -> None:
        async with await open_store(url) as store:
            admission = Admission(store.ledger, clock=lambda: NOON)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, unlimited))
            outcomes: list[SettlementOutcome] = []
            while outcomes[-20:] != [SettlementOutcome.WAITING] * 20:
                outcomes.append(
                    (await admission.settle(make_charge(make_call(f"call {len(outcomes)}"), "0.25"))).outcome
                )
            # A reopened file starts over: this is enough room for reads, but not for a charge.
            resource.setrlimit(resource.RLIMIT_FSIZE, (34_000, unlimited))
            rejection = ""
            try:
                await admission.admit(
                    make_call("refused"), Decimal("0.5"), [make_cap(CapScope.TOTAL, 1_000_000)]
                )
            except CapUncheckable as error:
                rejection = str(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
            admitted = await admission.admit(
                make_call("after"), Decimal("0.5"), [make_cap(CapScope.TOTAL, 1_000_000)]
            )
            await admission.release(admitted)
            reports.send((outcomes, rejection, await admission.close()))

    asyncio.run(settle_calls())
