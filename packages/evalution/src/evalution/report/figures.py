"""Plotly figures of the scores, as plain data; the page's script adds the colours."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evalution.report.rendering import RunLabel, score_text
from evalution.report.scores import MetricRow, Score, SuiteScores

NORMAL_95 = 1.959963984540054
"""Standard errors on either side of a value that hold 95 % of a normal distribution."""

ROWS_SHOWN = 40
"""Lines that a figure can hold before it must leave some out."""
LEGEND_HEIGHT = 26
_LABEL_WIDTH = 26
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "x", "hexagon")


@dataclass(frozen=True, slots=True)
class Figure:
    """`spec` is Plotly's `{data, layout}`. A trace's `meta.run` is the run that gives its colour.

    `summary` describes the drawing in words, for those who don't see it.
    """

    name: str
    title: str
    note: str
    summary: str
    spec: dict[str, Any]


class Point(NamedTuple):
    """A value in a row of a dot plot with its 95 % interval; pointing at it shows `about`."""

    row: int
    value: float
    interval: tuple[float, float] | None
    about: str


class _Line(NamedTuple):
    suite: SuiteScores
    metric: str

    @property
    def label(self) -> str:
        return f"{self.suite.name} · {self.metric}"


def score_figures(suites: Sequence[SuiteScores], labels: Sequence[RunLabel]) -> list[Figure]:
    """Every finite score with its 95 % interval: those from 0 to 1 together, the others by metric.

    With more than forty lines in a figure, the first metric of each suite stays.
    """
    groups: dict[str, list[_Line]] = {}
    for suite in suites:
        for row in suite.rows:
            values = [s.metric.value for s in row.scores if s and s.metric.value is not None]
            if any(math.isfinite(value) for value in values):
                shares = row.higher_is_better and all(0 <= value <= 1 for value in values)
                groups.setdefault("" if shares else row.name, []).append(_Line(suite, row.name))
    return with_one_legend(_score_figure(name, found, labels) for name, found in groups.items())


def with_one_legend(figures: Iterable[Figure]) -> list[Figure]:
    """The figures of one section; the first alone says which mark is which run."""
    found = list(figures)
    for figure in found[1:]:
        layout = figure.spec["layout"]
        layout["height"] -= LEGEND_HEIGHT if layout["showlegend"] else 0
        layout["showlegend"] = False
        layout["xaxis"]["nticks"] = 5  # it has a third of the page's width
    return found


def _score_figure(metric: str, lines: Sequence[_Line], labels: Sequence[RunLabel]) -> Figure:
    shown = _main_lines(lines) if len(lines) > ROWS_SHOWN else lines
    points = [list(_score_points(shown, label.position)) for label in labels]
    up = _row_of(lines[0]).higher_is_better
    left_out = f"The first metric of each suite is shown, {len(shown)} of {len(lines)} scores."
    return Figure(
        name=f"scores-{metric or 'shares'}",
        title=f"{metric} {'↑' if up else '↓'}" if metric else "Scores from 0 to 1 ↑",
        note=left_out if len(shown) < len(lines) else "",
        summary=f"Dot plot of {len(shown)} scores for {len(labels)} runs; the table has the same.",
        spec=dot_plot(
            [line.suite.name if metric else line.label for line in shown],
            points,
            labels,
            zero_line=False,
        ),
    )


def _score_points(lines: Sequence[_Line], run: int) -> Iterable[Point]:
    for position, line in enumerate(lines):
        score = _row_of(line).scores[run]
        if score is None or score.metric.value is None or not math.isfinite(score.metric.value):
            continue
        value, stderr = score.metric.value, score.metric.stderr
        margin = NORMAL_95 * (stderr or 0.0)
        about = f"{line.label}: {value:.6g}" + ("" if stderr is None else f" ± {stderr:.3g}")
        interval = None if stderr is None else (value - margin, value + margin)
        yield Point(position, value, interval, f"{about}, n = {score.metric.n}")


def _row_of(line: _Line) -> MetricRow:
    return next(row for row in line.suite.rows if row.name == line.metric)


def _main_lines(lines: Sequence[_Line]) -> list[_Line]:
    first: dict[str, _Line] = {}
    for line in lines:
        first.setdefault(line.suite.name, line)
    return list(first.values())


def dot_plot(
    rows: Sequence[str],
    points: Sequence[Sequence[Point]],
    labels: Sequence[RunLabel],
    *,
    zero_line: bool,
) -> dict[str, Any]:
    """Rows from top to bottom, in each the runs' points below each other."""
    step = min(0.24, 0.72 / max(len(labels), 1))
    data: list[dict[str, Any]] = []
    for order, (label, found) in enumerate(zip(labels, points, strict=True)):
        offset = (order - (len(labels) - 1) / 2) * step
        data.append(_trace(label, found, offset))
    height = 48 + len(rows) * max(30, 15 * len(labels) + 12) + LEGEND_HEIGHT
    return {
        "data": data,
        "layout": {
            "height": height,
            "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
            "showlegend": len(labels) > 1 or zero_line,
            "hovermode": "closest",
            "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
            "xaxis": {"automargin": True, "zeroline": zero_line, "nticks": 8, "tickangle": 0},
            "yaxis": {
                "automargin": True,
                "tickmode": "array",
                "tickvals": list(range(len(rows))),
                "ticktext": [plot_text(shortened(row)) for row in rows],
                "range": [len(rows) - 0.5, -0.5],
                "fixedrange": True,
                "zeroline": False,
            },
        },
    }


