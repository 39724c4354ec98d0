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


def bill(said: str) -> Usage:
    return Usage(cache=CacheUsage(uncached=1_000_000), said_dollars=Decimal(said))


def said_by(
    provider: str, model: str, book: PriceBook, *, at: float = AT
) -> tuple[PriceSource, Decimal] | None:
    found = book.price(model, bill("0.25"), provider=provider, at=at)
    return None if found is None else (found.source, found.dollars)


@pytest.mark.parametrize("provider", ["openrouter", "OpenRouter", "perplexity", "pplx", "x-ai", "xai"])
def test_a_price_stated_by_a_trusted_provider_is_used(provider: str) -> None:
    assert said_by(provider, "whatever", PriceBook()) == (PriceSource.STATED, Decimal("0.25"))


def test_a_price_stated_by_another_upstream_is_ignored() -> None:
    """Regression: any upstream could make a call free with `cost: 0`."""
    book = PriceBook()

    assert said_by("openai", "gpt-5", book) == (PriceSource.TABLE, Decimal("1.25"))
    free = book.price("gpt-5", bill("0"), provider="openai", at=AT)
    assert free is not None
    assert free.dollars == Decimal("1.25")
    assert said_by("vllm", "qwen3-8b", book) is None


def test_a_custom_price_overrides_the_stated_one_from_its_day_on() -> None:
    book = PriceBook([OWN])

    assert said_by("xai", "grok-4", book) == (PriceSource.CUSTOM, Decimal(7))
    before = datetime(2026, 6, 30, tzinfo=UTC).timestamp()
    assert said_by("xai", "grok-4", book, at=before) == (PriceSource.STATED, Decimal("0.25"))
    assert said_by("xai", "another", book) == (PriceSource.STATED, Decimal("0.25"))
