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
    found = book.price(model, usage, provider=provider, at=at)
    assert found is not None
    return found


def test_a_model_that_no_table_has_gets_a_price() -> None:
    book = PriceBook([CustomPrice(model="qwen3-*", dollars_per_million=CHEAP)])

    found = price(book, "Qwen/Qwen3-32B")

    assert (found.dollars, found.source, found.sure) == (Decimal("1.0"), PriceSource.CUSTOM, True)
    assert found.origin == "own price of qwen3-*"
    assert book.price("llama-3", USAGE, provider="vllm", at=AT) is None


def test_a_name_that_no_model_can_have_has_no_price() -> None:
    book = PriceBook([CustomPrice(model="*", dollars_per_million=CHEAP)])

    assert book.price("/" + "m" * 999, USAGE, provider="vllm", at=AT) is not None
    assert book.price("m" * 1_001, USAGE, provider="vllm", at=AT) is None


def test_a_kind_that_is_not_given_costs_as_its_like() -> None:
    book = PriceBook([CustomPrice(model="*", dollars_per_million=CHEAP)])
    cache = CacheUsage(read=1_000_000, written_5m=1_000_000, written_1h=1_000_000)

    found = price(book, "any", usage=Usage(cache=cache, output_tokens=1_000_000, reasoning_tokens=400_000))

    assert {found.read, found.written_5m, found.written_1h} == {Decimal("0.2")}
    assert [found.output, found.reasoning] == [Decimal("0.8"), 0]


def test_every_kind_can_have_a_price_and_a_long_input_another() -> None:
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


def test_a_tier_changes_what_costs_as_its_kind_too() -> None:
    tier = CustomPriceTier(over_tokens=10, dollars_per_million=DollarsPerMillion(uncached=Decimal(2)))
    book = PriceBook([CustomPrice(model="*", dollars_per_million=CHEAP, tiers=(tier,))])

    assert price(book, "any", usage=Usage(cache=CacheUsage(read=1_000_000))).read == 2


def test_of_several_days_the_one_in_force_holds_and_the_past_keeps_its_price() -> None:
    def since(day: date | None, dollars: str) -> CustomPrice:
        cost = DollarsPerMillion(uncached=Decimal(dollars), output=Decimal(0))
        return CustomPrice(model="mine", since=day, dollars_per_million=cost)

    book = PriceBook([since(date(2026, 6, 1), "3"), since(None, "1"), since(date(2026, 3, 1), "2")])

    def at(*moment: int) -> Decimal:
        return price(book, "mine", at=datetime(*moment, tzinfo=UTC).timestamp()).uncached  # type: ignore[misc,arg-type]

    assert [at(2025, 1, 1), at(2026, 2, 28, 23, 59, 59), at(2026, 3, 1), at(2026, 5, 31), at(2026, 6, 1)] == [
        1,
        1,
        2,
        2,
        3,
    ]
    later = PriceBook([since(date(2026, 6, 1), "3")])
    assert later.price("mine", USAGE, provider="vllm", at=datetime(2026, 5, 31, tzinfo=UTC).timestamp()) is None


def test_the_first_pattern_that_has_a_price_holds() -> None:
    narrow = CustomPrice(model="gpt-5*", dollars_per_million=CHEAP, since=date(2026, 11, 1))
    wide = CustomPrice(model="*", dollars_per_million=DollarsPerMillion(uncached=Decimal(9), output=Decimal(9)))
    book = PriceBook([narrow, wide])

    assert price(book, "gpt-5").dollars == 1
    assert price(book, "other").dollars == 18
    assert price(book, "gpt-5", at=datetime(2026, 10, 31, tzinfo=UTC).timestamp()).dollars == 18


def test_a_price_at_a_provider_holds_there_alone_whatever_that_is_called() -> None:
    book = PriceBook([CustomPrice(model="claude-*", provider="bedrock", dollars_per_million=CHEAP)])

    assert price(book, "claude-opus-5-5", provider="aws").source is PriceSource.CUSTOM
    assert price(book, "claude-opus-5-5", provider="anthropic").source is PriceSource.TABLE


