"""Forecasts when the next request arrives, from the gaps between requests of a session and its agent.

Gaps are counted by length. A new session starts with the gaps of its agent's other sessions, and a new agent
with those of recorded agents (`arrival_times.toml`).
"""

import math
import tomllib
from bisect import bisect_left
from functools import cache, lru_cache
from pathlib import Path
from typing import TypedDict, cast

import msgspec

from foveate.prompt_cache.placement.prefix_reuse import CacheReach
from foveate.prompt_cache.rules import CacheRules

_TABLE = Path(__file__).with_name("arrival_times.toml")
_MIN_GAP_SECONDS = 1.0
_MAX_CACHED_PROBABILITIES = 64  # mostly one for each TTL


class _GapPrior(TypedDict):
    edges_seconds: list[float]
    shares: list[float]
    weight_gaps: float
    max_agent_gaps: float
    fading: float
    few_gaps: float
    changed_end: float
    ended_turn: float
    rewritten_history: float
    rewritten_system: float
    patience: float


@cache
def _load_prior() -> _GapPrior:
    return cast("_GapPrior", tomllib.loads(_TABLE.read_text(encoding="utf-8")))


class GapHistogram(msgspec.Struct, frozen=True):
    """Gaps between requests, counted by length. The last count is of sessions that ended."""

    counts: tuple[float, ...] = ()

    def with_gap(self, gap_seconds: float) -> "GapHistogram":
        """Add a gap, with older ones counting less; `math.inf` for a session that has ended."""
        prior = _load_prior()
        counts = [count * prior["fading"] for count in self.counts] or [0.0] * len(prior["shares"])
        counts[bisect_left(prior["edges_seconds"], gap_seconds)] += 1
        return GapHistogram(tuple(counts))

    def merge(self, other: "GapHistogram") -> "GapHistogram":
        if not self.counts or not other.counts:
            return self if self.counts else other
        return GapHistogram(tuple([a + b for a, b in zip(self.counts, other.counts, strict=True)]))

    def limit_weight(self, max_weight: float) -> "GapHistogram":
        """The same distribution, with a total weight of at most `max_weight`."""
        total = sum(self.counts)
        if total <= max_weight:
            return self
        return GapHistogram(tuple([count * max_weight / total for count in self.counts]))

    def count_longer(self, seconds: float) -> float:
        """The number of longer gaps, interpolated by the logarithm of time."""
        remaining, lower_edge = sum(self.counts), _MIN_GAP_SECONDS
        for edge, count in zip(_load_prior()["edges_seconds"], self.counts, strict=False):
            if seconds < edge:
                return remaining - count * math.log(max(seconds, lower_edge) / lower_edge) / math.log(
                    edge / lower_edge
                )
            remaining -= count
            lower_edge = edge
        return remaining


NO_GAPS = GapHistogram()


@cache
def _recorded_gaps() -> GapHistogram:
    prior = _load_prior()
    return GapHistogram(tuple(share * prior["weight_gaps"] for share in prior["shares"]))


class ArrivalForecast(msgspec.Struct, frozen=True):
    gaps: GapHistogram

    def probability(self, after_seconds: float, until_seconds: float) -> float:
        """The probability that it arrives by `until_seconds`, if it has not by `after_seconds`.

        If hardly any gap was that long, recorded agents count as much as a few gaps: a single return after
        two hours does not make a rule.
        """
        if until_seconds <= after_seconds:
            return 0.0
        prior_weight = _load_prior()["few_gaps"]
        beyond, later = self.gaps.count_longer(after_seconds), self.gaps.count_longer(until_seconds)
        return (beyond - later + prior_weight * _recorded_probability(after_seconds, until_seconds)) / (
            beyond + prior_weight
        )


@lru_cache(_MAX_CACHED_PROBABILITIES)
def _recorded_probability(after_seconds: float, until_seconds: float) -> float:
    return 1 - _recorded_gaps().count_longer(until_seconds) / _recorded_gaps().count_longer(after_seconds)


def forecast_next_request(session: GapHistogram = NO_GAPS, agent: GapHistogram = NO_GAPS) -> ArrivalForecast:
    """Forecast from recorded agents, this agent's gaps and the session's own, with increasing weight."""
    return ArrivalForecast(
        _recorded_gaps().merge(agent.limit_weight(_load_prior()["max_agent_gaps"])).merge(session)
    )


class ReturnProbabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of what the next request may do with the current cache.

    The next request arrives within the short TTL (`short_probability`) or only within the long one
    (`long_probability`); with another last block, with a new user turn, with a rewritten history or a rewritten
    system prompt. `preamble_long_probability` is how much more likely a request that shares only tools and
    system prompt arrives within the long TTL only.
    """

    short_probability: float
    long_probability: float
    changed_end: float
    ended_turn: float
    rewritten_history: float
    rewritten_system: float
    preamble_long_probability: float = 0.0


def estimate_returns(
    expected: ArrivalForecast, rules: CacheRules, reach: CacheReach | None = None
) -> ReturnProbabilities:
    """The weights for entries with the TTLs of `rules`; with `reach`, those of the prefix that it ends with."""
    prior = _load_prior()
    preamble_short_probability = preamble_long_probability = 0.0
    if reach is None:
        short_probability = expected.probability(0, rules.ttls[0].seconds)
        long_probability = expected.probability(0, rules.ttls[-1].seconds) - short_probability
    else:
        short_probability, long_probability = reach.short_probability, reach.long_probability
        preamble_short_probability, preamble_long_probability = (
            reach.preamble_short_probability - short_probability,
            max(0.0, reach.preamble_long_probability - long_probability),
        )
    return ReturnProbabilities(
        short_probability=short_probability,
        long_probability=long_probability * prior["patience"],
        preamble_long_probability=preamble_long_probability * prior["patience"],
        changed_end=short_probability * prior["changed_end"],
        ended_turn=short_probability * prior["ended_turn"],
        rewritten_history=max(
            preamble_short_probability, (short_probability + long_probability) * prior["rewritten_history"]
        ),
        rewritten_system=(short_probability + long_probability) * prior["rewritten_system"],
    )


def short_ttl_share(expected: ArrivalForecast, rules: CacheRules) -> float:
    """The share of returns within the long TTL that come within the short one."""
    total = expected.probability(0, rules.ttls[-1].seconds)
    return expected.probability(0, rules.ttls[0].seconds) / total if total > 0 else 1.0
