from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution import Generation
from evalution.rows import Row
from evalution.scoring.metrics import CohenKappa, Mean, Measure, make_prediction
from evalution.suites.grading_suite import GradedSample, GradingSuite
from evalution.suites.judge import RUBRIC, Judge, UnreadableVerdictError
from evalution_core import Capability, ConfigurationError, GenerationOutput
from evalution_enginekit.mock import Mock

TEXTS = {"prompt": "2 + 2?", "target": "4", "prediction": "four"}


def judge(**options: Any) -> Judge:
    return Judge(engine=Mock(), **options)


def ask(made: Judge, texts: Mapping[str, str] = TEXTS, **columns: Any) -> list[str]:
    requests: list[Any] = made.make_requests(Row(0, "row 0", columns), texts)
    assert all(message["role"] == "user" for r in requests for message in r.messages)
    return [request.messages[0]["content"] for request in requests]


@given(st.text(), st.text())
def test_texts_stand_in_the_rubric_as_they_are(prediction: str, column: str) -> None:
    made = judge(rubric="<{hint}|{prediction}>")
    texts = {**TEXTS, "prediction": prediction}
    assert ask(made, texts, hint=column, prediction="x") == [f"<{column}|{prediction}>"]


def test_an_answer_with_template_syntax_is_not_evaluated() -> None:
    prediction = "{target} {{ 7*7 }} {% raw %} %s"
    texts = {**TEXTS, "prediction": prediction}
    assert ask(judge(rubric="{prediction}"), texts) == [prediction]


def test_without_a_rubric_the_judge_is_asked_for_correct_or_incorrect() -> None:
    (text,) = ask(judge())
    assert text == RUBRIC.format(**TEXTS)
    assert judge().read_verdict("So it is.\nVERDICT: Correct") == ("Correct", 1.0)
    assert judge().read_verdict("VERDICT: CORRECT? No.\n**Verdict:** incorrect.")[1] == 0.0


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("**Verdict (1-5):** 4", 4.0),
        ("Verdict (1 to 5, whole): 4", 4.0),
        ("Verdict (4): it is good", 4.0),
        ("VERDICT: 2\n\nIn my verdict, 5 was out of reach", 2.0),
    ],
)
def test_a_verdict_stands_behind_its_choices_and_not_behind_a_comma(
    answer: str, worth: float
) -> None:
    assert judge(scale=[1, 5]).read_verdict(answer)[1] == worth


def test_a_baseline_is_compared_in_both_orders() -> None:
    made = judge(baseline="other", rubric="{first}|{second}")
    assert ask(made, other="vier") == ["four|vier", "vier|four"]
    assert made.read_verdict("VERDICT: tie") == ("tie", 0.5)


def test_a_scale_of_numbers_bounds_the_verdict() -> None:
    made = judge(scale=[1, 5], pattern=r"Score: (\d+)")
    assert made.read_verdict("Score: 1 ... Score: 4") == ("4", 4.0)
    with pytest.raises(UnreadableVerdictError, match=r"'9' isn't on the scale \(a number from 1"):
        made.read_verdict("Score: 9")
    with pytest.raises(UnreadableVerdictError, match="finds no verdict; the judge's answer ends"):
        made.read_verdict("I'd say four.")


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("VERDICT: -3", -3.0),
        ("**Verdict:** **-0.5**", -0.5),
        ("verdict .5", 0.5),
        ("VERDICT - 4", 4.0),
        ("Verdict: 3/5", 3.0),
        ("Verdict: 2.", 2.0),
    ],
)
def test_a_number_has_its_sign_and_its_decimals(answer: str, worth: float) -> None:
    assert judge(scale=[-5, 5]).read_verdict(answer)[1] == worth


def test_a_verdict_may_begin_with_a_digit_or_stand_behind_a_dash() -> None:
    made = judge(scale={"1st": 1, "2nd": 0})
    assert made.read_verdict("VERDICT: 2nd") == ("2nd", 0.0)
    assert judge().read_verdict("Verdict:-correct") == ("correct", 1.0)


@pytest.mark.parametrize("worth", [0.1, 0.3, 0.7, 0.9])
def test_opposite_verdicts_in_both_orders_stand_as_they_are(worth: float) -> None:
    made = judge(scale=[0, 1], baseline="other")
    suite = Generation(data=[{"q": "a", "other": "b"}], prompt="{q}", target="q")
    grading = GradingSuite(judge=made, suite=suite)
    sample = GradedSample(0, "a", "a", [], "a", None)
    answers = [GenerationOutput("", f"VERDICT: {each:.1f}") for each in (worth, 1 - worth)]
    measures = grading.score(sample, answers).measures
    assert measures == {"win_rate": Measure(worth), "position_changed": Measure(0.0)}


