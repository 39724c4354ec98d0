"""Breakpoints are placed where the expected read is worth more than the write."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt_cache.placement.prefix_reuse import (
    MAX_UNREAD_PROMPTS,
    AgentReuse,
    PrefixLevel,
    PromptLayer,
    RequestShape,
    ReuseRate,
    find_best_reach,
    prior_probability,
)
from foveate.prompt_cache.rules import rules_for

RULES = rules_for("claude-sonnet-4-6")
FREE_WRITES = rules_for("gpt-4o")
BREAK_EVEN = 0.25 / 0.9
LARGE_BUDGET = AgentReuse(largest=1_000_000.0)


def make_level(
    layer: PromptLayer,
    tokens: int,
    short_probability: float,
    *,
    long_probability: float = 0.0,
    is_written: bool = False,
) -> PrefixLevel:
    return PrefixLevel(
        layer=layer,
        pieces=tokens // 1024,
        tokens=tokens,
        short_probability=short_probability,
        long_probability=long_probability,
        is_written=is_written,
    )


def test_a_prefix_pays_if_the_expected_saving_exceeds_the_price_of_the_write() -> None:
    profitable = find_best_reach(
        [make_level(PromptLayer.CONTEXT, 4096, BREAK_EVEN + 0.01)], RULES, LARGE_BUDGET
    )
    unprofitable = find_best_reach(
        [make_level(PromptLayer.CONTEXT, 4096, BREAK_EVEN - 0.01)], RULES, LARGE_BUDGET
    )

    assert (profitable.pieces, profitable.layer) == (4, PromptLayer.CONTEXT)
    assert round(profitable.value, 6) == round(0.01 * 0.9 * 4096, 6)
    assert (unprofitable.pieces, unprofitable.value) == (0, 0.0)


def test_a_shared_system_prompt_is_written_and_a_tail_that_is_never_repeated_is_not() -> None:
    reach = find_best_reach(
        [make_level(PromptLayer.SYSTEM, 4096, 0.9), make_level(PromptLayer.CONTEXT, 8192, 0.05)],
        RULES,
        LARGE_BUDGET,
    )

    assert (reach.pieces, reach.layer) == (4, PromptLayer.SYSTEM)
    assert reach.written_tokens == 4096


def test_a_prefix_below_the_minimum_of_the_model_is_not_written() -> None:
    assert find_best_reach([make_level(PromptLayer.CONTEXT, 1023, 1.0)], RULES, LARGE_BUDGET).pieces == 0


def test_a_longer_prefix_that_is_likely_makes_every_shorter_one_as_likely() -> None:
    reach = find_best_reach(
        [make_level(PromptLayer.SYSTEM, 4096, 0.1), make_level(PromptLayer.CONTEXT, 8192, 0.9)],
        RULES,
        LARGE_BUDGET,
    )

    assert reach.written_tokens == 8192
    assert reach.preamble_short_probability == 0.9


def test_a_readable_prefix_is_always_within_reach_and_not_written_again() -> None:
    levels = [make_level(PromptLayer.SHARED_SYSTEM, 4096, 0.0), make_level(PromptLayer.CONTEXT, 8192, 0.0)]
    reach = find_best_reach(levels, RULES, LARGE_BUDGET, read_pieces=4, read_tokens=4096)

    assert (reach.pieces, reach.written_tokens) == (4, 0)


def test_siblings_sent_together_do_not_all_write_the_prefix_that_they_share() -> None:
    levels = [
        make_level(PromptLayer.SHARED_SYSTEM, 12288, 0.9, is_written=True),
        make_level(PromptLayer.CONTEXT, 13312, 0.9),
    ]

    assert find_best_reach(levels, RULES, LARGE_BUDGET).pieces == 0


def test_a_prefix_that_is_requested_late_is_worth_the_long_ttl_only_if_that_is_allowed() -> None:
    levels = [make_level(PromptLayer.SHARED_SYSTEM, 4096, 0.05, long_probability=0.9)]

    assert find_best_reach(levels, RULES, LARGE_BUDGET).pieces == 4
    assert find_best_reach(levels, RULES, LARGE_BUDGET, long_ttl=False).pieces == 0


def reuse_after_prompts(tokens: int) -> AgentReuse:
    reuse = AgentReuse()
    for _ in range(MAX_UNREAD_PROMPTS):
        reuse = reuse.with_request(tokens)
    return reuse


def test_writing_stops_after_five_unread_prompts_and_starts_again_with_a_read() -> None:
    reuse, writes = AgentReuse(), 0
    for _ in range(20):
        reuse = reuse.with_request(4096)
        if find_best_reach([make_level(PromptLayer.CONTEXT, 4096, 0.9)], RULES, reuse).pieces:
            reuse, writes = reuse.with_cost(0.25 * 4096), writes + 1
    assert MAX_UNREAD_PROMPTS - 1 <= writes <= MAX_UNREAD_PROMPTS

    reuse = reuse.with_cost(-0.9 * 4096)
    assert find_best_reach([make_level(PromptLayer.CONTEXT, 4096, 0.9)], RULES, reuse).pieces == 4


def test_after_large_unread_prompts_a_read_of_a_small_one_starts_writing_of_small_ones() -> None:
    reuse = reuse_after_prompts(100_000).with_cost(5 * 25_000)
    for _ in range(1000):
        reuse = reuse.with_request(2048)

    assert not reuse.can_write(0.25 * 2048)
    assert reuse.with_cost(-0.9 * 2048).can_write(0.25 * 2048)
    assert reuse.with_missed_read(0.65 * 2048).can_write(0.25 * 2048)


def test_a_missed_read_allows_two_writes_and_spared_writes_use_that_up() -> None:
    exhausted = reuse_after_prompts(4096).with_cost(5 * 0.25 * 4096)
    reuse = exhausted.with_missed_read(0.65 * 4096)
    assert reuse.can_write(2 * 0.25 * 4096)

    for _ in range(3):
        reuse = reuse.with_spared_write(0.25 * 4096)
    assert not reuse.can_write(0.25 * 4096)


def test_missed_reads_never_give_credit_and_credit_is_bounded() -> None:
    reuse = reuse_after_prompts(4096)
    assert reuse.with_cost(100).with_missed_read(10**9).balance == 0
    assert reuse.with_cost(-(10**9)).balance == -2 * reuse.max_loss
    assert reuse.with_cost(-(10**9)).without_credit().balance == 0


def test_the_long_ttl_is_allowed_only_if_its_price_is_within_the_limit() -> None:
    levels = [make_level(PromptLayer.CONTEXT, 4096, 0.9, long_probability=0.05)]

    assert find_best_reach(levels, RULES, reuse_after_prompts(4096)).allows_long
    assert not find_best_reach(levels, RULES, reuse_after_prompts(4096).with_cost(2048)).allows_long


def test_a_change_of_behaviour_is_learned_after_three_surprises() -> None:
    rate = ReuseRate()
    for _ in range(60):
        rate = rate.with_outcome(is_again=False)
    assert rate.probabilities(0.35)[0] < 0.1

    for _ in range(3):
        rate = rate.with_outcome(is_again=True)
    assert rate.probabilities(0.35)[0] > BREAK_EVEN


def test_an_optimistic_estimate_is_higher_while_little_is_known() -> None:
    little_data, much_data = ReuseRate(4.0, 1.0), ReuseRate(20.0, 5.0)
    bonuses = [
        rate.probabilities(0.25, is_optimistic=True)[0] - rate.probabilities(0.25)[0]
        for rate in (little_data, much_data)
    ]

    assert bonuses[0] > bonuses[1] > 0


def test_if_writes_are_free_everything_is_within_reach() -> None:
    assert find_best_reach([make_level(PromptLayer.CONTEXT, 4096, 0.01)], FREE_WRITES, LARGE_BUDGET).pieces == 4


def test_an_agent_that_repeats_nothing_is_learned_quickly() -> None:
    rate = ReuseRate()
    for _ in range(5):
        rate = rate.with_outcome(is_again=False)

    assert rate.probabilities(0.7)[0] < BREAK_EVEN < ReuseRate().probabilities(0.7)[0]


def test_a_late_return_is_counted_as_such() -> None:
    rate = ReuseRate().with_outcome(is_again=False).with_late_outcome()

    assert rate.probabilities(0.5)[1] > ReuseRate().with_outcome(is_again=False).probabilities(0.5)[1]


request_shapes = st.builds(
    RequestShape,
    has_tools=st.booleans(),
    has_history=st.booleans(),
    has_breakpoints=st.booleans(),
    tokens=st.integers(0, 1_000_000),
)


@given(st.sampled_from(PromptLayer), request_shapes)
def test_every_layer_of_every_request_has_a_prior(layer: PromptLayer, shape: RequestShape) -> None:
    assert 0 < prior_probability(layer, shape) < 1


@given(request_shapes)
def test_tools_and_breakpoints_of_its_own_make_a_request_more_likely_to_be_continued(
    shape: RequestShape,
) -> None:
    loop = RequestShape(
        has_tools=True, has_history=shape.has_history, has_breakpoints=True, tokens=shape.tokens
    )
    single = RequestShape(
        has_tools=False, has_history=shape.has_history, has_breakpoints=False, tokens=shape.tokens
    )

    assert prior_probability(PromptLayer.CONTEXT, loop) >= prior_probability(PromptLayer.CONTEXT, single)


@given(
    st.lists(
        st.tuples(st.sampled_from(PromptLayer), st.integers(1, 50_000), st.floats(0, 1), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 5),
)
def test_the_reach_is_always_worth_something_or_costs_nothing(
    layer_specs: list[tuple[PromptLayer, int, float, bool]], read_pieces: int
) -> None:
    levels, tokens = [], 0
    for number, (layer, added_tokens, short_probability, is_written) in enumerate(layer_specs, 1):
        tokens += added_tokens
        levels.append(
            PrefixLevel(
                layer=layer,
                pieces=number,
                tokens=tokens,
                short_probability=short_probability,
                is_written=is_written,
            )
        )
    read_pieces = min(read_pieces, len(levels))
    reach = find_best_reach(
        levels,
        RULES,
        LARGE_BUDGET,
        read_pieces=read_pieces,
        read_tokens=levels[read_pieces - 1].tokens if read_pieces else 0,
    )

    assert reach.pieces >= read_pieces
    assert (reach.value > 0) == bool(reach.written_tokens) == (reach.pieces > read_pieces)
