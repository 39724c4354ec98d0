"""Outcomes of a replay: usage and cost of a session under each policy, and checks against the recorded cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from foveate.compaction.store import EditDecision
from foveate.cost.pricing.rates import EXACT, ZERO
from foveate.replay.policies import Policy
from foveate.replay.recording import MissingPart, RecordingSource, UnreadableLine


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPoint:
    """The context of one call: its time, size, window and cost.

    `is_compacted`: the history was compacted for this call or after it.
    """

    at: float
    tokens: int
    window_tokens: int | None
    is_compacted: bool = False
    dollars: Decimal = ZERO

    @property
    def is_over(self) -> bool:
        return self.window_tokens is not None and self.tokens > self.window_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EditOutcome:
    """An edit of a history at its `request`th request, with what was expected of it, if it was made to save.

    `saved_dollars` is what the requests since have saved by it, after the price of its summary.
    """

    request: int
    moment: str
    is_compaction: bool
    freed_tokens: int
    decision: EditDecision | None
    saved_dollars: Decimal = ZERO
    later_requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Usage and cost of calls under one policy. `dollars` is None if a price is unknown.

    `overflows` are calls that exceed the context window. `folds` are compactions; their calls are included in
    the tokens and dollars, and cost `fold_dollars` of these. `edits` are known of policies that edit to save.
    """

    policy: Policy
    calls: int = 0
    uncached: int = 0
    read: int = 0
    written_5m: int = 0
    written_1h: int = 0
    output: int = 0
    dollars: Decimal | None = ZERO
    largest_context: int = 0
    overflows: int = 0
    folds: int = 0
    fold_dollars: Decimal = ZERO
    edits: tuple[EditOutcome, ...] = ()

    @property
    def input_tokens(self) -> int:
        return self.uncached + self.read + self.written_5m + self.written_1h

    @property
    def hit_ratio(self) -> float | None:
        """The share of the input read from the cache; None if nothing was sent."""
        return self.read / self.input_tokens if self.input_tokens else None

    def plus(self, other: "Outcome") -> "Outcome":
        known = self.dollars is not None and other.dollars is not None
        return Outcome(
            policy=self.policy,
            calls=self.calls + other.calls,
            uncached=self.uncached + other.uncached,
            read=self.read + other.read,
            written_5m=self.written_5m + other.written_5m,
            written_1h=self.written_1h + other.written_1h,
            output=self.output + other.output,
            dollars=EXACT.add(self.dollars or ZERO, other.dollars or ZERO) if known else None,
            largest_context=max(self.largest_context, other.largest_context),
            overflows=self.overflows + other.overflows,
            folds=self.folds + other.folds,
            fold_dollars=EXACT.add(self.fold_dollars, other.fold_dollars),
            edits=self.edits + other.edits,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCheck:
    """The recorded cost of calls and the simulated cost of the same calls.

    `expected` is the simulated cost before the recorded usage is taken into account. It differs from `logged`
    because of `lower_read_calls`, which read less than expected, and `higher_read_calls`, which read more.
    `reported` is the total that the recording states itself.
    """

    calls: int = 0
    logged: Decimal = ZERO
    simulated: Decimal = ZERO
    expected: Decimal = ZERO
    lower_read_calls: int = 0
    higher_read_calls: int = 0
    reported: Decimal | None = None

    @property
    def relative_error(self) -> float | None:
        """Relative difference of the simulated cost from the recorded one; None if there is none."""
        return _relative_difference(self.simulated, self.logged)

    @property
    def expected_error(self) -> float | None:
        return _relative_difference(self.expected, self.logged)

    def plus(self, other: "CostCheck") -> "CostCheck":
        """Add both; the total that recordings report themselves only if all of them do."""
        reported = None
        if self.reported is not None and other.reported is not None:
            reported = EXACT.add(self.reported, other.reported)
        return CostCheck(
            calls=self.calls + other.calls,
            logged=EXACT.add(self.logged, other.logged),
            simulated=EXACT.add(self.simulated, other.simulated),
            expected=EXACT.add(self.expected, other.expected),
            lower_read_calls=self.lower_read_calls + other.lower_read_calls,
            higher_read_calls=self.higher_read_calls + other.higher_read_calls,
            reported=reported,
        )


def _relative_difference(dollars: Decimal, logged: Decimal) -> float | None:
    return float((dollars - logged) / logged) if logged else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholders:
    """Responses without a true size in the log: their number, and estimates of the missing tokens and cost."""

    calls: int = 0
    tokens: int = 0
    dollars: Decimal = ZERO

    def plus(self, other: "Placeholders") -> "Placeholders":
        return Placeholders(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            dollars=EXACT.add(self.dollars, other.dollars),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedSession:
    """A recorded session under each requested policy.

    `models` maps its models to their number of calls. `hidden_tokens` are the unrecorded tokens before its
    messages, inferred from usage. `unpriced` are models of unknown price, whose calls are left out.
    `sub_agents` is the number of sub-agents whose calls are included.
    """

    name: str
    source: RecordingSource
    began_at: float
    models: Mapping[str, int]
    outcomes: dict[Policy, Outcome]
    points: Mapping[Policy, tuple[ContextPoint, ...]]
    check: CostCheck = field(default_factory=CostCheck)
    placeholders: Placeholders = field(default_factory=Placeholders)
    missing: frozenset[MissingPart] = frozenset()
    hidden_tokens: int = 0
    unreadable: tuple[UnreadableLine, ...] = ()
    unpriced: Mapping[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    sub_agents: int = 0

    @property
    def calls(self) -> int:
        return sum(self.models.values())

    @property
    def main_model(self) -> str:
        return max(self.models, key=lambda model: (self.models[model], model), default="")


def sum_outcomes(sessions: Iterable[ReplayedSession]) -> dict[Policy, Outcome]:
    outcomes: dict[Policy, Outcome] = {}
    for session in sessions:
        for policy, outcome in session.outcomes.items():
            outcomes[policy] = outcomes[policy].plus(outcome) if policy in outcomes else outcome
    return outcomes
