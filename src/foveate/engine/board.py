"""Numbers that are added to, the same numbers of several processes as one, and the page that shows them.

On the way of a request a number is an attribute that grows. prometheus-client only writes the page: its own
counters take a lock and several microseconds each, and want to know of workers before they are first loaded.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from foveate.engine import series
from foveate.engine.series import Across, Kind, Series

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_BY_NAME = {each.name: each for each in series.SERIES}


class Tally:
    """A number; whoever counts adds to its `value`, or sets it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def numbers(self) -> list[float]:
        """What it has come to."""
        return [self.value]


class Spread:
    """How often something was up to each of its bounds, or beyond all of them, and its sum.

    What is observed waits until it is added up: whoever has much to observe has that done now and then.
    """

    __slots__ = ("_bounds", "_counts", "_total", "_waiting", "observe")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._waiting: list[float] = []
        self.observe: Callable[[float], None] = self._waiting.append
        """Count one more."""

    def add_up(self) -> None:
        """Add up what waits for it."""
        bounds, counts = self._bounds, self._counts
        for value in self._waiting:
            counts[bisect_left(bounds, value)] += 1
            self._total += value
        self._waiting.clear()

    def numbers(self) -> list[float]:
        """The sum, and how many there are between each bound and the one before."""
        self.add_up()
        return [self._total, *self._counts]


class Sample(msgspec.Struct, array_like=True):
    """One series with its labels, and what it has come to."""

    name: str
    labels: tuple[str, ...]
    numbers: list[float]


class Board:
    """The numbers of one process, by their series and labels."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, ...], Tally] = {}
        self._spreads: dict[tuple[str, ...], Spread] = {}

    def tally(self, what: Series, *labels: str) -> Tally:
        """The number of a counter or gauge; the same one each time."""
        key = (what.name, *labels)
        return self._tallies.get(key) or self._tallies.setdefault(key, Tally())

    def spread(self, what: Series, *labels: str) -> Spread:
        """The numbers of a histogram; the same ones each time."""
        key = (what.name, *labels)
        return self._spreads.get(key) or self._spreads.setdefault(key, Spread(what.buckets))

    def add_up(self) -> None:
        """Add up all that waits for it."""
        for spread in self._spreads.values():
            spread.add_up()

    def samples(self) -> list[Sample]:
        """All numbers as they are now."""
        return [
            Sample(name, tuple(labels), kept.numbers())
            for kept_by_key in (self._tallies, self._spreads)
            for (name, *labels), kept in kept_by_key.items()
        ]


def summed(processes: Iterable[tuple[Iterable[Sample], bool]]) -> list[Sample]:
    """The numbers of several processes as one. Of one that is no longer alive (False), gauges say nothing."""
    found: dict[tuple[str, ...], Sample] = {}
    for samples, is_alive in processes:
        for sample in samples:
            what = _BY_NAME.get(sample.name)
            if what is None or (what.kind is Kind.GAUGE and not is_alive):
                continue
            key = (sample.name, *sample.labels)
            before = found.get(key)
            found[key] = sample if before is None else _joined(what, before, sample)
    return list(found.values())


def _joined(what: Series, one: Sample, other: Sample) -> Sample:
    if what.kind is Kind.GAUGE and what.across is not Across.SUM:
        join = min if what.across is Across.LEAST else max
        numbers = [join(pair) for pair in zip(one.numbers, other.numbers, strict=True)]
    else:
        numbers = [first + second for first, second in zip(one.numbers, other.numbers, strict=True)]
    return Sample(one.name, one.labels, numbers)


def page(samples: Iterable[Sample], accept: str = "") -> tuple[bytes, str]:
    """Numbers as Prometheus reads them, and their content type. It takes its time: not in the event loop."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return encode(_Families(samples)), content_type


class _Families:
    """Samples as prometheus-client's families, in the order in which the series are listed."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in (*samples, *_ratios(samples)):
            self._by_name.setdefault(sample.name, []).append(sample)

    def collect(self) -> "Iterable[Metric]":
        return [_family(what, self._by_name[what.name]) for what in series.SERIES if what.name in self._by_name]


def _ratios(samples: Iterable[Sample]) -> list[Sample]:
    """The hit ratios, which only the sums of all processes tell."""
    read: Mapping[tuple[str, ...], float] = {
        sample.labels: sample.numbers[0] for sample in samples if sample.name == series.WINDOW_READ.name
    }
    return [
        Sample(series.HIT_RATIO.name, sample.labels, [read.get(sample.labels, 0) / sample.numbers[0]])
        for sample in samples
        if sample.name == series.WINDOW_INPUT.name and sample.numbers[0]
    ]


def _family(what: Series, samples: Iterable[Sample]) -> "Metric":
    from prometheus_client.metrics_core import Metric
    from prometheus_client.utils import floatToGoString

    family = Metric(what.name.removesuffix("_total"), what.help, what.kind.value)
    if what.kind is not Kind.HISTOGRAM:
        for sample in samples:
            family.add_sample(what.name, dict(zip(what.labels, sample.labels, strict=True)), sample.numbers[0])
        return family
    bounds: list[str] = [
        floatToGoString(bound)  # type: ignore[no-untyped-call]
        for bound in (*what.buckets, float("inf"))
    ]
    for sample in samples:
        labels = dict(zip(what.labels, sample.labels, strict=True))
        total, *counts = sample.numbers
        for bound, up_to in zip(bounds, accumulate(counts), strict=True):
            family.add_sample(f"{what.name}_bucket", {**labels, "le": bound}, up_to)
        family.add_sample(f"{what.name}_count", labels, sum(counts))
        if what.buckets[0] >= 0:  # a sum that can fall looks like a restart to whoever reads it
            family.add_sample(f"{what.name}_sum", labels, total)
    return family
