"""Concurrent ledger operations are batched, with the same result as in sequence."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from msgspec import structs

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import AccountOverLimit, Ledger
from foveate.errors import BadOption, StoreUnavailable
from foveate.store import Store, open_store
from foveate.store.batching import BatchExecutor
from tests.support.processes.ledger_workers import CallEnd, CallLoad, LedgerWorkerPool, PlannedCall
from tests.support.stores.ledger_records import (
    CALL,
    CHARGE,
    NOON,
    make_call,
    make_charge,
    make_reservation,
    make_standing,
    reserve,
    settle_one,
)
from tests.support.stores.postgres import PostgresServer


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        # The first reservation looks for expired ones, and others would overtake it.
        assert await reserve(opened.ledger, make_call("first"), 0)
        yield opened


async def record_charge(ledger: Ledger, id_: str, dollars: str) -> bool:
    return await settle_one(ledger, make_charge(make_call(id_), dollars), accounts=list_accounts(CALL))


async def test_a_reservation_can_use_what_is_released_in_the_same_batch(store: Store) -> None:
    ledger = store.ledger
    assert await reserve(ledger, make_call("a"), "0.5", total=1)
    assert await reserve(ledger, make_call("b"), "0.5", total=1)

    results = await asyncio.gather(
        reserve(ledger, make_call("c"), "0.5", total=1),
        reserve(ledger, make_call("d"), "0.4", total=1),
        reserve(ledger, make_call("e"), "0.1", total=1),
        ledger.release("a"),
        record_charge(ledger, "b", "0.1"),
        ledger.release("never"),
    )

    assert list(results) == [True, True, False, True, True, False]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.1", "0.9")}


async def test_a_reservation_that_is_released_in_the_same_batch_is_not_made(store: Store) -> None:
    """Defect: after a stall of the store, calls of clients that had left stayed reserved for 90 seconds."""
    ledger = store.ledger
    results = await asyncio.gather(
        reserve(ledger, make_call("a"), "0.9", total=1),
        ledger.release("a"),
        reserve(ledger, make_call("b"), "0.8", total=1),
    )

    assert list(results[1:]) == [True, True]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing(0, "0.8")}


async def test_an_operation_submitted_twice_in_a_batch_is_applied_once(store: Store) -> None:
    ledger = store.ledger
    reservation = make_reservation(CALL, "0.6", {"total": Decimal(1)})

    assert (
        await asyncio.gather(*(ledger.reserve(reservation, now=NOON) for _ in range(3)))
        == [{"total": make_standing(0, "0.6")}] * 3
    )
    assert await asyncio.gather(*(record_charge(ledger, CALL.id, f"0.{number}") for number in (1, 2, 3))) == [
        True,
        False,
        False,
    ]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.1")}
    assert [charge.dollars async for charge in ledger.list_charges()] == [Decimal("0.1")]


async def test_an_invalid_operation_fails_only_for_its_caller(store: Store) -> None:
    ledger = store.ledger
    results = await asyncio.gather(
        reserve(ledger, make_call("a"), "0.5", total=1),
        reserve(ledger, make_call("b"), "4611686", agent=4_611_686),
        reserve(ledger, make_call("c"), "4611686"),
        reserve(ledger, make_call("d"), "NaN", total=1),
        settle_one(ledger, structs.replace(CHARGE, estimated_input_tokens=-1), accounts=["total"]),
        settle_one(ledger, structs.replace(CHARGE, estimated_input_tokens=2**63), accounts=["total"]),
        ledger.reserve(replace(make_reservation(CALL, 1, {}), expires_at=float("nan")), now=NOON),
        record_charge(ledger, "e", "0.25"),
        return_exceptions=True,
    )

    assert [result if isinstance(result, bool) else type(result) for result in results] == [
        True,
        False,
        *[BadOption] * 5,
        True,
    ]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.25", "0.5")}


async def test_one_invalid_charge_in_a_batch_does_not_fail_the_others(store: Store) -> None:
    ledger = store.ledger
    assert await reserve(ledger, make_call("a"), "0.5", total=1)
    charges = [
        make_charge(make_call("a"), "0.1"),
        structs.replace(CHARGE, estimated_input_tokens=-1),
        make_charge(make_call("b"), "0.2"),
    ]

    results = await ledger.settle_all(
        [(charge, list_accounts(charge.call)) for charge in (*charges, charges[0])]
    )

    assert [item if isinstance(item, bool) else type(item) for item in results] == [
        True,
        BadOption,
        True,
        False,
    ]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.3")}
    assert [item.call.id async for item in ledger.list_charges()] == ["a", "b"]
    assert await ledger.settle_all([]) == []


async def test_a_rejected_reservation_leaves_nothing_behind(store: Store) -> None:
    ledger = store.ledger
    results = await asyncio.gather(
        reserve(ledger, make_call("a"), "0.6", total=1),
        reserve(ledger, make_call("b"), "0.6", total=1),
        reserve(ledger, make_call("b"), "0.6", total=1),
        reserve(ledger, make_call("c"), "0.4", total=1),
    )

    assert list(results) == [True, False, False, True]
    assert await ledger.get_balances(["total", "agent ana"], now=NOON) == {
        "total": make_standing(0, 1),
        "agent ana": make_standing(0, 1),
    }
    assert [await ledger.release(id_) for id_ in "abc"] == [True, False, True]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing(0)}


async def test_very_long_names_stay_distinct(store: Store) -> None:
    """PostgreSQL's index entries have at most 2,700 bytes, and clients choose the names of sessions."""
    ledger = store.ledger
    long_name = "模" * 5000
    first, second = (
        make_call(f"{long_name} {n}", agent=f"{long_name} {n}", session_id=f"{long_name} {n}") for n in (1, 2)
    )

    results = await asyncio.gather(
        reserve(ledger, first, "0.6", agent=1),
        reserve(ledger, second, "0.6", agent=1),
        reserve(ledger, structs.replace(first, id="third"), "0.6", agent=1),
    )
    assert list(results) == [True, True, False]
    for call in (first, second):
        assert await settle_one(ledger, make_charge(call, "0.25"), accounts=list_accounts(call))
        assert (
            len([row async for row in ledger.list_charges(agent=call.agent, session_id=call.session_id)]) == 1
        )


