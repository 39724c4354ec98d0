"""What Foveate adds to requests before they are sent, read from the histograms that the gateway counts in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from foveate.engine import series
from foveate.engine.board import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long something took: so many times, half of them no longer than `p50`, 99 of 100 than `p99`."""

    name: str
    count: int
    mean: float
    p50: float
    p99: float


def summarize_added_latency(samples: Iterable[Sample]) -> Latency | None:
    """What the engine added to requests; None where there was none."""
    numbers = next((sample.values for sample in samples if sample.name == series.ADDED_SECONDS.name), None)
    return None if numbers is None else _summarize_histogram("", numbers, series.ADDED_SECONDS.buckets)


def summarize_steps(samples: Iterable[Sample]) -> list[Latency]:
    """How long each step took, the slowest first."""
    found = [
        latency
        for item in samples
        if item.name == series.STEP_SECONDS.name
        and (latency := _summarize_histogram(item.labels[0], item.values, series.STEP_SECONDS.buckets))
        is not None
    ]
    return sorted(found, key=lambda item: (-item.p99, -item.mean, item.name))


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
    """As Prometheus has it: evenly spread between two bounds, and the last one for what is beyond it."""
    rank = share * sum(counts)
    before = 0.0
    for at, up_to in enumerate(accumulate(counts)):
        if up_to >= rank and counts[at]:
            if at == len(bounds):
                return bounds[-1]
            lower = bounds[at - 1] if at else 0.0
            return lower + (bounds[at] - lower) * (rank - before) / counts[at]
        before = up_to
    return bounds[-1]
