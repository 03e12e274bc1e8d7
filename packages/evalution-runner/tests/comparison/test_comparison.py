from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import evalution
from evalution.comparison import compare
from evalution.comparison.comparison import pair_samples
from evalution.comparison.table import list_remarks, make_comparison_table, make_legend
from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult, to_json
from evalution.sample_columns import collect_columns
from evalution.samples import to_line
from evalution.scoring.metrics import Measure, WeightedPerplexity
from evalution_core import ConfigurationError
from evalution_enginekit.mock import Mock

ROWS = [{"question": f"{n} + 1?", "answer": "2", "text": f"{n} words"} for n in range(9)]


def sample(index: int, value: float | None = 1.0, **fields: Any) -> SampleResult:
    known: dict[str, Any] = {"prompt": f"prompt {index}", "target": f"target {index}", **fields}
    metrics = {} if value is None else {"acc": value}
    return SampleResult("s", index, metrics=metrics, **known)


def run(
    samples: Sequence[SampleResult],
    *,
    score: float | None = None,
    higher_is_better: bool = True,
    options: Mapping[str, Any] | None = None,
    name: str = "s",
    **fields: Any,
) -> RunResult:
    """A run of one suite whose only metric is the mean, unless `score` says otherwise."""
    values = [found.metrics["acc"] for found in samples if "acc" in found.metrics]
    mean = sum(values) / len(values) if values else None
    metric = MetricResult(mean if score is None else score, None, higher_is_better, len(values))
    suite = SuiteResult(
        name=name,
        type="T",
        options=dict(options or {}),
        metrics={"acc": metric},
        n=len(samples),
        failed=0,
        truncated=None,
        requests=len(samples),
        seconds=1.0,
        kept_samples=list(samples),
    )
    known: dict[str, Any] = {"model": {"path": "m"}, "engine": {"name": "E"}, **fields}
    return RunResult(scoring_policy={}, versions={}, status="done", suites=[suite], **known)


@pytest.mark.parametrize(
    ("left", "right", "remarks"),
    [
        (
            "float32",
            "bfloat16, cache in u8",
            [
                "left was computed in float32, right in bfloat16, cache in u8: that alone moves "
                "scores"
            ],
        ),
        (
            "float32",
            None,
            [
                "left was computed in float32, right in a precision that its session doesn't "
                "report: that alone moves scores"
            ],
        ),
        ("float32", "float32", []),
        (None, None, []),
    ],
)
def test_runs_of_different_precision_are_named(
    left: str | None, right: str | None, remarks: list[str]
) -> None:
    runs = [
        run([sample(0)], engine={"name": "E", "execution": {"dtype": dtype}})
        for dtype in (left, right)
    ]
    assert [found.precision for found in runs] == [left, right]
    assert list(list_remarks(compare(*runs))) == remarks


def test_right_or_wrong_rows_are_tested_by_mcnemar() -> None:
    left = run([sample(n, float(n < 8)) for n in range(10)])
    right = run([sample(n, float(n > 0)) for n in range(10)])
    found = compare(left, right)["s"]
    (metric,) = found.metrics
    assert metric.difference == pytest.approx(0.1)
    assert metric.winner == "right"
    assert metric.test is not None
    assert (metric.test.name, metric.test.pairs) == ("mcnemar", 10)
    assert (metric.test.left_better, metric.test.right_better) == (1, 2)
    assert found.flipped_by == "acc"
    assert [(flip.index, flip.winner) for flip in found.flips] == [
        (0, "left"),
        (8, "right"),
        (9, "right"),
    ]


def test_numbers_are_tested_by_student() -> None:
    left = run([sample(n, n / 7) for n in range(6)], higher_is_better=False)
    right = run([sample(n, n / 7 + n / 100) for n in range(6)], higher_is_better=False)
    found = compare(left, right)["s"]
    (metric,) = found.metrics
    assert metric.winner == "left"
    assert metric.test is not None
    assert metric.test.name == "paired t"
    assert metric.test.difference == pytest.approx(metric.difference)
    assert (found.flipped_by, found.flips) == (None, [])


