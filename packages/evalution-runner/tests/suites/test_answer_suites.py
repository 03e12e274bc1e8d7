"""GPQA's shuffle, several right answers, categories of one file, DROP's answers, BBH's prompts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from evalution.scoring.metrics import Measure
from evalution.suites import load_suite
from evalution.suites.tasks.bbh import TASKS, read_prompts
from evalution.suites.tasks.drop import compare_spans, normalize
from evalution_core import ConfigurationError, GenerationOutput, LoglikelihoodOutput

ROWS = Path(__file__).parents[1] / "data" / "rows"


def named(name: str, **options: Any) -> Any:
    kind: Any = load_suite(name)
    return kind(**options)


def test_choices_of_gpqa_have_one_order_wherever_the_row_runs() -> None:
    suite = named("gpqa_diamond_zeroshot", data=ROWS / "gpqa")
    all_rows = {sample.index: sample.prompt for sample in suite.samples()}
    chosen = named("gpqa_main_zeroshot", data=ROWS / "gpqa", row_indices=[17, 3])
    assert {sample.index: sample.prompt for sample in chosen.samples()} == {
        index: all_rows[index] for index in (17, 3)
    }
    assert {sample.gold for sample in suite.samples()} == {0, 1, 2, 3}


def test_right_answers_share_their_probability() -> None:
    suite = named("truthfulqa_mc2", data=ROWS / "truthfulqa", row_indices=[1])
    (sample,) = suite.samples()
    assert list(sample.right) == [0, 1]
    answers = [LoglikelihoodOutput(-1000.0 + n, False, 1) for n in range(6)]
    whole = sum(math.exp(n) for n in range(6))
    score = suite.score(sample, answers)
    assert score.measures["acc"].value == pytest.approx((1 + math.e) / whole)
    assert (score.extracted["acc"], score.extracted["right"]) == (5, [0, 1])
    assert suite.failure(sample) == {"acc": Measure(0.0)}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"choices": ["a", "b"], "labels": [0, 0]}, "'mc1_targets' must hold a label for each"),
        (
            {"choices": ["a", "b"], "labels": [1]},
            "must hold a label for each choice, 1 for a right",
        ),
        (["a"], "column 'mc1_targets' must hold lists 'choices' and 'labels', got ['a']"),
    ],
)
def test_targets_without_a_right_answer_are_named(targets: Any, message: str) -> None:
    suite = named("truthfulqa_mc1", data=[{"question": "?", "mc1_targets": targets}])
    with pytest.raises(ConfigurationError, match="row 0 of data") as caught:
        suite.check_samples()
    assert message in str(caught.value)


def test_row_of_mmlu_pro_in_no_category_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"category": "Math", "question": "1 + 1?"}))
    with pytest.raises(
        ConfigurationError, match=r"line 1: the category 'Math' is none of: .*'math'"
    ):
        named("mmlu_pro", data=data, num_fewshot=0).check_samples()


def test_categories_of_mmlu_pro_are_parts_of_one_file() -> None:
    suite = named("mmlu_pro", data=ROWS / "mmlu_pro", subsets=["law", "computer_science"])
    samples = list(suite.samples())
    assert [sample.index for sample in samples] == list(range(44))
    assert [sample.subset for sample in samples[::22]] == ["computer_science", "law"]
    score = suite.score(samples[0], [GenerationOutput("", "the answer is (Z)")])
    found = {name for name, measure in score.measures.items() if measure is not None}
    name = "exact_match,custom-extract"
    assert found == {name, f"{name},computer_science"}
    assert set(suite.make_metrics()) == {*found, f"{name},law"}


def test_a_category_that_no_row_has_is_named() -> None:
    suite = named("mmlu_pro", data=ROWS / "mmlu_pro", subsets="physics", num_fewshot=0)
    with pytest.raises(ConfigurationError, match="category 'physics' holds no rows"):
        suite.check_samples()
    with pytest.raises(ConfigurationError, match="must be among all, biology, business"):
        named("mmlu_pro", subsets="phisics")


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        ("The 1,000 yards", ("1000.0 yards",), (1.0, 1.0)),
        ("7 yards", ("8 yards",), (0.0, 0.0)),
        ("yards", ("long yards",), (0.0, 0.67)),
        ("Mira and Wei", ("Mira", "Wei"), (0.0, 0.25)),
        ("", ("Mira",), (0.0, 0.0)),
        ("the", ("a",), (1.0, 1.0)),
    ],
)
def test_answers_of_drop_are_compared_as_bags(
    answer: str, right: tuple[str, ...], expected: tuple[float, float]
) -> None:
    assert compare_spans(answer, right) == expected


def test_a_judge_of_drop_reads_what_was_answered() -> None:
    row = {"passage": "p", "question": "?", "answer": {"number": "6", "date": {}, "spans": []}}
    columns: dict[str, list[Any]] = {"number": [], "date": [], "spans": []}
    suite = named("drop", data=[{**row, "validated_answers": columns}], num_fewshot=0)
    (sample,) = suite.samples()
    score = suite.score(sample, [GenerationOutput("", "Six: 6.")])
    assert (score.prediction, score.extracted) == ("Six: 6.", {"normalized": "six 6.0"})


def test_a_text_of_drop_is_normalized() -> None:
    assert (
        normalize("The well-known  U.S. cost: 3.5 a lot, not $4.5")
        == "well known us cost 3.5 lot not 45.0"
    )


def test_an_answer_of_drop_that_lacks_something_is_named() -> None:
    row = {"passage": "p", "question": "?", "answer": {"number": ""}}
    columns = {"number": [], "date": [], "spans": []}
    suite = named("drop", data=[{**row, "validated_answers": columns}])
    with pytest.raises(ConfigurationError, match="must hold number, date and spans, got"):
        suite.check_samples()


def test_all_tasks_of_bbh_have_three_examples_with_answers() -> None:
    prompts = read_prompts()
    assert set(prompts) == set(TASKS.groups[""])
    for task in prompts.values():
        assert task["description"].endswith(".")
        assert [one["reasoning"].count("answer is ") >= 1 for one in task["examples"]] == [True] * 3


def test_examples_of_bbh_have_their_reasoning_or_the_answer_alone() -> None:
    options = {"data": ROWS / "bbh", "subsets": "web_of_lies", "max_rows": 1}
    (stepwise,) = named("bbh", **options).samples()
    assert "A: Let's think step by step.\n(1) Fidel tells the truth." in stepwise.prompt
    (plain,) = named("bbh_fewshot", **options).samples()
    assert plain.prompt.count("\nA: Yes\n\n") == 2
    assert plain.prompt.endswith("\nA:")
