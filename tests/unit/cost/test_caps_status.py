"""Status of caps: only the needed queries are made, each once."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from foveate.cost.caps import Cap, CapScope, read_cap_status
from foveate.cost.ledger import AccountBalance, ChargeTotal, GroupBy
from foveate.model import Savings
from tests.support.stores.ledger_records import NOON, make_cap, make_standing
from tests.support.stores.memory_ledger import InMemoryLedger

MIDNIGHT = NOON - 43_200


def make_total(group: tuple[str, ...], unknown: int) -> ChargeTotal:
    return ChargeTotal(
        group=group,
        calls=unknown + 1,
        unknown_calls=unknown,
        uncached=0,
        read=0,
        written_5m=0,
        written_1h=0,
        output_tokens=0,
        reasoning_tokens=0,
        dollars=Decimal(1),
        estimated_dollars=Decimal(1),
        savings=Savings(),
    )


@dataclass
class UnknownPriceLedger(InMemoryLedger):
    """A ledger of calls of unknown price, by agent, session and day."""

    unknown: Mapping[tuple[str, str, bool], int] = field(default_factory=dict)
    queries: list[tuple[tuple[GroupBy, ...], float | None]] = field(default_factory=list)

    async def sum_charges(
        self, group_by: Sequence[GroupBy], *, since: float | None = None, **_filters: object
    ) -> Sequence[ChargeTotal]:
        self.queries.append((tuple(group_by), since))
        unknown_by_group: dict[tuple[str, ...], int] = {}
        for (agent, session, is_of_today), unknown in self.unknown.items():
            group = tuple({GroupBy.AGENT: agent, GroupBy.SESSION: session}[dimension] for dimension in group_by)
            if since is None or is_of_today:
                unknown_by_group[group] = unknown_by_group.get(group, 0) + unknown
        return [make_total(group, unknown) for group, unknown in unknown_by_group.items()]

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        return dict.fromkeys(accounts, make_standing(0))


ALL_TIME, SINCE_YESTERDAY, SINCE_MIDNIGHT = None, NOON - 86_400, MIDNIGHT
CALLS = {("ana", "s", True): 1, ("ana", "t", False): 2, ("bob", "u", True): 4}


@pytest.mark.parametrize(
    ("cap", "queries", "unknown"),
    [
        (make_cap(CapScope.CALL, 1), [], []),
        (make_cap(CapScope.TOTAL, 1), [((GroupBy.AGENT,), ALL_TIME)], [7]),
        (make_cap(CapScope.TOTAL, 1, "ana"), [((GroupBy.AGENT,), ALL_TIME)], [3]),
        (make_cap(CapScope.AGENT, 1), [((GroupBy.AGENT,), ALL_TIME)], [3, 4]),
        (make_cap(CapScope.AGENT, 1, "bob"), [((GroupBy.AGENT,), ALL_TIME)], [4]),
        (make_cap(CapScope.DAY, 1), [((GroupBy.AGENT,), SINCE_MIDNIGHT)], [5]),
        (make_cap(CapScope.DAY, 1, "ana"), [((GroupBy.AGENT,), SINCE_MIDNIGHT)], [1]),
        (make_cap(CapScope.DAY, 1, "nobody"), [((GroupBy.AGENT,), SINCE_MIDNIGHT)], [0]),
        (
            make_cap(CapScope.SESSION, 1),
            [((GroupBy.AGENT, GroupBy.SESSION), SINCE_YESTERDAY), ((GroupBy.SESSION,), ALL_TIME)],
            [1, 4],
        ),
    ],
)
async def test_calls_of_unknown_price_are_counted_for_each_cap_with_only_the_needed_queries(
    cap: Cap, queries: list[tuple[tuple[GroupBy, ...], float | None]], unknown: list[int]
) -> None:
    ledger = UnknownPriceLedger(unknown=CALLS)

    (status,) = await read_cap_status(ledger, [cap], now=NOON)

    assert ledger.queries == queries
    assert [use.unknown_calls for use in status.uses] == unknown


@pytest.mark.slow
async def test_the_time_grows_linearly_with_the_number_of_sessions() -> None:
    """Regression: the time was quadratic; 6,000 sessions took 17 seconds."""

    async def measure_seconds(sessions: int) -> float:
        ledger = UnknownPriceLedger(unknown={("ana", f"{number:05}", True): 1 for number in range(sessions)})
        started = time.thread_time()
        session, agent = await read_cap_status(
            ledger, [make_cap(CapScope.SESSION, 1), make_cap(CapScope.AGENT, 1)], now=NOON
        )
        seconds = time.thread_time() - started
        assert {use.unknown_calls for use in session.uses} == {1}
        assert [use.unknown_calls for use in agent.uses] == [sessions]
        return seconds

    few, many = [min([await measure_seconds(sessions) for _ in range(3)]) for sessions in (500, 6_000)]
    assert many < 4 * 12 * few
