"""The least that the input of recorded sessions can cost, for who knows every request before it comes.

A prompt is taken token by token. One that stands at the same place behind the same beginning in several of them
is written at the first, for five minutes, for an hour, or not at all; is kept from one to the next, by
pings where these are allowed; and is read or paid again. No token minds what is done with another, so the least
for each is the least for all: no way of marking whole blocks can do better.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.cache_traces import Line, Runs, blocks, common, stretch
from foveate.cache.rules import Rules


def optimum(line: Line, rules: Rules, *, block_tokens: int, pings: bool) -> float:
    """The least that a line of requests can cost, in uncached tokens."""
    roots: dict[int, _Node] = {}
    rest = 0
    for asked in line:
        _grow(roots, asked.runs, asked.at)
        rest += max(0, asked.tokens - blocks(asked.runs) * block_tokens)
    prices = _Prices.of(rules, pings=pings)
    return rest + sum(blocks(node.runs) * block_tokens * prices.least(node.times) for node in _nodes(roots))


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
        shared, length = common(node.runs, runs), blocks(node.runs)
        if shared < length:
            below = stretch(node.runs, shared, length)
            node.children = {below[0][0]: _Node(below, list(node.times), node.children)}
            node.runs = stretch(node.runs, 0, shared)
        node.times.append(at)
        runs = stretch(runs, shared, blocks(runs))
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
    def of(cls, rules: Rules, *, pings: bool) -> "_Prices":
        short, long = rules.ttls[0], rules.ttls[-1]
        return cls(
            read=rules.read_price,
            short_seconds=short.seconds,
            long_seconds=long.seconds,
            short_write=rules.write_prices[short],
            long_write=rules.write_prices[long],
            pings=pings,
        )

    def least(self, times: Sequence[float]) -> float:
        """The least for a token that is asked for at `times`, by going through them backwards."""
        kept = lost = 0.0  # what the rest costs if it is still kept when the next request comes, and if not
        for number in reversed(range(len(times))):
            gap = times[number + 1] - times[number] if number + 1 < len(times) else math.inf
            read = self.read + min(self._kept_on(gap) + kept, lost)
            paid = min([1 + lost, *(price + kept for price in self._written(gap))])
            kept, lost = read, paid
        return lost

    def _kept_on(self, gap: float) -> float:
        """What it costs to keep a token that was just read: nothing for the long time.

        A long-lived mark on whatever is new behind it keeps it whole, so this is a bound and no promise.
        """
        return self._pinged(gap, self.long_seconds)

    def _written(self, gap: float) -> Iterator[float]:
        """What it costs to write a token and to keep it over `gap`, in each way."""
        yield self.short_write + self._pinged(gap, self.short_seconds)
        yield self.long_write + self._pinged(gap, self.long_seconds)
        if self.pings and gap > self.short_seconds:
            # The first ping can write the answer for the long time, and with it keep all before it.
            yield self.short_write + self.read + self._pinged(gap - self.short_seconds, self.long_seconds)

    def _pinged(self, gap: float, seconds: int) -> float:
        if gap <= seconds:
            return 0.0
        return (math.ceil(gap / seconds) - 1) * self.read if self.pings and gap < math.inf else math.inf
