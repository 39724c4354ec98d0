"""The cost of simulated calls: their rates, and a sum that multiplies each rate once."""

from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal

from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import EXACT, ZERO, Rates, TokenKind
from foveate.formats.response.usage import BillableUnit, split_usage
from foveate.model import CacheUsage, Usage


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
    """The rates of calls from a price book, each made once."""

    def __init__(self, book: PriceBook) -> None:
        self._book = book
        self._by_rates: dict[int, CallRates] = {}

    def find(self, model: str, *, provider: str, at: float, tier: str = "") -> CallRates | None:
        """The rates of such a call at that time; None if they are unknown."""
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
