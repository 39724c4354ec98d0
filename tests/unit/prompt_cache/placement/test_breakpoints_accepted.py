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


def read(body: Body) -> Request:
    return formats.parse_request(json.dumps(body).encode())


def laid_out(
    request: Request, cache: SimulatedCache, now: float, gaps: list[float]
) -> tuple[Request, SimulatedCache]:
    """The request with its breakpoints, and the cache after it."""
    rules, tokens = rules_for(request.model), block_tokens_for(request.model)
    histogram = NO_GAPS
    for gap in gaps:
        histogram = histogram.with_gap(gap)
    weights = estimate_returns(forecast_next_request(histogram), rules)
    found = place_breakpoints(build_cached_prompt(request, rules, tokens), rules, cache, weights, now=now)
    written = formats.parse_request(formats.apply_edits(request, found))
    return written, cache.serve(build_cached_prompt(written, rules, tokens), rules, at=now).cache


def marks_in(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        if isinstance(found.get("cache_control"), dict):
            yield found["cache_control"]
        for name, inner in found.items():
            if name != "input_schema":
                yield from marks_in(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from marks_in(inner)


def without_breakpoints(found: Any) -> Any:
    """The request without breakpoints, with every string content as one block."""
    if isinstance(found, dict):
        kept = {name: without_breakpoints(inner) for name, inner in found.items() if name != "cache_control"}
        for name in ("content", "system"):
            if isinstance(kept.get(name), str):
                kept[name] = [{"type": "text", "text": kept[name]}]
        return kept
    return [without_breakpoints(inner) for inner in found] if isinstance(found, list) else found


@pytest.mark.slow
@settings(max_examples=limit_examples(60))
@given(claude_requests(), st.lists(st.floats(1, 9000), max_size=6))
def test_every_request_with_our_breakpoints_is_accepted(body: Body, gaps: list[float]) -> None:
    request = read(body)
    assert validate_request(request) is None
    written, _ = laid_out(request, SimulatedCache(), 0.0, gaps)
    assert validate_request(written) is None
    said = json.loads(written.body)
    assert len(list(marks_in(said))) <= 4
    assert without_breakpoints(said) == without_breakpoints(body)


@pytest.mark.slow
@settings(max_examples=limit_examples(25))
@given(claude_requests(max_turns=6), st.lists(st.floats(0.1, 4000), min_size=7, max_size=7))
def test_every_request_of_a_growing_session_is_accepted(body: Body, gaps: list[float]) -> None:
    cache, now = SimulatedCache(), 0.0
    ends = [at + 1 for at, message in enumerate(body["messages"]) if message["role"] == "user"]
    for end, gap in zip(ends, gaps, strict=False):
        request = read({**body, "messages": body["messages"][:end]})
        if validate_request(request) is not None:  # a tool call without its result, since the turn was cut
            continue
        now += gap
        written, cache = laid_out(request, cache, now, gaps)
        assert validate_request(written) is None
