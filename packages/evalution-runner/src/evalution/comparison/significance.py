"""Tests of a difference between two runs, from the rows that both answered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

from evalution.results import MetricResult, RowRange
from evalution.scoring.intervals import (
    CONFIDENCE,
    NORMAL_QUANTILE,
    Groups,
    Spread,
    estimate_spread,
    normal_interval,
    sum_groups,
    sum_squares,
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
    t; both are None where rows count as independent. `cautious_interval` is the one that `gate`
    asks, in which a few that agree prove little; None where `interval` is as cautious itself.
    `right_lead` has for a sign test the rows, or groups, that favour the right side, less those
    that favour the left.
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
    cautious_interval: tuple[float, float] | None = None
    right_lead: int = 0

    def to_dict(self) -> dict[str, Any]:
        hidden = ("cautious_interval", "right_lead")
        shown = {name: getattr(self, name) for name in self.__slots__ if name not in hidden}
        if self.groups is None:
            del shown["groups"], shown["freedom"]
        return {**shown, "interval": None if self.interval is None else list(self.interval)}


OPEN: RowRange = (None, None)
_HUGE = 1e290
"""A score beyond has no mean to test: a sum of several may be beyond all floats."""


def run_test(
    left: Sequence[float],
    right: Sequence[float],
    groups: Groups,
    row_range: RowRange | None,
    *,
    higher_is_better: bool,
) -> PairedTest | None:
    """Run the test that suits these scores of rows; None without any.

    `row_range` is that of `MetricResult`.
    """
    if not left:
        return None
    if row_range is None or max(map(abs, (*left, *right))) > _HUGE:
        return sign_test(left, right, groups, higher_is_better=higher_is_better)
    if groups is not None:
        return clustered_t_test(left, right, groups, row_range, higher_is_better=higher_is_better)
    if _are_right_or_wrong(left, right, row_range):
        return mcnemar(left, right, higher_is_better=higher_is_better)
    return paired_t_test(left, right, row_range, higher_is_better=higher_is_better)


def mcnemar(left: Sequence[float], right: Sequence[float], *, higher_is_better: bool) -> PairedTest:
    """The exact test for rows that are right (1) or wrong (0).

    Only rows that one side alone has right count; without a real difference each of them
    is a fair coin (McNemar, Psychometrika 12, 1947; the exact binomial form, not chi-squared). The
    interval is that of `make_score_interval`, whose ends hold where hardly any row differs, too.
    """
    lost, won = _count_ones(left, right), _count_ones(right, left)
    pairs = len(left)
    better = (lost, won) if higher_is_better else (won, lost)
    if not pairs:
        return PairedTest("mcnemar", 0, 0, 0, None)
    interval = make_score_interval(lost, won, pairs)
    return PairedTest("mcnemar", pairs, *better, coin_p(lost, won), (won - lost) / pairs, interval)


def paired_t_test(
    left: Sequence[float],
    right: Sequence[float],
    row_range: RowRange = OPEN,
    *,
    higher_is_better: bool,
) -> PairedTest:
    """Student's test of the rows' differences (Biometrika 6, 1908), for scores that are a mean.

    If all rows differ alike, the error is zero and says nothing: each row is then a coin, and there
    is no interval. Where no row differs, it is that of right or wrong rows, times the largest
    change that `row_range` allows.
    """
    differences = _list_differences(left, right)
    pairs = len(differences)
    better = _count_better(left, right, higher_is_better=higher_is_better)
    if not pairs:
        return PairedTest("paired t", 0, 0, 0, None)
    mean = math.fsum(differences) / pairs
    residuals = [difference - mean for difference in differences]
    squares = sum_squares(residuals)
    if pairs == 1 or not math.isfinite(squares):
        return PairedTest("paired t", pairs, *better, None, mean)
    error = math.sqrt(squares / (pairs - 1) / pairs)
    largest = _find_largest(row_range, left, right)
    cautious = _make_cautious_interval(mean, residuals, Spread(error, pairs - 1), largest)
    if error <= 1e-12 * abs(mean):
        same = _scale(largest, make_score_interval(0, 0, pairs)) if mean == 0.0 else None
        shown = (1.0 if mean == 0.0 else coin_p(pairs, 0), mean, same)
        return PairedTest("paired t", pairs, *better, *shown, cautious_interval=cautious)
    bound = math.inf if None in row_range else largest
    quantile = two_sided_quantile(1 - CONFIDENCE, pairs - 1)
    ends = normal_interval(mean, error, -bound, bound, quantile=quantile)
    shown = (two_sided_p(mean / error, pairs - 1), mean, ends)
    return PairedTest("paired t", pairs, *better, *shown, cautious_interval=cautious)


def clustered_t_test(
    left: Sequence[float],
    right: Sequence[float],
    groups: Sequence[int],
    row_range: RowRange = OPEN,
    *,
    higher_is_better: bool,
) -> PairedTest:
    """Student's test of the rows' differences where groups of rows are independent, rows not.

    Error and degrees of freedom are those of `estimate_spread`. If all groups differ alike, the
    error is zero and says nothing: each group is then a coin, and right or wrong rows, or those of
    which none differs, have Tango's interval with as many pairs as there are groups.
    """
    differences = _list_differences(left, right)
    pairs, better = len(left), _count_better(left, right, higher_is_better=higher_is_better)
    sums, sizes = sum_groups(zip(differences, repeat(1.0, pairs), strict=True), groups)
    rounding = 1e-12 * math.fsum(map(abs, differences))
    sums = [0.0 if abs(each) <= rounding else each for each in sums]
    total = math.fsum(sums)
    mean, count = 0.0 if abs(total) <= rounding else total / pairs, len(sums)
    spread = estimate_spread(sums, sizes, mean)
    if spread.stderr is None:
        return PairedTest("clustered t", pairs, *better, None, mean, groups=count)
    largest = _find_largest(row_range, left, right)
    residuals = [
        (each - mean * size) * count / pairs for each, size in zip(sums, sizes, strict=True)
    ]
    typical = _find_typical_size(sizes)
    cautious = _make_cautious_interval(mean, residuals, spread, largest, typical)
    if spread.stderr:
        p_value = two_sided_p(mean / spread.stderr, spread.freedom)
        ends = normal_interval(mean, spread.stderr, -largest, largest, quantile=spread.quantile)
        shown = (p_value, mean, ends, count, spread.freedom, cautious)
        return PairedTest("clustered t", pairs, *better, *shown)
    interval, p_value = None, 1.0 if mean == 0.0 else coin_p(count, 0)
    if _are_right_or_wrong(left, right, row_range):
        share, lost, won = count / pairs, _count_ones(left, right), _count_ones(right, left)
        interval = make_score_interval(share * lost, share * won, count)
    elif mean == 0.0:
        interval = _scale(largest, make_score_interval(0, 0, count))
    shown = (p_value, mean, interval, count, count - 1.0, cautious)
    return PairedTest("clustered t", pairs, *better, *shown)


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
        p_value, lead = coin_p(*better) if left else None, better[1] - better[0]
        return PairedTest("sign", len(left), *better, p_value, right_lead=lead)
    signs = (math.copysign(bool(change), change) for change in _list_differences(left, right))
    sums, _ = sum_groups(zip(signs, repeat(1.0, len(left)), strict=True), groups)
    lower, higher = sum(each < 0 for each in sums), sum(each > 0 for each in sums)
    lead = higher - lower if higher_is_better else lower - higher
    shown = (*better, coin_p(lower, higher))
    return PairedTest("clustered sign", len(left), *shown, groups=len(sums), right_lead=lead)


def make_score_interval(lost: float, won: float, pairs: float) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two shares of the same rows.

    It holds the differences that the score test doesn't refuse (Tango, Statistics in Medicine 17,
    1998), `lost` and `won` of the `pairs` being right on one side alone. Where none is, it is
    ±z²/(n + z²).
    """

    def is_refused(difference: float) -> bool:
        product = difference * (1 - difference)
        linear = (2 * pairs - won + lost) * difference - won - lost
        root = math.sqrt(max(0.0, linear**2 + 8 * pairs * lost * product))
        likeliest = (root - linear) / (4 * pairs)  # share of lost rows, under this difference
        variance = pairs * (2 * likeliest + product)
        return (won - lost - pairs * difference) ** 2 > NORMAL_QUANTILE**2 * variance

    ends: list[float] = []
    for furthest in (-1.0, 1.0):
        inner, outer = (won - lost) / pairs, furthest
        for _ in range(50):
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if is_refused(middle) else (middle, outer)
        ends.append(outer)
    return ends[0], ends[1]


