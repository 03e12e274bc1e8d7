"""Which rows speak for a difference in scores that are no means of their rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from evalution.comparison import compare
from evalution.comparison.significance import coin_p
from evalution.results import RunResult, SampleResult, SuiteResult
from evalution.scoring.metrics import (
    F1,
    BitsPerWeight,
    MatthewsCorrelation,
    Measure,
    MeasureAccumulator,
    Metric,
    Ratio,
    Score,
    WeightedPerplexity,
    make_prediction,
)

ROWS = 60


def classified(seed: int) -> list[Measure]:
    chance = random.Random(seed)
    wrong = [chance.random() < 0.25 for _ in range(ROWS)]
    return [make_prediction((row + wrong[row]) % 2, row % 2) for row in range(ROWS)]


def scored(seed: int) -> list[Measure]:
    """Texts of one to seven words, with log-probabilities in proportion and some chance."""
    chance = random.Random(seed)
    return [Measure(-chance.uniform(1, 4) * (row % 7 + 1), row % 7 + 1) for row in range(ROWS)]


def run(
    metric: Metric, measures: Sequence[Measure], groups: Sequence[str] | None = None
) -> RunResult:
    """What the runner makes of such measures."""
    tally = MeasureAccumulator({"score": metric})
    samples = [
        SampleResult(
            "s", row, metrics=tally.record(row, Score({"score": measure}), group), group=group
        )
        for row, (measure, group) in enumerate(
            zip(measures, groups or [None] * len(measures), strict=True)
        )
    ]
    suite = SuiteResult(
        name="s",
        type="T",
        options={},
        metrics=tally.results(),
        n=ROWS,
        failed=0,
        truncated=None,
        requests=ROWS,
        seconds=1.0,
        kept_samples=samples,
    )
    return RunResult({}, {}, {}, {}, status="done", suites=[suite])


@pytest.mark.parametrize(
    ("metric", "make"),
    [
        (F1(), classified),
        (MatthewsCorrelation(), classified),
        (WeightedPerplexity(), scored),
        (BitsPerWeight(), scored),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_score_over_all_rows_is_tested_by_the_rows_that_are_better(
    metric: Metric, make: Callable[[int], list[Measure]], seed: int
) -> None:
    left, right = make(seed), make(seed + 100)
    alone = [[metric.of_sample(measure) for measure in side] for side in (left, right)]
    fallen = sum(before > after for before, after in zip(*alone, strict=True))
    risen = sum(before < after for before, after in zip(*alone, strict=True))
    better = (fallen, risen) if metric.higher_is_better else (risen, fallen)
    assert min(better) > 0
    (found,) = compare(run(metric, left), run(metric, right))["s"].metrics
    assert found.test is not None
    assert (found.test.name, found.test.pairs) == ("sign", ROWS)
    assert (found.test.left_better, found.test.right_better) == better
    assert found.test.p_value == pytest.approx(coin_p(*better))
    assert (found.test.difference, found.test.interval) == (None, None)
    before, after = metric.estimate(left).value, metric.estimate(right).value
    assert before is not None
    assert after is not None
    assert found.difference == pytest.approx(after - before)
    assert found.winner == ("right" if (after > before) == metric.higher_is_better else "left")


def test_one_row_that_got_far_worse_contradicts_the_many_that_got_better() -> None:
    left = [Measure(-20.0, 10.0)] * ROWS
    right = [Measure(-19.9, 10.0)] * (ROWS - 1) + [Measure(-2000.0, 10.0)]
    metric = WeightedPerplexity()
    (found,) = compare(run(metric, left), run(metric, right))["s"].metrics
    assert (found.winner, found.is_contradicted) == ("left", True)
    (found,) = compare(run(metric, left), run(metric, right[:-1] + left[:1]))["s"].metrics
    assert (found.winner, found.is_contradicted) == ("right", False)


@pytest.mark.parametrize(
    ("metric", "row"),
    [
        (F1(), make_prediction(1, 1)),
        (MatthewsCorrelation(), make_prediction(1, 1)),
        (WeightedPerplexity(), Measure(-2.0, 1.0)),
        (Ratio(), Measure(2.0, 2.0)),
    ],
)
def test_score_that_equals_the_mean_of_perfect_rows_is_no_mean(
    metric: Metric, row: Measure
) -> None:
    perfect = run(metric, [row] * (ROWS - 1) + [make_prediction(0, 0) if metric == F1() else row])
    (found,) = compare(perfect, perfect)["s"].metrics
    assert found.test is not None
    assert (found.test.name, found.test.difference) == ("sign", None)


def test_groups_that_p_counts_decide_whether_it_contradicts_the_score() -> None:
    metric, groups = WeightedPerplexity(), [*map(str, range(10)), *["big"] * 20]
    before = [Measure(-3.0, 1.0)] * 30

    def judge(small: float, big: float) -> tuple[str | None, bool, float | None]:
        after = [Measure(small if group != "big" else big, 1.0) for group in groups]
        left, right = (run(metric, side, groups) for side in (before, after))
        (found,) = compare(left, right)["s"].metrics
        assert found.test is not None
        return found.winner, found.is_contradicted, found.test.p_value

    p_value = pytest.approx(coin_p(1, 10))
    assert judge(-3.1, -1.0) == ("right", True, p_value)  # ten groups got worse, one far better
    assert judge(-1.0, -3.001) == ("right", False, p_value)


@pytest.mark.parametrize("metric", [F1(), MatthewsCorrelation()])
def test_classified_row_flips_where_one_side_alone_has_it_right(metric: Metric) -> None:
    left, right = classified(1), classified(2)
    found = compare(run(metric, left), run(metric, right))["s"]
    assert found.flipped_by == "score"
    assert [(flip.index, flip.winner) for flip in found.flips] == [
        (row, "left" if before.value == before.weight else "right")
        for row, (before, after) in enumerate(zip(left, right, strict=True))
        if before.value != after.value
    ]