def test_score_that_is_no_mean_is_tested_by_signs() -> None:
    texts = [Measure(-3.0 * n, n + 1.0) for n in range(1, 9)]
    better = [Measure(value * 0.9, weight) for value, weight in texts]
    metric = WeightedPerplexity()

    def of(measures: list[Measure]) -> RunResult:
        samples = [sample(n, metric.of_sample(measure)) for n, measure in enumerate(measures)]
        return run(samples, score=metric.estimate(measures).value, higher_is_better=False)

    (found,) = compare(of(texts), of(better))["s"].metrics
    assert found.winner == "right"
    assert found.test is not None
    assert (found.test.name, found.test.right_better) == ("sign", 8)
    assert found.test.interval is None
    assert found.test.p_value == pytest.approx(2 / 2**8)


def test_infinite_row_is_worse_than_others() -> None:
    """The row that one side finds impossible counts; an infinite score has no difference."""
    left = run([sample(n, 3.0) for n in range(30)], score=3.0, higher_is_better=False)
    values = [math.inf] * 20 + [2.9] * 10
    right = run(
        [sample(*each) for each in enumerate(values)], score=math.inf, higher_is_better=False
    )
    (found,) = compare(left, right)["s"].metrics
    assert found.winner == "left"
    assert found.test is not None
    assert (found.test.pairs, found.test.left_better, found.test.right_better) == (30, 20, 10)


def test_unpaired_rows_are_counted_by_reason() -> None:
    left = [
        sample(0),
        sample(1, error="died"),
        sample(2, error="died"),
        sample(3),
        sample(4),
        sample(5),
    ]
    right = [
        sample(0),
        sample(1),
        sample(2, error="died"),
        sample(3, target="another"),
        sample(4, prompt="another"),
        sample(9),
    ]
    found = pair_samples(collect_columns(left), collect_columns(right), same_prompts=True)
    assert found.to_dict() == {
        "paired": 1,
        "left_only": 1,
        "right_only": 1,
        "left_failed": 2,
        "right_failed": 1,
        "other_rows": 2,
        "other_prompts": 0,
    }
    assert (list(found.left), list(found.right)) == ([0], [0])


@pytest.mark.parametrize(
    ("left", "right", "other_rows"),
    [
        ("", "", 0),
        ("", "a", 1),
        (None, "", 0),
        ([{"role": "user", "content": "a"}], [{"content": "a", "role": "user"}], 0),
        ([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}], 1),
        ([{"content": "a"}], '[{"content": "a"}]', 1),
    ],
)
def test_rows_are_other_rows_by_their_prompts(left: Any, right: Any, other_rows: int) -> None:
    columns = [collect_columns([sample(0, prompt=prompt)]) for prompt in (left, right)]
    assert pair_samples(columns[0], columns[1], same_prompts=True).other_rows == other_rows


def test_value_that_is_not_finite_is_another_thing_than_none() -> None:
    samples = [sample(0, math.inf), sample(1, None), sample(2, math.nan), sample(3, 0.5)]
    samples.append(SampleResult("s", 4, metrics={"late": 1.0, "acc": 2.0}))
    found = collect_columns(samples).metrics
    assert [str(value) for value in found["acc"]] == ["inf", "nan", "inf", "0.5", "2.0"]
    assert [str(value) for value in found["late"]] == ["nan", "nan", "nan", "nan", "1.0"]