def widen_end(
    value: float, end: float, confidence: float, freedom: float, *, is_positive: bool = False
) -> float:
    """Return the end of a 95 % interval of `value` at a higher confidence, by quantiles of t.

    The logarithm of a value that `is_positive` has the symmetric interval.
    """
    scale = two_sided_quantile(1 - confidence, freedom) / two_sided_quantile(
        1 - CONFIDENCE, freedom
    )
    if is_positive and end > 0:
        return value * (end / value) ** scale
    return value + scale * (end - value)


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


def can_judge(name: str, metric: MetricResult) -> bool:
    """Return False where 1 isn't right: the least verdict of a scale, or one that changed."""
    return name != "position_changed" and metric.row_range in ("unknown", None, (0.0, 1.0))


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


def _are_right_or_wrong(left: Sequence[float], right: Sequence[float], row_range: RowRange) -> bool:
    """Return whether a row is right (1) or wrong (0), and can be nothing beyond."""
    return row_range == (0.0, 1.0) and is_binary(left) and is_binary(right)


def _find_largest(row_range: RowRange, *scores: Sequence[float]) -> float:
    """Return the largest change that a row can make; an open range is from 0 to 1 at least."""
    least, largest = row_range
    least = min(0.0 if least is None else least, *map(min, scores))
    return (max(1.0 if largest is None else largest, *map(max, scores)) - least) or 1.0


