"""Documents of a report: labels, scores, differences and conditions, as the scripts read them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from evalution import MetricResult
from evalution.report.documents import make_documents
from evalution.runs.progress_file import PROGRESS, RunState
from evalution.samples import to_json, to_line
from evalution.scoring.metrics import F1, Mean, Measure, Ratio
from evalution.scoring.metrics import MatthewsCorrelation as MCC
from evalution.view.labels import find_differing_keys, flatten, label_runs


def documents(*runs: Any, samples: int = 100) -> Any:
    return make_documents(runs, samples)


def test_scores_of_a_run_have_its_metrics_the_main_one_first(
    make_run: Any, make_suite: Any
) -> None:
    metrics = {
        "acc": MetricResult(0.5, 0.1, True, 9, (0.2, 0.8)),
        "ppl": MetricResult(3.0, None, False, 8),
    }
    [run] = documents(make_run(make_suite("sums", metrics=metrics, failed=1)))["runs"]["runs"]
    acc, ppl = run["scores"]

    assert (run["id"], run["label"], run["status"]) == ("A", "my model on Mock", "finished")
    assert (acc["main"], acc["value"], acc["low"], acc["high"]) == (True, 0.5, 0.2, 0.8)
    assert (ppl["main"], ppl["higher_is_better"], ppl["low"]) == (False, False, None)
    assert (acc["count"], acc["failed"], acc["is_partial"]) == (9, 1, False)


THIRD = [1.0, 0.0, 0.0] * 3
SCORED = [
    *(("acc", Mean(), [1.0] * right + [0.0] * (8 - right), True) for right in (0, 3, 4, 8)),
    *(("acc", Mean(), values, False) for values in ([0.9, 0.8] * 4, [0.25, 0.75] * 4, [0.6] * 8)),
    ("err", Mean(higher_is_better=False), THIRD, False),
    ("score", Mean(largest=100.0), [100.0, 0.0] * 4, False),
    *((name, kind(), THIRD, False) for name, kind in (("inst", Ratio), ("mcc", MCC), ("f1", F1))),
]


@pytest.mark.parametrize(
    "case", [(*case, size) for case in SCORED for size in ((0, 2) if case[-1] else (0,))]
)
def test_share_of_right_rows_is_known_without_its_samples(
    case: Any, make_run: Any, make_suite: Any
) -> None:
    name, metric, values, is_share, size = case
    groups = [at // size for at in range(len(values))] if size else None
    found = metric.estimate([Measure(value) for value in values], groups)
    count = None if groups is None else len({*groups})
    rest = (metric.higher_is_better, len(values), found.interval, count)
    result = MetricResult(found.value, found.stderr, *rest)
    [run] = documents(make_run(make_suite("sums", metrics={name: result})))["runs"]["runs"]
    assert run["scores"][0]["is_share"] is is_share


@pytest.mark.parametrize("row_range", [None, (None, None), (0.0, 100.0)])
def test_score_of_groups_whose_rows_are_not_right_or_wrong_is_no_share(
    row_range: Any, make_run: Any, make_suite: Any
) -> None:
    result = MetricResult(0.5, 0.1, True, 8, (0.3, 0.7), 4, (0.0, 1.0))
    for found, is_share in ((result, True), (replace(result, row_range=row_range), False)):
        [run] = documents(make_run(make_suite("sums", metrics={"acc": found})))["runs"]["runs"]
        assert run["scores"][0]["is_share"] is is_share


@pytest.mark.parametrize(("values", "is_share"), [([0.9, 0.3, 0.4, 0.0], False), (THIRD, True)])
def test_graded_score_of_groups_is_no_share(
    values: list[float], is_share: bool, make_run: Any, make_suite: Any
) -> None:
    found = Mean().estimate([*map(Measure, values * 9)], [at // 3 for at in range(len(values) * 9)])
    result = MetricResult(*found[:2], True, len(values) * 9, found.interval, 12, (0.0, 1.0))
    [run] = documents(make_run(make_suite("sums", metrics={"acc": result})))["runs"]["runs"]
    assert run["scores"][0]["is_share"] is is_share


def test_damaged_score_of_no_rows_is_no_share(make_run: Any, make_suite: Any) -> None:
    result = MetricResult(0.5, None, True, 0, (0.0, 1.0))
    [run] = documents(make_run(make_suite("sums", metrics={"acc": result})))["runs"]["runs"]
    assert run["scores"][0]["is_share"] is False


def test_interrupted_run_shows_the_samples_that_it_has(
    make_run: Any, make_suite: Any, make_sample: Any, tmp_path: Any
) -> None:
    (tmp_path / "samples.jsonl").write_bytes(
        b"".join(to_line(make_sample(index, float(index > 0))) for index in range(4))
    )
    error = {"suite": "sums", "type": "KeyboardInterrupt", "message": ""}
    found = documents(make_run(status="interrupted", error=error, folder=tmp_path))
    [run] = found["runs"]["runs"]
    [score] = run["scores"]

    assert (run["status"], run["progress"]["done"]) == ("interrupted", 4)
    assert (score["value"], score["count"], score["is_partial"]) == (0.75, 4, True)
    assert score["is_share"] is True
    assert [row["index"] for row in found["samples"]["sums"]] == [0, 1, 2, 3]
    assert found["details"]["A"]["error"] == "interrupted in suite sums"
    (tmp_path / PROGRESS).write_text(to_json(asdict(RunState(suite="sums"))))
    [run] = documents(make_run(status="running", folder=tmp_path))["runs"]["runs"]
    assert run["status"] == "running"


def test_score_of_all_rows_at_once_is_not_known_before_its_end(
    make_run: Any, make_sample: Any, tmp_path: Any
) -> None:
    rows = [make_sample(row, metrics={"mcc": 1.0}) for row in range(4)]
    (tmp_path / "samples.jsonl").write_bytes(b"".join(map(to_line, rows)))
    found = documents(make_run(status="interrupted", folder=tmp_path))
    [score] = found["runs"]["runs"][0]["scores"]
    assert (score["metric"], score["value"], score["count"]) == ("mcc", None, 4)
    assert score["is_share"] is False


def test_baseline_of_many_runs_is_the_first_with_a_score(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    scored = [make_run(make_suite("sums", [make_sample(0)])) for _ in range(21)]
    assert [*documents(make_run(status="failed"), *scored)["comparisons"]] == ["B"]


@pytest.mark.parametrize(("values", "winner"), [([1.0] * 20, "run"), ([0.0] * 20, "tie")])
def test_difference_of_a_run_is_mirrored_for_the_other_baseline(
    values: list[float], winner: str, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    runs = [
        make_run(make_suite("sums", [make_sample(*each) for each in enumerate(column)]))
        for column in ([0.0] * 20, values)
    ]
    compared = documents(*runs)["comparisons"]
    [one], [other] = (compared[letter]["differences"] for letter in "AB")

    assert (one["run"], other["run"]) == ("B", "A")
    assert (one["winner"], one["difference"]) == (winner, values[0])
    assert other["difference"] == -one["difference"]
    assert (other["low"], other["high"]) == (-one["high"], -one["low"])
    assert (other["gained"], other["lost"]) == (one["lost"], one["gained"])
    assert other["winner"] == {"run": "baseline", "tie": "tie"}[winner]


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
    [found] = documents(*runs)["comparisons"]["A"]["differences"]

    assert (found["winner"], found["difference"]) == ("run", -1.0)


def test_what_limits_a_comparison_is_named(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    left = [make_sample(0), make_sample(1), make_sample(2)]
    right = [make_sample(0), make_sample(1, None, error="no"), make_sample(3)]
    runs = [
        make_run(make_suite("sums", samples, options={"num_fewshot": shots, "batch_size": shots}))
        for samples, shots in ((left, 0), (right, 5))
    ]
    found = documents(*runs)["comparisons"]["A"]["remarks"]["B"]

    assert "sums: option num_fewshot: 0 → 5" in found
    assert "sums: 1 row only in the baseline run" in found


def test_settings_that_differ_are_listed_without_credentials(make_run: Any) -> None:
    keyed = make_run()
    keyed.engine["options"] = {"dtype": "float64", "api_key": "planted"}
    found = documents(make_run(), keyed)["comparisons"]["A"]["conditions"]["B"]

    assert ["engine.options.dtype", "float32", "float64"] in found
    assert "planted" not in str(found)


def test_other_precision_than_the_first_run_s_is_noticed(make_run: Any, make_suite: Any) -> None:
    runs = [
        make_run(make_suite("sums"), engine={"name": "E", "execution": {"dtype": dtype}})
        for dtype in ("float32", "bfloat16")
    ]
    details = documents(*runs)["details"]

    assert details["A"]["notices"] == []
    assert details["B"]["notices"] == [
        "Computed in bfloat16, the first run in float32: the scores differ by rounding too."
    ]


def test_label_names_options_that_differ(make_run: Any) -> None:
    wide = make_run(limit=10)
    wide.engine["options"] = {"dtype": "float64", "api_key": "planted"}
    labels = label_runs([make_run(), wide])

    assert [label.letter for label in labels] == ["A", "B"]
    assert labels[0].legend == "A · dtype=float32"
    assert labels[1].legend == "B · dtype=float64, limit=10, api_key=***"
    assert label_runs([wide])[0].legend == "A · my model on Mock"
    other = make_run(model={"path": "n"})
    assert label_runs([make_run(), other])[1].legend == "B · n on Mock"


def test_every_run_has_a_letter_of_its_own(make_run: Any) -> None:
    letters = [label.letter for label in label_runs([make_run()] * 60)]

    assert len(set(letters)) == 60
    assert letters[25:28] == ["Z", "A2", "B2"]


def test_settings_become_dotted_names() -> None:
    nested = {"a": {"b": None, "c": [1, "x"]}, "d": {}, "e": True, "f": " x"}

    assert flatten(nested) == {"a.b": "–", "a.c": '[1, "x"]', "d": "–", "e": "true", "f": '" x"'}
    assert find_differing_keys([{"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 3}]) == ["b", "c"]
