"""What the cache, folds and cuts save on a call, in numbers, and what always holds of them."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from foveate.cost.ledger import Savings
from foveate.cost.own_prices import OwnPrice, OwnTier, PerMillion
from foveate.cost.price_book import PriceBook
from foveate.cost.savings import NOTHING, PriceOf, Removed, pricing, savings_of
from foveate.errors import BadOption
from foveate.values import CacheUsage, Usage
from tests.billed import CALL

TEN = PerMillion(
    uncached=Decimal(10),
    read=Decimal(1),
    written_5m=Decimal("12.5"),
    written_1h=Decimal(20),
    output=Decimal(50),
)
NONE = Decimal(0)


def priced(per_million: PerMillion = TEN, *tiers: OwnTier) -> PriceOf:
    own = OwnPrice(model="*", dollars_per_million=per_million, tiers=tiers)
    return pricing(PriceBook([own]), CALL)


def bill(**tokens: int) -> Usage:
    return Usage(cache=CacheUsage(**tokens), output_tokens=1_000)


def test_the_cache_saves_what_was_read_and_loses_what_was_written() -> None:
    saved = savings_of(bill(read=90_000, written_5m=10_000), priced())

    assert saved == Savings(cache=Decimal("0.785"), folds=NONE, cuts=NONE)


def test_what_is_written_and_read_by_nobody_is_a_loss() -> None:
    assert savings_of(bill(written_5m=100_000), priced()).cache == Decimal("-0.25")
    assert savings_of(bill(written_1h=100_000), priced()).cache == Decimal("-1.0")


@pytest.mark.parametrize(
    ("usage", "saved"),
    [
        (bill(read=8_000, uncached=1_000), "0.09"),
        # It was warm, and yet nothing was read: something else broke the cache, and no fold is praised for it.
        (bill(written_5m=9_000), "0.09"),
    ],
)
def test_what_was_folded_before_would_have_been_read(usage: Usage, saved: str) -> None:
    found = savings_of(usage, priced(), folds=Removed(tokens=90_000), known_tokens=8_000, was_warm=True)

    assert found.folds == Decimal(saved)


@pytest.mark.parametrize(
    ("usage", "saved"),
    [
        (bill(uncached=9_000), "0.90"),
        (bill(written_5m=9_000), "1.125"),
        (bill(written_1h=9_000, written_5m=500, uncached=100), "1.80"),
        (bill(written_1h=500, written_5m=9_000, uncached=100), "1.125"),
        (bill(read=9_000), "0.90"),
    ],
)
def test_where_the_cache_was_cold_it_would_have_been_billed_as_the_rest(usage: Usage, saved: str) -> None:
    for removed in (Removed(tokens=90_000), Removed(tokens=90_000, is_new=True)):
        assert savings_of(usage, priced(), folds=removed, known_tokens=99_000).folds == Decimal(saved)
        assert savings_of(usage, priced(), cuts=removed, known_tokens=99_000).cuts == Decimal(saved)


@pytest.mark.parametrize(("folded", "again", "saved"), [(90_000, 5_000, "0.0325"), (50_000, 45_000, "-0.4675")])
def test_a_new_fold_pays_for_what_it_has_written_again(folded: int, again: int, saved: str) -> None:
    """A fold that took half of the history has the other half written again, and did not pay yet."""
    usage = bill(read=5_000, written_5m=again + 2_000)

    found = savings_of(
        usage, priced(), folds=Removed(tokens=folded, is_new=True), known_tokens=100_000, was_warm=True
    )

    assert found.folds == Decimal(saved)


def test_a_result_that_is_cut_as_it_comes_in_would_have_been_written_and_breaks_nothing() -> None:
    usage = bill(read=50_000, written_5m=3_000)

    found = savings_of(
        usage, priced(), cuts=Removed(tokens=40_000, is_new=True), known_tokens=50_000, was_warm=True
    )

    assert found.cuts == Decimal("0.5")


def test_a_second_fold_is_not_praised_for_what_the_first_took() -> None:
    """What the first one took would have been read; it was taken for new once."""
    usage = bill(read=5_000, written_5m=7_000)
    second = Removed(tokens=190_000, is_new=True, earlier_tokens=90_000)

    found = savings_of(usage, priced(), folds=second, known_tokens=110_000, was_warm=True)

    # 200,000 read and 2,000 written, $0.225, against the $0.0925 that were paid.
    assert found.folds == Decimal("0.1325")


def test_where_both_are_new_it_is_the_fold_that_has_all_behind_it_written_again() -> None:
    usage = bill(read=5_000, written_5m=7_000)
    fold, cut = Removed(tokens=90_000, is_new=True), Removed(tokens=4_000, is_new=True)

    found = savings_of(usage, priced(), folds=fold, cuts=cut, known_tokens=100_000, was_warm=True)

    # Uncut, 4,000 more would have been written; unfolded too, 100,000 read and 6,000 written.
    assert (found.cuts, found.folds) == (Decimal("0.05"), Decimal("0.0325"))


def test_what_was_read_was_known_whoever_says_less() -> None:
    usage, fold = bill(read=8_000, written_5m=1_000), Removed(tokens=1_000, is_new=True)

    found = savings_of(usage, priced(), folds=fold, known_tokens=0, was_warm=True)

    assert found.folds == Decimal("0.0125")


def test_a_fold_can_save_the_price_of_a_higher_tier_for_the_whole_call() -> None:
    dear = OwnTier(
        over_tokens=200_000, dollars_per_million=PerMillion(uncached=Decimal(20), output=Decimal(100))
    )

    found = savings_of(
        Usage(cache=CacheUsage(uncached=150_000), output_tokens=10_000),
        priced(TEN, dear),
        folds=Removed(tokens=100_000),
    )

    assert found.folds == Decimal("5") + Decimal("1") - Decimal("1.5") - Decimal("0.5")


def test_what_has_no_known_price_saves_nobody_knows_what_and_nothing_saves_nothing() -> None:
    def unknown(_: Usage) -> None:
        return None

    nobody = savings_of(bill(read=5), unknown, folds=Removed(tokens=1))

    assert nobody == Savings(cache=None, folds=None, cuts=NONE)
    assert savings_of(bill(uncached=5), unknown) == Savings(cache=NONE, folds=NONE, cuts=NONE)


def test_savings_go_by_prices_where_the_provider_says_only_its_own_sum() -> None:
    usage = replace(bill(read=90_000, written_5m=10_000), said_dollars=Decimal(7))

    assert savings_of(usage, priced()).cache == Decimal("0.785")


def test_what_costs_more_in_one_region_saves_more_there() -> None:
    """Claude in the US alone is 1.1 times as dear, reads and writes as well."""
    call = replace(CALL, model="claude-opus-5-5", at=datetime(2026, 11, 10, tzinfo=UTC).timestamp())
    usage = bill(read=90_000)
    price = pricing(PriceBook(), call)

    there = savings_of(replace(usage, raw=b'{"inference_geo":"us"}'), price).cache

    usual = savings_of(usage, price).cache
    assert usual is not None
    assert usual > 0
    assert there == usual * Decimal("1.1")


def test_no_fewer_than_no_tokens_are_left_out() -> None:
    with pytest.raises(BadOption, match="no fewer than 0 tokens"):
        Removed(tokens=-1)


TOKENS = st.integers(0, 300_000)
DOLLARS = st.decimals(0, 100, places=4, allow_nan=False, allow_infinity=False)
CACHES = st.builds(CacheUsage, uncached=TOKENS, read=TOKENS, written_5m=TOKENS, written_1h=TOKENS)
USAGES = st.builds(Usage, cache=CACHES, output_tokens=TOKENS)
REMOVED = st.builds(Removed, tokens=TOKENS, is_new=st.booleans(), earlier_tokens=TOKENS)
PRICES = st.lists(DOLLARS, min_size=5, max_size=5).map(
    lambda some: PerMillion(
        **dict(zip(("read", "uncached", "written_5m", "written_1h"), sorted(some[:4]), strict=True)),
        output=some[4],
    )
)


@given(USAGES, PRICES, TOKENS, st.booleans())
def test_removing_nothing_always_saves_nothing(
    usage: Usage, per_million: PerMillion, known: int, was_warm: bool
) -> None:
    found = savings_of(usage, priced(per_million), known_tokens=known, was_warm=was_warm)

    assert found.folds == found.cuts == NONE


@given(USAGES, PRICES)
@example(bill(read=90_000, written_5m=10_000), TEN)
def test_what_was_paid_and_what_the_cache_saved_is_always_the_price_without_one(
    usage: Usage, per_million: PerMillion
) -> None:
    price = priced(per_million)

    saved, paid = savings_of(usage, price).cache, price(usage)

    uncached = price(replace(usage, cache=CacheUsage(uncached=usage.cache.input_tokens)))
    assert None not in (saved, paid, uncached)
    assert (saved or 0) + (paid or 0) == uncached


@given(USAGES, DOLLARS)
def test_where_the_cache_has_no_prices_of_its_own_it_always_saves_nothing(
    usage: Usage, dollars: Decimal
) -> None:
    assert savings_of(usage, priced(PerMillion(uncached=dollars, output=dollars))).cache == 0


@given(USAGES, PRICES, REMOVED, REMOVED, TOKENS, st.booleans(), TOKENS)
def test_more_that_was_removed_never_saves_less(
    usage: Usage,
    per_million: PerMillion,
    folds: Removed,
    cuts: Removed,
    known: int,
    was_warm: bool,
    more: int,
) -> None:
    price = priced(per_million)

    def saved(folds: Removed, cuts: Removed) -> Decimal:
        found = savings_of(usage, price, folds=folds, cuts=cuts, known_tokens=known, was_warm=was_warm)
        assert found.folds is not None
        assert found.cuts is not None
        return found.folds + found.cuts

    assert saved(replace(folds, tokens=folds.tokens + more), cuts) >= saved(folds, cuts)
    assert saved(folds, replace(cuts, tokens=cuts.tokens + more)) >= saved(folds, cuts)


@given(USAGES, PRICES, REMOVED, REMOVED, TOKENS, st.booleans())
def test_no_call_ever_saves_more_than_all_of_its_tokens_cost_at_their_dearest(
    usage: Usage, per_million: PerMillion, folds: Removed, cuts: Removed, known: int, was_warm: bool
) -> None:
    price = priced(per_million)
    all_tokens = usage.cache.input_tokens + folds.tokens + cuts.tokens

    found = savings_of(usage, price, folds=folds, cuts=cuts, known_tokens=known, was_warm=was_warm)

    paid = price(usage)
    dearest = price(replace(usage, cache=CacheUsage(written_1h=all_tokens)))
    cheapest = price(replace(usage, cache=CacheUsage(read=all_tokens)))
    assert None not in (found.folds, found.cuts, paid, dearest, cheapest)
    without = (paid or 0) + (found.folds or 0) + (found.cuts or 0)
    assert (cheapest or 0) <= without <= (dearest or 0)


@given(USAGES, PRICES, TOKENS, TOKENS)
def test_a_fold_never_saves_more_on_the_call_on_which_it_is_new(
    usage: Usage, per_million: PerMillion, tokens: int, known: int
) -> None:
    assume(known >= usage.cache.read + tokens)  # what it took had been sent before

    def saved(*, is_new: bool) -> Decimal:
        fold = Removed(tokens=tokens, is_new=is_new)
        found = savings_of(usage, priced(per_million), folds=fold, known_tokens=known, was_warm=True).folds
        assert found is not None
        return found

    assert saved(is_new=True) <= saved(is_new=False)


def test_nothing_is_a_value_that_says_so() -> None:
    assert NOTHING.is_nothing
    assert not Removed(is_new=True).is_nothing
