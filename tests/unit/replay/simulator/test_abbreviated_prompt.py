"""Abbreviated prompts that extend the previous one equal those built from scratch."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.replay.simulator.abbreviated_prompt import AbbreviatedPrompts, build_prompt, build_tail
from foveate.replay.simulator.reconstruct import reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import MODEL, PlannedTurn, make_recording
from tests.unit.replay.simulator.test_reconstruct import TURNS


@settings(max_examples=limit_examples(25), deadline=None)
@given(
    turns=TURNS,
    model=st.sampled_from((MODEL, "gpt-5.1")),
    skipped=st.integers(0, 13),
    is_told_first=st.booleans(),
)
def test_a_prompt_that_extends_another_always_equals_one_built_from_scratch(
    turns: list[PlannedTurn], model: str, skipped: int, *, is_told_first: bool
) -> None:
    """Also if a call is skipped (its price is unknown), or recorded as sent before its prompt is built."""
    calls = reconstruct_calls(make_recording(turns * 3, model=model))
    telling, seen = AbbreviatedPrompts(), set[bytes]()
    for sent in calls[:skipped] + calls[skipped + 1 :]:
        reach = sent.rules.lookback_positions
        anew = build_prompt(
            build_tail(sent.front, sent.last_node, seen=seen, lookback_positions=reach), sent.full_nodes
        )
        if is_told_first:
            telling.record_sent(sent)

        prompt = telling.build(sent)

        assert (prompt, prompt.keys, prompt.ends) == (anew, anew.keys, anew.ends)
        assert prompt.ends == list(accumulate(piece.tokens for piece in anew.pieces))
        assert prompt.ends[-1] == sent.input_tokens
        telling.record_sent(sent)
        assert telling.build(sent) == prompt
        seen.update(sent.last_node.unseen_keys(sent.front, seen))


def test_a_call_whose_prompt_was_not_built_is_known_to_later_ones() -> None:
    *before, last = reconstruct_calls(make_recording([PlannedTurn() for _ in range(30)]))
    asked, quiet = AbbreviatedPrompts(), AbbreviatedPrompts()
    for sent in before:
        asked.build(sent)
        asked.record_sent(sent)
        quiet.record_sent(sent)

    assert quiet.build(last) == asked.build(last)


def test_a_fork_does_not_change_the_original() -> None:
    *before, last = reconstruct_calls(make_recording([PlannedTurn() for _ in range(30)]))
    telling = AbbreviatedPrompts()
    for sent in before:
        telling.record_sent(sent)
    fork, other = telling.fork(), telling.fork()
    assert last.last_node.previous is not None
    shorter = replace(last, last_node=last.last_node.previous)

    fork.build(shorter)
    fork.record_sent(shorter)

    assert fork.build(last) != telling.build(last)
    assert telling.build(last) == other.build(last)


@pytest.mark.slow
def test_the_time_per_call_does_not_grow_with_the_history() -> None:
    telling, sizes = AbbreviatedPrompts(), []
    for sent in reconstruct_calls(make_recording([PlannedTurn(result_chars=40) for _ in range(150)])):
        sizes.append(len(telling.build(sent).pieces))
        telling.record_sent(sent)

    assert max(sizes[100:]) == max(sizes[40:60])
