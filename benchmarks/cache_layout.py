"""What the input of recorded agents costs under each way of marking it, beside who knows the future.

Costs are in uncached input tokens, per input token, over all requests to models that keep what is marked.

The figures `wl_<workload>_<policy>` are the same of generated workloads of one agent (`cache_workloads.py`):
of one that the gateway does not know (`ours_cold`), or knows (`ours_warm`). Their `optimum` is a
lower bound: each token is written, kept, read or paid for again as is cheapest for it alone.
"""

import math
from collections.abc import Callable
from pathlib import Path

from benchmarks.cache_optimum import bound, optimum
from benchmarks.cache_traces import Asked, Line, lines
from benchmarks.cache_workloads import WORKLOADS, costs, usual_breakpoints
from benchmarks.cache_workloads import cost as cost_of
from benchmarks.harness import BadData, Report
from benchmarks.recorded import DATA
from foveate.cache.layout import LayoutOptions, kept, layout, marked
from foveate.cache.pings import next_ping, pinged
from foveate.cache.prefix_log import PrefixLog
from foveate.cache.prompts import CachedPrompt, landmarks_of
from foveate.cache.rhythm import SILENT, Rhythm, chances, forecast, soon_share
from foveate.cache.rules import Caching, Rules, rules_for
from foveate.cache.simulate import Cache
from foveate.values import Ttl

TRACES = "agent_cache_traces.jsonl.gz"

Policy = Callable[[Line, Rules], float]


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
    """Each policy's share, and how far ours are from the optimum."""
    figures = trace_figures(data) | _workload_figures()
    return Report(figures={name: round(figure, 5) for name, figure in figures.items()})


def trace_figures(data: Path | None) -> dict[str, float]:
    """The figures of the recorded requests alone."""
    path = (data or DATA) / TRACES if (data or DATA).is_dir() else data
    assert path is not None
    every = lines(path)
    found = [line for line in every if _is_marked(rules_for(line[0].prompt.model))]
    if not found:
        raise BadData(f"{path}: no requests to a model that keeps what is marked, for two lifetimes")
    policies: dict[str, Policy] = {
        "uncached": lambda line, _: sum(asked.tokens for asked in line),
        "usual_5m": lambda line, rules: _fixed(line, rules, Ttl.FIVE_MINUTES),
        "always_1h": lambda line, rules: _fixed(line, rules, Ttl.ONE_HOUR),
        "ours": lambda line, rules: _ours(line, rules, pings=False),
        "ours_pings": lambda line, rules: _ours(line, rules, pings=True),
        "optimum": lambda line, rules: optimum(line, rules, pings=False),
        "optimum_pings": lambda line, rules: optimum(line, rules, pings=True),
        "bound": lambda line, rules: bound(line, rules, pings=False),
        "bound_pings": lambda line, rules: bound(line, rules, pings=True),
    }
    tokens = sum(asked.tokens for line in found for asked in line)
    costs = {
        name: [cost(line, rules_for(line[0].prompt.model)) for line in found] for name, cost in policies.items()
    }
    figures: dict[str, float] = {name: sum(each) / tokens for name, each in costs.items()}
    figures["ours_over_optimum"] = figures["ours"] / figures["optimum"]
    figures["ours_pings_over_optimum_pings"] = figures["ours_pings"] / figures["optimum_pings"]
    figures["ours_over_bound"] = figures["ours"] / figures["bound"]
    figures["ours_pings_over_bound_pings"] = figures["ours_pings"] / figures["bound_pings"]
    figures["sessions"] = len(found)
    figures["requests"] = sum(map(len, found))
    figures["requests_left_out"] = sum(map(len, every)) - figures["requests"]
    return figures


def _workload_figures() -> dict[str, float]:
    """The cost of each generated workload under each policy, per input token."""
    found: dict[str, float] = {}
    for name, make in WORKLOADS.items():
        workload = make()
        tokens = sum(call.asked.tokens for call in workload)
        found |= {f"wl_{name}_{policy}": sum(each) / tokens for policy, each in costs(workload).items()}
    return found


def _is_marked(rules: Rules) -> bool:
    return rules.caching is Caching.MARKS and len(rules.ttls) == 2


def _fixed(line: Line, rules: Rules, ttl: Ttl) -> float:
    """A mark on the system prompt and one on the last message, always of one lifetime."""
    cache, cost = Cache(), 0.0
    for asked in line:
        served = cache.serve(marked(asked.prompt, usual_breakpoints(asked.prompt, ttl)), rules, at=asked.at)
        cache = served.cache
        cost += cost_of(served.usage, rules)
    return cost


def _ours(line: Line, rules: Rules, *, pings: bool) -> float:
    """Breakpoints as the gateway places them for an agent that it does not know."""
    cache, cost, rhythm, log = Cache(), 0.0, SILENT, PrefixLog()
    for number, asked in enumerate(line):
        if number:
            rhythm = rhythm.heard(asked.at - line[number - 1].at)
        expected = forecast(rhythm)
        share = soon_share(expected, rules)
        sighting = log.observe(asked.prompt, rules, cache, now=asked.at, soon_share=share)
        weights = chances(expected, rules, sighting.reach)
        reach, options = sighting.reach, LayoutOptions(long_ttl=sighting.reach.allows_long)
        marks = layout(asked.prompt, rules, cache, weights, now=asked.at, options=options, reach=reach.pieces)
        prompt = marked(asked.prompt, marks)
        sighting = log.place(sighting, asked.prompt, landmarks_of(prompt).marks, rules, now=asked.at)
        served = cache.serve(prompt, rules, at=asked.at)
        cache = served.cache
        log.served(sighting, cache)
        cost += cost_of(served.usage, rules)
        if pings:
            until = line[number + 1].at if number + 1 < len(line) else math.inf
            cache, spent = _pinged(cache, prompt, asked, rules, rhythm, until)
            cost += spent
    return cost


def _pinged(
    cache: Cache, prompt: CachedPrompt, asked: Asked, rules: Rules, rhythm: Rhythm, until: float
) -> tuple[Cache, float]:
    """What pings cost until the next request comes, which they are not told, and the cache then."""
    expected = forecast(rhythm)
    now, spent, sent = asked.at, 0.0, 0
    while True:
        ping = next_ping(
            prompt,
            rules,
            cache,
            expected,
            answer_tokens=asked.answer.tokens,
            last_at=asked.at,
            now=now,
            sent=sent,
        )
        if ping is None or ping.at >= until:
            return cache, spent
        asks = pinged(prompt, ping, asked.answer, rules, kept(prompt, cache, ping.at))
        served = cache.serve(asks, rules, at=ping.at)
        cache, now, sent = served.cache, ping.at, sent + 1
        if ping.with_answer:
            prompt = asks
        spent += cost_of(served.usage, rules)
