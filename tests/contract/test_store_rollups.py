"""Totals of requests and charges by hour and session, on both databases."""

from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace as with_changes

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category, Charge
from foveate.cost.money import MAX_DOLLARS
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage
from foveate.session.rollups import RollupStore, SessionOrder, SessionTotals, Totals, TotalsGroup
from foveate.session.traces import CacheMiss, Trace
from foveate.store import Store, open_store
from tests.support.stores.ledger_records import CALL, CHARGE, NOON, make_call, make_charge, settle_one
from tests.support.stores.records import COMPACTED_MESSAGES, COMPACTION, TRACE

HOUR, DAY = 3_600.0, 86_400.0
LONG = "".join(map(chr, range(0x1F300, 0x1F300 + 2_000)))
CACHE_MISS = CacheMiss(cause="a tool changed", where="tools[2]", lost_tokens=9, lost_dollars=Decimal("0.5"))


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


@pytest.fixture
def rollups(store: Store) -> RollupStore:
    """The type checker verifies that the store implements the protocol."""
    return store.totals


def make_trace(id_: str, at: float = NOON, *, session_id: str = "s", **changes: object) -> Trace:
    return with_changes(TRACE, id=id_, at=at, session_id=session_id, **{"cache_miss": None, **changes})


async def record_charges(store: Store, *charges: Charge) -> None:
    for charge in charges:
        await settle_one(store.ledger, charge, accounts=list_accounts(charge.call))


async def sum_all(store: Store, agent: str | None = None) -> Totals:
    ((group, totals),) = await store.totals.sum_totals(agent=agent)
    assert group == ()
    return totals


async def count_by_group(
    rollups: RollupStore, *per: TotalsGroup, **conditions: Any
) -> list[tuple[tuple[str, ...], int]]:
    """Count the requests by group."""
    return [(group, totals.requests) for group, totals in await rollups.sum_totals(per, **conditions)]


async def test_an_empty_store_has_zero_totals(rollups: RollupStore) -> None:
    assert await rollups.sum_totals() == await rollups.sum_totals(since=NOON, until=NOON) == [((), Totals())]
    assert await rollups.sum_totals([TotalsGroup.DAY]) == []
    assert [await rollups.list_sessions(limit=9), await rollups.list_agents()] == [[], []]
    assert await rollups.count_sessions() == 0
    assert await rollups.get_session("s") is None


async def test_totals_include_every_number_of_a_request_and_its_charge(store: Store) -> None:
    await record_charges(store, CHARGE)
    await store.traces.save([with_changes(TRACE, at=NOON + 1)])

    totals = Totals(
        requests=1,
        added_seconds=0.0021,
        cache_misses=1,
        lost_tokens=3_000,
        lost_dollars=Decimal("0.0123"),
        calls=1,
        cache=CHARGE.usage.cache,
        output_tokens=900,
        dollars=Decimal("0.061234567891"),
        compared=1,
        without=Decimal("0.214"),
        saved_by_breakpoints=Decimal("0.153"),
        saved_by_compaction=Decimal("-0.000000000001"),
        simulation_error=Decimal("0.00023456789"),
    )
    assert await sum_all(store) == totals
    assert totals.hit_ratio == pytest.approx(34_000 / 34_650)
    assert await store.totals.get_session("s") == SessionTotals(
        session_id="s",
        agent="ana",
        model="claude-opus-5-5",
        first_at=NOON,
        last_at=NOON + 1,
        tokens=34_650,
        window_tokens=200_000,
        totals=totals,
    )


async def test_what_is_saved_twice_is_added_once(store: Store) -> None:
    for _ in range(2):
        await record_charges(store, CHARGE, with_changes(CHARGE, dollars=Decimal(9)))
        await store.traces.save(
            [make_trace("r"), make_trace("r", status=529)], [("r", CACHE_MISS), ("r", CACHE_MISS)]
        )
        await store.traces.save(
            [make_trace("r")], [("r", replace(CACHE_MISS, lost_tokens=1)), ("never", CACHE_MISS)]
        )

    totals = await sum_all(store)
    assert (totals.calls, totals.dollars) == (1, CHARGE.dollars)
    assert (totals.requests, totals.failed) == (1, 0)
    assert (totals.cache_misses, totals.lost_tokens, totals.lost_dollars) == (1, 9, Decimal("0.5"))
    (session,) = await store.totals.list_sessions(limit=9)
    assert session.totals == totals


