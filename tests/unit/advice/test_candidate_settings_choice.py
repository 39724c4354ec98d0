"""The choice of settings: only what saves, at most one of a mechanism, and the best set of them."""

from decimal import Decimal

from foveate.advice.candidate_settings import (
    CURRENT,
    Candidate,
    Mechanism,
    choose_combination,
    choose_settings,
    compare_candidates,
    list_combinations,
)
from foveate.advice.session_costs import SimulatedCost

RECORDED = Decimal(100)


def candidate(name: str, mechanism: Mechanism, base: str = "") -> Candidate:
    return Candidate(name=name, mechanism=mechanism, changes={("x", name): True}, risk="none", base=base)


MILD = candidate("mild", Mechanism.COMPACTION)
STRONG = candidate("strong", Mechanism.COMPACTION)
BREAKPOINTS = candidate("breakpoints", Mechanism.BREAKPOINTS)
KEEP_ALIVE = candidate("keep-alive", Mechanism.KEEP_ALIVE)
RESULTS = candidate("results", Mechanism.TOOL_RESULTS, base="mild")
ALL = (MILD, STRONG, BREAKPOINTS, KEEP_ALIVE, RESULTS)


def costs(**dollars: float | None) -> dict[str, SimulatedCost | None]:
    return {
        name.replace("_", "-"): None if amount is None else SimulatedCost(dollars=Decimal(str(amount)))
        for name, amount in dollars.items()
    }


def choose(**dollars: float | None) -> list[str]:
    results = compare_candidates(ALL, costs(current=99.0, **dollars))
    return [result.candidate.name for result in choose_settings(results, RECORDED)]


def test_the_best_setting_of_each_mechanism_is_chosen() -> None:
    assert choose(mild=90, strong=80, breakpoints=95, keep_alive=97.5, results=85) == [
        "strong",
        "results",
        "breakpoints",
    ]


def test_settings_that_save_nothing_or_little_are_not_chosen() -> None:
    assert choose(mild=99, strong=120, breakpoints=98.5, keep_alive=99.5, results=99) == []


def test_a_saving_of_another_setting_is_not_credited() -> None:
    """Compaction saves 9 and the limit of results nothing more."""
    assert choose(mild=90, strong=91, breakpoints=99, keep_alive=99, results=90) == ["mild"]


def test_a_setting_is_not_chosen_if_the_one_it_needs_costs_more() -> None:
    assert choose(mild=110, strong=115, breakpoints=99, keep_alive=99, results=105) == []


def test_a_setting_of_unknown_price_is_not_chosen() -> None:
    assert choose(mild=None, strong=None, breakpoints=None, keep_alive=90, results=None) == ["keep-alive"]


def test_the_best_set_is_not_always_all_of_them() -> None:
    known = costs(current=99, mild=90, strong=80, breakpoints=90, keep_alive=95, results=89)
    chosen = choose_settings(compare_candidates(ALL, known), RECORDED)
    groups = list_combinations(chosen)
    together = {name: SimulatedCost(dollars=Decimal(85)) for name in groups}
    together["strong + breakpoints"] = SimulatedCost(dollars=Decimal(75))

    best = choose_combination(chosen, groups, together, known[CURRENT])

    assert [result.candidate.name for result in chosen] == ["strong", "breakpoints", "keep-alive"]
    assert len(groups) == 4
    assert best is not None
    assert best.candidates == (STRONG, BREAKPOINTS)
    assert best.saving == 24
    assert best.changes == {("x", "strong"): True, ("x", "breakpoints"): True}


def test_nothing_chosen_means_no_set() -> None:
    assert choose_combination((), {}, {}, SimulatedCost()) is None
