"""Scores over samples, each with its standard error and its 95 % interval.

The same values give the same digits in whatever order they came: sums are rounded once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, Protocol, overload

from evalution.results import MetricResult, RowRange
from evalution.scoring.intervals import (
    Groups,
    Spread,
    estimate_ratio,
    estimate_spread,
    find_mean,
    find_trials,
    normal_interval,
    sum_groups,
    sum_squares,
    wilson_interval,
)


class Measure(NamedTuple):
    """Contribution of one sample to a metric; a plain mean leaves the weight at one."""

    value: float
    weight: float = 1.0


@dataclass(slots=True)
class Score:
    """Worth of a sample's answers: a measure for each of the suite's metrics.

    None is for a metric that the sample says nothing of, such as another subset's. `extracted` is
    what was compared with the target, by metric or by filter. `remarks` are what makes the answer
    worth a look, to follow "3 of 20 samples"; a run counts each for `Suite.list_notices`.
    """

    measures: Mapping[str, Measure | None]
    prediction: str | None = None
    extracted: Mapping[str, Any] = field(default_factory=dict[str, Any])
    remarks: Sequence[str] = ()


class Estimate(NamedTuple):
    """A score, its standard error and its 95 % interval; None where the samples allow none."""

    value: float | None
    stderr: float | None
    interval: tuple[float, float] | None = None


class Metric(Protocol):
    """Computes one score of many samples."""

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def failed(self) -> float | None:
        """Value of a sample whose request failed; None leaves it out."""
        ...

    def of_sample(self, measure: Measure) -> float:
        """The metric of that sample alone, as its line in `samples.jsonl` shows it."""
        ...

    def estimate(self, measures: Sequence[Measure], groups: Groups = None) -> Estimate: ...


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean, with the sample standard deviation over √n: lm-evaluation-harness's `mean_stderr`.

    With `failed=0.0`, the default, a failed request counts as a wrong answer. `least` and `largest`
    are the values of a row that is wholly wrong or right: if rows are worth one of these, the
    interval is Wilson's, of as many rows as have the standard error where they are grouped, else
    the normal one. Where `largest` isn't above `least`, values are no shares.
    """

    higher_is_better: bool = True
    failed: float | None = 0.0
    largest: float = 1.0
    least: float = 0.0

    @property
    def row_range(self) -> RowRange:
        """As in results: open if values are no shares."""
        least, largest = (e if math.isfinite(e) else None for e in (self.least, self.largest))
        return (least, largest) if self.least < self.largest else (None, None)

    def of_sample(self, measure: Measure) -> float:
        return measure.value

    def estimate(self, measures: Sequence[Measure], groups: Groups = None) -> Estimate:
        values = array("d", (measure.value for measure in measures))
        count, mean = len(values), find_mean(values)
        if mean is None:
            return Estimate(None, None)
        spread, trials = Spread(None), float(count)
        if groups is not None:
            sums = sum_groups(zip(values, repeat(1.0, count), strict=True), groups)
            spread = estimate_spread(*sums, mean)
            if spread.stderr is None:
                return Estimate(mean, None)
            if (width := self.largest - self.least) > 0:
                share, error = (mean - self.least) / width, spread.stderr / width
                trials = find_trials(share, error, otherwise=len(sums[0]))
        elif count > 1:
            squares = sum_squares(value - mean for value in values)
            error = math.sqrt(squares / (count - 1) / count)
            spread = Spread(error if math.isfinite(error) else None)
        return Estimate(mean, spread.stderr, self._find_interval(values, mean, spread, trials))

    def _find_interval(
        self, values: array[float], mean: float, spread: Spread, trials: float
    ) -> tuple[float, float] | None:
        ends = (self.least, self.largest)
        if (width := self.largest - self.least) > 0 and all(value in ends for value in values):
            low, high = wilson_interval((mean - self.least) / width, trials, spread.quantile)
            return self.least + low * width, self.least + high * width
        if min(values) == max(values):  # the standard error may be a rounding error above zero
            return None
        if min(values) < self.least or max(values) > self.largest:  # these are no shares
            ends = (-math.inf, math.inf)
        return normal_interval(mean, spread.stderr, *ends, quantile=spread.quantile)


