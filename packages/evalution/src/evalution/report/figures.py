"""Plotly figures of the scores, as plain data; the page's script adds the colours."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from evalution.report.rendering import RunLabel, format_score
from evalution.report.scores import MetricRow, Score, SuiteScores

_ROWS_SHOWN = 40
"""Lines that a figure can hold before it must leave some out."""
_LEGEND_HEIGHT = 26
_CURVE_HEIGHT = 300
_LABEL_WIDTH = 26
_LEGEND_WIDTH = 60
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "x", "hexagon")

Line = tuple[str, str]
"""A suite and a metric, which have a line of a dot plot or of a curve for themselves."""


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
    """A value in a line of a dot plot with its 95 % interval; pointing at it shows `about`."""

    line: Line
    value: float
    interval: tuple[float, float] | None
    about: str


def find_scale(metric: str, values: Iterable[float], *, higher_is_better: bool) -> str:
    """Return the name of the figure of a metric: "" for shares from 0 to 1, which have one."""
    return "" if higher_is_better and all(0 <= value <= 1 for value in values) else metric


def make_score_figures(suites: Sequence[SuiteScores], labels: Sequence[RunLabel]) -> list[Figure]:
    """Draw every finite score with its 95 % interval.

    Scores from 0 to 1 share a figure, the others have one for each metric.
    """
    groups: dict[str, list[tuple[Line, MetricRow]]] = {}
    for suite in suites:
        for row in suite.rows:
            if values := [score.metric.value for score in row.scores if _has_value(score)]:
                finite = [value for value in values if value is not None]
                scale = find_scale(row.name, finite, higher_is_better=row.higher_is_better)
                groups.setdefault(scale, []).append(((suite.name, row.name), row))
    figures = [_make_score_figure(metric, rows, labels) for metric, rows in groups.items()]
    return leave_one_legend(figures)


def _has_value(score: Score | None) -> TypeGuard[Score]:
    return (
        score is not None and score.metric.value is not None and math.isfinite(score.metric.value)
    )


def _make_score_figure(
    metric: str, rows: Sequence[tuple[Line, MetricRow]], labels: Sequence[RunLabel]
) -> Figure:
    points = [
        [
            _make_score_point(line, score)
            for line, row in rows
            if _has_value(score := row.scores[at])
        ]
        for at in range(len(labels))
    ]
    return make_dot_plot(
        f"scores-{metric or 'shares'}",
        _make_title(metric, higher_is_better=rows[0][1].higher_is_better),
        f"Dot plot of {{}} scores for {len(labels)} runs; the table has the same.",
        [line for line, _ in rows],
        points,
        labels,
        is_of_one_metric=bool(metric),
    )


def _make_title(metric: str, *, higher_is_better: bool) -> str:
    return f"{metric or 'Scores from 0 to 1'} {'↑' if higher_is_better else '↓'}"


def _make_score_point(line: Line, score: Score) -> Point:
    value = score.metric.value
    assert value is not None
    about = f"{' · '.join(line)}: {_describe_score(score)}"
    return Point(line, value, score.metric.interval, about)


def _describe_score(score: Score) -> str:
    found = score.metric
    interval = found.interval and f" [{found.interval[0]:.4g}, {found.interval[1]:.4g}]"
    return f"{found.value:.6g}{interval or ''}, n = {found.n}"


def leave_one_legend(figures: list[Figure]) -> list[Figure]:
    """Return the figures of one section; the first alone keeps its legend."""
    for figure in figures[1:]:
        layout = figure.spec["layout"]
        layout["height"] -= _LEGEND_HEIGHT if layout["showlegend"] else 0
        layout["showlegend"] = False
        layout["xaxis"]["nticks"] = 5  # it has a third of the page's width
    return figures


def make_dot_plot(
    name: str,
    title: str,
    summary: str,
    lines: Sequence[Line],
    points: Sequence[Sequence[Point]],
    labels: Sequence[RunLabel],
    *,
    is_of_one_metric: bool,
    has_zero_line: bool = False,
) -> Figure:
    """Draw lines from top to bottom, in each the runs' points below each other.

    With more than forty lines, the first metric of each suite stays.

    Args:
        name: the figure's name, unique on the page.
        title: what it shows.
        summary: the drawing in words, with `{}` for the number of lines.
        lines: suites and metrics.
        points: those of each run, in any order.
        labels: one for each run.
        is_of_one_metric: a line is labelled by its suite alone.
        has_zero_line: mark the zero.
    """
    shown, note = list(lines), ""
    if len(lines) > _ROWS_SHOWN:
        shown = list({line[0]: line for line in reversed(lines)}.values())[::-1]
        note = f"The first metric of each suite is shown, {len(shown)} of {len(lines)} scores."
    places = {line: place for place, line in enumerate(shown)}
    step = min(0.24, 0.72 / max(len(labels), 1))
    data = [
        _make_dots(label, places, found, (order - (len(labels) - 1) / 2) * step)
        for order, (label, found) in enumerate(zip(labels, points, strict=True))
    ]
    height = 48 + len(shown) * max(30, 15 * len(labels) + 12) + _LEGEND_HEIGHT
    layout = make_layout(height, has_legend=len(labels) > 1 or has_zero_line)
    layout["xaxis"] |= {"zeroline": has_zero_line, "nticks": 8}
    texts = [line[0] if is_of_one_metric else " · ".join(line) for line in shown]
    layout["yaxis"] |= {
        "tickmode": "array",
        "tickvals": list(range(len(shown))),
        "ticktext": [escape_text(shorten(text)) for text in texts],
        "range": [len(shown) - 0.5, -0.5],
        "fixedrange": True,
    }
    spec = {"data": data, "layout": layout}
    return Figure(name, title, note, summary.format(len(shown)), spec)


def _make_dots(
    label: RunLabel, places: Mapping[Line, int], points: Sequence[Point], offset: float
) -> dict[str, Any]:
    found = [point for point in points if point.line in places]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape_text(shorten(label.legend, _LEGEND_WIDTH)),
        "meta": {"run": label.position},
        "x": [point.value for point in found],
        "y": [places[point.line] + offset for point in found],
        "error_x": make_error_bars((point.value, point.interval) for point in found),
        "marker": {"size": 9, "symbol": choose_marker(label.position)},
        "text": [escape_text(point.about) for point in found],
        "hovertemplate": "%{text}<extra>" + escape_text(label.letter) + "</extra>",
    }


def make_error_bars(
    points: Iterable[tuple[float, tuple[float, float] | None]],
) -> dict[str, Any]:
    pairs = list(points)
    return {
        "type": "data",
        "symmetric": False,
        "array": [interval and max(interval[1] - value, 0.0) for value, interval in pairs],
        "arrayminus": [interval and max(value - interval[0], 0.0) for value, interval in pairs],
        "thickness": 1.5,
        "width": 4,
    }


def make_layout(height: int, *, has_legend: bool, x: str = "", y: str = "") -> dict[str, Any]:
    """Return the layout that all figures share; `x` and `y` are titles of the axes."""
    return {
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "showlegend": has_legend,
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "xaxis": {"automargin": True, "title": {"text": x}, "zeroline": False, "tickangle": 0},
        "yaxis": {"automargin": True, "title": {"text": y}, "zeroline": False},
    }


def choose_marker(position: int) -> str:
    """Return a run's form; together with one of eight colours it is the run's own."""
    return _SYMBOLS[(position + position // len(_SYMBOLS)) % len(_SYMBOLS)]


def escape_text(text: str) -> str:
    """Return `text` for Plotly, whose labels understand a few HTML tags."""
    return html.escape(text, quote=False)


def shorten(text: str, width: int = _LABEL_WIDTH) -> str:
    """Return `text`, its middle left out where it is wider."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[-(width - 1 - head) :]}"


