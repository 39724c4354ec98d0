"""Prices are exact, split by kind, and never decrease with more usage."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
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
from tests.support.harness.example_limits import limit_examples


def per_million(**dollars: str) -> dict[TokenKind | BillableUnit, Rate]:
    return {TokenKind(kind): Rate(Decimal(said) / 1_000_000) for kind, said in dollars.items()}


def rates(by_kind: dict[TokenKind | BillableUnit, Rate]) -> Rates:
    return Rates(by_kind=by_kind, source=PriceSource.TABLE, origin="a table")


OPUS = rates(
    per_million(uncached="4", read="0.2", written_5m="5", written_1h="8", output="20")
    | {BillableUnit.WEB_SEARCHES: Rate(Decimal("0.01"))}
)


def call(
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


def known(found: Price | None) -> Price:
    assert found is not None
    return found


def test_each_kind_of_token_has_its_own_price() -> None:
    price = known(
        price_call(
            OPUS, call(uncached=1_000, read=2_000, written_5m=300, written_1h=40, output=500, reasoning=99)
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


def test_reasoning_with_a_price_of_its_own_is_not_paid_twice() -> None:
    research = rates(per_million(uncached="2", output="8", reasoning="3"))

    price = known(price_call(research, call(output=1_000, reasoning=900)))

    assert (price.output, price.reasoning) == (Decimal("0.0008"), Decimal("0.0027"))


def test_a_long_input_makes_the_whole_call_more_expensive() -> None:
    steps = (RateTier(100, Decimal(2)), RateTier(200, Decimal(5)))
    tiered = rates({TokenKind.UNCACHED: Rate(Decimal(1), steps), TokenKind.OUTPUT: Rate(Decimal(3), steps)})

    def dollars(read: int) -> Decimal:
        return known(price_call(tiered, call(uncached=0, read=read, output=1))).dollars

    assert [dollars(tokens) for tokens in (100, 101, 200, 201)] == [103, 204, 402, 1010]


def test_a_used_unit_without_a_price_makes_the_whole_unknown() -> None:
    only_short = rates(per_million(uncached="4", written_5m="5", output="20"))

    assert price_call(only_short, call(uncached=9, written_1h=1)) is None
    assert compute_dollars(only_short, call(uncached=9, written_1h=1)) is None
    assert price_call(only_short, call(uncached=9, written_5m=1)) is not None
    assert price_call(rates(per_million(uncached="4")), call(uncached=9, output=1)) is None
    assert price_call(rates(per_million(output="4")), call(uncached=9)) is None
    assert price_call(only_short, call(uncached=9, units=((BillableUnit.WEB_SEARCHES, 1),))) is None
    assert known(price_call(rates({}), call())).dollars == 0


def test_cache_reads_without_a_price_cost_as_input_but_are_not_sure() -> None:
    plain = rates(per_million(uncached="4", output="20"))

    price = known(price_call(plain, call(uncached=1_000, read=1_000)))

    assert (price.uncached, price.read, price.sure) == (Decimal("0.004"), Decimal("0.004"), False)
    assert known(price_call(plain, call(uncached=1_000))).sure


def test_searches_are_paid_by_the_piece_beside_the_tokens() -> None:
    price = known(price_call(OPUS, call(uncached=1_000, units=((BillableUnit.WEB_SEARCHES, 3),))))

    assert price.input_dollars == Decimal("0.004")
    assert price.output_dollars == 0
    assert price.other_dollars == Decimal("0.03")
    assert price.dollars == Decimal("0.034")


def test_queries_and_citations_cost_something_only_where_they_have_a_price() -> None:
    units = ((BillableUnit.CITATIONS, 1_000), (BillableUnit.SEARCH_QUERIES, 2))
    research = rates(
        per_million(uncached="2", output="8")
        | {BillableUnit.CITATIONS: Rate(Decimal("0.000002")), BillableUnit.WEB_SEARCHES: Rate(Decimal("0.005"))}
    )

    assert known(price_call(research, call(units=units))).dollars == Decimal("0.012")
    assert known(price_call(rates(per_million(uncached="2")), call(units=units))).dollars == 0


def test_a_price_by_the_request_is_paid_once() -> None:
    sonar = rates(per_million(uncached="1", output="1") | {BillableUnit.REQUESTS: Rate(Decimal("0.012"))})

    assert known(price_call(sonar, call(uncached=1_000_000))).dollars == Decimal("1.012")


def test_audio_has_its_own_price_and_is_not_charged_as_text_too() -> None:
    flash = rates(
        per_million(uncached="0.5", read="0.05", output="3")
        | {
            BillableUnit.INPUT_AUDIO: Rate(Decimal("0.000001")),
            BillableUnit.READ_AUDIO: Rate(Decimal("0.0000001")),
        }
    )
    heard = call(
        uncached=1_000, read=500, units=((BillableUnit.INPUT_AUDIO, 900), (BillableUnit.READ_AUDIO, 400))
    )

    price = known(price_call(flash, heard))

    assert price.uncached == 100 * Decimal("0.0000005")
    assert dict(price.units) == {
        BillableUnit.INPUT_AUDIO: Decimal("0.0009"),
        BillableUnit.READ_AUDIO: Decimal("0.00004"),
    }
    assert price.read == 100 * Decimal("0.00000005")
    assert price.input_dollars == price.dollars
    assert not known(price_call(OPUS, heard)).sure


def test_cached_audio_costs_as_audio_if_reads_have_no_price() -> None:
    audio = rates(
        per_million(uncached="2.5", output="10") | {BillableUnit.INPUT_AUDIO: Rate(Decimal("0.000032"))}
    )

    price = known(price_call(audio, call(read=100, units=((BillableUnit.READ_AUDIO, 100),))))

    assert price.dollars == Decimal("0.0032")


def test_the_price_that_a_provider_says_is_whole() -> None:
    price = make_stated_price(Decimal("0.00341475"), "openrouter")

    assert (price.dollars, price.unsplit, price.source) == (
        Decimal("0.00341475"),
        Decimal("0.00341475"),
        PriceSource.STATED,
    )


def test_no_digit_is_lost_whatever_the_precision_of_the_thread() -> None:
    many = 2**53 - 1
    with localcontext() as context:
        context.prec = 3
        price = known(price_call(OPUS, call(uncached=many, read=1)))
        found = price.dollars

    assert found == Decimal("36028797018.963964000") + Decimal("0.0000002")


amounts = st.decimals(min_value=0, max_value=1_000, places=6, allow_nan=False, allow_infinity=False)
kinds = st.sampled_from(list(TokenKind))
tokens = st.integers(0, 300)


@st.composite
def any_rates(draw: st.DrawFn) -> Rates:
    """Rates with all kinds, reasoning optional; long inputs never cost less."""
    found: dict[TokenKind | BillableUnit, Rate] = {}
    units = (
        BillableUnit.INPUT_AUDIO,
        BillableUnit.OUTPUT_IMAGE,
        BillableUnit.WEB_SEARCHES,
        BillableUnit.REQUESTS,
    )
    for kind in (*TokenKind, *units):
        if kind is not TokenKind.REASONING or draw(st.booleans()):
            base, more = draw(amounts), draw(amounts)
            found[kind] = Rate(base, (RateTier(200, base + more),) if draw(st.booleans()) else ())
    return rates(found)


@st.composite
def any_call(draw: st.DrawFn) -> UsagePart:
    uncached, output = draw(tokens), draw(tokens)
    units = (
        (BillableUnit.INPUT_AUDIO, draw(st.integers(0, uncached))),
        (BillableUnit.OUTPUT_IMAGE, draw(st.integers(0, output))),
        (BillableUnit.WEB_SEARCHES, draw(tokens)),
    )
    return call(
        uncached=uncached,
        read=draw(tokens),
        written_5m=draw(tokens),
        written_1h=draw(tokens),
        output=output,
        reasoning=draw(st.integers(0, output)),
        units=units,
    )


@pytest.mark.slow
@settings(max_examples=limit_examples(100))
@given(found=any_rates(), billed=any_call())
def test_the_kinds_add_up_to_the_whole_and_none_is_below_zero(found: Rates, billed: UsagePart) -> None:
    price = known(price_call(found, billed))

    kinds = (price.uncached, price.read, price.written_5m, price.written_1h, price.output, price.reasoning)
    units = [dollars for _, dollars in price.units]
    assert all(dollars >= 0 for dollars in (*kinds, *units))
    assert sum((*kinds, *units, price.unsplit), Decimal(0)) == price.dollars
    assert price.input_dollars + price.output_dollars + price.other_dollars == price.dollars
    assert compute_dollars(found, billed) == price.dollars


@settings(max_examples=limit_examples(100))
@given(found=any_rates(), billed=any_call(), more=tokens, kind=kinds)
def test_more_of_any_kind_never_costs_less(found: Rates, billed: UsagePart, more: int, kind: TokenKind) -> None:
    usage = billed.usage
    if kind in (TokenKind.OUTPUT, TokenKind.REASONING):
        thought = more if kind is TokenKind.REASONING else 0
        larger = replace(
            usage,
            output_tokens=usage.output_tokens + more,
            reasoning_tokens=usage.reasoning_tokens + thought,
        )
    else:
        cache = replace(usage.cache, **{kind: getattr(usage.cache, kind) + more})
        larger = replace(usage, cache=cache)

    before, after = price_call(found, billed), price_call(found, replace(billed, usage=larger))

    assert known(after).dollars >= known(before).dollars


@pytest.mark.slow
@settings(max_examples=limit_examples(100))
@given(found=any_rates(), first=any_call(), second=any_call())
def test_within_a_tier_two_calls_cost_what_they_cost_together(
    found: Rates, first: UsagePart, second: UsagePart
) -> None:
    # A price by the request is paid twice, and pictures among what was thought are not told apart.
    apart = (BillableUnit.REQUESTS, BillableUnit.OUTPUT_IMAGE)
    flat = rates({kind: Rate(rate.dollars) for kind, rate in found.by_kind.items() if kind not in apart})
    one, two = first.usage, second.usage
    together = call(
        uncached=one.cache.uncached + two.cache.uncached,
        read=one.cache.read + two.cache.read,
        written_5m=one.cache.written_5m + two.cache.written_5m,
        written_1h=one.cache.written_1h + two.cache.written_1h,
        output=one.output_tokens + two.output_tokens,
        reasoning=one.reasoning_tokens + two.reasoning_tokens,
        units=tuple((unit, a + b) for (unit, a), (_, b) in zip(first.units, second.units, strict=True)),
    )

    added = known(price_call(flat, first)).add(known(price_call(flat, second)))

    assert added == known(price_call(flat, together))


@settings(max_examples=limit_examples(100))
@given(found=any_rates(), output=tokens, data=st.data())
def test_reasoning_is_never_counted_twice(found: Rates, output: int, data: st.DataObject) -> None:
    thought = data.draw(st.integers(0, output + 50))

    price = known(price_call(found, call(output=output, reasoning=thought)))

    thought = min(thought, output)
    written = found.by_kind[TokenKind.OUTPUT].at(0)
    alone = found.by_kind.get(TokenKind.REASONING)
    expected = written * output if alone is None else written * (output - thought) + alone.at(0) * thought
    assert price.output + price.reasoning == expected


@pytest.mark.slow
@settings(max_examples=limit_examples(120))
@given(found=any_rates(), billed=any_call(), spare=tokens, ttl=st.sampled_from([None, *Ttl]))
def test_no_call_costs_more_than_its_ceiling(
    found: Rates, billed: UsagePart, spare: int, ttl: Ttl | None
) -> None:
    is_long = ttl in (Ttl.ONE_HOUR, Ttl.TWELVE_HOURS)
    cache = billed.usage.cache if is_long else replace(billed.usage.cache, written_1h=0)
    usage = replace(billed.usage, cache=cache)
    media = tuple((unit, count) for unit, count in billed.units if unit is not BillableUnit.WEB_SEARCHES)

    ceiling = compute_ceiling(
        found,
        input_tokens=cache.input_tokens + spare,
        output_tokens=usage.output_tokens + spare,
        ttl=ttl,
    )

    assert ceiling is not None
    assert ceiling >= known(price_call(found, replace(billed, usage=usage, units=media))).dollars


def test_a_ceiling_uses_the_highest_rate() -> None:
    def most(found: Rates, ttl: Ttl | None = None) -> Decimal | None:
        return compute_ceiling(found, input_tokens=1_000, output_tokens=100, ttl=ttl)

    assert most(OPUS) == most(OPUS, Ttl.FIVE_MINUTES) == Decimal("0.007")
    assert most(OPUS, Ttl.ONE_HOUR) == Decimal("0.010")
    unmarked = rates(per_million(uncached="1", read="0.1", output="2", reasoning="3"))
    assert most(unmarked) == most(unmarked, Ttl.ONE_HOUR) == Decimal("0.0013")


@pytest.mark.parametrize(
    "by_kind",
    [
        {},
        per_million(uncached="1"),
        per_million(output="1"),
        per_million(uncached="1", written_5m="2", output="1"),
    ],
)
def test_a_ceiling_that_is_not_known_is_none(by_kind: dict[TokenKind | BillableUnit, Rate]) -> None:
    assert compute_ceiling(rates(by_kind), input_tokens=1, output_tokens=1, ttl=Ttl.ONE_HOUR) is None
    assert compute_ceiling(rates(by_kind), input_tokens=0, output_tokens=0) == 0