def test_texts_of_two_runs_are_never_in_memory(tmp_path: Path) -> None:
    rows, text = 1_500, "word " * 2_000

    def stored(name: str, wrong: int) -> RunResult:
        found = run([sample(row, float(row != wrong)) for row in range(rows)])
        file = tmp_path / name
        with file.open("wb") as lines:
            for kept in found["s"].samples:
                lines.write(to_line(replace(kept, prompt=f"{text}{kept.index}")))
        found["s"].kept_samples, found["s"].samples_file = None, file
        return found

    left, right = stored("left.jsonl", 3), stored("right.jsonl", 1_000)
    tracemalloc.start()
    try:
        found = compare(left, right)["s"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.rows.paired == rows
    assert [(flip.index, flip.target) for flip in found.flips] == [
        (3, "target 3"),
        (1_000, "target 1000"),
    ]
    assert peak < rows * len(text) / 2  # of two files of that size and more each


@pytest.mark.parametrize(
    ("options", "paired", "other_rows", "other_prompts"),
    [
        ({}, 0, 2, 0),
        ({"max_rows": 4, "order": "native", "batch_size": 2, "name": "s"}, 0, 2, 0),
        ({"cache_dir": "c"}, 0, 2, 0),
        ({"num_fewshot": 5}, 2, 0, 2),
        ({"cache_dir": "c", "num_fewshot": 5}, 2, 0, 2),
        ({"data": "b.jsonl"}, 0, 2, 0),
        ({"data": "b.jsonl", "num_fewshot": 5}, 0, 2, 0),
        ({"subsets": "physics"}, 0, 2, 0),
    ],
)
def test_other_prompts_are_other_rows_unless_an_option_explains_them(
    options: dict[str, Any], paired: int, other_rows: int, other_prompts: int
) -> None:
    left = run([sample(n) for n in range(2)])
    right = run([sample(n, prompt=f"shots {n}") for n in range(2)], options=options)
    found = compare(left, right)["s"]
    assert found.options == {n: [None, value] for n, value in options.items() if n != "name"}
    assert found.rows.paired == paired
    assert (found.rows.other_rows, found.rows.other_prompts) == (other_rows, other_prompts)


def test_rows_of_a_file_that_was_moved_are_the_same() -> None:
    sides = [run([sample(n) for n in range(2)], options={"data": name}) for name in ("a", "b")]
    assert compare(*sides)["s"].rows.paired == 2


def test_data_sets_that_differ_are_named_and_explain_no_prompt() -> None:
    left, right = run([sample(0)]), run([sample(0, prompt="another")])
    left.suites[0].provenance = {"dataset": "a", "split": "test"}
    right.suites[0].provenance = {"dataset": "b", "split": "test"}
    found = compare(left, right)["s"]
    assert found.options == {"dataset": ["a", "b"]}
    assert found.rows.other_rows == 1


def test_what_differs_deep_in_a_suite_is_shown_by_its_path() -> None:
    left, right = run([sample(0)]), run([sample(0)])
    left.suites[0].provenance = {"tasks": {"t": {"rows": 3, "config": {"text": "a"}}}}
    right.suites[0].provenance = {"tasks": {"t": {"rows": 3, "config": {"text": "b"}}}}
    assert list(list_remarks(compare(left, right))) == ["s: option tasks.t.config.text: 'a' → 'b'"]

    right.suites[0].provenance = {"tasks": {f"t{n}": n for n in range(9)}}
    shown = list(list_remarks(compare(left, right)))
    assert len(shown) == 9
    assert shown[-1] == "s: 2 more options differ; --json lists them"


def test_scores_of_different_rows_are_not_subtracted() -> None:
    left = run([sample(n, float(n % 2)) for n in range(4)])
    right = run([sample(n, float(n % 2 or n > 3)) for n in range(8)])
    (metric,) = compare(left, right)["s"].metrics
    assert (metric.left, metric.right) != (None, None)
    assert not metric.same_rows
    assert (metric.difference, metric.winner) == (0.0, "tie")

    (metric,) = compare(run([sample(0)], score=3.0), run([sample(1)], score=4.0))["s"].metrics
    assert (metric.difference, metric.winner, metric.test) == (None, None, None)


def test_failed_rows_count_in_the_scores_and_in_no_test() -> None:
    left = run([sample(n) for n in range(4)])
    right = run([*(sample(n) for n in range(3)), sample(3, 0.0, error="died")])
    (metric,) = compare(left, right)["s"].metrics
    assert metric.difference == pytest.approx(-0.25)
    assert metric.test is not None
    assert (metric.test.pairs, metric.test.left_better) == (3, 0)


def test_scores_that_leave_out_other_failed_rows_are_of_different_rows() -> None:
    """As perplexities do: the rows that both answered are equal here, and the scores are not."""
    values = [sample(n, float(n)) for n in range(4)]

    def fail(*numbers: int) -> RunResult:
        rows = [sample(n, None, error="died") if n in numbers else values[n] for n in range(4)]
        found = run(rows)
        found.suites[0].failed = len(numbers)
        return found

    for left, right in ((run(values), fail(3)), (fail(0), fail(3))):
        (metric,) = compare(left, right)["s"].metrics
        assert not metric.same_rows
        assert (metric.difference, metric.winner) == (0.0, "tie")
    (metric,) = compare(fail(3), fail(3))["s"].metrics
    assert metric.same_rows


def test_cut_prompts_are_named() -> None:
    left, right = run([sample(0)]), run([sample(0)])
    right.suites[0].truncated = 1
    assert [*list_remarks(compare(left, right))] == [
        "s: 1 row had prompts that the right run cut to fit"
    ]


def test_p_that_favours_the_worse_score_is_no_evidence_for_it() -> None:
    left = run([sample(n, float(n < 80)) for n in range(100)])
    right = run(
        [sample(n, 0.0, error="died") for n in range(20)]
        + [sample(n, float(n < 92)) for n in range(20, 100)]
    )
    found = compare(left, right)
    (metric,) = found["s"].metrics
    assert (metric.winner, metric.is_contradicted, metric.shown_interval) == ("left", True, None)
    assert metric.test is not None
    assert metric.test.p_value is not None
    assert metric.test.p_value < 0.05
    cells = [[*column.cells] for column in make_comparison_table(found, width=120).columns]
    assert [name for (name,) in cells[2:]] == [
        "0.8000", "0.7200", "-0.0800", "left", f"{metric.test.p_value:.4f}", "mcnemar"
    ]  # fmt: skip
    assert (
        "s: acc is better in the left run, and the rows that p is computed from favour the other: "
        "p is no evidence for this difference"
    ) in list_remarks(found)
    assert not compare(left, left)["s"].metrics[0].is_contradicted
    (metric,) = compare(left, run([sample(n, float(n < 60)) for n in range(100)]))["s"].metrics
    assert metric.test is not None
    assert (metric.is_contradicted, metric.shown_interval) == (False, metric.test.interval)


def test_run_without_samples_is_compared_by_its_scores() -> None:
    left, right = run([sample(0), sample(1, 0.0)]), run([sample(0), sample(1)])
    left.suites[0].kept_samples = None
    (metric,) = compare(left, right)["s"].metrics
    assert (metric.difference, metric.winner, metric.test) == (0.5, "right", None)


def test_suites_and_metrics_of_one_run_alone_are_named() -> None:
    left, right = run([sample(0)], name="a"), run([sample(0)], name="b")
    found = compare(left, right)
    assert found.suites == []
    assert (found.left_only, found.right_only) == (["a"], ["b"])
    with pytest.raises(KeyError, match="no suite 'a' is in both runs"):
        found["a"]

    left, right = run([sample(0)]), run([sample(0)])
    right.suites[0].metrics["f1"] = MetricResult(0.5, None, True, 1)
    metric = compare(left, right)["s"].metrics[1]
    assert (metric.name, metric.left, metric.difference, metric.winner) == ("f1", None, None, None)


def test_infinite_scores_have_a_winner() -> None:
    left = run([sample(0, None)], score=float("inf"), higher_is_better=False)
    right = run([sample(0, None)], score=2.0, higher_is_better=False)
    (metric,) = compare(left, right)["s"].metrics
    assert metric.winner == "right"
    (metric,) = compare(left, left)["s"].metrics
    assert (metric.difference, metric.winner) == (None, None)
    assert json.loads(to_json(compare(left, right).to_dict()))


def test_differences_beside_the_scores_are_named_by_field() -> None:
    left = run([sample(0)], engine={"name": "E", "options": {"dtype": "float32"}}, limit=3)
    right = run([sample(0)], engine={"name": "E", "options": {"dtype": "float64", "x": 1}})
    right.engine["capabilities"] = ["chat"]
    right.engine["self_check"] = {"outcome": "passed"}
    right.model = {"path": "n"}
    assert [(d.field, d.left, d.right) for d in compare(left, right).differences] == [
        ("model.path", "m", "n"),
        ("engine.options.dtype", "float32", "float64"),
        ("engine.options.x", None, 1),
        ("limit", 3, None),
    ]


def test_run_from_before_a_field_is_comparable() -> None:
    before, now = run([sample(0)]), run([sample(0)])
    now.model = {**before.model, "chat_template_kwargs": {}}
    assert compare(before, now).differences == compare(now, before).differences == []
    now.model = {**before.model, "chat_template_kwargs": {"enable_thinking": False}}
    (difference,) = compare(before, now).differences
    assert asdict(difference) == {
        "field": "model.chat_template_kwargs",
        "left": None,
        "right": {"enable_thinking": False},
    }


def test_row_without_an_error_wins_where_lower_is_better() -> None:
    left = run([sample(0, 1.0), sample(1, 0.0)], higher_is_better=False)
    right = run([sample(0, 0.0), sample(1, 0.0)], higher_is_better=False)
    found = compare(left, right)["s"]
    assert found.metrics[0].winner == "right"
    assert [(flip.index, flip.winner) for flip in found.flips] == [(0, "right")]


def test_flips_show_what_was_compared_with_the_target() -> None:
    left = run([sample(0, 0.0, prediction="so it is 5", extracted={"acc": "5"})])
    right = run([sample(0, 1.0, prediction="B", extracted={"acc": 1})])
    (flip,) = compare(left, right)["s"].flips
    assert asdict(flip) == {
        "index": 0,
        "target": "target 0",
        "left": "5",
        "right": "B",
        "winner": "right",
    }


outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40)


