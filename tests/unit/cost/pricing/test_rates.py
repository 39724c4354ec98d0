"""Prices are exact, split by kind, and never decrease with more usage."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.cost.pricing.rates import (
    Price,
    PriceSource,
    Rate,
    Rates,
    RateTier,
    TokenKind,
    compute_ceiling,
    compute_dollars,
    make_stated_price,
    price_call,
)
from foveate.formats.response.usage import BillableUnit, UsagePart
from foveate.model import CacheUsage, Ttl, Usage


def per_million(**dollars: str) -> dict[TokenKind | BillableUnit, Rate]:
    return {TokenKind(kind): Rate(Decimal(amount) / 1_000_000) for kind, amount in dollars.items()}


def make_rates(by_kind: dict[TokenKind | BillableUnit, Rate]) -> Rates:
    return Rates(by_kind=by_kind, source=PriceSource.TABLE, origin="a table")


OPUS = make_rates(
    per_million(uncached="4", read="0.2", written_5m="5", written_1h="8", output="20")
    | {BillableUnit.WEB_SEARCHES: Rate(Decimal("0.01"))}
)


def make_usage(
    *,
    uncached: int = 0,
    read: int = 0,
    written_5m: int = 0,
    written_1h: int = 0,
    output: int = 0,
    reasoning: int = 0,
    units: tuple[tuple[BillableUnit, int], ...] = (),
) -> UsagePart:
    cache = CacheUsage(uncached=uncached, read=read, written_5m=written_5m, written_1h=written_1h)
    return UsagePart(usage=Usage(cache=cache, output_tokens=output, reasoning_tokens=reasoning), units=units)


def require_price(price: Price | None) -> Price:
    assert price is not None
    return price


def test_each_kind_of_token_has_its_own_price() -> None:
    price = require_price(
        price_call(
            OPUS,
            make_usage(uncached=1_000, read=2_000, written_5m=300, written_1h=40, output=500, reasoning=99),
        )
    )

    assert price == Price(
        uncached=Decimal("0.004"),
        read=Decimal("0.0004"),
        written_5m=Decimal("0.0015"),
        written_1h=Decimal("0.00032"),
        output=Decimal("0.01"),
        source=PriceSource.TABLE,
        origin="a table",
    )
    assert price.dollars == Decimal("0.01622")


def test_reasoning_with_its_own_price_is_not_charged_twice() -> None:
    research = make_rates(per_million(uncached="2", output="8", reasoning="3"))

    price = require_price(price_call(research, make_usage(output=1_000, reasoning=900)))

    assert (price.output, price.reasoning) == (Decimal("0.0008"), Decimal("0.0027"))


def test_a_long_input_makes_the_whole_call_more_expensive() -> None:
    steps = (RateTier(100, Decimal(2)), RateTier(200, Decimal(5)))
    tiered = make_rates(
        {TokenKind.UNCACHED: Rate(Decimal(1), steps), TokenKind.OUTPUT: Rate(Decimal(3), steps)}
    )

    def dollars(read: int) -> Decimal:
        return require_price(price_call(tiered, make_usage(uncached=0, read=read, output=1))).dollars

    assert [dollars(tokens) for tokens in (100, 101, 200, 201)] == [103, 204, 402, 1010]


def test_a_used_unit_without_a_price_makes_the_total_unknown() -> None:
    without_1h_writes = make_rates(per_million(uncached="4", written_5m="5", output="20"))

    assert price_call(without_1h_writes, make_usage(uncached=9, written_1h=1)) is None
    assert compute_dollars(without_1h_writes, make_usage(uncached=9, written_1h=1)) is None
    assert price_call(without_1h_writes, make_usage(uncached=9, written_5m=1)) is not None
    assert price_call(make_rates(per_million(uncached="4")), make_usage(uncached=9, output=1)) is None
    assert price_call(make_rates(per_million(output="4")), make_usage(uncached=9)) is None
    assert (
        price_call(without_1h_writes, make_usage(uncached=9, units=((BillableUnit.WEB_SEARCHES, 1),))) is None
    )
    assert require_price(price_call(make_rates({}), make_usage())).dollars == 0


def test_cache_reads_without_a_price_cost_as_much_as_input_but_are_not_sure() -> None:
    plain = make_rates(per_million(uncached="4", output="20"))

    price = require_price(price_call(plain, make_usage(uncached=1_000, read=1_000)))

    assert (price.uncached, price.read, price.sure) == (Decimal("0.004"), Decimal("0.004"), False)
    assert require_price(price_call(plain, make_usage(uncached=1_000))).sure


def test_web_searches_are_charged_in_addition_to_tokens() -> None:
    price = require_price(price_call(OPUS, make_usage(uncached=1_000, units=((BillableUnit.WEB_SEARCHES, 3),))))

    assert price.input_dollars == Decimal("0.004")
    assert price.output_dollars == 0
    assert price.other_dollars == Decimal("0.03")
    assert price.dollars == Decimal("0.034")


def test_search_queries_and_citations_are_free_without_a_price() -> None:
    units = ((BillableUnit.CITATIONS, 1_000), (BillableUnit.SEARCH_QUERIES, 2))
    research = make_rates(
        per_million(uncached="2", output="8")
        | {BillableUnit.CITATIONS: Rate(Decimal("0.000002")), BillableUnit.WEB_SEARCHES: Rate(Decimal("0.005"))}
    )

    assert require_price(price_call(research, make_usage(units=units))).dollars == Decimal("0.012")
    assert (
        require_price(price_call(make_rates(per_million(uncached="2")), make_usage(units=units))).dollars == 0
    )


def test_a_price_per_request_is_charged_once() -> None:
    sonar = make_rates(per_million(uncached="1", output="1") | {BillableUnit.REQUESTS: Rate(Decimal("0.012"))})

    assert require_price(price_call(sonar, make_usage(uncached=1_000_000))).dollars == Decimal("1.012")


def test_audio_has_its_own_price_and_is_not_charged_as_text_too() -> None:
    flash = make_rates(
        per_million(uncached="0.5", read="0.05", output="3")
        | {
            BillableUnit.INPUT_AUDIO: Rate(Decimal("0.000001")),
            BillableUnit.READ_AUDIO: Rate(Decimal("0.0000001")),
        }
    )
    audio_usage = make_usage(
        uncached=1_000, read=500, units=((BillableUnit.INPUT_AUDIO, 900), (BillableUnit.READ_AUDIO, 400))
    )

    price = require_price(price_call(flash, audio_usage))

    assert price.uncached == 100 * Decimal("0.0000005")
    assert dict(price.units) == {
        BillableUnit.INPUT_AUDIO: Decimal("0.0009"),
        BillableUnit.READ_AUDIO: Decimal("0.00004"),
    }
    assert price.read == 100 * Decimal("0.00000005")
    assert price.input_dollars == price.dollars
    assert not require_price(price_call(OPUS, audio_usage)).sure


def test_cached_audio_costs_as_audio_if_reads_have_no_price() -> None:
    audio = make_rates(
        per_million(uncached="2.5", output="10") | {BillableUnit.INPUT_AUDIO: Rate(Decimal("0.000032"))}
    )

    price = require_price(price_call(audio, make_usage(read=100, units=((BillableUnit.READ_AUDIO, 100),))))

    assert price.dollars == Decimal("0.0032")


def test_a_stated_price_is_not_split() -> None:
    price = make_stated_price(Decimal("0.00341475"), "openrouter")

    assert (price.dollars, price.unsplit, price.source) == (
        Decimal("0.00341475"),
        Decimal("0.00341475"),
        PriceSource.STATED,
    )


def test_prices_are_exact_at_any_decimal_precision() -> None:
    many = 2**53 - 1
    with localcontext() as context:
        context.prec = 3
        price = require_price(price_call(OPUS, make_usage(uncached=many, read=1)))
        dollars = price.dollars

    assert dollars == Decimal("36028797018.963964000") + Decimal("0.0000002")


amounts = st.decimals(min_value=0, max_value=1_000, places=6, allow_nan=False, allow_infinity=False)
kinds = st.sampled_from(list(TokenKind))
tokens = st.integers(0, 300)


@st.composite
def any_rates(draw: st.DrawFn) -> Rates:
    """Rates with all kinds, reasoning optional; long inputs never cost less."""
    by_kind: dict[TokenKind | BillableUnit, Rate] = {}
    units = (
        BillableUnit.INPUT_AUDIO,
        BillableUnit.OUTPUT_IMAGE,
        BillableUnit.WEB_SEARCHES,
        BillableUnit.REQUESTS,
    )
    for kind in (*TokenKind, *units):
        if kind is not TokenKind.REASONING or draw(st.booleans()):
            base, more = draw(amounts), draw(amounts)
            by_kind[kind] = Rate(base, (RateTier(200, base + more),) if draw(st.booleans()) else ())
    return make_rates(by_kind)


@st.composite
def any_usage(draw: st.DrawFn) -> UsagePart:
    uncached, output = draw(tokens), draw(tokens)
    units = (
        (BillableUnit.INPUT_AUDIO, draw(st.integers(0, uncached))),
        (BillableUnit.OUTPUT_IMAGE, draw(st.integers(0, output))),
        (BillableUnit.WEB_SEARCHES, draw(tokens)),
    )
    return make_usage(
        uncached=uncached,
        read=draw(tokens),
        written_5m=draw(tokens),
        written_1h=draw(tokens),
        output=output,
        reasoning=draw(st.integers(0, output)),
        units=units,
    )


@pytest.mark.slow
@given(rates=any_rates(), part=any_usage())
def test_the_kinds_add_up_to_the_total_and_none_is_negative(rates: Rates, part: UsagePart) -> None:
    price = require_price(price_call(rates, part))

    kinds = (price.uncached, price.read, price.written_5m, price.written_1h, price.output, price.reasoning)
    units = [dollars for _, dollars in price.units]
    assert all(dollars >= 0 for dollars in (*kinds, *units))
    assert sum((*kinds, *units, price.unsplit), Decimal(0)) == price.dollars
    assert price.input_dollars + price.output_dollars + price.other_dollars == price.dollars
    assert compute_dollars(rates, part) == price.dollars


@given(rates=any_rates(), part=any_usage(), more=tokens, kind=kinds)
def test_more_of_any_kind_never_costs_less(rates: Rates, part: UsagePart, more: int, kind: TokenKind) -> None:
    usage = part.usage
    if kind in (TokenKind.OUTPUT, TokenKind.REASONING):
        more_reasoning = more if kind is TokenKind.REASONING else 0
        larger = replace(
            usage,
            output_tokens=usage.output_tokens + more,
            reasoning_tokens=usage.reasoning_tokens + more_reasoning,
        )
    else:
        cache = replace(usage.cache, **{kind: getattr(usage.cache, kind) + more})
        larger = replace(usage, cache=cache)

    before, after = price_call(rates, part), price_call(rates, replace(part, usage=larger))

    assert require_price(after).dollars >= require_price(before).dollars


@pytest.mark.slow
@given(rates=any_rates(), first=any_usage(), second=any_usage())
def test_within_a_tier_two_calls_cost_as_much_as_one_combined_call(
    rates: Rates, first: UsagePart, second: UsagePart
) -> None:
    # A price per request applies to each call, and images within reasoning are not reported separately.
    excluded = (BillableUnit.REQUESTS, BillableUnit.OUTPUT_IMAGE)
    flat = make_rates(
        {kind: Rate(rate.dollars) for kind, rate in rates.by_kind.items() if kind not in excluded}
    )
    first_usage, second_usage = first.usage, second.usage
    combined = make_usage(
        uncached=first_usage.cache.uncached + second_usage.cache.uncached,
        read=first_usage.cache.read + second_usage.cache.read,
        written_5m=first_usage.cache.written_5m + second_usage.cache.written_5m,
        written_1h=first_usage.cache.written_1h + second_usage.cache.written_1h,
        output=first_usage.output_tokens + second_usage.output_tokens,
        reasoning=first_usage.reasoning_tokens + second_usage.reasoning_tokens,
        units=tuple((unit, a + b) for (unit, a), (_, b) in zip(first.units, second.units, strict=True)),
    )

    total = require_price(price_call(flat, first)).add(require_price(price_call(flat, second)))

    assert total == require_price(price_call(flat, combined))


@given(rates=any_rates(), output=tokens, data=st.data())
def test_reasoning_is_never_counted_twice(rates: Rates, output: int, data: st.DataObject) -> None:
    reasoning = data.draw(st.integers(0, output + 50))

    price = require_price(price_call(rates, make_usage(output=output, reasoning=reasoning)))

    reasoning = min(reasoning, output)
    output_rate = rates.by_kind[TokenKind.OUTPUT].at(0)
    reasoning_rate = rates.by_kind.get(TokenKind.REASONING)
    expected = (
        output_rate * output
        if reasoning_rate is None
        else output_rate * (output - reasoning) + reasoning_rate.at(0) * reasoning
    )
    assert price.output + price.reasoning == expected


@pytest.mark.slow
@given(rates=any_rates(), part=any_usage(), spare=tokens, ttl=st.sampled_from([None, *Ttl]))
def test_no_call_costs_more_than_its_ceiling(
    rates: Rates, part: UsagePart, spare: int, ttl: Ttl | None
) -> None:
    is_long = ttl in (Ttl.ONE_HOUR, Ttl.TWELVE_HOURS)
    cache = part.usage.cache if is_long else replace(part.usage.cache, written_1h=0)
    usage = replace(part.usage, cache=cache)
    media = tuple((unit, count) for unit, count in part.units if unit is not BillableUnit.WEB_SEARCHES)

    ceiling = compute_ceiling(
        rates,
        input_tokens=cache.input_tokens + spare,
        output_tokens=usage.output_tokens + spare,
        ttl=ttl,
    )

    assert ceiling is not None
    assert ceiling >= require_price(price_call(rates, replace(part, usage=usage, units=media))).dollars


def test_a_ceiling_uses_the_highest_rate() -> None:
    def ceiling(rates: Rates, ttl: Ttl | None = None) -> Decimal | None:
        return compute_ceiling(rates, input_tokens=1_000, output_tokens=100, ttl=ttl)

    assert ceiling(OPUS) == ceiling(OPUS, Ttl.FIVE_MINUTES) == Decimal("0.007")
    assert ceiling(OPUS, Ttl.ONE_HOUR) == Decimal("0.010")
    without_writes = make_rates(per_million(uncached="1", read="0.1", output="2", reasoning="3"))
    assert ceiling(without_writes) == ceiling(without_writes, Ttl.ONE_HOUR) == Decimal("0.0013")


@pytest.mark.parametrize(
    "by_kind",
    [
        {},
        per_million(uncached="1"),
        per_million(output="1"),
        per_million(uncached="1", written_5m="2", output="1"),
    ],
)
def test_an_unknown_ceiling_is_none(by_kind: dict[TokenKind | BillableUnit, Rate]) -> None:
    assert compute_ceiling(make_rates(by_kind), input_tokens=1, output_tokens=1, ttl=Ttl.ONE_HOUR) is None
    assert compute_ceiling(make_rates(by_kind), input_tokens=0, output_tokens=0) == 0
