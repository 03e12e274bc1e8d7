"""Fidelity measurements on the page: what it says of them, and how several are set side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalution.fidelity.result import Estimate, FidelityResult, GreedyDivergence
from evalution.fidelity.store import write_fidelity
from evalution.report.fidelity import make_candidate_groups, make_fidelity_view, show_text
from evalution.report.figures import Figure
from evalution.report.page import read_folders
from evalution.results import to_json

pytest.importorskip("jinja2", reason="needs jinja2, of evalution-runner[report]")

HOSTILE = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}\x00\ud800\u202e"


def assert_drawable(figure: Figure) -> None:
    for mark in (mark for series in figure.series for mark in series.marks):
        assert math.isfinite(mark.x)
        assert math.isfinite(mark.y)
    to_json(figure)


def test_page_shows_candidate_beside_control(
    write_page: Any, make_fidelity: Any, tmp_path: Path
) -> None:
    write_fidelity(make_fidelity(notes=["The window was cut."]), tmp_path)
    page = write_page(fidelity=read_folders([tmp_path]).fidelity)

    assert "tiny q8_0 on LlamaCpp (Q8_0) against tiny on Reference (float64)" in page.text
    assert "Quantisation cost 0.0009 nats (0.0007 to 0.0011) beyond the 0.0115" in page.text
    assert "The window was cut." in page.text
    assert "all 40 documents choices 40 documents prose 40 documents" in page.text
    assert "Mean KL 0.0124 0.0093 to 0.0155 0.0115 0.0086 to 0.0144" in page.text
    assert "Right → wrong 2 of 60" in page.text
    assert "0.6200 nats choices, row 7, token 31 What is your favourite colour↵" in page.text
    assert "reference colour↵ 91.00 % the 3.00 % candidate the 3.00 %" in page.text
    assert [name.removeprefix("fidelity-0-") for name in page.data("figures-data")] == [
        "suites", "distribution", "position", "entropy", "greedy",
    ]  # fmt: skip
    assert "Infinite" not in page.text
    assert len(page.html) < 1_000_000  # the chart library takes half of it


def test_greedy_curves_end_at_the_same_token(make_fidelity: Any) -> None:
    made = make_fidelity()
    control = replace(made.overall.control, greedy=GreedyDivergence(8, 8, []))
    candidate = replace(made.overall.candidate, greedy=GreedyDivergence(8, 6, [3, 9]))
    overall = replace(made.overall, candidate=candidate, control=control)
    view = make_fidelity_view(replace(made, overall=overall), 0)
    curves = [[(mark.x, mark.y) for mark in series.marks] for series in view.figures[-1].series]
    assert curves == [[(0, 1), (3, 0.875), (9, 0.75), (10, 0.75)], [(0, 1), (10, 1)]]


def test_lower_bound_is_marked_wherever_it_stands(write_page: Any, make_fidelity: Any) -> None:
    results = [make_fidelity(mean, top=20) for mean in (0.02, 0.01)]
    page = write_page(fidelity=results)

    assert page.text.count("≥ 0.0100 0.0075 to 0.0125") > 2
    assert "Largest ≥ 1.0000" in page.text
    assert "All divergences are lower bounds." in page.text
    assert "2 / 1 93.12 %" in page.text
    for figure in (*make_fidelity_view(results[0], 0).figures, *find_pareto(results)):
        assert "greedy" in figure.name or "Lower bounds: 93.12 %" in figure.note, figure.name


@pytest.mark.parametrize(
    "result",
    [
        {},
        {
            "floor": None,
            "names": ["prose"],
            "kl": Estimate(math.inf, None, None),
            "infinite": 5000,
        },
        {"mean": 0.0, "floor": 0.0, "same_top": Estimate(1.0, None, None)},
        {"top": 5, "label": HOSTILE, "names": [HOSTILE, "prose"], "text": HOSTILE},
    ],
)
def test_figures_of_any_result_are_drawable(make_fidelity: Any, result: dict[str, Any]) -> None:
    made = make_fidelity(**result)
    for figure in (*make_fidelity_view(made, 0).figures, *find_pareto([made, made])):
        assert_drawable(figure)


def test_excluded_tokens_are_counted(make_fidelity: Any) -> None:
    view = make_fidelity_view(make_fidelity(infinite=3), 0)
    [row] = [row for row in view.groups[0].rows if row.name == "Infinite"]
    assert row.values == ["3", "0"] * 3


def test_figures_without_anything_to_show_are_drawable(make_fidelity: Any) -> None:
    made = make_fidelity(floor=None)
    arm = replace(made.overall.candidate, histogram=[], by_position=[], by_entropy=[], greedy=None)
    overall = replace(made.overall, candidate=replace(arm, flips=None, worst=[]))
    view = make_fidelity_view(replace(made, overall=overall, suites=[overall]), 0)

    assert [group.title for group in view.groups][-1] == "Probabilities"
    assert not view.worst
    for figure in view.figures:
        assert_drawable(figure)


def test_texts_are_shown_and_never_obeyed(write_page: Any, make_fidelity: Any) -> None:
    made = make_fidelity(label=HOSTILE, names=[HOSTILE, "prose"], text=HOSTILE, notes=[HOSTILE])
    page = write_page(fidelity=[made])

    assert not [tag for tag, _ in page.parser.elements if tag == "img"]
    assert "<img src=x onerror=alert(1)>{{ 7 * 7 }}�" in page.text
    assert "49" not in page.text.split("Worst tokens")[1]


def test_signs_stand_for_what_can_not_be_seen() -> None:
    assert show_text("a\n\tb\x1b\u202e") == "a↵⇥b��"


def find_pareto(results: list[FidelityResult]) -> list[Figure]:
    return [figure for group in make_candidate_groups(results) for figure in group.figures]


def test_candidates_of_one_reference_are_sorted_by_their_distance(make_fidelity: Any) -> None:
    results = [
        make_fidelity(mean, label=label, size=size)
        for mean, label, size in ((0.03, "q4", 6), (0.01, "q8", 10), (0.05, "bad", 9))
    ]
    elsewhere = replace(make_fidelity(0.02), window=64)
    [group] = make_candidate_groups([*results, elsewhere])

    assert [row.name.split()[0] for row in group.rows] == ["q8", "q4", "bad"]
    assert group.rows[0].kl == "0.0100 (0.0075 to 0.0125)"
    [figure] = group.figures
    # What another one beats in both stays off the line.
    assert [kl for _, kl in figure.path] == [0.03, 0.01]
    assert figure.y.is_log
    assert figure.series[0].marks[0].high == pytest.approx(0.0375)


def test_candidate_that_can_not_be_drawn_stays_in_the_table(make_fidelity: Any) -> None:
    results = [make_fidelity(0.01 * n, size=n or None) for n in range(3)]
    [group] = make_candidate_groups(results)

    assert [row.size for row in group.rows] == ["–", "0.0 MB", "0.0 MB"]
    assert group.figures[0].note == "1 without a size or a finite mean left out."
    assert find_pareto(results[:2]) == []


def test_one_folder_may_hold_a_measurement_beside_a_run(tmp_path: Path, make_fidelity: Any) -> None:
    file = write_fidelity(make_fidelity(), tmp_path)
    found = read_folders([tmp_path, file])

    assert len(found.fidelity) == 2
    assert not found.runs
    assert not found.parity