@pytest.mark.parametrize(("width", "columns"), [(50, 3), (71, 3), (72, 5), (109, 5), (110, 6)])
def test_narrow_terminal_still_shows_which_score_it_is(width: int, columns: int) -> None:
    left = run([sample(n, float(n < 5)) for n in range(9)], name="rows")
    found = compare(left, run([sample(n) for n in range(9)], name="rows"))
    terminal = Console(width=width)
    with terminal.capture() as capture:
        terminal.print(make_comparison_table(found, width=width))
    shown = capture.get()
    assert "…" not in shown
    for text in ("rows", "acc ↑", "0.5556", "1.0000", "+0.4444"):
        assert text in shown
    named = [name for name in ("left", "right", "difference", "better", "test") if name in shown]
    assert len(named) == (columns if columns < 5 else columns - 1)
    assert (" p " in shown) == (columns >= 5)
    explained = {part.partition(":")[0] for part in make_legend(width).split("; ")}
    expected = {3: set[str](), 5: {"better", "p"}, 6: {"better", "p", "[…]"}}[columns]
    assert explained == expected | {"difference"}


@settings(deadline=None)
@given(outcomes, st.booleans())
def test_sides_that_change_places_change_signs(
    rows: list[tuple[bool, bool]], higher_is_better: bool
) -> None:
    left = run([sample(n, float(a)) for n, (a, _) in enumerate(rows)])
    right = run([sample(n, float(b)) for n, (_, b) in enumerate(rows)])
    for side in (left, right):
        before = side.suites[0].metrics["acc"]
        changed = MetricResult(before.value, None, higher_is_better, before.n)
        side.suites[0].metrics["acc"] = changed
    (there,), (back,) = compare(left, right)["s"].metrics, compare(right, left)["s"].metrics
    assert there.difference is not None
    assert back.difference == -there.difference
    mirrored = {"left": "right", "right": "left", "tie": "tie"}
    assert back.winner == mirrored[str(there.winner)]
    assert there.test is not None
    assert back.test is not None
    assert back.test.p_value == there.test.p_value
    flips = compare(left, right)["s"].flips
    assert [flip.index for flip in flips] == [n for n, (a, b) in enumerate(rows) if a != b]


