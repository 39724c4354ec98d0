"""Values of metrics, their sums over several processes, and their rendering for Prometheus.

While requests run, a value is an attribute that grows. prometheus-client only renders. For several processes
its own counters would take 100 µs more per request (measured in November 2026), they need to know about workers
before they are first imported, and a full disk ends a worker that writes to their memory-mapped files.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from foveate.engine.metrics import definitions
from foveate.engine.metrics.definitions import Aggregation, MetricDefinition, MetricKind

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_METRICS_BY_NAME = {each.name: each for each in definitions.METRICS}


class Scalar:
    """A counter or gauge; callers change its `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def values(self) -> list[float]:
        return [self.value]


class Histogram:
    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def values(self) -> list[float]:
        return [self._total, *self._counts]


class Sample(msgspec.Struct, array_like=True):
    name: str
    labels: tuple[str, ...]
    values: list[float]


class MetricsRegistry:
    def __init__(self) -> None:
        self._scalars: dict[tuple[str, tuple[str, ...]], Scalar] = {}
        self._histograms: dict[tuple[str, tuple[str, ...]], Histogram] = {}

    def scalar(self, metric: MetricDefinition, *labels: str) -> Scalar:
        """The value of a counter or gauge; always the same object."""
        key = metric.name, labels
        return self._scalars.get(key) or self._scalars.setdefault(key, Scalar())

    def histogram(self, metric: MetricDefinition, *labels: str) -> Histogram:
        """The histogram; always the same object."""
        key = metric.name, labels
        return self._histograms.get(key) or self._histograms.setdefault(key, Histogram(metric.buckets))

    def samples(self) -> list[Sample]:
        return [
            Sample(name, labels, number.values())
            for by_key in (self._scalars, self._histograms)
            for (name, labels), number in by_key.items()
        ]


def merge_samples(processes: Iterable[tuple[Iterable[Sample], bool]]) -> list[Sample]:
    """Merge the samples of several processes. Gauges of a process that is not alive (False) are ignored."""
    merged: dict[tuple[str, ...], Sample] = {}
    for samples, is_alive in processes:
        for sample in samples:
            metric = _METRICS_BY_NAME.get(sample.name)
            if metric is None or (metric.kind is MetricKind.GAUGE and not is_alive):
                continue
            key = (sample.name, *sample.labels)
            earlier = merged.get(key)
            merged[key] = sample if earlier is None else _merge_pair(metric, earlier, sample)
    return list(merged.values())


def _merge_pair(metric: MetricDefinition, left: Sample, right: Sample) -> Sample:
    if metric.kind is MetricKind.GAUGE and metric.aggregation is not Aggregation.SUM:
        join = min if metric.aggregation is Aggregation.MIN else max
        numbers = [join(pair) for pair in zip(left.values, right.values, strict=True)]
    else:
        numbers = [first + second for first, second in zip(left.values, right.values, strict=True)]
    return Sample(left.name, left.labels, numbers)


def render_metrics(samples: Iterable[Sample], accept: str = "") -> tuple[bytes, str]:
    """Render samples for Prometheus; returns the text and its content type. Slow: not for the event loop."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return encode(_Families(samples)), content_type


class _Families:
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in (*samples, *_hit_ratios(samples)):
            self._by_name.setdefault(sample.name, []).append(sample)

    def collect(self) -> "Iterable[Metric]":
        return [
            _metric_family(metric, self._by_name[metric.name])
            for metric in definitions.METRICS
            if metric.name in self._by_name
        ]


def _hit_ratios(samples: Iterable[Sample]) -> list[Sample]:
    read_tokens: Mapping[tuple[str, ...], float] = {
        sample.labels: sample.values[0] for sample in samples if sample.name == definitions.WINDOW_READ.name
    }
    return [
        Sample(
            definitions.HIT_RATIO.name, sample.labels, [read_tokens.get(sample.labels, 0) / sample.values[0]]
        )
        for sample in samples
        if sample.name == definitions.WINDOW_INPUT.name and sample.values[0]
    ]


def _metric_family(metric: MetricDefinition, samples: Iterable[Sample]) -> "Metric":
    from prometheus_client.metrics_core import Metric
    from prometheus_client.utils import floatToGoString

    family = Metric(metric.name.removesuffix("_total"), metric.help, metric.kind.value)
    if metric.kind is not MetricKind.HISTOGRAM:
        for sample in samples:
            family.add_sample(
                metric.name, dict(zip(metric.labels, sample.labels, strict=True)), sample.values[0]
            )
        return family
    bounds: list[str] = [floatToGoString(bound) for bound in (*metric.buckets, float("inf"))]
    for sample in samples:
        labels = dict(zip(metric.labels, sample.labels, strict=True))
        total, *counts = sample.values
        for bound, cumulative in zip(bounds, accumulate(counts), strict=True):
            family.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, cumulative)
        family.add_sample(f"{metric.name}_count", labels, sum(counts))
        if metric.buckets[0] >= 0:  # a sum that can fall looks like a restart
            family.add_sample(f"{metric.name}_sum", labels, total)
    return family
