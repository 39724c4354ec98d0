"""Precedence of prices: custom ones, then those that trusted providers state."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from foveate.cost.pricing.custom_prices import CustomPrice, DollarsPerMillion
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import PriceSource
from foveate.model import CacheUsage, Usage

AT = datetime(2026, 11, 10, 12, tzinfo=UTC).timestamp()
OWN = CustomPrice(
    model="grok-*",
    dollars_per_million=DollarsPerMillion(uncached=Decimal(7), output=Decimal(7)),
    since=date(2026, 7, 1),
)


def usage_stating(dollars: str) -> Usage:
    return Usage(cache=CacheUsage(uncached=1_000_000), reported_dollars=Decimal(dollars))


def price_from(
    provider: str, model: str, book: PriceBook, *, at: float = AT
) -> tuple[PriceSource, Decimal] | None:
    price = book.price(model, usage_stating("0.25"), provider=provider, at=at)
    return None if price is None else (price.source, price.dollars)


@pytest.mark.parametrize("provider", ["openrouter", "OpenRouter", "perplexity", "pplx", "x-ai", "xai"])
def test_a_price_stated_by_a_trusted_provider_is_used(provider: str) -> None:
    assert price_from(provider, "whatever", PriceBook()) == (PriceSource.STATED, Decimal("0.25"))


def test_a_price_stated_by_another_upstream_is_ignored() -> None:
    """Regression: any upstream could make a call free with `cost: 0`."""
    book = PriceBook()

    assert price_from("openai", "gpt-5", book) == (PriceSource.TABLE, Decimal("1.25"))
    free = book.price("gpt-5", usage_stating("0"), provider="openai", at=AT)
    assert free is not None
    assert free.dollars == Decimal("1.25")
    assert price_from("vllm", "qwen3-8b", book) is None


def test_a_custom_price_overrides_the_stated_one_from_its_day_on() -> None:
    book = PriceBook([OWN])

    assert price_from("xai", "grok-4", book) == (PriceSource.CUSTOM, Decimal(7))
    before = datetime(2026, 6, 30, tzinfo=UTC).timestamp()
    assert price_from("xai", "grok-4", book, at=before) == (PriceSource.STATED, Decimal("0.25"))
    assert price_from("xai", "another", book) == (PriceSource.STATED, Decimal("0.25"))
