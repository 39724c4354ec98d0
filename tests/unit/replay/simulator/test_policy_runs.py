"""Recordings under each policy: invariants of their usage and cost."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from foveate.cost.pricing.price_book import PriceBook
from foveate.errors import BadOption
from foveate.model import CacheUsage, Format, Usage
from foveate.prompt_cache.placement.arrival_times import estimate_returns, forecast_next_request
from foveate.prompt_cache.placement.breakpoints import apply_breakpoints, place_breakpoints
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.replay.outcomes import CostSum, Policy, parse_policies
from foveate.replay.run import ReplayOptions, replay_recording
from foveate.replay.simulator.policy_runs import start_runs
from foveate.replay.simulator.prompts import build_prompt, build_tail
from foveate.replay.simulator.reconstruct import ReconstructedCall, reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import MODEL, PlannedTurn, make_recording
from tests.support.strategies.planned_turns import turn_lists

BOOK = PriceBook()
LONG_SESSION = [PlannedTurn(result_chars=8_000, is_question=number % 9 == 8) for number in range(60)]


def build_call_prompt(call: ReconstructedCall, seen_keys: Collection[bytes]) -> CachedPrompt:
    """Build the prompt of a call; messages in `seen_keys` are abbreviated."""
    lookback_positions = call.rules.lookback_positions
    return build_prompt(
        build_tail(call.preamble, call.last_node, seen=seen_keys, lookback_positions=lookback_positions),
        call.full_nodes,
    )


@settings(max_examples=limit_examples(20))
@given(turns=turn_lists, window=st.sampled_from((None, 20_000, 16_000)))
def test_the_kinds_of_tokens_always_add_up_to_the_sent_tokens(
    turns: list[PlannedTurn], window: int | None
) -> None:
    recording = make_recording(turns)

    replayed = replay_recording(recording, BOOK, ReplayOptions(window_tokens=window, with_points=True))

    total_tokens = sum(call.input_tokens for call in reconstruct_calls(recording))
    for policy, outcome in replayed.outcomes.items():
        assert outcome.calls == len(turns)
        assert outcome.largest_context == max(point.tokens for point in replayed.points[policy])
        assert sum(point.dollars for point in replayed.points[policy]) == outcome.dollars
        if policy is not Policy.ADAPTIVE_COMPACTION:
            assert outcome.input_tokens == total_tokens
    assert replayed.outcomes[Policy.NONE].uncached == total_tokens
    if not replayed.outcomes[Policy.ADAPTIVE_COMPACTION].folds:
        compacted, adaptive = replayed.outcomes[Policy.ADAPTIVE_COMPACTION], replayed.outcomes[Policy.ADAPTIVE]
        assert replace(compacted, policy=adaptive.policy) == adaptive


@settings(max_examples=limit_examples(15))
@given(turns=turn_lists, policies=st.sets(st.sampled_from(tuple(Policy)), min_size=1))
def test_a_policy_never_depends_on_which_others_are_requested(
    turns: list[PlannedTurn], policies: set[Policy]
) -> None:
    recording = make_recording(turns)

    with_all = replay_recording(recording, BOOK, ReplayOptions(window_tokens=18_000))
    with_some = replay_recording(recording, BOOK, ReplayOptions(policies=tuple(policies), window_tokens=18_000))

    for policy in policies:
        assert with_some.outcomes[policy] == with_all.outcomes[policy]


@settings(max_examples=limit_examples(15))
@given(turns=turn_lists, model=st.sampled_from((MODEL, "gpt-5.1", "claude-sonnet-4-5")))
def test_an_abbreviated_prompt_always_has_the_usage_of_the_whole_one(
    turns: list[PlannedTurn], model: str
) -> None:
    """In the simulation, a long history is one piece except for its end: that hardly changes the usage."""
    rules = rules_for(model)
    weights = estimate_returns(forecast_next_request(), rules)
    short_cache, whole_cache = SimulatedCache(), SimulatedCache()
    seen_keys: set[bytes] = set()
    read_tokens, whole_read_tokens, total = 0, 0, 0
    for call in reconstruct_calls(make_recording(turns, model=model)):
        now = call.call.at
        short_prompt, whole_prompt = build_call_prompt(call, seen_keys), build_call_prompt(call, ())
        assert short_prompt.tokens == whole_prompt.tokens == call.input_tokens
        short_served = short_cache.serve(
            apply_breakpoints(
                short_prompt, place_breakpoints(short_prompt, rules, short_cache, weights, now=now)
            ),
            rules,
            at=now,
        )
        whole_served = whole_cache.serve(
            apply_breakpoints(
                whole_prompt, place_breakpoints(whole_prompt, rules, whole_cache, weights, now=now)
            ),
            rules,
            at=now,
        )
        short_cache, whole_cache = short_served.cache, whole_served.cache
        seen_keys.update(call.last_node.unseen_keys(call.preamble, seen_keys))
        read_tokens, whole_read_tokens = (
            read_tokens + short_served.usage.read,
            whole_read_tokens + whole_served.usage.read,
        )
        total += call.input_tokens

    assert abs(read_tokens - whole_read_tokens) <= 0.01 * total


def test_a_growing_session_has_the_breakpoints_and_usage_of_whole_prompts() -> None:
    rules = rules_for(MODEL)
    weights = estimate_returns(forecast_next_request(), rules)
    short_cache, whole_cache = SimulatedCache(), SimulatedCache()
    seen_keys: set[bytes] = set()
    for call in reconstruct_calls(
        make_recording([PlannedTurn(is_question=number % 5 == 4) for number in range(40)])
    ):
        now = call.call.at
        short_prompt, whole_prompt = build_call_prompt(call, seen_keys), build_call_prompt(call, ())
        breakpoints = place_breakpoints(short_prompt, rules, short_cache, weights, now=now)
        assert breakpoints == place_breakpoints(whole_prompt, rules, whole_cache, weights, now=now)
        short_served = short_cache.serve(apply_breakpoints(short_prompt, breakpoints), rules, at=now)
        whole_served = whole_cache.serve(apply_breakpoints(whole_prompt, breakpoints), rules, at=now)
        assert short_served.usage == whole_served.usage
        short_cache, whole_cache = short_served.cache, whole_served.cache
        seen_keys.update(call.last_node.unseen_keys(call.preamble, seen_keys))


@settings(max_examples=limit_examples(20))
@given(turns=turn_lists)
def test_the_recorded_policy_always_has_the_reconstructed_usage(turns: list[PlannedTurn]) -> None:
    run = start_runs([Policy.RECORDED], BOOK, api_format=Format.ANTHROPIC, window_tokens=None)[Policy.RECORDED]

    for call in reconstruct_calls(make_recording(turns)):
        assert run.simulate(call).usage == call.recorded


@settings(max_examples=limit_examples(30))
@given(
    usages=st.lists(
        st.builds(
            CacheUsage,
            uncached=st.integers(0, 300_000),
            read=st.integers(0, 300_000),
            written_5m=st.integers(0, 9_000),
            written_1h=st.integers(0, 9_000),
        ),
        max_size=8,
    )
)
def test_the_cost_of_summed_tokens_always_equals_the_sum_of_costs(usages: list[CacheUsage]) -> None:
    cost_sum = CostSum(BOOK)
    dollars = Decimal(0)
    for usage in usages:
        assert cost_sum.add(usage, 100, model="claude-sonnet-4-5", provider="anthropic", at=1.78e9)
        price = BOOK.price(
            "claude-sonnet-4-5", Usage(cache=usage, output_tokens=100), provider="anthropic", at=1.78e9
        )
        assert price is not None
        dollars += price.dollars

    assert cost_sum.dollars == dollars


@pytest.mark.slow
def test_a_long_session_is_compacted_and_then_fits() -> None:
    replayed = replay_recording(make_recording(LONG_SESSION), BOOK, ReplayOptions(window_tokens=60_000))

    adaptive, compacted = replayed.outcomes[Policy.ADAPTIVE], replayed.outcomes[Policy.ADAPTIVE_COMPACTION]
    assert adaptive.overflows > 0 == compacted.overflows
    assert compacted.folds > 0
    assert compacted.largest_context < 60_000 < adaptive.largest_context
    assert compacted.input_tokens < adaptive.input_tokens
    assert compacted.dollars is not None
    assert 0 < compacted.fold_dollars < compacted.dollars
    assert compacted.output > adaptive.output  # the summaries


def test_one_hour_breakpoints_outlive_a_long_gap_and_cost_more_without_one() -> None:
    short_gaps = replay_recording(
        make_recording([PlannedTurn() for _ in range(20)]), BOOK, ReplayOptions()
    ).outcomes
    long_gaps = replay_recording(
        make_recording([PlannedTurn(gap_seconds=900.0) for _ in range(20)]), BOOK, ReplayOptions()
    ).outcomes

    assert _dollars(short_gaps, Policy.MARKERS) < _dollars(short_gaps, Policy.MARKERS_1H)
    assert _dollars(long_gaps, Policy.MARKERS_1H) < _dollars(long_gaps, Policy.MARKERS)
    assert _dollars(long_gaps, Policy.ADAPTIVE) < _dollars(long_gaps, Policy.MARKERS)


def _dollars(outcomes: Mapping[Policy, Any], policy: Policy) -> Decimal:
    dollars = outcomes[policy].dollars
    assert isinstance(dollars, Decimal)
    return dollars


def test_another_model_has_its_own_prices_and_sizes() -> None:
    recording = make_recording([PlannedTurn() for _ in range(10)])

    recorded_model = replay_recording(recording, BOOK, ReplayOptions()).outcomes[Policy.NONE]
    same_tokenizer = replay_recording(recording, BOOK, ReplayOptions(model="claude-opus-4-5")).outcomes[
        Policy.NONE
    ]
    other_tokenizer = replay_recording(recording, BOOK, ReplayOptions(model="claude-opus-4-8")).outcomes[
        Policy.NONE
    ]

    assert same_tokenizer.input_tokens == recorded_model.input_tokens
    assert recorded_model.dollars is not None
    assert same_tokenizer.dollars is not None
    assert same_tokenizer.dollars > recorded_model.dollars
    assert 1.1 < other_tokenizer.input_tokens / recorded_model.input_tokens < 1.6


def test_calls_of_unknown_price_are_left_out_and_named() -> None:
    recording = make_recording([PlannedTurn(), PlannedTurn()])
    first, second = recording.calls
    recording = replace(recording, calls=(first, replace(second, model="nobody-knows-1")))

    replayed = replay_recording(recording, BOOK, ReplayOptions())

    assert replayed.calls == 1
    assert replayed.unpriced == {"nobody-knows-1": 1}


def test_responses_with_placeholder_counts_are_counted_separately() -> None:
    recording = make_recording([PlannedTurn(is_question=True)])
    (call,) = recording.calls
    assert call.usage is not None
    placeholder = replace(call, usage=structs.replace(call.usage, output_tokens=1), output_is_known=False)

    replayed = replay_recording(replace(recording, calls=(placeholder,)), BOOK, ReplayOptions())

    assert replayed.outcomes[Policy.RECORDED].output == 1
    assert replayed.placeholders.calls == 1
    assert replayed.placeholders.tokens > 50
    assert replayed.placeholders.dollars > 0


def test_policies_are_separated_by_commas_and_returned_in_the_order_of_the_enum() -> None:
    assert parse_policies("fold, recorded") == (Policy.RECORDED, Policy.ADAPTIVE_COMPACTION)
    assert parse_policies("all") == tuple(Policy)


@pytest.mark.parametrize("option", ["", " , ", "adaptiv", "fold,best"])
def test_an_unknown_policy_is_rejected_with_a_list_of_the_known_ones(option: str) -> None:
    with pytest.raises(BadOption, match="adaptive"):
        parse_policies(option)


def test_each_policy_has_a_description() -> None:
    assert all(policy.meaning for policy in Policy)
