from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalution import MetricResult, RunResult, SampleResult, SuiteResult
from evalution.results import to_json
from evalution.samples_file import SAMPLES, SamplesFile
from evalution.scoring.intervals import wilson_interval

Suites = Mapping[str, Sequence[SampleResult]]


def write_run(folder: Path, finished: Suites, unfinished: Suites | None = None, **run: Any) -> Path:
    """Write the folder of a run as a run does, its unfinished suites in the order given."""
    folder.mkdir(parents=True)
    file = SamplesFile(folder / SAMPLES)
    for samples in finished.values():
        for sample in samples:
            file.append(sample)
        file.finish_suite()
    for samples in (unfinished or {}).values():
        for sample in samples:
            file.append(sample)
    file.close()
    result = RunResult(
        model={"path": "m", "label": "my model"},
        engine={"name": "Mock", "options": {"api_key": "sk-secret"}},
        scoring_policy={},
        versions={"python": "3.11"},
        status="interrupted" if unfinished else "done",
        started="2026-01-02T03:04:05+00:00",
        finished="2026-01-02T03:05:05+00:00",
        suites=[make_suite(name, samples) for name, samples in finished.items()],
    )
    for field, value in run.items():
        setattr(result, field, value)
    (folder / "results.json").write_text(to_json(result.to_dict()))
    return folder


def make_suite(name: str, samples: Sequence[SampleResult]) -> SuiteResult:
    metrics: dict[str, MetricResult] = {}
    for metric in samples[0].metrics:
        values = [sample.metrics[metric] for sample in samples]
        share = sum(values) / len(values)
        interval = wilson_interval(share, len(values)) if 0 <= share <= 1 else None
        metrics[metric] = MetricResult(share, 0.1, True, len(values), interval)
    failed = sum(sample.error is not None for sample in samples)
    return SuiteResult(name, "Generation", {}, metrics, len(samples), failed, 0, len(samples), 2.0)


@pytest.fixture
def run_folder() -> Callable[..., Path]:
    return write_run


@pytest.fixture
def answered() -> Callable[..., SampleResult]:
    """Makes a sample of the suite `sums` that is right, or wrong."""

    def make(row: int, *, right: bool = True, suite: str = "sums", **changes: Any) -> SampleResult:
        sample = SampleResult(suite, row, f"What is {row} + 1?", str(row + 1))
        sample.prediction = f" {row + 1 if right else 'no idea'}"
        sample.extracted = {"exact_match": sample.prediction.strip()}
        sample.metrics = {"exact_match": float(right)}
        for field, value in changes.items():
            setattr(sample, field, value)
        return sample

    return make
