"""The figures of a benchmark, out of GuideLLM's report, as JSON and as a table."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich import box
from rich.table import Table

from evalution_core import ConfigurationError


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles over the requests that were answered."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class LevelResult:
    """The measurements of one level of load.

    `errored` requests failed; `incomplete` ones were under way when time was up. Tokens are those
    of answered requests; rates are over `seconds`. Times are in milliseconds, None where the
    subject doesn't stream text. `inter_token_ms` is each request's mean.
    """

    name: str
    seconds: float
    successful: int
    errored: int
    incomplete: int
    prompt_tokens: int
    output_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    concurrency: float
    first_token_ms: Spread | None
    inter_token_ms: Spread | None
    latency_ms: Spread | None
    first_error: str | None
    warnings: Sequence[str]


def read_levels(report: Mapping[str, Any]) -> list[LevelResult]:
    """Return the levels of a report, GuideLLM's JSON of version 2, in their order."""
    return [_read_level(benchmark) for benchmark in report["benchmarks"]]


def _read_level(benchmark: Mapping[str, Any]) -> LevelResult:
    metrics, requests = benchmark["metrics"], benchmark["requests"]
    totals = metrics["request_totals"]
    done = requests["successful"]
    errors = [request["info"]["error"] for request in requests["errored"]]
    return LevelResult(
        name=_name_level(benchmark["config"]["strategy"]),
        seconds=benchmark["duration"],
        successful=totals["successful"],
        errored=totals["errored"],
        incomplete=totals["incomplete"],
        prompt_tokens=sum(request["prompt_tokens"] or 0 for request in done),
        output_tokens=sum(request["output_tokens"] or 0 for request in done),
        requests_per_second=metrics["requests_per_second"]["successful"]["mean"],
        output_tokens_per_second=metrics["output_tokens_per_second"]["successful"]["mean"],
        concurrency=metrics["request_concurrency"]["successful"]["mean"],
        first_token_ms=_read_spread(metrics["time_to_first_token_ms"]),
        inter_token_ms=_read_spread(metrics["inter_token_latency_ms"]),
        latency_ms=_read_spread(metrics["request_latency"], 1000),
        first_error=errors[0] if errors else None,
        warnings=[
            f"{warning['message']} {warning['note']}".strip() for warning in benchmark["warnings"]
        ],
    )


def _name_level(strategy: Mapping[str, Any]) -> str:
    match strategy["type_"]:
        case "synchronous":
            return "one at a time"
        case "concurrent":
            return f"{strategy['streams']} at once"
        case "constant":
            return f"{strategy['rate']:g} a second"
        case other:
            return str(other)


def _read_spread(metric: Mapping[str, Any], scale: float = 1) -> Spread | None:
    found = metric["successful"]
    if not found["count"]:
        return None
    percentiles = (found["percentiles"][name] for name in ("p50", "p90", "p95", "p99"))
    return Spread(*(value * scale for value in (found["mean"], *percentiles)))


SUMMARY, REPORT, PAGE = "bench.json", "guidellm.json", "report.html"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A benchmark's subject, load and measurements.

    `subject` and `load` are JSON-safe and without credentials; `levels` are in the order in which
    they ran.
    """

    title: str
    started: datetime
    subject: Mapping[str, Any]
    load: Mapping[str, Any]
    levels: Sequence[LevelResult]

    @property
    def complaints(self) -> list[str]:
        """A line for each level with failed requests, or without an answer."""
        failed = [
            f"{level.name}: {level.errored} failed, the first with {level.first_error}"
            for level in self.levels
            if level.errored
        ]
        silent = [
            f"{level.name}: no request was answered; give it more --seconds"
            for level in self.levels
            if not level.successful and not level.errored
        ]
        return failed + silent

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `bench.json`."""
        return {
            "format": _FORMAT,
            "made_by": f"evalution-guidellm {version('evalution-guidellm')}",
            "started": self.started.isoformat(timespec="seconds"),
            **self.subject,
            "load": dict(self.load),
            "levels": [asdict(level) for level in self.levels],
        }


@contextmanager
def open_folder(output: Path | None, label: str, now: datetime) -> Generator[Path]:
    """Make the folder to write to, `runs/<date-time>-bench-<label>` where none is named.

    One that was made here and is still empty when an error leaves is removed.

    Raises:
        ConfigurationError: it can't be made or written to, or holds a benchmark.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    path = output or Path("runs") / f"{now:%Y%m%d-%H%M%S}-bench-{safe[-60:]}"
    if (path / SUMMARY).exists():
        raise ConfigurationError(f"{path} holds a benchmark; name another --output")
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{path} can't be written to: {error.strerror}; name another --output"
        ) from error
    try:
        yield path
    finally:
        if is_new and not any(path.iterdir()):
            path.rmdir()


_COLUMNS = ("load", "done", "failed", "req/s", "tok/s", "TTFT ms", "ITL ms", "latency ms")
_WIDE, _NARROW = ("p50", "p95", "p99"), ("p50",)
_NARROW_WIDTH = 110
"""Columns of a terminal below which only the median is shown."""


def make_table(result: BenchResult, *, width: int) -> Table:
    """Return a row for each level: throughput, then percentiles of times.

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
        times = (level.first_token_ms, level.inter_token_ms, level.latency_ms)
        table.add_row(
            level.name,
            str(level.successful),
            str(level.errored),
            format_number(level.requests_per_second),
            format_number(level.output_tokens_per_second),
            *(_format_spread(spread, shown) for spread in times),
        )
    return table


def _format_spread(spread: Spread | None, shown: Sequence[str]) -> str:
    if spread is None:
        return "–"
    values = asdict(spread)
    return " / ".join(format_number(values[name]) for name in shown)


def format_number(value: float) -> str:
    """Three digits that mean something, and no more behind the point than that takes."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
