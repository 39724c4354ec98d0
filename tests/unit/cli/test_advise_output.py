"""Advice as text: what is recommended, what is not, and what is not known."""

from dataclasses import replace
from decimal import Decimal

from foveate.advice.advise import Advice, Simulation, Spend, SpendReport
from foveate.advice.candidate_settings import Candidate, CandidateResult, CombinationResult, Mechanism
from foveate.advice.cost_breakdown import ContextPart, CostBreakdown, MissCost, PartCost, PartKind
from foveate.advice.session_costs import SimulatedCost
from foveate.cli.advise import AdviceFormatter, advice_object
from foveate.cli.shared.console import Display

CANDIDATE = Candidate(
    name="a setting",
    mechanism=Mechanism.TTL,
    changes={("context_optimization", "prompt_cache", "ttl"): "1h"},
    risk="A risk.",
)
LOSS = replace(CANDIDATE, name="a loss", mechanism=Mechanism.KEEP_ALIVE)


def make_result(candidate: Candidate, dollars: int) -> CandidateResult:
    cost = SimulatedCost(dollars=Decimal(dollars))
    return CandidateResult(candidate=candidate, cost=cost, saving=Decimal(99 - dollars))


SAVES, LOSES = make_result(CANDIDATE, 80), make_result(LOSS, 104)
BREAKDOWN = CostBreakdown(
    dollars=98.0,
    parts={
        ContextPart(PartKind.TOOL, "Read"): PartCost(read=60.0, old_read=50.0, superseded=7.0),
        ContextPart(PartKind.OUTPUT): PartCost(output=38.0),
    },
    misses={"expired": MissCost(misses=3, tokens=9, dollars=5.0)},
    tier_calls=2,
    tier_dollars=4.0,
)
SIMULATION = Simulation(
    sessions=41,
    calls=900,
    charged=Decimal(100),
    breakdown=BREAKDOWN,
    recorded=SimulatedCost(dollars=Decimal(100)),
    current=SimulatedCost(dollars=Decimal(99)),
    results=(SAVES, LOSES),
)
SPEND = SpendReport(total=Spend(calls=1_000, dollars=Decimal(120), read=Decimal(120)), sessions=50)


def show(simulation: Simulation | None, columns: int = 80) -> str:
    advice = Advice(spend=SPEND, simulation=simulation)
    return "\n".join(AdviceFormatter(Display(columns=columns)).lines(advice, 30.0, "foveate.yaml"))


def test_every_number_says_what_it_rests_on() -> None:
    text = show(SIMULATION)

    assert "Last 30 days: $120.00 in 1,000 calls of 50 sessions" in text
    assert "Where it went (41 sessions, $100.00 of $120.00)" in text
    assert "paid again after cache misses: $5.00 (5%)" in text
    assert "superseded tool results: $7.00 (7%)" in text
    assert "above a price tier: $4.00 (4%)" in " ".join(text.split())


def test_what_no_part_explains_is_shown() -> None:
    row = next(line for line in show(SIMULATION).splitlines() if "not attributed" in line)

    assert row.split() == ["not", "attributed", "$2.00", "2%"]


def test_losses_are_shown_and_not_recommended() -> None:
    text = show(SIMULATION)

    assert "No setting would have saved 1% or more." in text
    assert "a loss (costs $5.00 more)" in text
    assert "--apply" not in text


def test_a_recommended_setting_has_its_yaml_and_its_risk() -> None:
    combination = CombinationResult(candidates=(CANDIDATE,), cost=SAVES.cost, saving=SAVES.saving)

    text = show(replace(SIMULATION, chosen=(SAVES,), combination=combination))

    assert "1. a setting: saves $19.00 (19%)" in text
    assert "context_optimization: {prompt_cache: {ttl: 1h}}" in text
    assert "A risk." in text
    assert "This alone: $80.00, $20.00 (20%) less than recorded." in text


def test_unknown_prices_of_a_simulation_are_said() -> None:
    assert "No setting was simulated" in show(replace(SIMULATION, recorded=None))


def test_no_line_is_longer_than_the_terminal() -> None:
    for columns in (60, 80, 120):
        assert max(map(len, show(SIMULATION, columns).splitlines())) <= columns


def test_json_has_what_the_text_leaves_out() -> None:
    document = advice_object(Advice(spend=SPEND, simulation=SIMULATION), 30.0, "")

    assert document["configuration"] is None
    simulation = document["simulation"]
    assert isinstance(simulation, dict)
    assert simulation["unattributed_dollars"] == "2.000000"
    assert [candidate["saved_dollars"] for candidate in simulation["candidates"]] == ["19", "-5"]
    assert advice_object(Advice(spend=SPEND, simulation=None), None, "x")["simulation"] is None
