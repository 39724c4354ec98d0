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
    found = BOOK.rates(model, provider=provider, at=AT, tier=tier)
    assert found is not None
    return found


def dollars(found: Rates, kind: TokenKind) -> Decimal:
    """Dollars for a million tokens."""
    return found.by_kind[kind].dollars * MILLION


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
def test_an_unknown_model_costs_what_the_most_expensive_of_its_family_does(
    model: str, provider: str, family: str, input_dollars: str, output_dollars: str
) -> None:
    found = rates(model, provider)

    assert found.inherited_from == family
    assert found.assumed
    assert "most expensive" in found.origin
    assert dollars(found, TokenKind.UNCACHED) == Decimal(input_dollars)
    assert dollars(found, TokenKind.OUTPUT) == Decimal(output_dollars)


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


def test_all_kinds_of_tokens_of_an_inherited_price_have_one() -> None:
    found = rates("us.anthropic.claude-opus-9-v1:0", "bedrock")

    assert dollars(found, TokenKind.READ) == Decimal("1.5")
    assert dollars(found, TokenKind.WRITTEN_5M) == Decimal("18.75")
    assert dollars(found, TokenKind.WRITTEN_1H) == 30


def test_writes_of_an_inherited_price_cost_at_least_uncached_input() -> None:
    found = rates("openai/gpt-77-pro", "openrouter")

    assert dollars(found, TokenKind.WRITTEN_5M) >= dollars(found, TokenKind.UNCACHED)


def test_an_inherited_price_has_the_tiers_of_the_family() -> None:
    found = rates("gpt-7", "openai")

    assert found.by_kind[TokenKind.UNCACHED].at(272_001) * MILLION == 20
    assert found.by_kind[TokenKind.OUTPUT].at(272_001) * MILLION == 75
    assert dollars(rates("claude-opus-9", "anthropic", tier="batch"), TokenKind.OUTPUT) == Decimal("37.5")


def test_a_price_and_a_discount_on_it_say_that_they_are_inherited() -> None:
    usage = Usage(cache=CacheUsage(uncached=MILLION))
    cut = PriceBook([CustomPrice(model="claude-*", discount=Decimal("0.5"))])

    whole = BOOK.price("claude-opus-9", usage, provider="anthropic", at=AT)
    half = cut.price("claude-opus-9", usage, provider="anthropic", at=AT)

    assert whole is not None
    assert half is not None
    assert whole.dollars == 15
    assert (whole.inherited_from, whole.sure) == ("claude-opus", False)
    assert (half.dollars, half.inherited_from) == (Decimal("7.5"), "claude-opus")


def test_the_ceiling_of_an_inherited_price_is_known() -> None:
    found = BOOK.ceiling(
        "claude-opus-9",
        provider="anthropic",
        input_tokens=MILLION,
        output_tokens=MILLION,
        at=AT,
        ttl=Ttl.ONE_HOUR,
        region="",
    )

    assert found == 105


_WORDS = st.sampled_from(["opus", "sonnet", "haiku", "fable", "mythos", "saga"])


@given(
    word=_WORDS,
    version=st.integers(6, 99),
    cache=st.tuples(*[st.integers(0, 10**6)] * 4),
    output_tokens=st.integers(0, 10**6),
)
def test_no_member_of_a_family_costs_more_than_what_is_inherited(
    word: str, version: int, cache: tuple[int, int, int, int], output_tokens: int
) -> None:
    uncached, read, written_5m, written_1h = cache
    usage = Usage(
        cache=CacheUsage(uncached=uncached, read=read, written_5m=written_5m, written_1h=written_1h),
        output_tokens=output_tokens,
    )

    bound = BOOK.price(f"claude-{word}-{version}", usage, provider="anthropic", at=AT)

    assert bound is not None
    for known in ("5", "5-1", "5-2", "4-8", "4-5", "4-1", "5-5"):
        member = f"claude-{word}-{known}"
        price = BOOK.price(member, usage, provider="anthropic", at=AT)
        assert price is not None
        assert price.dollars <= bound.dollars


@pytest.mark.slow
def test_every_family_has_members_somewhere() -> None:
    makers_own = (
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
    hosts = (*makers_own, "openrouter", "aws", "cohere")
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
        likely = f"{base[0]}-9-{base[1]}" if len(base) > 1 else f"{base[0]}-99"
        name = names.get(family.id, likely)
        makers = ("", "qwen/", "amazon/", "moonshotai/", "cohere/", "minimax/", "z-ai/", "amazon.")
        found = [
            known.inherited_from
            for host in hosts
            for maker in makers
            if (known := BOOK.rates(maker + name, provider=host, at=AT)) is not None
        ]
        assert family.id in found, family.id


def test_the_price_of_a_family_at_a_weekend_is_not_taken_for_that_of_a_weekday() -> None:
    book = PriceBook()

    def output(day: int) -> Decimal:
        at = datetime(2026, 11, day, 8, 30, tzinfo=UTC).timestamp()  # a peak hour of DeepSeek
        found = book.rates("deepseek-v4-ultra", provider="deepseek", at=at)
        assert found is not None
        return found.by_kind[TokenKind.OUTPUT].dollars * MILLION

    assert (output(21), output(20)) == (Decimal("2.19"), Decimal("3.96"))
