"""The figures of a benchmark, out of GuideLLM's report."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich import box
from rich.table import Table

from evalution.results import to_json
from evalution_core import ConfigurationError

PERCENTILES = ("p50", "p90", "p95", "p99")


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
    warnings: tuple[str, ...]
    samples: Mapping[str, Sequence[float]]
    """The sorted times of single requests, by the name of the spread."""

    def to_dict(self) -> dict[str, Any]:
        """All but the single requests, which GuideLLM's report holds."""
        return {
            each.name: _plain(getattr(self, each.name))
            for each in fields(self)
            if each.name != "samples"
        }


def level_results(report: Mapping[str, Any]) -> list[LevelResult]:
    """The levels of a report, GuideLLM's JSON of version 2, in their order."""
    return [_level(benchmark) for benchmark in report["benchmarks"]]


def _level(benchmark: Mapping[str, Any]) -> LevelResult:
    metrics, requests = benchmark["metrics"], benchmark["requests"]
    totals = metrics["request_totals"]
    done = requests["successful"]
    errors = [request["info"]["error"] for request in requests["errored"]]
    return LevelResult(
        name=_name(benchmark["config"]["strategy"]),
        seconds=benchmark["duration"],
        successful=totals["successful"],
        errored=totals["errored"],
        incomplete=totals["incomplete"],
        prompt_tokens=sum(request["prompt_tokens"] or 0 for request in done),
        output_tokens=sum(request["output_tokens"] or 0 for request in done),
        requests_per_second=metrics["requests_per_second"]["successful"]["mean"],
        output_tokens_per_second=metrics["output_tokens_per_second"]["successful"]["mean"],
        concurrency=metrics["request_concurrency"]["successful"]["mean"],
        first_token_ms=_spread(metrics["time_to_first_token_ms"]),
        inter_token_ms=_spread(metrics["inter_token_latency_ms"]),
        latency_ms=_spread(metrics["request_latency"], 1000),
        first_error=errors[0] if errors else None,
        warnings=tuple(
            f"{warning['message']} {warning['note']}".strip() for warning in benchmark["warnings"]
        ),
        samples={
            "first_token_ms": _sorted(done, "time_to_first_token_ms"),
            "inter_token_ms": _sorted(done, "inter_token_latency_ms"),
            "latency_ms": _sorted(done, "request_latency", 1000),
        },
    )


def _name(strategy: Mapping[str, Any]) -> str:
    match strategy["type_"]:
        case "synchronous":
            return "one at a time"
        case "concurrent":
            return f"{strategy['streams']} at once"
        case "constant":
            return f"{strategy['rate']:g} a second"
        case other:
            return str(other)


def _spread(metric: Mapping[str, Any], scale: float = 1) -> Spread | None:
    found = metric["successful"]
    if not found["count"]:
        return None
    percentiles = {name: found["percentiles"][name] * scale for name in PERCENTILES}
    return Spread(mean=found["mean"] * scale, **percentiles)


def _sorted(requests: Sequence[Mapping[str, Any]], name: str, scale: float = 1) -> list[float]:
    return sorted(request[name] * scale for request in requests if request[name] is not None)


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Spread) else value


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
        """The content of `bench.json`."""
        return {
            "format": _FORMAT,
            "made_by": f"evalution-guidellm {version('evalution-guidellm')}",
            "started": self.started.isoformat(timespec="seconds"),
            **self.subject,
            "load": dict(self.load),
            "levels": [level.to_dict() for level in self.levels],
        }


@contextmanager
def made_folder(output: Path | None, label: str, now: datetime) -> Generator[Path]:
    """The folder to write to, `runs/<date-time>-bench-<label>` where none is named.

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
    except OSError as error:
        raise ConfigurationError(
            f"{path} can't be made: {error.strerror}; name another --output"
        ) from error
    try:
        _check_writable(path)
        yield path
    finally:
        if is_new and not any(path.iterdir()):
            path.rmdir()


def _check_writable(folder: Path) -> None:
    """Raise now, rather than when the figures are there and have no place to go."""
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{folder} can't be written to: {error.strerror}; name another --output"
        ) from error


def write_json(file: Path, value: Any) -> None:
    """Write strict JSON; a reader sees the whole file or none."""
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(to_json(value, indent=2).encode("utf-8", "backslashreplace") + b"\n")
    os.replace(draft, file)


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
