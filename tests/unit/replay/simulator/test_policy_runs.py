"""Recordings under each policy: invariants of their usage and cost."""

from collections.abc import Collection
from dataclasses import replace
from decimal import Decimal

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
from foveate.replay.outcomes import CostSum
from foveate.replay.policies import Policy, parse_policies
from foveate.replay.run import ReplayOptions, replay_recording
from foveate.replay.simulator.abbreviated_prompt import build_prompt, build_tail
from foveate.replay.simulator.policy_runs import start_runs
from foveate.replay.simulator.reconstruct import ReconstructedCall, reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import MODEL, PlannedTurn, make_recording
from tests.unit.replay.simulator.test_reconstruct import TURNS

BOOK = PriceBook()
LONG = [PlannedTurn(result_chars=8_000, is_question=number % 9 == 8) for number in range(60)]


def prompt_sent(sent: ReconstructedCall, seen: Collection[bytes]) -> CachedPrompt:
    """The prompt of a call; messages that were `seen` are abbreviated."""
    reach = sent.rules.lookback_positions
    return build_prompt(
        build_tail(sent.front, sent.last_node, seen=seen, lookback_positions=reach), sent.full_nodes
    )


@settings(max_examples=limit_examples(20), deadline=None)
@given(turns=TURNS, window=st.sampled_from((None, 20_000, 16_000)))
def test_the_kinds_of_tokens_always_add_up_to_what_was_sent(
    turns: list[PlannedTurn], window: int | None
) -> None:
    recording = make_recording(turns)

    found = replay_recording(recording, BOOK, ReplayOptions(window_tokens=window, with_points=True))

    sent = sum(one.input_tokens for one in reconstruct_calls(recording))
    for policy, outcome in found.outcomes.items():
        assert outcome.calls == len(turns)
        assert outcome.largest_context == max(point.tokens for point in found.points[policy])
        assert sum(point.dollars for point in found.points[policy]) == outcome.dollars
        if policy is not Policy.ADAPTIVE_COMPACTION:
            assert outcome.input_tokens == sent
    assert found.outcomes[Policy.NONE].uncached == sent
    if not found.outcomes[Policy.ADAPTIVE_COMPACTION].folds:
        compacted, adaptive = found.outcomes[Policy.ADAPTIVE_COMPACTION], found.outcomes[Policy.ADAPTIVE]
        assert replace(compacted, policy=adaptive.policy) == adaptive


@settings(max_examples=limit_examples(15), deadline=None)
@given(turns=TURNS, policies=st.sets(st.sampled_from(tuple(Policy)), min_size=1))
def test_a_policy_never_depends_on_which_others_are_requested(
    turns: list[PlannedTurn], policies: set[Policy]
) -> None:
    recording = make_recording(turns)

    together = replay_recording(recording, BOOK, ReplayOptions(window_tokens=18_000))
    some = replay_recording(recording, BOOK, ReplayOptions(policies=tuple(policies), window_tokens=18_000))

    for policy in policies:
        assert some.outcomes[policy] == together.outcomes[policy]


@settings(max_examples=limit_examples(15), deadline=None)
@given(turns=TURNS, model=st.sampled_from((MODEL, "gpt-5.1", "claude-sonnet-4-5")))
def test_an_abbreviated_prompt_always_has_the_usage_of_the_whole_one(
    turns: list[PlannedTurn], model: str
) -> None:
    """In the simulation, a long history is one piece except for its end: that hardly changes the usage."""
    rules = rules_for(model)
    expected = estimate_returns(forecast_next_request(), rules)
    short, whole = SimulatedCache(), SimulatedCache()
    seen: set[bytes] = set()
    read, read_whole, total = 0, 0, 0
    for sent in reconstruct_calls(make_recording(turns, model=model)):
        at = sent.call.at
        in_short, in_whole = prompt_sent(sent, seen), prompt_sent(sent, ())
        assert in_short.tokens == in_whole.tokens == sent.input_tokens
        one = short.serve(
            apply_breakpoints(in_short, place_breakpoints(in_short, rules, short, expected, now=at)),
            rules,
            at=at,
        )
        other = whole.serve(
            apply_breakpoints(in_whole, place_breakpoints(in_whole, rules, whole, expected, now=at)),
            rules,
            at=at,
        )
        short, whole = one.cache, other.cache
        seen.update(sent.last_node.unseen_keys(sent.front, seen))
        read, read_whole = read + one.usage.read, read_whole + other.usage.read
        total += sent.input_tokens

    assert abs(read - read_whole) <= 0.01 * total


def test_a_growing_session_has_the_breakpoints_and_usage_of_whole_prompts() -> None:
    rules = rules_for(MODEL)
    expected = estimate_returns(forecast_next_request(), rules)
    short, whole = SimulatedCache(), SimulatedCache()
    seen: set[bytes] = set()
    for sent in reconstruct_calls(
        make_recording([PlannedTurn(is_question=number % 5 == 4) for number in range(40)])
    ):
        at = sent.call.at
        in_short, in_whole = prompt_sent(sent, seen), prompt_sent(sent, ())
        marks = place_breakpoints(in_short, rules, short, expected, now=at)
        assert marks == place_breakpoints(in_whole, rules, whole, expected, now=at)
        one = short.serve(apply_breakpoints(in_short, marks), rules, at=at)
        other = whole.serve(apply_breakpoints(in_whole, marks), rules, at=at)
        assert one.usage == other.usage
        short, whole = one.cache, other.cache
        seen.update(sent.last_node.unseen_keys(sent.front, seen))


