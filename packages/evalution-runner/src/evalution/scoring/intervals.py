"""Intervals of scores: of a share, by the normal distribution, and of rows that belong together."""

from __future__ import annotations

import math
import operator
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

Groups = Sequence[int] | None
"""A number for each row, the same for rows that belong together; None where none do."""

CONFIDENCE = 0.95
"""Of every interval."""

NORMAL_QUANTILE = 1.959963984540054
"""Standard errors on either side of a value that hold 95 % of a normal distribution."""


def wilson_interval(
    share: float, count: float, quantile: float = NORMAL_QUANTILE
) -> tuple[float, float]:
    """The 95 % interval of a share of `count` rows: 8 of 8 are 0.676 to 1.

    It stays within 0 and 1, and has a width where all rows are right or all are wrong (Wilson, JASA
    22, 1927).
    """
    square = quantile**2 / count
    middle = (share + square / 2) / (1 + square)
    margin = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return max(0.0, min(share, middle - margin)), min(1.0, max(share, middle + margin))


def is_wilson_interval(share: float, interval: tuple[float, float]) -> bool:
    """Return True if Wilson's formula gives both ends, with any one count of rows and quantile.

    At a share of 0.5 the normal interval looks the same.
    """
    low, high = interval
    below, above = (share - low) ** 2 * high * (1 - high), (high - share) ** 2 * low * (1 - low)
    return math.isclose(below, above, rel_tol=1e-6) and interval != (0.0, 1.0)


def find_trials(share: float, stderr: float, otherwise: float) -> float:
    """Return the independent rows whose share has this standard error (Kott and Carr, 1997).

    `otherwise` is for a standard error of zero, which says nothing about their number.
    """
    return share * (1 - share) / stderr**2 if stderr else otherwise


def normal_interval(
    value: float,
    stderr: float | None,
    least: float = -math.inf,
    largest: float = math.inf,
    *,
    quantile: float = NORMAL_QUANTILE,
) -> tuple[float, float] | None:
    """The 95 % interval by the normal distribution, or another's quantile, within these bounds.

    None where the standard error is unknown, or zero: rows that are all alike don't make a score
    certain.
    """
    if not stderr or not math.isfinite(value):
        return None
    margin = quantile * stderr
    return max(least, value - margin), min(largest, value + margin)


class Spread(NamedTuple):
    """A standard error, and the degrees of freedom of its t; None for fewer than two groups."""

    stderr: float | None
    freedom: float = math.inf

    @property
    def quantile(self) -> float:
        """Standard errors on either side of the value that make its 95 % interval."""
        if math.isinf(self.freedom):
            return NORMAL_QUANTILE
        return two_sided_quantile(1 - CONFIDENCE, self.freedom)


