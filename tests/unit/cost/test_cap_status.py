"""Status of caps: only the needed queries are made, each once."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from foveate.cost.cap_status import read_cap_status
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import AccountBalance, ChargeTotal, GroupBy
from foveate.model import Savings
from tests.support.stores.ledger_records import NOON, make_cap, make_standing
from tests.support.stores.memory_ledger import Books

MIDNIGHT = NOON - 43_200


def added(group: tuple[str, ...], unknown: int) -> ChargeTotal:
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
class Sums(Books):
    """A ledger of calls of unknown price, by agent, session and day."""

    unknown: Mapping[tuple[str, str, bool], int] = field(default_factory=dict)
    told: list[tuple[tuple[GroupBy, ...], float | None]] = field(default_factory=list)

    async def sum_charges(
        self, group_by: Sequence[GroupBy], *, since: float | None = None, **_asked: object
    ) -> Sequence[ChargeTotal]:
        self.told.append((tuple(group_by), since))
        found: dict[tuple[str, ...], int] = {}
        for (agent, session, is_of_today), unknown in self.unknown.items():
            group = tuple({GroupBy.AGENT: agent, GroupBy.SESSION: session}[one] for one in group_by)
            if since is None or is_of_today:
                found[group] = found.get(group, 0) + unknown
        return [added(group, unknown) for group, unknown in found.items()]

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        return dict.fromkeys(accounts, make_standing(0))


EVER, LATE, TODAY = None, NOON - 86_400, MIDNIGHT
CALLS = {("ana", "s", True): 1, ("ana", "t", False): 2, ("bob", "u", True): 4}


@pytest.mark.parametrize(
    ("of", "told", "unknown"),
    [
        (make_cap(CapScope.CALL, 1), [], []),
        (make_cap(CapScope.TOTAL, 1), [((GroupBy.AGENT,), EVER)], [7]),
        (make_cap(CapScope.TOTAL, 1, "ana"), [((GroupBy.AGENT,), EVER)], [3]),
        (make_cap(CapScope.AGENT, 1), [((GroupBy.AGENT,), EVER)], [3, 4]),
        (make_cap(CapScope.AGENT, 1, "bob"), [((GroupBy.AGENT,), EVER)], [4]),
        (make_cap(CapScope.DAY, 1), [((GroupBy.AGENT,), TODAY)], [5]),
        (make_cap(CapScope.DAY, 1, "ana"), [((GroupBy.AGENT,), TODAY)], [1]),
        (make_cap(CapScope.DAY, 1, "nobody"), [((GroupBy.AGENT,), TODAY)], [0]),
        (
            make_cap(CapScope.SESSION, 1),
            [((GroupBy.AGENT, GroupBy.SESSION), LATE), ((GroupBy.SESSION,), EVER)],
            [1, 4],
        ),
    ],
)
async def test_a_cap_has_its_calls_of_unknown_price_and_nothing_else_is_queried(
    of: Cap, told: list[tuple[tuple[GroupBy, ...], float | None]], unknown: list[int]
) -> None:
    ledger = Sums(unknown=CALLS)

    (found,) = await read_cap_status(ledger, [of], now=NOON)

    assert ledger.told == told
    assert [use.unknown_calls for use in found.uses] == unknown


@pytest.mark.slow
async def test_many_sessions_take_no_longer_each_than_a_few() -> None:
    """Regression: the time was quadratic; 6,000 sessions took 17 seconds."""

    async def taken(sessions: int) -> float:
        ledger = Sums(unknown={("ana", f"{number:05}", True): 1 for number in range(sessions)})
        begun = time.thread_time()
        session, agent = await read_cap_status(
            ledger, [make_cap(CapScope.SESSION, 1), make_cap(CapScope.AGENT, 1)], now=NOON
        )
        took = time.thread_time() - begun
        assert {use.unknown_calls for use in session.uses} == {1}
        assert [use.unknown_calls for use in agent.uses] == [sessions]
        return took

    few, many = [min([await taken(sessions) for _ in range(3)]) for sessions in (500, 6_000)]
    assert many < 4 * 12 * few
