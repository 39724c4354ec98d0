"""Settings that may save money, as changes of the current configuration, and the choice of the best ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import combinations
from typing import Any

from foveate.advice.session_costs import SimulatedCost
from foveate.config.settings import Settings
from foveate.engine.options import AgentOptions
from foveate.engine.options_from_settings import options_by_agent

SettingPath = tuple[str, ...]
SettingValue = bool | float | str

_SECTION = "context_optimization"
_COMPACTION = (_SECTION, "compaction", "enabled")
_COMPACT_AT = (_SECTION, "compaction", "compact_at_pct")
_TRIGGER = (_SECTION, "compaction", "trigger")
_CLEARING = (_SECTION, "compaction", "clearing")
_RESULT_LIMIT = (_SECTION, "compaction", "tool_result_max_pct")
_CACHE = (_SECTION, "prompt_cache", "enabled")
_BREAKPOINTS = (_SECTION, "prompt_cache", "client_breakpoints")
_TTL = (_SECTION, "prompt_cache", "ttl")
_KEEP_ALIVE = (_SECTION, "prompt_cache", "pings", "enabled")

_THRESHOLDS = (0.75, 0.5, 0.25)
_RESULT_LIMITS = (0.05, 0.02)
_SAME_TEXT = "The model sees the same text."
_SUMMARY_RISK = (
    "The model loses the exact text of old messages: a summary replaces them. Responses may differ, which this "
    "simulation cannot show."
)
_CLEARING_RISK = (
    "The model loses tool results that it has not used for a while or has read again since, and may call the "
    "tool again for one."
)
MAX_SETTINGS = 3
MIN_SHARE = Decimal("0.01")
"""A setting is worth showing if it saves at least this share of the recorded cost."""

CURRENT = "current"
"""The name of the current configuration among the simulated ones."""


class Mechanism(StrEnum):
    """Mechanisms with several settings, of which at most one can be recommended."""

    CACHE = "prompt cache"
    BREAKPOINTS = "cache breakpoints"
    TTL = "cache TTL"
    KEEP_ALIVE = "keep-alive"
    COMPACTION = "compaction"
    TOOL_RESULTS = "tool results"
    CLEARING = "clearing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A change of settings. `risk` says in a sentence or two what the model or the user loses.

    The saving of a change is measured against `base`, another candidate, if it has no effect without that;
    otherwise against the current configuration.
    """

    name: str
    mechanism: Mechanism
    changes: Mapping[SettingPath, SettingValue]
    risk: str
    base: str = ""


def list_candidates(settings: Settings) -> list[Candidate]:
    """The candidates that differ from the current settings."""
    return [candidate for candidate in _list_all() if _differs(settings, candidate.changes)]


def apply_changes(settings: Settings, changes: Iterable[tuple[SettingPath, SettingValue]]) -> Settings:
    data: dict[str, Any] = settings.context_optimization.model_dump()
    for path, value in changes:
        section = data
        for key in path[1:-1]:
            section = section[key]
        section[path[-1]] = value
    changed = type(settings.context_optimization).model_validate(data)
    return settings.model_copy(update={_SECTION: changed})


def gateway_options(settings: Settings, changes: Mapping[SettingPath, SettingValue]) -> AgentOptions:
    """Options of agents without settings of their own."""
    return options_by_agent(apply_changes(settings, changes.items()))("")


def merge_changes(candidates: Sequence[Candidate]) -> dict[SettingPath, SettingValue]:
    return {path: value for candidate in candidates for path, value in candidate.changes.items()}


def to_yaml(changes: Mapping[SettingPath, SettingValue]) -> str:
    lines: list[str] = []
    previous: SettingPath = ()
    for path, value in sorted(changes.items(), key=lambda change: change[0][:-1]):
        shared = next(
            (depth for depth, key in enumerate(path[:-1]) if previous[depth : depth + 1] != (key,)),
            len(path) - 1,
        )
        lines += [f"{'  ' * depth}{path[depth]}:" for depth in range(shared, len(path) - 1)]
        lines.append(f"{'  ' * (len(path) - 1)}{path[-1]}: {format_value(value)}")
        previous = path[:-1]
    return "\n".join(lines) + "\n"


def to_inline_yaml(changes: Mapping[SettingPath, SettingValue]) -> str:
    """The changes on one line, for reading."""
    sections: dict[str, Any] = {}
    for path, value in changes.items():
        section = sections
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
    return _format_inline(sections).removeprefix("{").removesuffix("}")


