"""Input cost of recorded agents under each breakpoint policy, compared with the optimum.

Costs are in uncached input tokens per input token, over all requests to models with cache breakpoints.

The figures `wl_<workload>_<policy>` are the same for generated workloads of one agent (`cache_workloads.py`):
an agent that the gateway does not know (`ours_cold`) or knows (`ours_warm`). Their `optimum` is a lower bound:
each token is written, retained, read or paid for again, whichever is cheapest for it alone.
"""

import math
from collections.abc import Callable
from pathlib import Path

from benchmarks.cache_optimum import bound, optimum
from benchmarks.cache_traces import Line, TracedRequest, read_lines
from benchmarks.cache_workloads import WORKLOADS, client_breakpoints, costs
from benchmarks.cache_workloads import cost as cost_of
from benchmarks.harness import BadData, Report
from benchmarks.recorded import DATA
from foveate.model import Ttl
from foveate.prompt_cache.keepalive import build_keepalive_prompt, plan_keepalive
from foveate.prompt_cache.placement.arrival_times import (
    NO_GAPS,
    GapHistogram,
    estimate_returns,
    forecast_next_request,
    short_ttl_share,
)
from foveate.prompt_cache.placement.breakpoints import (
    PlacementOptions,
    apply_breakpoints,
    place_breakpoints,
    readable_entries,
)
from foveate.prompt_cache.placement.prefix_log import PrefixLog
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prompt_layout
from foveate.prompt_cache.rules import CacheRules, CachingMode, rules_for
from foveate.prompt_cache.simulator import SimulatedCache

TRACES = "agent_cache_traces.jsonl.gz"

Policy = Callable[[Line, CacheRules], float]


FIGURES = (
    "uncached",
    "usual_5m",
    "always_1h",
    "ours",
    "ours_pings",
    "optimum",
    "optimum_pings",
    "bound",
    "bound_pings",
    "ours_over_optimum",
    "ours_pings_over_optimum_pings",
    "ours_over_bound",
    "ours_pings_over_bound_pings",
    "sessions",
    "requests",
    "requests_left_out",
    "wl_<workload>_none",
    "wl_<workload>_usual_5m",
    "wl_<workload>_always_1h",
    "wl_<workload>_ours_cold",
    "wl_<workload>_ours_warm",
    "wl_<workload>_optimum",
)


def run(data: Path | None) -> Report:
    """Return the cost of each policy, and the distance of Foveate's from the optimum."""
    figures = trace_figures(data) | _workload_figures()
    return Report(figures={name: round(figure, 5) for name, figure in figures.items()})


def trace_figures(data: Path | None) -> dict[str, float]:
    """Return only the figures of the recorded requests."""
    path = (data or DATA) / TRACES if (data or DATA).is_dir() else data
    assert path is not None
    lines = read_lines(path)
    cached_lines = [line for line in lines if _uses_breakpoints(rules_for(line[0].prompt.model))]
    if not cached_lines:
        raise BadData(f"{path}: no requests to a model that keeps what is marked, for two lifetimes")
    policies: dict[str, Policy] = {
        "uncached": lambda line, _: sum(request.tokens for request in line),
        "usual_5m": lambda line, rules: _fixed_breakpoints_cost(line, rules, Ttl.FIVE_MINUTES),
        "always_1h": lambda line, rules: _fixed_breakpoints_cost(line, rules, Ttl.ONE_HOUR),
        "ours": lambda line, rules: _gateway_cost(line, rules, pings=False),
        "ours_pings": lambda line, rules: _gateway_cost(line, rules, pings=True),
        "optimum": lambda line, rules: optimum(line, rules, pings=False),
        "optimum_pings": lambda line, rules: optimum(line, rules, pings=True),
        "bound": lambda line, rules: bound(line, rules, pings=False),
        "bound_pings": lambda line, rules: bound(line, rules, pings=True),
    }
    tokens = sum(request.tokens for line in cached_lines for request in line)
    costs = {
        name: [cost(line, rules_for(line[0].prompt.model)) for line in cached_lines]
        for name, cost in policies.items()
    }
    figures: dict[str, float] = {name: sum(line_costs) / tokens for name, line_costs in costs.items()}
    figures["ours_over_optimum"] = figures["ours"] / figures["optimum"]
    figures["ours_pings_over_optimum_pings"] = figures["ours_pings"] / figures["optimum_pings"]
    figures["ours_over_bound"] = figures["ours"] / figures["bound"]
    figures["ours_pings_over_bound_pings"] = figures["ours_pings"] / figures["bound_pings"]
    figures["sessions"] = len(cached_lines)
    figures["requests"] = sum(map(len, cached_lines))
    figures["requests_left_out"] = sum(map(len, lines)) - figures["requests"]
    return figures


