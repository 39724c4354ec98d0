"""Outcomes of a replay: the policies, the cost of simulated calls, and checks against the recorded cost."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from foveate.compaction.store import EditDecision
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import EXACT, ZERO, Rates, TokenKind
from foveate.errors import BadOption
from foveate.formats.response.usage import BillableUnit, split_usage
from foveate.model import CacheUsage, Usage
from foveate.replay.recording import MissingPart, RecordingSource, UnreadableLine


class Policy(StrEnum):
    RECORDED = "recorded"
    GATEWAY = "gateway"
    GATEWAY_COMPACTION = "gateway-compaction"
    GATEWAY_COST = "gateway-cost"
    NONE = "none"
    MARKERS = "markers"
    MARKERS_1H = "markers-1h"
    ADAPTIVE = "adaptive"
    ADAPTIVE_COMPACTION = "fold"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Policy.RECORDED: "the requests as the client sent them",
    Policy.GATEWAY: "the gateway with this configuration",
    Policy.GATEWAY_COMPACTION: "the gateway with this configuration and with compaction: a summary replaces "
    "old history when requests get long",
    Policy.GATEWAY_COST: "the gateway with this configuration, which also compacts and clears tool results "
    "whenever that is expected to save money",
    Policy.NONE: "no prompt cache",
    Policy.MARKERS: "fixed breakpoints after the tools, the system prompt and the history, with a 5-minute TTL",
    Policy.MARKERS_1H: "the same breakpoints with a 1-hour TTL",
    Policy.ADAPTIVE: "Foveate's breakpoints instead of the client's, with TTLs that fit the session's pauses",
    Policy.ADAPTIVE_COMPACTION: "adaptive, with compaction",
}

ALL = "all"


def parse_policies(text: str) -> tuple[Policy, ...]:
    """Parse a comma-separated list of policies, in the order of the enum.

    Raises:
        BadOption: a policy is unknown, or none is named.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names:
        raise BadOption(f"--policy takes one or more of {_list_policies()}")
    if ALL in names:
        return tuple(Policy)
    for name in names:
        if name not in tuple(Policy):
            raise BadOption(f"--policy takes {_list_policies()}, not {name!r}")
    return tuple(policy for policy in Policy if policy in names)


def _list_policies() -> str:
    return ", ".join((*Policy, ALL))


@dataclass(frozen=True, slots=True, eq=False)
class CallRates:
    """The rates of a call, and the input sizes from which on all of it costs more."""

    rates: Rates
    price_steps: tuple[int, ...]

    def covers(self, usage: Usage) -> bool:
        """Return whether a usage consists of tokens only, all of kinds with a rate, in one call.

        A price that the usage itself states is ignored.
        """
        if BillableUnit.REQUESTS in self.rates.by_kind:
            return False
        first, *more = split_usage(usage)
        if more or first.units or first.region or first.usage is not usage:
            return False
        by_kind, cache = self.rates.by_kind, usage.cache
        return (
            TokenKind.UNCACHED in by_kind
            and TokenKind.OUTPUT in by_kind
            and (TokenKind.WRITTEN_5M in by_kind or not cache.written_5m)
            and (TokenKind.WRITTEN_1H in by_kind or not cache.written_1h)
        )


class CallRatesCache:
    def __init__(self, book: PriceBook) -> None:
        self._book = book
        self._by_rates: dict[int, CallRates] = {}

    def find(self, model: str, *, provider: str, at: float, tier: str = "") -> CallRates | None:
        rates = self._book.rates(model, provider=provider, at=at, tier=tier)
        if rates is None:
            return None
        call_rates = self._by_rates.get(id(rates))  # `CallRates` holds the rates, so their id cannot be reused
        if call_rates is None:
            steps = sorted({step.over_tokens for rate in rates.by_kind.values() for step in rate.tiers})
            call_rates = self._by_rates[id(rates)] = CallRates(rates, tuple(steps))
        return call_rates


class CostSum:
    """Sums the cost of calls: adds up tokens with the same price first, and multiplies once."""

    def __init__(self, book: PriceBook) -> None:
        self._rates = CallRatesCache(book)
        self._sums: dict[tuple[int, int], _TokenSums] = {}

    def add(
        self,
        usage: CacheUsage,
        output_tokens: int,
        *,
        model: str,
        provider: str,
        at: float,
        reasoning_tokens: int = 0,
        tier: str = "",
    ) -> bool:
        rates = self._rates.find(model, provider=provider, at=at, tier=tier)
        if rates is None:
            return False
        self.add_at_rates(rates, usage, output_tokens, reasoning_tokens)
        return True

    def add_at_rates(
        self, rates: CallRates, usage: CacheUsage, output_tokens: int, reasoning_tokens: int = 0
    ) -> None:
        size = usage.input_tokens
        key = id(rates.rates), bisect_right(rates.price_steps, size - 1) if rates.price_steps else 0
        added = self._sums.get(key)
        if added is None:
            added = self._sums[key] = _TokenSums(rates.rates, size)
        added.add(usage, output_tokens, reasoning_tokens)

    @property
    def dollars(self) -> Decimal | None:
        """The total; None if a kind of token has no price."""
        total = ZERO
        for added in self._sums.values():
            dollars = added.dollars
            if dollars is None:
                return None
            total = EXACT.add(total, dollars)
        return total


class _TokenSums:
    __slots__ = ("_counts", "_prices_reasoning", "_rates", "_size")

    def __init__(self, rates: Rates, size: int) -> None:
        self._rates = rates
        self._prices_reasoning = TokenKind.REASONING in rates.by_kind
        self._size = size
        self._counts = [0] * 6

    def add(self, usage: CacheUsage, output_tokens: int, reasoning_tokens: int) -> None:
        counts = self._counts
        reasoning = min(reasoning_tokens, output_tokens) if self._prices_reasoning else 0
        counts[0] += usage.uncached
        counts[1] += usage.read
        counts[2] += usage.written_5m
        counts[3] += usage.written_1h
        counts[4] += output_tokens - reasoning
        counts[5] += reasoning

    @property
    def dollars(self) -> Decimal | None:
        by_kind, total = self._rates.by_kind, ZERO
        for kind, count in zip(TokenKind, self._counts, strict=True):
            rate = by_kind.get(kind)
            if (
                rate is None and kind is TokenKind.READ
            ):  # many hosts give no discount, and reads never cost more
                rate = by_kind.get(TokenKind.UNCACHED)
            if rate is None and count:
                return None
            if rate is not None and count:
                total = EXACT.add(total, EXACT.multiply(rate.at(self._size), count))
        return total


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
