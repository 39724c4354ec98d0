"""Rates of single calls, and the excess above a price tier."""

from decimal import Decimal

import pytest

from foveate.advice.cost_breakdown import input_rates, output_dollars, price_step_excess
from foveate.cost.pricing.rates import PriceSource, Rate, Rates, RateTier, TokenKind
from foveate.formats.response.usage import BillableUnit
from foveate.model import CacheUsage
from foveate.replay.outcomes import CallRates


def rates(*, tier_tokens: int | None = None) -> CallRates:
    tiers = {} if tier_tokens is None else {"tiers": (RateTier(tier_tokens, Decimal(6)),)}
    by_kind: dict[TokenKind | BillableUnit, Rate] = {
        TokenKind.UNCACHED: Rate(Decimal(3), **tiers),
        TokenKind.READ: Rate(Decimal("0.3")),
        TokenKind.WRITTEN_5M: Rate(Decimal("3.75")),
        TokenKind.OUTPUT: Rate(Decimal(15)),
    }
    table = Rates(by_kind=by_kind, source=PriceSource.TABLE, origin="test")
    return CallRates(table, () if tier_tokens is None else (tier_tokens,))


def test_the_kinds_of_input_add_up() -> None:
    usage = CacheUsage(uncached=10, read=100, written_5m=20)

    assert input_rates(rates(), 130).dollars(usage) == pytest.approx(10 * 3 + 100 * 0.3 + 20 * 3.75)


def test_reads_without_a_rate_cost_as_much_as_uncached_input() -> None:
    table = Rates(by_kind={TokenKind.UNCACHED: Rate(Decimal(2))}, source=PriceSource.TABLE, origin="test")

    assert input_rates(CallRates(table, ()), 9) == (2, 2, 2, 2)


def test_reasoning_without_a_rate_is_output() -> None:
    assert output_dollars(rates(), 0, 10, 4) == pytest.approx(150)


def test_only_calls_above_the_tier_have_an_excess() -> None:
    table = rates(tier_tokens=100)

    assert price_step_excess(table, CacheUsage(uncached=100), 1, 0) is None
    assert price_step_excess(rates(), CacheUsage(uncached=101), 1, 0) is None
    assert price_step_excess(table, CacheUsage(uncached=101), 1, 0) == pytest.approx(101 * 3)