@settings(max_examples=limit_examples(20), deadline=None)
@given(turns=TURNS)
def test_the_recorded_policy_always_has_the_reconstructed_usage(turns: list[PlannedTurn]) -> None:
    run = start_runs([Policy.RECORDED], api_format=Format.ANTHROPIC, window_tokens=None)[Policy.RECORDED]

    for sent in reconstruct_calls(make_recording(turns)):
        assert run.simulate(sent).usage == sent.recorded


@settings(max_examples=limit_examples(30), deadline=None)
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
def test_tokens_added_up_first_always_cost_what_each_call_costs(usages: list[CacheUsage]) -> None:
    till = CostSum(BOOK)
    dollars = Decimal(0)
    for usage in usages:
        assert till.add(usage, 100, model="claude-sonnet-4-5", provider="anthropic", at=1.78e9)
        price = BOOK.price(
            "claude-sonnet-4-5", Usage(cache=usage, output_tokens=100), provider="anthropic", at=1.78e9
        )
        assert price is not None
        dollars += price.dollars

    assert till.dollars == dollars


@pytest.mark.slow
def test_a_long_session_is_compacted_and_then_fits() -> None:
    found = replay_recording(make_recording(LONG), BOOK, ReplayOptions(window_tokens=60_000))

    adaptive, compacted = found.outcomes[Policy.ADAPTIVE], found.outcomes[Policy.ADAPTIVE_COMPACTION]
    assert adaptive.overflows > 0 == compacted.overflows
    assert compacted.folds > 0
    assert compacted.largest_context < 60_000 < adaptive.largest_context
    assert compacted.input_tokens < adaptive.input_tokens
    assert compacted.dollars is not None
    assert 0 < compacted.fold_dollars < compacted.dollars
    assert compacted.output > adaptive.output  # the summaries


def test_one_hour_breakpoints_outlive_a_long_gap_and_cost_more_without_one() -> None:
    busy = replay_recording(make_recording([PlannedTurn() for _ in range(20)]), BOOK, ReplayOptions()).outcomes
    slow = replay_recording(
        make_recording([PlannedTurn(gap_seconds=900.0) for _ in range(20)]), BOOK, ReplayOptions()
    ).outcomes

    assert _dollars(busy, Policy.MARKERS) < _dollars(busy, Policy.MARKERS_1H)
    assert _dollars(slow, Policy.MARKERS_1H) < _dollars(slow, Policy.MARKERS)
    assert _dollars(slow, Policy.ADAPTIVE) < _dollars(slow, Policy.MARKERS)


def _dollars(outcomes: dict, policy: Policy) -> Decimal:  # type: ignore[type-arg]
    dollars = outcomes[policy].dollars
    assert isinstance(dollars, Decimal)
    return dollars


def test_another_model_has_its_own_prices_and_sizes() -> None:
    recording = make_recording([PlannedTurn() for _ in range(10)])

    own = replay_recording(recording, BOOK, ReplayOptions()).outcomes[Policy.NONE]
    alike = replay_recording(recording, BOOK, ReplayOptions(model="claude-opus-4-5")).outcomes[Policy.NONE]
    other = replay_recording(recording, BOOK, ReplayOptions(model="claude-opus-4-8")).outcomes[Policy.NONE]

    assert alike.input_tokens == own.input_tokens
    assert own.dollars is not None
    assert alike.dollars is not None
    assert alike.dollars > own.dollars
    assert 1.1 < other.input_tokens / own.input_tokens < 1.6


def test_calls_of_unknown_price_are_left_out_and_named() -> None:
    recording = make_recording([PlannedTurn(), PlannedTurn()])
    first, second = recording.calls
    recording = replace(recording, calls=(first, replace(second, model="nobody-knows-1")))

    found = replay_recording(recording, BOOK, ReplayOptions())

    assert found.calls == 1
    assert found.unpriced == {"nobody-knows-1": 1}


def test_responses_with_placeholder_counts_are_counted_separately() -> None:
    recording = make_recording([PlannedTurn(is_question=True)])
    (call,) = recording.calls
    assert call.usage is not None
    unknown = replace(call, usage=structs.replace(call.usage, output_tokens=1), output_is_known=False)

    found = replay_recording(replace(recording, calls=(unknown,)), BOOK, ReplayOptions())

    assert found.outcomes[Policy.RECORDED].output == 1
    assert found.placeholders.calls == 1
    assert found.placeholders.tokens > 50
    assert found.placeholders.dollars > 0


def test_policies_are_separated_by_commas_and_returned_in_the_order_of_the_enum() -> None:
    assert parse_policies("fold, recorded") == (Policy.RECORDED, Policy.ADAPTIVE_COMPACTION)
    assert parse_policies("all") == tuple(Policy)


@pytest.mark.parametrize("said", ["", " , ", "adaptiv", "fold,best"])
def test_an_unknown_policy_is_rejected_with_a_list_of_the_known_ones(said: str) -> None:
    with pytest.raises(BadOption, match="adaptive"):
        parse_policies(said)


def test_each_policy_has_a_description() -> None:
    assert all(policy.meaning for policy in Policy)
