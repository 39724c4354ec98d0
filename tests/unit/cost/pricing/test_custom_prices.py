"""Custom prices: valid values, which one applies, and their effect on the table's prices."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from foveate.cost.pricing.custom_prices import CustomPrice, CustomPriceTier, DollarsPerMillion
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import Price, PriceSource
from foveate.errors import BadOption
from foveate.model import CacheUsage, Ttl, Usage

AT = datetime(2026, 11, 10, 12, tzinfo=UTC).timestamp()
USAGE = Usage(cache=CacheUsage(uncached=1_000_000), output_tokens=1_000_000)
CHEAP = DollarsPerMillion(uncached=Decimal("0.2"), output=Decimal("0.8"))
LONG = CustomPriceTier(over_tokens=1, dollars_per_million=CHEAP)


def price(
    book: PriceBook, model: str, *, usage: Usage = USAGE, provider: str = "vllm", at: float = AT
) -> Price:
    known_price = book.price(model, usage, provider=provider, at=at)
    assert known_price is not None
    return known_price


def test_a_custom_price_applies_to_a_model_missing_from_the_tables() -> None:
    book = PriceBook([CustomPrice(model="qwen3-*", dollars_per_million=CHEAP)])

    custom = price(book, "Qwen/Qwen3-32B")

    assert (custom.dollars, custom.source, custom.sure) == (Decimal("1.0"), PriceSource.CUSTOM, True)
    assert custom.origin == "custom price of qwen3-*"
    assert book.price("llama-3", USAGE, provider="vllm", at=AT) is None


def test_a_model_name_that_is_too_long_has_no_price() -> None:
    book = PriceBook([CustomPrice(model="*", dollars_per_million=CHEAP)])

    assert book.price("/" + "m" * 999, USAGE, provider="vllm", at=AT) is not None
    assert book.price("m" * 1_001, USAGE, provider="vllm", at=AT) is None


def test_kinds_without_a_price_cost_as_much_as_input_or_output() -> None:
    book = PriceBook([CustomPrice(model="*", dollars_per_million=CHEAP)])
    cache = CacheUsage(read=1_000_000, written_5m=1_000_000, written_1h=1_000_000)

    custom = price(book, "any", usage=Usage(cache=cache, output_tokens=1_000_000, reasoning_tokens=400_000))

    assert {custom.read, custom.written_5m, custom.written_1h} == {Decimal("0.2")}
    assert [custom.output, custom.reasoning] == [Decimal("0.8"), 0]


def test_every_kind_can_have_a_price_and_tiers_for_long_inputs() -> None:
    base = DollarsPerMillion(
        uncached=Decimal(1),
        read=Decimal("0.1"),
        written_5m=Decimal("1.25"),
        written_1h=Decimal(2),
        output=Decimal(4),
        reasoning=Decimal(3),
    )
    tiers = (
        CustomPriceTier(over_tokens=5_000_000, dollars_per_million=DollarsPerMillion(uncached=Decimal(9))),
        CustomPriceTier(
            over_tokens=1_000_000, dollars_per_million=DollarsPerMillion(uncached=Decimal(2), output=Decimal(8))
        ),
    )
    book = PriceBook([CustomPrice(model="mine", dollars_per_million=base, tiers=tiers)])

    def dollars(**counts: int) -> Decimal:
        output = counts.pop("output", 0)
        return price(book, "mine", usage=Usage(cache=CacheUsage(**counts), output_tokens=output)).dollars

    assert dollars(uncached=1_000_000, output=1_000_000) == 5
    assert dollars(uncached=2_000_000, output=1_000_000) == 4 + 8
    assert dollars(uncached=6_000_000, output=1_000_000) == 54 + 8
    assert dollars(read=2_000_000) == Decimal("0.2")
    assert dollars(written_1h=500_000) == 1


def test_a_tier_also_changes_kinds_that_inherit_its_price() -> None:
    tier = CustomPriceTier(over_tokens=10, dollars_per_million=DollarsPerMillion(uncached=Decimal(2)))
    book = PriceBook([CustomPrice(model="*", dollars_per_million=CHEAP, tiers=(tier,))])

    assert price(book, "any", usage=Usage(cache=CacheUsage(read=1_000_000))).read == 2


def test_the_price_in_force_on_the_day_of_the_call_applies() -> None:
    def since(day: date | None, dollars: str) -> CustomPrice:
        cost = DollarsPerMillion(uncached=Decimal(dollars), output=Decimal(0))
        return CustomPrice(model="mine", since=day, dollars_per_million=cost)

    book = PriceBook([since(date(2026, 6, 1), "3"), since(None, "1"), since(date(2026, 3, 1), "2")])

    def at(*moment: int) -> Decimal:
        return price(book, "mine", at=datetime(*moment, tzinfo=UTC).timestamp()).uncached

    assert [at(2025, 1, 1), at(2026, 2, 28, 23, 59, 59), at(2026, 3, 1), at(2026, 5, 31), at(2026, 6, 1)] == [
        1,
        1,
        2,
        2,
        3,
    ]
    later = PriceBook([since(date(2026, 6, 1), "3")])
    assert later.price("mine", USAGE, provider="vllm", at=datetime(2026, 5, 31, tzinfo=UTC).timestamp()) is None


def test_the_first_matching_pattern_with_a_price_applies() -> None:
    narrow = CustomPrice(model="gpt-5*", dollars_per_million=CHEAP, since=date(2026, 11, 1))
    wide = CustomPrice(model="*", dollars_per_million=DollarsPerMillion(uncached=Decimal(9), output=Decimal(9)))
    book = PriceBook([narrow, wide])

    assert price(book, "gpt-5").dollars == 1
    assert price(book, "other").dollars == 18
    assert price(book, "gpt-5", at=datetime(2026, 10, 31, tzinfo=UTC).timestamp()).dollars == 18


def test_a_price_for_a_provider_applies_to_all_names_of_that_provider_only() -> None:
    book = PriceBook([CustomPrice(model="claude-*", provider="bedrock", dollars_per_million=CHEAP)])

    assert price(book, "claude-opus-5-5", provider="aws").source is PriceSource.CUSTOM
    assert price(book, "claude-opus-5-5", provider="anthropic").source is PriceSource.TABLE


def test_a_discount_applies_to_all_token_prices_of_the_table() -> None:
    discounted_book = PriceBook([CustomPrice(model="claude-*", discount=Decimal("0.15"))])
    usage = Usage(
        cache=CacheUsage(uncached=7, read=11, written_5m=13, written_1h=17),
        output_tokens=19,
        raw=b'{"input_tokens": 7, "output_tokens": 19, "server_tool_use": {"web_search_requests": 2}}',
    )

    full = price(PriceBook(), "claude-opus-5-5", provider="anthropic", usage=usage)
    discounted = price(discounted_book, "claude-opus-5-5", provider="anthropic", usage=usage)

    assert discounted.source is PriceSource.CUSTOM
    assert discounted.dollars - discounted.other_dollars == (full.dollars - full.other_dollars) * Decimal(
        "0.85"
    )
    assert discounted.other_dollars == full.other_dollars == Decimal("0.02")
    assert discounted_book.price("claude-unheard-of", USAGE, provider="my-proxy", at=AT) is None


def test_a_discount_applies_to_the_table_price_of_each_day() -> None:
    book = PriceBook([CustomPrice(model="*", discount=Decimal("0.5"))])

    def at(*moment: int) -> Decimal:
        timestamp = datetime(*moment, tzinfo=UTC).timestamp()
        return price(book, "gpt-5.6-sol", provider="openai", usage=ONE_MILLION, at=timestamp).dollars

    assert [at(2026, 8, 20), at(2026, 8, 21), at(2026, 8, 20)] == [5, 4, 5]


ONE_MILLION = Usage(cache=CacheUsage(uncached=1_000_000))


def test_a_ceiling_uses_custom_prices() -> None:
    book = PriceBook([CustomPrice(model="*", dollars_per_million=CHEAP)])

    ceiling = book.ceiling(
        "any", provider="vllm", input_tokens=1_000_000, output_tokens=1_000_000, at=AT, ttl=Ttl.ONE_HOUR
    )

    assert ceiling == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": " ", "discount": Decimal(0)}, "needs the name or glob of a model"),
        ({"model": "a"}, "either dollars_per_million or a discount"),
        ({"model": "a", "discount": Decimal(0), "dollars_per_million": CHEAP}, "either"),
        ({"model": "a", "discount": Decimal("1.5")}, "at most 1, not 1.5"),
        ({"model": "a", "discount": Decimal("-0.1")}, "0 or more, not -0.1"),
        ({"model": "a", "discount": Decimal("NaN")}, "0 or more, not NaN"),
        ({"model": "a", "discount": 0.15}, "must be a Decimal"),
        ({"model": "a", "discount": Decimal(0), "tiers": (LONG,)}, "cannot have tiers"),
        ({"model": "a", "dollars_per_million": DollarsPerMillion(uncached=Decimal(1))}, "needs output"),
        ({"model": "a", "dollars_per_million": DollarsPerMillion()}, "needs uncached and output"),
        ({"model": "a", "discount": Decimal(0), "since": datetime(2026, 1, 1, tzinfo=UTC)}, "without a time"),
        (
            {
                "model": "a",
                "dollars_per_million": CHEAP,
                "tiers": (LONG, CustomPriceTier(over_tokens=1, dollars_per_million=DollarsPerMillion())),
            },
            "two tiers",
        ),
    ],
)  # fmt: skip
def test_invalid_custom_prices_are_rejected_with_a_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        CustomPrice(**options)


@pytest.mark.parametrize(
    "dollars", [Decimal(-1), Decimal("NaN"), Decimal("Infinity"), Decimal("1e10"), 0.5, "1"]
)
def test_invalid_dollars_are_rejected_with_the_token_kind(dollars: Any) -> None:
    with pytest.raises(BadOption, match="read") as failure:
        DollarsPerMillion(uncached=Decimal(1), read=dollars)

    assert failure.value.path == ("read",)


@pytest.mark.parametrize("tokens", [-1, 1.5, "9", True])
def test_an_invalid_tier_size_is_rejected(tokens: Any) -> None:
    with pytest.raises(BadOption, match="over_tokens"):
        CustomPriceTier(over_tokens=tokens, dollars_per_million=CHEAP)


def test_a_price_can_have_twelve_decimals() -> None:
    assert DollarsPerMillion(uncached=Decimal("0.123456789012")).uncached is not None
    with pytest.raises(BadOption, match="12 decimals"):
        DollarsPerMillion(uncached=Decimal("0.1234567890123"))


def test_two_prices_of_the_same_models_from_the_same_day_are_rejected() -> None:
    first = CustomPrice(model="GPT-5*", provider="azure", discount=Decimal("0.1"), since=date(2026, 1, 1))
    same = CustomPrice(model="gpt-5*", provider="azure_openai", discount=Decimal("0.2"), since=date(2026, 1, 1))

    with pytest.raises(BadOption, match=r"two prices of gpt-5\* since 2026-01-01") as failure:
        PriceBook([first, same])
    assert failure.value.path == (1,)
    PriceBook([first, CustomPrice(model="gpt-5*", discount=Decimal("0.2"), since=date(2026, 1, 1))])
