"""Always, on both databases: totals match the ledger and the traces, in whatever order these were stored.

Charges and traces come in any order, singly or in batches, repeatedly, from several processes.
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_changes

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category, Charge
from foveate.cost.money import MAX_DOLLARS
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage
from foveate.session.rollups import TotalsGroup
from foveate.session.traces import CacheMiss, Trace
from foveate.store import Store, open_store
from foveate.store.database import Transaction, batch_inserts
from foveate.store.postgres import PostgresTransaction
from foveate.store.repositories.ledger_rows import LEDGER_COLUMNS, SAVINGS_COLUMNS, to_ledger_row
from foveate.store.repositories.traces import TRACE_COLUMNS, to_trace_row
from foveate.store.sqlite import SQLiteTransaction
from tests.support.harness.example_limits import limit_examples
from tests.support.oracles.store_totals import check_totals
from tests.support.processes.store_workers import run_together
from tests.support.stores.database_dumps import load_dump, run_statements
from tests.support.stores.ledger_records import NOON, make_call, settle_one
from tests.support.stores.records import TRACE
from tests.support.stores.templates import ensure_store

HOUR = 3_600.0
StoredRequest = tuple[Charge | None, Trace | None, CacheMiss | None]
"""A request: its charge, its trace, and a cache miss found later; at least one of the first two."""


def make_request(
    number: int,
    hour: int,
    names: tuple[str, str, str],
    size: int,
    *,
    contents: str,
    category: Category,
    status: int,
) -> StoredRequest:
    """Make a request; `contents` lists its parts: a charge, its price, a trace, a cache miss, a later one."""
    agent, session_id, model = names
    at = NOON + hour * HOUR + number  # no two at the same time
    id_ = f"r{number}"
    charge = Charge(
        call=with_changes(
            make_call(id_, agent=agent, session_id=session_id, at=at),
            model=model,
            category=category,
            is_subscription=size % 4 == 1,
        ),
        is_inherited=size % 5 == 1,
        is_possibly_charged=size % 7 == 1 and "price" not in contents,
        charge=Decimal(size) / 100 if size % 7 == 1 and "price" not in contents else None,
        usage=Usage(
            cache=CacheUsage(uncached=size, read=2 * size, written_5m=3, written_1h=4), output_tokens=5
        ),
        dollars=Decimal(size) / 1_000 if "price" in contents else None,
        savings=Savings(
            comparison=ComparisonOutcome.WOULD_NOT_FIT if size % 3 == 0 else ComparisonOutcome.SIMULATED,
            without=Decimal(size) / 9 if size % 3 else None,
            breakpoints=Decimal(-size) / 7 if size % 2 else None,
            compaction=Decimal(size),
        ),
    )
    cache_miss = CacheMiss(
        cause="c", where="w", lost_tokens=size, lost_dollars=Decimal(size) / 3 if size else None
    )
    trace = with_changes(
        TRACE,
        id=id_,
        agent=agent,
        session_id=session_id,
        model=model,
        at=at + 0.25,
        status=status,
        tokens=size if size % 3 else None,
        added_seconds=size / 1_000,
        cache_miss=cache_miss if "broken" in contents else None,
    )
    later_miss = replace(cache_miss, lost_tokens=size + 1) if "later" in contents else None
    return (
        charge if "charge" in contents else None,
        trace if "trace" in contents or "charge" not in contents else None,
        later_miss,
    )


STORED_REQUESTS = st.builds(
    make_request,
    st.just(0),
    st.sampled_from([-30, -1, 0, 1]),
    st.tuples(st.sampled_from(["ana", "bo"]), st.sampled_from(["s", "t", ""]), st.sampled_from(["m", "n"])),
    st.integers(0, 9),
    contents=st.sampled_from(
        ["charge", "charge price", "charge price trace", "charge trace later", "trace", "trace broken later"]
    ),
    category=st.sampled_from([Category.MAIN, Category.MAIN, Category.COMPACTION]),
    status=st.sampled_from([200, 0, 529]),
)


def with_number(number: int, request: StoredRequest) -> StoredRequest:
    """Return the request with a unique id and time."""
    charge, trace, later_miss = request
    id_ = f"r{number}"
    if charge is not None:
        charge = with_changes(charge, call=with_changes(charge.call, id=id_, at=charge.call.at + number))
    if trace is not None:
        trace = with_changes(trace, id=id_, at=trace.at + number)
    return charge, trace, later_miss


async def store_requests(store: Store, requests: Sequence[StoredRequest]) -> None:
    """Store some requests and their charges concurrently."""
    traces = [trace for _, trace, _ in requests if trace is not None]
    cache_misses = [
        (trace.id, later_miss)
        for _, trace, later_miss in requests
        if trace is not None and later_miss is not None
    ]
    await asyncio.gather(
        store.traces.save(traces, cache_misses),
        *(
            settle_one(store.ledger, charge, accounts=list_accounts(charge.call))
            for charge, *_ in requests
            if charge is not None
        ),
    )


@pytest.mark.slow
@settings(max_examples=limit_examples(25))
@given(
    requests=st.lists(STORED_REQUESTS, min_size=1, max_size=6),
    order=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=5),
)
def test_totals_always_match_the_stored_rows_in_any_order_with_repetitions(
    requests: list[StoredRequest], order: list[list[int]]
) -> None:
    numbered_requests = [with_number(number, request) for number, request in enumerate(requests)]

    async def store_and_check(url: str) -> None:
        async with await open_store(url) as store, await open_store(url) as other:
            for indexes in order:
                batch = [numbered_requests[number % len(numbered_requests)] for number in indexes]
                await asyncio.gather(store_requests(store, batch), store_requests(other, batch[::-1]))
            await check_totals(store)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(store_and_check(ensure_store(Path(folder) / "store.sqlite")))


def nth_request(number: int) -> StoredRequest:
    """Return one of very many requests of a few sessions."""
    categories = (Category.MAIN, Category.MAIN, Category.PING)
    return with_number(
        number,
        make_request(
            0,
            number % 3 - 30,
            ("ab"[number % 2], f"s{number % 7}", "mn"[number % 2]),
            number % 10,
            contents="charge price trace" + " broken" * (number % 5 == 0) + " later" * (number % 4 == 0),
            category=categories[number % 3],
            status=529 if number % 11 == 0 else 200,
        ),
    )


def store_range(url: str, first: int, end: int) -> None:
    """Store very many requests in concurrent batches, some of which other processes store too."""

    async def store_all() -> None:
        async with await open_store(url, wait_seconds=30.0) as store:
            groups = [
                [nth_request(number) for number in range(at, min(at + 8, end))] for at in range(first, end, 8)
            ]
            await asyncio.gather(*(store_requests(store, group[:: 1 if first else -1]) for group in groups))

    asyncio.run(store_all())


@pytest.mark.slow
@pytest.mark.process
async def test_totals_match_the_stored_rows_with_several_concurrent_processes(database_url: str) -> None:
    async with await open_store(database_url) as store:
        spans = [(0, 120), (60, 180), (0, 180)]
        await asyncio.to_thread(run_together, store_range, [(database_url, *span) for span in spans])

        await check_totals(store)
        ((_, totals),) = await store.totals.sum_totals()
        assert (totals.requests, totals.calls) == (180, 180)


def fill_before_totals(url: str, given_requests: Iterable[StoredRequest]) -> None:
    """Create a store of the version before totals existed, with requests in it."""
    run_statements(url, load_dump("0006", url))
    requests = list(given_requests)
    is_sqlite = url.startswith("sqlite")
    connection: Any = (sqlite3 if is_sqlite else psycopg).connect(url.removeprefix("sqlite:///"))
    with closing(connection):
        transaction: Transaction = (SQLiteTransaction if is_sqlite else PostgresTransaction)(connection)
        columns = [name.strip() for name in LEDGER_COLUMNS.split(",")]
        later_miss = (*SAVINGS_COLUMNS.split(", "), "is_inherited", "is_subscription")
        later_miss += ("is_possibly_charged", "charged_picodollars")
        indexes = [at for at, name in enumerate(columns) if name not in later_miss]
        names = ", ".join(columns[at] for at in indexes)
        add_entries = f"INSERT INTO ledger_v1 (day, {names}) VALUES {{}}"
        charge_rows = [to_ledger_row(entry) for entry, *_ in requests if entry]
        for statement, values in batch_inserts(
            add_entries, [(row[0], *(row[1 + at] for at in indexes)) for row in charge_rows]
        ):
            transaction.execute(statement, values)
        add_traces = f"INSERT INTO traces_v1 ({TRACE_COLUMNS}) VALUES {{}}"
        for statement, values in batch_inserts(
            add_traces, [to_trace_row(trace) for _, trace, _ in requests if trace]
        ):
            transaction.execute(statement, values)
        connection.commit()


async def test_the_migration_computes_the_same_totals_for_existing_rows(
    bare_database_url: str,
) -> None:
    numbered_requests = [nth_request(number) for number in range(60)]
    fill_before_totals(bare_database_url, numbered_requests)

    async with await open_store(bare_database_url) as store:
        await check_totals(store)
        ((_, totals),) = await store.totals.sum_totals()
        assert (totals.requests, totals.calls) == (61, 61)  # with whatever else is in such a store


async def test_overflowing_sums_and_unusual_names_do_not_prevent_the_migration(
    bare_database_url: str,
) -> None:
    charge, trace, _ = nth_request(0)
    assert charge is not None
    assert trace is not None
    long_name = "".join(map(chr, range(0x1F300, 0x1F300 + 2_000)))
    cache_miss = CacheMiss(cause="\0", where="\\u0000" + long_name, lost_tokens=2**62, lost_dollars=None)
    large_usage = Usage(cache=CacheUsage(read=2**62), output_tokens=2**62)
    expensive = with_changes(
        charge, usage=large_usage, dollars=MAX_DOLLARS, savings=Savings(breakpoints=-MAX_DOLLARS)
    )
    numbered_requests: list[StoredRequest] = []
    for number, at in enumerate((-1.0, 1e18, NOON)):
        call = with_changes(
            charge.call, id=f"{number}", agent=long_name, model=long_name, session_id=long_name * (number // 2)
        )
        unusual_trace = with_changes(
            trace, id=f"{number}", at=at, cache_miss=cache_miss, model="\0", session_id="odd"
        )
        numbered_requests.append((with_changes(expensive, call=call), unusual_trace, None))
    fill_before_totals(bare_database_url, numbered_requests)

    async with await open_store(bare_database_url) as store:
        ((_, totals),) = await store.totals.sum_totals()
        assert (totals.calls, totals.requests, totals.cache_misses) == (4, 4, 4)
        assert totals.compared == 0  # recorded before calls were compared
        assert totals.dollars > MAX_DOLLARS
        by_agent = dict(await store.totals.sum_totals([TotalsGroup.AGENT]))
        assert by_agent[long_name[:250],].dollars == MAX_DOLLARS
        assert by_agent[long_name[:250],].cache.read == by_agent[trace.agent,].lost_tokens == 2**62 - 1
        days = [day for (day,), _ in await store.totals.sum_totals([TotalsGroup.DAY])]
        assert (days[0], days[-1]) == ("1970-01-01", "9999-12-31")
        unusual_session = await store.totals.get_session("odd")
        assert unusual_session is not None
        assert unusual_session.totals.requests == 3
