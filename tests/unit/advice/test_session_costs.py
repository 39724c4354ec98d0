"""The cost of one recording: charges, breakdown and simulated configurations."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings

from foveate.advice.session_costs import (
    Period,
    SimulatedCost,
    charge_recording,
    prepare_recording,
    simulate_recording,
    sum_costs,
)
from foveate.compaction.plan import CompactionOptions
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.replay.outcomes import Policy
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import STARTED_AT, PlannedTurn, make_recording
from tests.support.strategies.planned_turns import turn_lists

BOOK = PriceBook()
ALWAYS = Period(0.0, 1e12)
COMPACTS_EARLY = AgentOptions(
    compaction=True, compaction_options=CompactionOptions(compact_at_pct=0.1, tail_keep_tokens=2_000)
)
LONG_SESSION = [PlannedTurn(result_chars=8_000) for _ in range(40)]


@settings(max_examples=limit_examples(20))
@given(turns=turn_lists)
def test_the_breakdown_always_adds_up_to_the_charges(turns: list[PlannedTurn]) -> None:
    recording = make_recording(turns)

    charges = charge_recording(recording, BOOK, ALWAYS).charges
    simulated = simulate_recording(recording, BOOK, {})

    charged = sum(charge.dollars or 0 for charge in charges)
    parts = simulated.breakdown.parts.values()
    assert sum(part.dollars for part in parts) == pytest.approx(float(charged))
    assert simulated.breakdown.dollars == pytest.approx(float(charged))
    for charge in charges:
        kinds = (charge.uncached, charge.read, charge.written, charge.output, charge.other)
        assert sum(kinds) == charge.dollars


@settings(max_examples=limit_examples(10))
@given(turns=turn_lists)
def test_savings_never_differ_from_those_of_replay(turns: list[PlannedTurn]) -> None:
    recording = make_recording(turns)

    simulated = simulate_recording(recording, BOOK, {"now": AgentOptions(), "compacts": COMPACTS_EARLY})

    for name, options in (("now", AgentOptions()), ("compacts", COMPACTS_EARLY)):
        replayed = replay_recording(
            recording, BOOK, ReplayOptions(policies=(Policy.RECORDED, Policy.GATEWAY), gateway=options)
        )
        cost = simulated.configurations[name]
        assert cost is not None
        assert simulated.recorded is not None
        assert cost.dollars == replayed.outcomes[Policy.GATEWAY].dollars
        assert cost.compactions == replayed.outcomes[Policy.GATEWAY].folds
        assert simulated.recorded.dollars == replayed.outcomes[Policy.RECORDED].dollars


def test_compactions_and_keep_alive_requests_are_part_of_the_cost() -> None:
    turns = [replace(turn, gap_seconds=420.0 if n % 4 == 3 else 20.0) for n, turn in enumerate(LONG_SESSION)]
    options = replace(COMPACTS_EARLY, keep_alive=KeepAliveOptions(enabled=True))

    cost = simulate_recording(make_recording(turns), BOOK, {"both": options}).configurations["both"]

    assert cost is not None
    assert cost.compactions > 0
    assert cost.keep_alives > 0
    assert 0 < cost.own_dollars < cost.dollars


def test_only_calls_of_the_period_are_charged() -> None:
    recording = make_recording([PlannedTurn(gap_seconds=100.0) for _ in range(10)])
    period = Period(STARTED_AT + 450.0, STARTED_AT + 750.0)

    charges = charge_recording(recording, BOOK, period).charges

    assert [charge.id for charge in charges] == ["talk-5", "talk-6", "talk-7"]


def test_calls_without_a_time_are_in_every_period() -> None:
    recording = make_recording([PlannedTurn()])
    timeless = replace(recording, calls=tuple(replace(call, at=0.0) for call in recording.calls))

    assert len(charge_recording(timeless, BOOK, Period(5.0, 6.0)).charges) == 1


def test_excluded_calls_are_left_out() -> None:
    recording = make_recording([PlannedTurn() for _ in range(4)])

    prepared = prepare_recording(recording, BOOK, ALWAYS, excluded={"talk-1", "talk-2"})

    assert [call.id for call in prepared.calls] == ["talk-0", "talk-3"]


def test_calls_without_usage_are_estimated() -> None:
    charges = charge_recording(make_recording([PlannedTurn()], has_usage=False), BOOK, ALWAYS).charges

    assert charges[0].is_estimated
    assert charges[0].dollars


def test_calls_of_unknown_price_have_no_cost() -> None:
    recording = make_recording([PlannedTurn() for _ in range(3)], model="nobody-knows-1")

    charges = charge_recording(recording, BOOK, ALWAYS).charges
    simulated = simulate_recording(recording, BOOK, {"now": AgentOptions()})

    assert [charge.dollars for charge in charges] == [None] * 3
    assert simulated.breakdown.parts == {}


def test_a_sum_with_an_unknown_cost_is_unknown() -> None:
    assert sum_costs([SimulatedCost(dollars=Decimal(1)), None]) is None
    assert sum_costs([SimulatedCost(dollars=Decimal(1))] * 2) == SimulatedCost(dollars=Decimal(2))


def test_the_excess_of_a_price_tier_is_counted() -> None:
    turns = [PlannedTurn(result_chars=8_000) for _ in range(5)]
    recording = make_recording(turns, model="claude-sonnet-4-5", prefix_tokens=199_000)

    breakdown = simulate_recording(recording, BOOK, {}).breakdown

    assert 0 < breakdown.tier_calls < 5
    assert 0 < breakdown.tier_dollars < breakdown.dollars
