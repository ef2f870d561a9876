"""What is counted as plain numbers, and turned into Prometheus's samples when somebody asks.

An observation is a search among a dozen bounds and two additions: a third of what
`prometheus_client` takes for it, which locks and looks labels up each time. The event loop's
thread counts; the thread that answers a scrape reads, and may see one observation in the counts
and not yet in the sum. A bucket keeps the last trace that fell into it and was kept: its exemplar.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Final

from prometheus_client.core import Exemplar
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from gateway.telemetry.families import Family
from scheduler.request import Band

# Where a label would have more values than it may.
OTHER: Final = "other"

# A trace, what was observed, and when: Unix time in seconds.
_Seen = tuple[int, float, float]


class Histogram:
    """Count values by the first of `bounds` that is not below them."""

    __slots__ = ("_bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, _Seen] = {}

    def observe(self, value: float, number: int = 1) -> None:
        """Count a value, or the same value several times."""
        self.counts[bisect_left(self._bounds, value)] += number
        self.total += value * number

    def exemplify(self, value: float, trace_id: int, at_s: float) -> None:
        """Keep a trace as the example of its value's bucket."""
        self.exemplars[bisect_left(self._bounds, value)] = (trace_id, value, at_s)

    def samples(self, name: str, labels: Mapping[str, str]) -> Iterator[Sample]:
        """Yield the buckets, cumulated, then count and sum."""
        counts, total = list(self.counts), self.total
        seen = dict(self.exemplars)
        bucket, number = f"{name}_bucket", 0
        for place, number in enumerate(accumulate(counts)):
            example = _exemplar(seen[place]) if place in seen else None
            bound = _spelled(self._bounds[place]) if place < len(self._bounds) else "+Inf"
            yield Sample(bucket, {**labels, "le": bound}, number, None, example)
        yield Sample(f"{name}_count", dict(labels), number)
        yield Sample(f"{name}_sum", dict(labels), total)


@cache
def _spelled(bound: float) -> str:
    return repr(float(bound))


def _exemplar(seen: _Seen) -> Exemplar:
    trace_id, value, at_s = seen
    return Exemplar({"trace_id": f"{trace_id:032x}"}, value, at_s)


class _Places:
    """Say as what values of labels that are new are counted: as they are, or as `other`.

    Those that differ in a label outside of `folds` take no places of each other: there are `most`
    of each, and beyond them `folds` alone become `other`. All labels fold where none is named.
    """

    def __init__(self, family: Family, most: int, folds: Collection[str]) -> None:
        self._most = most
        self._folds = tuple(not folds or label in folds for label in family.labels)
        self._taken: dict[tuple[str, ...], int] = {}

    def of(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Take a place for values that have none, or return what they are counted as."""
        folded = tuple(
            OTHER if folds else value for folds, value in zip(self._folds, values, strict=True)
        )
        taken = self._taken.get(folded, 0)
        if taken >= self._most:
            return folded
        self._taken[folded] = taken + 1
        return values


class Histograms:
    """Hold the histograms of a family by label values: `most` of them, then one for all others.

    With `folds` that is so for all that are alike in the other labels, of which there must be few.
    """

    def __init__(
        self, family: Family, bounds: Sequence[float], *, most: int, folds: Collection[str] = ()
    ) -> None:
        self.family = family
        self._bounds = bounds
        self._places = _Places(family, most, folds)
        self._of: dict[tuple[str, ...], Histogram] = {}

    def of(self, *values: str) -> Histogram:
        """Find one, or make it."""
        found = self._of.get(values)
        if found is None:
            values = self._places.of(values)
            found = self._of.get(values)
            if found is None:
                found = self._of[values] = Histogram(self._bounds)
        return found

    def collect(self) -> Metric:
        """Return all of them as one metric."""
        metric = empty(self.family)
        for values, one in list(self._of.items()):
            labels = dict(zip(self.family.labels, values, strict=True))
            metric.samples.extend(one.samples(self.family.name, labels))
        return metric


class Counts:
    """Hold the sums of a family by label values: `most` of them, then one for all others.

    With `folds` that is so for all that are alike in the other labels, of which there must be few.
    """

    def __init__(self, family: Family, *, most: int, folds: Collection[str] = ()) -> None:
        self.family = family
        self._places = _Places(family, most, folds)
        self._of: dict[tuple[str, ...], float] = {}

    def add(self, values: tuple[str, ...], amount: float = 1) -> None:
        """Add to one."""
        before = self._of.get(values)
        if before is None:
            values = self._places.of(values)
            before = self._of.get(values, 0)
        self._of[values] = before + amount

    def collect(self) -> Metric:
        """Return all of them as one metric."""
        return metric_of(self.family, list(self._of.items()))


def empty(family: Family) -> Metric:
    """Return a metric without samples."""
    return Metric(family.name.removesuffix("_total"), family.help, family.kind)


def metric_of(family: Family, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    """Return a metric of counters or gauges, by the values of its labels."""
    metric = empty(family)
    for labels, value in values:
        metric.samples.append(
            Sample(family.name, dict(zip(family.labels, labels, strict=True)), value)
        )
    return metric


def class_of(band: Band) -> str:
    """Name a band as the class that its requests are of."""
    # Work of a batch that its window forces up is batch work still.
    return "batch" if band is Band.DUE else band.name.lower()
