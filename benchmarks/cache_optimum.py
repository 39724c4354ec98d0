"""Minimum input cost of recorded sessions if every request is known in advance.

`optimum` goes from request to request. Each can read the prefix that it shares with the previous one if that is
still cached, and pays for its writes at the cheapest TTL, or keep-alive, that retains them until the next
request.

`bound` is lower still. It considers each token of a prompt separately: a token at the same position after the
same prefix in several requests, of any branch, is written, retained, read or paid for again, whichever is
cheapest for it. Tokens do not depend on each other, so no placement of breakpoints on whole blocks can be
cheaper.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.cache_traces import (
    BLOCK_TOKENS,
    Line,
    Runs,
    TracedRequest,
    common_blocks,
    count_blocks,
    slice_runs,
)
from foveate.prompt_cache.rules import CacheRules


def optimum(line: Line, rules: CacheRules, *, pings: bool) -> float:
    """Return the cost of a sequence of requests, by dynamic programming from its end."""
    prices = _Prices.from_rules(rules, pings=pings)
    # Cost of the remaining requests if the next one hits the cache, and if it misses.
    hit_cost = miss_cost = 0.0
    for number in reversed(range(len(line))):
        request, next_request = line[number], line[number + 1] if number + 1 < len(line) else None
        repeated = _repeated_tokens(line[number - 1], request) if number else 0
        continued = _repeated_tokens(request, next_request) if next_request else 0
        gap = next_request.at - request.at if next_request else math.inf
        costs = []
        for read in (repeated, 0):
            new = max(0, continued - read)
            keep_cost = (
                min(new * (price - 1) + continued * keepalive for price, keepalive in prices.write_cost(gap))
                if next_request
                else math.inf
            )
            costs.append(read * prices.read + (request.tokens - read) + min(miss_cost, keep_cost + hit_cost))
        hit_cost, miss_cost = costs
    return miss_cost


def _repeated_tokens(request: TracedRequest, next_request: TracedRequest) -> int:
    return min(
        common_blocks(request.runs, next_request.runs) * BLOCK_TOKENS, request.tokens, next_request.tokens
    )


def bound(line: Line, rules: CacheRules, *, pings: bool) -> float:
    """Return a lower bound for the cost of any placement for a sequence of requests, in uncached tokens."""
    roots: dict[int, _Node] = {}
    uncacheable_tokens = 0
    for request in line:
        _grow(roots, request.runs, request.at)
        uncacheable_tokens += max(0, request.tokens - count_blocks(request.runs) * BLOCK_TOKENS)
    prices = _Prices.from_rules(rules, pings=pings)
    return uncacheable_tokens + sum(
        count_blocks(node.runs) * BLOCK_TOKENS * prices.min_cost(node.times) for node in _nodes(roots)
    )


@dataclass(slots=True)
class _Node:
    """A run of blocks that the same requests share, at the same position after the same prefix."""

    runs: Runs
    times: list[float]
    children: "dict[int, _Node]" = field(default_factory=dict)


def _grow(children: dict[int, _Node], runs: Runs, at: float) -> None:
    while runs:
        node = children.get(runs[0][0])
        if node is None:
            children[runs[0][0]] = _Node(runs, [at])
            return
        shared, length = common_blocks(node.runs, runs), count_blocks(node.runs)
        if shared < length:
            below = slice_runs(node.runs, shared, length)
            node.children = {below[0][0]: _Node(below, list(node.times), node.children)}
            node.runs = slice_runs(node.runs, 0, shared)
        node.times.append(at)
        runs = slice_runs(runs, shared, count_blocks(runs))
        children = node.children


def _nodes(roots: dict[int, _Node]) -> Iterator[_Node]:
    pending = list(roots.values())
    while pending:
        node = pending.pop()
        yield node
        pending += node.children.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    read: float
    short_seconds: int
    long_seconds: int
    short_write: float
    long_write: float
    pings: bool

    @classmethod
    def from_rules(cls, rules: CacheRules, *, pings: bool) -> "_Prices":
        short, long = rules.ttls[0], rules.ttls[-1]
        return cls(
            read=rules.read_price,
            short_seconds=short.seconds,
            long_seconds=long.seconds,
            short_write=rules.write_prices[short],
            long_write=rules.write_prices[long],
            pings=pings,
        )

    def min_cost(self, times: Sequence[float]) -> float:
        """Return the minimum cost of a token that is needed at `times`, by dynamic programming from the end."""
        # Remaining cost if the token is still cached at the next request, and if not.
        hit_cost = miss_cost = 0.0
        for number in reversed(range(len(times))):
            gap = times[number + 1] - times[number] if number + 1 < len(times) else math.inf
            read = self.read + min(self._keep_cost(gap) + hit_cost, miss_cost)
            miss = min(
                [1 + miss_cost, *(price + keepalive + hit_cost for price, keepalive in self.write_cost(gap))]
            )
            hit_cost, miss_cost = read, miss
        return miss_cost

    def _keep_cost(self, gap: float) -> float:
        """Return the cost of retaining a token that was just read: nothing for the long TTL.

        A long-lived breakpoint on new content after it retains it, so this is only a bound.
        """
        return self._keepalive_cost(gap, self.long_seconds)

    def write_cost(self, gap: float) -> Iterator[tuple[float, float]]:
        """Return the minimum price of writing a token, and of keep-alives that retain it over `gap`."""
        yield self.short_write, self._keepalive_cost(gap, self.short_seconds)
        yield self.long_write, self._keepalive_cost(gap, self.long_seconds)
        if self.pings and gap > self.short_seconds:
            # The first keep-alive can write the response with the long TTL, which retains everything before
            # it.
            yield (
                self.short_write,
                self.read + self._keepalive_cost(gap - self.short_seconds, self.long_seconds),
            )

    def _keepalive_cost(self, gap: float, seconds: int) -> float:
        if gap <= seconds:
            return 0.0
        return (math.ceil(gap / seconds) - 1) * self.read if self.pings and gap < math.inf else math.inf
