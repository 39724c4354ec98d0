"""When an edit of the history pays, in dollars of one session."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.edit_timing import (
    ClearingOption,
    CompactionOption,
    EditPrices,
    EditState,
    Moment,
    TokenPrices,
    is_judgement_due,
    loss_budget_dollars,
    plan_edits,
    read_prices,
)
from foveate.compaction.forecast import Forecast, FutureRequests
from foveate.cost.pricing.rates import PriceSource, Rate, Rates, RateTier, TokenKind
from foveate.formats.response.usage import BillableUnit

# Sonnet 4.5, in dollars per token.
SONNET = EditPrices(base=TokenPrices(uncached=3e-6, read=0.3e-6, write=3.75e-6, output=15e-6))
# Haiku 5.5: five times the price above 100,000 tokens.
CLIFF = EditPrices(
    base=TokenPrices(uncached=0.1e-6, read=0.01e-6, write=0.125e-6, output=0.5e-6),
    tiers=((100_000, TokenPrices(uncached=0.5e-6, read=0.05e-6, write=0.625e-6, output=2.5e-6)),),
)
WARM = EditState(
    moment=Moment.RESPONSE,
    request_tokens=90_000,
    preamble_tokens=15_000,
    cached_tokens=90_000,
    compaction=CompactionOption(tokens_after=40_000, summary_tokens=4_000),
)
COLD = replace(WARM, moment=Moment.ARRIVAL, cached_tokens=0)
OLD_RESULTS = (ClearingOption(saved_tokens=4_000),) * 5


def known_future(requests: int, *, cold: frozenset[int] = frozenset(), growth: int = 800) -> Forecast:
    """A forecast of exactly these requests, of which the `cold` ones find the cache expired."""
    return Forecast(
        requests=tuple(
            FutureRequests(expected=1.0, grown_tokens=growth * (number + 1), cold_share=float(number in cold))
            for number in range(requests)
        ),
        growth_tokens=growth,
    )


def test_a_compaction_pays_if_many_requests_remain_and_not_if_few_do() -> None:
    assert plan_edits(WARM, known_future(100), SONNET).compacts
    assert plan_edits(WARM, known_future(5), SONNET).is_empty
    assert plan_edits(WARM, known_future(0), SONNET).is_empty


def test_a_plan_says_what_it_expects_to_gain_and_to_cost() -> None:
    plan = plan_edits(WARM, known_future(100), SONNET)

    # 90,000 tokens read for the summary, its instruction and output, and 25,000 tokens written again, less
    # what the next request no longer reads.
    cost = 90_000 * 0.3e-6 + (400 + 1_000) * 3e-6 + 4_000 * 15e-6 + 25_000 * 3.45e-6 - 50_000 * 0.3e-6
    assert plan.cost_dollars == pytest.approx(cost, rel=0.01)
    assert plan.gain_dollars == pytest.approx(99 * 50_000 * 0.3e-6, rel=0.01)
    assert plan.expected_requests == 100


def test_a_small_context_is_left_alone() -> None:
    state = replace(WARM, request_tokens=19_000, cached_tokens=19_000)
    small = replace(state, compaction=CompactionOption(tokens_after=5_000, summary_tokens=500))

    assert plan_edits(small, known_future(1_000), SONNET).is_empty


def test_a_session_is_not_compacted_twice_without_growth() -> None:
    assert plan_edits(replace(WARM, last_compacted_tokens=85_000), known_future(500), SONNET).is_empty
    assert plan_edits(replace(WARM, last_compacted_tokens=40_000), known_future(500), SONNET).compacts


def test_an_edit_never_risks_more_than_the_loss_budget() -> None:
    assert plan_edits(replace(WARM, loss_budget_dollars=0.01), known_future(500), SONNET).is_empty
    assert plan_edits(replace(WARM, loss_budget_dollars=1.0), known_future(500), SONNET).compacts


def test_long_sessions_may_risk_more_and_savings_can_be_risked() -> None:
    young = loss_budget_dollars(8, spent_dollars=1.0, saved_dollars=0.0)
    old = loss_budget_dollars(600, spent_dollars=1.0, saved_dollars=0.0)

    assert young == pytest.approx(0.01)
    assert old == pytest.approx(0.1)
    assert loss_budget_dollars(600, spent_dollars=1.0, saved_dollars=0.5) == pytest.approx(0.6)


def test_old_results_are_cleared_at_once_if_the_cache_is_cold() -> None:
    state = replace(COLD, compaction=None, clearable=OLD_RESULTS, loss_budget_dollars=0.0)

    plan = plan_edits(state, known_future(1), SONNET)

    assert set(plan.cleared) == set(range(5))
    assert plan.cost_dollars == 0
    assert plan.gain_dollars >= 20_000 * SONNET.base.write


def test_old_results_stay_in_a_warm_cache_unless_many_requests_follow() -> None:
    state = replace(WARM, moment=Moment.ARRIVAL, compaction=None, clearable=OLD_RESULTS)

    assert plan_edits(state, known_future(10, growth=400), SONNET).is_empty
    assert plan_edits(state, known_future(200, growth=400), SONNET).cleared


def test_results_in_a_warm_cache_wait_until_clearing_them_frees_enough() -> None:
    """A few of them pay for themselves in 400 requests, but again and again that costs more than it saves."""
    few, many = ((ClearingOption(saved_tokens=1_000),) * number for number in (4, 30))
    state = replace(WARM, moment=Moment.ARRIVAL, compaction=None)

    assert plan_edits(replace(state, clearable=few), known_future(400), SONNET).is_empty
    assert plan_edits(replace(state, clearable=many), known_future(400), SONNET).cleared
    # A session that hardly grows will have no more of them.
    assert plan_edits(replace(state, clearable=few), known_future(400, growth=10), SONNET).cleared
    assert plan_edits(replace(state, clearable=few, cached_tokens=0), known_future(400), SONNET).cleared


def test_a_result_that_is_probably_needed_again_is_not_cleared_for_little() -> None:
    needed = (ClearingOption(saved_tokens=500, refetch_probability=0.9),)
    state = replace(COLD, compaction=None, clearable=needed)

    assert plan_edits(state, known_future(3), SONNET).is_empty


def test_superseded_results_are_cleared_before_small_ones_that_may_be_needed_again() -> None:
    options = (
        ClearingOption(saved_tokens=6_000, refetch_probability=0.01),
        ClearingOption(saved_tokens=300, refetch_probability=0.9),
    )
    state = replace(COLD, compaction=None, clearable=options)

    assert plan_edits(state, known_future(3), SONNET).cleared == (0,)


def test_a_result_that_may_be_needed_again_loses_nothing_if_the_session_ends() -> None:
    needed = (ClearingOption(saved_tokens=20_000, refetch_probability=0.05),)
    state = replace(COLD, compaction=None, clearable=needed, loss_budget_dollars=0.0)

    assert plan_edits(state, known_future(3), SONNET).cleared == (0,)
    assert plan_edits(replace(state, cached_tokens=90_000), known_future(500), SONNET).is_empty


@pytest.mark.parametrize(
    ("tokens", "judged_tokens", "is_due"),
    [
        (50_000, 0, True),
        (54_900, 50_000, False),
        (55_100, 50_000, True),
        (40_000, 50_000, True),  # after a compaction
        (100_500, 99_000, True),  # a price step lies between them
        (101_000, 100_500, False),
        (102_600, 100_500, True),  # above a step, little growth is enough
    ],
)
def test_results_are_judged_again_after_growth_and_above_a_price_step(
    tokens: int, judged_tokens: int, is_due: bool
) -> None:
    assert is_judgement_due(tokens, judged_tokens, CLIFF) is is_due


def test_results_are_cleared_only_before_a_request() -> None:
    state = replace(WARM, compaction=None, clearable=OLD_RESULTS)

    assert plan_edits(state, known_future(500), SONNET).is_empty


def test_an_idle_session_is_compacted_from_the_warm_prefix_if_it_returns_cold() -> None:
    idle = replace(WARM, moment=Moment.EXPIRY)

    assert plan_edits(idle, known_future(3, cold=frozenset((0,))), SONNET).compacts
    # The same return without the idle time finds a warm cache, and three requests do not pay for a summary.
    assert plan_edits(WARM, known_future(3), SONNET).is_empty


def test_a_request_slightly_above_a_price_cliff_gets_the_room_made() -> None:
    above = EditState(
        moment=Moment.ARRIVAL,
        request_tokens=101_000,
        preamble_tokens=15_000,
        cached_tokens=99_000,
        clearable=(ClearingOption(saved_tokens=1_500, refetch_probability=0.1),) * 4,
    )

    plan = plan_edits(above, known_future(2, growth=0), CLIFF)
    below = plan_edits(replace(above, request_tokens=99_500), known_future(2, growth=0), CLIFF)

    assert plan.cleared == (3,)  # one result makes exactly enough room
    assert below.is_empty


GROWN_SECTION = replace(WARM, moment=Moment.ARRIVAL, compaction=None, added_section_tokens=100)


def test_text_added_to_a_section_stays_at_the_end_while_the_history_is_cached() -> None:
    plan = plan_edits(GROWN_SECTION, known_future(50), SONNET)

    assert plan.is_empty
    # All but the preamble would be written again, and 100 tokens read in each of 50 requests.
    assert plan.cost_dollars == pytest.approx(75_000 * 3.45e-6, rel=0.01)
    assert plan.gain_dollars == pytest.approx(50 * 100 * 2.7e-6, rel=0.01)


def test_added_text_moves_before_the_history_if_that_is_written_anyway() -> None:
    expired = replace(GROWN_SECTION, cached_tokens=0, loss_budget_dollars=0.0)
    edited = replace(GROWN_SECTION, cached_tokens=GROWN_SECTION.preamble_tokens, loss_budget_dollars=0.0)

    assert plan_edits(expired, known_future(0), SONNET).moves_sections
    assert plan_edits(edited, known_future(0), SONNET).moves_sections


def test_much_added_text_moves_if_many_requests_remain_and_the_loss_is_limited() -> None:
    much = replace(GROWN_SECTION, added_section_tokens=4_000)

    plan = plan_edits(much, known_future(100), SONNET)
    assert plan.moves_sections
    # Uncached input costs ten times as much as what is read from the cache.
    assert plan.saved_per_request_dollars == pytest.approx(4_000 * 2.7e-6)
    assert plan_edits(much, known_future(5), SONNET).is_empty
    # Once the cache expires, moving it is free.
    assert plan_edits(much, known_future(100, cold=frozenset((5,))), SONNET).is_empty
    assert plan_edits(replace(much, loss_budget_dollars=0.1), known_future(100), SONNET).is_empty


def test_added_text_that_crosses_a_price_step_has_the_prices_above_it_in_both_places() -> None:
    state = replace(GROWN_SECTION, request_tokens=99_900, cached_tokens=99_400, added_section_tokens=1_000)

    crossing = plan_edits(state, known_future(16), CLIFF)
    above = plan_edits(replace(state, request_tokens=100_100), known_future(16), CLIFF)

    assert crossing.saved_per_request_dollars == above.saved_per_request_dollars
    assert crossing.cost_dollars == pytest.approx(above.cost_dollars, rel=0.01)


@given(
    tokens=st.integers(1_000, 400_000),
    added=st.integers(1, 20_000),
    cached_share=st.floats(0, 1),
    preamble_share=st.floats(0, 0.5),
    requests=st.integers(0, 100),
    growth=st.integers(0, 2_000),
    prices=st.sampled_from((SONNET, CLIFF)),
)
def test_the_cheaper_place_of_added_text_is_always_chosen(
    tokens: int,
    added: int,
    cached_share: float,
    preamble_share: float,
    requests: int,
    growth: int,
    prices: EditPrices,
) -> None:
    """The rest of a session whose cache stays warm, with the text at the end and before the history."""
    cached, preamble = int(tokens * cached_share), int(tokens * preamble_share)

    def price_at_end(tokens: int, cached: int) -> float:
        current = prices.at(tokens + added)
        return current.read * cached + current.write * (tokens - cached) + current.uncached * added

    sizes = [tokens + growth * number for number in range(1, requests + 1)]
    at_end = price_at_end(tokens, cached) + sum(price_at_end(size, size - growth) for size in sizes)
    moved = prices.request(tokens + added, min(cached, preamble))
    moved += sum(prices.request(size + added, size + added - growth) for size in sizes)

    plan = plan_edits(
        EditState(
            moment=Moment.ARRIVAL,
            request_tokens=tokens,
            preamble_tokens=preamble,
            cached_tokens=cached,
            added_section_tokens=added,
        ),
        known_future(requests, growth=growth),
        prices,
    )

    if plan.moves_sections:
        # Written once, the text costs a quarter more than uncached input.
        written = added * prices.at(tokens + added).uncached / 4
        assert moved <= at_end + (0 if cached > preamble else written) + 1e-9
    else:
        assert at_end <= moved + 0.05 * plan.cost_dollars + 1e-9


@given(
    tokens=st.integers(21_000, 400_000),
    share_after=st.floats(0.1, 0.99),
    summary=st.integers(200, 20_000),
    cached_share=st.floats(0, 1),
    preamble_share=st.floats(0, 0.5),
    requests=st.integers(0, 300),
    moment=st.sampled_from(Moment),
    cliff=st.booleans(),
)
def test_a_plan_is_always_expected_to_pay(
    tokens: int,
    share_after: float,
    summary: int,
    cached_share: float,
    preamble_share: float,
    requests: int,
    moment: Moment,
    cliff: bool,
) -> None:
    state = EditState(
        moment=moment,
        request_tokens=tokens,
        preamble_tokens=int(tokens * preamble_share),
        cached_tokens=int(tokens * cached_share),
        compaction=CompactionOption(tokens_after=int(tokens * share_after), summary_tokens=summary),
        clearable=(ClearingOption(saved_tokens=int(tokens * (1 - share_after) / 4)),) * 3,
    )

    plan = plan_edits(state, known_future(requests), CLIFF if cliff else SONNET)

    assert plan.is_empty or plan.net_dollars > 0
    assert not (plan.compacts and plan.cleared)


def test_prices_are_read_with_their_tiers() -> None:
    tier = (RateTier(200_000, Decimal("6e-6")),)
    by_kind: dict[TokenKind | BillableUnit, Rate] = {
        TokenKind.UNCACHED: Rate(Decimal("3e-6"), tier),
        TokenKind.OUTPUT: Rate(Decimal("15e-6")),
        TokenKind.READ: Rate(Decimal("0.3e-6")),
    }
    prices = read_prices(Rates(by_kind=by_kind, source=PriceSource.TABLE, origin="test"))

    assert prices is not None
    # Without a price of its own, writing costs as much as any input.
    assert prices.at(200_000).write == 3e-6
    assert prices.at(200_001).write == 6e-6
    assert prices.at(200_001).read == 0.3e-6
    assert read_prices(Rates(by_kind={}, source=PriceSource.TABLE, origin="test")) is None
