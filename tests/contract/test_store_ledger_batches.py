"""Concurrent ledger operations are batched, with the same result as in sequence."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from decimal import Decimal

import psycopg
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


async def settle(ledger: Ledger, id_: str, dollars: str) -> bool:
    return await settle_one(ledger, make_charge(make_call(id_), dollars), accounts=list_accounts(CALL))


async def test_a_reservation_can_use_what_is_released_in_the_same_batch(store: Store) -> None:
    ledger = store.ledger
    assert await reserve(ledger, make_call("a"), "0.5", total=1)
    assert await reserve(ledger, make_call("b"), "0.5", total=1)

    done = await asyncio.gather(
        reserve(ledger, make_call("c"), "0.5", total=1),
        reserve(ledger, make_call("d"), "0.4", total=1),
        reserve(ledger, make_call("e"), "0.1", total=1),
        ledger.release("a"),
        settle(ledger, "b", "0.1"),
        ledger.release("never"),
    )

    assert list(done) == [True, True, False, True, True, False]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.1", "0.9")}


async def test_an_operation_submitted_twice_in_a_batch_is_applied_once(store: Store) -> None:
    ledger = store.ledger
    reservation = make_reservation(CALL, "0.6", {"total": Decimal(1)})

    assert (
        await asyncio.gather(*(ledger.reserve(reservation, now=NOON) for _ in range(3)))
        == [{"total": make_standing(0, "0.6")}] * 3
    )
    assert await asyncio.gather(*(settle(ledger, CALL.id, f"0.{number}") for number in (1, 2, 3))) == [
        True,
        False,
        False,
    ]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.1")}
    assert [one.dollars async for one in ledger.list_charges()] == [Decimal("0.1")]


async def test_an_invalid_operation_fails_only_for_its_caller(store: Store) -> None:
    ledger = store.ledger
    done = await asyncio.gather(
        reserve(ledger, make_call("a"), "0.5", total=1),
        reserve(ledger, make_call("b"), "4611686", agent=4_611_686),
        reserve(ledger, make_call("c"), "4611686"),
        reserve(ledger, make_call("d"), "NaN", total=1),
        settle_one(ledger, structs.replace(CHARGE, estimated_input_tokens=-1), accounts=["total"]),
        settle_one(ledger, structs.replace(CHARGE, estimated_input_tokens=2**63), accounts=["total"]),
        ledger.reserve(replace(make_reservation(CALL, 1, {}), expires_at=float("nan")), now=NOON),
        settle(ledger, "e", "0.25"),
        return_exceptions=True,
    )

    assert [one if isinstance(one, bool) else type(one) for one in done] == [
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

    done = await ledger.settle_all([(charge, list_accounts(charge.call)) for charge in (*charges, charges[0])])

    assert [one if isinstance(one, bool) else type(one) for one in done] == [True, BadOption, True, False]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing("0.3")}
    assert [one.call.id async for one in ledger.list_charges()] == ["a", "b"]
    assert await ledger.settle_all([]) == []


async def test_a_rejected_reservation_leaves_nothing_behind(store: Store) -> None:
    ledger = store.ledger
    done = await asyncio.gather(
        reserve(ledger, make_call("a"), "0.6", total=1),
        reserve(ledger, make_call("b"), "0.6", total=1),
        reserve(ledger, make_call("b"), "0.6", total=1),
        reserve(ledger, make_call("c"), "0.4", total=1),
    )

    assert list(done) == [True, False, False, True]
    assert await ledger.get_balances(["total", "agent ana"], now=NOON) == {
        "total": make_standing(0, 1),
        "agent ana": make_standing(0, 1),
    }
    assert [await ledger.release(id_) for id_ in "abc"] == [True, False, True]
    assert await ledger.get_balances(["total"], now=NOON) == {"total": make_standing(0)}


async def test_very_long_names_stay_distinct(store: Store) -> None:
    """PostgreSQL's index entries have at most 2,700 bytes, and clients choose the names of sessions."""
    ledger = store.ledger
    long = "模" * 5000
    first, second = (make_call(f"{long} {n}", agent=f"{long} {n}", session_id=f"{long} {n}") for n in (1, 2))

    done = await asyncio.gather(
        reserve(ledger, first, "0.6", agent=1),
        reserve(ledger, second, "0.6", agent=1),
        reserve(ledger, structs.replace(first, id="third"), "0.6", agent=1),
    )
    assert list(done) == [True, True, False]
    for one in (first, second):
        assert await settle_one(ledger, make_charge(one, "0.25"), accounts=list_accounts(one))
        assert len([row async for row in ledger.list_charges(agent=one.agent, session_id=one.session_id)]) == 1