async def test_a_charge_without_a_price_is_counted_and_adds_no_money(store: Store) -> None:
    charged = with_changes(make_charge(make_call("a"), None), charge=Decimal(7))
    await record_charges(store, charged, make_charge(make_call("b"), 2))

    totals = await sum_all(store)
    assert (totals.calls, totals.unpriced, totals.dollars) == (2, 1, Decimal(2))
    assert totals.cache == CacheUsage(uncached=20)


async def test_provider_errors_count_as_failures_and_client_disconnects_do_not(store: Store) -> None:
    statuses = (200, 0, 400, 529, 301)
    await store.traces.save([make_trace(f"{status}", status=status) for status in statuses])

    totals = await sum_all(store)
    assert (totals.requests, totals.failed) == (5, 2)


async def test_totals_are_grouped_by_hour_day_agent_model_and_category(store: Store) -> None:
    await store.traces.save(
        [
            make_trace("a", NOON),
            make_trace("b", NOON + HOUR - 0.001, agent="bo"),
            make_trace("c", NOON + HOUR, model="m"),
            make_trace("d", NOON + DAY),
        ]
    )
    await record_charges(store, make_charge(with_changes(CALL, category=Category.PING, model="p"), 1))
    rollups = store.totals

    assert await count_by_group(rollups, TotalsGroup.HOUR) == [
        (("2026-11-15T12",), 2),
        (("2026-11-15T13",), 1),
        (("2026-11-16T12",), 1),
    ]
    assert await count_by_group(rollups, TotalsGroup.DAY) == [(("2026-11-15",), 3), (("2026-11-16",), 1)]
    assert await count_by_group(rollups, TotalsGroup.AGENT) == [(("ana",), 3), (("bo",), 1)]
    assert await count_by_group(rollups, TotalsGroup.MODEL) == [
        (("claude-opus-5-5",), 3),
        (("m",), 1),
        (("p",), 0),
    ]
    assert await count_by_group(rollups, TotalsGroup.CATEGORY) == [(("main",), 4), (("ping",), 0)]
    assert await count_by_group(rollups, TotalsGroup.DAY, TotalsGroup.AGENT, agent="bo") == [
        (("2026-11-15", "bo"), 1)
    ]
    assert await count_by_group(rollups, agent="never") == [((), 0)]
    assert await rollups.list_agents() == ["ana", "bo"]


@pytest.mark.parametrize("per", [(), (TotalsGroup.AGENT,), (TotalsGroup.DAY,), (TotalsGroup.HOUR,)])
async def test_periods_cover_whole_hours_in_any_grouping(store: Store, per: tuple[TotalsGroup, ...]) -> None:
    midnight = NOON - DAY / 2
    hours = range(-30, 60, 5)
    await store.traces.save([make_trace(f"{hour}", midnight + hour * HOUR + 1) for hour in hours])

    for first, end in [(-30, 60), (0, 24), (-7, 31), (1, 23), (10, 48), (0, 48), (-24, 0), (5, 6), (20, 20)]:
        expected = sum(first <= hour < end for hour in hours)
        since, until = midnight + first * HOUR, midnight + end * HOUR
        assert sum(n for _, n in await count_by_group(store.totals, *per, since=since, until=until)) == expected
        within = await count_by_group(store.totals, *per, since=since + 1800, until=until - 1800)
        assert sum(n for _, n in within) == expected
        assert sum(n for _, n in await count_by_group(store.totals, *per, since=since)) == sum(
            h >= first for h in hours
        )
        assert sum(n for _, n in await count_by_group(store.totals, *per, until=until)) == sum(
            h < end for h in hours
        )


async def test_a_late_charge_is_added_to_the_hour_of_its_call(store: Store) -> None:
    await record_charges(
        store, make_charge(make_call("now"), 1), make_charge(make_call("late", at=NOON - DAY), 2)
    )

    by_day = await store.totals.sum_totals([TotalsGroup.DAY])
    assert [(group, totals.dollars) for group, totals in by_day] == [
        (("2026-11-14",), Decimal(2)),
        (("2026-11-15",), Decimal(1)),
    ]
    (session,) = await store.totals.list_sessions(limit=9)
    assert (session.first_at, session.last_at) == (NOON - DAY, NOON)