def _format_inline(value: Any) -> str:
    if not isinstance(value, dict):
        return format_value(value)
    return f"{{{', '.join(f'{key}: {_format_inline(inner)}' for key, inner in value.items())}}}"


def format_value(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _differs(settings: Settings, changes: Mapping[SettingPath, SettingValue]) -> bool:
    return apply_changes(settings, changes.items()) != settings


def _list_all() -> list[Candidate]:
    return [
        Candidate(
            name="prompt cache on",
            mechanism=Mechanism.CACHE,
            changes={_CACHE: True},
            risk=f"{_SAME_TEXT} Cache writes cost more than uncached input, so single requests cost more.",
        ),
        Candidate(
            name="Foveate's cache breakpoints instead of the client's",
            mechanism=Mechanism.BREAKPOINTS,
            changes={_BREAKPOINTS: "replace"},
            risk=f"{_SAME_TEXT} If a session ends early, a longer TTL was paid for in vain.",
        ),
        Candidate(
            name="the client's cache breakpoints stay",
            mechanism=Mechanism.BREAKPOINTS,
            changes={_BREAKPOINTS: "keep"},
            risk=_SAME_TEXT,
        ),
        Candidate(
            name="a cache TTL of one hour",
            mechanism=Mechanism.TTL,
            changes={_TTL: "1h"},
            risk=f"{_SAME_TEXT} Writes cost more, which short sessions do not earn back.",
        ),
        Candidate(
            name="a cache TTL chosen by the pauses",
            mechanism=Mechanism.TTL,
            changes={_TTL: "auto"},
            risk=_SAME_TEXT,
        ),
        Candidate(
            name="keep-alive requests",
            mechanism=Mechanism.KEEP_ALIVE,
            changes={_KEEP_ALIVE: True},
            risk=f"{_SAME_TEXT} Keep-alive requests cost money even if nobody returns.",
        ),
        Candidate(
            name="no keep-alive requests",
            mechanism=Mechanism.KEEP_ALIVE,
            changes={_KEEP_ALIVE: False},
            risk=f"{_SAME_TEXT} Pauses longer than the TTL cost a cache write.",
        ),
        *map(_compaction, _THRESHOLDS),
        Candidate(
            name="compaction when it pays",
            mechanism=Mechanism.COMPACTION,
            changes={_COMPACTION: True, _TRIGGER: "cost"},
            risk=_SUMMARY_RISK,
        ),
        Candidate(
            name="old tool results cleared after pauses",
            mechanism=Mechanism.CLEARING,
            changes={_CLEARING: "cold"},
            risk=_CLEARING_RISK,
        ),
        Candidate(
            name="old tool results cleared when it pays",
            mechanism=Mechanism.CLEARING,
            changes={_CLEARING: "cost"},
            risk=_CLEARING_RISK,
        ),
        Candidate(
            name="no compaction",
            mechanism=Mechanism.COMPACTION,
            changes={_COMPACTION: False},
            risk="Long sessions can reach the context window.",
        ),
        *map(_result_limit, _RESULT_LIMITS),
    ]


def _compaction(threshold: float) -> Candidate:
    return Candidate(
        name=_compaction_name(threshold),
        mechanism=Mechanism.COMPACTION,
        changes={_COMPACTION: True, _COMPACT_AT: threshold},
        risk=_SUMMARY_RISK,
    )


def _compaction_name(threshold: float) -> str:
    return f"compaction at {threshold:.0%} of the window"


def _result_limit(share: float) -> Candidate:
    threshold = _THRESHOLDS[0]
    return Candidate(
        name=f"tool results up to {share:.0%} of the window",
        mechanism=Mechanism.TOOL_RESULTS,
        changes={_COMPACTION: True, _RESULT_LIMIT: share},
        risk="The model loses the middle of long tool results, and may call the tool again for it.",
        base=_compaction_name(threshold),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """`saving` is negative if the candidate costs more, and None if a price is unknown."""

    candidate: Candidate
    cost: SimulatedCost | None
    saving: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationResult:
    """Savings do not add up, because they save the same tokens."""

    candidates: tuple[Candidate, ...]
    cost: SimulatedCost | None
    saving: Decimal | None

    @property
    def changes(self) -> dict[SettingPath, SettingValue]:
        return merge_changes(self.candidates)


def compare_candidates(
    candidates: Sequence[Candidate], costs: Mapping[str, SimulatedCost | None]
) -> list[CandidateResult]:
    """Sort results by saving, the best first and those with an unknown price last."""
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