async def test_concurrent_reservations_of_one_call_reserve_once(database_url: str) -> None:
    stores = [await open_store(database_url) for _ in range(4)]
    ids = [uuid.uuid4().hex for _ in range(40)]

    async def reserve_all(store: Store) -> Sequence[bool]:
        shuffled = random.sample(ids, len(ids))
        return await asyncio.gather(
            *(reserve(store.ledger, make_call(id_), "0.01", total=1) for id_ in shuffled)
        )

    results = await asyncio.gather(*map(reserve_all, stores))

    assert all(map(all, results))
    assert await stores[0].ledger.get_balances(["total"], now=NOON) == {"total": make_standing(0, "0.4")}
    for store in stores:
        await store.close()


@pytest.mark.slow
@pytest.mark.process
def test_concurrent_batches_do_not_deadlock(postgres: PostgresServer) -> None:
    """Four processes would deadlock if accounts were locked in any order."""
    url = postgres.new_database()
    load = CallLoad(agent="ana", agent_limit=10_000, session_limit=10_000, concurrency=16)
    worker_pool = LedgerWorkerPool(4)
    sessions = [f"s{number}" for number in range(30)]
    steps = [
        [
            PlannedCall(session_id=random.choice(sessions), ceiling=1, cost=1, end=CallEnd.SETTLED)
            for _ in range(150)
        ]
        for _ in range(4)
    ]

    asyncio.run(create_store(url))
    worker_pool.make_calls(url, load, steps)

    worker_pool.close()
    assert postgres.count_deadlocks(url) == 0


async def create_store(url: str) -> None:
    await (await open_store(url)).close()


class RecordingExecutor:
    """Executes batches slowly, and records them."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.error: Exception | None = None

    async def execute(self, items: Sequence[str]) -> list[str | Exception]:
        self.batches.append(list(items))
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        if "poison" in items:
            raise ValueError("poison")
        return [BadOption(item) if item == "wrong" else item.upper() for item in items]


async def test_items_submitted_during_a_batch_form_the_next_one_and_each_gets_its_result() -> None:
    recorder = RecordingExecutor()
    batches = BatchExecutor(recorder.execute, max_items=3)

    first = asyncio.ensure_future(batches.submit("a"))
    await asyncio.sleep(0.002)
    others = await asyncio.gather(*map(batches.submit, "bcdef"))

    assert [await first, *others] == list("ABCDEF")
    assert recorder.batches == [["a"], ["b", "c", "d"], ["e", "f"]]
    assert await batches.submit("g") == "G"


async def test_an_error_is_raised_to_the_caller_of_its_item() -> None:
    recorder = RecordingExecutor()
    batches = BatchExecutor(recorder.execute, max_items=9)

    results = await asyncio.gather(*map(batches.submit, ("a", "wrong", "b")), return_exceptions=True)
    assert [str(result) for result in results] == ["A", "wrong", "B"]
    assert isinstance(results[1], BadOption)

    results = await asyncio.gather(*map(batches.submit, ("a", "poison", "b")), return_exceptions=True)
    assert [type(result) for result in results] == [str, ValueError, str]

    recorder.error = StoreUnavailable("there", "is gone")
    batch_count = len(recorder.batches)
    results = await asyncio.gather(*map(batches.submit, ("a", "b")), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 2
    assert len(recorder.batches) == batch_count + 1  # not each alone, which would take twice as long


async def test_items_of_cancelled_callers_are_still_executed() -> None:
    recorder = RecordingExecutor()
    batches = BatchExecutor(recorder.execute, max_items=9)

    tasks = [asyncio.ensure_future(batches.submit(item)) for item in "abc"]
    await asyncio.sleep(0.002)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [results[0], results[2]] == ["A", "C"]
    assert isinstance(results[1], asyncio.CancelledError)
    assert recorder.batches == [["a", "b", "c"]]


def test_a_batch_executor_works_from_several_event_loops_in_turn() -> None:
    recorder = RecordingExecutor()
    batches = BatchExecutor(recorder.execute, max_items=9)

    async def submit_and_leave() -> None:
        asyncio.ensure_future(batches.submit("a"))  # noqa: RUF006 - the loop ends before it finishes
        await asyncio.sleep(0.001)

    asyncio.run(submit_and_leave())
    assert asyncio.run(batches.submit("b")) == "B"


async def test_a_rejected_reservation_names_the_first_account_over_its_limit(store: Store) -> None:
    result = await store.ledger.reserve(
        make_reservation(CALL, 2, {"total": Decimal(1), "agent ana": Decimal(1)}), now=NOON
    )

    assert result == AccountOverLimit(account="agent ana", limit=Decimal(1), balance=make_standing(0))
