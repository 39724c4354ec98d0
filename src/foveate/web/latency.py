"""Latencies that the engine adds to requests, from the histograms of its metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from foveate.engine.metrics import definitions
from foveate.engine.metrics.registry import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    name: str
    count: int
    mean: float
    p50: float
    p99: float


def summarize_added_latency(samples: Iterable[Sample]) -> Latency | None:
    """Return the latency that the engine adds to requests; None without requests."""
    numbers = next((sample.values for sample in samples if sample.name == definitions.ADDED_SECONDS.name), None)
    return None if numbers is None else _summarize_histogram("", numbers, definitions.ADDED_SECONDS.buckets)


def summarize_steps(samples: Iterable[Sample]) -> list[Latency]:
    """Return the duration of each step, the slowest first."""
    latencies = [
        latency
        for item in samples
        if item.name == definitions.STEP_SECONDS.name
        and (latency := _summarize_histogram(item.labels[0], item.values, definitions.STEP_SECONDS.buckets))
        is not None
    ]
    return sorted(latencies, key=lambda item: (-item.p99, -item.mean, item.name))


def _summarize_histogram(name: str, numbers: Sequence[float], bounds: Sequence[float]) -> Latency | None:
    total, *counts = numbers
    count = sum(counts)
    if not count:
        return None
    return Latency(
        name=name,
        count=round(count),
        mean=total / count,
        p50=_quantile(0.5, counts, bounds),
        p99=_quantile(0.99, counts, bounds),
    )


def _quantile(share: float, counts: Sequence[float], bounds: Sequence[float]) -> float:
    """Interpolate linearly within a bucket, as Prometheus does; beyond the last bound, return that."""
    rank = share * sum(counts)
    below = 0.0
    for at, up_to in enumerate(accumulate(counts)):
        if up_to >= rank and counts[at]:
            if at == len(bounds):
                return bounds[-1]
            lower = bounds[at - 1] if at else 0.0
            return lower + (bounds[at] - lower) * (rank - below) / counts[at]
        below = up_to
    return bounds[-1]