def find_mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of no values, and of ∞ beside -∞."""
    if not (count := len(values)):
        return None
    mean = _add(values) / count
    if math.isinf(mean):
        mean = _add(value / count for value in values)
    return None if math.isnan(mean) else mean


def _add(values: Iterable[float]) -> float:
    """Return the sum, rounded once; infinite beyond all floats, NaN of ∞ beside -∞."""
    terms = array("d", values)
    try:
        return math.fsum(terms)
    except OverflowError:
        return _add(term * 2.0**-64 for term in terms) * 2.0**64
    except ValueError:
        return math.nan


def sum_squares(values: Iterable[float]) -> float:
    """Return the sum of squares, rounded once; infinite where it is beyond all floats."""
    factors = array("d", values)
    return _add(map(operator.mul, factors, factors))


def sum_groups(
    rows: Iterable[tuple[float, float]], groups: Iterable[Hashable]
) -> tuple[list[float], list[float]]:
    """Return the sums of values and of weights of each group of rows."""
    held: defaultdict[Hashable, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for row, group in zip(rows, groups, strict=True):
        for column, number in zip(held[group], row, strict=True):
            column.append(number)
    values, weights = zip(*held.values(), strict=True)
    return [_add(found) for found in values], [_add(found) for found in weights]


def estimate_spread(sums: Sequence[float], weights: Sequence[float], mean: float) -> Spread:
    """Estimate the spread of `mean`, a ratio of sums over groups of rows.

    The variance is that of the linearised jackknife, which leaves out one group at a time: the
    residuals of a ratio (Cochran, Sampling Techniques, 1977, §6.4) divided by what is left of the
    weight (Bell and McCaffrey, Survey Methodology 28, 2002: CR3). Few large groups, or few that
    carry the variance, leave fewer degrees of freedom than there are groups: t has the smaller of
    the effective number of clusters, (Σn)²/Σn² (Carter, Schnepel and Steigerwald, Review of
    Economics and Statistics 99, 2017), and the equivalent 2G/(κ - 1) of the residuals' kurtosis κ
    (Potthoff, Woodbury and Manton, JASA 87, 1992), less 1. Decisions 0021 and 0029 have the
    coverage.
    """
    total, count = math.fsum(weights), len(sums)
    if count < 2 or total <= max(weights):
        return Spread(None)
    pairs = zip(sums, weights, strict=True)
    changes = [(value - mean * weight) / (total - weight) for value, weight in pairs]
    middle = _add(changes) / count
    squares = sum_squares(change - middle for change in changes)
    if not math.isfinite(squares):
        return Spread(None)
    stderr = math.sqrt((count - 1) / count * squares)
    effective = total**2 / math.fsum(weight**2 for weight in weights)
    if stderr <= 1e-12 * abs(mean):
        return Spread(0.0, max(effective - 1, 1.0))
    scale = math.sqrt(squares)
    kurtosis = count * math.fsum(((change - middle) / scale) ** 4 for change in changes)
    effective = min(effective, 2 * count / max(kurtosis - 1, 2))
    return Spread(stderr, max(effective - 1, 1.0))


def estimate_ratio(
    rows: Sequence[tuple[float, float]], groups: Groups = None
) -> tuple[float | None, Spread]:
    """Return `Σ value / Σ weight` and its spread; None where the weights are zero, or of ∞ - ∞.

    Cochran, Sampling Techniques, 3rd ed. 1977, §6.4: residuals `value - ratio·weight`, over n - 1.
    """
    total = _add(weight for _, weight in rows)
    ratio = _add(value for value, _ in rows) / total if total else math.nan
    if math.isnan(ratio):
        return None, Spread(None)
    count = len(rows)
    if count == 1 or not math.isfinite(ratio):
        return ratio, Spread(None)
    if groups is not None:
        return ratio, estimate_spread(*sum_groups(rows, groups), ratio)
    squares = sum_squares(value - ratio * weight for value, weight in rows)
    error = math.sqrt(squares * count / (count - 1)) / total
    return ratio, Spread(error if math.isfinite(error) else None)


_SMALLEST = 1e-300
_STEPS = 100_000
"""Far beyond what is needed: the fraction takes some √(freedom) steps."""


def two_sided_p(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) with n degrees of freedom: `I(n/(n+t²); n/2, 1/2)`.

    NIST Digital Library of Mathematical Functions, §8.17; the distribution by Abramowitz and
    Stegun, 26.7.1. The relative error is below 1e-9 up to a million degrees.
    """
    square = t * t
    if math.isinf(square):
        return 0.0
    # The complement is given beside it: near 1 it has lost the digits that count.
    return _incomplete_beta(freedom / (freedom + square), square / (freedom + square), freedom)


@lru_cache(maxsize=64)
def two_sided_quantile(p: float, freedom: float) -> float:
    """The t that |T| reaches with probability `p`, between 1e-9 and 1; by bisection."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > p:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        if two_sided_p(middle, freedom) > p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(x: float, complement: float, freedom: float) -> float:
    """`I(x; freedom/2, 1/2)`, where `complement` is `1 - x`."""
    a, b = freedom / 2, 0.5
    if x <= 0.0:
        return 0.0
    if complement <= 0.0:
        return 1.0
    log_head = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    head = math.exp(log_head + a * math.log(x) + b * math.log(complement))
    if x < (a + 1) / (a + b + 2):
        return head * _evaluate_fraction(x, a, b) / a
    return 1.0 - head * _evaluate_fraction(complement, b, a) / b


def _evaluate_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of DLMF 8.17.22, evaluated by the modified Lentz method (§3.10)."""
    value, above, below = 1.0, math.inf, 1.0
    for step in range(1, _STEPS):
        half = step // 2
        if step % 2:
            numerator = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            numerator = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        above = (1.0 + numerator / above) or _SMALLEST
        below = 1.0 / ((1.0 + numerator * below) or _SMALLEST)
        value *= above * below
        if abs(above * below - 1.0) < 1e-15:
            break
    return value
