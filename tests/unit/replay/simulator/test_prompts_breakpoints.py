"""Serving abbreviated prompts gives the same as serving whole prompts."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.model import Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.simulator import CacheEntries, SimulatedCache, write_entry
from foveate.replay.simulator.prompts import (
    AbbreviatedPrompts,
    build_prompt,
    build_tail,
    fixed_breakpoint_pieces,
)
from foveate.replay.simulator.reconstruct import (
    ReconstructedCall,
    reconstruct_calls,
    recorded_breakpoints,
    serve_call,
)
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import MODEL, PlannedTurn, make_recording
from tests.support.strategies.planned_turns import turn_lists


def _build_whole_prompt(call: ReconstructedCall) -> CachedPrompt:
    lookback_positions = call.rules.lookback_positions
    return build_prompt(
        build_tail(call.preamble, call.last_node, lookback_positions=lookback_positions), call.full_nodes
    )


@settings(max_examples=limit_examples(25))
@given(
    turns=turn_lists,
    model=st.sampled_from((MODEL, "claude-sonnet-4-5")),
    ttl=st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)),
    has_usage=st.booleans(),
)
def test_serving_an_abbreviated_prompt_always_equals_serving_the_whole_prompt(
    turns: list[PlannedTurn], model: str, ttl: Ttl, *, has_usage: bool
) -> None:
    prompts = AbbreviatedPrompts()
    client_cache, client_full, fixed_cache, fixed_full = (SimulatedCache() for _ in range(4))
    for call in reconstruct_calls(make_recording(turns * 2, model=model, ttl=ttl, has_usage=has_usage)):
        minimum_tokens = call.rules.minimum_tokens
        prompt, whole = prompts.build(call), _build_whole_prompt(call)
        fixed, fixed_whole = (
            fixed_breakpoint_pieces(built, call.preamble, minimum_tokens=minimum_tokens)
            for built in (prompt, whole)
        )

        client_served = serve_call(client_cache, call, prompt, recorded_breakpoints(call, prompt))
        fixed_served = serve_call(fixed_cache, call, prompt, dict.fromkeys(fixed, ttl))

        client_full_served = serve_call(client_full, call, whole, recorded_breakpoints(call, whole))
        fixed_full_served = serve_call(fixed_full, call, whole, dict.fromkeys(fixed_whole, ttl))
        assert client_served.usage == client_full_served.usage
        assert client_served.cache == client_full_served.cache
        assert fixed_served.usage == fixed_full_served.usage
        assert fixed_served.cache == fixed_full_served.cache
        client_cache, client_full, fixed_cache, fixed_full = (
            served.cache for served in (client_served, client_full_served, fixed_served, fixed_full_served)
        )
        prompts.record_sent(call)


def test_a_call_without_breakpoints_leaves_nothing_in_the_cache() -> None:
    (call,) = reconstruct_calls(make_recording([PlannedTurn()]))

    served = serve_call(SimulatedCache(), call, _build_whole_prompt(call), {})

    assert served.usage.uncached == served.usage.input_tokens == call.input_tokens
    assert not served.cache.entries


def test_an_entry_at_a_breakpoint_below_the_minimum_is_found_by_a_later_one() -> None:
    (call,) = reconstruct_calls(make_recording([PlannedTurn()]))
    rules = replace(call.rules, minimum_tokens=call.preamble.tokens + 1)
    (preamble_piece,) = call.preamble.breakpoints
    prompt, now = _build_whole_prompt(call), call.call.at
    entry = write_entry(call.preamble.tokens, Ttl.FIVE_MINUTES, at=now, readable_at=now)
    cache = SimulatedCache(CacheEntries({call.preamble.keys[preamble_piece]: entry}))

    served = cache.serve_with_breakpoints(
        prompt,
        dict.fromkeys((preamble_piece, len(call.preamble.pieces)), Ttl.FIVE_MINUTES),
        rules,
        at=now,
        response_at=now,
    )

    assert served.usage.read == call.preamble.tokens
