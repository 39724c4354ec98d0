"""Always, on both databases: totals match the ledger and the traces, in whatever order these were stored.

Charges and traces come in any order, singly or in batches, repeatedly, from several processes.
"""

import asyncio
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
from foveate.model import CacheUsage, Comparison, Savings, Usage
from foveate.session.rollups import Totals, TotalsGroup
from foveate.session.traces import CacheMiss, ChargedTrace, Trace
from foveate.store import Store, open_store
from foveate.store.database import Transaction, batch_inserts
from foveate.store.postgres import PostgresTransaction
from foveate.store.repositories.ledger_rows import LEDGER_COLUMNS, SAVINGS_COLUMNS, to_ledger_row
from foveate.store.repositories.traces import TRACE_COLUMNS, to_trace_row
from foveate.store.sqlite import SQLiteTransaction
from tests.contract.test_store_opening import load_dump, run_statements
from tests.support.harness.example_limits import limit_examples
from tests.support.processes.store_workers import run_together
from tests.support.stores.ledger_records import NOON, make_call, settle_one
from tests.support.stores.records import TRACE
from tests.support.stores.templates import ensure_store

HOUR = 3_600.0
StoredRequest = tuple[Charge | None, Trace | None, CacheMiss | None]
"""A request: its bill, its trace, and a break that is found later; at least one of the first two."""


