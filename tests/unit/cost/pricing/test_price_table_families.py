"""Models without a price cost as much as the most expensive known member of their family."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.cost.pricing.custom_prices import CustomPrice
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.price_facts import load_price_facts
from foveate.cost.pricing.rates import Rates, TokenKind
from foveate.model import CacheUsage, Ttl, Usage

AT = datetime(2026, 11, 17, 12, tzinfo=UTC).timestamp()
BOOK = PriceBook()
MILLION = 1_000_000


def rates(model: str, provider: str, *, tier: str = "") -> Rates:
    model_rates = BOOK.rates(model, provider=provider, at=AT, tier=tier)
    assert model_rates is not None
    return model_rates


def dollars(model_rates: Rates, kind: TokenKind) -> Decimal:
    """Dollars for a million tokens."""
    return model_rates.by_kind[kind].dollars * MILLION


@pytest.mark.parametrize(
    ("model", "provider", "family", "input_dollars", "output_dollars"),
    [
        ("claude-opus-9", "anthropic", "claude-opus", "15", "75"),
        ("claude-opus-4-10", "anthropic", "claude-opus", "15", "75"),
        ("claude-opus-9-20270304", "anthropic", "claude-opus", "15", "75"),
        ("claude-opus-9-latest", "anthropic", "claude-opus", "15", "75"),
        ("claude-opus-9[1m]", "anthropic", "claude-opus", "15", "75"),
        ("anthropic/claude-opus-9", "anthropic", "claude-opus", "15", "75"),
        ("us.anthropic.claude-opus-9-v1:0", "bedrock", "claude-opus", "15", "75"),
        ("claude-opus-9@20270304", "vertex", "claude-opus", "15", "75"),
        ("publishers/anthropic/models/claude-opus-9", "vertex", "claude-opus", "15", "75"),
        ("anthropic/claude-opus-9", "openrouter", "claude-opus", "15", "75"),
        ("claude-sonnet-6", "anthropic", "claude-sonnet", "3", "15"),
        ("claude-haiku-6", "anthropic", "claude-haiku", "1", "5"),
        ("claude-fable-6", "anthropic", "claude-fable", "10", "50"),
        ("claude-mythos-6", "anthropic", "claude-fable", "10", "50"),
        ("claude-saga-1", "anthropic", "claude", "15", "75"),
        ("gpt-5.7", "openai", "gpt", "10", "50"),
        ("gpt-7", "openai", "gpt", "10", "50"),
        ("gpt-7", "azure", "gpt", "10", "50"),
        ("gpt-7-sol", "openai", "gpt-sol", "4", "20"),
        ("gpt-7-pro", "openai", "gpt-pro", "30", "180"),
        ("gemini-5-flash", "google", "gemini-flash", "1.5", "9"),
        ("grok-6", "xai", "grok", "3", "15"),
        ("deepseek-v5", "deepseek", "deepseek", "0.66", "2.19"),
    ],
)
def test_an_unknown_model_costs_as_much_as_the_most_expensive_of_its_family(
    model: str, provider: str, family: str, input_dollars: str, output_dollars: str
) -> None:
    model_rates = rates(model, provider)

    assert model_rates.inherited_from == family
    assert model_rates.assumed
    assert "most expensive" in model_rates.origin
    assert dollars(model_rates, TokenKind.UNCACHED) == Decimal(input_dollars)
    assert dollars(model_rates, TokenKind.OUTPUT) == Decimal(output_dollars)


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("my-model", "openai"),
        ("gpt-7", "my-proxy"),
        ("claude-opus-9", ""),
        ("claude-opus-9", "vllm"),
        ("qwen-9", "openai"),
        ("anthropic/gpt-7", "openai"),
        ("gpt-7-image", "openai"),
        ("gpt-7-realtime", "openai"),
        ("text-embedding-9", "openai"),
        ("gpt-oss-9", "openai"),
    ],
)
def test_a_model_without_a_family_at_its_provider_stays_unknown(model: str, provider: str) -> None:
    assert BOOK.rates(model, provider=provider, at=AT) is None


def test_a_known_model_inherits_nothing() -> None:
    assert not rates("claude-opus-5-5", "anthropic").inherited_from


def test_an_inherited_price_covers_all_token_kinds() -> None:
    model_rates = rates("us.anthropic.claude-opus-9-v1:0", "bedrock")

    assert dollars(model_rates, TokenKind.READ) == Decimal("1.5")
    assert dollars(model_rates, TokenKind.WRITTEN_5M) == Decimal("18.75")
    assert dollars(model_rates, TokenKind.WRITTEN_1H) == 30


def test_writes_of_an_inherited_price_cost_at_least_uncached_input() -> None:
    model_rates = rates("openai/gpt-77-pro", "openrouter")

    assert dollars(model_rates, TokenKind.WRITTEN_5M) >= dollars(model_rates, TokenKind.UNCACHED)


def test_an_inherited_price_has_the_tiers_of_the_family() -> None:
    model_rates = rates("gpt-7", "openai")

    assert model_rates.by_kind[TokenKind.UNCACHED].at(272_001) * MILLION == 20
    assert model_rates.by_kind[TokenKind.OUTPUT].at(272_001) * MILLION == 75
    assert dollars(rates("claude-opus-9", "anthropic", tier="batch"), TokenKind.OUTPUT) == Decimal("37.5")


def test_a_price_and_a_discounted_price_name_their_family() -> None:
    usage = Usage(cache=CacheUsage(uncached=MILLION))
    discounted_book = PriceBook([CustomPrice(model="claude-*", discount=Decimal("0.5"))])

    full_price = BOOK.price("claude-opus-9", usage, provider="anthropic", at=AT)
    discounted_price = discounted_book.price("claude-opus-9", usage, provider="anthropic", at=AT)

    assert full_price is not None
    assert discounted_price is not None
    assert full_price.dollars == 15
    assert (full_price.inherited_from, full_price.sure) == ("claude-opus", False)
    assert (discounted_price.dollars, discounted_price.inherited_from) == (Decimal("7.5"), "claude-opus")


def test_the_ceiling_of_an_inherited_price_is_known() -> None:
    ceiling = BOOK.ceiling(
        "claude-opus-9",
        provider="anthropic",
        input_tokens=MILLION,
        output_tokens=MILLION,
        at=AT,
        ttl=Ttl.ONE_HOUR,
        region="",
    )

    assert ceiling == 105


_WORDS = st.sampled_from(["opus", "sonnet", "haiku", "fable", "mythos", "saga"])


@given(
    word=_WORDS,
    version=st.integers(6, 99),
    cache=st.tuples(*[st.integers(0, 10**6)] * 4),
    output_tokens=st.integers(0, 10**6),
)
def test_no_member_of_a_family_costs_more_than_the_inherited_price(
    word: str, version: int, cache: tuple[int, int, int, int], output_tokens: int
) -> None:
    uncached, read, written_5m, written_1h = cache
    usage = Usage(
        cache=CacheUsage(uncached=uncached, read=read, written_5m=written_5m, written_1h=written_1h),
        output_tokens=output_tokens,
    )

    inherited = BOOK.price(f"claude-{word}-{version}", usage, provider="anthropic", at=AT)

    assert inherited is not None
    for member_version in ("5", "5-1", "5-2", "4-8", "4-5", "4-1", "5-5"):
        member = f"claude-{word}-{member_version}"
        price = BOOK.price(member, usage, provider="anthropic", at=AT)
        assert price is not None
        assert price.dollars <= inherited.dollars


@pytest.mark.slow
def test_every_family_has_members_at_some_provider() -> None:
    model_makers = (
        "anthropic",
        "openai",
        "google",
        "deepseek",
        "x-ai",
        "mistral",
        "moonshotai",
        "zai",
        "minimax",
    )
    hosts = (*model_makers, "openrouter", "aws", "cohere")
    names = {
        "claude-opus": "claude-opus-9",
        "gpt-pro": "gpt-9-pro",
        "gpt-4": "gpt-4-9",
        "gpt-3.5": "gpt-3-9",
        "o": "o9",
        "o-pro": "o9-pro",
        "o-mini": "o9-mini",
        "gpt": "gpt-9",
        "command": "command-zzz",
        "claude": "claude-zzz",
    }
    for family in load_price_facts().families:
        base = family.id.split("-", 1)
        default_name = f"{base[0]}-9-{base[1]}" if len(base) > 1 else f"{base[0]}-99"
        name = names.get(family.id, default_name)
        prefixes = ("", "qwen/", "amazon/", "moonshotai/", "cohere/", "minimax/", "z-ai/", "amazon.")
        inherited_families = [
            model_rates.inherited_from
            for host in hosts
            for prefix in prefixes
            if (model_rates := BOOK.rates(prefix + name, provider=host, at=AT)) is not None
        ]
        assert family.id in inherited_families, family.id


def test_family_prices_differ_between_weekends_and_weekdays() -> None:
    book = PriceBook()

    def output(day: int) -> Decimal:
        at = datetime(2026, 11, day, 8, 30, tzinfo=UTC).timestamp()  # a peak hour of DeepSeek
        model_rates = book.rates("deepseek-v4-ultra", provider="deepseek", at=at)
        assert model_rates is not None
        return model_rates.by_kind[TokenKind.OUTPUT].dollars * MILLION

    assert (output(21), output(20)) == (Decimal("2.19"), Decimal("3.96"))


def test_a_dearer_variant_does_not_have_the_price_of_the_plain_model() -> None:
    assert rates("gemini-3.8-flash", "google").inherited_from == ""
    assert rates("gemini-3.8-flash-cyber", "google").inherited_from == "gemini-flash"
    assert rates("gpt-5.5-cyber", "openai").inherited_from == ""


def test_a_fine_tuned_model_does_not_inherit_because_it_costs_more() -> None:
    assert BOOK.rates("ft:o4-mini-2025-04-16:house::1", provider="openai", at=AT) is None
    assert rates("ft:gpt-4o-mini-2024-07-18:house::1", "openai").inherited_from == ""


def test_a_dated_search_model_has_the_price_of_the_model() -> None:
    dated, plain = rates("gpt-5-search-api-2025-10-14", "openai"), rates("gpt-5-search-api", "openai")

    assert dated.by_kind == plain.by_kind
