"""Always, on both databases: caps hold and no charge is lost, however calls interleave.

The cost ceilings of admitted calls never exceed a cap. If a charge exceeds its ceiling, or comes after its
reservation has expired, the cap is exceeded by at most that much.
"""

import asyncio
import itertools
import threading
import uuid
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import AccountOverLimit, Call, Ledger, Reservation
from foveate.cost.money import to_dollars, to_picodollars
from foveate.store import Store, open_store
from tests.support.harness.example_limits import limit_examples
from tests.support.processes.ledger_workers import (
    CallEnd,
    CallLoad,
    CallResult,
    LedgerWorkerPool,
    PlannedCall,
    make_calls,
)
from tests.support.stores.ledger_records import NOON, make_call, make_charge, settle_one

LIFETIME_SECONDS = 100.0
WORKERS = 4


@dataclass
class ExpectedCall:
    """A call as the test expects it, in picodollars; `cost` is what it is charged in the end."""

    call: Call
    ceiling: int
    cost: int
    expires_at: float
    is_recorded: bool = False
    is_held: bool = True
    was_released: bool = False
    recorded_times: int = 0
    is_unknown: bool = False

    @property
    def charge(self) -> int:
        return self.cost if self.is_recorded else 0

    @property
    def error(self) -> int:
        """Amount by which this call may exceed a cap."""
        return self.charge if self.was_released else max(0, self.charge - self.ceiling)


AMOUNTS = st.sampled_from([0, 1, 20, 39, 40, 41, 60])
CALL_NUMBERS = st.integers(0, 1000)
CHARGES = st.integers(0, 70)
OPERATIONS = st.one_of(
    st.tuples(st.just("reserve"), st.sampled_from("ab"), AMOUNTS, CHARGES),
    st.tuples(st.sampled_from(["settle", "release"]), CALL_NUMBERS),
)