@dataclass(frozen=True, slots=True)
class WeightedPerplexity:
    """`exp(-Σ logprob / Σ weight)`, the weight being a text's words or bytes.

    With a weight of one it is the perplexity of single answers. The standard error is by the delta
    method: that of the ratio, times the slope of `exp(-ratio)`. lm-evaluation-harness bootstraps.
    """

    higher_is_better: bool = False
    failed: float | None = None

    def of_sample(self, measure: Measure) -> float:
        return _exp(-measure.value / measure.weight)

    def estimate(self, measures: Sequence[Measure], groups: Groups = None) -> Estimate:
        ratio, spread = estimate_ratio(measures, groups)
        if ratio is None:
            return Estimate(None, None)
        value = _exp(-ratio)
        if spread.stderr is None or math.isinf(value):
            return Estimate(value, None)
        within = normal_interval(-ratio, spread.stderr, quantile=spread.quantile)
        interval = None if within is None else (_exp(within[0]), _exp(within[1]))
        stderr = spread.stderr * value
        if math.isinf(stderr) or (interval and math.isinf(interval[1])):
            return Estimate(value, None)  # the whole text as one word, as in Chinese
        return Estimate(value, stderr, interval)


@dataclass(frozen=True, slots=True)
class BitsPerWeight:
    """`-Σ logprob / Σ weight` in bits; the standard error as in `WeightedPerplexity`."""

    higher_is_better: bool = False
    failed: float | None = None

    def of_sample(self, measure: Measure) -> float:
        return -measure.value / measure.weight / math.log(2)

    def estimate(self, measures: Sequence[Measure], groups: Groups = None) -> Estimate:
        ratio, spread = estimate_ratio(measures, groups)
        if ratio is None:
            return Estimate(None, None)
        value = -ratio / math.log(2)
        stderr = None if spread.stderr is None else spread.stderr / math.log(2)
        return Estimate(value, stderr, normal_interval(value, stderr, quantile=spread.quantile))


@dataclass(frozen=True, slots=True)
class Ratio:
    """`Σ value / Σ weight`, a share of parts that rows have several of; see `estimate_ratio`."""

    higher_is_better: bool = True
    failed: float | None = None

    def of_sample(self, measure: Measure) -> float:
        return measure.value / measure.weight if measure.weight else 0.0

    def estimate(self, measures: Sequence[Measure], groups: Groups = None) -> Estimate:
        value, spread = estimate_ratio(measures, groups)
        if value is None:
            return Estimate(None, None)
        interval = normal_interval(value, spread.stderr, 0.0, 1.0, quantile=spread.quantile)
        return Estimate(value, spread.stderr, interval)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 709.0 else math.inf


def make_prediction(predicted: float, right: float) -> Measure:
    """The measure of a sample whose answer was class `predicted`."""
    return Measure(float(predicted), float(right))


def make_wrong_prediction(right: int, classes: int) -> Measure:
    """The measure of a sample without an answer: the class after the right one, which is wrong."""
    return Measure(float((right + 1) % classes), float(right))


@dataclass(frozen=True, slots=True)
class F1:
    """`2·TP / (2·TP + FP + FN)` of class `positive`; 0 where that class never occurs.

    The same value as scikit-learn's binary `f1_score`, which lm-evaluation-harness calls. It is a
    ratio of two sample totals, so its standard error is theirs (Cochran, Sampling Techniques, 3rd
    ed. 1977, §6.4); lm-evaluation-harness bootstraps.
    """

    positive: int = 1
    higher_is_better: bool = True
    failed: float | None = None

    def of_sample(self, measure: Measure) -> float:
        """1 for a right answer, 0 for a wrong one: one sample alone has no F1."""
        return float(measure.value == measure.weight)

    def estimate(self, measures: Sequence[Measure], groups: Groups = None) -> Estimate:
        found = Ratio().estimate([self._share(measure) for measure in measures], groups)
        return Estimate(0.0, None) if found.value is None and measures else found

    def _share(self, measure: Measure) -> Measure:
        predicted, right = measure.value == self.positive, measure.weight == self.positive
        return Measure(2.0 * (predicted and right), float(predicted + right))


