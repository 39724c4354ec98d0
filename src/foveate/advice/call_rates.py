"""Dollars per token of one call, and what a price tier added to it."""

from typing import NamedTuple

from foveate.cost.pricing.rates import TokenKind
from foveate.model import CacheUsage
from foveate.replay.outcomes import CallRates


class InputRates(NamedTuple):
    """Dollars per input token of a call, by how the cache was used."""

    read: float
    written_1h: float
    written_5m: float
    uncached: float

    def dollars(self, usage: CacheUsage) -> float:
        return self.read * usage.read + self.fresh_dollars(usage)

    def fresh_dollars(self, usage: CacheUsage) -> float:
        """The cost of everything that was not read from the cache."""
        return (
            self.written_1h * usage.written_1h
            + self.written_5m * usage.written_5m
            + self.uncached * usage.uncached
        )


def input_rates(rates: CallRates, input_tokens: int) -> InputRates:
    """The rates of a call with this many input tokens. Writes without a rate are those of a free cache."""
    uncached = _rate(rates, TokenKind.UNCACHED, input_tokens, 0.0)
    return InputRates(
        read=_rate(rates, TokenKind.READ, input_tokens, uncached),
        written_1h=_rate(rates, TokenKind.WRITTEN_1H, input_tokens, uncached),
        written_5m=_rate(rates, TokenKind.WRITTEN_5M, input_tokens, uncached),
        uncached=uncached,
    )


def output_dollars(rates: CallRates, input_tokens: int, output_tokens: int, reasoning_tokens: int) -> float:
    output = _rate(rates, TokenKind.OUTPUT, input_tokens, 0.0)
    reasoning = min(reasoning_tokens, output_tokens)
    reasoning_rate = _rate(rates, TokenKind.REASONING, input_tokens, output)
    return output * (output_tokens - reasoning) + reasoning_rate * reasoning


def price_step_excess(
    rates: CallRates, usage: CacheUsage, output_tokens: int, reasoning_tokens: int
) -> float | None:
    """What a call cost more than at the lowest price tier; None if its input is within that."""
    size = usage.input_tokens
    if not rates.price_steps or size <= rates.price_steps[0]:
        return None
    actual, lowest = (
        input_rates(rates, tokens).dollars(usage)
        + output_dollars(rates, tokens, output_tokens, reasoning_tokens)
        for tokens in (size, 0)
    )
    return actual - lowest


def _rate(rates: CallRates, kind: TokenKind, input_tokens: int, default: float) -> float:
    rate = rates.rates.by_kind.get(kind)
    return float(rate.at(input_tokens)) if rate is not None else default