def _workload_figures() -> dict[str, float]:
    """Return the cost of each generated workload under each policy, per input token."""
    figures: dict[str, float] = {}
    for name, make in WORKLOADS.items():
        workload = make()
        tokens = sum(call.request.tokens for call in workload)
        figures |= {
            f"wl_{name}_{policy}": sum(call_costs) / tokens for policy, call_costs in costs(workload).items()
        }
    return figures


def _uses_breakpoints(rules: CacheRules) -> bool:
    return rules.caching is CachingMode.BREAKPOINTS and len(rules.ttls) == 2


def _fixed_breakpoints_cost(line: Line, rules: CacheRules, ttl: Ttl) -> float:
    """Place a breakpoint on the system prompt and one on the last message, always with the same TTL."""
    cache, cost = SimulatedCache(), 0.0
    for request in line:
        served = cache.serve(
            apply_breakpoints(request.prompt, client_breakpoints(request.prompt, ttl)), rules, at=request.at
        )
        cache = served.cache
        cost += cost_of(served.usage, rules)
    return cost


def _gateway_cost(line: Line, rules: CacheRules, *, pings: bool) -> float:
    """Place breakpoints as the gateway does for an agent that it does not know."""
    cache, cost, rhythm, log = SimulatedCache(), 0.0, NO_GAPS, PrefixLog()
    for number, request in enumerate(line):
        if number:
            rhythm = rhythm.with_gap(request.at - line[number - 1].at)
        expected = forecast_next_request(rhythm)
        share = short_ttl_share(expected, rules)
        sighting = log.observe(request.prompt, rules, cache, now=request.at, short_ttl_share=share)
        weights = estimate_returns(expected, rules, sighting.reach)
        reach, options = sighting.reach, PlacementOptions(long_ttl=sighting.reach.allows_long)
        breakpoints = place_breakpoints(
            request.prompt, rules, cache, weights, now=request.at, options=options, max_pieces=reach.pieces
        )
        prompt = apply_breakpoints(request.prompt, breakpoints)
        sighting = log.record_cost(
            sighting, request.prompt, prompt_layout(prompt).breakpoints, rules, now=request.at
        )
        served = cache.serve(prompt, rules, at=request.at)
        cache = served.cache
        log.record_response(sighting, cache)
        cost += cost_of(served.usage, rules)
        if pings:
            until = line[number + 1].at if number + 1 < len(line) else math.inf
            cache, keepalive_cost = _cost_of_keepalives(cache, prompt, request, rules, rhythm, until)
            cost += keepalive_cost
    return cost


def _cost_of_keepalives(
    cache: SimulatedCache,
    prompt: CachedPrompt,
    request: TracedRequest,
    rules: CacheRules,
    rhythm: GapHistogram,
    until: float,
) -> tuple[SimulatedCache, float]:
    """Return the cost of keep-alives until the next request, whose time is unknown, and the cache then."""
    expected = forecast_next_request(rhythm)
    now, cost, sent_count = request.at, 0.0, 0
    while True:
        keepalive = plan_keepalive(
            prompt,
            rules,
            cache,
            expected,
            response_tokens=request.answer.tokens,
            last_at=request.at,
            now=now,
            sent_keepalives=sent_count,
        )
        if keepalive is None or keepalive.at >= until:
            return cache, cost
        keepalive_prompt = build_keepalive_prompt(
            prompt, keepalive, request.answer, rules, readable_entries(prompt, cache, keepalive.at)
        )
        served = cache.serve(keepalive_prompt, rules, at=keepalive.at)
        cache, now, sent_count = served.cache, keepalive.at, sent_count + 1
        if keepalive.includes_response:
            prompt = keepalive_prompt
        cost += cost_of(served.usage, rules)
