"""GLUE, and the scores that only a whole set of classified rows has."""

from __future__ import annotations

from typing import Any

import pytest

from evalution.scoring.metrics import Measure, make_prediction
from evalution.suites import load_suite
from evalution_core import ConfigurationError, LoglikelihoodOutput

PAIR = {"sentence1": "It rains.", "sentence2": "It is wet.", "label": 1, "idx": 0}
SENTENCE = {"sentence": "It rains .", "label": 1, "idx": 0}


def named(name: str, *rows: dict[str, Any], **options: Any) -> Any:
    kind: Any = load_suite(name)
    return kind(data=list(rows), **options)


def answers(*logprobs: float) -> list[LoglikelihoodOutput]:
    return [LoglikelihoodOutput(logprob, False, 1) for logprob in logprobs]


@pytest.mark.parametrize(
    ("name", "row", "context", "choices"),
    [
        (
            "sst2",
            SENTENCE,
            "It rains .\nQuestion: Is this sentence positive or negative?\nAnswer:",
            ["negative", "positive"],
        ),
        (
            "cola",
            SENTENCE,
            "It rains .\nQuestion: Does this sentence make sense?\nAnswer:",
            ["no", "yes"],
        ),
        (
            "mrpc",
            PAIR,
            "Sentence 1: It rains.\nSentence 2: It is wet.\n"
            "Question: Do both sentences mean the same thing?\nAnswer:",
            ["no", "yes"],
        ),
        (
            "qqp",
            {"question1": "Why?", "question2": "How?", "label": 0},
            "Question 1: Why?\nQuestion 2: How?\n"
            "Question: Do both questions ask the same thing?\nAnswer:",
            ["no", "yes"],
        ),
        (
            "qnli",
            {"question": "Why?", "sentence": "It rains.", "label": 0},
            "Why?\nIt rains.\nQuestion: Does this response answer the question?\nAnswer:",
            ["yes", "no"],
        ),
        (
            "rte",
            PAIR,
            "It rains.\nQuestion: It is wet. True or False?\nAnswer:",
            ["True", "False"],
        ),
        (
            "wnli",
            PAIR,
            "It rains.\nQuestion: It is wet. True or False?\nAnswer:",
            ["False", "True"],
        ),
        (
            "mnli",
            {"premise": "It rains.", "hypothesis": " It is wet ", "label": 2},
            "It rains.\nQuestion: It is wet. True, False or Neither?\nAnswer:",
            ["True", "Neither", "False"],
        ),
    ],
)
def test_what_is_asked(name: str, row: dict[str, Any], context: str, choices: list[str]) -> None:
    # tests/lm_eval compares many more rows with lm-evaluation-harness itself.
    sample = next(named(name, row).samples())
    asked = [(request.context, request.continuation) for request in sample.requests]
    assert asked == [(context, f" {choice}") for choice in choices]
    assert sample.target == choices[row["label"]]


def test_a_hypothesis_gets_one_full_stop() -> None:
    row = {"premise": "p", "hypothesis": "It is wet.\n", "label": 0}
    assert "Question: It is wet. True," in next(named("mnli", row).samples()).prompt


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("cola", ["mcc"]),
        ("mrpc", ["acc", "f1"]),
        ("qqp", ["acc", "f1"]),
        *((name, ["acc"]) for name in ("sst2", "qnli", "rte", "wnli", "mnli")),
    ],
)
def test_each_reports_its_own_metrics(name: str, metrics: list[str]) -> None:
    assert list(named(name, PAIR).make_metrics()) == metrics


def test_the_choice_that_is_judged_by_acc_is_the_predicted_class() -> None:
    suite = named("mrpc", PAIR)
    sample = next(suite.samples())
    score = suite.score(sample, answers(-1.0, -2.0))
    assert score.measures == {"acc": Measure(0.0), "f1": make_prediction(0, 1)}
    assert suite.score(sample, answers(-2.0, -2.0)).measures["f1"] == make_prediction(0, 1)
    assert [score.extracted[name] for name in suite.metric_names] == [0, 0]
    only_over_all = named("cola", SENTENCE)
    sample = next(only_over_all.samples())
    assert only_over_all.score(sample, answers(-2.0, -1.0)).extracted["mcc"] == 1


@pytest.mark.parametrize("label", [0, 1])
def test_a_failed_row_is_classified_wrongly(label: int) -> None:
    rows = [{**PAIR, "label": gold} for gold in (0, 1, 1, label)]
    suite = named("mrpc", *rows)
    right, wrong = answers(-1.0, -2.0), answers(-2.0, -1.0)
    failed, answered_wrongly = suite.make_accumulator(), suite.make_accumulator()
    for sample in suite.samples():
        if sample.index < 3:
            given = wrong if sample.gold else right
            for tally in (failed, answered_wrongly):
                tally.record(sample.index, suite.score(sample, given))
        else:
            given = right if sample.gold else wrong
            failed.fail(sample.index, suite.failure(sample))
            answered_wrongly.record(sample.index, suite.score(sample, given))
    assert failed.results() == answered_wrongly.results()
    assert failed.results()["f1"].n == 4


def test_a_failed_row_counts_in_the_correlation_too() -> None:
    suite = named("cola", SENTENCE)
    sample = next(suite.samples())
    assert suite.failure(sample) == {"mcc": make_prediction(0, 1)}


@pytest.mark.parametrize("label", [-1, 2, None, "yes"])
def test_a_row_without_a_label_is_named(label: object) -> None:
    with pytest.raises(ConfigurationError, match="row 0 of data: column 'label' holds"):
        named("sst2", {**SENTENCE, "label": label}).check_samples()
