"""Collects the measures of a suite's samples until they become scores."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Protocol, overload

from evalution.results import MetricResult
from evalution.scoring.metrics import Mean, Measure, Metric, Score


class MetricAccumulator(Protocol):
    """Collects the scores of a suite's samples one by one, and computes the results.

    A row may be recorded again, or withdrawn: the last word counts.
    """

    def record(self, index: int, score: Score) -> Mapping[str, float]:
        """Take the score of a row; returns each metric of that row alone.

        Anything it raises makes a failed sample of the row.
        """
        ...

    def fail(
        self, index: int, measures: Mapping[str, Measure] | None = None
    ) -> Mapping[str, float]:
        """Count a row as failed; returns what it counts as, where it counts at all.

        `measures` are what `Suite.failure` gave; None where the row can't be made any more.
        """
        ...

    @property
    def running(self) -> tuple[str, float] | None:
        """The main metric so far, for a progress line."""
        ...

    def results(self) -> dict[str, MetricResult]:
        """The scores, the main one first; independent of the order in which the answers came."""
        ...


class MeasureAccumulator:
    """Measures by row: two numbers a row and metric, and nothing else of a sample is kept."""

    def __init__(self, metrics: Mapping[str, Metric]):
        self._metrics = metrics
        self._columns = {name: _Column() for name in metrics}
        self._slots: dict[int, int] = {}

    def record(self, index: int, score: Score) -> dict[str, float]:
        """As `MetricAccumulator.record`.

        Raises:
            ValueError: a measure is NaN.
            LookupError: a metric has no measure.
        """
        taken = {name: _as_floats(name, score.measures[name]) for name in self._metrics}
        shown = {
            name: float(self._metrics[name].of_sample(measure))
            for name, measure in taken.items()
            if measure is not None
        }
        slot = self._slot(index)
        for name, column in self._columns.items():
            column.set(slot, taken[name])
        return shown

    def fail(self, index: int, measures: Mapping[str, Measure] | None = None) -> dict[str, float]:
        """As `MetricAccumulator.fail`; without measures each metric has its constant."""
        if measures is None:
            measures = failure_measures(self._metrics)
        counted: dict[str, float] = {}
        slot = self._slot(index)
        for name, metric in self._metrics.items():
            measure = measures.get(name)
            self._columns[name].set(slot, measure)
            if measure is not None:
                counted[name] = float(metric.of_sample(measure))
        return counted

    @property
    def running(self) -> tuple[str, float] | None:
        """As `MetricAccumulator.running`, if the main metric is a mean."""
        name, metric = next(iter(self._metrics.items()))
        column = self._columns[name]
        if not isinstance(metric, Mean) or not column.count:
            return None
        return name, column.sum / column.count

    def results(self) -> dict[str, MetricResult]:
        found: dict[str, MetricResult] = {}
        for name, metric in self._metrics.items():
            measures = self._columns[name].measures()
            estimate = metric.estimate(measures)
            found[name] = MetricResult(
                estimate.value, estimate.stderr, metric.higher_is_better, len(measures)
            )
        return found

    def _slot(self, index: int) -> int:
        return self._slots.setdefault(index, len(self._slots))


def failure_measures(metrics: Mapping[str, Metric]) -> dict[str, Measure]:
    """Return the measures of a sample without an answer, for the metrics that count it."""
    return {
        name: Measure(metric.failed)
        for name, metric in metrics.items()
        if metric.failed is not None
    }


def _as_floats(name: str, measure: Measure | None) -> Measure | None:
    if measure is None:
        return None
    value, weight = measure
    found = Measure(float(value), float(weight))
    if math.isnan(found.value) or math.isnan(found.weight):
        raise ValueError(f"metric {name!r} is NaN")
    return found


class _Column:
    """Values and weights by slot; NaN where there is none."""

    def __init__(self) -> None:
        self._values = array("d")
        self._weights = array("d")
        self.count = 0
        self.sum = 0.0

    def set(self, slot: int, measure: Measure | None) -> None:
        if slot == len(self._values):
            self._values.append(math.nan)
            self._weights.append(math.nan)
        if not math.isnan(before := self._values[slot]):
            self.count -= 1
            self.sum -= before
        self._values[slot], self._weights[slot] = measure or (math.nan, math.nan)
        if measure is not None:
            self.count += 1
            self.sum += measure.value

    def measures(self) -> Sequence[Measure]:
        chosen = [not math.isnan(value) for value in self._values]
        return _Measures(
            array("d", compress(self._values, chosen)), array("d", compress(self._weights, chosen))
        )


class _Measures(Sequence[Measure]):
    """Measures made of two arrays as they are read: as tuples all rows would take much memory."""

    def __init__(self, values: array[float], weights: array[float]) -> None:
        self._values = values
        self._weights = weights

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Measure]:
        return map(Measure, self._values, self._weights)

    @overload
    def __getitem__(self, index: int) -> Measure: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Measure]: ...
    def __getitem__(self, index: int | slice) -> Measure | Sequence[Measure]:
        if isinstance(index, slice):
            return _Measures(self._values[index], self._weights[index])
        return Measure(self._values[index], self._weights[index])
