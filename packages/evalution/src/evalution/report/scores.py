"""The scores of several runs side by side, the better ones marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalution.redaction import mask_text
from evalution.report.rendering import find_differing_keys, flatten, format_score, merge_in_order
from evalution.results import MetricResult, RunResult, SuiteResult

_NEUTRAL_OPTIONS = frozenset({"name", "batch_size"})
"""Options of a suite that leave its questions and its scoring as they are."""


@dataclass(frozen=True, slots=True)
class Score:
    """One metric in one run; `is_best` only where there is another one to be better than."""

    metric: MetricResult
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of a suite: a score for each run, None for a run without it."""

    name: str
    higher_is_better: bool
    scores: Sequence[Score | None]


@dataclass(frozen=True, slots=True)
class SuiteScores:
    """A suite by its name: what each run found (None: not run), and what limits a comparison.

    `obstacles` says why scores must not be compared: other options, another number of rows. Then
    none is marked as best. `faults` are failures worth reading before any score.
    """

    name: str
    type: str
    runs: Sequence[SuiteResult | None]
    rows: Sequence[MetricRow]
    obstacles: Sequence[str]
    faults: Sequence[str]


def collect_suite_scores(runs: Sequence[RunResult], letters: Sequence[str]) -> list[SuiteScores]:
    """Every suite that any run holds, in order of appearance."""
    names = merge_in_order([suite.name for suite in run.suites] for run in runs)
    return [_collect_suite(name, runs, letters) for name in names]


def _collect_suite(name: str, runs: Sequence[RunResult], letters: Sequence[str]) -> SuiteScores:
    found = [next((suite for suite in run.suites if suite.name == name), None) for run in runs]
    present = [suite for suite in found if suite is not None]
    obstacles = _find_obstacles(present)
    metrics = merge_in_order(suite.metrics for suite in present)
    return SuiteScores(
        name=name,
        type=present[0].type,
        runs=found,
        rows=[_make_metric_row(metric, found, marked=not obstacles) for metric in metrics],
        obstacles=obstacles,
        faults=_list_faults(found, letters),
    )


def _make_metric_row(name: str, suites: Sequence[SuiteResult | None], *, marked: bool) -> MetricRow:
    metrics = [None if suite is None else suite.metrics.get(name) for suite in suites]
    present = [metric for metric in metrics if metric is not None]
    best = find_best(present) if marked else None
    scores = [
        None if metric is None else Score(metric, best == format_score(metric.value))
        for metric in metrics
    ]
    return MetricRow(name, present[0].higher_is_better, scores)


def find_best(metrics: Sequence[MetricResult]) -> str | None:
    """The best score by the metric's direction, as it is shown; None if nothing stands out.

    That is so with fewer than two finite values, where all look the same to a reader, and where the
    runs don't agree on what is better.
    """
    values = [m.value for m in metrics if m.value is not None and math.isfinite(m.value)]
    directions = {metric.higher_is_better for metric in metrics}
    if len({format_score(value) for value in values}) < 2 or len(directions) > 1:
        return None
    return format_score(max(values) if directions == {True} else min(values))


def _find_obstacles(suites: Sequence[SuiteResult]) -> list[str]:
    options = [flatten(suite.options) for suite in suites]
    names = [name for name in find_differing_keys(options) if name not in _NEUTRAL_OPTIONS]
    found: list[str] = []
    if names:
        found.append(f"the runs have other options: {', '.join(names)}")
    if len(counts := {suite.n for suite in suites}) > 1:
        found.append(f"the runs have {' and '.join(map(str, sorted(counts)))} rows")
    return found


def _list_faults(suites: Sequence[SuiteResult | None], letters: Sequence[str]) -> list[str]:
    faults: list[str] = []
    for suite, letter in zip(suites, letters, strict=True):
        if suite is None:
            continue
        where = f"{letter}: " if len(letters) > 1 else ""
        if suite.failed:
            first = f"; first: {suite.first_failure}" if suite.first_failure else ""
            faults.append(mask_text(f"{where}{suite.failed} of {suite.n} samples failed{first}"))
        faults.extend(mask_text(f"{where}{error}") for error in suite.errors)
    return faults
