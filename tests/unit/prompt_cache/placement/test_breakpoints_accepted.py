"""Requests with placed breakpoints are always accepted by the provider."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.model import Request
from foveate.prompt_cache.placement.arrival_times import NO_GAPS, estimate_returns, forecast_next_request
from foveate.prompt_cache.placement.breakpoints import place_breakpoints
from foveate.prompt_cache.prompt.build import block_tokens_for, build_cached_prompt
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.sandbox import validate_request
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.claude_requests import Body, claude_requests


def parse_claude_request(body: Body) -> Request:
    return formats.parse_request(json.dumps(body).encode())


def place_and_serve(
    request: Request, cache: SimulatedCache, now: float, gaps: list[float]
) -> tuple[Request, SimulatedCache]:
    """Return the request with its breakpoints, and the cache after it."""
    rules, tokens = rules_for(request.model), block_tokens_for(request.model)
    histogram = NO_GAPS
    for gap in gaps:
        histogram = histogram.with_gap(gap)
    weights = estimate_returns(forecast_next_request(histogram), rules)
    breakpoints = place_breakpoints(build_cached_prompt(request, rules, tokens), rules, cache, weights, now=now)
    edited = formats.parse_request(formats.apply_edits(request, breakpoints))
    return edited, cache.serve(build_cached_prompt(edited, rules, tokens), rules, at=now).cache


def find_cache_controls(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("cache_control"), dict):
            yield value["cache_control"]
        for name, child in value.items():
            if name != "input_schema":
                yield from find_cache_controls(child)
    elif isinstance(value, list):
        for child in value:
            yield from find_cache_controls(child)


def without_breakpoints(value: Any) -> Any:
    """Return the request without breakpoints, with every string content as one block."""
    if isinstance(value, dict):
        fields = {name: without_breakpoints(child) for name, child in value.items() if name != "cache_control"}
        for name in ("content", "system"):
            if isinstance(fields.get(name), str):
                fields[name] = [{"type": "text", "text": fields[name]}]
        return fields
    return [without_breakpoints(child) for child in value] if isinstance(value, list) else value


@pytest.mark.slow
@given(claude_requests(), st.lists(st.floats(1, 9000), max_size=6))
def test_every_request_with_our_breakpoints_is_accepted(body: Body, gaps: list[float]) -> None:
    request = parse_claude_request(body)
    assert validate_request(request) is None
    edited, _ = place_and_serve(request, SimulatedCache(), 0.0, gaps)
    assert validate_request(edited) is None
    edited_body = json.loads(edited.body)
    assert len(list(find_cache_controls(edited_body))) <= 4
    assert without_breakpoints(edited_body) == without_breakpoints(body)


@pytest.mark.slow
@settings(max_examples=limit_examples(25))
@given(claude_requests(max_turns=6), st.lists(st.floats(0.1, 4000), min_size=7, max_size=7))
def test_every_request_of_a_growing_session_is_accepted(body: Body, gaps: list[float]) -> None:
    cache, now = SimulatedCache(), 0.0
    turn_ends = [index + 1 for index, message in enumerate(body["messages"]) if message["role"] == "user"]
    for end, gap in zip(turn_ends, gaps, strict=False):
        request = parse_claude_request({**body, "messages": body["messages"][:end]})
        if validate_request(request) is not None:  # a tool call without its result, since the turn was cut
            continue
        now += gap
        edited, cache = place_and_serve(request, cache, now, gaps)
        assert validate_request(edited) is None
