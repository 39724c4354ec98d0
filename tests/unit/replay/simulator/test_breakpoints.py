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
from tests.support.strategies.planned_turns import turn_lists


@settings(max_examples=limit_examples(25))
@given(
    turns=turn_lists,
    model=st.sampled_from((MODEL, "claude-sonnet-4-5")),
    ttl=st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)),
    has_usage=st.booleans(),
)
def test_serving_by_lookback_always_equals_serving_the_whole_prompt(
    turns: list[PlannedTurn], model: str, ttl: Ttl, *, has_usage: bool
) -> None:
    client_cache, client_full, fixed_cache, fixed_full = (SimulatedCache() for _ in range(4))
    for call in reconstruct_calls(make_recording(turns * 2, model=model, ttl=ttl, has_usage=has_usage)):
        rules = call.rules
        lookback_positions = rules.lookback_positions
        prompt = build_prompt(
            build_tail(call.preamble, call.last_node, lookback_positions=lookback_positions), call.full_nodes
        )
        assert uses_breakpoint_lookback(rules)

        client_served = serve_call_by_lookback(client_cache, call, recorded_positions(call))
        fixed_served = serve_call_by_lookback(
            fixed_cache, call, fixed_positions(call.preamble, call.last_node, ttl)
        )

        fixed_pieces = fixed_breakpoint_pieces(prompt, call.preamble, minimum_tokens=rules.minimum_tokens)
        client_full_served = serve_call(client_full, call, prompt, recorded_breakpoints(call, prompt))
        fixed_full_served = serve_call(fixed_full, call, prompt, dict.fromkeys(fixed_pieces, ttl))
        assert client_served.usage == client_full_served.usage
        assert client_served.cache == client_full_served.cache
        assert fixed_served.usage == fixed_full_served.usage
        assert fixed_served.cache == fixed_full_served.cache
        client_cache, client_full, fixed_cache, fixed_full = (
            served.cache for served in (client_served, client_full_served, fixed_served, fixed_full_served)
        )


def test_a_call_without_breakpoints_leaves_nothing_in_the_cache() -> None:
    (call,) = reconstruct_calls(make_recording([PlannedTurn()]))

    served = serve_call_by_lookback(SimulatedCache(), call, ())

    assert served.usage.uncached == served.usage.input_tokens == call.input_tokens
    assert not served.cache.entries


@pytest.mark.slow
def test_the_search_for_a_message_that_accepts_a_breakpoint_is_bounded() -> None:
    call = reconstruct_calls(
        make_recording([PlannedTurn(result_chars=10) for _ in range(120)], model="gpt-5.1")
    )[-1]
    assert not any(piece.accepts_breakpoint for piece in call.last_node.pieces)

    assert [
        position
        for position in fixed_positions(call.preamble, call.last_node, Ttl.FIVE_MINUTES)
        if position.node
    ] == []


def test_an_entry_at_a_breakpoint_below_the_minimum_is_found_by_a_later_one() -> None:
    """Regression: looking up an entry at a breakpoint that is too short to be cached raised an error."""
    (call,) = reconstruct_calls(make_recording([PlannedTurn()]))
    rules = replace(call.rules, minimum_tokens=call.preamble.tokens + 1)
    (preamble_position,) = (
        BreakpointPosition(None, piece, Ttl.FIVE_MINUTES) for piece in call.preamble.breakpoints
    )
    message_position, now = BreakpointPosition(call.last_node, 0, Ttl.FIVE_MINUTES), call.call.at
    entry = write_entry(call.preamble.tokens, Ttl.FIVE_MINUTES, at=now, readable_at=now)
    cache = SimulatedCache(CacheEntries({call.preamble.keys[preamble_position.piece]: entry}))

    served = serve_positions(
        cache,
        call.preamble,
        call.last_node,
        (preamble_position, message_position),
        rules,
        at=now,
        response_at=now,
    )

    assert served.usage.read == call.preamble.tokens
