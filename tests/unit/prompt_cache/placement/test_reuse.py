"""Breakpoints are placed where the expected read is worth more than the write."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt_cache.placement.reuse import (
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
ROOM = AgentReuse(largest=1_000_000.0)


def level(
    layer: PromptLayer, tokens: int, soon: float, *, late: float = 0.0, is_written: bool = False
) -> PrefixLevel:
    return PrefixLevel(
        layer=layer, pieces=tokens // 1024, tokens=tokens, soon=soon, late=late, is_written=is_written
    )


def test_a_prefix_pays_if_the_expected_saving_exceeds_the_price_of_the_write() -> None:
    above = find_best_reach([level(PromptLayer.CONTEXT, 4096, BREAK_EVEN + 0.01)], RULES, ROOM)
    below = find_best_reach([level(PromptLayer.CONTEXT, 4096, BREAK_EVEN - 0.01)], RULES, ROOM)

    assert (above.pieces, above.layer) == (4, PromptLayer.CONTEXT)
    assert round(above.value, 6) == round(0.01 * 0.9 * 4096, 6)
    assert (below.pieces, below.value) == (0, 0.0)


def test_a_shared_system_prompt_is_written_and_a_tail_that_is_never_repeated_is_not() -> None:
    found = find_best_reach(
        [level(PromptLayer.SYSTEM, 4096, 0.9), level(PromptLayer.CONTEXT, 8192, 0.05)], RULES, ROOM
    )

    assert (found.pieces, found.layer) == (4, PromptLayer.SYSTEM)
    assert found.written_tokens == 4096


def test_a_prefix_below_the_minimum_of_the_model_is_not_written() -> None:
    assert find_best_reach([level(PromptLayer.CONTEXT, 1023, 1.0)], RULES, ROOM).pieces == 0


def test_a_longer_prefix_that_is_likely_makes_every_shorter_one_as_likely() -> None:
    found = find_best_reach(
        [level(PromptLayer.SYSTEM, 4096, 0.1), level(PromptLayer.CONTEXT, 8192, 0.9)], RULES, ROOM
    )

    assert found.written_tokens == 8192
    assert found.front_soon == 0.9


def test_what_can_be_read_is_always_within_reach_and_not_written_again() -> None:
    levels = [level(PromptLayer.SHARED_SYSTEM, 4096, 0.0), level(PromptLayer.CONTEXT, 8192, 0.0)]
    found = find_best_reach(levels, RULES, ROOM, read_pieces=4, read_tokens=4096)

    assert (found.pieces, found.written_tokens) == (4, 0)


def test_siblings_sent_together_do_not_all_write_the_prefix_that_they_share() -> None:
    levels = [
        level(PromptLayer.SHARED_SYSTEM, 12288, 0.9, is_written=True),
        level(PromptLayer.CONTEXT, 13312, 0.9),
    ]

    assert find_best_reach(levels, RULES, ROOM).pieces == 0


def test_a_prefix_that_is_requested_late_is_worth_the_long_ttl_only_if_that_is_allowed() -> None:
    levels = [level(PromptLayer.SHARED_SYSTEM, 4096, 0.05, late=0.9)]

    assert find_best_reach(levels, RULES, ROOM).pieces == 4
    assert find_best_reach(levels, RULES, ROOM, long_ttl=False).pieces == 0


def after_prompts(tokens: int) -> AgentReuse:
    reuse = AgentReuse()
    for _ in range(MAX_UNREAD_PROMPTS):
        reuse = reuse.with_request(tokens)
    return reuse


def test_writing_stops_after_five_unread_prompts_and_starts_again_with_a_read() -> None:
    reuse, written = AgentReuse(), 0
    for _ in range(20):
        reuse = reuse.with_request(4096)
        if find_best_reach([level(PromptLayer.CONTEXT, 4096, 0.9)], RULES, reuse).pieces:
            reuse, written = reuse.with_cost(0.25 * 4096), written + 1
    assert MAX_UNREAD_PROMPTS - 1 <= written <= MAX_UNREAD_PROMPTS

    reuse = reuse.with_cost(-0.9 * 4096)
    assert find_best_reach([level(PromptLayer.CONTEXT, 4096, 0.9)], RULES, reuse).pieces == 4


def test_after_large_unread_prompts_a_read_of_a_small_one_starts_writing_of_small_ones() -> None:
    reuse = after_prompts(100_000).with_cost(5 * 25_000)
    for _ in range(1000):
        reuse = reuse.with_request(2048)

    assert not reuse.can_write(0.25 * 2048)
    assert reuse.with_cost(-0.9 * 2048).can_write(0.25 * 2048)
    assert reuse.with_missed_read(0.65 * 2048).can_write(0.25 * 2048)


def test_a_missed_read_makes_room_for_two_writes_and_spared_writes_take_it_back() -> None:
    full = after_prompts(4096).with_cost(5 * 0.25 * 4096)
    reuse = full.with_missed_read(0.65 * 4096)
    assert reuse.can_write(2 * 0.25 * 4096)

    for _ in range(3):
        reuse = reuse.with_spared_write(0.25 * 4096)
    assert not reuse.can_write(0.25 * 4096)


def test_missed_reads_never_give_credit_and_credit_is_bounded() -> None:
    reuse = after_prompts(4096)
    assert reuse.with_cost(100).with_missed_read(10**9).balance == 0
    assert reuse.with_cost(-(10**9)).balance == -2 * reuse.max_loss
    assert reuse.with_cost(-(10**9)).without_credit().balance == 0


def test_the_long_ttl_is_allowed_only_if_its_price_is_within_the_limit() -> None:
    levels = [level(PromptLayer.CONTEXT, 4096, 0.9, late=0.05)]

    assert find_best_reach(levels, RULES, after_prompts(4096)).allows_long
    assert not find_best_reach(levels, RULES, after_prompts(4096).with_cost(2048)).allows_long


def test_a_change_of_behaviour_is_learned_after_three_surprises() -> None:
    rate = ReuseRate()
    for _ in range(60):
        rate = rate.with_outcome(is_again=False)
    assert rate.probabilities(0.35)[0] < 0.1

    for _ in range(3):
        rate = rate.with_outcome(is_again=True)
    assert rate.probabilities(0.35)[0] > BREAK_EVEN


def test_an_optimistic_estimate_is_higher_while_little_is_known() -> None:
    few, many = ReuseRate(4.0, 1.0), ReuseRate(20.0, 5.0)
    rises = [
        rate.probabilities(0.25, is_optimistic=True)[0] - rate.probabilities(0.25)[0] for rate in (few, many)
    ]

    assert rises[0] > rises[1] > 0


def test_if_writes_are_free_everything_is_within_reach() -> None:
    assert find_best_reach([level(PromptLayer.CONTEXT, 4096, 0.01)], FREE_WRITES, ROOM).pieces == 4


def test_an_agent_that_repeats_nothing_is_learned_quickly() -> None:
    rate = ReuseRate()
    for _ in range(5):
        rate = rate.with_outcome(is_again=False)

    assert rate.probabilities(0.7)[0] < BREAK_EVEN < ReuseRate().probabilities(0.7)[0]


def test_a_late_return_is_counted_as_such() -> None:
    rate = ReuseRate().with_outcome(is_again=False).with_late_outcome()

    assert rate.probabilities(0.5)[1] > ReuseRate().with_outcome(is_again=False).probabilities(0.5)[1]


shapes = st.builds(
    RequestShape,
    has_tools=st.booleans(),
    has_history=st.booleans(),
    has_breakpoints=st.booleans(),
    tokens=st.integers(0, 1_000_000),
)


@given(st.sampled_from(PromptLayer), shapes)
def test_every_layer_of_every_request_has_a_prior(layer: PromptLayer, shape: RequestShape) -> None:
    assert 0 < prior_probability(layer, shape) < 1


@given(shapes)
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
    said: list[tuple[PromptLayer, int, float, bool]], read: int
) -> None:
    levels, tokens = [], 0
    for number, (layer, more, soon, is_written) in enumerate(said, 1):
        tokens += more
        levels.append(PrefixLevel(layer=layer, pieces=number, tokens=tokens, soon=soon, is_written=is_written))
    read = min(read, len(levels))
    found = find_best_reach(
        levels, RULES, ROOM, read_pieces=read, read_tokens=levels[read - 1].tokens if read else 0
    )

    assert found.pieces >= read
    assert (found.value > 0) == bool(found.written_tokens) == (found.pieces > read)
