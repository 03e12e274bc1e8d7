"""A benchmark's figures as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from evalution_guidellm.bench.result import BenchResult
from evalution_guidellm.bench.summary import LevelResult, Spread

_COLUMNS = ("load", "done", "failed", "req/s", "tok/s", "TTFT ms", "ITL ms", "latency ms")
_WIDE, _NARROW = ("p50", "p95", "p99"), ("p50",)
_NARROW_WIDTH = 110
"""Columns of a terminal below which only the median is shown."""


def bench_table(result: BenchResult, *, width: int) -> Table:
    """A row for each level: throughput, then percentiles of times.

    TTFT is the time to the first token, ITL the time from token to token.
    """
    shown = _WIDE if width >= _NARROW_WIDTH else _NARROW
    table = Table(
        title=f"{result.title}; times: {' / '.join(shown)}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    for name in _COLUMNS:
        is_load = name == "load"
        table.add_column(name, justify="left" if is_load else "right", no_wrap=not is_load)
    for level in result.levels:
        table.add_row(*_cells(level, shown))
    return table


def _cells(level: LevelResult, shown: Sequence[str]) -> list[str]:
    return [
        level.name,
        str(level.successful),
        str(level.errored),
        number_text(level.requests_per_second),
        number_text(level.output_tokens_per_second),
        _spread_text(level.first_token_ms, shown),
        _spread_text(level.inter_token_ms, shown),
        _spread_text(level.latency_ms, shown),
    ]


def _spread_text(spread: Spread | None, shown: Sequence[str]) -> str:
    if spread is None:
        return "–"
    return " / ".join(number_text(getattr(spread, name)) for name in shown)


def number_text(value: float) -> str:
    """Three digits that mean something, and no more behind the point than that takes."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
