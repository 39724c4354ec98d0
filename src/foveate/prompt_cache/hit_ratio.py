"""Cache hit ratios: how much of an agent's input in the last hour was read from the provider's cache."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from foveate.model import CacheUsage

WINDOW_SECONDS = 3600
BUCKET_SECONDS = 30
MAX_AGENTS = 1024
"""Maximum number of tracked agents; the one that was idle longest is dropped first."""

_WINDOW_BUCKETS = WINDOW_SECONDS // BUCKET_SECONDS
# Twice the window, so that late arrivals and a clock that is set back do not push out buckets of the window.
_MAX_BUCKETS = 2 * _WINDOW_BUCKETS


class HitRatioLevel(StrEnum):
    HEALTHY = "healthy"
    FAIR = "fair"
    FLAGGED = "flagged"
    UNKNOWN = "unknown"  # nothing was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRatioThresholds:
    healthy_from: float = 0.7
    flagged_below: float = 0.3


DEFAULT_THRESHOLDS = HitRatioThresholds()


@dataclass(frozen=True, slots=True)
class HitRatio:
    """Input tokens of a period, and how many of them were read from the cache."""

    read_tokens: int
    input_tokens: int

    @property
    def ratio(self) -> float | None:
        """The share read from the cache; None if nothing was sent."""
        return self.read_tokens / self.input_tokens if self.input_tokens else None

    def level(self, thresholds: HitRatioThresholds = DEFAULT_THRESHOLDS) -> HitRatioLevel:
        ratio = self.ratio
        if ratio is None:
            return HitRatioLevel.UNKNOWN
        if ratio >= thresholds.healthy_from:
            return HitRatioLevel.HEALTHY
        return HitRatioLevel.FLAGGED if ratio < thresholds.flagged_below else HitRatioLevel.FAIR


class _SlidingHour:
    """One agent's tokens in buckets of half a minute; the bucket that was updated longest ago is dropped
    first.
    """

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def add(self, bucket: int, usage: CacheUsage) -> None:
        read, input_tokens = self._buckets.pop(bucket, (0, 0))
        self._buckets[bucket] = read + usage.read, input_tokens + usage.input_tokens
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def ratio_until(self, bucket: int) -> HitRatio:
        window = range(bucket - _WINDOW_BUCKETS + 1, bucket + 1)
        totals = [self._buckets[each] for each in window if each in self._buckets]
        return HitRatio(sum(read for read, _ in totals), sum(input_tokens for _, input_tokens in totals))


class HitRatios:
    """The hit ratio of each agent over a sliding hour, in steps of half a minute. Thread-safe.

    Memory does not depend on traffic: two numbers for each half minute in which an agent sent something.
    Times are seconds of any clock. Late arrivals count in the bucket that they belong to. If the clock is set
    back, buckets in the future count again once it gets there.
    """

    def __init__(self, max_agents: int = MAX_AGENTS) -> None:
        self._max_agents = max_agents
        self._hours: OrderedDict[str, _SlidingHour] = OrderedDict()
        self._lock = Lock()

    def add(self, agent: str, usage: CacheUsage, *, at: float) -> None:
        bucket = _bucket(at)
        with self._lock:
            hour = self._hours.setdefault(agent, _SlidingHour())
            hour.add(bucket, usage)
            self._hours.move_to_end(agent)
            if len(self._hours) > self._max_agents:
                self._hours.popitem(last=False)

    def ratio(self, agent: str, *, at: float) -> HitRatio:
        """The hit ratio of `agent` in the hour before `at`."""
        with self._lock:
            hour = self._hours.get(agent)
            return hour.ratio_until(_bucket(at)) if hour else HitRatio(0, 0)

    def ratios(self, *, at: float) -> Mapping[str, HitRatio]:
        """The same for every agent that sent something in that hour, by name."""
        with self._lock:
            ratios = {agent: hour.ratio_until(_bucket(at)) for agent, hour in self._hours.items()}
        return {agent: ratios[agent] for agent in sorted(ratios) if ratios[agent].input_tokens}


def _bucket(at: float) -> int:
    return int(at // BUCKET_SECONDS)
