"""The cost of a call without Foveate, and the savings of each mechanism."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from foveate.cost.ledger import Category
from foveate.cost.pricing.custom_prices import CustomPrice, CustomPriceTier, DollarsPerMillion
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.savings import (
    PriceUsage,
    add_savings,
    compare_costs,
    make_own_call_savings,
    make_price_function,
    make_unchanged_savings,
)
from foveate.model import CacheUsage, ComparisonOutcome, Savings, SimulatedState, Usage
from tests.support.stores.ledger_records import CALL

TEN = DollarsPerMillion(
    uncached=Decimal(10),
    read=Decimal(1),
    written_5m=Decimal("12.5"),
    written_1h=Decimal(20),
    output=Decimal(50),
)
AT = datetime(2026, 11, 10, tzinfo=UTC).timestamp()
ZERO = Decimal(0)


def make_price_usage(*tiers: CustomPriceTier) -> PriceUsage:
    return make_price_function(PriceBook([CustomPrice(model="*", dollars_per_million=TEN, tiers=tiers)]), CALL)


def make_usage(**tokens: int) -> Usage:
    return Usage(cache=CacheUsage(**tokens), output_tokens=1_000)


def simulated_states(*usages: CacheUsage) -> Mapping[SimulatedState, CacheUsage]:
    """The states in order; the last one is repeated for missing ones."""
    return {state: usages[min(index, len(usages) - 1)] for index, state in enumerate(SimulatedState)}


def compare(usage: Usage, *usages: CacheUsage, price: PriceUsage | None = None) -> Savings:
    price = price or make_price_usage()
    return compare_costs(usage, price(usage), price, simulated_states(*usages))


def test_each_mechanism_saved_the_difference_between_its_state_and_the_one_before() -> None:
    savings = compare(
        make_usage(read=10_000),
        CacheUsage(uncached=100_000),  # the client's own request: $1.00
        CacheUsage(uncached=20_000),  # compacted: $0.20
        CacheUsage(uncached=20_000),
        CacheUsage(written_5m=10_000),  # with breakpoints: $0.125
        CacheUsage(read=10_000),  # kept alive: $0.01
    )

    assert savings == Savings(
        comparison=ComparisonOutcome.SIMULATED,
        without=Decimal("1.05"),
        compaction=Decimal("0.80"),
        context=ZERO,
        breakpoints=Decimal("0.075"),
        keep_alive=Decimal("0.115"),
        simulation_error=ZERO,
    )
    assert savings.total == Decimal("0.99")


def test_a_client_without_gains_has_no_savings() -> None:
    unchanged = CacheUsage(read=9_000, written_5m=1_000)

    savings = compare(make_usage(read=9_000, written_5m=1_000), unchanged)

    assert savings.total == savings.simulation_error == ZERO


def test_a_loss_is_a_negative_saving() -> None:
    savings = compare(
        make_usage(written_5m=10_000), *([CacheUsage(uncached=10_000)] * 3), CacheUsage(written_5m=10_000)
    )

    assert savings.breakpoints == Decimal("-0.025")


def test_an_unexpected_cache_hit_is_a_simulation_error_and_not_a_saving() -> None:
    savings = compare(make_usage(read=10_000), CacheUsage(uncached=10_000))

    assert savings.total == ZERO
    assert savings.simulation_error == Decimal("-0.09")
    assert savings.without == Decimal("0.15")


def test_estimated_tokens_are_scaled_to_the_reported_tokens() -> None:
    savings = compare(make_usage(uncached=12_000), CacheUsage(uncached=20_000), CacheUsage(uncached=10_000))

    assert savings.compaction == Decimal("0.12")
    assert savings.simulation_error == ZERO


def test_compaction_can_save_the_price_of_a_higher_tier_for_the_whole_call() -> None:
    expensive_tier = CustomPriceTier(
        over_tokens=200_000, dollars_per_million=DollarsPerMillion(uncached=Decimal(20), output=Decimal(100))
    )
    usage = Usage(cache=CacheUsage(uncached=150_000), output_tokens=10_000)

    savings = compare(
        usage,
        CacheUsage(uncached=250_000),
        CacheUsage(uncached=150_000),
        price=make_price_usage(expensive_tier),
    )

    assert savings.compaction == Decimal("5") + Decimal("1") - Decimal("1.5") - Decimal("0.5")


def test_a_call_of_unknown_price_is_not_compared() -> None:
    def unknown(_: Usage) -> None:
        return None

    usage = make_usage(uncached=5)
    assert compare_costs(usage, None, unknown, {}) == Savings()
    assert (
        compare_costs(usage, Decimal(1), unknown, simulated_states(CacheUsage(uncached=9), CacheUsage(read=5)))
        == Savings()
    )


def test_a_call_without_simulated_states_costs_the_same_without_foveate() -> None:
    assert compare_costs(make_usage(read=7), Decimal(3), make_price_usage(), {}) == make_unchanged_savings(
        Decimal(3)
    )
    assert make_unchanged_savings(Decimal(3)).without == Decimal(3)
    assert make_unchanged_savings(Decimal(3)).total == ZERO


@pytest.mark.parametrize(
    ("category", "part"), [(Category.COMPACTION, "compaction"), (Category.PING, "keep_alive")]
)
def test_a_call_that_foveate_makes_itself_counts_against_its_mechanism(category: Category, part: str) -> None:
    savings = make_own_call_savings(structs.replace(CALL, category=category), Decimal("0.02"))

    assert savings.without == ZERO
    assert getattr(savings, part) == savings.total == Decimal("-0.02")


def test_a_stated_price_is_used_and_differences_follow_token_prices() -> None:
    usage = structs.replace(make_usage(read=10_000), reported_dollars=Decimal(7))

    savings = compare_costs(
        usage,
        Decimal(7),
        make_price_usage(),
        simulated_states(CacheUsage(uncached=10_000), CacheUsage(read=10_000)),
    )

    assert savings.without == Decimal("7.09")


@pytest.mark.parametrize(("stated", "without"), [("0", "0"), ("0.03", "0.075"), ("0.06", "0.15")])
def test_savings_are_scaled_to_a_lower_stated_price(stated: str, without: str) -> None:
    usage = structs.replace(make_usage(read=10_000), reported_dollars=Decimal(stated))
    simulated = simulated_states(CacheUsage(uncached=10_000), CacheUsage(read=10_000))

    savings = compare_costs(usage, Decimal(stated), make_price_usage(), simulated)

    assert savings.without == Decimal(without)


def test_savings_include_the_surcharge_of_a_region() -> None:
    """Claude in the US costs 1.1 times as much, including reads and writes."""
    price = make_price_function(PriceBook(), structs.replace(CALL, model="claude-opus-5-5", at=AT))
    simulated = simulated_states(CacheUsage(uncached=90_000), CacheUsage(read=90_000))
    usage = make_usage(read=90_000)
    us_usage = structs.replace(usage, raw=b'{"inference_geo":"us"}')

    base_saving = compare_costs(usage, price(usage), price, simulated).total

    assert base_saving is not None
    assert compare_costs(us_usage, price(us_usage), price, simulated).total == base_saving * Decimal("1.1")


tokens = st.integers(0, 2_000_000)
usages = st.builds(CacheUsage, uncached=tokens, read=tokens, written_5m=tokens, written_1h=tokens)


@given(usages, st.lists(usages, min_size=5, max_size=5))
def test_the_parts_always_add_up_to_the_charge(reported: CacheUsage, simulated: list[CacheUsage]) -> None:
    usage = Usage(cache=reported, output_tokens=7)
    charged = make_price_usage()(usage)
    assert charged is not None

    savings = compare_costs(usage, charged, make_price_usage(), simulated_states(*simulated))

    assert savings.without is not None
    assert savings.total is not None
    assert savings.simulation_error is not None
    assert savings.without - savings.total + savings.simulation_error == charged


@given(usages, usages)
def test_equal_states_never_save_anything(reported: CacheUsage, simulated: CacheUsage) -> None:
    assert compare(Usage(cache=reported), simulated).total == ZERO


def test_sums_ignore_calls_with_unknown_savings() -> None:
    savings = add_savings([make_unchanged_savings(Decimal(1)), Savings(), make_unchanged_savings(Decimal(2))])

    assert savings.without == Decimal(3)
    assert savings.total == ZERO
    assert add_savings([Savings()]).total is None
