"""GuideLLM's own types around the tiny model; a server of it as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evalution_core.builtins import builtin_path


@pytest.fixture(scope="session")
def tokenizer_folder() -> str:
    return str(builtin_path("builtin:tiny", "safetensors"))


@pytest.fixture(scope="session")
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script of this environment to its end."""

    def run(name: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        script = Path(sys.executable).with_name(name)
        command = [str(script), *words]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
        )

    return run


KEY = "key-of-the-tests"


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The URL of `evalution serve` with the tiny model behind a key."""
    pytest.importorskip(
        "starlette", reason="the extra `server` of evalution-openai isn't installed"
    )
    script = str(Path(sys.executable).with_name("evalution"))
    words = ["serve", "--engine", "Reference", "builtin:tiny", "--name", "tiny"]
    limits = ["--port", "0", "--api-key-env", "TINY_KEY", "--no-request-log"]
    with subprocess.Popen(
        [script, *words, *limits],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TINY_KEY": KEY},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "serving tiny on" in line, line
        yield line.split()[3].removesuffix("/v1")
        process.terminate()


def make_report(levels: int = 1, *, errored: int = 0, streams: bool = True) -> dict[str, Any]:
    """Return a report as GuideLLM writes it, with the fields that are read."""
    return {"benchmarks": [_benchmark(level, errored, streams) for level in range(levels)]}


def _benchmark(level: int, errored: int, streams: bool) -> dict[str, Any]:
    times = [10.0 * (level + 1) * (order + 1) for order in range(10)]
    requests = [
        {
            "prompt_tokens": 16,
            "output_tokens": 8,
            "time_to_first_token_ms": time if streams else None,
            "inter_token_latency_ms": time / 10 if streams else None,
            "request_latency": time / 500,
        }
        for time in times
    ]
    failed = {"info": {"error": "ContextLengthError('too long')"}}
    return {
        "config": {"strategy": {"type_": "concurrent", "streams": level + 1}},
        "duration": 2.0,
        "metrics": {
            "request_totals": {"successful": 10, "errored": errored, "incomplete": 1},
            "requests_per_second": {"successful": {"mean": 5.0}},
            "output_tokens_per_second": {"successful": {"mean": 40.0}},
            "request_concurrency": {"successful": {"mean": 0.9}},
            "time_to_first_token_ms": _metric(times if streams else []),
            "inter_token_latency_ms": _metric([time / 10 for time in times] if streams else []),
            "request_latency": _metric([time / 500 for time in times]),
        },
        "requests": {"successful": requests, "errored": [failed] * errored},
        "warnings": [{"message": "late.", "note": "Slow data."}] if level else [],
    }


def _metric(values: list[float]) -> dict[str, Any]:
    if not values:
        empty = dict.fromkeys(("p50", "p90", "p95", "p99"), 0.0)
        return {"successful": {"count": 0, "mean": 0.0, "percentiles": empty}}
    percentiles = {"p50": values[4], "p90": values[8], "p95": values[9], "p99": values[9]}
    mean = sum(values) / len(values)
    return {"successful": {"count": len(values), "mean": mean, "percentiles": percentiles}}


@pytest.fixture
def report() -> Callable[..., dict[str, Any]]:
    return make_report


@pytest.fixture(scope="session")
def key() -> str:
    return KEY
