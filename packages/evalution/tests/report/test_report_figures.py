"""Figures as plain data; what the script makes of them is tested in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evalution import MetricResult
from evalution.comparison.comparison import compare_samples
from evalution.report.differences import differences_to_first, make_difference_figures
from evalution.report.figures import Figure, make_score_figures
from evalution.report.page import read_folders
from evalution.report.parity import make_parity_figures
from evalution.report.rendering import label_runs
from evalution.report.scores import collect_suite_scores
from evalution.runs.reader import RunSamples


def figures_of(*runs: Any) -> list[Figure]:
    labels = label_runs(runs)
    letters = [label.letter for label in labels]
    samples = [RunSamples(run) for run in runs]
    compared = [compare_samples(samples[0], other) for other in samples[1:]]
    return [
        *make_score_figures(collect_suite_scores(runs, letters), labels),
        *make_difference_figures(differences_to_first(compared, labels), labels),
    ]


def test_scores_of_one_scale_share_a_figure(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    both = [make_sample(index, metrics={"acc": 1.0, "acc_norm": 0.0}) for index in range(5)]
    prose = [make_sample(index, None, metrics={"ppl": 2.0 + index}) for index in range(5)]
    run = make_run(make_suite("sums", both), make_suite("prose", prose, higher=False))
    worse = [make_sample(index, metrics={"acc": 0.0, "acc_norm": 0.0}) for index in range(5)]
    longer = [make_sample(index, None, metrics={"ppl": 3.0 + index}) for index in range(5)]
    other = make_run(make_suite("sums", worse), make_suite("prose", longer, higher=False))
    figures = figures_of(run, other)

    assert [figure.name for figure in figures] == [
        "scores-shares", "scores-ppl", "differences-shares", "differences-ppl",
    ]  # fmt: skip
    assert figures[0].y.ticks == [(0, "sums · acc"), (1, "sums · acc_norm")]
    assert figures[1].y.ticks == [(0, "prose")]
    for figure in figures:
        assert figure.series[-1].run == 1


def test_points_of_several_runs_lie_beside_each_other(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    runs = [make_run(make_suite("sums", [make_sample(0)])) for _ in range(8)]
    [scores] = figures_of(*runs)
    heights = [series.marks[0].y for series in scores.series]

    assert heights == sorted(heights)
    assert len(set(heights)) == 8
    assert all(-0.5 < height < 0.5 for height in heights)


def test_error_bar_is_the_95_percent_interval(make_run: Any, make_suite: Any) -> None:
    suite = make_suite("sums", metrics={"acc": MetricResult(0.9, 0.1, True, 9, (0.57, 0.99))})
    [mark] = figures_of(make_run(suite))[0].series[0].marks

    assert (mark.low, mark.high) == (0.57, 0.99)


def test_interval_of_a_share_stays_between_0_and_1(make_run: Any, make_suite: Any) -> None:
    suite = make_suite("sums", metrics={"f1": MetricResult(0.98, 0.1, True, 9, (0.94, 1.016))})
    [figure] = figures_of(make_run(suite))

    assert figure.series[0].marks[0].high == 1.0
    assert figure.x.domain == (0.0, 1.0)


def test_metric_without_any_difference_has_no_figure(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    run = make_run(make_suite("sums", [make_sample(0)]))

    assert [figure.name for figure in figures_of(run, run)] == ["scores-shares"]


def test_values_that_can_t_be_drawn_are_left_out(make_run: Any, make_suite: Any) -> None:
    metrics = {
        "none": MetricResult(None, None, True, 0),
        "infinite": MetricResult(float("inf"), None, False, 1),
        "alone": MetricResult(0.5, None, True, 1),
    }
    [figure] = figures_of(make_run(make_suite("sums", metrics=metrics)))

    assert figure.y.ticks == [(0, "sums · alone")]
    assert figure.series[0].marks[0].low is None


def test_of_many_scores_the_first_of_each_suite_is_drawn(make_run: Any, make_suite: Any) -> None:
    metrics = {name: MetricResult(0.5, 0.1, True, 9) for name in ("acc", "acc_norm")}
    suites = [make_suite(f"suite {number}", metrics=metrics) for number in range(30)]
    [figure] = figures_of(make_run(*suites))

    assert len(figure.y.ticks or ()) == 30
    assert figure.note == "The first metric of each suite is shown, 30 of 60 scores."


def test_parity_is_drawn(parity_folder: Path) -> None:
    [check] = read_folders([parity_folder]).parity
    figures = make_parity_figures(check, "parity-0")

    assert [figure.name for figure in figures] == ["parity-0-distribution", "parity-0-tokens"]
    counted = sum(mark.y for series in figures[0].series for mark in series.marks)
    assert counted == sum(suite.tokens.count for suite in check.suites if suite.tokens)
