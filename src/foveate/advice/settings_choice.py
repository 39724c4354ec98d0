"""Chooses the settings that would have saved most, from the simulated cost of each candidate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations

from foveate.advice.candidates import Candidate, SettingPath, SettingValue, merge_changes
from foveate.advice.session_costs import SimulatedCost

MAX_SETTINGS = 3
MIN_SHARE = Decimal("0.01")
"""A setting is worth showing if it saves at least this share of the recorded cost."""

CURRENT = "current"
"""The name of the current configuration among the simulated ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """A simulated candidate. `saving` is negative if it costs more, and None if a price is unknown."""

    candidate: Candidate
    cost: SimulatedCost | None
    saving: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationResult:
    """Several candidates together. Their savings do not add up, because they save the same tokens."""

    candidates: tuple[Candidate, ...]
    cost: SimulatedCost | None
    saving: Decimal | None

    @property
    def changes(self) -> dict[SettingPath, SettingValue]:
        return merge_changes(self.candidates)


def compare_candidates(
    candidates: Sequence[Candidate], costs: Mapping[str, SimulatedCost | None]
) -> list[CandidateResult]:
    """What each candidate saves, the best first. Those with an unknown price come last."""
    results = [
        CandidateResult(
            candidate=candidate,
            cost=costs[candidate.name],
            saving=_subtract(costs.get(candidate.base) or costs[CURRENT], costs[candidate.name]),
        )
        for candidate in candidates
    ]
    return sorted(results, key=lambda result: (result.saving is None, -(result.saving or 0)))


def choose_settings(results: Sequence[CandidateResult], recorded: Decimal) -> tuple[CandidateResult, ...]:
    """The best setting of each mechanism that saves enough, at most three.

    A setting that needs another one is left out if that costs more than both save.
    """
    chosen: list[CandidateResult] = []
    by_name = {result.candidate.name: result for result in results}
    for result in results:
        base = by_name.get(result.candidate.base)
        saving = (result.saving or 0) + min((base.saving or 0) if base is not None else 0, 0)
        if saving < MIN_SHARE * recorded or not saving:
            continue
        if all(other.candidate.mechanism is not result.candidate.mechanism for other in chosen):
            chosen.append(result)
    return tuple(chosen[:MAX_SETTINGS])


def list_combinations(chosen: Sequence[CandidateResult]) -> dict[str, tuple[Candidate, ...]]:
    """All sets of two or three of the chosen settings, by name."""
    candidates = [result.candidate for result in chosen]
    return {
        " + ".join(candidate.name for candidate in group): group
        for size in range(2, len(candidates) + 1)
        for group in combinations(candidates, size)
    }


def choose_combination(
    chosen: Sequence[CandidateResult],
    groups: Mapping[str, tuple[Candidate, ...]],
    costs: Mapping[str, SimulatedCost | None],
    current: SimulatedCost | None,
) -> CombinationResult | None:
    """The set of chosen settings that saves most; None if nothing is recommended."""
    results = [
        CombinationResult(
            candidates=(result.candidate,), cost=result.cost, saving=_subtract(current, result.cost)
        )
        for result in chosen
    ]
    results += [
        CombinationResult(candidates=group, cost=costs[name], saving=_subtract(current, costs[name]))
        for name, group in groups.items()
    ]
    known = [result for result in results if result.saving is not None]
    return max(known, key=lambda result: result.saving or 0, default=None)


def _subtract(before: SimulatedCost | None, after: SimulatedCost | None) -> Decimal | None:
    return before.dollars - after.dollars if before is not None and after is not None else None
