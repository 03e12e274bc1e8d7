from __future__ import annotations

import math
import random
import statistics
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring.intervals import Groups
from evalution.scoring.metrics import (
    F1,
    BitsPerWeight,
    Estimate,
    Mean,
    Measure,
    MeasureAccumulator,
    Metric,
    Score,
    WeightedPerplexity,
)

values = st.floats(-1e6, 1e6)
texts = st.tuples(st.floats(-1e4, 0), st.integers(1, 1000)).map(lambda pair: Measure(*pair))
LM_EVAL_ITEMS = [Measure(*pair) for pair in [(-12.5, 4), (-30.25, 11), (-7.0, 3), (-100.125, 29)]]


@given(st.lists(values, min_size=2))
def test_a_mean_and_its_standard_error(found: list[float]) -> None:
    estimate = Mean().estimate([Measure(value) for value in found])
    assert estimate.value == pytest.approx(statistics.fmean(found))
    expected = statistics.stdev(found) / math.sqrt(len(found))
    assert estimate.stderr == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_the_standard_error_is_that_of_lm_eval() -> None:
    estimate = Mean().estimate([Measure(x) for x in (1, 0, 1, 1, 0, 0, 1)])
    assert estimate.stderr == pytest.approx(0.20203050891044214, rel=1e-15)


def test_perplexities_are_those_of_lm_eval() -> None:
    value = WeightedPerplexity().estimate(LM_EVAL_ITEMS).value
    assert value == pytest.approx(24.260021439011513, rel=1e-15)
    bits = BitsPerWeight().estimate(LM_EVAL_ITEMS).value
    assert bits == pytest.approx(4.600508920281562, rel=1e-15)


