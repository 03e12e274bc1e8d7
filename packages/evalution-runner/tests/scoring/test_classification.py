from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring.metrics import (
    F1,
    Estimate,
    MatthewsCorrelation,
    Measure,
    make_prediction,
    make_wrong_prediction,
)

classes = st.integers(0, 3)
answers = st.lists(st.builds(make_prediction, classes, classes), min_size=1, max_size=60)


def indicators(labels: list[float]) -> list[list[float]]:
    return [[float(label == known) for label in labels] for known in range(4)]


def covariance(ones: list[list[float]], others: list[list[float]]) -> float:
    return sum(statistics.covariance(one, other) for one, other in zip(ones, others, strict=True))


@given(answers)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(measures: list[Measure]) -> None:
    found = [right for predicted, right in measures if predicted == 1]
    wanted = [predicted for predicted, right in measures if right == 1]
    hits = found.count(1)
    precision, recall = hits / max(len(found), 1), hits / max(len(wanted), 1)
    expected = 2 * precision * recall / (precision + recall) if hits else 0.0
    assert F1().estimate(measures).value == pytest.approx(expected)


@given(answers.filter(lambda measures: len(measures) > 1))
def test_the_correlation_is_that_of_indicator_vectors(measures: list[Measure]) -> None:
    predicted = indicators([measure.value for measure in measures])
    right = indicators([measure.weight for measure in measures])
    spread = covariance(predicted, predicted) * covariance(right, right)
    expected = covariance(predicted, right) / spread**0.5 if spread > 1e-12 else 0.0
    assert MatthewsCorrelation().estimate(measures).value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("labels", [2, 4])
@pytest.mark.parametrize("metric", [F1(), MatthewsCorrelation()])
def test_the_standard_error_agrees_with_the_bootstrap(
    metric: F1 | MatthewsCorrelation, labels: int
) -> None:
    chance = random.Random(11)
    measures: list[Measure] = []
    for _ in range(400):
        right = chance.choices(range(labels), weights=[1, 3, 2, 1][:labels])[0]
        measures.append(
            make_prediction(right if chance.random() < 0.5 else chance.randrange(2), right)
        )
    drawn = [metric.estimate(chance.choices(measures, k=len(measures))).value for _ in range(600)]
    bootstrap = statistics.stdev(value for value in drawn if value is not None)
    assert metric.estimate(measures).stderr == pytest.approx(bootstrap, rel=0.1)


@given(answers, st.randoms())
def test_the_order_of_samples_changes_no_digit(
    measures: list[Measure], chance: random.Random
) -> None:
    shuffled = chance.sample(measures, len(measures))
    for metric in (F1(), MatthewsCorrelation()):
        assert metric.estimate(measures) == metric.estimate(shuffled)


@given(answers)
def test_scores_stay_in_their_ranges(measures: list[Measure]) -> None:
    assert 0 <= (F1().estimate(measures).value or 0) <= 1
    assert -1 <= (MatthewsCorrelation().estimate(measures).value or 0) <= 1


@given(st.lists(st.builds(make_prediction, *[st.integers(0, 1)] * 2), min_size=1), st.data())
def test_of_two_classes_a_lost_answer_never_raises_a_score(
    measures: list[Measure], data: st.DataObject
) -> None:
    lost = data.draw(st.integers(0, len(measures) - 1))
    right = int(measures[lost].weight)
    others = measures[:lost] + measures[lost + 1 :]
    for metric in (F1(), MatthewsCorrelation()):
        before = metric.estimate([*others, make_prediction(right, right)]).value
        after = metric.estimate([*others, make_wrong_prediction(right, 2)]).value
        assert before is not None
        assert after is not None
        assert after <= before + 1e-12


@pytest.mark.parametrize("number", [2, 3, 4])
def test_no_answer_is_a_wrong_answer(number: int) -> None:
    for right in range(number):
        measure = make_wrong_prediction(right, number)
        assert measure.weight == right
        assert measure.value in set(range(number)) - {right}


def test_one_class_alone_has_no_correlation_and_no_error() -> None:
    assert MatthewsCorrelation().estimate([make_prediction(1, 1)] * 3) == Estimate(0.0, None)
    both = [make_prediction(1, 0), make_prediction(1, 1)]
    assert MatthewsCorrelation().estimate(both) == Estimate(0.0, None)
    assert F1().estimate([make_prediction(0, 0)] * 3) == Estimate(0.0, None)


@pytest.mark.parametrize("metric", [F1(), MatthewsCorrelation()])
def test_nothing_has_no_score(metric: F1 | MatthewsCorrelation) -> None:
    assert metric.estimate([]) == Estimate(None, None)


@pytest.mark.parametrize("metric", [F1(), MatthewsCorrelation()])
def test_a_sample_alone_is_right_or_wrong(metric: F1 | MatthewsCorrelation) -> None:
    assert metric.of_sample(make_prediction(0, 0)) == metric.of_sample(make_prediction(1, 1)) == 1.0
    assert metric.of_sample(make_prediction(0, 1)) == 0.0