_Curve = tuple[str, list[tuple[int, Score]]]
"""A name, and a score at each step in order."""


def make_curve_figures(suites: Sequence[SuiteScores], steps: Sequence[int | None]) -> list[Figure]:
    """Draw every score that was taken at two steps or more, with its 95 % interval.

    Those from 0 to 1 share a figure, the others have one for each metric. Where there are no two
    steps there are no figures.

    Args:
        suites: the scores of the page's table.
        steps: that of each run, in the order of the runs; None where a run names none.
    """
    groups: dict[tuple[str, bool], list[_Curve]] = {}
    for suite in suites:
        for row in suite.rows:
            found = [
                (step, score)
                for step, score in zip(steps, row.scores, strict=True)
                if step is not None and _has_value(score)
            ]
            if len({step for step, _ in found}) > 1:
                values = [score.metric.value or 0.0 for _, score in found]
                scale = find_scale(row.name, values, higher_is_better=row.higher_is_better)
                curve = f"{suite.name} · {row.name}", sorted(found, key=lambda point: point[0])
                groups.setdefault((scale, row.higher_is_better), []).append(curve)
    return [_make_curve_figure(metric, up, curves) for (metric, up), curves in groups.items()]


def _make_curve_figure(metric: str, higher_is_better: bool, curves: Sequence[_Curve]) -> Figure:
    height = _CURVE_HEIGHT + _LEGEND_HEIGHT
    return Figure(
        name=f"curve-{metric or 'shares'}",
        title=_make_title(metric, higher_is_better=higher_is_better),
        note="",
        summary=f"Scores over steps of training: {'; '.join(map(_describe_curve, curves))}.",
        spec={
            "data": [_make_curve(position, *curve) for position, curve in enumerate(curves)],
            "layout": make_layout(height, has_legend=len(curves) > 1, x="step"),
        },
    )


def _make_curve(position: int, name: str, points: Sequence[tuple[int, Score]]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape_text(shorten(name, _LEGEND_WIDTH)),
        "meta": {"run": position},  # lines of a curve look different as runs do elsewhere
        "x": [step for step, _ in points],
        "y": [score.metric.value for _, score in points],
        "error_y": make_error_bars(
            (score.metric.value or 0.0, score.metric.interval) for _, score in points
        ),
        "marker": {"size": 8, "symbol": choose_marker(position)},
        "line": {"width": 2},
        "text": [
            escape_text(f"{name} at step {step}: {_describe_score(score)}")
            for step, score in points
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _describe_curve(curve: _Curve) -> str:
    name, points = curve
    (first, start), (last, end) = points[0], points[-1]
    return (
        f"{name} from {format_score(start.metric.value)} at step {first} to "
        f"{format_score(end.metric.value)} at step {last}"
    )