class Interleavings(RuleBasedStateMachine):
    """Concurrent operations of calls of one agent in two sessions, each account with a limit.

    They use three stores, as three gateways would.
    """

    url = ""
    agent_limit = 100
    session_limit = 80

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stores: list[Store] = [self.runner.run(open_store(self.url)) for _ in range(3)]
        self.turn = itertools.cycle(self.stores)
        self.agent = uuid.uuid4().hex
        self.now = NOON
        self.known: list[ExpectedCall] = []

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()

    @property
    def ledger(self) -> Ledger:
        """The ledger of the next store."""
        return next(self.turn).ledger

    @rule(operations=st.lists(OPERATIONS, min_size=1, max_size=8))
    def run_concurrently(self, operations: list[tuple[Any, ...]]) -> None:
        tasks = [self._start(*operation) for operation in operations]

        async def run_all() -> None:
            await asyncio.gather(*tasks)

        self.runner.run(run_all())

    @rule(session=st.sampled_from("ab"), ceiling=AMOUNTS, cost=CHARGES)
    def reserve_the_same_six_times(self, session: str, ceiling: int, cost: int) -> None:
        self.run_concurrently([("reserve", session, ceiling, cost)] * 6)

    @rule(seconds=st.floats(0, LIFETIME_SECONDS))
    def advance_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(numbers=st.lists(CALL_NUMBERS, min_size=1, max_size=6))
    def renew_reservations(self, numbers: list[int]) -> None:
        renewing = {
            expected.call.id: expected
            for number in numbers
            if self.known
            for expected in [self.known[number % len(self.known)]]
        }
        until = self.now + LIFETIME_SECONDS
        renewed = self.runner.run(self.ledger.renew(list(renewing), expires_at=until))
        assert renewed <= renewing.keys()
        for id_, expected in renewing.items():
            if id_ in renewed:  # including expired ones that no other call has replaced meanwhile
                assert not expected.is_recorded
                expected.is_held, expected.expires_at = True, until
            else:
                assert not self._is_held(expected)

    @rule(session=st.sampled_from("ab"), ceiling=AMOUNTS, cost=CHARGES)
    def admit_a_single_call_only_if_it_fits(self, session: str, ceiling: int, cost: int) -> None:
        self._expire()
        fits = (
            self._sum_used(None) + ceiling <= self.agent_limit
            and self._sum_used(session) + ceiling <= self.session_limit
        )
        before = len(self.known)
        self.runner.run(self._reserve(session, ceiling, cost))
        assert (len(self.known) > before) == fits

    @rule(number=CALL_NUMBERS)
    def settle_twice(self, number: int) -> None:
        if self.known:
            expected = self.known[number % len(self.known)]
            self.runner.run(self._settle(expected))
            other = make_charge(expected.call, to_dollars(expected.cost + 1))
            assert not self.runner.run(settle_one(self.ledger, other, accounts=list_accounts(expected.call)))

    @rule(number=CALL_NUMBERS)
    def settle_without_a_price(self, number: int) -> None:
        if self.known:
            expected = self.known[number % len(self.known)]
            if not expected.is_recorded and self._is_held(expected):  # an expired one may not be released yet
                # The minimum is reserved if the price is unknown.
                expected.cost = expected.ceiling if expected.ceiling > 1 else 0
                expected.is_unknown = True
                self.runner.run(self._settle(expected))

    @invariant()
    def balances_match_the_calls(self) -> None:
        self._expire()
        names = {f"agent {self.agent}": None, f"session {self._id('a')}": "a", f"session {self._id('b')}": "b"}
        balances = self.runner.run(self.ledger.get_balances(list(names), now=self.now))
        for name, session in names.items():
            calls = [expected for expected in self.known if session in (None, expected.call.session_id[-1])]
            spent = sum(expected.charge for expected in calls)
            reserved = sum(expected.ceiling for expected in calls if expected.is_held)
            assert (to_picodollars(balances[name].spent), to_picodollars(balances[name].reserved)) == (
                spent,
                reserved,
            )
            limit = self.agent_limit if session is None else self.session_limit
            assert spent + reserved <= limit + sum(expected.error for expected in calls)
        assert all(expected.recorded_times == expected.is_recorded for expected in self.known)

    @invariant()
    def the_ledger_contains_all_charges(self) -> None:
        (charge_total,) = self.runner.run(self.ledger.sum_charges([], agent=self.agent))
        recorded = [expected for expected in self.known if expected.is_recorded]
        charges = [expected.cost for expected in recorded if not expected.is_unknown]
        assert (charge_total.calls, charge_total.unknown_calls) == (len(recorded), len(recorded) - len(charges))
        assert to_picodollars(charge_total.dollars) == sum(charges)

    def _start(self, action: str, *arguments: Any) -> Awaitable[None]:
        if action == "reserve":
            return self._reserve(*arguments)
        if not self.known:
            return asyncio.sleep(0)
        expected = self.known[arguments[0] % len(self.known)]
        # In either order: it may have been released for a moment before its charge came.
        expected.was_released = expected.was_released or (
            not expected.is_recorded and (action == "release" or not self._is_held(expected))
        )
        return self._settle(expected) if action == "settle" else self._release(expected)

    async def _reserve(self, session: str, ceiling: int, cost: int) -> None:
        call = make_call(uuid.uuid4().hex, agent=self.agent, session_id=self._id(session))
        limits = {f"agent {self.agent}": self.agent_limit, f"session {call.session_id}": self.session_limit}
        reservation = Reservation(
            call_id=call.id,
            dollars=to_dollars(ceiling),
            accounts=list_accounts(call),
            limits={name: to_dollars(limit) for name, limit in limits.items()},
            expires_at=self.now + LIFETIME_SECONDS,
        )
        balances = await self.ledger.reserve(reservation, now=self.now)
        if isinstance(balances, AccountOverLimit):
            return
        self.known.append(ExpectedCall(call, ceiling, cost, reservation.expires_at))
        for name, limit in limits.items():
            errors = sum(expected.error for expected in self.known)
            assert to_picodollars(balances[name].spent + balances[name].reserved) <= limit + errors

    async def _settle(self, expected: ExpectedCall) -> None:
        expected.was_released = expected.was_released or (
            not expected.is_recorded and not self._is_held(expected)
        )
        expected.is_recorded, expected.is_held = True, False
        charge = make_charge(expected.call, None if expected.is_unknown else to_dollars(expected.cost))
        is_new = await settle_one(self.ledger, charge, accounts=list_accounts(expected.call))
        expected.recorded_times += is_new

    async def _release(self, expected: ExpectedCall) -> None:
        expected.is_held = False
        await self.ledger.release(expected.call.id)

    def _is_held(self, expected: ExpectedCall) -> bool:
        return expected.is_held and expected.expires_at > self.now

    def _expire(self) -> None:
        for expected in self.known:
            expected.is_held = self._is_held(expected)

    def _sum_used(self, session: str | None) -> int:
        session_calls = [expected for expected in self.known if session in (None, expected.call.session_id[-1])]
        return sum(
            expected.charge + (expected.ceiling if expected.is_held else 0) for expected in session_calls
        )

    def _id(self, session: str) -> str:
        return f"{self.agent} {session}"


@pytest.mark.slow
def test_caps_hold_and_no_charge_is_lost_under_any_concurrent_operations(database_url: str) -> None:
    machine = type("OnOneDatabase", (Interleavings,), {"url": database_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=limit_examples(12), stateful_step_count=20, suppress_health_check=list(HealthCheck)
        ),
    )


PLANNED_CALLS = st.lists(
    st.builds(
        lambda session, ceiling, share, end: PlannedCall(
            session_id=session, ceiling=ceiling, cost=int(ceiling * share), end=end
        ),
        session=st.sampled_from("ab"),
        ceiling=st.integers(1, 50),
        share=st.floats(0, 1),
        end=st.sampled_from([CallEnd.SETTLED] * 4 + [CallEnd.RELEASED, CallEnd.ABANDONED]),
    ),
    max_size=12,
)
WORKER_CALLS = st.lists(PLANNED_CALLS, min_size=WORKERS, max_size=WORKERS)


