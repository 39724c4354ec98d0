"""Outcomes of a replay: usage and cost of a session under each policy, and checks against the recorded cost."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import EXACT, ZERO, Rates, TokenKind
from foveate.formats.response.usage import BillableUnit, split_usage
from foveate.model import CacheUsage, Usage
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
class Outcome:
    """Usage and cost of calls under one policy. `dollars` is None if a price is unknown.

    `overflows` are calls that exceed the context window. `folds` are compactions; their calls are included in
    the tokens and dollars, and cost `fold_dollars` of these.
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCheck:
    """The recorded cost of calls beside the simulated cost of the same calls.

    `expected` is the simulated cost before the recorded usage is taken into account. It differs from `logged`
    because of `changed` calls, which read less than expected, and `kept` calls, which read more.
    """

    calls: int = 0
    logged: Decimal = ZERO
    simulated: Decimal = ZERO
    expected: Decimal = ZERO
    changed: int = 0
    kept: int = 0
    said: Decimal | None = None

    @property
    def off(self) -> float | None:
        """Relative difference of the simulated cost from the recorded one; None if there is none."""
        return _relative_difference(self.simulated, self.logged)

    @property
    def expected_off(self) -> float | None:
        """Relative difference of the expected cost from the recorded one."""
        return _relative_difference(self.expected, self.logged)

    def plus(self, other: "CostCheck") -> "CostCheck":
        """Add both; the total that recordings report themselves only if all of them do."""
        said = None
        if self.said is not None and other.said is not None:
            said = EXACT.add(self.said, other.said)
        return CostCheck(
            calls=self.calls + other.calls,
            logged=EXACT.add(self.logged, other.logged),
            simulated=EXACT.add(self.simulated, other.simulated),
            expected=EXACT.add(self.expected, other.expected),
            changed=self.changed + other.changed,
            kept=self.kept + other.kept,
            said=said,
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
        """The model of most of its calls."""
        return max(self.models, key=lambda model: (self.models[model], model), default="")


@dataclass(frozen=True, slots=True, eq=False)
class CallRates:
    """The rates of a call, and the input sizes from which on all of it costs more."""

    rates: Rates
    price_steps: tuple[int, ...]

    def covers(self, usage: Usage) -> bool:
        """Whether a usage consists of tokens only, all of kinds with a rate, in one call.

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
    """The rates of calls from a price book, each made once."""

    def __init__(self, book: PriceBook) -> None:
        self._book = book
        self._by_rates: dict[int, CallRates] = {}

    def find(self, model: str, *, provider: str, at: float, tier: str = "") -> CallRates | None:
        """The rates of such a call at that time; None if they are unknown."""
        rates = self._book.rates(model, provider=provider, at=at, tier=tier)
        if rates is None:
            return None
        found = self._by_rates.get(id(rates))  # `CallRates` holds the rates, so their id cannot be reused
        if found is None:
            steps = sorted({step.over_tokens for rate in rates.by_kind.values() for step in rate.tiers})
            found = self._by_rates[id(rates)] = CallRates(rates, tuple(steps))
        return found


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
        """Add a call, and return whether its price is known."""
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


def sum_outcomes(sessions: Iterable[ReplayedSession]) -> dict[Policy, Outcome]:
    found: dict[Policy, Outcome] = {}
    for session in sessions:
        for policy, outcome in session.outcomes.items():
            found[policy] = found[policy].plus(outcome) if policy in found else outcome
    return found
