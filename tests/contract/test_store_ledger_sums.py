"""Sums and lists of charges, exact to the picodollar, on both databases."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.cost.caps import list_accounts, utc_day
from foveate.cost.ledger import Call, Category, Charge, ChargeTotal, GroupBy, Ledger
from foveate.cost.savings import add_savings
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage
from foveate.store import Store, open_store
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.ledger_records import CHARGE, NOON, make_call, make_charge, settle_one

DAY = 86_400.0


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


async def store_charges(ledger: Ledger, *charges: Charge) -> None:
    for charge in charges:
        assert await settle_one(ledger, charge, accounts=list_accounts(charge.call))


async def list_ids(ledger: Ledger, **conditions: Any) -> list[str]:
    return [charge.call.id async for charge in ledger.list_charges(**conditions)]


async def test_a_charge_is_loaded_as_it_was_settled(store: Store) -> None:
    await store_charges(store.ledger, CHARGE)

    assert [charge async for charge in store.ledger.list_charges()] == [CHARGE]


async def test_a_sum_includes_every_kind_of_token_and_amount(store: Store) -> None:
    await store_charges(store.ledger, CHARGE, replace(CHARGE, call=make_call("call-2"), is_partial=False))

    assert await store.ledger.sum_charges([GroupBy.AGENT, GroupBy.MODEL]) == [
        ChargeTotal(
            group=("ana", "claude-opus-5-5"),
            calls=2,
            unknown_calls=0,
            uncached=24,
            read=68_000,
            written_5m=1120,
            written_1h=156,
            output_tokens=1800,
            reasoning_tokens=200,
            dollars=Decimal("0.122469135782"),
            estimated_dollars=Decimal("0.4"),
            savings=add_savings([CHARGE.savings, CHARGE.savings]),
            partial_calls=1,
            compared_calls=2,
        )
    ]


async def test_the_sum_of_no_calls_is_zero_and_has_no_groups(store: Store) -> None:
    (empty,) = await store.ledger.sum_charges([])

    assert empty == sum_in_python((), [])
    assert empty.savings.without is None
    assert await store.ledger.sum_charges([GroupBy.AGENT]) == []


async def test_calls_of_unknown_price_are_counted_separately_and_never_as_zero(store: Store) -> None:
    charges = [
        make_charge(make_call("a"), "0.2"),
        make_charge(make_call("b"), None),
        make_charge(make_call("c"), None),
        make_charge(make_call("d"), 0),
    ]
    await store_charges(store.ledger, *charges)

    (row,) = await store.ledger.sum_charges([GroupBy.AGENT])

    assert (row.calls, row.unknown_calls, row.dollars) == (4, 2, Decimal("0.2"))


async def test_sums_are_sorted_by_cost(store: Store) -> None:
    for number, dollars in enumerate(("0.1", "0.3", "0.2", "0.2")):
        await store_charges(store.ledger, make_charge(make_call(f"{number}", session_id=f"s{number}"), dollars))

    assert [row.group[0] for row in await store.ledger.sum_charges([GroupBy.SESSION])] == [
        "s1",
        "s2",
        "s3",
        "s0",
    ]


async def test_since_is_inclusive_and_until_is_exclusive(store: Store) -> None:
    for number in range(4):
        await store_charges(store.ledger, make_charge(make_call(f"{number}", at=NOON + number), number))

    assert await list_ids(store.ledger, since=NOON + 1, until=NOON + 3) == ["1", "2"]
    (row,) = await store.ledger.sum_charges([], since=NOON + 1, until=NOON + 3)
    assert row.dollars == 3


async def test_days_start_at_midnight_utc(store: Store) -> None:
    midnight = NOON + DAY / 2
    for number, at in enumerate((midnight - 1e-3, midnight, midnight + DAY)):
        await store_charges(store.ledger, make_charge(make_call(f"{number}", at=at), 10 - number))

    assert [row.group for row in await store.ledger.sum_charges([GroupBy.DAY])] == [
        ("2026-11-15",),
        ("2026-11-16",),
        ("2026-11-17",),
    ]


async def test_charges_are_listed_by_time_over_many_pages_even_at_equal_times(store: Store) -> None:
    calls = [make_call(f"{number:05}", at=NOON + number // 300) for number in range(1100)]
    await asyncio.gather(*(store_charges(store.ledger, make_charge(call, 1)) for call in reversed(calls)))

    assert await list_ids(store.ledger) == [call.id for call in calls]


async def test_a_list_read_during_writes_yields_each_charge_once(store: Store) -> None:
    await asyncio.gather(
        *(store_charges(store.ledger, make_charge(make_call(f"{n:05}", at=NOON + n), 1)) for n in range(1050))
    )
    ids: list[str] = []

    async for charge in store.ledger.list_charges():
        if len(ids) % 400 == 0:
            early, late = uuid.uuid4().hex, uuid.uuid4().hex
            await store_charges(
                store.ledger,
                make_charge(make_call(early, at=NOON - 1), 1),
                make_charge(make_call(late, at=NOON + 9e6), 1),
            )
        ids.append(charge.call.id)

    assert len(set(ids)) == len(ids)
    assert {f"{n:05}" for n in range(1050)} <= set(ids)


MONEY = st.none() | st.decimals(0, 4_000_000, places=12)
SIGNED = st.none() | st.decimals(-4_000_000, 4_000_000, places=12)
TOKENS = st.integers(0, 2**53)
CALLS = st.builds(
    Call,
    id=st.builds(lambda: uuid.uuid4().hex),
    agent=st.sampled_from(["ana", "bob"]),
    session_id=st.sampled_from(["s1", "s2"]),
    provider=st.just("openai"),
    model=st.sampled_from(["gpt-5.6", "ünïcode 模型"]),
    category=st.sampled_from(Category),
    at=st.floats(0, 4 * DAY),
    is_subscription=st.booleans(),
)
CHARGES = st.builds(
    Charge,
    call=CALLS,
    usage=st.builds(
        Usage,
        cache=st.builds(CacheUsage, uncached=TOKENS, read=TOKENS, written_5m=TOKENS, written_1h=TOKENS),
        output_tokens=TOKENS,
        reasoning_tokens=TOKENS,
        reported_dollars=st.none() | st.decimals(allow_nan=False, allow_infinity=False),
        tier=st.sampled_from(["", "batch"]),
        raw=st.binary(max_size=20),
    ),
    dollars=MONEY,
    estimated_input_tokens=st.none() | TOKENS,
    estimated_dollars=MONEY,
    savings=st.builds(
        Savings,
        comparison=st.sampled_from(ComparisonOutcome),
        **dict.fromkeys(
            ("without", "compaction", "context", "breakpoints", "keep_alive", "simulation_error"), SIGNED
        ),
    ),
    is_partial=st.booleans(),
    is_inherited=st.booleans(),
    is_possibly_charged=st.booleans(),
    charge=st.none() | st.decimals(Decimal("0.000000000001"), 4_000_000, places=12),
).map(lambda charge: charge if charge.dollars is None else replace(charge, charge=None))


def group_value(by: GroupBy, call: Call) -> str:
    match by:
        case GroupBy.AGENT:
            return call.agent
        case GroupBy.SESSION:
            return call.session_id
        case GroupBy.MODEL:
            return call.model
        case GroupBy.CATEGORY:
            return call.category.value
        case GroupBy.DAY:
            return utc_day(call.at)


def sum_known(amounts: Sequence[Decimal | None]) -> Decimal | None:
    return (
        sum((amount for amount in amounts if amount is not None), Decimal(0))
        if any(amounts) or 0 in amounts
        else None
    )


def charged_amount(charge: Charge) -> Decimal | None:
    return charge.charge if charge.dollars is None else charge.dollars


def sum_in_python(group: tuple[str, ...], charges: Sequence[Charge]) -> ChargeTotal:
    """Compute the sums in Python."""
    usages = [charge.usage for charge in charges]
    caches = [usage.cache for usage in usages]
    not_fitting = [charge for charge in charges if charge.savings.comparison is ComparisonOutcome.WOULD_NOT_FIT]
    return ChargeTotal(
        group=group,
        calls=len(charges),
        unknown_calls=sum(charge.dollars is None for charge in charges),
        **{name: sum(getattr(cache, name) for cache in caches) for name in CacheUsage.__struct_fields__},
        output_tokens=sum(usage.output_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        dollars=sum_known([charge.dollars for charge in charges]) or Decimal(0),
        estimated_dollars=sum_known([charge.estimated_dollars for charge in charges]) or Decimal(0),
        savings=add_savings([charge.savings for charge in charges]),
        partial_calls=sum(charge.is_partial for charge in charges),
        compared_calls=sum(charge.savings.without is not None for charge in charges),
        would_not_fit_calls=len(not_fitting),
        would_not_fit_dollars=sum_known([charge.dollars for charge in not_fitting]) or Decimal(0),
        inherited_calls=sum(charge.is_inherited for charge in charges),
        inherited_dollars=sum_known([charge.dollars for charge in charges if charge.is_inherited])
        or Decimal(0),
        subscription_calls=sum(charge.call.is_subscription for charge in charges),
        subscription_dollars=sum_known([charge.dollars for charge in charges if charge.call.is_subscription])
        or Decimal(0),
        possibly_charged_calls=sum(charge.is_possibly_charged for charge in charges),
        possibly_charged_dollars=sum_known(
            [charged_amount(charge) for charge in charges if charge.is_possibly_charged]
        )
        or Decimal(0),
    )


@pytest.mark.slow
@settings(max_examples=limit_examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    charges=st.lists(CHARGES, max_size=8),
    by=st.lists(st.sampled_from(GroupBy), unique=True, max_size=5),
    span=st.tuples(*[st.none() | st.floats(0, 4 * DAY)] * 2),
    agent=st.none() | st.sampled_from(["ana", "nobody"]),
)
def test_any_sum_equals_the_sum_of_its_charges(
    database_url: str,
    charges: list[Charge],
    by: list[GroupBy],
    span: tuple[float | None, float | None],
    agent: str | None,
) -> None:
    since, until = span
    prefix = uuid.uuid4().hex  # examples share a database
    charges = [
        replace(charge, call=replace(charge.call, session_id=f"{prefix} {charge.call.session_id}"))
        for charge in charges
    ]
    in_span = [
        charge
        for charge in charges
        if (since is None or charge.call.at >= since) and (until is None or charge.call.at < until)
    ]
    expected = [charge for charge in in_span if agent in (None, charge.call.agent)]

    async def check() -> None:
        async with await open_store(database_url) as store:
            await store_charges(store.ledger, *charges)
            for session in ("s1", "s2"):
                conditions = {
                    "since": since,
                    "until": until,
                    "agent": agent,
                    "session_id": f"{prefix} {session}",
                }
                matching = [charge for charge in expected if charge.call.session_id == f"{prefix} {session}"]
                matching.sort(key=lambda charge: (charge.call.at, charge.call.id))
                actual = [charge async for charge in store.ledger.list_charges(**conditions)]
                assert actual == matching
                assert [str(charge.usage.reported_dollars) for charge in actual] == [
                    str(charge.usage.reported_dollars) for charge in matching
                ]

                def group(charge: Charge) -> tuple[str, ...]:
                    return tuple(group_value(name, charge.call) for name in by)

                matching.sort(key=group)
                sums = [sum_in_python(key, list(members)) for key, members in groupby(matching, group)] or [
                    sum_in_python((), [])
                ]
                sums = sums if matching or not by else []
                assert await store.ledger.sum_charges(by, **conditions) == sorted(
                    sums, key=lambda charge: (-charge.dollars, charge.group)
                )

    asyncio.run(check())