async def test_concurrent_reservations_of_one_call_reserve_once(database_url: str) -> None:
    stores = [await open_store(database_url) for _ in range(4)]
    ids = [uuid.uuid4().hex for _ in range(40)]

    async def reserve_all(store: Store) -> Sequence[bool]:
        own = random.sample(ids, len(ids))
        return await asyncio.gather(*(reserve(store.ledger, make_call(id_), "0.01", total=1) for id_ in own))

    done = await asyncio.gather(*map(reserve_all, stores))

    assert all(map(all, done))
    assert await stores[0].ledger.get_balances(["total"], now=NOON) == {"total": make_standing(0, "0.4")}
    for one in stores:
        await one.close()


@pytest.mark.slow
@pytest.mark.process
def test_concurrent_batches_do_not_deadlock(postgres: PostgresServer) -> None:
    """Four processes would deadlock if accounts were locked in any order."""
    url = postgres.new_database()
    load = CallLoad(agent="ana", agent_limit=10_000, session_limit=10_000, concurrency=16)
    crew = LedgerWorkerPool(4)
    sessions = [f"s{number}" for number in range(30)]
    steps = [
        [
            PlannedCall(session_id=random.choice(sessions), ceiling=1, cost=1, end=CallEnd.SETTLED)
            for _ in range(150)
        ]
        for _ in range(4)
    ]

    asyncio.run(create_store(url))
    crew.make_calls(url, load, steps)

    crew.close()
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        found = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert found == (0,)


async def create_store(url: str) -> None:
    await (await open_store(url)).close()


class RecordingExecutor:
    """Executes batches slowly, and records them."""

    def __init__(self) -> None:
        self.together: list[list[str]] = []
        self.error: Exception | None = None

    async def do(self, items: Sequence[str]) -> list[str | Exception]:
        self.together.append(list(items))
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        if "poison" in items:
            raise ValueError("poison")
        return [BadOption(one) if one == "wrong" else one.upper() for one in items]


async def test_items_submitted_during_a_batch_form_the_next_one_and_each_gets_its_result() -> None:
    scribe = RecordingExecutor()
    gathering = BatchExecutor(scribe.do, max_items=3)

    first = asyncio.ensure_future(gathering.submit("a"))
    await asyncio.sleep(0.002)
    rest = await asyncio.gather(*map(gathering.submit, "bcdef"))

    assert [await first, *rest] == list("ABCDEF")
    assert scribe.together == [["a"], ["b", "c", "d"], ["e", "f"]]
    assert await gathering.submit("g") == "G"


async def test_an_error_is_raised_to_the_caller_of_its_item() -> None:
    scribe = RecordingExecutor()
    gathering = BatchExecutor(scribe.do, max_items=9)

    done = await asyncio.gather(*map(gathering.submit, ("a", "wrong", "b")), return_exceptions=True)
    assert [str(one) for one in done] == ["A", "wrong", "B"]
    assert isinstance(done[1], BadOption)

    done = await asyncio.gather(*map(gathering.submit, ("a", "poison", "b")), return_exceptions=True)
    assert [type(one) for one in done] == [str, ValueError, str]

    scribe.error = StoreUnavailable("there", "is gone")
    tries = len(scribe.together)
    done = await asyncio.gather(*map(gathering.submit, ("a", "b")), return_exceptions=True)
    assert [type(one) for one in done] == [StoreUnavailable] * 2
    assert len(scribe.together) == tries + 1  # not each alone, which would take twice as long


async def test_items_of_cancelled_callers_are_still_executed() -> None:
    scribe = RecordingExecutor()
    gathering = BatchExecutor(scribe.do, max_items=9)

    items = [asyncio.ensure_future(gathering.submit(one)) for one in "abc"]
    await asyncio.sleep(0.002)
    items[1].cancel()
    done = await asyncio.gather(*items, return_exceptions=True)

    assert [done[0], done[2]] == ["A", "C"]
    assert isinstance(done[1], asyncio.CancelledError)
    assert scribe.together == [["a", "b", "c"]]


def test_a_batch_executor_works_from_several_event_loops_in_turn() -> None:
    scribe = RecordingExecutor()
    gathering = BatchExecutor(scribe.do, max_items=9)

    async def give_up() -> None:
        asyncio.ensure_future(gathering.submit("a"))  # noqa: RUF006 - the loop ends before it finishes
        await asyncio.sleep(0.001)

    asyncio.run(give_up())
    assert asyncio.run(gathering.submit("b")) == "B"


async def test_a_rejected_reservation_names_the_first_account_over_its_limit(store: Store) -> None:
    found = await store.ledger.reserve(
        make_reservation(CALL, 2, {"total": Decimal(1), "agent ana": Decimal(1)}), now=NOON
    )

    assert found == AccountOverLimit(account="agent ana", limit=Decimal(1), balance=make_standing(0))