def test_real_runs_are_compared_from_their_folders(tmp_path: Path) -> None:
    def suites() -> list[Any]:
        return [
            evalution.Generation(
                data=ROWS, name="sums", prompt="question", target="answer", max_new_tokens=4
            ),
            evalution.Perplexity(data=ROWS, name="prose", text="text"),
        ]

    for name in ("one", "two"):
        evalution.run(engine=Mock(), model=name, tests=suites(), output=tmp_path / name)
    found = compare(tmp_path / "one", str(tmp_path / "two"))
    assert [difference.field for difference in found.differences] == [
        "model.path",
        "engine.identity.mock",
    ]
    perplexity = found["prose"].metrics[0]
    assert perplexity.test is not None
    assert (perplexity.test.name, perplexity.test.pairs) == ("sign", len(ROWS))
    assert perplexity.winner in ("left", "right")
    same = compare(tmp_path / "one", tmp_path / "one")
    assert not same.differences
    assert {metric.winner for suite in same.suites for metric in suite.metrics} == {"tie"}
    shown = json.loads(to_json(found.to_dict()))
    assert shown["schema_version"] == 1
    assert shown["suites"][1]["rows"]["paired"] == len(ROWS)
    with pytest.raises(ConfigurationError, match="there is no run folder"):
        compare(tmp_path / "one", tmp_path / "three")
