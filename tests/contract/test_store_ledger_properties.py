"""COST 3, always, on both databases: caps hold and no charge is lost, however calls interleave.

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
    """A call as the test expects it, in picodollars; `bill` is what it will cost or be charged."""

    call: Call
    ceiling: int
    bill: int
    expires_at: float
    is_booked: bool = False
    is_held: bool = True
    was_free: bool = False
    booked_times: int = 0
    is_unknown: bool = False

    @property
    def billed(self) -> int:
        return self.bill if self.is_booked else 0

    @property
    def error(self) -> int:
        """By how much this call may exceed a cap."""
        return self.billed if self.was_free else max(0, self.billed - self.ceiling)


AMOUNTS = st.sampled_from([0, 1, 20, 39, 40, 41, 60])
WHICH = st.integers(0, 1000)
CHARGES = st.integers(0, 70)
OPERATIONS = st.one_of(
    st.tuples(st.just("reserve"), st.sampled_from("ab"), AMOUNTS, CHARGES),
    st.tuples(st.sampled_from(["settle", "release"]), WHICH),
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
    def do_at_once(self, operations: list[tuple[Any, ...]]) -> None:
        work = [self._begun(*operation) for operation in operations]

        async def all_of_it() -> None:
            await asyncio.gather(*work)

        self.runner.run(all_of_it())

    @rule(session=st.sampled_from("ab"), ceiling=AMOUNTS, bill=CHARGES)
    def six_want_the_same_at_once(self, session: str, ceiling: int, bill: int) -> None:
        self.do_at_once([("reserve", session, ceiling, bill)] * 6)

    @rule(seconds=st.floats(0, LIFETIME_SECONDS))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=st.lists(WHICH, min_size=1, max_size=6))
    def calls_go_on(self, which: list[int]) -> None:
        some = {
            one.call.id: one for number in which if self.known for one in [self.known[number % len(self.known)]]
        }
        until = self.now + LIFETIME_SECONDS
        found = self.runner.run(self.ledger.renew(list(some), expires_at=until))
        assert found <= some.keys()
        for id_, one in some.items():
            if id_ in found:  # including what has expired, if nobody needed it meanwhile
                assert not one.is_booked
                one.is_held, one.expires_at = True, until
            else:
                assert not self._is_held(one)

    @rule(session=st.sampled_from("ab"), ceiling=AMOUNTS, bill=CHARGES)
    def a_call_alone_is_let_through_where_there_is_room_and_only_there(
        self, session: str, ceiling: int, bill: int
    ) -> None:
        self._expire()
        fits = (
            self._taken(None) + ceiling <= self.agent_limit
            and self._taken(session) + ceiling <= self.session_limit
        )
        before = len(self.known)
        self.runner.run(self._reserve(session, ceiling, bill))
        assert (len(self.known) > before) == fits

    @rule(which=WHICH)
    def a_bill_comes_twice(self, which: int) -> None:
        if self.known:
            one = self.known[which % len(self.known)]
            self.runner.run(self._settle(one))
            other = make_charge(one.call, to_dollars(one.bill + 1))
            assert not self.runner.run(settle_one(self.ledger, other, accounts=list_accounts(one.call)))

    @rule(which=WHICH)
    def a_bill_comes_without_a_price(self, which: int) -> None:
        if self.known:
            one = self.known[which % len(self.known)]
            if not one.is_booked and self._is_held(one):  # what has expired may not be released yet
                # The minimum is reserved if the price is unknown.
                one.bill = one.ceiling if one.ceiling > 1 else 0
                one.is_unknown = True
                self.runner.run(self._settle(one))

    @invariant()
    def accounts_stand_as_calls_do(self) -> None:
        self._expire()
        names = {f"agent {self.agent}": None, f"session {self._id('a')}": "a", f"session {self._id('b')}": "b"}
        found = self.runner.run(self.ledger.get_balances(list(names), now=self.now))
        for name, session in names.items():
            own = [one for one in self.known if session in (None, one.call.session_id[-1])]
            spent = sum(one.billed for one in own)
            reserved = sum(one.ceiling for one in own if one.is_held)
            assert (to_picodollars(found[name].spent), to_picodollars(found[name].reserved)) == (
                spent,
                reserved,
            )
            limit = self.agent_limit if session is None else self.session_limit
            assert spent + reserved <= limit + sum(one.error for one in own)
        assert all(one.booked_times == one.is_booked for one in self.known)

    @invariant()
    def the_ledger_adds_up_to_the_bills(self) -> None:
        (added,) = self.runner.run(self.ledger.sum_charges([], agent=self.agent))
        booked = [one for one in self.known if one.is_booked]
        charges = [one.bill for one in booked if not one.is_unknown]
        assert (added.calls, added.unknown_calls) == (len(booked), len(booked) - len(charges))
        assert to_picodollars(added.dollars) == sum(charges)

    def _begun(self, what: str, *asked: Any) -> Awaitable[None]:
        if what == "reserve":
            return self._reserve(*asked)
        if not self.known:
            return asyncio.sleep(0)
        one = self.known[asked[0] % len(self.known)]
        # In either order: it may have been released for a moment before its charge came.
        one.was_free = one.was_free or (not one.is_booked and (what == "release" or not self._is_held(one)))
        return self._settle(one) if what == "settle" else self._release(one)

    async def _reserve(self, session: str, ceiling: int, bill: int) -> None:
        of = make_call(uuid.uuid4().hex, agent=self.agent, session_id=self._id(session))
        limits = {f"agent {self.agent}": self.agent_limit, f"session {of.session_id}": self.session_limit}
        wanted = Reservation(
            call_id=of.id,
            dollars=to_dollars(ceiling),
            accounts=list_accounts(of),
            limits={name: to_dollars(limit) for name, limit in limits.items()},
            expires_at=self.now + LIFETIME_SECONDS,
        )
        found = await self.ledger.reserve(wanted, now=self.now)
        if isinstance(found, AccountOverLimit):
            return
        self.known.append(ExpectedCall(of, ceiling, bill, wanted.expires_at))
        for name, limit in limits.items():
            errors = sum(one.error for one in self.known)
            assert to_picodollars(found[name].spent + found[name].reserved) <= limit + errors

    async def _settle(self, one: ExpectedCall) -> None:
        one.was_free = one.was_free or (not one.is_booked and not self._is_held(one))
        one.is_booked, one.is_held = True, False
        billed = make_charge(one.call, None if one.is_unknown else to_dollars(one.bill))
        is_new = await settle_one(self.ledger, billed, accounts=list_accounts(one.call))
        one.booked_times += is_new

    async def _release(self, one: ExpectedCall) -> None:
        one.is_held = False
        await self.ledger.release(one.call.id)

    def _is_held(self, one: ExpectedCall) -> bool:
        return one.is_held and one.expires_at > self.now

    def _expire(self) -> None:
        for one in self.known:
            one.is_held = self._is_held(one)

    def _taken(self, session: str | None) -> int:
        own = [one for one in self.known if session in (None, one.call.session_id[-1])]
        return sum(one.billed + (one.ceiling if one.is_held else 0) for one in own)

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


STEPS = st.lists(
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
CREWS = st.lists(STEPS, min_size=WORKERS, max_size=WORKERS)


def with_unique_sessions(steps: Sequence[Sequence[PlannedCall]], agent: str) -> list[list[PlannedCall]]:
    """Return the calls in sessions that no other example uses."""
    return [
        [
            PlannedCall(session_id=f"{agent} {s.session_id}", ceiling=s.ceiling, cost=s.cost, end=s.end)
            for s in worker_steps
        ]
        for worker_steps in steps
    ]


async def check(url: str, load: CallLoad, results: Sequence[CallResult]) -> None:
    """Check that caps held, and that every charge is in the ledger and in its accounts."""
    assert all(one.is_within_caps for one in results)
    passed = [one.planned for one in results if one.is_admitted]
    async with await open_store(url) as store:
        sessions = {step.session_id for step in passed}
        names = {f"agent {load.agent}": None, **{f"session {name}": name for name in sessions}}
        found = await store.ledger.get_balances(list(names), now=0.0)
        for name, session in names.items():
            own = [step for step in passed if session in (None, step.session_id)]
            spent = sum(step.cost for step in own if step.end is CallEnd.SETTLED)
            reserved = sum(step.ceiling for step in own if step.end is CallEnd.ABANDONED)
            assert (to_picodollars(found[name].spent), to_picodollars(found[name].reserved)) == (
                spent,
                reserved,
            )
            assert spent + reserved <= (load.agent_limit if session is None else load.session_limit)
        (added,) = await store.ledger.sum_charges([], agent=load.agent)
        charges = [step.cost for step in passed if step.end is CallEnd.SETTLED]
        assert (added.calls, to_picodollars(added.dollars)) == (len(charges), sum(charges))


@pytest.fixture(scope="module")
def worker_pool() -> Iterator[LedgerWorkerPool]:
    processes = LedgerWorkerPool(WORKERS)
    yield processes
    processes.close()


@pytest.mark.slow
@pytest.mark.process
@settings(max_examples=limit_examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=CREWS)
def test_caps_hold_and_no_charge_is_lost_with_several_processes(
    database_url: str, worker_pool: LedgerWorkerPool, steps: list[list[PlannedCall]]
) -> None:
    load = CallLoad(agent=uuid.uuid4().hex, agent_limit=100, session_limit=80)

    results = worker_pool.make_calls(database_url, load, with_unique_sessions(steps, load.agent))

    assert len(results) == sum(map(len, steps))
    asyncio.run(check(database_url, load, results))


@pytest.mark.slow
@settings(max_examples=limit_examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=CREWS)
def test_caps_hold_and_no_charge_is_lost_with_several_threads(
    database_url: str, steps: list[list[PlannedCall]]
) -> None:
    load = CallLoad(agent=uuid.uuid4().hex, agent_limit=100, session_limit=80)
    store = asyncio.run(open_store(database_url))

    results = run_in_threads(store, load, with_unique_sessions(steps, load.agent))

    asyncio.run(store.close())
    assert len(results) == sum(map(len, steps))
    asyncio.run(check(database_url, load, results))


def run_in_threads(store: Store, load: CallLoad, steps: Sequence[Sequence[PlannedCall]]) -> list[CallResult]:
    """Return the results of the steps, each list run in a thread with its own event loop."""
    gate = threading.Barrier(len(steps))
    results: list[CallResult] = []

    def work(worker: str, own: Sequence[PlannedCall]) -> None:
        gate.wait()
        results.extend(asyncio.run(make_calls(store, load, worker, own)))

    threads = [threading.Thread(target=work, args=(f"t{n}", own)) for n, own in enumerate(steps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


FULL = PlannedCall(session_id="all of it", ceiling=1, cost=1, end=CallEnd.SETTLED)


def test_a_cap_admits_exactly_as_many_of_400_calls_of_four_processes_as_fit(
    database_url: str, worker_pool: LedgerWorkerPool
) -> None:
    load = CallLoad(agent=uuid.uuid4().hex, agent_limit=250, session_limit=1000, concurrency=16)

    results = worker_pool.make_calls(
        database_url, load, with_unique_sessions([[FULL] * 100] * WORKERS, load.agent)
    )

    assert sum(one.is_admitted for one in results) == 250
    asyncio.run(check(database_url, load, results))


async def test_a_cap_admits_exactly_as_many_of_400_concurrent_calls_as_fit(database_url: str) -> None:
    load = CallLoad(agent=uuid.uuid4().hex, agent_limit=250, session_limit=1000, concurrency=400)
    async with await open_store(database_url) as store:
        results = await make_calls(store, load, "one", with_unique_sessions([[FULL] * 400], load.agent)[0])

    assert sum(one.is_admitted for one in results) == 250
    await check(database_url, load, results)
