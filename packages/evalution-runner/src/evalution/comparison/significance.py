"""Tests of a difference between two runs, from the rows that both answered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

from evalution.scoring.intervals import (
    CONFIDENCE,
    NORMAL_QUANTILE,
    Groups,
    estimate_spread,
    normal_interval,
    sum_groups,
    two_sided_p,
    two_sided_quantile,
)

TestName = Literal["mcnemar", "paired t", "sign", "clustered t", "clustered sign"]


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Evidence of a difference from the rows that both runs answered.

    `p_value` is two-sided: how often chance alone makes a difference at least as large; None where
    there are too few rows. `difference` is the mean of right minus left over these rows, and
    `interval` contains it with 95 % confidence; both are None where the score is no mean of its
    rows. Of the `pairs`, `left_better` and `right_better` differ in favour of one side. `groups`
    counts the groups of rows that the test is of, and `freedom` has the degrees of freedom of its
    t; both are None where rows count as independent.
    """

    name: TestName
    pairs: int
    left_better: int
    right_better: int
    p_value: float | None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    groups: int | None = None
    freedom: float | None = None

    def to_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in self.__slots__}
        if self.groups is None:
            del shown["groups"], shown["freedom"]
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

    If all rows differ alike, the error is zero and says nothing: each row is then a coin, and there
    is no interval. Where no row differs, it is that of right or wrong rows, times the best score.
    """
    differences = _list_differences(left, right)
    pairs = len(differences)
    better = _count_better(left, right, higher_is_better=higher_is_better)
    if not pairs:
        return PairedTest("paired t", 0, 0, 0, None)
    mean = math.fsum(differences) / pairs
    if pairs == 1:
        return PairedTest("paired t", 1, *better, None, mean)
    squares = math.fsum((difference - mean) ** 2 for difference in differences)
    error = math.sqrt(squares / (pairs - 1) / pairs)
    if error <= 1e-12 * abs(mean):
        if mean == 0.0:
            same = _make_interval_of_same(left, pairs)
            return PairedTest("paired t", pairs, *better, 1.0, mean, same)
        return PairedTest("paired t", pairs, *better, coin_p(pairs, 0), mean)
    margin = two_sided_quantile(1 - CONFIDENCE, pairs - 1) * error
    p_value = two_sided_p(mean / error, pairs - 1)
    return PairedTest("paired t", pairs, *better, p_value, mean, (mean - margin, mean + margin))


def clustered_t_test(
    left: Sequence[float], right: Sequence[float], groups: Sequence[int], *, higher_is_better: bool
) -> PairedTest:
    """Student's test of the rows' differences where groups of rows are independent, rows not.

    Error and degrees of freedom are those of `estimate_spread`. If all groups differ alike, the
    error is zero and says nothing: each group is then a coin, and right or wrong rows, or those of
    which none differs, have Agresti and Min's interval with as many pairs as there are groups.
    """
    differences = _list_differences(left, right)
    pairs, better = len(left), _count_better(left, right, higher_is_better=higher_is_better)
    mean = math.fsum(differences) / pairs
    sums, sizes = sum_groups(zip(differences, repeat(1.0, pairs), strict=True), groups)
    count, spread = len(sums), estimate_spread(sums, sizes, mean)
    if spread.stderr is None:
        return PairedTest("clustered t", pairs, *better, None, mean, groups=count)
    if spread.stderr:
        p_value = two_sided_p(mean / spread.stderr, spread.freedom)
        bound = 1.0 if is_binary(left) and is_binary(right) else math.inf
        ends = normal_interval(mean, spread.stderr, -bound, bound, quantile=spread.quantile)
        shown = (p_value, mean, ends, count, spread.freedom)
        return PairedTest("clustered t", pairs, *better, *shown)
    interval, p_value = None, 1.0 if mean == 0.0 else coin_p(count, 0)
    if is_binary(left) and is_binary(right):
        share, lost, won = count / pairs, _count_ones(left, right), _count_ones(right, left)
        interval = _make_agresti_min_interval(share * lost, share * won, count)
    elif mean == 0.0 and not any(better):
        interval = _make_interval_of_same(left, count)
    return PairedTest("clustered t", pairs, *better, p_value, mean, interval, count, count - 1.0)


def sign_test(
    left: Sequence[float],
    right: Sequence[float],
    groups: Groups = None,
    *,
    higher_is_better: bool,
) -> PairedTest:
    """The exact sign test, for scores that are no mean of their rows: F1, a perplexity.

    It asks whether one side is better in more rows, however much. That is not quite what the score
    says, but it holds whatever formula makes the score of the rows, and one odd row can't decide
    it (Arbuthnott 1710; Dixon and Mood, JASA 41, 1946). A group counts once, for the side that is
    better in more of its rows.
    """
    better = _count_better(left, right, higher_is_better=higher_is_better)
    if groups is None:
        return PairedTest("sign", len(left), *better, coin_p(*better) if left else None)
    signs = (math.copysign(bool(change), change) for change in _list_differences(left, right))
    sums, _ = sum_groups(zip(signs, repeat(1.0, len(left)), strict=True), groups)
    p_value = coin_p(sum(each < 0 for each in sums), sum(each > 0 for each in sums))
    return PairedTest("clustered sign", len(left), *better, p_value, groups=len(sums))


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


def is_binary(values: Iterable[float]) -> bool:
    """Return True if every value is 0 or 1, rows without one (NaN) aside: right or wrong."""
    return all(value in (0.0, 1.0) or math.isnan(value) for value in values)


def _list_differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Right minus left of each row; rounding makes no difference."""
    return [
        0.0 if is_rounding(before, after) else after - before
        for before, after in zip(left, right, strict=True)
    ]


def _count_ones(these: Sequence[float], those: Sequence[float]) -> int:
    """Rows that only `these` have right."""
    return sum(1 for this, that in zip(these, those, strict=True) if this and not that)


def _count_better(
    left: Sequence[float], right: Sequence[float], *, higher_is_better: bool
) -> tuple[int, int]:
    """Rows that are better on the left, and on the right; rounding makes no row better."""
    differences = _list_differences(left, right)
    lower, higher = sum(each < 0 for each in differences), sum(each > 0 for each in differences)
    return (lower, higher) if higher_is_better else (higher, lower)


def _make_interval_of_same(scores: Sequence[float], pairs: int) -> tuple[float, float]:
    """Return the interval of a difference that no row shows; scores are taken to reach 1 at least.

    So a few rows that agree prove little, and thousands nearly everything.
    """
    largest = max(1.0, *map(abs, scores))
    low, high = _make_agresti_min_interval(0, 0, pairs)
    return largest * low, largest * high


def _make_agresti_min_interval(lost: float, won: float, pairs: int) -> tuple[float, float]:
    count, difference, changed = pairs + 2, won - lost, lost + won + 1
    error = math.sqrt(changed - difference**2 / count) / count
    middle, margin = difference / count, NORMAL_QUANTILE * error
    return max(-1.0, middle - margin), min(1.0, middle + margin)