def make_request(
    number: int, hour: int, whose: tuple[str, str, str], size: int, *, has: str, category: Category, status: int
) -> StoredRequest:
    """A request; `has` names what is stored: a charge, its price, a trace, a cache miss, a later one."""
    agent, session_id, model = whose
    at = NOON + hour * HOUR + number  # no two at the same time
    id_ = f"r{number}"
    entry = Charge(
        call=with_changes(
            make_call(id_, agent=agent, session_id=session_id, at=at),
            model=model,
            category=category,
            is_subscription=size % 4 == 1,
        ),
        is_inherited=size % 5 == 1,
        is_possibly_charged=size % 7 == 1 and "price" not in has,
        charge=Decimal(size) / 100 if size % 7 == 1 and "price" not in has else None,
        usage=Usage(
            cache=CacheUsage(uncached=size, read=2 * size, written_5m=3, written_1h=4), output_tokens=5
        ),
        dollars=Decimal(size) / 1_000 if "price" in has else None,
        savings=Savings(
            comparison=Comparison.WOULD_NOT_FIT if size % 3 == 0 else Comparison.SIMULATED,
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
        broke=cache_miss if "broken" in has else None,
    )
    later = replace(cache_miss, lost_tokens=size + 1) if "later" in has else None
    return entry if "bill" in has else None, trace if "trace" in has or "bill" not in has else None, later


STORED_REQUESTS = st.builds(
    make_request,
    st.just(0),
    st.sampled_from([-30, -1, 0, 1]),
    st.tuples(st.sampled_from(["ana", "bo"]), st.sampled_from(["s", "t", ""]), st.sampled_from(["m", "n"])),
    st.integers(0, 9),
    has=st.sampled_from(
        ["bill", "bill price", "bill price trace", "bill trace later", "trace", "trace broken later"]
    ),
    category=st.sampled_from([Category.MAIN, Category.MAIN, Category.COMPACTION]),
    status=st.sampled_from([200, 0, 529]),
)


def with_number(number: int, one: StoredRequest) -> StoredRequest:
    """Return the request with a unique id and time."""
    entry, trace, later = one
    id_ = f"r{number}"
    if entry is not None:
        entry = with_changes(entry, call=with_changes(entry.call, id=id_, at=entry.call.at + number))
    if trace is not None:
        trace = with_changes(trace, id=id_, at=trace.at + number)
    return entry, trace, later


async def store_requests(store: Store, some: Sequence[StoredRequest]) -> None:
    """Store some requests and their charges concurrently."""
    traces = [trace for _, trace, _ in some if trace is not None]
    breaks = [(trace.id, later) for _, trace, later in some if trace is not None and later is not None]
    await asyncio.gather(
        store.traces.save(traces, breaks),
        *(
            settle_one(store.ledger, entry, accounts=list_accounts(entry.call))
            for entry, *_ in some
            if entry is not None
        ),
    )


def sum_up(entries: Iterable[Charge], traced: Iterable[ChargedTrace]) -> Totals:
    """Sum the requests one by one."""
    charges, traces = list(entries), [one.trace for one in traced]
    cache_miss = [trace.broke for trace in traces if trace.broke is not None]
    caches = [entry.usage.cache for entry in charges]
    pico = Decimal("1e-12")

    def dollars(amounts: Iterable[Decimal | None]) -> Decimal:
        return sum((amount.quantize(pico) for amount in amounts if amount is not None), Decimal(0))

    return Totals(
        requests=len(traces),
        failed=sum(trace.status >= 400 for trace in traces),
        added_seconds=sum(round(trace.added_seconds * 1e6) for trace in traces) / 1e6,
        breaks=len(cache_miss),
        lost_tokens=sum(one.lost_tokens for one in cache_miss),
        lost_dollars=dollars(one.lost_dollars for one in cache_miss),
        calls=len(charges),
        unpriced=sum(entry.dollars is None for entry in charges),
        cache=CacheUsage(
            uncached=sum(cache.uncached for cache in caches),
            read=sum(cache.read for cache in caches),
            written_5m=sum(cache.written_5m for cache in caches),
            written_1h=sum(cache.written_1h for cache in caches),
        ),
        output_tokens=sum(entry.usage.output_tokens for entry in charges),
        dollars=dollars(entry.dollars for entry in charges),
        compared=sum(entry.savings.without is not None for entry in charges),
        without=dollars(entry.savings.without for entry in charges),
        saved_by_compaction=dollars(entry.savings.compaction for entry in charges),
        saved_by_context=dollars(entry.savings.context for entry in charges),
        saved_by_breakpoints=dollars(entry.savings.breakpoints for entry in charges),
        saved_by_keep_alive=dollars(entry.savings.keep_alive for entry in charges),
        simulation_error=dollars(entry.savings.simulation_error for entry in charges),
        would_not_fit=sum(entry.savings.comparison is Comparison.WOULD_NOT_FIT for entry in charges),
        would_not_fit_dollars=dollars(
            entry.dollars for entry in charges if entry.savings.comparison is Comparison.WOULD_NOT_FIT
        ),
        inherited=sum(entry.is_inherited for entry in charges),
        inherited_dollars=dollars(entry.dollars for entry in charges if entry.is_inherited),
        subscription=sum(entry.call.is_subscription for entry in charges),
        subscription_dollars=dollars(entry.dollars for entry in charges if entry.call.is_subscription),
        possibly_charged=sum(entry.is_possibly_charged for entry in charges),
        possibly_charged_dollars=dollars(entry.charge for entry in charges if entry.is_possibly_charged),
    )


async def check(store: Store) -> None:
    """Check all totals against the stored rows."""
    entries = [entry async for entry in store.ledger.list_charges()]
    traced = await store.traces.list_traces(limit=10_000)
    kinds: dict[tuple[TotalsGroup, ...], Callable[[str, str, str, float], tuple[str, ...]]] = {
        (): lambda *_: (),
        (TotalsGroup.AGENT, TotalsGroup.CATEGORY): lambda agent, _, category, __: (agent, category),
        (TotalsGroup.HOUR, TotalsGroup.MODEL): lambda _, model, __, at: (f"{at // HOUR}", model),
        (TotalsGroup.DAY,): lambda _, __, ___, at: (f"{at // (24 * HOUR)}",),
    }
    for per, group_of in kinds.items():
        groups: dict[tuple[str, ...], tuple[list[Charge], list[ChargedTrace]]] = defaultdict(lambda: ([], []))
        for entry in entries:
            of = entry.call
            groups[group_of(of.agent, of.model, of.category.value, of.at)][0].append(entry)
        for one in traced:
            groups[group_of(one.trace.agent, one.trace.model, "main", one.trace.at)][1].append(one)
        found = [totals for _, totals in await store.totals.sum_totals(per)]
        assert found == [sum_up(*groups[group]) for group in sorted(groups)]
    await check_sessions(store, entries, traced)


async def check_sessions(store: Store, entries: Sequence[Charge], traced: Sequence[ChargedTrace]) -> None:
    """Check that each session has its own totals, with the model and window of its newest request."""
    ids = {entry.call.session_id for entry in entries} | {one.trace.session_id for one in traced}
    found = {one.session_id: one for one in await store.totals.list_sessions(limit=10_000)}
    assert found.keys() == ids - {""}
    for session_id, one in found.items():
        charges = [entry for entry in entries if entry.call.session_id == session_id]
        traces = [trace for trace in traced if trace.trace.session_id == session_id]
        assert one.totals == sum_up(charges, traces)
        times = [entry.call.at for entry in charges] + [trace.trace.at for trace in traces]
        assert (one.first_at, one.last_at) == (min(times), max(times))
        asked = [(of.trace.at, of.trace.model) for of in traces]
        asked += [(b.call.at, b.call.model) for b in charges if b.call.category is Category.MAIN]
        if asked:
            assert one.model == max(asked)[1]
        if traces:
            newest = max(traces, key=lambda of: of.trace.at).trace
            assert (one.tokens, one.window_tokens) == (newest.tokens, newest.window_tokens)


@pytest.mark.slow
@settings(max_examples=limit_examples(25))
@given(
    requests=st.lists(STORED_REQUESTS, min_size=1, max_size=6),
    order=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=5),
)
def test_totals_always_match_the_stored_rows_in_any_order_with_repetitions(
    requests: list[StoredRequest], order: list[list[int]]
) -> None:
    numbered_requests = [with_number(number, one) for number, one in enumerate(requests)]

    async def run_statements(url: str) -> None:
        async with await open_store(url) as store, await open_store(url) as other:
            for which in order:
                some = [numbered_requests[number % len(numbered_requests)] for number in which]
                await asyncio.gather(store_requests(store, some), store_requests(other, some[::-1]))
            await check(store)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run_statements(ensure_store(Path(folder) / "store.sqlite")))


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
            has="bill price trace" + " broken" * (number % 5 == 0) + " later" * (number % 4 == 0),
            category=categories[number % 3],
            status=529 if number % 11 == 0 else 200,
        ),
    )


