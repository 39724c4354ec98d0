"""Abbreviated prompts that extend the previous one equal those built from scratch."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.replay.simulator.prompts import AbbreviatedPrompts, build_prompt, build_tail
from foveate.replay.simulator.reconstruct import reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import MODEL, PlannedTurn, make_recording
from tests.support.strategies.planned_turns import turn_lists


@settings(max_examples=limit_examples(25))
@given(
    turns=turn_lists,
    model=st.sampled_from((MODEL, "gpt-5.1")),
    skipped=st.integers(0, 13),
    is_recorded_first=st.booleans(),
)
def test_a_prompt_that_extends_another_always_equals_one_built_from_scratch(
    turns: list[PlannedTurn], model: str, skipped: int, *, is_recorded_first: bool
) -> None:
    """Also if a call is skipped (its price is unknown), or is recorded as sent before its prompt is built."""
    calls = reconstruct_calls(make_recording(turns * 3, model=model))
    prompts, seen_keys = AbbreviatedPrompts(), set[bytes]()
    for call in calls[:skipped] + calls[skipped + 1 :]:
        lookback_positions = call.rules.lookback_positions
        expected = build_prompt(
            build_tail(call.preamble, call.last_node, seen=seen_keys, lookback_positions=lookback_positions),
            call.full_nodes,
        )
        if is_recorded_first:
            prompts.record_sent(call)

        prompt = prompts.build(call)

        assert (prompt, prompt.keys, prompt.ends) == (expected, expected.keys, expected.ends)
        ends = list(accumulate(piece.tokens for piece in expected.pieces))
        assert prompt.ends == ends
        assert ends[-1] == call.input_tokens
        prompts.record_sent(call)
        assert prompts.build(call) == prompt
        seen_keys.update(call.last_node.unseen_keys(call.preamble, seen_keys))


def test_a_call_whose_prompt_was_not_built_is_known_to_later_ones() -> None:
    *earlier_calls, last = reconstruct_calls(make_recording([PlannedTurn() for _ in range(30)]))
    built, recorded_only = AbbreviatedPrompts(), AbbreviatedPrompts()
    for call in earlier_calls:
        built.build(call)
        built.record_sent(call)
        recorded_only.record_sent(call)

    assert recorded_only.build(last) == built.build(last)


def test_a_fork_does_not_change_the_original() -> None:
    *earlier_calls, last = reconstruct_calls(make_recording([PlannedTurn() for _ in range(30)]))
    prompts = AbbreviatedPrompts()
    for call in earlier_calls:
        prompts.record_sent(call)
    fork, other = prompts.fork(), prompts.fork()
    assert last.last_node.previous is not None
    shorter = replace(last, last_node=last.last_node.previous)

    fork.build(shorter)
    fork.record_sent(shorter)

    assert fork.build(last) != prompts.build(last)
    assert prompts.build(last) == other.build(last)


@pytest.mark.slow
def test_the_time_per_call_does_not_grow_with_the_history() -> None:
    prompts, sizes = AbbreviatedPrompts(), []
    for call in reconstruct_calls(make_recording([PlannedTurn(result_chars=40) for _ in range(150)])):
        sizes.append(len(prompts.build(call).pieces))
        prompts.record_sent(call)

    assert max(sizes[100:]) == max(sizes[40:60])
