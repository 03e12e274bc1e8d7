"""Differences of each further run to the first, with the chance that they are noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalution.comparison import Comparison, MetricComparison, SuiteComparison
from evalution.report.figures import (
    Figure,
    Point,
    find_scale,
    make_dot_plot,
)
from evalution.report.rendering import RunLabel

_CHANCE = 0.05
"""Of 5 %: the two-sided p-value from which on a difference is called clear."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of one suite in a run, against the first run's; right minus left."""

    label: RunLabel
    suite: str
    metric: MetricComparison

    @property
    def reading(self) -> str:
        """The difference in two or three words."""
        test, winner = self.metric.test, self.metric.winner
        if winner is None or self.metric.difference is None:
            return "not comparable"
        if winner == "tie":
            return "same value"
        if test is None or test.p_value is None:
            return "too few rows"
        if test.p_value >= _CHANCE:
            return "could be chance"
        return "better" if winner == "right" else "worse"

    @property
    def is_clear(self) -> bool:
        return self.reading in ("better", "worse")


@dataclass(frozen=True, slots=True)
class SuiteDifferences:
    """The differences of one suite: for every metric, one for each further run that has it.

    `remarks` says by run which rows could not be compared, or were asked in other words.
    """

    suite: str
    metrics: Sequence[Sequence[Difference]]
    remarks: Sequence[tuple[RunLabel, str]]

    @property
    def rows(self) -> list[Difference]:
        return [difference for metric in self.metrics for difference in metric]


def differences_to_first(
    comparisons: Sequence[Comparison], labels: Sequence[RunLabel]
) -> list[SuiteDifferences]:
    """Return every metric that a further run shares with the first, in the first run's order.

    Args:
        comparisons: the first run with each further one.
        labels: those of all runs.
    """
    compared = [
        (label, {suite.name: suite for suite in comparison.suites})
        for comparison, label in zip(comparisons, labels[1:], strict=True)
    ]
    found: list[SuiteDifferences] = []
    for suite in comparisons[0].left.suites if comparisons else []:
        sides = [(label, suites[suite.name]) for label, suites in compared if suite.name in suites]
        metrics = [_list_differences(name, suite.name, sides) for name in suite.metrics]
        remarks = [(label, remark) for label, side in sides if (remark := _describe_left_out(side))]
        if shared := [differences for differences in metrics if differences]:
            found.append(SuiteDifferences(suite.name, shared, remarks))
    return found


def _list_differences(
    metric: str, suite: str, sides: Sequence[tuple[RunLabel, SuiteComparison]]
) -> list[Difference]:
    return [
        Difference(label, suite, found)
        for label, side in sides
        for found in side.metrics
        if found.name == metric and found.left is not None and found.right is not None
    ]


def _describe_left_out(suite: SuiteComparison) -> str:
    """Explain which rows were left out of the comparison; empty if none."""
    rows = suite.rows
    counts = (
        ("rows in one run only", rows.left_only + rows.right_only),
        ("rows that are not the same", rows.other_rows),
        ("rows asked in other words", rows.other_prompts),
        ("failed answers", rows.left_failed + rows.right_failed),
    )
    return "; ".join(f"{what}: {count:,}" for what, count in counts if count)


def make_difference_figures(
    suites: Sequence[SuiteDifferences], labels: Sequence[RunLabel]
) -> list[Figure]:
    """Draw the differences with their 95 % intervals; a metric that isn't a share has a figure.

    A group in which nothing differs has none.
    """
    groups: dict[str, list[Difference]] = {}
    for suite in suites:
        for row in suite.rows:
            if row.metric.difference is not None:
                groups.setdefault(_find_group(row.metric), []).append(row)
    return [
        _make_figure(name, rows, labels)
        for name, rows in groups.items()
        if any(row.metric.difference for row in rows)
    ]


def _find_group(metric: MetricComparison) -> str:
    values = [side.value for side in (metric.left, metric.right) if side is not None]
    known = [math.inf if value is None else value for value in values]
    return find_scale(metric.name, known, higher_is_better=metric.higher_is_better)


def _make_figure(metric: str, rows: Sequence[Difference], labels: Sequence[RunLabel]) -> Figure:
    first, *others = labels
    side = "→ better" if rows[0].metric.higher_is_better else "← better"
    return make_dot_plot(
        f"differences-{metric or 'shares'}",
        f"{metric or 'Scores from 0 to 1'}: difference to {first.letter} {side}",
        f"Dot plot of differences to run {first.letter} in {{}} scores; the table has the same.",
        list(dict.fromkeys((row.suite, row.metric.name) for row in rows)),
        [[_make_point(row) for row in rows if row.label == label] for label in others],
        others,
        is_of_one_metric=bool(metric),
        bounds=None if metric else (-1.0, 1.0),
        has_zero_line=True,
    )


def _make_point(row: Difference) -> Point:
    difference, test = row.metric.difference, row.metric.test
    assert difference is not None
    about = f"{row.suite} · {row.metric.name}: {difference:+.4g}"
    if test is not None and test.p_value is not None:
        about += f", p = {test.p_value:.2g}"
    interval = test.interval if test is not None else None
    line = (row.suite, row.metric.name)
    return Point(line, difference, interval, f"{about}, {row.reading}")
