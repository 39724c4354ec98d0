"""How soon the next request comes, learnt from the gaps that a session and its agent have shown.

Gaps are counted by length. What a session itself has not shown yet is taken from its agent's others, and
before those from recorded agents (`cache/rhythm.toml`), so that the first request is not decided blindly.
"""

import math
import tomllib
from bisect import bisect_left
from functools import cache, lru_cache
from pathlib import Path
from typing import TypedDict

import msgspec

from foveate.cache.reuse import Reach
from foveate.cache.rules import Rules

_TABLE = Path(__file__).with_name("rhythm.toml")
_SHORTEST_SECONDS = 1.0
_KEPT_CHANCES = 64  # mostly those of the times that providers keep things for


class _Prior(TypedDict):
    edges_seconds: list[float]
    shares: list[float]
    weight_gaps: float
    most_agent_gaps: float
    fading: float
    few_gaps: float
    changed_end: float
    ended_turn: float
    rewritten_history: float
    rewritten_system: float
    patience: float


@cache
def _prior() -> _Prior:
    table: _Prior = tomllib.loads(_TABLE.read_text(encoding="utf-8"))  # type: ignore[assignment]
    return table


class Rhythm(msgspec.Struct, frozen=True):
    """Gaps counted by their length; the last count is of those after which nothing came any more."""

    counts: tuple[float, ...] = ()

    def heard(self, gap_seconds: float) -> "Rhythm":
        """With one gap more, the older ones fading; `math.inf` for a session that has ended."""
        prior = _prior()
        counts = [count * prior["fading"] for count in self.counts] or [0.0] * len(prior["shares"])
        counts[bisect_left(prior["edges_seconds"], gap_seconds)] += 1
        return Rhythm(tuple(counts))

    def joined(self, other: "Rhythm") -> "Rhythm":
        """The gaps of both."""
        if not self.counts or not other.counts:
            return self if self.counts else other
        return Rhythm(tuple([a + b for a, b in zip(self.counts, other.counts, strict=True)]))

    def scaled(self, most: float) -> "Rhythm":
        """The same shares, weighing `most` at the most."""
        total = sum(self.counts)
        if total <= most:
            return self
        return Rhythm(tuple([count * most / total for count in self.counts]))

    def longer(self, seconds: float) -> float:
        """How many gaps were longer; between two edges, by the logarithm of time."""
        left, below = sum(self.counts), _SHORTEST_SECONDS
        for edge, count in zip(_prior()["edges_seconds"], self.counts, strict=False):
            if seconds < edge:
                return left - count * math.log(max(seconds, below) / below) / math.log(edge / below)
            left -= count
            below = edge
        return left


SILENT = Rhythm()


@cache
def _recorded() -> Rhythm:
    prior = _prior()
    return Rhythm(tuple(share * prior["weight_gaps"] for share in prior["shares"]))


class Forecast(msgspec.Struct, frozen=True):
    """When the next request can be expected, by gaps like those of `rhythm`."""

    rhythm: Rhythm

    def chance(self, after_seconds: float, until_seconds: float) -> float:
        """How likely it comes by `until_seconds`, where it has not come by `after_seconds`.

        Where hardly a gap was ever so long, recorded agents weigh as much as a few of them: that one came back
        after two hours once is no rule.
        """
        if until_seconds <= after_seconds:
            return 0.0
        few = _prior()["few_gaps"]
        beyond, later = self.rhythm.longer(after_seconds), self.rhythm.longer(until_seconds)
        return (beyond - later + few * _usual(after_seconds, until_seconds)) / (beyond + few)


@lru_cache(_KEPT_CHANCES)
def _usual(after_seconds: float, until_seconds: float) -> float:
    """How likely a recorded agent comes by then."""
    return 1 - _recorded().longer(until_seconds) / _recorded().longer(after_seconds)


def forecast(session: Rhythm = SILENT, agent: Rhythm = SILENT) -> Forecast:
    """What the session's own gaps, its agent's, and those of recorded agents let one expect, in this order."""
    return Forecast(_recorded().joined(agent.scaled(_prior()["most_agent_gaps"])).joined(session))


class Chances(msgspec.Struct, frozen=True, kw_only=True):
    """What the next request may do to what is kept now, as weights.

    It comes `soon`, while short-lived entries live, or `late`, while only long-lived ones do; with another last
    block, with the user speaking again, with its history rewritten, or its system prompt. `front_late` is how
    much more likely a request that shares only tools and system prompt comes late.
    """

    soon: float
    late: float
    changed_end: float
    ended_turn: float
    rewritten_history: float
    rewritten_system: float
    front_late: float = 0.0


def chances(expected: Forecast, rules: Rules, reach: Reach | None = None) -> Chances:
    """The weights of what may come next, for entries that live as long as `rules` let them.

    They are those of the prefix that `reach` ends with, if it is given.
    """
    prior = _prior()
    front_soon = front_late = 0.0
    if reach is None:
        soon = expected.chance(0, rules.ttls[0].seconds)
        late = expected.chance(0, rules.ttls[-1].seconds) - soon
    else:
        soon, late = reach.soon, reach.late
        front_soon, front_late = reach.front_soon - soon, max(0.0, reach.front_late - late)
    return Chances(
        soon=soon,
        late=late * prior["patience"],
        front_late=front_late * prior["patience"],
        changed_end=soon * prior["changed_end"],
        ended_turn=soon * prior["ended_turn"],
        rewritten_history=max(front_soon, (soon + late) * prior["rewritten_history"]),
        rewritten_system=(soon + late) * prior["rewritten_system"],
    )


def soon_share(expected: Forecast, rules: Rules) -> float:
    """The share of returns within the long TTL that come within the short one."""
    total = expected.chance(0, rules.ttls[-1].seconds)
    return expected.chance(0, rules.ttls[0].seconds) / total if total > 0 else 1.0
