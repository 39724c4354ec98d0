"""What the input of recorded sessions costs who knows every request before it comes.

`optimum` goes from request to request: each may read all that it has in common with the one before it, if that
was kept, and pays what it writes at the cheapest lifetime, or ping, that keeps it until the next one comes.

`bound` is lower still. It takes a prompt token by token: one that stands at the same place behind the same
beginning in several requests, of whatever branch, is written, kept, read or paid again as is cheapest for it.
No token minds what is done with another, so no way of marking whole blocks can do better, or even as well.
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
    """What a line of requests costs, by going through it backwards."""
    prices = _Prices.from_rules(rules, pings=pings)
    kept = lost = 0.0  # what the rest costs if the next request finds what it repeats, and if it does not
    for number in reversed(range(len(line))):
        request, after = line[number], line[number + 1] if number + 1 < len(line) else None
        repeated = _repeated_tokens(line[number - 1], request) if number else 0
        goes_on = _repeated_tokens(request, after) if after else 0
        gap = after.at - request.at if after else math.inf
        costs = []
        for read in (repeated, 0):
            new = max(0, goes_on - read)
            keeping = (
                min(new * (price - 1) + goes_on * pinged for price, pinged in prices.write_cost(gap))
                if after
                else math.inf
            )
            costs.append(read * prices.read + (request.tokens - read) + min(lost, keeping + kept))
        kept, lost = costs
    return lost


def _repeated_tokens(asked: TracedRequest, after: TracedRequest) -> int:
    return min(common_blocks(asked.runs, after.runs) * BLOCK_TOKENS, asked.tokens, after.tokens)


def bound(line: Line, rules: CacheRules, *, pings: bool) -> float:
    """What no way of marking can be below, for a line of requests, in uncached tokens."""
    roots: dict[int, _Node] = {}
    rest = 0
    for request in line:
        _grow(roots, request.runs, request.at)
        rest += max(0, request.tokens - count_blocks(request.runs) * BLOCK_TOKENS)
    prices = _Prices.from_rules(rules, pings=pings)
    return rest + sum(
        count_blocks(node.runs) * BLOCK_TOKENS * prices.min_cost(node.times) for node in _nodes(roots)
    )


@dataclass(slots=True)
class _Node:
    """A stretch of blocks that the same requests have, at the same place behind the same beginning."""

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
    waiting = list(roots.values())
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()


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
        """The least for a token that is asked for at `times`, by going through them backwards."""
        kept = lost = 0.0  # what the rest costs if it is still kept when the next request comes, and if not
        for number in reversed(range(len(times))):
            gap = times[number + 1] - times[number] if number + 1 < len(times) else math.inf
            read = self.read + min(self._keep_cost(gap) + kept, lost)
            paid = min([1 + lost, *(price + pinged + kept for price, pinged in self.write_cost(gap))])
            kept, lost = read, paid
        return lost

    def _keep_cost(self, gap: float) -> float:
        """What it costs to keep a token that was just read: nothing for the long time.

        A long-lived mark on whatever is new behind it keeps it whole, so this is a bound and no promise.
        """
        return self._keepalive_cost(gap, self.long_seconds)

    def write_cost(self, gap: float) -> Iterator[tuple[float, float]]:
        """The price of writing a token, and of the pings that then keep it over `gap`, in each way there is."""
        yield self.short_write, self._keepalive_cost(gap, self.short_seconds)
        yield self.long_write, self._keepalive_cost(gap, self.long_seconds)
        if self.pings and gap > self.short_seconds:
            # The first ping can write the answer for the long time, and with it keep all before it.
            yield (
                self.short_write,
                self.read + self._keepalive_cost(gap - self.short_seconds, self.long_seconds),
            )

    def _keepalive_cost(self, gap: float, seconds: int) -> float:
        if gap <= seconds:
            return 0.0
        return (math.ceil(gap / seconds) - 1) * self.read if self.pings and gap < math.inf else math.inf
