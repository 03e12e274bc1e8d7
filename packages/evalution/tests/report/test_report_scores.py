"""Which score is marked as best, and what is said of differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution import MetricResult
from evalution.comparison.comparison import compare_samples
from evalution.report.differences import differences_to_first
from evalution.report.rendering import (
    find_differing_keys,
    flatten,
    format_chance,
    format_difference,
    format_duration,
    format_score,
    label_runs,
)
from evalution.report.scores import collect_suite_scores, find_best
from evalution.runs.reader import RunSamples

VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(math.inf))


def metrics(values: list[float | None], *, higher: bool) -> list[MetricResult]:
    return [MetricResult(value, None, higher, 1) for value in values]


@given(st.lists(VALUES, max_size=5), st.booleans())
def test_no_other_score_looks_better_than_the_best(
    values: list[float | None], higher: bool
) -> None:
    best = find_best(metrics(values, higher=higher))
    finite = [value for value in values if value is not None and math.isfinite(value)]

    if best is None:
        assert len({format_score(value) for value in finite}) < 2
    else:
        marked = [value for value in finite if format_score(value) == best]
        others = [value for value in finite if format_score(value) != best]
        assert marked
        assert others
        assert all((one > other) == higher for one in marked for other in others)


@pytest.mark.parametrize(
    ("values", "higher", "best"),
    [
        ([0.5, 0.7], True, "0.7000"),
        ([0.5, 0.7], False, "0.5000"),
        ([0.5, 0.5], True, None),
        ([0.5, 0.50000001], True, None),
        ([0.5], True, None),
        ([0.5, None], True, None),
        ([math.inf, 3.0], False, None),
    ],
)
def test_best_score_follows_direction_and_shown_digits(
    values: list[float | None], higher: bool, best: str | None
) -> None:
    assert find_best(metrics(values, higher=higher)) == best


def test_runs_that_disagree_on_what_is_better_have_no_best() -> None:
    found = [MetricResult(0.1, None, True, 1), MetricResult(0.9, None, False, 1)]

    assert find_best(found) is None


def test_other_numbers_of_rows_are_not_ranked(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    few = make_run(make_suite("sums", [make_sample(0)]))
    more = make_run(make_suite("sums", [make_sample(0, 0.0), make_sample(1, 0.0)]))
    [suite] = collect_suite_scores([few, more], ["A", "B"])

    assert suite.obstacles == ["the runs have 1 and 2 rows"]
    assert not any(score.is_best for score in suite.rows[0].scores if score)


@pytest.mark.parametrize(
    ("values", "reading"),
    [
        ([1.0] * 20, "better"),
        ([1.0] + [0.0] * 19, "could be chance"),
        ([0.0] * 20, "same value"),
    ],
)
def test_difference_is_called_better_chance_or_same(
    values: list[float], reading: str, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    first = make_run(make_suite("sums", [make_sample(index, 0.0) for index in range(20)]))
    second = make_run(make_suite("sums", [make_sample(*each) for each in enumerate(values)]))
    runs = [first, second]
    [suite] = differences_to_first([compare_samples(*map(RunSamples, runs))], label_runs(runs))

    assert [row.reading for row in suite.rows] == [reading]
    assert [row.is_clear for row in suite.rows] == [reading == "better"]


def test_lower_perplexity_is_better(make_run: Any, make_suite: Any, make_sample: Any) -> None:
    runs = [
        make_run(
            make_suite(
                "prose",
                [make_sample(index, None, metrics={"ppl": level}) for index in range(20)],
                higher=False,
            )
        )
        for level in (3.0, 2.0)
    ]
    [suite] = differences_to_first([compare_samples(*map(RunSamples, runs))], label_runs(runs))

    assert [row.reading for row in suite.rows] == ["better"]


def test_rows_that_could_not_be_compared_are_reported(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    left = [make_sample(0), make_sample(1), make_sample(2)]
    right = [make_sample(0), make_sample(1, None, error="no"), make_sample(3)]
    runs = [make_run(make_suite("sums", left)), make_run(make_suite("sums", right))]
    [suite] = differences_to_first([compare_samples(*map(RunSamples, runs))], label_runs(runs))

    assert [remark for _, remark in suite.remarks] == ["rows in one run only: 2; failed answers: 1"]


def test_runs_without_a_common_suite_have_no_differences(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    runs = [make_run(make_suite(name, [make_sample(0)])) for name in ("one", "other")]

    assert differences_to_first([compare_samples(*map(RunSamples, runs))], label_runs(runs)) == []


def test_label_names_options_that_differ(make_run: Any) -> None:
    wide = make_run(limit=10)
    wide.engine["options"] = {"dtype": "float64", "api_key": "planted"}
    labels = label_runs([make_run(), wide])

    assert [label.letter for label in labels] == ["A", "B"]
    assert labels[0].legend == "A · dtype=float32"
    assert labels[1].legend == "B · dtype=float64, limit=10, api_key=***"
    assert label_runs([wide])[0].legend == "A · my model on Mock"
    other = make_run(model={"path": "n"})
    assert label_runs([make_run(), other])[1].legend == "B · n on Mock, path=n"


def test_every_run_has_a_letter_of_its_own(make_run: Any) -> None:
    letters = [label.letter for label in label_runs([make_run()] * 60)]

    assert len(set(letters)) == 60
    assert letters[25:28] == ["Z", "A2", "B2"]


def test_settings_become_dotted_names() -> None:
    nested = {"a": {"b": None, "c": [1, "x"]}, "d": {}, "e": True, "f": " x"}

    assert flatten(nested) == {"a.b": "–", "a.c": '[1, "x"]', "d": "–", "e": "true", "f": '" x"'}
    assert find_differing_keys([{"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 3}]) == ["b", "c"]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_score(-0.25), "−0.2500"),
        (format_score(-math.inf), "−∞"),
        (format_difference(0.25), "+0.2500"),
        (format_difference(-3.2e-8), "−3e−08"),
        (format_difference(0.0), "0.0000"),
        (format_difference(None), "–"),
        (format_chance(0.04567), "0.0457"),
        (format_chance(1e-9), "< 0.0001"),
        (format_chance(None), "–"),
        (format_duration(1.26), "1.3 s"),
        (format_duration(119.9), "1 min 59 s"),
        (format_duration(7325.0), "2 h 2 min"),
        (format_duration(None), "–"),
    ],
)
def test_numbers_are_formatted(shown: str, text: str) -> None:
    assert shown == text