async def test_model_and_window_come_from_the_newest_request_in_any_order_of_writes(store: Store) -> None:
    new = make_trace("new", NOON + 9, tokens=900, window_tokens=None, model="new")
    old = make_trace("old", NOON, tokens=100, model="old")
    await store.traces.save([new])
    await store.traces.save([old])
    await store.traces.save([with_changes(old, session_id="t"), with_changes(new, id="n", session_id="t")])
    await record_charges(store, make_charge(with_changes(CALL, model="older", at=NOON - 1), 1))
    await record_charges(
        store,
        make_charge(with_changes(CALL, id="f", model="small", at=NOON + 99, category=Category.COMPACTION), 1),
    )

    first, second = await store.totals.list_sessions(limit=9)
    assert (first.model, first.tokens, first.window_tokens, first.last_at) == ("new", 900, None, NOON + 99)
    assert (second.session_id, second.model, second.tokens) == ("t", "new", 900)


async def test_a_charge_alone_creates_session_totals_and_one_without_a_session_does_not(store: Store) -> None:
    await record_charges(
        store,
        make_charge(make_call("a", session_id="charged"), 1),
        make_charge(make_call("b", session_id=""), 2),
    )
    await store.traces.save([make_trace("r", session_id="")])

    (session,) = await store.totals.list_sessions(limit=9)
    assert (session.session_id, session.tokens, session.model) == ("charged", None, CALL.model)
    totals = await sum_all(store)
    assert (totals.calls, totals.requests) == (2, 1)


async def test_sessions_are_paged_newest_or_most_expensive_first_and_filtered(store: Store) -> None:
    for number, dollars in enumerate((3, 1, 2, 2)):
        call = make_call(
            f"{number}", session_id=f"s{number}", at=NOON + number, agent="ana" if number else "bo"
        )
        await record_charges(store, make_charge(call, dollars))
    rollups = store.totals

    async def ids(limit: int = 9, **conditions: Any) -> list[str]:
        return [session.session_id for session in await rollups.list_sessions(limit=limit, **conditions)]

    assert await ids() == ["s3", "s2", "s1", "s0"]
    assert await ids(order=SessionOrder.DEAREST) == ["s0", "s3", "s2", "s1"]
    for order in SessionOrder:
        paged: list[SessionTotals] = []
        while page := await rollups.list_sessions(limit=1, order=order, after=paged[-1] if paged else None):
            paged += page
        assert [session.session_id for session in paged] == await ids(order=order)
    assert await ids(agent="ana", order=SessionOrder.DEAREST) == ["s3", "s2", "s1"]
    assert await ids(since=NOON + 2) == ["s3", "s2"]
    assert await ids(id_prefix="s1") == ["s1"]
    assert await ids(id_prefix="%") == await ids(agent="never") == []
    assert [
        await rollups.count_sessions(),
        await rollups.count_sessions(agent="ana"),
        await rollups.count_sessions(since=NOON + 2),
    ] == [4, 3, 2]
    assert await rollups.count_sessions(agent="ana", since=NOON + 2, id_prefix="s3") == 1


async def test_the_change_token_changes_when_something_is_added(store: Store) -> None:
    rollups = store.totals
    change_tokens = [await rollups.get_change_token()]
    session_tokens = [await rollups.get_change_token("s")]

    async def check_changed(*, is_global: bool = True) -> None:
        change_tokens.append(await rollups.get_change_token())
        session_tokens.append(await rollups.get_change_token("s"))
        assert (change_tokens[-1] != change_tokens[-2]) == is_global
        assert session_tokens[-1] != session_tokens[-2]

    await record_charges(store, CHARGE)
    await check_changed()
    await store.traces.save([make_trace("r")])
    await check_changed()
    await store.traces.save([], [("r", CACHE_MISS)])
    await check_changed()
    await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=None)
    await check_changed(is_global=False)
    await store.compactions.undo(COMPACTION.id, now=NOON)
    await check_changed(is_global=False)

    await record_charges(store, CHARGE, make_charge(make_call("x", session_id="t"), 1))
    assert await rollups.get_change_token("s") == session_tokens[-1]
    assert await rollups.get_change_token() != change_tokens[-1]