def test_a_scale_that_ends_at_zero_has_a_mean() -> None:
    groups = [0, 0, 1, 1]
    for values in ([0.0] * 4, [-1.0, 0.0, -2.0, 0.0]):
        found = Mean(largest=0.0).estimate([Measure(value) for value in values], groups)
        assert found.value == sum(values) / 4
    assert Mean(largest=-1.0).estimate([Measure(-1.0), Measure(0.0)]).value == -0.5


def test_intervals_lie_on_the_scale() -> None:
    grades = Mean(largest=5.0, least=1.0)
    for values in ([1.0, 1.0, 5.0], [1.0, 1.0, 1.0, 2.0], [1.0] * 3, [5.0] * 3):
        for groups in (None, [0, 0, 1, 1][: len(values)]):
            found = grades.estimate([Measure(value) for value in values], groups).interval
            assert found is not None
            assert 1.0 <= found[0] < found[1] <= 5.0
    middle = Mean(largest=1.0, least=-1.0).estimate([Measure(value) for value in (1.0, -1.0)])
    assert middle.interval is not None
    assert sum(middle.interval) == pytest.approx(0.0)


def test_a_label_is_a_verdict_of_the_scale_or_empty() -> None:
    made = judge(label="person")
    found = [made.read_label(Row(0, "row 0", {"person": text})) for text in ("correct", "", None)]
    assert found == [1.0, None, None]
    with pytest.raises(ConfigurationError, match="row 0: column 'person' holds 'maybe'"):
        made.read_label(Row(0, "row 0", {"person": "maybe"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rubric": "Good? {predicton}"}, r"show \{prediction\}.*did you mean 'predicton'"),
        ({"baseline": "other", "rubric": "{first}"}, r"doesn't show \{second\}"),
        ({"baseline": "a", "baseline_run": "b"}, "baseline is a column and baseline_run a run's"),
        ({"scale": [5, 1]}, r"scale is \[least, largest\].*got \[5, 1\]"),
        ({"scale": {"yes": 1}}, r"scale is \[least, largest\]"),
        ({"scale": {"Yes": 1, "YES": 0}}, "case makes no other verdict; got"),
        ({"scale": {"good": float("nan"), "bad": 0}}, "in numbers that aren't all the same"),
        ({"scale": [0, float("inf")]}, r"scale is \[least, largest\]"),
        ({"pattern": "("}, "no regular expression"),
        ({"max_new_tokens": 0}, "max_new_tokens.*at least 1"),
    ],
)
def test_a_judge_that_makes_no_sense_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        judge(**options)


def test_a_judge_needs_chat_unless_its_rubric_is_a_plain_prompt() -> None:
    assert judge().needs == {Capability.CHAT}
    assert judge(apply_chat_template=False).needs == {Capability.GENERATE}


def test_kappa_is_that_of_fleiss_cohen_and_everitt() -> None:
    # Fleiss, Levin and Paik, Statistical Methods for Rates and Proportions, 3rd ed., table 18.1.
    table = [[75, 1, 4], [5, 4, 1], [0, 0, 10]]
    measures = [
        make_prediction(one, other)
        for one, row in enumerate(table)
        for other, count in enumerate(row)
        for _ in range(count)
    ]
    found = CohenKappa().estimate(measures)
    assert found.value == pytest.approx(0.676, abs=5e-4)
    assert found.stderr == pytest.approx(0.088, abs=5e-4)


def test_the_error_of_kappa_is_that_of_leaving_out_each_row() -> None:
    counts = {(0, 0): 420, (0, 1): 160, (0, 2): 20, (1, 1): 210, (1, 2): 90, (2, 2): 100}
    pairs = [make_prediction(*pair) for pair, count in counts.items() for _ in range(count)]
    kappa, total = CohenKappa(), len(pairs)
    left_out: dict[tuple[int, int], Any] = {}
    for pair in counts:
        rest = pairs.copy()
        rest.remove(make_prediction(*pair))
        left_out[pair] = kappa.estimate(rest).value
    mean = sum(left_out[pair] * count for pair, count in counts.items()) / total
    squares = sum((left_out[pair] - mean) ** 2 * count for pair, count in counts.items())
    jackknife = math.sqrt(squares * (total - 1) / total)
    assert kappa.estimate(pairs).stderr == pytest.approx(jackknife, rel=2e-3)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [([(1.0, 1.0)] * 5, (0.0, None, None)), ([(1.0, 1.0), (0.0, 0.0)], (1.0, 0.0, None))],
)
def test_kappa_of_raters_that_always_agree_has_no_interval(pairs: Any, expected: Any) -> None:
    assert CohenKappa().estimate([make_prediction(*pair) for pair in pairs]) == expected
