"""Plotly figures of scores over the steps of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evalution.report.figures import (
    LEGEND_HEIGHT,
    NORMAL_95,
    Figure,
    plot_text,
    shortened,
    symbol_of,
)
from evalution.report.number_texts import score_text
from evalution.report.scores import MetricRow, Score, SuiteScores

_HEIGHT = 300
_Line = tuple[str, MetricRow]


def curve_figures(suites: Sequence[SuiteScores], steps: Sequence[int | None]) -> list[Figure]:
    """Every score that was taken at two steps or more, with its 95 % interval.

    Those from 0 to 1 share a figure, the others have one for each metric. Where there are no two
    steps there are no figures.

    Args:
        suites: what stands in the page's table.
        steps: that of each run, in the order of the runs; None where a run names none.
    """
    groups: dict[str, list[_Line]] = {}
    for suite in suites:
        for row in suite.rows:
            points = _points(row, steps)
            if len({step for step, _ in points}) > 1:
                values = [score.metric.value or 0.0 for _, score in points]
                shares = row.higher_is_better and all(0 <= value <= 1 for value in values)
                group = "" if shares else row.name
                groups.setdefault(group, []).append((f"{suite.name} · {row.name}", row))
    return [_figure(metric, lines, steps) for metric, lines in groups.items()]


def _points(row: MetricRow, steps: Sequence[int | None]) -> list[tuple[int, Score]]:
    found = [
        (step, score)
        for step, score in zip(steps, row.scores, strict=True)
        if step is not None and score is not None and _is_finite(score.metric.value)
    ]
    return sorted(found, key=lambda point: point[0])


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _figure(metric: str, lines: Sequence[_Line], steps: Sequence[int | None]) -> Figure:
    up = lines[0][1].higher_is_better
    traces = [
        _trace(position, name, _points(row, steps)) for position, (name, row) in enumerate(lines)
    ]
    said = "; ".join(_summary(name, _points(row, steps)) for name, row in lines)
    return Figure(
        name=f"curve-{metric or 'shares'}",
        title=f"{metric or 'Scores from 0 to 1'} {'↑' if up else '↓'}",
        note="",
        summary=f"Scores over steps of training: {said}.",
        spec={
            "data": traces,
            "layout": {
                "height": _HEIGHT + LEGEND_HEIGHT,
                "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
                "showlegend": len(lines) > 1,
                "hovermode": "closest",
                "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
                "xaxis": {"automargin": True, "title": {"text": "step"}, "zeroline": False},
                "yaxis": {"automargin": True, "zeroline": False},
            },
        },
    )


def _trace(position: int, name: str, points: Sequence[tuple[int, Score]]) -> dict[str, Any]:
    margins = [s.metric.stderr and NORMAL_95 * s.metric.stderr for _, s in points]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plot_text(shortened(name, 60)),
        "meta": {"run": position},  # the lines of a curve are told apart as runs are elsewhere
        "x": [step for step, _ in points],
        "y": [score.metric.value for _, score in points],
        "error_y": {"type": "data", "array": margins, "thickness": 1.5, "width": 4},
        "marker": {"size": 8, "symbol": symbol_of(position)},
        "line": {"width": 2},
        "text": [
            plot_text(f"{name} at step {step}: {_shown(score)}, n = {score.metric.n}")
            for step, score in points
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _shown(score: Score) -> str:
    found = score.metric
    return f"{found.value:.6g}" + ("" if found.stderr is None else f" ± {found.stderr:.3g}")


def _summary(name: str, points: Sequence[tuple[int, Score]]) -> str:
    (first, start), (last, end) = points[0], points[-1]
    return (
        f"{name} from {score_text(start.metric.value)} at step {first} to "
        f"{score_text(end.metric.value)} at step {last}"
    )