def store_range(url: str, first: int, end: int) -> None:
    """Store very many requests in concurrent batches, some of which other processes store too."""

    async def run_statements() -> None:
        async with await open_store(url, wait_seconds=30.0) as store:
            groups = [
                [nth_request(number) for number in range(at, min(at + 8, end))] for at in range(first, end, 8)
            ]
            await asyncio.gather(*(store_requests(store, group[:: 1 if first else -1]) for group in groups))

    asyncio.run(run_statements())


@pytest.mark.slow
@pytest.mark.process
async def test_totals_match_the_stored_rows_with_several_concurrent_processes(database_url: str) -> None:
    async with await open_store(database_url) as store:
        spans = [(0, 120), (60, 180), (0, 180)]
        await asyncio.to_thread(run_together, store_range, [(database_url, *span) for span in spans])

        await check(store)
        ((_, totals),) = await store.totals.sum_totals()
        assert (totals.requests, totals.calls) == (180, 180)


def fill_before_totals(url: str, new_requests: Iterable[StoredRequest]) -> None:
    """Create a store of the version before totals existed, with requests in it."""
    run_statements(url, load_dump("0006", url))
    requests = list(new_requests)
    connection: Any
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        connection = psycopg.connect(url)
    with closing(connection):
        transaction: Transaction = (
            SQLiteTransaction(connection) if url.startswith("sqlite") else PostgresTransaction(connection)
        )
        columns = [name.strip() for name in LEDGER_COLUMNS.split(",")]
        later = (*SAVINGS_COLUMNS.split(", "), "is_inherited", "is_subscription")
        later += ("is_possibly_charged", "charged_picodollars")
        indexes = [at for at, name in enumerate(columns) if name not in later]
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
        await check(store)
        ((_, totals),) = await store.totals.sum_totals()
        assert (totals.requests, totals.calls) == (61, 61)  # with whatever else is in such a store


async def test_overflowing_sums_and_unusual_names_do_not_prevent_the_migration(
    bare_database_url: str,
) -> None:
    entry, trace, _ = nth_request(0)
    assert entry is not None
    assert trace is not None
    long = "".join(map(chr, range(0x1F300, 0x1F300 + 2_000)))
    cache_miss = CacheMiss(cause="\0", where="\\u0000" + long, lost_tokens=2**62, lost_dollars=None)
    large = Usage(cache=CacheUsage(read=2**62), output_tokens=2**62)
    costs = with_changes(entry, usage=large, dollars=MAX_DOLLARS, savings=Savings(breakpoints=-MAX_DOLLARS))
    numbered_requests: list[StoredRequest] = []
    for number, at in enumerate((-1.0, 1e18, NOON)):
        of = with_changes(entry.call, id=f"{number}", agent=long, model=long, session_id=long * (number // 2))
        odd = with_changes(trace, id=f"{number}", at=at, broke=cache_miss, model="\0", session_id="odd")
        numbered_requests.append((with_changes(costs, call=of), odd, None))
    fill_before_totals(bare_database_url, numbered_requests)

    async with await open_store(bare_database_url) as store:
        ((_, totals),) = await store.totals.sum_totals()
        assert (totals.calls, totals.requests, totals.breaks) == (4, 4, 4)
        assert totals.compared == 0  # recorded before calls were compared
        assert totals.dollars > MAX_DOLLARS
        large_ones = dict(await store.totals.sum_totals([TotalsGroup.AGENT]))
        assert large_ones[long[:250],].dollars == MAX_DOLLARS
        assert large_ones[long[:250],].cache.read == large_ones[trace.agent,].lost_tokens == 2**62 - 1
        days = [day for (day,), _ in await store.totals.sum_totals([TotalsGroup.DAY])]
        assert (days[0], days[-1]) == ("1970-01-01", "9999-12-31")
        odd_session = await store.totals.get_session("odd")
        assert odd_session is not None
        assert odd_session.totals.requests == 3
