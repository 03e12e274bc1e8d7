"""Figures as plain data; the page's script draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from evalution.view.labels import RunLabel


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

    line: str
    value: float
    interval: tuple[float, float] | None
    about: str


def make_dot_plot(
    name: str,
    title: str,
    summary: str,
    lines: Sequence[str],
    points: Sequence[Sequence[Point]],
    labels: Sequence[RunLabel],
) -> Figure:
    """Draw lines from top to bottom, in each the runs' points below each other.

    Args:
        name: the figure's name, unique on the page.
        title: what it shows.
        summary: the drawing in words.
        lines: their names, each once.
        points: those of each run, in any order.
        labels: one for each run.
    """
    places = {line: place for place, line in enumerate(lines)}
    step = min(0.24, 0.72 / max(len(labels), 1))
    series = [
        _make_dots(label, places, found, (order - (len(labels) - 1) / 2) * step)
        for order, (label, found) in enumerate(zip(labels, points, strict=True))
    ]
    return Figure(
        name,
        title,
        "",
        summary,
        height=48 + len(lines) * max(30, 15 * len(labels) + 12),
        x=Axis(),
        y=Axis(
            ticks=[(place, line) for place, line in enumerate(lines)],
            domain=(len(lines) - 0.5, -0.5),
        ),
        series=series,
        intervals="x",
    )


def _make_dots(
    label: RunLabel, places: Mapping[str, int], points: Sequence[Point], offset: float
) -> Series:
    marks = [
        Mark(
            point.value, places[point.line] + offset, point.about, *(point.interval or (None, None))
        )
        for point in points
        if point.line in places
    ]
    return Series(label.legend, label.position, "dots", marks)