async def test_planned_rewrites_are_counted_once_and_separately_from_cache_misses(store: Store) -> None:
    planned = replace(CACHE_MISS, cause="compaction", is_planned=True)
    await store.traces.save([make_trace("a", NOON, cache_miss=planned), make_trace("b", NOON + 1)])
    for _ in range(2):
        await store.traces.save([], [("b", planned)])

    totals = await sum_all(store)
    assert (totals.planned_rewrites, totals.rewritten_tokens) == (2, 2 * CACHE_MISS.lost_tokens)
    assert (totals.cache_misses, totals.lost_tokens, totals.lost_dollars) == (0, 0, Decimal(0))


async def test_calls_that_would_not_fit_are_counted_separately(store: Store) -> None:
    await record_charges(
        store, with_changes(CHARGE, savings=Savings(comparison=ComparisonOutcome.WOULD_NOT_FIT))
    )

    totals = await sum_all(store)
    assert (totals.would_not_fit, totals.would_not_fit_dollars) == (1, CHARGE.dollars)
    assert (totals.compared, totals.without, totals.saved) == (0, Decimal(0), Decimal(0))


async def test_sums_are_clamped_to_the_largest_storable_value(store: Store) -> None:
    max_charge = with_changes(
        CHARGE,
        usage=Usage(cache=CacheUsage(read=2**62), output_tokens=2**62),
        dollars=MAX_DOLLARS,
        savings=Savings(breakpoints=MAX_DOLLARS, compaction=-MAX_DOLLARS),
    )
    max_miss = replace(CACHE_MISS, lost_tokens=2**62, lost_dollars=MAX_DOLLARS)
    for number in range(3):
        at = NOON + number % 2 * HOUR
        await record_charges(store, with_changes(max_charge, call=make_call(f"{number}", at=at)))
        await store.traces.save([make_trace(f"{number}", at, cache_miss=max_miss)])

    hours = [totals for _, totals in await store.totals.sum_totals([TotalsGroup.HOUR])]
    assert [totals.dollars for totals in hours] == [MAX_DOLLARS] * 2
    (session,) = await store.totals.list_sessions(limit=9)
    assert session.totals.saved_by_compaction == -MAX_DOLLARS
    assert session.totals.lost_tokens == session.totals.cache.read == 2**62 - 1
    two_hours = (await store.totals.sum_totals([TotalsGroup.AGENT], since=NOON, until=NOON + 2 * HOUR))[0][1]
    assert (two_hours.dollars, two_hours.saved_by_compaction) == (2 * MAX_DOLLARS, -2 * MAX_DOLLARS)


async def test_unusual_times_and_names_lose_nothing(store: Store) -> None:
    await store.traces.save(
        [
            make_trace("early", -5.0, session_id="\0" * 3),
            make_trace("late", 1e18, session_id="\N{SNOWMAN}" * 900, model="m" * 9_999, agent="\ud83d"),
            make_trace("long", session_id=LONG, model=LONG, agent=LONG),
            make_trace(
                "odd", added_seconds=float("nan"), cache_miss=replace(CACHE_MISS, lost_dollars=Decimal("NaN"))
            ),
        ]
    )

    await record_charges(store, make_charge(make_call("long", agent=LONG, session_id=LONG), 1))

    assert (await sum_all(store)).requests == 4
    assert (await sum_all(store, LONG)).dollars == 1
    sessions = await store.totals.list_sessions(limit=9)
    assert len(sessions) == 4
    for session in sessions:
        assert await store.totals.get_session(session.session_id) == session
        assert session in await store.totals.list_sessions(limit=9, agent=session.agent)
    late = await store.totals.get_session("\N{SNOWMAN}" * 900)
    assert late == sessions[0]
    assert [group for (group,), _ in await store.totals.sum_totals([TotalsGroup.DAY])] == [
        "1970-01-01",
        "2026-11-15",
        "9999-12-31",
    ]
    assert await store.totals.list_sessions(limit=9, after=late) == sessions[1:]