@dataclass(frozen=True, slots=True)
class _Agreement(ABC):
    """A metric of the table of what was predicted and what is right; -1 to 1."""

    higher_is_better: bool = True
    failed: float | None = None

    def of_sample(self, measure: Measure) -> float:
        """1 where the two agree, else 0: one sample alone has no correlation."""
        return float(measure.value == measure.weight)

    def estimate(self, measures: Sequence[Measure], groups: Groups = None) -> Estimate:
        if not measures:
            return Estimate(None, None)
        table = _Confusion(measures)
        value, stderr = self._estimate(table)
        spread = Spread(stderr)
        if groups is not None and stderr is not None:
            pulls = {cell: Measure(self._influence(table, value, cell)) for cell in table.cells}
            spread = estimate_spread(*sum_groups(map(pulls.__getitem__, measures), groups), 0.0)
        interval = normal_interval(value, spread.stderr, -1.0, 1.0, quantile=spread.quantile)
        return Estimate(value, spread.stderr, interval)

    @abstractmethod
    def _estimate(self, table: _Confusion) -> tuple[float, float | None]:
        """Return the value, and the standard error of rows that are independent."""
        ...

    @abstractmethod
    def _influence(self, table: _Confusion, value: float, cell: tuple[float, float]) -> float:
        """Return the pull of one more row of this cell on the value, times the count of rows."""
        ...


@dataclass(frozen=True, slots=True)
class MatthewsCorrelation(_Agreement):
    """Gorodkin's K-category correlation (2004), for two classes the Matthews coefficient; -1 to 1.

    The same value as scikit-learn's `matthews_corrcoef`, which lm-evaluation-harness calls: 0 where
    all predictions or all right classes are one class. It is the correlation of indicator vectors,
    so the standard error is that of a correlation by its influence function (Devlin, Gnanadesikan
    and Kettenring, Biometrika 62, 1975, p. 533); lm-evaluation-harness bootstraps.
    """

    def _estimate(self, table: _Confusion) -> tuple[float, float | None]:
        if not table.predicted_spread or not table.right_spread:
            return 0.0, None
        squares = math.fsum(
            number * table.influence(predicted, right) ** 2
            for (predicted, right), number in table.cells.items()
        )
        return table.correlation, math.sqrt(squares / (table.count - 1) / table.count)

    def _influence(self, table: _Confusion, value: float, cell: tuple[float, float]) -> float:
        return table.influence(*cell)


@dataclass(frozen=True, slots=True)
class CohenKappa(_Agreement):
    """Agreement of two raters beyond chance, `(po - pe) / (1 - pe)`; -1 to 1 (Cohen, 1960).

    0 where agreement by chance is certain. The standard error is the large-sample one for a kappa
    that isn't zero (Fleiss, Cohen and Everitt, Psychological Bulletin 72, 1969, p. 324).
    """

    def _estimate(self, table: _Confusion) -> tuple[float, float | None]:
        by_chance = table.by_chance / table.count**2
        if by_chance == 1.0:
            return 0.0, None
        if table.hits == table.count:
            return 1.0, 0.0
        agreed = table.hits / table.count
        value = (agreed - by_chance) / (1 - by_chance)
        total = -((value - by_chance * (1 - value)) ** 2)
        for (one, other), number in table.cells.items():
            crossed = (table.predicted[other] + table.right[one]) / table.count * (1 - value)
            total += number / table.count * ((one == other) - crossed) ** 2
        return value, math.sqrt(max(total, 0.0) / table.count) / (1 - by_chance)

    def _influence(self, table: _Confusion, value: float, cell: tuple[float, float]) -> float:
        (predicted, right), by_chance = cell, table.by_chance / table.count**2
        crossed = (table.predicted[right] + table.right[predicted]) / table.count * (1 - value)
        middle = value - by_chance * (1 - value)
        return ((predicted == right) - crossed - middle) / (1 - by_chance)


class _Confusion:
    """Counts of each predicted class by the right one.

    Spreads and products are variances and covariances times count², in integers: zero is zero.
    """

    def __init__(self, measures: Sequence[Measure]):
        self.count = len(measures)
        self.cells = Counter((measure.value, measure.weight) for measure in measures)
        self.predicted = Counter(measure.value for measure in measures)
        self.right = Counter(measure.weight for measure in measures)
        self.by_chance = sum(n * self.right[label] for label, n in self.predicted.items())
        self.predicted_spread = self.count**2 - _squares(self.predicted)
        self.right_spread = self.count**2 - _squares(self.right)

    @property
    def hits(self) -> int:
        """Samples whose predicted class is the right one."""
        return sum(n for (predicted, right), n in self.cells.items() if predicted == right)

    @property
    def correlation(self) -> float:
        return (self.count * self.hits - self.by_chance) / self._scale

    def influence(self, predicted: float, right: float) -> float:
        """Return the pull of one more sample of this cell on the correlation, times the count."""
        count = self.count
        product = count**2 * (predicted == right) + self.by_chance
        product -= count * (self.right[predicted] + self.predicted[right])
        guess = count**2 - 2 * count * self.predicted[predicted] + _squares(self.predicted)
        truth = count**2 - 2 * count * self.right[right] + _squares(self.right)
        spreads = guess / self.predicted_spread + truth / self.right_spread
        return product / self._scale - self.correlation / 2 * spreads

    @property
    def _scale(self) -> float:
        return math.sqrt(self.predicted_spread * self.right_spread)


