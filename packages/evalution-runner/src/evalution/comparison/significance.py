"""Student's t distribution, from the regularised incomplete beta function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from evalution.scoring.metrics import NORMAL_QUANTILE

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


CONFIDENCE = 0.95
"""Of every interval."""

TestName = Literal["mcnemar", "paired t", "sign"]


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Evidence of a difference from the rows that both runs answered.

    `p_value` is two-sided: how often chance alone makes a difference at least as large; None where
    there are too few rows. `difference` is the mean of right minus left over these rows, and
    `interval` contains it with 95 % confidence; both are None where the score is no mean of its
    rows. Of the `pairs`, `left_better` and `right_better` differ in favour of one side.
    """

    name: TestName
    pairs: int
    left_better: int
    right_better: int
    p_value: float | None
    difference: float | None = None
    interval: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in self.__slots__}
        return {**shown, "interval": None if self.interval is None else list(self.interval)}


def mcnemar(left: Sequence[float], right: Sequence[float], *, higher_is_better: bool) -> PairedTest:
    """The exact test for rows that are right (1) or wrong (0).

    Only rows that one side alone has right count; without a real difference each of them
    is a fair coin (McNemar, Psychometrika 12, 1947; the exact binomial form, not chi-squared). The
    interval is that of Agresti and Min (Statistics in Medicine 24, 2005): half a row is added to
    each of the four cells, which keeps its coverage where hardly any row differs.
    """
    lost, won = _count_ones(left, right), _count_ones(right, left)
    pairs = len(left)
    better = (lost, won) if higher_is_better else (won, lost)
    if not pairs:
        return PairedTest("mcnemar", 0, 0, 0, None)
    interval = _make_agresti_min_interval(lost, won, pairs)
    return PairedTest("mcnemar", pairs, *better, coin_p(lost, won), (won - lost) / pairs, interval)


def paired_t_test(
    left: Sequence[float], right: Sequence[float], *, higher_is_better: bool
) -> PairedTest:
    """Student's test of the rows' differences (Biometrika 6, 1908), for scores that are a mean.

    Differences that are all the same, but not zero, give p = 0: nothing about them is chance. They
    have no interval: a few rows that agree say nothing about the width.
    """
    differences = [
        0.0 if is_rounding(before, after) else after - before
        for before, after in zip(left, right, strict=True)
    ]
    pairs = len(differences)
    better = _count_better(left, right, higher_is_better=higher_is_better)
    if not pairs:
        return PairedTest("paired t", 0, 0, 0, None)
    mean = math.fsum(differences) / pairs
    if pairs == 1:
        return PairedTest("paired t", 1, *better, None, mean)
    squares = math.fsum((difference - mean) ** 2 for difference in differences)
    error = math.sqrt(squares / (pairs - 1) / pairs)
    if error == 0.0:
        p_value = 1.0 if mean == 0.0 else 0.0
        return PairedTest("paired t", pairs, *better, p_value, mean)
    margin = two_sided_quantile(1 - CONFIDENCE, pairs - 1) * error
    p_value = two_sided_p(mean / error, pairs - 1)
    return PairedTest("paired t", pairs, *better, p_value, mean, (mean - margin, mean + margin))


def sign_test(
    left: Sequence[float], right: Sequence[float], *, higher_is_better: bool
) -> PairedTest:
    """The exact sign test, for scores that are no mean of their rows: F1, a perplexity.

    It asks whether one side is better in more rows, however much. That is not quite what the score
    says, but it holds whatever formula makes the score of the rows, and one odd row can't decide
    it (Arbuthnott 1710; Dixon and Mood, JASA 41, 1946).
    """
    better = _count_better(left, right, higher_is_better=higher_is_better)
    return PairedTest("sign", len(left), *better, coin_p(*better) if left else None)


def widen_interval(
    interval: tuple[float, float], confidence: float, freedom: float
) -> tuple[float, float]:
    """Return a 95 % interval at a higher confidence: of the same middle, by quantiles of t."""
    scale = two_sided_quantile(1 - confidence, freedom) / two_sided_quantile(
        1 - CONFIDENCE, freedom
    )
    middle, margin = sum(interval) / 2, scale * (interval[1] - interval[0]) / 2
    return middle - margin, middle + margin


def coin_p(heads: int, tails: int) -> float:
    """Return the chance that a fair coin falls at least as unevenly as `heads` to `tails`.

    Twice the binomial tail P(X ≤ the smaller), at most 1. Terms are added from the largest down
    until they no longer count, so that a million throws cost no more than a few thousand terms.
    """
    count, few = heads + tails, min(heads, tails)
    if heads == tails:
        return 1.0
    log_term = math.lgamma(count + 1) - math.lgamma(few + 1) - math.lgamma(count - few + 1)
    term = total = 1.0
    for number in range(few, 0, -1):
        term *= number / (count - number + 1)
        total += term
        if term < total * 1e-17:
            break
    return min(1.0, 2.0 * total * math.exp(log_term - count * math.log(2)))


def is_rounding(before: float, after: float) -> bool:
    """Report whether two values differ by no more than arithmetic in float32 may.

    The same request in another batch is computed by products of another shape, which moves the sum
    of a text's log-probabilities by parts in ten million.
    """
    return math.isclose(before, after, rel_tol=1e-6, abs_tol=1e-9)


def _count_ones(these: Sequence[float], those: Sequence[float]) -> int:
    """Rows that only `these` have right."""
    return sum(1 for this, that in zip(these, those, strict=True) if this and not that)


def _count_better(
    left: Sequence[float], right: Sequence[float], *, higher_is_better: bool
) -> tuple[int, int]:
    """Rows that are better on the left, and on the right; rounding makes no row better."""
    lower = higher = 0
    for before, after in zip(left, right, strict=True):
        if not is_rounding(before, after):
            lower += after < before
            higher += after > before
    return (lower, higher) if higher_is_better else (higher, lower)


def _make_agresti_min_interval(lost: int, won: int, pairs: int) -> tuple[float, float]:
    count, difference, changed = pairs + 2, won - lost, lost + won + 1
    error = math.sqrt(changed - difference**2 / count) / count
    middle, margin = difference / count, NORMAL_QUANTILE * error
    return max(-1.0, middle - margin), min(1.0, middle + margin)
