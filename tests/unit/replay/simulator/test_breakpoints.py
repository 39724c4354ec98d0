"""Serving calls by lookback gives the same as serving whole prompts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.model import Ttl
from foveate.prompt_cache.simulator import CacheEntries, SimulatedCache, write_entry
from foveate.replay.simulator.abbreviated_prompt import build_prompt, build_tail
from foveate.replay.simulator.breakpoints import (
    BreakpointPosition,
    fixed_breakpoint_pieces,
    fixed_positions,
    serve_positions,
    uses_breakpoint_lookback,
)
from foveate.replay.simulator.reconstruct import (
    reconstruct_calls,
    recorded_breakpoints,
    recorded_positions,
    serve_call,
    serve_call_by_lookback,
)
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import MODEL, PlannedTurn, make_recording
from tests.unit.replay.simulator.test_reconstruct import TURNS


@settings(max_examples=limit_examples(25), deadline=None)
@given(
    turns=TURNS,
    model=st.sampled_from((MODEL, "claude-sonnet-4-5")),
    ttl=st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)),
    has_usage=st.booleans(),
)
def test_serving_by_lookback_always_equals_serving_the_whole_prompt(
    turns: list[PlannedTurn], model: str, ttl: Ttl, *, has_usage: bool
) -> None:
    client, client_whole, fixed, fixed_whole = (SimulatedCache() for _ in range(4))
    for sent in reconstruct_calls(make_recording(turns * 2, model=model, ttl=ttl, has_usage=has_usage)):
        rules = sent.rules
        reach = rules.lookback_positions
        whole = build_prompt(build_tail(sent.front, sent.last_node, lookback_positions=reach), sent.full_nodes)
        assert uses_breakpoint_lookback(rules)

        by_client = serve_call_by_lookback(client, sent, recorded_positions(sent))
        by_hand = serve_call_by_lookback(fixed, sent, fixed_positions(sent.front, sent.last_node, ttl))

        places = fixed_breakpoint_pieces(whole, sent.front, minimum_tokens=rules.minimum_tokens)
        in_whole = serve_call(client_whole, sent, whole, recorded_breakpoints(sent, whole))
        by_hand_whole = serve_call(fixed_whole, sent, whole, dict.fromkeys(places, ttl))
        assert by_client.usage == in_whole.usage
        assert by_client.cache == in_whole.cache
        assert by_hand.usage == by_hand_whole.usage
        assert by_hand.cache == by_hand_whole.cache
        client, client_whole, fixed, fixed_whole = (
            one.cache for one in (by_client, in_whole, by_hand, by_hand_whole)
        )


def test_a_call_without_breakpoints_leaves_nothing_in_the_cache() -> None:
    (sent,) = reconstruct_calls(make_recording([PlannedTurn()]))

    served = serve_call_by_lookback(SimulatedCache(), sent, ())

    assert served.usage.uncached == served.usage.input_tokens == sent.input_tokens
    assert not served.cache.entries


@pytest.mark.slow
def test_the_search_for_a_message_that_accepts_a_breakpoint_is_bounded() -> None:
    sent = reconstruct_calls(
        make_recording([PlannedTurn(result_chars=10) for _ in range(120)], model="gpt-5.1")
    )[-1]
    assert not any(piece.accepts_breakpoint for piece in sent.last_node.pieces)

    assert [spot for spot in fixed_positions(sent.front, sent.last_node, Ttl.FIVE_MINUTES) if spot.node] == []


def test_an_entry_at_a_breakpoint_below_the_minimum_is_found_by_a_later_one() -> None:
    """Defect: it raised an error, since the entry was at a breakpoint that requests none."""
    (sent,) = reconstruct_calls(make_recording([PlannedTurn()]))
    rules = replace(sent.rules, minimum_tokens=sent.front.tokens + 1)
    (front_position,) = (BreakpointPosition(None, at, Ttl.FIVE_MINUTES) for at in sent.front.breakpoints)
    here, at = BreakpointPosition(sent.last_node, 0, Ttl.FIVE_MINUTES), sent.call.at
    entry = write_entry(sent.front.tokens, Ttl.FIVE_MINUTES, at=at, readable_at=at)
    cache = SimulatedCache(CacheEntries({sent.front.keys[front_position.piece]: entry}))

    served = serve_positions(
        cache, sent.front, sent.last_node, (front_position, here), rules, at=at, response_at=at
    )

    assert served.usage.read == sent.front.tokens