@pytest.mark.parametrize("groups", [None, (0, 0, 1, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize(
    ("found", "mean"),
    [
        ([1e308] * 4, 1e308),
        ([1e308, 1e308, -1e308, -1e308], 0.0),
        ([math.inf, 1.0, 1.0, 1.0], math.inf),
        ([math.inf, -math.inf, 1.0, 1.0], None),
        ([1e308, 1e308, math.inf, -math.inf], None),
    ],
)
def test_scores_beyond_all_floats_have_a_mean_or_none(
    found: list[float], mean: float | None, groups: Groups
) -> None:
    rows = [Measure(value) for value in found]
    assert Mean().estimate(rows, groups).value == mean
    bits = BitsPerWeight().estimate(rows, groups).value
    assert (bits is None) == (mean is None)


@given(st.lists(st.floats(-30, 0), min_size=2, max_size=50))
def test_with_a_weight_of_one_it_is_the_perplexity_of_answers(logprobs: list[float]) -> None:
    found = WeightedPerplexity().estimate([Measure(logprob) for logprob in logprobs])
    mean = Mean().estimate([Measure(logprob) for logprob in logprobs])
    assert mean.value is not None
    assert mean.stderr is not None
    assert found.value == pytest.approx(math.exp(-mean.value))
    assert found.stderr == pytest.approx(math.exp(-mean.value) * mean.stderr, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("metric", [WeightedPerplexity(), BitsPerWeight()])
def test_the_error_of_a_perplexity_agrees_with_the_bootstrap(
    metric: WeightedPerplexity | BitsPerWeight,
) -> None:
    chance = random.Random(7)
    weights = [chance.randint(5, 60) for _ in range(400)]
    measures = [Measure(-weight * chance.uniform(1, 3), weight) for weight in weights]
    drawn = [metric.estimate(chance.choices(measures, k=len(measures))).value for _ in range(1000)]
    bootstrap = statistics.stdev(value for value in drawn if value is not None)
    assert metric.estimate(measures).stderr == pytest.approx(bootstrap, rel=0.1)


@given(st.lists(texts, min_size=2), st.randoms())
def test_the_order_of_samples_changes_no_digit(
    measures: list[Measure], chance: random.Random
) -> None:
    shuffled = chance.sample(measures, len(measures))
    for metric in (WeightedPerplexity(), BitsPerWeight(), Mean()):
        assert metric.estimate(measures) == metric.estimate(shuffled)


@given(texts)
def test_a_sample_alone_has_the_value_of_its_suite(measure: Measure) -> None:
    for metric in (WeightedPerplexity(), BitsPerWeight(), Mean()):
        alone = metric.estimate([measure])
        assert alone.value == pytest.approx(metric.of_sample(measure))
        assert alone.stderr is None


@pytest.mark.parametrize("metric", [Mean(), WeightedPerplexity(), BitsPerWeight()])
def test_nothing_has_no_score(metric: Mean | WeightedPerplexity | BitsPerWeight) -> None:
    assert metric.estimate([]) == Estimate(None, None)


def test_an_impossible_text_has_an_infinite_perplexity() -> None:
    assert WeightedPerplexity().estimate([Measure(-math.inf, 2), Measure(-1, 2)]).value == math.inf
    assert WeightedPerplexity().of_sample(Measure(-1e6, 1)) == math.inf


def test_perplexity_of_long_words_has_no_interval_beyond_all_numbers() -> None:
    """A Chinese text is one word: its perplexity is e to the power of hundreds."""
    found = WeightedPerplexity().estimate([Measure(-400.0, 1), Measure(-650.0, 1)])
    assert found.value == pytest.approx(math.exp(525))
    assert (found.stderr, found.interval) == (None, None)


def accumulator() -> MeasureAccumulator:
    return MeasureAccumulator({"acc": Mean(), "ppl": WeightedPerplexity()})


def score(right: float, logprob: float = -2.0) -> Score:
    return Score({"acc": Measure(right), "ppl": Measure(logprob, 2)})


def test_a_failed_sample_is_wrong_where_zero_means_wrong_and_left_out_elsewhere() -> None:
    found = accumulator()
    found.record(0, score(1.0))
    assert found.fail(1, {"acc": Measure(0.0)}) == {"acc": 0.0}
    results = found.results()
    assert (results["acc"].value, results["acc"].n) == (0.5, 2)
    assert (results["ppl"].value, results["ppl"].n) == (math.exp(1), 1)


@given(st.lists(st.tuples(st.booleans(), texts), min_size=1), st.randoms())
def test_the_order_of_answers_changes_no_digit(
    rows: list[tuple[bool, Measure]], chance: random.Random
) -> None:
    def scored(order: list[int]) -> object:
        found = accumulator()
        for index in order:
            right, text = rows[index]
            found.record(index, Score({"acc": Measure(float(right)), "ppl": text}))
        return found.results()

    order = list(range(len(rows)))
    assert scored(order) == scored(chance.sample(order, len(order)))


def test_a_metric_is_given_the_measures_of_the_rows_that_count() -> None:
    class Median(Mean):
        def estimate(self, measures: Sequence[Measure], groups: Groups = None) -> Estimate:
            assert list(measures[1:]) == [measures[1], measures[-1]] == list(measures)[1:]
            return Estimate(statistics.median(value for value, _ in measures), None)

    found = MeasureAccumulator({"median": Median(failed=None)})
    for row, value in enumerate((9.0, 5.0, 2.0)):
        found.record(row, Score({"median": Measure(value)}))
    found.fail(3, {})
    result = found.results()["median"]
    assert (result.value, result.n) == (5.0, 3)


def test_scores_are_made_without_an_object_for_each_row() -> None:
    rows = 20_000
    found = MeasureAccumulator({"acc": Mean()})
    for row in range(rows):
        found.record(row, Score({"acc": Measure(float(row % 2))}))
    tracemalloc.start()
    try:
        found.results()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * rows  # two numbers a row, and a list of flags while they are chosen


@pytest.mark.parametrize("metric", [Mean(), WeightedPerplexity(), BitsPerWeight()])
def test_running_value_is_the_score_of_the_samples_so_far(metric: Metric) -> None:
    found = MeasureAccumulator({"main": metric})
    assert found.running is None
    weights = [1.0, 1.0, 1.0] if isinstance(metric, Mean) else [1.0, 5.0, 2.0]
    for row, weight in enumerate(weights):
        found.record(row, Score({"main": Measure(-row - 1.0, weight)}))
    assert found.running == ("main", pytest.approx(found.results()["main"].value))


def test_score_that_no_sum_gives_is_not_shown_while_it_runs() -> None:
    found = MeasureAccumulator({"f1": F1()})
    found.record(0, Score({"f1": Measure(1, 1)}))
    assert found.running is None


@pytest.mark.parametrize(
    ("right", "count", "interval"),
    [
        (8, 8, (0.6756, 1.0)),
        (0, 8, (0.0, 0.3244)),
        (1, 1, (0.2065, 1.0)),
        (59, 60, (0.9114, 0.9971)),
    ],
)
def test_share_of_right_rows_has_wilsons_interval(
    right: int, count: int, interval: tuple[float, float]
) -> None:
    found = Mean().estimate([Measure(float(row < right)) for row in range(count)])
    assert found.interval == pytest.approx(interval, abs=5e-5)
    percent = Mean(largest=100.0).estimate([Measure(100.0 * (row < right)) for row in range(count)])
    assert percent.interval == pytest.approx([100 * end for end in interval], abs=5e-3)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=60))
def test_interval_of_a_share_contains_it_and_has_a_width(values: list[float]) -> None:
    found = Mean().estimate([Measure(value) for value in values])
    assert found.value is not None
    assert found.interval is not None
    low, high = found.interval
    assert 0.0 <= low <= found.value <= high <= 1.0
    assert high - low > 3.8 / (len(values) + 4)  # at the edges z²/(n + z²)


def test_other_intervals_keep_to_a_metrics_bounds_and_are_never_a_point() -> None:
    assert Mean().estimate([Measure(v) for v in (1.0, 0.9, 1.0)]).interval == pytest.approx(
        (0.9013, 1.0), abs=5e-5
    )
    assert Mean().estimate([Measure(v) for v in (-3.0, 5.0)]).interval == pytest.approx(
        (-6.84, 8.84), abs=5e-3
    )
    for alike in ([0.5] * 8, [0.4] * 3):  # the mean of the latter is a rounding error off
        assert Mean().estimate([*map(Measure, alike)]).interval is None
    found = WeightedPerplexity().estimate([Measure(-1.0), Measure(-3.0)])
    assert found.interval == pytest.approx((math.exp(0.04), math.exp(3.96)), rel=1e-3)


def test_huge_scores_have_no_standard_error() -> None:
    rows = [Measure(1e200), Measure(0.0), Measure(1.0)]
    for groups in (None, [0, 1, 2]):
        for metric in (Mean(), BitsPerWeight()):
            found = metric.estimate(rows, groups)
            assert found.value is not None
            assert (found.stderr, found.interval) == (None, None)


def test_only_a_mean_has_a_range_of_its_rows() -> None:
    metrics = {
        "acc": Mean(),
        "judge": Mean(failed=None, least=-5.0, largest=0.0),
        "seconds": Mean(largest=0.0),
        "f1": F1(),
        "ppl": WeightedPerplexity(),
    }
    found = MeasureAccumulator(metrics).results()
    assert {name: result.row_range for name, result in found.items()} == {
        "acc": (0.0, 1.0),
        "judge": (-5.0, 0.0),
        "seconds": (None, None),
        "f1": None,
        "ppl": None,
    }
