"""Plotly figures of the differences between runs."""

from __future__ import annotations

from collections.abc import Sequence

from evalution.report.differences import Difference, SuiteDifferences
from evalution.report.figures import ROWS_SHOWN, Figure, Point, dot_plot, with_one_legend
from evalution.report.labels import RunLabel


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
