"""Figures: Plotly itself judges that they are figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalution import MetricResult
from evalution.comparison.comparison import compare_samples
from evalution.report.differences import differences_to_first, make_difference_figures
from evalution.report.figures import Figure, make_score_figures, shorten
from evalution.report.page import read_folders
from evalution.report.parity import make_parity_figures
from evalution.report.rendering import label_runs
from evalution.report.scores import collect_suite_scores
from evalution.runs.reader import RunSamples

plotly = pytest.importorskip("plotly.graph_objects", reason="needs plotly, of evalution[report]")


def figures_of(*runs: Any) -> list[Figure]:
    labels = label_runs(runs)
    letters = [label.letter for label in labels]
    samples = [RunSamples(run) for run in runs]
    compared = [compare_samples(samples[0], other) for other in samples[1:]]
    return [
        *make_score_figures(collect_suite_scores(runs, letters), labels),
        *make_difference_figures(differences_to_first(compared, labels), labels),
    ]


def assert_drawable(figure: Figure) -> None:
    plotly.Figure(figure.spec)  # raises for a name or a value that Plotly doesn't know


def test_scores_of_one_scale_share_a_figure(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    both = [make_sample(index, metrics={"acc": 1.0, "acc_norm": 0.0}) for index in range(5)]
    prose = [make_sample(index, None, metrics={"ppl": 2.0 + index}) for index in range(5)]
    run = make_run(make_suite("sums", both), make_suite("prose", prose, higher=False))
    figures = figures_of(run, run)

    assert [figure.name for figure in figures] == [
        "scores-shares", "scores-ppl", "differences-shares", "differences-ppl",
    ]  # fmt: skip
    assert figures[0].spec["layout"]["yaxis"]["ticktext"] == ["sums · acc", "sums · acc_norm"]
    assert figures[1].spec["layout"]["yaxis"]["ticktext"] == ["prose"]
    for figure in figures:
        assert_drawable(figure)
        assert [trace["meta"]["run"] for trace in figure.spec["data"]][-1] == 1


def test_points_of_several_runs_lie_beside_each_other(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    runs = [make_run(make_suite("sums", [make_sample(0)])) for _ in range(8)]
    [scores, _] = figures_of(*runs)
    heights = [trace["y"][0] for trace in scores.spec["data"]]

    assert heights == sorted(heights)
    assert len(set(heights)) == 8
    assert all(-0.5 < height < 0.5 for height in heights)


def test_error_bar_is_the_95_percent_interval(make_run: Any, make_suite: Any) -> None:
    suite = make_suite("sums", metrics={"acc": MetricResult(0.9, 0.1, True, 9, (0.57, 0.99))})
    bars = figures_of(make_run(suite))[0].spec["data"][0]["error_x"]

    assert bars["array"] == pytest.approx([0.09])
    assert bars["arrayminus"] == pytest.approx([0.33])


def test_values_that_can_t_be_drawn_are_left_out(make_run: Any, make_suite: Any) -> None:
    metrics = {
        "none": MetricResult(None, None, True, 0),
        "infinite": MetricResult(float("inf"), None, False, 1),
        "alone": MetricResult(0.5, None, True, 1),
    }
    [figure] = figures_of(make_run(make_suite("sums", metrics=metrics)))

    assert_drawable(figure)
    assert figure.spec["layout"]["yaxis"]["ticktext"] == ["sums · alone"]
    assert figure.spec["data"][0]["error_x"]["array"] == [None]


def test_of_many_scores_the_first_of_each_suite_is_drawn(make_run: Any, make_suite: Any) -> None:
    metrics = {name: MetricResult(0.5, 0.1, True, 9) for name in ("acc", "acc_norm")}
    suites = [make_suite(f"suite {number}", metrics=metrics) for number in range(30)]
    [figure] = figures_of(make_run(*suites))

    assert len(figure.spec["layout"]["yaxis"]["ticktext"]) == 30
    assert figure.note == "The first metric of each suite is shown, 30 of 60 scores."


def test_names_are_text_to_plotly(make_run: Any, make_suite: Any) -> None:
    suite = make_suite("<b>&amp;", metrics={"acc": MetricResult(0.5, None, True, 1)})
    [figure] = figures_of(make_run(suite))

    assert figure.spec["layout"]["yaxis"]["ticktext"] == ["&lt;b&gt;&amp;amp; · acc"]
    assert figure.spec["data"][0]["text"][0].startswith("&lt;b&gt;&amp;amp; · acc: 0.5")


def test_long_name_is_shortened_in_its_middle() -> None:
    assert shorten("mmlu_professional_medicine", 12) == "mmlu_…dicine"
    assert shorten("mmlu", 12) == "mmlu"


def test_parity_is_drawn(parity_folder: Path) -> None:
    [check] = read_folders([parity_folder]).parity
    figures = make_parity_figures(check, "parity-0")

    assert [figure.name for figure in figures] == ["parity-0-distribution", "parity-0-tokens"]
    for figure in figures:
        assert_drawable(figure)
    counted = sum(sum(trace["y"]) for trace in figures[0].spec["data"])
    assert counted == sum(suite.tokens.count for suite in check.suites if suite.tokens)