def _squares(numbers: Counter[float]) -> int:
    return sum(number**2 for number in numbers.values())


class MetricAccumulator(Protocol):
    """Collects the scores of a suite's samples one by one, each once, and computes the results."""

    def record(self, index: int, score: Score, group: str | None = None) -> Mapping[str, float]:
        """Take the score of a row; returns each metric of that row alone.

        `group` is that of the row's sample. Anything it raises makes a failed sample of the row.
        """
        ...

    def fail(
        self, index: int, measures: Mapping[str, Measure], group: str | None = None
    ) -> Mapping[str, float]:
        """Count a row as failed by the measures of `Suite.failure`; returns what it counts as."""
        ...

    @property
    def running(self) -> tuple[str, float] | None:
        """The main metric so far, for a progress line."""
        ...

    def results(self) -> dict[str, MetricResult]:
        """The scores, the main one first; independent of the order in which the answers came."""
        ...


class MeasureAccumulator:
    """Two numbers a row and metric, and that of its group, are all that is kept of a sample."""

    def __init__(self, metrics: Mapping[str, Metric]):
        self._metrics = metrics
        self._main = next(iter(metrics))
        self._measures = {name: _Measures(array("d"), array("d")) for name in metrics}
        self._codes: dict[str, int] = {}
        self._groups = {name: array("q") for name in metrics}
        self._sum = self._weight = 0.0

    def record(self, index: int, score: Score, group: str | None = None) -> dict[str, float]:
        """As `MetricAccumulator.record`.

        Raises:
            ValueError: a measure is NaN.
            LookupError: a metric has no measure.
        """
        found = {name: _as_floats(name, score.measures[name]) for name in self._metrics}
        return self._add(found, group)

    def fail(
        self, index: int, measures: Mapping[str, Measure], group: str | None = None
    ) -> dict[str, float]:
        return self._add({name: measures.get(name) for name in self._metrics}, group)

    @property
    def running(self) -> tuple[str, float] | None:
        """As `MetricAccumulator.running`, if the main metric is one of the mean measure alone."""
        name, metric = self._main, self._metrics[self._main]
        count = len(self._measures[name])
        if not count or not isinstance(metric, Mean | WeightedPerplexity | BitsPerWeight):
            return None
        return name, metric.of_sample(Measure(self._sum / count, self._weight / count))

    def results(self) -> dict[str, MetricResult]:
        """As `MetricAccumulator.results`.

        Raises:
            ValueError: some samples have a group, and others none.
        """
        found: dict[str, MetricResult] = {}
        for name, metric in self._metrics.items():
            measures, groups = self._measures[name], self._groups[name] or None
            if groups is not None and len(groups) != len(measures):
                raise ValueError("every sample of a suite has a group, or none has")
            value, stderr, interval = metric.estimate(measures, groups)
            size = None if groups is None else len(set(groups))
            row_range = metric.row_range if isinstance(metric, Mean) else None
            known = (len(measures), interval, size, row_range)
            found[name] = MetricResult(value, stderr, metric.higher_is_better, *known)
        return found

    def _add(self, measures: Mapping[str, Measure | None], group: str | None) -> dict[str, float]:
        taken = [(name, measure) for name, measure in measures.items() if measure is not None]
        shown = {name: float(self._metrics[name].of_sample(measure)) for name, measure in taken}
        for name, measure in taken:
            self._measures[name].append(measure)
            if group is not None:
                self._groups[name].append(self._codes.setdefault(group, len(self._codes)))
        if (main := measures.get(self._main)) is not None:
            self._sum += main.value
            self._weight += main.weight
        return shown


def _as_floats(name: str, measure: Measure | None) -> Measure | None:
    if measure is None:
        return None
    value, weight = measure
    found = Measure(float(value), float(weight))
    if math.isnan(found.value) or math.isnan(found.weight):
        raise ValueError(f"metric {name!r} is NaN")
    return found


class _Measures(Sequence[Measure]):
    """Measures made of two arrays as they are read: as tuples all rows would take much memory."""

    def __init__(self, values: array[float], weights: array[float]) -> None:
        self._values = values
        self._weights = weights

    def append(self, measure: Measure) -> None:
        self._values.append(measure.value)
        self._weights.append(measure.weight)

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
