"""Standard errors and intervals of rows that belong together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring.intervals import estimate_spread, find_trials, sum_groups, wilson_interval
from evalution.scoring.metrics import (
    F1,
    BitsPerWeight,
    CohenKappa,
    Estimate,
    MatthewsCorrelation,
    Mean,
    Measure,
    MeasureAccumulator,
    Metric,
    Ratio,
    Score,
    WeightedPerplexity,
)


def draw_rows(metric: Metric, groups: int, size: int, seed: int = 0) -> list[list[Measure]]:
    """Rows of groups that have a level of their own, fit for the metric."""
    chance = Random(seed)
    found: list[list[Measure]] = []
    for _ in range(groups):
        level = chance.random()
        right = [float(chance.random() < level) for _ in range(size)]
        if isinstance(metric, WeightedPerplexity | BitsPerWeight):
            weights = [float(chance.randint(3, 30)) for _ in right]
            rows = [Measure(-w * (3 - r), w) for r, w in zip(right, weights, strict=True)]
        elif isinstance(metric, Ratio):
            rows = [Measure(3 * r, 3.0) for r in right]
        elif isinstance(metric, Mean):
            rows = [*map(Measure, right)]
        else:
            truth = [float(chance.randint(0, 1)) for _ in right]
            rows = [Measure(t if r else 1 - t, t) for r, t in zip(right, truth, strict=True)]
        found.append(rows)
    return found


def flatten(rows: Sequence[Sequence[Measure]]) -> list[Measure]:
    return [row for group in rows for row in group]


def estimate(metric: Metric, rows: Sequence[Sequence[Measure]]) -> Estimate:
    numbers = [number for number, group in enumerate(rows) for _ in group]
    return metric.estimate(flatten(rows), numbers)


def measure_width(found: Estimate) -> float:
    assert found.interval is not None
    return found.interval[1] - found.interval[0]


METRICS: list[Metric] = [
    Mean(),
    WeightedPerplexity(),
    BitsPerWeight(),
    Ratio(),
    F1(),
    MatthewsCorrelation(),
    CohenKappa(),
]
each_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: type(metric).__name__)


@each_metric
def test_score_is_the_same_with_groups_as_without(metric: Metric) -> None:
    rows = draw_rows(metric, 12, 5)
    assert estimate(metric, rows).value == metric.estimate(flatten(rows)).value


@each_metric
def test_rows_in_groups_of_their_own_have_the_error_of_single_rows(metric: Metric) -> None:
    rows = draw_rows(metric, 400, 1)
    single = metric.estimate(flatten(rows))
    # Means have the same formula. Ratios leave out a group's own weight, and kappa's divides by n.
    tolerance = 1e-12 if isinstance(metric, Mean | Ratio | MatthewsCorrelation) else 0.01
    assert estimate(metric, rows).stderr == pytest.approx(single.stderr, rel=tolerance)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_mean_of_groups_of_one_row_has_the_standard_error_of_lm_eval(values: list[float]) -> None:
    rows = [*map(Measure, values)]
    single, grouped = Mean().estimate(rows), Mean().estimate(rows, range(len(rows)))
    assert grouped.value == single.value
    assert grouped.stderr == pytest.approx(single.stderr, rel=1e-9, abs=1e-9)


@each_metric
def test_duplicated_rows_tell_groups_nothing_and_single_rows_too_much(metric: Metric) -> None:
    rows = draw_rows(metric, 40, 4)
    twice = [group * 4 for group in rows]
    once, again = estimate(metric, rows), estimate(metric, twice)
    assert again.stderr == pytest.approx(once.stderr, rel=1e-9)
    assert measure_width(again) == pytest.approx(measure_width(once), rel=1e-6)
    single = measure_width(metric.estimate(flatten(twice)))
    assert single < 0.55 * measure_width(metric.estimate(flatten(rows)))


@each_metric
def test_order_of_rows_and_names_of_groups_change_no_digit(metric: Metric) -> None:
    rows = [(row, n) for n, group in enumerate(draw_rows(metric, 15, 3)) for row in group]
    expected = metric.estimate(*zip(*rows, strict=True))
    Random(1).shuffle(rows)
    assert metric.estimate([row for row, _ in rows], [99 - n for _, n in rows]) == expected


@each_metric
def test_one_group_alone_has_neither_error_nor_interval(metric: Metric) -> None:
    found = estimate(metric, draw_rows(metric, 1, 20))
    assert found.value is not None
    assert (found.stderr, found.interval) == (None, None)


@each_metric
def test_no_rows_have_no_score(metric: Metric) -> None:
    assert metric.estimate([], []).value is None


def test_one_group_that_carries_the_whole_weight_leaves_no_error() -> None:
    assert Ratio().estimate([Measure(1.0, 2.0), Measure(0.0, 0.0)], [0, 1]) == (0.5, None, None)


def test_share_that_no_group_lacks_has_wilsons_interval_of_the_groups() -> None:
    found = estimate(Mean(), [[Measure(1.0)] * 10] * 8)
    assert found.stderr == 0.0
    assert found.interval == wilson_interval(1.0, 8, estimate_spread([1] * 8, [1] * 8, 1).quantile)


def test_share_has_wilsons_interval_of_as_many_rows_as_have_its_error() -> None:
    rows = draw_rows(Mean(), 30, 6)
    found = estimate(Mean(), rows)
    assert found.value is not None
    assert found.stderr is not None
    sums = sum_groups(
        [row for group in rows for row in group], [n for n in range(30) for _ in range(6)]
    )
    trials = find_trials(found.value, found.stderr, 0.0)
    quantile = estimate_spread(*sums, found.value).quantile
    assert found.interval == wilson_interval(found.value, trials, quantile)
    assert 30 <= trials <= 180


def test_few_groups_and_groups_of_unequal_weight_leave_few_degrees_of_freedom() -> None:
    alike = [-1.0, 1.0] * 10
    assert estimate_spread(alike, [5.0] * 20, 0.0).freedom == 19
    assert estimate_spread([*alike, 0.0], [5.0] * 20 + [400.0], 0.0).freedom < 2
    assert estimate_spread([0.0] * 19 + [1.0], [5.0] * 20, 0.01).freedom < 2


def test_spread_by_hand() -> None:
    # Groups of 1, 2 and 3 rows with 1, 1 and 0 right: p = 1/3, each residual by what is left.
    changes = [(1 - 1 / 3) / 5, (1 - 2 / 3) / 4, (0 - 1) / 3]
    middle = sum(changes) / 3
    expected = math.sqrt(2 / 3 * sum((change - middle) ** 2 for change in changes))
    assert estimate_spread([1, 1, 0], [1, 2, 3], 1 / 3).stderr == pytest.approx(expected)


def test_result_counts_groups_and_other_results_have_no_such_field() -> None:
    grouped, single = (MeasureAccumulator({"acc": Mean()}) for _ in range(2))
    for row in range(6):
        grouped.record(row, Score({"acc": Measure(float(row % 2))}), f"text {row // 2}")
        single.record(row, Score({"acc": Measure(float(row % 2))}))
    grouped.fail(6, {"acc": Measure(0.0)}, "text 2")
    found = grouped.results()["acc"]
    assert (found.groups, found.n, found.to_dict()["groups"]) == (3, 7, 3)
    assert "groups" not in single.results()["acc"].to_dict()


def test_metric_of_a_part_counts_the_groups_of_that_part() -> None:
    found = MeasureAccumulator({"acc": Mean(), "acc,b": Mean()})
    for row, part in enumerate("aabb"):
        own = Measure(1.0) if part == "b" else None
        found.record(row, Score({"acc": Measure(1.0), "acc,b": own}), str(row))
    assert [metric.groups for metric in found.results().values()] == [4, 2]


def test_suite_whose_samples_have_groups_in_part_is_refused() -> None:
    found = MeasureAccumulator({"acc": Mean()})
    found.record(0, Score({"acc": Measure(1.0)}), "text")
    found.record(1, Score({"acc": Measure(1.0)}))
    with pytest.raises(ValueError, match="every sample of a suite has a group, or none has"):
        found.results()
