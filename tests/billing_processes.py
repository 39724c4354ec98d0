"""What several processes and threads do to one ledger at once."""

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

from foveate.cost.admission import Admission, AdmissionOptions, Outcome
from foveate.cost.caps import Cap, Scope
from foveate.cost.money import dollars
from foveate.errors import CapExceeded, CapUncheckable
from foveate.store import Store, open_store
from tests.billed import NOON, call, cap, entry
from tests.store_processes import SPAWN, WAIT_SECONDS

LEASE_SECONDS = 90.0


class End(StrEnum):
    """How a call ends."""

    SETTLED = "settled"
    RELEASED = "released"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call to be made: what it may cost and what it does, in picodollars."""

    session_id: str
    ceiling: int
    bill: int
    end: End


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A step, whether it was let through, and whether accounts that caps are near to were within them then."""

    step: Step
    passed: bool
    within: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who calls under which caps, in picodollars; `at_once` calls are under way at a time."""

    agent: str
    agent_limit: int
    session_limit: int
    at_once: int = 4

    @property
    def caps(self) -> list[Cap]:
        return [
            cap(Scope.AGENT, dollars(self.agent_limit), self.agent),
            cap(Scope.SESSION, dollars(self.session_limit), self.agent),
        ]


async def hammer(store: Store, load: Load, worker: str, steps: Sequence[Step]) -> list[Made]:
    """What became of each step, some of them at once."""
    admission = Admission(store.ledger, clock=time.time, options=AdmissionOptions(lifetime_seconds=3600.0))
    waiting = iter(enumerate(steps))
    made: list[Made] = []

    async def work() -> None:
        for number, step in waiting:
            of = call(f"{load.agent} {worker} {number}", agent=load.agent, session_id=step.session_id)
            try:
                admitted = await admission.admit(of, dollars(step.ceiling), load.caps)
            except CapExceeded:
                made.append(Made(step=step, passed=False))
                continue
            near = [(one.standing, one.cap) for one in admitted.warnings]
            within = all(stands.spent + stands.reserved <= cap.dollars for stands, cap in near)
            made.append(Made(step=step, passed=True, within=within))
            await asyncio.sleep(0)
            if step.end is End.SETTLED:
                await admission.settle(entry(of, dollars(step.bill)))
            elif step.end is End.RELEASED:
                await admission.release(admitted)

    await asyncio.gather(*(work() for _ in range(load.at_once)))
    await admission.close()
    return made


class Crew:
    """Processes that stay, to hammer a ledger together again and again."""

    def __init__(self, workers: int) -> None:
        self._gate = SPAWN.Barrier(workers)  # gone with the last who knows it
        self._pipes = []
        self._processes = []
        for number in range(workers):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=_serve, args=(f"w{number}", theirs, self._gate), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def hammer(self, url: str, load: Load, steps: Sequence[Sequence[Step]]) -> list[Made]:
        """What became of the steps of all of them, begun at the same moment."""
        for pipe, own in zip(self._pipes, steps, strict=True):
            pipe.send((url, load, own))
        made: list[Made] = []
        for pipe in self._pipes:
            assert pipe.poll(WAIT_SECONDS)
            made += pipe.recv()
        return made

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(WAIT_SECONDS)


def _serve(worker: str, pipe: Connection, gate: Barrier) -> None:
    async def work(url: str, load: Load, steps: Sequence[Step]) -> list[Made]:
        async with await open_store(url, wait_seconds=30.0) as store:
            await asyncio.to_thread(gate.wait, WAIT_SECONDS)
            return await hammer(store, load, worker, steps)

    with suppress(EOFError):
        while True:
            pipe.send(asyncio.run(work(*pipe.recv())))


def call_on_and_on(url: str, said: Connection, at_once: int) -> None:
    """Make one call after the other, and say what is reserved and what is settled, until something ends this.

    The call number 20 is never settled: it goes on and on.
    """

    async def work() -> None:
        async with await open_store(url, wait_seconds=30.0) as store:
            options = AdmissionOptions(lease_seconds=LEASE_SECONDS)
            admission = Admission(store.ledger, clock=lambda: NOON, options=options)
            numbers = itertools.count()

            async def one_after_the_other() -> None:
                for number in numbers:
                    of = call(f"call {number}")
                    await admission.admit(of, Decimal("0.5"), [cap(Scope.TOTAL, 1_000_000)])
                    said.send(("reserved", of.id))
                    if number == 20:
                        await asyncio.sleep(WAIT_SECONDS)
                    await admission.settle(entry(of, "0.25"))
                    said.send(("settled", of.id))

            await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))

    asyncio.run(work())


def go_on_and_on(url: str, asked: Connection, lease_seconds: float) -> None:
    """Make a call that goes on until it is asked to say whether there is room for another, and then end it.

    Its bill has no price. Says how often what was reserved for it had run out, and whether there was room.
    """

    async def work() -> None:
        async with await open_store(url, wait_seconds=30.0) as store:
            options = AdmissionOptions(lease_seconds=lease_seconds)
            admission = Admission(store.ledger, clock=time.time, options=options)
            caps = [cap(Scope.TOTAL, 1)]
            await admission.admit(call("long"), Decimal("0.8"), caps)
            asked.send("reserved")
            await asyncio.to_thread(asked.recv)
            try:
                await admission.admit(call("another"), Decimal("0.1"), caps)
            except CapExceeded:
                has_room = False
            else:
                has_room = True
            asked.send((admission.lapsed, has_room))
            await asyncio.to_thread(asked.recv)
            await admission.settle(entry(call("long"), None))
            await admission.close()
            asked.send("settled")

    asyncio.run(work())


def settle_on_a_full_disk(url: str, said: Connection) -> None:
    """Make calls until nothing more can be written, go on for a while, and have room again.

    Says what became of each bill, why a cap refused meanwhile, and what could not be booked in the end.
    """
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.RLIM_INFINITY

    async def work() -> None:
        async with await open_store(url) as store:
            admission = Admission(store.ledger, clock=lambda: NOON)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, unlimited))
            outcomes: list[Outcome] = []
            while outcomes[-20:] != [Outcome.WAITING] * 20:
                outcomes.append((await admission.settle(entry(call(f"call {len(outcomes)}"), "0.25"))).outcome)
            # A file that was closed begins anew: room for what is looked at there, and for no bill.
            resource.setrlimit(resource.RLIMIT_FSIZE, (34_000, unlimited))
            refusal = ""
            try:
                await admission.admit(call("refused"), Decimal("0.5"), [cap(Scope.TOTAL, 1_000_000)])
            except CapUncheckable as error:
                refusal = str(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
            admitted = await admission.admit(call("after"), Decimal("0.5"), [cap(Scope.TOTAL, 1_000_000)])
            await admission.release(admitted)
            said.send((outcomes, refusal, await admission.close()))

    asyncio.run(work())