def with_unique_sessions(steps: Sequence[Sequence[PlannedCall]], agent: str) -> list[list[PlannedCall]]:
    """Return the calls in sessions that no other example uses."""
    return [
        [
            PlannedCall(session_id=f"{agent} {s.session_id}", ceiling=s.ceiling, cost=s.cost, end=s.end)
            for s in worker_steps
        ]
        for worker_steps in steps
    ]


async def check_ledger(url: str, load: CallLoad, results: Sequence[CallResult]) -> None:
    """Check that caps held, and that every charge is in the ledger and in its accounts."""
    assert all(result.is_within_caps for result in results)
    admitted = [result.planned for result in results if result.is_admitted]
    async with await open_store(url) as store:
        sessions = {step.session_id for step in admitted}
        names = {f"agent {load.agent}": None, **{f"session {name}": name for name in sessions}}
        balances = await store.ledger.get_balances(list(names), now=0.0)
        for name, session in names.items():
            calls = [step for step in admitted if session in (None, step.session_id)]
            spent = sum(step.cost for step in calls if step.end is CallEnd.SETTLED)
            reserved = sum(step.ceiling for step in calls if step.end is CallEnd.ABANDONED)
            assert (to_picodollars(balances[name].spent), to_picodollars(balances[name].reserved)) == (
                spent,
                reserved,
            )
            assert spent + reserved <= (load.agent_limit if session is None else load.session_limit)
        (charge_total,) = await store.ledger.sum_charges([], agent=load.agent)
        charges = [step.cost for step in admitted if step.end is CallEnd.SETTLED]
        assert (charge_total.calls, to_picodollars(charge_total.dollars)) == (len(charges), sum(charges))


@pytest.fixture(scope="module")
def worker_pool() -> Iterator[LedgerWorkerPool]:
    processes = LedgerWorkerPool(WORKERS)
    yield processes
    processes.close()


@pytest.mark.slow
@pytest.mark.process
@settings(max_examples=limit_examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=WORKER_CALLS)
def test_caps_hold_and_no_charge_is_lost_with_several_processes(
    database_url: str, worker_pool: LedgerWorkerPool, steps: list[list[PlannedCall]]
) -> None:
    load = CallLoad(agent=uuid.uuid4().hex, agent_limit=100, session_limit=80)

    results = worker_pool.make_calls(database_url, load, with_unique_sessions(steps, load.agent))

    assert len(results) == sum(map(len, steps))
    asyncio.run(check_ledger(database_url, load, results))


@pytest.mark.slow
@settings(max_examples=limit_examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=WORKER_CALLS)
def test_caps_hold_and_no_charge_is_lost_with_several_threads(
    database_url: str, steps: list[list[PlannedCall]]
) -> None:
    load = CallLoad(agent=uuid.uuid4().hex, agent_limit=100, session_limit=80)
    store = asyncio.run(open_store(database_url))

    results = run_in_threads(store, load, with_unique_sessions(steps, load.agent))

    asyncio.run(store.close())
    assert len(results) == sum(map(len, steps))
    asyncio.run(check_ledger(database_url, load, results))


def run_in_threads(store: Store, load: CallLoad, steps: Sequence[Sequence[PlannedCall]]) -> list[CallResult]:
    """Return the results of the steps, each list run in a thread with its own event loop."""
    barrier = threading.Barrier(len(steps))
    results: list[CallResult] = []

    def run(worker: str, calls: Sequence[PlannedCall]) -> None:
        barrier.wait()
        results.extend(asyncio.run(make_calls(store, load, worker, calls)))

    threads = [threading.Thread(target=run, args=(f"t{n}", calls)) for n, calls in enumerate(steps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


ONE_PICODOLLAR = PlannedCall(session_id="all of it", ceiling=1, cost=1, end=CallEnd.SETTLED)


def test_a_cap_admits_exactly_as_many_of_400_calls_of_four_processes_as_fit(
    database_url: str, worker_pool: LedgerWorkerPool
) -> None:
    load = CallLoad(agent=uuid.uuid4().hex, agent_limit=250, session_limit=1000, concurrency=16)

    results = worker_pool.make_calls(
        database_url, load, with_unique_sessions([[ONE_PICODOLLAR] * 100] * WORKERS, load.agent)
    )

    assert sum(result.is_admitted for result in results) == 250
    asyncio.run(check_ledger(database_url, load, results))


async def test_a_cap_admits_exactly_as_many_of_400_concurrent_calls_as_fit(database_url: str) -> None:
    load = CallLoad(agent=uuid.uuid4().hex, agent_limit=250, session_limit=1000, concurrency=400)
    async with await open_store(database_url) as store:
        results = await make_calls(
            store, load, "one", with_unique_sessions([[ONE_PICODOLLAR] * 400], load.agent)[0]
        )

    assert sum(result.is_admitted for result in results) == 250
    await check_ledger(database_url, load, results)
