"""The figures of a benchmark, out of GuideLLM's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

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
    """What became of one level of load.

    `errored` requests failed; `incomplete` ones were under way when time was up. Tokens are those
    of answered requests; rates are over `seconds`. Times are in milliseconds, None where the
    subject doesn't tell text as it grows. `inter_token_ms` is each request's mean.
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
