"""Collects the measures of a suite's samples until they become scores."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

from evalution.metrics import Mean, Measure, Metric
from evalution.results import MetricResult


class Tally:
    """Measures by row; 16 bytes a row and metric, and nothing else of a sample is kept.

    A row may be recorded again, or withdrawn: the last word counts.
    """

    def __init__(self, metrics: Mapping[str, Metric]):
        self._metrics = metrics
        self._columns = {name: _Column() for name in metrics}

    def record(self, index: int, measures: Mapping[str, Measure]) -> dict[str, float]:
        """Take the measures of a row; returns each metric of that row alone."""
        for name, column in self._columns.items():
            column.set(index, measures[name])
        return {name: metric.of_sample(measures[name]) for name, metric in self._metrics.items()}

    def fail(self, index: int) -> dict[str, float]:
        """Count a row as failed; returns what it counts as, where it counts at all."""
        counted: dict[str, float] = {}
        for name, metric in self._metrics.items():
            self._columns[name].set(
                index, None if metric.failed is None else Measure(metric.failed)
            )
            if metric.failed is not None:
                counted[name] = metric.failed
        return counted

    @property
    def running(self) -> tuple[str, float] | None:
        """The main metric so far, if it is a mean."""
        name, metric = next(iter(self._metrics.items()))
        column = self._columns[name]
        if not isinstance(metric, Mean) or not column.count:
            return None
        return name, column.sum / column.count

    def results(self) -> dict[str, MetricResult]:
        """The scores, summed in the order of the rows, whatever order the answers came in."""
        found: dict[str, MetricResult] = {}
        for name, metric in self._metrics.items():
            measures = self._columns[name].measures()
            estimate = metric.estimate(measures)
            found[name] = MetricResult(
                estimate.value, estimate.stderr, metric.higher_is_better, len(measures)
            )
        return found


class _Column:
    """Values and weights by row; NaN where there is none."""

    def __init__(self) -> None:
        self._values = array("d")
        self._weights = array("d")
        self.count = 0
        self.sum = 0.0

    def set(self, index: int, measure: Measure | None) -> None:
        if index >= len(self._values):
            missing = [math.nan] * (index + 1 - len(self._values))
            self._values.extend(missing)
            self._weights.extend(missing)
        if not math.isnan(before := self._values[index]):
            self.count -= 1
            self.sum -= before
        self._values[index], self._weights[index] = measure or (math.nan, math.nan)
        if measure is not None:
            self.count += 1
            self.sum += measure.value

    def measures(self) -> list[Measure]:
        pairs = zip(self._values, self._weights, strict=True)
        return [Measure(value, weight) for value, weight in pairs if not math.isnan(value)]
