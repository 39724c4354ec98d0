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
from foveate.model import CacheUsage, Comparison, Savings, SimulatedState, Usage
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


def priced(*tiers: CustomPriceTier) -> PriceUsage:
    return make_price_function(PriceBook([CustomPrice(model="*", dollars_per_million=TEN, tiers=tiers)]), CALL)


def used(**tokens: int) -> Usage:
    return Usage(cache=CacheUsage(**tokens), output_tokens=1_000)


def states(*usages: CacheUsage) -> Mapping[SimulatedState, CacheUsage]:
    """The states in order; the last one is repeated for missing ones."""
    return {state: usages[min(at, len(usages) - 1)] for at, state in enumerate(SimulatedState)}


def compared(usage: Usage, *usages: CacheUsage, price: PriceUsage | None = None) -> Savings:
    price = price or priced()
    return compare_costs(usage, price(usage), price, states(*usages))


def test_each_mechanism_saved_the_difference_between_its_state_and_the_one_before() -> None:
    found = compared(
        used(read=10_000),
        CacheUsage(uncached=100_000),  # the client's own request: $1.00
        CacheUsage(uncached=20_000),  # compacted: $0.20
        CacheUsage(uncached=20_000),
        CacheUsage(written_5m=10_000),  # with breakpoints: $0.125
        CacheUsage(read=10_000),  # kept alive: $0.01
    )

    assert found == Savings(
        comparison=Comparison.SIMULATED,
        without=Decimal("1.05"),
        compaction=Decimal("0.80"),
        context=ZERO,
        breakpoints=Decimal("0.075"),
        keep_alive=Decimal("0.115"),
        simulation_error=ZERO,
    )
    assert found.total == Decimal("0.99")


def test_a_client_that_gains_nothing_is_shown_nothing() -> None:
    same = CacheUsage(read=9_000, written_5m=1_000)

    found = compared(used(read=9_000, written_5m=1_000), same)

    assert found.total == found.simulation_error == ZERO


def test_a_loss_is_negative() -> None:
    found = compared(
        used(written_5m=10_000), *([CacheUsage(uncached=10_000)] * 3), CacheUsage(written_5m=10_000)
    )

    assert found.breakpoints == Decimal("-0.025")


def test_a_hit_that_was_not_simulated_is_a_simulation_error_and_no_saving() -> None:
    found = compared(used(read=10_000), CacheUsage(uncached=10_000))

    assert found.total == ZERO
    assert found.simulation_error == Decimal("-0.09")
    assert found.without == Decimal("0.15")


def test_estimated_tokens_are_scaled_to_those_that_the_provider_reports() -> None:
    found = compared(used(uncached=12_000), CacheUsage(uncached=20_000), CacheUsage(uncached=10_000))

    assert found.compaction == Decimal("0.12")
    assert found.simulation_error == ZERO


def test_compaction_can_save_the_price_of_a_higher_tier_for_the_whole_call() -> None:
    dear = CustomPriceTier(
        over_tokens=200_000, dollars_per_million=DollarsPerMillion(uncached=Decimal(20), output=Decimal(100))
    )
    usage = Usage(cache=CacheUsage(uncached=150_000), output_tokens=10_000)

    found = compared(usage, CacheUsage(uncached=250_000), CacheUsage(uncached=150_000), price=priced(dear))

    assert found.compaction == Decimal("5") + Decimal("1") - Decimal("1.5") - Decimal("0.5")


def test_a_call_of_unknown_price_is_not_compared() -> None:
    def unknown(_: Usage) -> None:
        return None

    usage = used(uncached=5)
    assert compare_costs(usage, None, unknown, {}) == Savings()
    assert (
        compare_costs(usage, Decimal(1), unknown, states(CacheUsage(uncached=9), CacheUsage(read=5)))
        == Savings()
    )


def test_a_call_that_nothing_could_change_costs_the_same_without_foveate() -> None:
    assert compare_costs(used(read=7), Decimal(3), priced(), {}) == make_unchanged_savings(Decimal(3))
    assert make_unchanged_savings(Decimal(3)).without == Decimal(3)
    assert make_unchanged_savings(Decimal(3)).total == ZERO


@pytest.mark.parametrize(
    ("category", "part"), [(Category.COMPACTION, "compaction"), (Category.PING, "keep_alive")]
)
def test_a_call_that_foveate_makes_itself_counts_against_its_mechanism(category: Category, part: str) -> None:
    found = make_own_call_savings(structs.replace(CALL, category=category), Decimal("0.02"))

    assert found.without == ZERO
    assert getattr(found, part) == found.total == Decimal("-0.02")


def test_a_stated_price_is_used_and_differences_follow_token_prices() -> None:
    usage = structs.replace(used(read=10_000), said_dollars=Decimal(7))

    found = compare_costs(
        usage, Decimal(7), priced(), states(CacheUsage(uncached=10_000), CacheUsage(read=10_000))
    )

    assert found.without == Decimal("7.09")


@pytest.mark.parametrize(("stated", "without"), [("0", "0"), ("0.03", "0.075"), ("0.06", "0.15")])
def test_a_provider_that_states_a_lower_price_makes_savings_as_much_smaller(stated: str, without: str) -> None:
    usage = structs.replace(used(read=10_000), said_dollars=Decimal(stated))
    simulated = states(CacheUsage(uncached=10_000), CacheUsage(read=10_000))

    found = compare_costs(usage, Decimal(stated), priced(), simulated)

    assert found.without == Decimal(without)


def test_what_costs_more_in_one_region_saves_more_there() -> None:
    """Claude in the US costs 1.1 times as much, including reads and writes."""
    price = make_price_function(PriceBook(), structs.replace(CALL, model="claude-opus-5-5", at=AT))
    simulated = states(CacheUsage(uncached=90_000), CacheUsage(read=90_000))
    usage = used(read=90_000)
    there = structs.replace(usage, raw=b'{"inference_geo":"us"}')

    usual = compare_costs(usage, price(usage), price, simulated).total

    assert usual is not None
    assert compare_costs(there, price(there), price, simulated).total == usual * Decimal("1.1")


tokens = st.integers(0, 2_000_000)
usages = st.builds(CacheUsage, uncached=tokens, read=tokens, written_5m=tokens, written_1h=tokens)


@given(usages, st.lists(usages, min_size=5, max_size=5))
def test_the_parts_always_add_up_to_what_was_charged(reported: CacheUsage, simulated: list[CacheUsage]) -> None:
    usage = Usage(cache=reported, output_tokens=7)
    charged = priced()(usage)
    assert charged is not None

    found = compare_costs(usage, charged, priced(), states(*simulated))

    assert found.without is not None
    assert found.total is not None
    assert found.simulation_error is not None
    assert found.without - found.total + found.simulation_error == charged


@given(usages, usages)
def test_states_that_do_not_differ_always_save_nothing(reported: CacheUsage, simulated: CacheUsage) -> None:
    assert compared(Usage(cache=reported), simulated).total == ZERO


def test_what_is_not_known_of_a_call_is_left_out_of_a_sum() -> None:
    found = add_savings([make_unchanged_savings(Decimal(1)), Savings(), make_unchanged_savings(Decimal(2))])

    assert found.without == Decimal(3)
    assert found.total == ZERO
    assert add_savings([Savings()]).total is None