def _trace(label: RunLabel, points: Sequence[Point], offset: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plot_text(shortened(label.legend, 60)),
        "meta": {"run": label.position},
        "x": [point.value for point in points],
        "y": [point.row + offset for point in points],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [p.interval and max(p.interval[1] - p.value, 0.0) for p in points],
            "arrayminus": [p.interval and max(p.value - p.interval[0], 0.0) for p in points],
            "thickness": 1.5,
            "width": 4,
        },
        "marker": {"size": 9, "symbol": marker_symbol(label.position)},
        "text": [plot_text(point.about) for point in points],
        "hovertemplate": "%{text}<extra>" + plot_text(label.letter) + "</extra>",
    }


def marker_symbol(position: int) -> str:
    """A run is known by its form as well as by its colour; eight runs on, both would meet again."""
    return _SYMBOLS[(position + position // len(_SYMBOLS)) % len(_SYMBOLS)]


def plot_text(text: str) -> str:
    """`text` as Plotly shows it: its labels understand a few HTML tags, and `%{}` in templates."""
    return html.escape(text, quote=False)


def shortened(text: str, width: int = _LABEL_WIDTH) -> str:
    """`text`, its middle left out where it is wider."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[-(width - 1 - head) :]}"


_CURVE_HEIGHT = 300
_Curve = tuple[str, MetricRow]


def curve_figures(suites: Sequence[SuiteScores], steps: Sequence[int | None]) -> list[Figure]:
    """Every score that was taken at two steps or more, with its 95 % interval.

    Those from 0 to 1 share a figure, the others have one for each metric. Where there are no two
    steps there are no figures.

    Args:
        suites: what stands in the page's table.
        steps: that of each run, in the order of the runs; None where a run names none.
    """
    groups: dict[str, list[_Curve]] = {}
    for suite in suites:
        for row in suite.rows:
            points = _curve_points(row, steps)
            if len({step for step, _ in points}) > 1:
                values = [score.metric.value or 0.0 for _, score in points]
                shares = row.higher_is_better and all(0 <= value <= 1 for value in values)
                group = "" if shares else row.name
                groups.setdefault(group, []).append((f"{suite.name} · {row.name}", row))
    return [_curve_figure(metric, lines, steps) for metric, lines in groups.items()]


def _curve_points(row: MetricRow, steps: Sequence[int | None]) -> list[tuple[int, Score]]:
    found = [
        (step, score)
        for step, score in zip(steps, row.scores, strict=True)
        if step is not None and score is not None and _is_finite(score.metric.value)
    ]
    return sorted(found, key=lambda point: point[0])


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _curve_figure(metric: str, lines: Sequence[_Curve], steps: Sequence[int | None]) -> Figure:
    up = lines[0][1].higher_is_better
    traces = [
        _curve_trace(position, name, _curve_points(row, steps))
        for position, (name, row) in enumerate(lines)
    ]
    said = "; ".join(_curve_summary(name, _curve_points(row, steps)) for name, row in lines)
    return Figure(
        name=f"curve-{metric or 'shares'}",
        title=f"{metric or 'Scores from 0 to 1'} {'↑' if up else '↓'}",
        note="",
        summary=f"Scores over steps of training: {said}.",
        spec={
            "data": traces,
            "layout": {
                "height": _CURVE_HEIGHT + LEGEND_HEIGHT,
                "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
                "showlegend": len(lines) > 1,
                "hovermode": "closest",
                "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
                "xaxis": {"automargin": True, "title": {"text": "step"}, "zeroline": False},
                "yaxis": {"automargin": True, "zeroline": False},
            },
        },
    )


def _curve_trace(position: int, name: str, points: Sequence[tuple[int, Score]]) -> dict[str, Any]:
    margins = [s.metric.stderr and NORMAL_95 * s.metric.stderr for _, s in points]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plot_text(shortened(name, 60)),
        "meta": {"run": position},  # lines of a curve look different as runs do elsewhere
        "x": [step for step, _ in points],
        "y": [score.metric.value for _, score in points],
        "error_y": {"type": "data", "array": margins, "thickness": 1.5, "width": 4},
        "marker": {"size": 8, "symbol": marker_symbol(position)},
        "line": {"width": 2},
        "text": [
            plot_text(f"{name} at step {step}: {_score_label(score)}, n = {score.metric.n}")
            for step, score in points
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _score_label(score: Score) -> str:
    found = score.metric
    return f"{found.value:.6g}" + ("" if found.stderr is None else f" ± {found.stderr:.3g}")


def _curve_summary(name: str, points: Sequence[tuple[int, Score]]) -> str:
    (first, start), (last, end) = points[0], points[-1]
    return (
        f"{name} from {score_text(start.metric.value)} at step {first} to "
        f"{score_text(end.metric.value)} at step {last}"
    )
