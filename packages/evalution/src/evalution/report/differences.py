"""Differences of each further run to the first, with the chance that they are noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalution.comparison import MetricComparison, SuiteComparison
from evalution.comparison.comparison import compare_samples
from evalution.report.figures import ROWS_SHOWN, Figure, Point, dot_plot, with_one_legend
from evalution.report.rendering import RunLabel
from evalution.runs.reader import RunSamples

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
    runs: Sequence[RunSamples], labels: Sequence[RunLabel]
) -> list[SuiteDifferences]:
    """Every metric that a further run shares with the first, by suite in the first run's order.

    Raises:
        ConfigurationError: a file of samples is damaged.
    """
    compared = [
        (label, {suite.name: suite for suite in compare_samples(runs[0], run).suites})
        for run, label in zip(runs[1:], labels[1:], strict=True)
    ]
    found: list[SuiteDifferences] = []
    for suite in runs[0].run.suites:
        sides = [(label, suites[suite.name]) for label, suites in compared if suite.name in suites]
        metrics = [_differences(name, suite.name, sides) for name in suite.metrics]
        remarks = [(label, remark) for label, side in sides if (remark := _remark(side))]
        if shared := [differences for differences in metrics if differences]:
            found.append(SuiteDifferences(suite.name, shared, remarks))
    return found


def _differences(
    metric: str, suite: str, sides: Sequence[tuple[RunLabel, SuiteComparison]]
) -> list[Difference]:
    return [
        Difference(label, suite, found)
        for label, side in sides
        for found in side.metrics
        if found.name == metric and found.left is not None and found.right is not None
    ]


def _remark(suite: SuiteComparison) -> str:
    """Explain which rows were left out of the comparison; empty if none."""
    rows = suite.rows
    counts = (
        ("rows in one run only", rows.left_only + rows.right_only),
        ("rows that are not the same", rows.other_rows),
        ("rows asked in other words", rows.other_prompts),
        ("failed answers", rows.left_failed + rows.right_failed),
    )
    return "; ".join(f"{what}: {count:,}" for what, count in counts if count)


def difference_figures(
    suites: Sequence[SuiteDifferences], labels: Sequence[RunLabel]
) -> list[Figure]:
    """A figure for the metrics that have an interval of their own scale, and one for each other.

    Metrics from 0 to 1 share an axis; a perplexity has its own. With more than forty lines in a
    figure, the first metric of each suite stays.
    """
    groups: dict[str, list[Difference]] = {}
    for suite in suites:
        for row in suite.rows:
            if row.metric.difference is not None:
                groups.setdefault(_group(row), []).append(row)
    return with_one_legend(_figure(name, rows, labels) for name, rows in groups.items())


def _group(row: Difference) -> str:
    values = [side.value for side in (row.metric.left, row.metric.right) if side is not None]
    shares = all(value is not None and 0 <= value <= 1 for value in values)
    return "" if shares and row.metric.higher_is_better else row.metric.name


def _figure(metric: str, rows: Sequence[Difference], labels: Sequence[RunLabel]) -> Figure:
    lines = list(dict.fromkeys((row.suite, row.metric.name) for row in rows))
    shown = lines
    if len(lines) > ROWS_SHOWN:
        shown = list({suite: (suite, name) for suite, name in reversed(lines)}.values())[::-1]
    up = rows[0].metric.higher_is_better
    others = labels[1:]
    places = {line: place for place, line in enumerate(shown)}
    found = [(places.get((row.suite, row.metric.name)), row) for row in rows]
    points = [
        [_point(place, row) for place, row in found if place is not None and row.label == label]
        for label in others
    ]
    side = "→ better" if up else "← better"
    left_out = f"The first metric of each suite is shown, {len(shown)} of {len(lines)} scores."
    first = labels[0].letter
    return Figure(
        name=f"differences-{metric or 'shares'}",
        title=f"{metric or 'Scores from 0 to 1'}: difference to {first} {side}",
        note=left_out if len(shown) < len(lines) else "",
        summary=f"Dot plot of differences to run {first} in {len(shown)} scores; the table has "
        "the same.",
        spec=dot_plot(
            [suite if metric else f"{suite} · {name}" for suite, name in shown],
            points,
            others,
            zero_line=True,
        ),
    )


def _point(position: int, row: Difference) -> Point:
    difference = row.metric.difference
    assert difference is not None
    interval = row.metric.test.interval if row.metric.test else None
    p_value = row.metric.test.p_value if row.metric.test else None
    about = f"{row.suite} · {row.metric.name}: {difference:+.4g}"
    about += f", p = {p_value:.2g}" if p_value is not None else ""
    return Point(position, difference, interval, f"{about}, {row.reading}")
