"""Figures of the scores as plain data; the page's script draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeGuard

from evalution.report.rendering import RunLabel, format_score
from evalution.report.scores import MetricRow, Score, SuiteScores

_ROWS_SHOWN = 40
"""Lines that a figure can hold before it must leave some out."""
_CURVE_HEIGHT = 300
_SHARES = (0.0, 1.0)

Line = tuple[str, str]
"""A suite and a metric, which have a line of a dot plot or of a curve for themselves."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a figure with its interval from `low` to `high`; pointing at it shows `about`."""

    x: float
    y: float
    about: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Marks that share a colour and a form, which are those of the run at place `run`."""

    name: str
    run: int
    kind: Literal["dots", "line", "steps", "bars"]
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis; `ticks` are places and their texts, in place of those that the script finds.

    `is_log` is a logarithmic scale, `is_share` writes numbers in per cent, and `from_zero` begins
    at 0. `domain` is the least range that is shown.
    """

    title: str = ""
    ticks: Sequence[tuple[float, str]] | None = None
    domain: tuple[float, float] | None = None
    is_log: bool = False
    is_share: bool = False
    from_zero: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing of `series`, `height` pixels high with its axes.

    `intervals` says along which axis the marks' intervals lie, `rule` where a dashed line crosses
    the figure, `path` which points a dashed line joins. `summary` describes the drawing in words,
    for those who don't see it.
    """

    name: str
    title: str
    note: str
    summary: str
    height: int
    x: Axis
    y: Axis
    series: Sequence[Series]
    intervals: Literal["x", "y"] = "y"
    rule: float | None = None
    zero_line: bool = False
    path: Sequence[tuple[float, float]] = field(default=())


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
    return [_make_score_figure(metric, rows, labels) for metric, rows in groups.items()]


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
        bounds=None if metric else _SHARES,
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


def make_dot_plot(
    name: str,
    title: str,
    summary: str,
    lines: Sequence[Line],
    points: Sequence[Sequence[Point]],
    labels: Sequence[RunLabel],
    *,
    is_of_one_metric: bool,
    bounds: tuple[float, float] | None = None,
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
        bounds: the metric's range, which no interval leaves.
        has_zero_line: mark the zero.
    """
    shown, note = list(lines), ""
    if len(lines) > _ROWS_SHOWN:
        shown = list({line[0]: line for line in reversed(lines)}.values())[::-1]
        note = f"The first metric of each suite is shown, {len(shown)} of {len(lines)} scores."
    places = {line: place for place, line in enumerate(shown)}
    step = min(0.24, 0.72 / max(len(labels), 1))
    series = [
        _make_dots(label, places, found, (order - (len(labels) - 1) / 2) * step, bounds)
        for order, (label, found) in enumerate(zip(labels, points, strict=True))
    ]
    texts = [line[0] if is_of_one_metric else " · ".join(line) for line in shown]
    return Figure(
        name,
        title,
        note,
        summary.format(len(shown)),
        height=48 + len(shown) * max(30, 15 * len(labels) + 12),
        x=Axis(domain=None if has_zero_line else bounds),
        y=Axis(ticks=list(enumerate(texts)), domain=(len(shown) - 0.5, -0.5)),
        series=series,
        intervals="x",
        zero_line=has_zero_line,
    )


def _make_dots(
    label: RunLabel,
    places: Mapping[Line, int],
    points: Sequence[Point],
    offset: float,
    bounds: tuple[float, float] | None,
) -> Series:
    marks = [
        Mark(point.value, places[point.line] + offset, point.about, *_clip(point.interval, bounds))
        for point in points
        if point.line in places
    ]
    return Series(label.legend, label.position, "dots", marks)


def _clip(
    interval: tuple[float, float] | None, bounds: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    if interval is None or bounds is None:
        return interval or (None, None)
    least, most = bounds
    return max(interval[0], least), min(interval[1], most)


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
    return Figure(
        name=f"curve-{metric or 'shares'}",
        title=_make_title(metric, higher_is_better=higher_is_better),
        note="",
        summary=f"Scores over steps of training: {'; '.join(map(_describe_curve, curves))}.",
        height=_CURVE_HEIGHT,
        x=Axis("step"),
        y=Axis(domain=None if metric else _SHARES),
        series=[_make_curve(at, *curve, is_share=not metric) for at, curve in enumerate(curves)],
    )


def _make_curve(
    position: int, name: str, points: Sequence[tuple[int, Score]], *, is_share: bool
) -> Series:
    marks = [
        Mark(
            step,
            score.metric.value or 0.0,
            f"{name} at step {step}: {_describe_score(score)}",
            *_clip(score.metric.interval, _SHARES if is_share else None),
        )
        for step, score in points
    ]
    return Series(name, position, "line", marks)  # looks as a run does elsewhere


def _describe_curve(curve: _Curve) -> str:
    name, points = curve
    (first, start), (last, end) = points[0], points[-1]
    return (
        f"{name} from {format_score(start.metric.value)} at step {first} to "
        f"{format_score(end.metric.value)} at step {last}"
    )
