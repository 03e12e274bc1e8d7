"""Scores of a classifier: F1 and the Matthews correlation coefficient.

A sample's `Measure` is `(predicted class, right class)`, as numbers from 0. A failed request counts
as a wrong answer; which class that is only the suite knows, so it gives such samples a measure too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evalution.scoring.metrics import Estimate, Measure, ratio_of_totals


def answered(predicted: int, right: int) -> Measure:
    """The measure of a sample whose answer was class `predicted`."""
    return Measure(float(predicted), float(right))


def unanswered(right: int, classes: int) -> Measure:
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

    def estimate(self, measures: Sequence[Measure]) -> Estimate:
        shares = [self._share(measure) for measure in measures]
        value, stderr = ratio_of_totals(shares)
        if value is None:
            return Estimate(0.0 if measures else None, None)
        return Estimate(value, stderr)

    def _share(self, measure: Measure) -> Measure:
        predicted, right = measure.value == self.positive, measure.weight == self.positive
        return Measure(2.0 * (predicted and right), float(predicted + right))


@dataclass(frozen=True, slots=True)
class MatthewsCorrelation:
    """Gorodkin's K-category correlation (2004), for two classes the Matthews coefficient; -1 to 1.

    The same value as scikit-learn's `matthews_corrcoef`, which lm-evaluation-harness calls: 0 where
    all predictions or all right classes are one class. It is the correlation of indicator vectors,
    so the standard error is that of a correlation by its influence function (Devlin, Gnanadesikan
    and Kettenring, Biometrika 62, 1975, p. 533); lm-evaluation-harness bootstraps.
    """

    higher_is_better: bool = True
    failed: float | None = None

    def of_sample(self, measure: Measure) -> float:
        """1 for a right answer, 0 for a wrong one: one sample alone has no correlation."""
        return float(measure.value == measure.weight)

    def estimate(self, measures: Sequence[Measure]) -> Estimate:
        if not measures:
            return Estimate(None, None)
        table = _Confusion(measures)
        if not table.predicted_spread or not table.right_spread:
            return Estimate(0.0, None)
        squares = math.fsum(
            number * table.influence(predicted, right) ** 2
            for (predicted, right), number in table.cells.items()
        )
        return Estimate(table.correlation, math.sqrt(squares / (table.count - 1) / table.count))


class _Confusion:
    """How often each class was predicted where each was right.

    Spreads and products are variances and covariances times count², in integers: zero is zero.
    """

    def __init__(self, measures: Sequence[Measure]):
        self.count = len(measures)
        self.cells = Counter((measure.value, measure.weight) for measure in measures)
        self._predicted = Counter(measure.value for measure in measures)
        self._right = Counter(measure.weight for measure in measures)
        self._by_chance = sum(n * self._right[label] for label, n in self._predicted.items())
        self.predicted_spread = self.count**2 - _squares(self._predicted)
        self.right_spread = self.count**2 - _squares(self._right)

    @property
    def correlation(self) -> float:
        hits = sum(n for (predicted, right), n in self.cells.items() if predicted == right)
        return (self.count * hits - self._by_chance) / self._scale

    def influence(self, predicted: float, right: float) -> float:
        """How far one more sample of this cell pulls the correlation, times the count."""
        count = self.count
        product = count**2 * (predicted == right) + self._by_chance
        product -= count * (self._right[predicted] + self._predicted[right])
        guess = count**2 - 2 * count * self._predicted[predicted] + _squares(self._predicted)
        truth = count**2 - 2 * count * self._right[right] + _squares(self._right)
        spreads = guess / self.predicted_spread + truth / self.right_spread
        return product / self._scale - self.correlation / 2 * spreads

    @property
    def _scale(self) -> float:
        return math.sqrt(self.predicted_spread * self.right_spread)


def _squares(numbers: Counter[float]) -> int:
    return sum(number**2 for number in numbers.values())
