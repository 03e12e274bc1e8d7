"""A benchmark as a page: the runner's frame around tables and plots of times and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evalution.report.figures import Figure, choose_marker, escape_text
from evalution.report.rendering import flatten, load_assets, render
from evalution_guidellm.bench.result import BenchResult, LevelResult, number_text

_TIMES = {
    "first_token_ms": "Time to first token",
    "inter_token_ms": "Token to token",
    "latency_ms": "Whole request",
}
_STEPS = 200
"""Points of a curve at most."""
_HEIGHT = 320


def write_page(result: BenchResult, file: Path) -> None:
    """Write one HTML page that needs nothing beside it.

    Raises:
        ConfigurationError: Jinja or Plotly isn't installed.
    """
    times = [
        _distribution(name, title, result.levels)
        for name, title in _TIMES.items()
        if any(level.samples[name] for level in result.levels)
    ]
    throughput = [_throughput(result.levels)] if len(result.levels) > 1 else []
    figures = [*throughput, *times]
    values: dict[str, Any] = {
        "title": f"{result.title} under load",
        "made_by": f"evalution-guidellm {version('evalution-guidellm')} with GuideLLM",
        "result": result,
        "times": _TIMES,
        "throughput_figures": throughput,
        "time_figures": times,
        "conditions": flatten({**result.subject, "load": result.load}),
        "number": number_text,
        "figures_data": {figure.name: figure.spec for figure in figures},
        "assets": load_assets(with_figures=bool(figures)),
    }
    page = render("bench.html.j2", values, package="evalution_guidellm.bench")
    file.write_bytes(page.encode("utf-8", "backslashreplace"))


def _distribution(name: str, title: str, levels: Sequence[LevelResult]) -> Figure:
    """Plot the share of requests within a time: a curve for each level."""
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escape_text(level.name),
            "meta": {"run": position},
            "x": values,
            "y": [100 * (order + 1) / len(values) for order in range(len(values))],
            "line": {"shape": "hv", "width": 2},
            "hovertemplate": "%{y:.0f} % within %{x:.3~g} ms<extra>"
            + escape_text(level.name)
            + "</extra>",
        }
        for position, level in enumerate(levels)
        if (values := _thinned(level.samples[name]))
    ]
    layout = _layout(len(data) > 1, "milliseconds", "% of requests")
    layout["yaxis"] |= {"range": [0, 103], "tickvals": [0, 25, 50, 75, 90, 100]}
    layout["xaxis"] |= {"rangemode": "tozero"}
    return Figure(
        name=name,
        title=title,
        note="the share of the requests that took at most so long",
        summary=f"Curves of {title.lower()} for {len(data)} levels; the table has percentiles.",
        spec={"data": data, "layout": layout},
    )


def _throughput(levels: Sequence[LevelResult]) -> Figure:
    """Tokens a second against the median time of a request, a mark for each level."""
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape_text(level.name),
            "meta": {"run": position},
            "x": [level.output_tokens_per_second],
            "y": [level.latency_ms.p50],
            "marker": {"size": 11, "symbol": choose_marker(position)},
            "hovertemplate": "%{x:.4~g} tokens/s, %{y:.4~g} ms<extra>"
            + escape_text(level.name)
            + "</extra>",
        }
        for position, level in enumerate(levels)
        if level.latency_ms
    ]
    layout = _layout(True, "generated tokens a second", "median ms a request")
    layout["xaxis"] |= {"rangemode": "tozero"}
    layout["yaxis"] |= {"rangemode": "tozero"}
    return Figure(
        name="throughput",
        title="Throughput and time",
        note="right and low is best",
        summary=f"A mark for each of {len(data)} levels; the table has the same.",
        spec={"data": data, "layout": layout},
    )


def _layout(legend: bool, x: str, y: str) -> dict[str, Any]:
    return {
        "height": _HEIGHT,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "showlegend": legend,
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"automargin": True, "nticks": 8, "title": {"text": x}},
        "yaxis": {"automargin": True, "title": {"text": y}, "fixedrange": True},
    }


def _thinned(values: Sequence[float]) -> list[float]:
    """At most so many of the sorted `values`, evenly chosen, the largest among them."""
    if len(values) <= _STEPS:
        return list(values)
    return [values[(step + 1) * len(values) // _STEPS - 1] for step in range(_STEPS)]
