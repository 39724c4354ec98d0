"""Prices that providers document, compared with the price tables (PROVIDERS, November 2026).

Check a new version of the tables that contradicts one of these before adopting it.
"""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.price_facts import SamePriceAs, load_price_facts
from foveate.cost.pricing.price_table import find_schedule
from foveate.cost.pricing.rates import Rates, TokenKind
from foveate.model import CacheUsage, Usage

AT = datetime(2026, 11, 10, 12, tzinfo=UTC).timestamp()


def rates(model: str, provider: str) -> Rates:
    schedule = find_schedule(provider, model)
    assert schedule is not None
    current = schedule.rates_at(AT)
    assert current is not None
    return current


def multiple(model: str, kind: TokenKind, provider: str = "anthropic") -> Decimal:
    by_kind = rates(model, provider).by_kind
    return by_kind[kind].dollars / by_kind[TokenKind.UNCACHED].dollars


CLAUDE = [
    *(f"claude-opus-{version}" for version in ("4-5", "4-6", "4-7", "4-8", "5", "5-5")),
    *(f"claude-sonnet-{version}" for version in ("4-5", "4-6", "5", "5-5")),
    *(
        f"claude-{name}"
        for name in ("haiku-4-5", "haiku-5-5", "fable-5", "fable-5-1", "mythos-5", "mythos-5-1")
    ),
]
CHEAP_READS = {
    "claude-opus-5-5": "0.05",
    "claude-sonnet-5-5": "0.05",
    "claude-fable-5-1": "0.025",
    "claude-mythos-5-1": "0.025",
}


@pytest.mark.parametrize("model", CLAUDE)
def test_claude_cache_writes_and_reads_cost_the_documented_multiples(model: str) -> None:
    assert multiple(model, TokenKind.WRITTEN_5M) == Decimal("1.25")
    assert multiple(model, TokenKind.WRITTEN_1H) == 2
    assert multiple(model, TokenKind.READ) == Decimal(CHEAP_READS.get(model, "0.1"))


@pytest.mark.parametrize("model", CLAUDE)
def test_claude_batches_cost_half(model: str) -> None:
    cache = CacheUsage(uncached=3, read=5, written_5m=7, written_1h=11)
    usage = Usage(cache=cache, output_tokens=13)

    def dollars(tier: str) -> Decimal:
        price = PriceBook().price(model, usage, provider="anthropic", at=AT, tier=tier)
        assert price is not None
        return price.dollars

    assert dollars("batch") * 2 == dollars("standard")


@pytest.mark.parametrize(
    "model", ["gpt-5.6-sol", "gpt-5.6-luna", "gpt-5.6-terra", "gpt-6.1-sol", "gpt-6-astra"]
)
def test_openai_cache_writes_cost_1_25_times_input_from_gpt_5_6_on_for_every_ttl(model: str) -> None:
    assert multiple(model, TokenKind.WRITTEN_5M, "openai") == Decimal("1.25")
    assert multiple(model, TokenKind.WRITTEN_1H, "openai") == Decimal("1.25")
    assert multiple(model, TokenKind.READ, "openai") == Decimal("0.05" if model == "gpt-6.1-sol" else "0.1")


@pytest.mark.parametrize(
    ("model", "read"),
    [("gpt-4o", "0.5"), ("gpt-4.1", "0.25"), ("o3", "0.25"), ("o4-mini", "0.25"), ("gpt-5", "0.1")],
)
def test_before_gpt_5_6_openai_reads_cost_the_documented_multiple_and_writes_are_free(
    model: str, read: str
) -> None:
    assert multiple(model, TokenKind.READ, "openai") == Decimal(read)
    assert TokenKind.WRITTEN_5M not in rates(model, "openai").by_kind


@pytest.mark.parametrize("model", ["gpt-5.4", "gpt-5.5", "gpt-5.6-sol", "gpt-6.1-sol"])
def test_inputs_over_272_thousand_tokens_raise_the_price_of_every_kind(model: str) -> None:
    for kind in (TokenKind.UNCACHED, TokenKind.READ, TokenKind.OUTPUT):
        rate = rates(model, "openai").by_kind[kind]
        assert rate.at(272_000) < rate.at(272_001)


def test_nova_cache_writes_cost_as_much_as_input() -> None:
    assert multiple("us.amazon.nova-pro-v1:0", TokenKind.WRITTEN_5M, "bedrock") == 1


def test_every_price_fact_has_a_source_and_a_date() -> None:
    facts = load_price_facts()

    for fact in (*facts.likes, *facts.costs_as, *facts.free, *facts.multiples):
        assert fact.source
        assert fact.as_of >= "2026"


def test_every_provider_alias_maps_to_a_provider() -> None:
    providers = load_price_facts().providers

    assert all(providers[name] == identity for name, identity in providers.items())
    assert all(providers[identity] == identity for identity in providers.values())


@pytest.mark.parametrize("like", load_price_facts().likes, ids=lambda like: like.like)
def test_same_price_entries_refer_to_models_of_the_tables(like: SamePriceAs) -> None:
    assert find_schedule(like.provider, like.like) is not None
