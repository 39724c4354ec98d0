"""What the input of recorded agents costs under each way of marking it, beside who knows the future.

Costs are in uncached input tokens, per input token, over all requests to models that keep what is marked.
"""

import math
from collections.abc import Callable
from pathlib import Path

from benchmarks.cache_optimum import bound, optimum
from benchmarks.cache_traces import Asked, Line, lines
from benchmarks.harness import BadData, Report
from benchmarks.recorded import DATA
from foveate.cache.layout import kept, layout, marked
from foveate.cache.pings import next_ping, pinged
from foveate.cache.prompts import CachedPrompt
from foveate.cache.rhythm import SILENT, Rhythm, chances, forecast
from foveate.cache.rules import Caching, Rules, rules_for
from foveate.cache.simulate import Cache
from foveate.values import Area, CacheUsage, Mark, Ttl

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
)


def run(data: Path | None) -> Report:
    """Each policy's share, and how far ours are from the optimum."""
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
    figures = {name: sum(each) / tokens for name, each in costs.items()}
    figures["ours_over_optimum"] = figures["ours"] / figures["optimum"]
    figures["ours_pings_over_optimum_pings"] = figures["ours_pings"] / figures["optimum_pings"]
    figures["ours_over_bound"] = figures["ours"] / figures["bound"]
    figures["ours_pings_over_bound_pings"] = figures["ours_pings"] / figures["bound_pings"]
    figures["sessions"] = len(found)
    figures["requests"] = sum(map(len, found))
    figures["requests_left_out"] = sum(map(len, every)) - figures["requests"]
    return Report(figures={name: round(figure, 5) for name, figure in figures.items()})


def _is_marked(rules: Rules) -> bool:
    return rules.caching is Caching.MARKS and len(rules.ttls) == 2


def _cost(usage: CacheUsage, rules: Rules) -> float:
    return (
        usage.uncached
        + usage.read * rules.read_price
        + usage.written_5m * rules.write_prices[Ttl.FIVE_MINUTES]
        + usage.written_1h * rules.write_prices[Ttl.ONE_HOUR]
    )


def _fixed(line: Line, rules: Rules, ttl: Ttl) -> float:
    """A mark on the system prompt and one on the last message, always of one lifetime."""
    cache, cost = Cache(), 0.0
    for asked in line:
        served = cache.serve(marked(asked.prompt, _usual(asked.prompt, ttl)), rules, at=asked.at)
        cache = served.cache
        cost += _cost(served.usage, rules)
    return cost


def _usual(prompt: CachedPrompt, ttl: Ttl) -> list[Mark]:
    places = [piece.place for piece in prompt.pieces if piece.markable and piece.place]
    system = [place for place in places if place.area is not Area.MESSAGES]
    chosen = dict.fromkeys([*system[-1:], *places[-1:]])
    return [Mark(place=place, ttl=ttl, reason="usual") for place in chosen]


def _ours(line: Line, rules: Rules, *, pings: bool) -> float:
    """Marks by `cache.layout`, which learns the session's gaps as they come."""
    cache, cost, rhythm = Cache(), 0.0, SILENT
    for number, asked in enumerate(line):
        if number:
            rhythm = rhythm.heard(asked.at - line[number - 1].at)
        weights = chances(forecast(rhythm), rules)
        prompt = marked(asked.prompt, layout(asked.prompt, rules, cache, weights, now=asked.at))
        served = cache.serve(prompt, rules, at=asked.at)
        cache = served.cache
        cost += _cost(served.usage, rules)
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
        spent += _cost(served.usage, rules)