def _scale(largest: float, ends: tuple[float, float]) -> tuple[float, float]:
    return largest * ends[0], largest * ends[1]


def _make_cautious_interval(
    mean: float, residuals: Sequence[float], spread: Spread, largest: float, size: float = 1.0
) -> tuple[float, float]:
    """Return the interval of the mean of rows, or of groups, with these residuals about it.

    Student's is too narrow where few changed, since the next may change by `largest`. Here, as in
    Wilson's interval, the variance that an end is judged by rises with the end: where the mean is
    tilted, by the third central moment over the second (Efron, Canadian Journal of Statistics 9,
    1981), of which only cubes towards the end count. Each sum has z²/4 changes more, as far as one
    may be from the mean, so that no change at all gives ±z²/(n + z²), nearly. `size` is that of
    such a group, in groups of the average size. Decisions 0027 and 0029 have the rates at which the
    lower end is beyond the truth.
    """
    count, square = len(residuals), NORMAL_QUANTILE**2
    assert spread.stderr is not None
    quantile = two_sided_quantile(1 - CONFIDENCE, spread.freedom + 2)
    ends: list[float] = []
    for sign in (-1.0, 1.0):
        furthest = size * (largest + max(0.0, -sign * mean))
        shares = [sign * residual / furthest for residual in residuals]
        cubes = math.fsum(max(0.0, share) ** 3 for share in shares) + square / 4
        rise = square / 2 * cubes / (sum_squares(shares) + square / 4)
        variance = (spread.stderr / furthest) ** 2 * count * (count - 1) + square / 4
        step = furthest * (rise + quantile * math.sqrt(variance)) / (count + square)
        ends.append(sign * max(sign * mean, min(largest, sign * mean + step)))
    return ends[0], ends[1]


def _find_typical_size(sizes: Sequence[float]) -> float:
    """Return the root mean square size of a row's group, in groups of the average size.

    Of z²/4 groups that rows are drawn for, so large a square is expected.
    """
    average = math.fsum(sizes) / len(sizes)
    return math.sqrt(math.fsum((size / average) ** 3 for size in sizes) / len(sizes))