def test_a_discount_is_off_every_token_of_the_tables_price() -> None:
    cut = PriceBook([CustomPrice(model="claude-*", discount=Decimal("0.15"))])
    usage = Usage(
        cache=CacheUsage(uncached=7, read=11, written_5m=13, written_1h=17),
        output_tokens=19,
        raw=b'{"input_tokens": 7, "output_tokens": 19, "server_tool_use": {"web_search_requests": 2}}',
    )

    full = price(PriceBook(), "claude-opus-5-5", provider="anthropic", usage=usage)
    less = price(cut, "claude-opus-5-5", provider="anthropic", usage=usage)

    assert less.source is PriceSource.CUSTOM
    assert less.dollars - less.other_dollars == (full.dollars - full.other_dollars) * Decimal("0.85")
    assert less.other_dollars == full.other_dollars == Decimal("0.02")
    assert cut.price("claude-unheard-of", USAGE, provider="my-proxy", at=AT) is None


def test_a_discount_follows_the_table_through_time() -> None:
    book = PriceBook([CustomPrice(model="*", discount=Decimal("0.5"))])

    def at(*moment: int) -> Decimal:
        when = datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]
        return price(book, "gpt-5.6-sol", provider="openai", usage=ONE_MILLION, at=when).dollars

    assert [at(2026, 8, 20), at(2026, 8, 21), at(2026, 8, 20)] == [5, 4, 5]


ONE_MILLION = Usage(cache=CacheUsage(uncached=1_000_000))


def test_a_ceiling_uses_custom_prices() -> None:
    book = PriceBook([CustomPrice(model="*", dollars_per_million=CHEAP)])

    found = book.ceiling(
        "any", provider="vllm", input_tokens=1_000_000, output_tokens=1_000_000, at=AT, ttl=Ttl.ONE_HOUR
    )

    assert found == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": " ", "discount": Decimal(0)}, "needs the name of a model"),
        ({"model": "a"}, "either dollars_per_million or a discount"),
        ({"model": "a", "discount": Decimal(0), "dollars_per_million": CHEAP}, "either"),
        ({"model": "a", "discount": Decimal("1.5")}, "at most 1: 1.5"),
        ({"model": "a", "discount": Decimal("-0.1")}, "not below zero: -0.1"),
        ({"model": "a", "discount": Decimal("NaN")}, "not below zero: NaN"),
        ({"model": "a", "discount": 0.15}, "must be a decimal number"),
        ({"model": "a", "discount": Decimal(0), "tiers": (LONG,)}, "no tiers"),
        ({"model": "a", "dollars_per_million": DollarsPerMillion(uncached=Decimal(1))}, "lacks output"),
        ({"model": "a", "dollars_per_million": DollarsPerMillion()}, "lacks uncached and output"),
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
def test_what_cannot_be_a_price_is_refused_with_its_reason(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadOption, match=says):
        CustomPrice(**options)


@pytest.mark.parametrize(
    "dollars", [Decimal(-1), Decimal("NaN"), Decimal("Infinity"), Decimal("1e10"), 0.5, "1"]
)
def test_what_cannot_be_dollars_is_refused_by_its_kind(dollars: Any) -> None:
    with pytest.raises(BadOption, match="read") as refused:
        DollarsPerMillion(uncached=Decimal(1), read=dollars)

    assert refused.value.path == ("read",)


@pytest.mark.parametrize("tokens", [-1, 1.5, "9", True])
def test_what_cannot_be_a_size_is_refused(tokens: Any) -> None:
    with pytest.raises(BadOption, match="over_tokens"):
        CustomPriceTier(over_tokens=tokens, dollars_per_million=CHEAP)


def test_a_price_can_have_twelve_decimals() -> None:
    assert DollarsPerMillion(uncached=Decimal("0.123456789012")).uncached is not None
    with pytest.raises(BadOption, match="12 decimals"):
        DollarsPerMillion(uncached=Decimal("0.1234567890123"))


def test_two_prices_of_the_same_models_from_the_same_day_are_refused() -> None:
    first = CustomPrice(model="GPT-5*", provider="azure", discount=Decimal("0.1"), since=date(2026, 1, 1))
    same = CustomPrice(model="gpt-5*", provider="azure_openai", discount=Decimal("0.2"), since=date(2026, 1, 1))

    with pytest.raises(BadOption, match=r"two prices of gpt-5\* since 2026-01-01") as refused:
        PriceBook([first, same])
    assert refused.value.path == (1,)
    PriceBook([first, CustomPrice(model="gpt-5*", discount=Decimal("0.2"), since=date(2026, 1, 1))])
